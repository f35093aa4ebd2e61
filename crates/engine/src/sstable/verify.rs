//! Checking a whole table.

use super::block::Malformed;
use super::data_block::DataBlock;
use super::filter::FilterBlock;
use super::format::{HEADER_BYTES, header};
use super::index_block::IndexBlock;
use super::summary::Summary;
use super::table::{INDEX_COLUMNS, Partition, Root, TOP_COLUMNS, Table, read_exact, read_meta};
use super::window::Window;
use crate::Error;
use stdx::{CellMeta, CellRef};
use xxhash_rust::xxh3::xxh3_64;

/// Is shown keys, each with what its cell is.
pub type Show<'a> = &'a mut dyn FnMut(&[u8], &CellMeta);

impl Table {
    /// Reads every block of the table and checks that all of them fit together: checksums, the order of keys,
    /// counts, that each filter has its keys and each index finds them, and that the footer says of the table
    /// what the manifest says.
    ///
    /// `progress` is told how many bytes were read since it was last told, so that the caller can pace itself.
    ///
    /// # Errors
    /// [`Error::Corrupt`], with the place of the first thing that is wrong.
    pub fn verify(&self, progress: &mut dyn FnMut(u64)) -> Result<(), Error> {
        self.verify_showing(progress, &mut |_, _| ())
    }

    /// The same. `show` is called with each key and what its cell is.
    ///
    /// # Errors
    /// As [`Table::verify`].
    pub fn verify_showing(&self, progress: &mut dyn FnMut(u64), show: Show<'_>) -> Result<(), Error> {
        let root = self.root_waiting()?;
        self.verify_header(root)?;
        let top = self.top(root)?;
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

    /// That what frames the blocks in the file is as it was written.
    pub(super) fn verify_ends(&self, root: &Root) -> Result<(), Error> {
        self.verify_header(root)?;
        match read_meta(&*root.file, self.path())? == **self.meta() {
            true => Ok(()),
            false => Err(self.footer_differs(root)),
        }
    }

    fn verify_header(&self, root: &Root) -> Result<(), Error> {
        let mut found = [0; HEADER_BYTES as usize];
        read_exact(&*root.file, self.path(), &mut found, 0)?;
        match found[..] == header(self.id()) {
            true => Ok(()),
            false => Err(self.corrupt(0, Malformed("the header is not that of this table"))),
        }
    }

    fn footer_differs(&self, root: &Root) -> Error {
        let differs = Malformed("the footer differs from what the manifest says");
        self.corrupt(root.tail.meta.offset, differs)
    }

    fn verify_meta(&self, root: &Root, counted: Summary) -> Result<(), Error> {
        let at = root.tail.meta.offset;
        let footer = read_meta(&*root.file, self.path())?;
        if footer != **self.meta() {
            return Err(self.footer_differs(root));
        }
        if counted.cells() == 0 || counted.finish(self.id(), footer.file_bytes) != footer {
            return Err(self.corrupt(at, Malformed("the footer differs from what the blocks hold")));
        }
        Ok(())
    }
}

/// What was seen so far.
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
        show: Show<'_>,
    ) -> Result<(), Error> {
        let table = self.table;
        let index: IndexBlock = table.read_alone(root, partition.index)?;
        let filter = match partition.filter {
            Some(extent) => Some(table.read_alone::<FilterBlock>(root, extent)?),
            None => None,
        };
        let bad_index = |detail| Err(table.corrupt(partition.index.offset, Malformed(detail)));
        if index.columns() != INDEX_COLUMNS {
            return bad_index("the index has other columns");
        }
        let mut end = partition.start;
        for at in 0..index.entries() {
            let extent = table.data_extent(partition, &index, at)?;
            let block: DataBlock = table.read_uncached(&mut self.window, extent)?;
            let malformed = |malformed| table.corrupt(extent.offset, malformed);
            self.block(&block, filter.as_ref(), index_bounds(&index, at), show).map_err(malformed)?;
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

    /// Checks the entries of a block; `below` and `last` are the separators around it.
    fn block(
        &mut self,
        block: &DataBlock,
        filter: Option<&FilterBlock>,
        (below, last): (Option<Vec<u8>>, Vec<u8>),
        show: Show<'_>,
    ) -> Result<(), Malformed> {
        let mut at = 0;
        while let Some(entry) = block.entry(at) {
            at = entry.end();
            let key = [block.prefix(), block.slice(&entry.key)].concat();
            if self.summary.key_last().is_some_and(|before| before >= key.as_slice()) {
                return Err(Malformed("keys do not ascend"));
            }
            if key > last || below.as_ref().is_some_and(|below| key <= *below) {
                return Err(Malformed("a key is not where the index says"));
            }
            if filter.is_some_and(|filter| !filter.may_contain(xxh3_64(&key))) {
                return Err(Malformed("the filter denies a key"));
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

/// The separators before and of the block `at`.
fn index_bounds(index: &IndexBlock, at: usize) -> (Option<Vec<u8>>, Vec<u8>) {
    (at.checked_sub(1).map(|before| index.key(before)), index.key(at))
}
