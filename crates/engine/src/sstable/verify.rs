//! Full verification of a table.

use super::Wait;
use super::data_block::{DataBlock, Entry, is_oversized};
use super::filter::FilterBlock;
use super::format::{FormatVersion, HEADER_BYTES, header};
use super::index_block::IndexBlock;
use super::indexed_cell::IndexedCell;
use super::malformed::Malformed;
use super::summary::Summary;
use super::table::{INDEX_COLUMNS, Partition, Root, TOP_COLUMNS, Table, read_exact, read_meta};
use super::window::Window;
use crate::Error;
use stdx::{CellMeta, CellRef};
use xxhash_rust::xxh3::xxh3_64;

/// Callback that receives each key with the metadata of its cell.
pub type VisitCell<'a> = &'a mut dyn FnMut(&[u8], &CellMeta);

impl Table {
    /// Reads every block of the table and checks that they are consistent: checksums, key order and
    /// counts. Each filter contains its keys, and each index finds them. The cells in the indexes
    /// equal those in the blocks, and the footer agrees with the manifest.
    ///
    /// `progress` receives the bytes that were read since its last call, so that the caller can
    /// limit its rate.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the offset of the first defect.
    pub fn verify(&self, progress: &mut dyn FnMut(u64)) -> Result<(), Error> {
        self.verify_visiting(progress, &mut |_, _| ())
    }

    /// Same as [`Table::verify`]. `show` receives each key with the metadata of its cell.
    ///
    /// # Errors
    /// Same as [`Table::verify`].
    pub fn verify_visiting(&self, progress: &mut dyn FnMut(u64), show: VisitCell<'_>) -> Result<(), Error> {
        let root = self.root_blocking(Wait::Allowed)?;
        self.verify_header(root)?;
        let top = self.top(root, Wait::Allowed)?;
        if top.columns() != TOP_COLUMNS {
            return Err(self.corrupt(root.tail.top.offset, Malformed("the top index has other columns")));
        }
        let mut walk = Walk { table: self, window: self.window(root), summary: Summary::default() };
        let mut end = HEADER_BYTES;
        for at in 0..top.entries() {
            let partition = self.partition(root, &top, at)?;
            walk.partition(root, &partition, &top.key(at), progress, show)?;
            end = partition.index.end();
        }
        let counted = walk.summary;
        if end != root.tail.top.offset || root.tail.meta.offset != root.tail.top.end() {
            return Err(self.corrupt(end, Malformed("there is a gap between blocks")));
        }
        self.verify_meta(root, counted)?;
        progress(self.meta().file_bytes - end);
        Ok(())
    }

    /// Checks the header and the meta block.
    pub(super) fn verify_header_and_footer(&self, root: &Root) -> Result<(), Error> {
        self.verify_header(root)?;
        match read_meta(&*root.file, self.path())? == **self.meta() {
            true => Ok(()),
            false => Err(self.footer_differs(root)),
        }
    }

    fn verify_header(&self, root: &Root) -> Result<(), Error> {
        let mut found = [0; HEADER_BYTES as usize];
        read_exact(&*root.file, self.path(), &mut found, 0)?;
        match found[..] == header(self.id(), root.tail.format) {
            true => Ok(()),
            false => Err(self.corrupt(0, Malformed("the header belongs to another table or is damaged"))),
        }
    }

    fn footer_differs(&self, root: &Root) -> Error {
        let differs = Malformed("the footer differs from the manifest");
        self.corrupt(root.tail.meta.offset, differs)
    }

    fn verify_meta(&self, root: &Root, counted: Summary) -> Result<(), Error> {
        let at = root.tail.meta.offset;
        let footer = read_meta(&*root.file, self.path())?;
        if footer != **self.meta() {
            return Err(self.footer_differs(root));
        }
        if counted.cells() == 0 || counted.finish(self.id(), footer.file_bytes) != footer {
            return Err(self.corrupt(at, Malformed("the footer differs from the content of the blocks")));
        }
        Ok(())
    }
}

/// State of a verification in progress.
struct Walk<'a> {
    table: &'a Table,
    window: Window,
    summary: Summary,
}

impl Walk<'_> {
    fn partition(
        &mut self,
        root: &Root,
        partition: &Partition,
        top_key: &[u8],
        progress: &mut dyn FnMut(u64),
        show: VisitCell<'_>,
    ) -> Result<(), Error> {
        let table = self.table;
        let index: IndexBlock = table.read_block(root, partition.index, Wait::Allowed)?;
        let filter = match partition.filter {
            Some(extent) => Some(table.read_block::<FilterBlock>(root, extent, Wait::Allowed)?),
            None => None,
        };
        let bad_index = |detail| Err(table.corrupt(partition.index.offset, Malformed(detail)));
        if index.columns() != INDEX_COLUMNS {
            return bad_index("the index has other columns");
        }
        let mut end = partition.start;
        for at in 0..index.entries() {
            let extent = table.data_extent(partition, &index, at)?;
            let block: DataBlock = table.read_in_window(&mut self.window, extent)?;
            let malformed = |malformed| table.corrupt(extent.offset, malformed);
            self.block(&block, filter.as_ref(), index_bounds(&index, at), show).map_err(malformed)?;
            verify_indexed_cell(&index, at, &block, root.tail.format).map_err(malformed)?;
            end = extent.end();
            progress(extent.bytes);
        }
        if end != partition.filter.unwrap_or(partition.index).offset {
            return bad_index("there is a gap between blocks");
        }
        if index.key(index.entries() - 1) != top_key {
            return bad_index("the top index has another last key");
        }
        progress(partition.index.end() - end);
        Ok(())
    }

    /// Checks the entries of a block. `below` and `last` are the separators before and of the
    /// block.
    fn block(
        &mut self,
        block: &DataBlock,
        filter: Option<&FilterBlock>,
        (below, last): (Option<Vec<u8>>, Vec<u8>),
        show: VisitCell<'_>,
    ) -> Result<(), Malformed> {
        let mut at = 0;
        while let Some(entry) = block.entry(at) {
            at = entry.end();
            let key = [block.prefix(), block.slice(&entry.key)].concat();
            if self.summary.key_last().is_some_and(|before| before >= key.as_slice()) {
                return Err(Malformed("keys do not ascend"));
            }
            if key > last || below.as_ref().is_some_and(|below| key <= *below) {
                return Err(Malformed("a key is outside of the bounds of its block in the index"));
            }
            if filter.is_some_and(|filter| !filter.may_contain(xxh3_64(&key))) {
                return Err(Malformed("a key is missing from the filter"));
            }
            let cell = CellRef { meta: entry.meta, value: block.slice(&entry.value) };
            show(&key, &cell.meta);
            match block.find(&key) {
                Some(found) if found.value == entry.value => self.summary.add(&key, &cell),
                _ => return Err(Malformed("a key is not found in its block")),
            }
        }
        Ok(())
    }
}

/// Checks that the index has the cell of block `at` if it should, and that both are equal.
fn verify_indexed_cell(
    index: &IndexBlock,
    at: usize,
    block: &DataBlock,
    format: FormatVersion,
) -> Result<(), Malformed> {
    let first = block.entry(0).ok_or(Malformed("the block is empty"))?;
    let Entry { meta, key, value } = &first;
    let cell = CellRef { meta: *meta, value: block.slice(value) };
    match index.cell(at) {
        None if format == FormatVersion::V1 || !is_oversized(&cell) => Ok(()),
        None => Err(Malformed("the index lacks an oversized cell")),
        Some(_) if block.entry(first.end()).is_some() => {
            Err(Malformed("the index has one cell of a block with several"))
        }
        Some(indexed) => {
            let key = [block.prefix(), block.slice(key)].concat();
            match *indexed == IndexedCell::of(&cell) && index.is_key(at, &key) {
                true => Ok(()),
                false => Err(Malformed("the index has another cell than its block")),
            }
        }
    }
}

/// The separators before and of block `at`.
fn index_bounds(index: &IndexBlock, at: usize) -> (Option<Vec<u8>>, Vec<u8>) {
    (at.checked_sub(1).map(|before| index.key(before)), index.key(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::BlockCache;
    use crate::iter::Cursor;
    use crate::sstable::{ReadMode, TableFiles, TableId, TableOptions, TableWriter};
    use env::{Fs, MemFs, OpenMode};
    use std::path::Path;
    use std::sync::Arc;
    use stdx::{Cell, Hlc, NodeTag, Version};

    fn written(fs: &MemFs, number: u64, add: impl FnOnce(&mut TableWriter)) -> Arc<Table> {
        let (path, id) = (Path::new("tables").join(number.to_string()), TableId(number));
        let file = fs.open(&path, OpenMode::CreateNew).expect("a new file");
        // The filter would show another key before the index does.
        let options = TableOptions { filter_bits_per_key: 0, ..TableOptions::default() };
        let mut writer = TableWriter::new(file, path.clone(), id, options);
        add(&mut writer);
        let meta = Arc::new(writer.finish().expect("the disk has space"));
        let files = Arc::new(TableFiles::new(Arc::new(fs.clone()), 1));
        Arc::new(Table::open(&files, path, meta, Arc::new(BlockCache::new(1 << 20)), Arc::new(|_| ())))
    }

    #[test]
    fn a_cell_in_the_index_that_differs_from_its_block_is_detected() {
        let fs = MemFs::new();
        fs.create_dir_all(Path::new("tables")).expect("a new directory");
        let cell = Cell::value(Version::new(Hlc::from_bits(5), NodeTag(1)), 2, vec![7; 100 << 10].into());
        let table = written(&fs, 1, |writer| writer.add(b"key", cell.as_ref()).expect("add"));
        let mut cursor = table.cursor(ReadMode::Bulk);
        cursor.seek_to_first().expect("it is whole");
        let stored = cursor.stored().expect("it is oversized");
        let version = Version::new(Hlc::from_bits(6), NodeTag(1));
        let of_other_version = CellMeta { version, ..cell.meta };
        let of_other_from = CellMeta { from: 3, ..cell.meta };
        let shorter = CellRef { value: &cell.value[1..], ..cell.as_ref() };
        let others = [of_other_version, of_other_from].map(|meta| CellRef { meta, ..cell.as_ref() });
        let others = others.into_iter().chain([shorter]).map(|other| (&b"key"[..], other));
        for (number, (key, other)) in (2..).zip(others.chain([(&b"kez"[..], cell.as_ref())])) {
            let table = written(&fs, number, |writer| writer.add_stored(key, other, stored).expect("add"));
            let error = table.verify(&mut |_| ()).expect_err("they differ");
            assert!(error.to_string().contains("the index has another cell"), "{error}");
        }
        let table = written(&fs, 9, |writer| writer.add_stored(b"key", cell.as_ref(), stored).expect("add"));
        table.verify(&mut |_| ()).expect("they are equal");
    }
}
