//! Incremental verification of a table file, for the background scrub.
//!
//! **Promise.** A completed inspection has checked every byte of the file that a read can depend
//! on, as the device returns it: the header, all data blocks, filters and indexes, the top index,
//! the meta block and the tail. Each step reads one chunk of at most [`CHUNK_BYTES`]. Its memory is
//! that chunk and one index, independent of block sizes.
//!
//! **Mechanism.** Regions are checked in file order. Checksums are computed incrementally, and
//! nothing is decompressed. Only the index of each partition is read ahead of its blocks, because
//! it says where they end. The page cache of the operating system stays about as it was (see
//! [`File::read_from_device`]). So does the block cache, because the inspection opens the file
//! again.
//!
//! **Caveats.** A matching checksum shows that a block is unchanged, not that its content is
//! consistent: see [`Table::verify`]. The first error ends the inspection; the heal job finds all
//! others.

use super::Wait;
use super::format::{Extent, HEADER_BYTES, TAIL_BYTES, header};
use super::frame::{FrameCheck, FrameKind, FrameLocation};
use super::index_block::IndexBlock;
use super::malformed::Malformed;
use super::table::{Partition, Root, Table, cut_short};
use crate::Error;
use env::{File, Fs, OpenMode};
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes read per step: a multiple of the page size.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;
/// Alignment of chunks, so that no page is read for two of them.
const PAGE_BYTES: u64 = 4 << 10;

/// Result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InspectionStep {
    /// Bytes read.
    pub(crate) bytes: u64,
    /// Blocks whose checksum matched.
    pub(crate) blocks: u64,
    /// Whether the whole table is checked.
    pub(crate) is_finished: bool,
}

/// An inspection of one table in progress.
pub(crate) struct Inspection {
    table: Arc<Table>,
    root: Root,
    top: Arc<IndexBlock>,
    chunk: Chunk,
    position: Position,
    /// Region that is partly checked.
    region: Option<Region>,
}

/// The region to check next.
enum Position {
    Header,
    /// The index of this partition is to be read.
    Partition(usize),
    /// Data block number `at`; behind the last data block the filter, then the index.
    Block {
        partition_at: usize,
        partition: Partition,
        index: IndexBlock,
        at: usize,
    },
    Top,
    Meta,
    Tail,
    End,
}

/// A region of the file and its checksum so far.
struct Region {
    extent: Extent,
    seen: u64,
    check: Check,
}

enum Check {
    Frame(Box<FrameCheck>),
    /// The region must equal these bytes.
    Bytes {
        expected: Vec<u8>,
        differs: bool,
    },
}

/// The part of the file that is in memory.
struct Chunk {
    file: Arc<dyn File>,
    path: PathBuf,
    file_bytes: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl Inspection {
    /// Begins an inspection of `table`, and opens its file for it.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the tail or the top index fails its checks, [`Error::Io`] if the file
    /// cannot be read.
    pub(crate) fn new(fs: &dyn Fs, table: Arc<Table>) -> Result<Self, Error> {
        let path = table.path().to_owned();
        let file = fs.open(&path, OpenMode::Read).map_err(|error| Error::io("open", &path, error))?;
        let root = table.root_of(Arc::clone(&file), Wait::Allowed)?;
        let top = table.top_uncached(&root)?;
        let chunk = Chunk { file, path, file_bytes: table.meta().file_bytes, start: 0, bytes: Vec::new() };
        Ok(Self { table, root, top, chunk, position: Position::Header, region: None })
    }

    /// The table that is inspected.
    pub(crate) fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Offset up to which the file was read, in bytes.
    pub(crate) fn done_bytes(&self) -> u64 {
        self.chunk.end()
    }

    /// Reads a chunk and checks it. Must not be called after an error or after the last step.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the offset of the first error; [`Error::Io`] if the file cannot be
    /// read.
    pub(crate) fn step(&mut self) -> Result<InspectionStep, Error> {
        let mut done = InspectionStep { bytes: 0, blocks: 0, is_finished: false };
        loop {
            let Some(mut region) =
                self.region.take().map_or_else(|| self.next_region(), |region| Ok(Some(region)))?
            else {
                done.is_finished = true;
                return Ok(done);
            };
            if !region.consume(&self.chunk) {
                if done.bytes > 0 {
                    self.region = Some(region);
                    return Ok(done);
                }
                done.bytes = self.chunk.load(region.next())?;
                self.region = Some(region);
                continue;
            }
            done.blocks += u64::from(matches!(region.check, Check::Frame(_)));
            let offset = region.extent.offset;
            region.finish().map_err(|malformed| self.table.corrupt(offset, malformed))?;
        }
    }

    fn next_region(&mut self) -> Result<Option<Region>, Error> {
        let id = self.table.id();
        loop {
            let position = std::mem::replace(&mut self.position, Position::End);
            let (region, next) = match position {
                Position::Header => {
                    (Region::bytes(0, header(id, self.root.tail.format)), Position::Partition(0))
                }
                Position::Partition(at) if at == self.top.entries() => {
                    self.position = Position::Top;
                    continue;
                }
                Position::Partition(partition_at) => {
                    let partition = self.table.partition(&self.root, &self.top, partition_at)?;
                    let index = self.table.read_block(&self.root, partition.index, Wait::Allowed)?;
                    self.position = Position::Block { partition_at, partition, index, at: 0 };
                    continue;
                }
                Position::Block { partition_at, partition, index, at } => {
                    let blocks = index.entries();
                    let (kind, extent) = match partition.filter {
                        _ if at < blocks => {
                            (FrameKind::Data, self.table.data_extent(&partition, &index, at)?)
                        }
                        Some(filter) if at == blocks => (FrameKind::Filter, filter),
                        _ => (FrameKind::Index, partition.index),
                    };
                    let next = match kind {
                        FrameKind::Index => Position::Partition(partition_at + 1),
                        _ => Position::Block { partition_at, partition, index, at: at + 1 },
                    };
                    (self.frame(kind, extent), next)
                }
                Position::Top => (self.frame(FrameKind::Index, self.root.tail.top), Position::Meta),
                Position::Meta => (self.frame(FrameKind::Meta, self.root.tail.meta), Position::Tail),
                Position::Tail => {
                    let offset = self.chunk.file_bytes.saturating_sub(TAIL_BYTES);
                    (Region::bytes(offset, self.root.tail.encode()), Position::End)
                }
                Position::End => return Ok(None),
            };
            self.position = next;
            return Ok(Some(region));
        }
    }

    fn frame(&self, kind: FrameKind, extent: Extent) -> Region {
        let position = FrameLocation { table: self.table.id(), offset: extent.offset };
        let check = Check::Frame(Box::new(FrameCheck::new(kind, position, extent.bytes)));
        Region { extent, seen: 0, check }
    }
}

impl Table {
    /// Returns whether the header or the footer (top index, meta block, tail) of the file is
    /// damaged. An open table keeps the parts of them that it needs in memory.
    pub(crate) fn has_damaged_header_or_footer(&self, fs: &dyn Fs) -> bool {
        let ends = || {
            let file = fs.open(self.path(), OpenMode::Read);
            let file = file.map_err(|error| Error::io("open", self.path(), error))?;
            let root = self.root_of(file, Wait::Allowed)?;
            self.top_uncached(&root)?;
            self.verify_header_and_footer(&root)
        };
        ends().is_err_and(|error: Error| error.unreadable().is_some())
    }
}

impl Region {
    fn bytes(offset: u64, expected: Vec<u8>) -> Self {
        let extent = Extent { offset, bytes: expected.len() as u64 };
        Self { extent, seen: 0, check: Check::Bytes { expected, differs: false } }
    }

    /// Offset of the first byte that is not checked yet.
    fn next(&self) -> u64 {
        self.extent.offset + self.seen
    }

    /// Checks the part of the region that is in this chunk. Returns whether the region is complete.
    fn consume(&mut self, chunk: &Chunk) -> bool {
        let left = self.extent.bytes - self.seen;
        let bytes = chunk.from(self.next());
        let bytes = &bytes[..bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
        match &mut self.check {
            Check::Frame(check) => check.update(bytes),
            Check::Bytes { expected, differs } => {
                let at = self.seen as usize;
                *differs |= expected[at..at + bytes.len()] != *bytes;
            }
        }
        self.seen += bytes.len() as u64;
        self.seen == self.extent.bytes
    }

    fn finish(self) -> Result<(), Malformed> {
        match self.check {
            Check::Frame(check) => check.finish(),
            Check::Bytes { differs: false, .. } => Ok(()),
            Check::Bytes { .. } if self.extent.offset < HEADER_BYTES => {
                Err(Malformed("the header belongs to another table or is damaged"))
            }
            Check::Bytes { .. } => Err(Malformed("the tail belongs to another table or is damaged")),
        }
    }
}

impl Chunk {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Bytes of the chunk from `offset` on.
    fn from(&self, offset: u64) -> &[u8] {
        let at = offset.checked_sub(self.start).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| self.bytes.get(at..)).unwrap_or_default()
    }

    /// Reads the chunk that contains the byte at `offset`. Returns its length in bytes.
    fn load(&mut self, offset: u64) -> Result<u64, Error> {
        self.start = offset - offset % PAGE_BYTES;
        let len = (CHUNK_BYTES as u64).min(self.file_bytes.saturating_sub(self.start));
        self.bytes.resize(len as usize, 0);
        let read = self.file.read_from_device(&mut self.bytes, self.start);
        let read = read.map_err(|error| Error::io("read", &self.path, error))?;
        self.bytes.truncate(read);
        if offset >= self.end() {
            return Err(cut_short(&self.path, offset));
        }
        Ok(read as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::BlockCache;
    use crate::sstable::{TableFiles, TableId, TableOptions, TableWriter};
    use env::MemFs;
    use stdx::{Cell, Hlc, NodeTag, Rng, Version};

    /// A table with blocks of all kinds, one of them larger than a chunk.
    fn table(fs: &MemFs) -> Arc<Table> {
        let (path, id) = (PathBuf::from("table.sst"), TableId(1));
        let file = fs.open(&path, OpenMode::CreateNew).expect("a new file");
        let options = TableOptions { block_bytes: 512, ..TableOptions::default() };
        let mut writer = TableWriter::new(file, path.clone(), id, options);
        let mut rng = Rng::new(1);
        for number in 0..200u64 {
            let mut value = vec![0; if number == 77 { 3 * CHUNK_BYTES / 2 } else { 40 }];
            rng.fill(&mut value);
            let cell = Cell::value(Version::new(Hlc::from_bits(number + 1), NodeTag(1)), 1, value.into());
            writer.add(&number.to_be_bytes(), cell.as_ref()).expect("the disk has space");
        }
        let meta = Arc::new(writer.finish().expect("the disk has space"));
        let cache = Arc::new(BlockCache::new(1 << 20));
        let files = Arc::new(TableFiles::new(Arc::new(fs.clone()), 1));
        Arc::new(Table::open(&files, path, meta, cache, Arc::new(|_| ())))
    }

    /// Runs all steps and returns the sum of their results.
    fn inspect(fs: &MemFs, table: &Arc<Table>) -> Result<InspectionStep, Error> {
        let mut inspection = Inspection::new(fs, Arc::clone(table))?;
        let mut sum = InspectionStep { bytes: 0, blocks: 0, is_finished: false };
        while !sum.is_finished {
            let done = inspection.step()?;
            assert!(done.bytes <= CHUNK_BYTES as u64 && (done.bytes > 0 || done.is_finished));
            sum = InspectionStep {
                bytes: sum.bytes + done.bytes,
                blocks: sum.blocks + done.blocks,
                is_finished: done.is_finished,
            };
        }
        Ok(sum)
    }

    #[test]
    fn an_intact_table_is_read_once_in_chunks() {
        let fs = MemFs::new();
        let table = table(&fs);
        let sum = inspect(&fs, &table).expect("it is whole");
        let pages = table.meta().file_bytes.div_ceil(CHUNK_BYTES as u64) * PAGE_BYTES;
        let bytes = table.meta().file_bytes;
        assert!((bytes..=bytes + pages).contains(&sum.bytes), "{} of {bytes}", sum.bytes);
        assert!(sum.blocks > 20, "{}", sum.blocks);
        assert!(!table.has_damaged_header_or_footer(&fs));
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let fs = MemFs::new();
        let table = table(&fs);
        let bytes = table.meta().file_bytes;
        let ends = (0..HEADER_BYTES).chain(bytes - 400..bytes);
        for at in ends.chain((0..bytes).step_by(3_001)) {
            let bit = (at % 8) as u8;
            fs.corrupt(table.path(), at, bit).expect("flip");
            let error = inspect(&fs, &table).expect_err("it is damaged");
            assert_eq!(error.unreadable(), Some(table.path()), "byte {at} of {bytes}");
            fs.corrupt(table.path(), at, bit).expect("flip back");
        }
        inspect(&fs, &table).expect("it is whole again");
    }
}
