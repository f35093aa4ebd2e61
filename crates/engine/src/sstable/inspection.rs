//! Checking a table against its file in small pieces, without hurry.
//!
//! **Promise.** An inspection that comes to its end has seen every byte of the file that a read can depend on, as the device
//! has it: the header, each data block, filter and index, the top index, the meta block and the tail. Each step reads one
//! piece, of [`PIECE_BYTES`] at most, and takes no more memory than that and one index, however large a block is.
//!
//! **Mechanism.** Parts follow one another in the file: their checksums are taken as they come by, and nothing is decompressed.
//! Only where blocks end is read ahead of them, from the index of each partition. What the system holds of the file in
//! memory is left about as it was (see [`File::read_from_device`]), and so is the cache: the file is opened once more.
//!
//! **Caveats.** A checksum says that a block is what was written, not that it makes sense: see [`Table::verify`]. What is
//! wrong ends the inspection; what else is wrong, whoever heals the table finds.

use super::block::Malformed;
use super::format::{Extent, HEADER_BYTES, TAIL_BYTES, header};
use super::frame::{FrameCheck, FrameKind, Place};
use super::index_block::IndexBlock;
use super::table::{Partition, Root, Table, cut_short};
use crate::Error;
use env::{File, Fs, OpenMode};
use std::path::PathBuf;
use std::sync::Arc;

/// What is read at once, in bytes: whole pages of the system.
pub(crate) const PIECE_BYTES: usize = 256 << 10;
/// Pieces begin at a multiple of this, so that no page is read for two of them.
const PAGE_BYTES: u64 = 4 << 10;

/// What one step has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inspected {
    /// Bytes read.
    pub(crate) bytes: u64,
    /// Blocks found to be what was written.
    pub(crate) blocks: u64,
    /// There is nothing left of the table.
    pub(crate) is_over: bool,
}

/// See the module.
pub(crate) struct Inspection {
    table: Arc<Table>,
    root: Root,
    top: Arc<IndexBlock>,
    piece: Piece,
    place: Position,
    /// What is being checked.
    part: Option<Part>,
}

/// Which part comes next.
enum Position {
    Header,
    /// The index of this partition has to be read.
    Partition(usize),
    /// The data block of this number; behind the last one, the filter and the index.
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

/// A part of the file on its way past.
struct Part {
    extent: Extent,
    seen: u64,
    check: Check,
}

enum Check {
    Frame(Box<FrameCheck>),
    /// It must be these bytes.
    Same {
        expected: Vec<u8>,
        differs: bool,
    },
}

/// A piece of the file in memory.
struct Piece {
    file: Arc<dyn File>,
    path: PathBuf,
    file_bytes: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl Inspection {
    /// Begins with a table, whose file is opened for this.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when its end is not what was written, [`Error::Io`] when it cannot be read.
    pub(crate) fn new(fs: &dyn Fs, table: Arc<Table>) -> Result<Self, Error> {
        let path = table.path().to_owned();
        let file = fs.open(&path, OpenMode::Read).map_err(|error| Error::io("open", &path, error))?;
        let root = table.root_of(Arc::clone(&file))?;
        let top = table.top_uncached(&root)?;
        let piece = Piece { file, path, file_bytes: table.meta().file_bytes, start: 0, bytes: Vec::new() };
        Ok(Self { table, root, top, piece, place: Position::Header, part: None })
    }

    /// Which table it is of.
    pub(crate) fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Bytes of the file that were read.
    pub(crate) fn done_bytes(&self) -> u64 {
        self.piece.end()
    }

    /// Reads a piece, and checks what is in it. Not to be called again after an error, or when it is over.
    ///
    /// # Errors
    /// [`Error::Corrupt`], with the place of the first thing that is wrong; [`Error::Io`] when the file cannot be read.
    pub(crate) fn step(&mut self) -> Result<Inspected, Error> {
        let mut done = Inspected { bytes: 0, blocks: 0, is_over: false };
        loop {
            let Some(mut part) = self.part.take().map_or_else(|| self.next_part(), |part| Ok(Some(part)))?
            else {
                done.is_over = true;
                return Ok(done);
            };
            if !part.pass(&self.piece) {
                if done.bytes > 0 {
                    self.part = Some(part);
                    return Ok(done);
                }
                done.bytes = self.piece.load(part.next())?;
                self.part = Some(part);
                continue;
            }
            done.blocks += u64::from(matches!(part.check, Check::Frame(_)));
            let offset = part.extent.offset;
            part.finish().map_err(|malformed| self.table.corrupt(offset, malformed))?;
        }
    }

    fn next_part(&mut self) -> Result<Option<Part>, Error> {
        let id = self.table.id();
        loop {
            let place = std::mem::replace(&mut self.place, Position::End);
            let (part, next) = match place {
                Position::Header => (Part::same(0, header(id)), Position::Partition(0)),
                Position::Partition(at) if at == self.top.entries() => {
                    self.place = Position::Top;
                    continue;
                }
                Position::Partition(partition_at) => {
                    let partition = self.table.partition(&self.root, &self.top, partition_at)?;
                    let index = self.table.read_alone(&self.root, partition.index)?;
                    self.place = Position::Block { partition_at, partition, index, at: 0 };
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
                    let offset = self.piece.file_bytes.saturating_sub(TAIL_BYTES);
                    (Part::same(offset, self.root.tail.encode()), Position::End)
                }
                Position::End => return Ok(None),
            };
            self.place = next;
            return Ok(Some(part));
        }
    }

    fn frame(&self, kind: FrameKind, extent: Extent) -> Part {
        let place = Place { table: self.table.id(), offset: extent.offset };
        let check = Check::Frame(Box::new(FrameCheck::new(kind, place, extent.bytes)));
        Part { extent, seen: 0, check }
    }
}

impl Table {
    /// Whether what frames the blocks of this table in its file is not what was written: header, top index, meta block and tail,
    /// of which an open table holds what it needs.
    pub(crate) fn has_damaged_ends(&self, fs: &dyn Fs) -> bool {
        let ends = || {
            let file = fs.open(self.path(), OpenMode::Read);
            let file = file.map_err(|error| Error::io("open", self.path(), error))?;
            let root = self.root_of(file)?;
            self.top_uncached(&root)?;
            self.verify_ends(&root)
        };
        ends().is_err_and(|error: Error| error.unreadable().is_some())
    }
}

impl Part {
    fn same(offset: u64, expected: Vec<u8>) -> Self {
        let extent = Extent { offset, bytes: expected.len() as u64 };
        Self { extent, seen: 0, check: Check::Same { expected, differs: false } }
    }

    /// Where it goes on.
    fn next(&self) -> u64 {
        self.extent.offset + self.seen
    }

    /// Takes what of it is in this piece. Whether that was all that was left.
    fn pass(&mut self, piece: &Piece) -> bool {
        let left = self.extent.bytes - self.seen;
        let bytes = piece.from(self.next());
        let bytes = &bytes[..bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
        match &mut self.check {
            Check::Frame(check) => check.take(bytes),
            Check::Same { expected, differs } => {
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
            Check::Same { differs: false, .. } => Ok(()),
            Check::Same { .. } if self.extent.offset < HEADER_BYTES => {
                Err(Malformed("the header is not that of this table"))
            }
            Check::Same { .. } => Err(Malformed("the tail is not that of this table")),
        }
    }
}

impl Piece {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// What of it is at `offset` and behind.
    fn from(&self, offset: u64) -> &[u8] {
        let at = offset.checked_sub(self.start).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| self.bytes.get(at..)).unwrap_or_default()
    }

    /// Reads the piece that has the byte at `offset`. How many bytes that are.
    fn load(&mut self, offset: u64) -> Result<u64, Error> {
        self.start = offset - offset % PAGE_BYTES;
        let len = (PIECE_BYTES as u64).min(self.file_bytes.saturating_sub(self.start));
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

    /// A table with blocks of all kinds, one of them larger than a piece.
    fn table(fs: &MemFs) -> Arc<Table> {
        let (path, id) = (PathBuf::from("table.sst"), TableId(1));
        let file = fs.open(&path, OpenMode::CreateNew).expect("a new file");
        let options = TableOptions { block_bytes: 512, ..TableOptions::default() };
        let mut writer = TableWriter::new(file, path.clone(), id, options);
        let mut rng = Rng::new(1);
        for number in 0..200u64 {
            let mut value = vec![0; if number == 77 { 3 * PIECE_BYTES / 2 } else { 40 }];
            rng.fill(&mut value);
            let cell = Cell::value(Version::new(Hlc::from_bits(number + 1), NodeTag(1)), 1, value.into());
            writer.add(&number.to_be_bytes(), cell.as_ref()).expect("there is room");
        }
        let meta = Arc::new(writer.finish().expect("there is room"));
        let cache = Arc::new(BlockCache::new(1 << 20));
        let files = Arc::new(TableFiles::new(Arc::new(fs.clone()), 1));
        Arc::new(Table::open(&files, path, meta, cache, Arc::new(|_| ())))
    }

    /// All steps, and what they have done together.
    fn inspect(fs: &MemFs, table: &Arc<Table>) -> Result<Inspected, Error> {
        let mut inspection = Inspection::new(fs, Arc::clone(table))?;
        let mut sum = Inspected { bytes: 0, blocks: 0, is_over: false };
        while !sum.is_over {
            let done = inspection.step()?;
            assert!(done.bytes <= PIECE_BYTES as u64 && (done.bytes > 0 || done.is_over));
            sum = Inspected {
                bytes: sum.bytes + done.bytes,
                blocks: sum.blocks + done.blocks,
                is_over: done.is_over,
            };
        }
        Ok(sum)
    }

    #[test]
    fn a_whole_table_is_read_once_piece_by_piece() {
        let fs = MemFs::new();
        let table = table(&fs);
        let sum = inspect(&fs, &table).expect("it is whole");
        let pages = table.meta().file_bytes.div_ceil(PIECE_BYTES as u64) * PAGE_BYTES;
        let bytes = table.meta().file_bytes;
        assert!((bytes..=bytes + pages).contains(&sum.bytes), "{} of {bytes}", sum.bytes);
        assert!(sum.blocks > 20, "{}", sum.blocks);
        assert!(!table.has_damaged_ends(&fs));
    }

    #[test]
    fn whatever_bit_flips_is_found() {
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
