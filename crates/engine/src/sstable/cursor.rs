//! Iteration over a table.

use super::block_reader::StoredForm;
use super::damage::{Damage, UnreadableRange};
use super::data_block::{DataBlock, Entry};
use super::filter::FilterBlock;
use super::format::Extent;
use super::frame::StoredBlock;
use super::index_block::IndexBlock;
use super::malformed::Malformed;
use super::read_ahead::ReadAhead;
use super::table::{Partition, Root, Table};
use super::window::Window;
use super::{ReadMemory, ReadMode, Wait};
use crate::Error;
use crate::iter::{Cursor, OwnedValue};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use stdx::{CellMeta, CellRef};

/// Attempts to read a block before a salvage skips it: many read errors are transient.
const SALVAGE_TRIES: usize = 4;

/// A position among the cells of a table. Its methods may block on the disk.
pub struct TableCursor {
    table: Arc<Table>,
    mode: ReadMode,
    /// Memory of the large blocks, if the reader accounts for it.
    memory: Option<Arc<ReadMemory>>,
    /// Position among the blocks; `None` until the first seek.
    state: Option<BlockIter>,
    position: Position,
    /// Key at the position. Its first `prefix_len` bytes are the prefix of the block.
    key: Vec<u8>,
    prefix_len: usize,
    meta: CellMeta,
    value: Range<usize>,
    /// Offset in the block at which the next entry begins.
    next: usize,
    /// Unreadable ranges that were skipped; `Some` in the mode [`ReadMode::Salvage`].
    damage: Option<Box<Damage>>,
}

/// Whether the cursor is at an entry, and where its block is.
enum Position {
    PastLast,
    At(CurrentBlock),
    /// At an entry whose block, which has no other entry, was released or not read.
    ValueReleased(Extent),
}

/// Block of the current entry.
struct CurrentBlock {
    block: Arc<DataBlock>,
    extent: Extent,
    /// The stored form of the block, if it is oversized and was read in bulk.
    stored: Option<StoredForm>,
}

/// What a cursor reaches next.
enum Reached {
    Block(CurrentBlock),
    /// A cell whose value is in the block at `extent`, which was not read.
    Cell {
        key: Vec<u8>,
        meta: CellMeta,
        extent: Extent,
    },
}

/// Position among the blocks of the table.
struct BlockIter {
    top: Arc<IndexBlock>,
    source: BlockSource,
    /// Whether blocks of cells that are in the index are skipped.
    skips_values: bool,
    partition_at: usize,
    partition: Option<(Partition, Arc<IndexBlock>)>,
    block_at: usize,
}

/// Source of blocks, by [`ReadMode`].
enum BlockSource {
    Scan(ReadAhead),
    Bulk(Window),
    /// Reads each block individually. `lacks_filter`: a filter was unreadable.
    Salvage {
        lacks_filter: bool,
    },
}

impl TableCursor {
    pub(super) fn new(table: Arc<Table>, mode: ReadMode) -> Self {
        let meta = CellMeta::tombstone(table.meta().version_min, 1);
        Self {
            table,
            mode,
            memory: None,
            state: None,
            position: Position::PastLast,
            key: Vec::new(),
            prefix_len: 0,
            meta,
            value: 0..0,
            next: 0,
            damage: (mode == ReadMode::Salvage).then(Box::default),
        }
    }

    /// Sets the memory that covers the large blocks read from now on, if any does.
    pub(crate) fn set_memory(&mut self, memory: Option<&Arc<ReadMemory>>) {
        self.memory = memory.cloned();
    }

    /// The table that this cursor reads.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// The current block in its stored form, if it holds a single oversized cell and was read in
    /// bulk.
    pub(crate) fn stored(&self) -> Option<StoredBlock<'_>> {
        match &self.position {
            Position::At(CurrentBlock { block, stored: Some(stored), .. }) => Some(stored.stored(block)),
            _ => None,
        }
    }

    /// Unreadable parts that were skipped since the last seek.
    pub fn damage(&self) -> Damage {
        let mut damage = self.damage.as_deref().cloned().unwrap_or_default();
        if let Some(BlockIter { source: BlockSource::Salvage { lacks_filter: true }, .. }) = self.state {
            damage.filter = true;
        }
        damage
    }

    fn clear_damage(&mut self) {
        if let Some(damage) = &mut self.damage {
            **damage = Damage::default();
        }
    }

    fn state(&mut self) -> Result<&mut BlockIter, Error> {
        if self.state.is_none() {
            let open = || BlockIter::open(&self.table, self.mode, Wait::with(self.memory.as_deref()));
            self.state = Some(match self.mode {
                ReadMode::Scan | ReadMode::Versions | ReadMode::Bulk => open()?,
                ReadMode::Salvage => with_retries(open)?,
            });
        }
        Ok(self.state.as_mut().expect("set above"))
    }

    /// Moves to the first entry of the next block, if there is one.
    fn enter_next_block(&mut self) -> Result<(), Error> {
        let (table, memory) = (self.table.clone(), self.memory.clone());
        let wait = Wait::with(memory.as_deref());
        loop {
            match self.state().and_then(|state| state.next_block(&table, wait)) {
                Ok(Some(Reached::Block(loaded))) => {
                    self.enter(loaded, 0);
                    return Ok(());
                }
                Ok(Some(Reached::Cell { key, meta, extent })) => {
                    self.enter_unread(key, meta, extent);
                    return Ok(());
                }
                Ok(None) => return Ok(()),
                Err(error) => self.skip_unreadable(error)?,
            }
            if self.state.is_none() {
                return Ok(());
            }
        }
    }

    /// Skips the unreadable block in the mode [`ReadMode::Salvage`]; returns `error` in other
    /// modes.
    #[cold]
    fn skip_unreadable(&mut self, error: Error) -> Result<(), Error> {
        let Some(damage) = self.damage.as_mut().filter(|_| error.unreadable().is_some()) else {
            return Err(error);
        };
        match &mut self.state {
            Some(state) => damage.note(state.skip_unreadable(&self.table)),
            // Without the top index no block can be located.
            None => damage.lost = vec![UnreadableRange::all_of(self.table.meta())],
        }
        Ok(())
    }

    /// Reads the block at the position, which was released or not read.
    #[cold]
    fn reload_block(&mut self, extent: Extent) -> Result<(), Error> {
        self.position = Position::PastLast;
        let (table, memory) = (self.table.clone(), self.memory.clone());
        let wait = Wait::with(memory.as_deref());
        let loaded = self.state()?.source.data_block(&table, extent, wait)?;
        let is_same = |entry: &Entry| {
            let key = self.key.strip_prefix(loaded.block.prefix());
            entry.meta == self.meta && key == Some(loaded.block.slice(&entry.key))
        };
        let Some(entry) = loaded.block.entry(0).filter(is_same) else {
            return Err(table.corrupt(extent.offset, Malformed("the block has another cell than the index")));
        };
        (self.next, self.value) = (entry.end(), entry.value);
        self.position = Position::At(loaded);
        Ok(())
    }

    /// Moves to a cell whose block, which has no other entry, is not read.
    fn enter_unread(&mut self, key: Vec<u8>, meta: CellMeta, extent: Extent) {
        (self.key, self.meta) = (key, meta);
        self.position = Position::ValueReleased(extent);
    }

    /// Moves to the entry at offset `at` of a block. Returns whether there is one.
    fn enter(&mut self, loaded: CurrentBlock, at: usize) -> bool {
        self.prefix_len = loaded.block.prefix().len();
        self.key.clear();
        self.key.extend_from_slice(loaded.block.prefix());
        self.position = Position::At(loaded);
        self.next = at;
        self.advance_in_block()
    }

    /// Moves to the next entry of the block. Returns whether there is one; if not, the position is
    /// past the last entry.
    #[inline(always)]
    fn advance_in_block(&mut self) -> bool {
        let Position::At(CurrentBlock { block, .. }) = &self.position else { return false };
        let Some(entry) = block.entry(self.next) else {
            self.position = Position::PastLast;
            return false;
        };
        self.key.truncate(self.prefix_len);
        self.key.extend_from_slice(block.slice(&entry.key));
        self.meta = entry.meta;
        // Prefetches the entry after the next, assuming entries of equal size: it is not in the CPU
        // caches yet.
        block.prefetch(2 * entry.end() - self.next);
        self.next = entry.end();
        self.value = entry.value;
        true
    }
}

impl Cursor for TableCursor {
    fn seek_to_first(&mut self) -> Result<(), Error> {
        self.position = Position::PastLast;
        self.clear_damage();
        if let Some(state) = &mut self.state {
            state.rewind();
        }
        self.enter_next_block()
    }

    fn seek(&mut self, key: &[u8]) -> Result<(), Error> {
        self.position = Position::PastLast;
        self.clear_damage();
        let (table, memory) = (self.table.clone(), self.memory.clone());
        let wait = Wait::with(memory.as_deref());
        let loaded = match self.state().and_then(|state| state.block_of(&table, key, wait)) {
            Ok(Some(Reached::Block(loaded))) => loaded,
            Ok(Some(Reached::Cell { key, meta, extent })) => {
                self.enter_unread(key, meta, extent);
                return Ok(());
            }
            Ok(None) => return Ok(()),
            Err(error) => {
                self.skip_unreadable(error)?;
                return self.enter_next_block();
            }
        };
        let at = loaded.block.seek(key);
        // A separator may exceed all keys of its block. Then the entry is the first of the next
        // block.
        if !self.enter(loaded, at) {
            self.enter_next_block()?;
        }
        Ok(())
    }

    #[inline]
    fn advance(&mut self) -> Result<(), Error> {
        if matches!(self.position, Position::PastLast) || self.advance_in_block() {
            return Ok(());
        }
        self.position = Position::PastLast;
        self.enter_next_block()
    }

    #[inline]
    fn entry(&self) -> Option<(&[u8], CellRef<'_>)> {
        match &self.position {
            Position::At(CurrentBlock { block, .. }) => {
                Some((&self.key, CellRef { meta: self.meta, value: block.slice(&self.value) }))
            }
            Position::PastLast => None,
            Position::ValueReleased(_) => panic!("the value at the position is released"),
        }
    }

    #[inline]
    fn key_and_meta(&self) -> Option<(&[u8], CellMeta)> {
        match self.position {
            Position::PastLast => None,
            Position::At(_) | Position::ValueReleased(_) => Some((&self.key, self.meta)),
        }
    }

    #[inline]
    fn holds_value(&self) -> bool {
        matches!(self.position, Position::At(_))
    }

    #[inline]
    fn release_value(&mut self) {
        if let Position::At(CurrentBlock { block, extent, .. }) = &self.position
            && block.is_large()
        {
            self.position = Position::ValueReleased(*extent);
        }
    }

    #[inline]
    fn reload_value(&mut self) -> Result<(), Error> {
        match self.position {
            Position::ValueReleased(extent) => self.reload_block(extent),
            _ => Ok(()),
        }
    }

    fn take_value(&mut self) -> Option<OwnedValue> {
        let Position::At(CurrentBlock { block, extent, .. }) = &mut self.position else { return None };
        // A block that is shared with another reader stays there.
        let block = Arc::get_mut(block).filter(|block| block.is_large())?;
        let bytes = block.take_bytes();
        self.position = Position::ValueReleased(*extent);
        Some(OwnedValue { bytes, range: self.value.clone() })
    }
}

impl BlockIter {
    fn open(table: &Table, mode: ReadMode, wait: Wait<'_>) -> Result<Self, Error> {
        let root = table.root_blocking(wait)?;
        let source = match mode {
            ReadMode::Scan | ReadMode::Versions => BlockSource::Scan(ReadAhead::default()),
            ReadMode::Bulk => BlockSource::Bulk(table.window(root)),
            ReadMode::Salvage => BlockSource::Salvage { lacks_filter: false },
        };
        let (top, skips_values) = (table.top(root, wait)?, mode == ReadMode::Versions);
        Ok(Self { top, source, skips_values, partition_at: 0, partition: None, block_at: 0 })
    }

    /// Moves before the first block.
    fn rewind(&mut self) {
        (self.partition_at, self.partition, self.block_at) = (0, None, 0);
    }

    /// Returns the block that contains the first key not less than `key`, or the block before it;
    /// `None` if all keys are less.
    fn block_of(&mut self, table: &Table, key: &[u8], wait: Wait<'_>) -> Result<Option<Reached>, Error> {
        let at = self.top.find(key);
        if self.partition.is_none() || self.partition_at != at {
            (self.partition_at, self.partition) = (at, None);
        }
        let Some((_, index)) = self.partition(table, wait)? else { return Ok(None) };
        self.block_at = index.find(key);
        self.next_block(table, wait)
    }

    /// Returns the block at the position and moves past it; `None` past the last block.
    fn next_block(&mut self, table: &Table, wait: Wait<'_>) -> Result<Option<Reached>, Error> {
        loop {
            let (block_at, skips_values) = (self.block_at, self.skips_values);
            let Some((partition, index)) = self.partition(table, wait)? else { return Ok(None) };
            if block_at < index.entries() {
                let extent = table.data_extent(partition, index, block_at);
                let unread = index.cell(block_at).filter(|_| skips_values);
                let unread = unread.map(|cell| (index.key(block_at), cell.meta));
                self.block_at += 1;
                let extent = extent?;
                return Ok(Some(match unread {
                    Some((key, meta)) => Reached::Cell { key, meta, extent },
                    None => Reached::Block(self.source.data_block(table, extent, wait)?),
                }));
            }
            (self.partition_at, self.partition, self.block_at) = (self.partition_at + 1, None, 0);
        }
    }

    /// Returns the partition at the position; `None` past the last partition.
    fn partition(
        &mut self,
        table: &Table,
        wait: Wait<'_>,
    ) -> Result<Option<&(Partition, Arc<IndexBlock>)>, Error> {
        if self.partition.is_none() && self.partition_at < self.top.entries() {
            let root = table.root_blocking(wait)?;
            let partition = table.partition(root, &self.top, self.partition_at)?;
            let index = self.source.index(table, root, (self.partition_at, partition.index), wait)?;
            self.source.check_filter(table, root, &partition);
            self.partition = Some((partition, index));
        }
        Ok(self.partition.as_ref())
    }

    /// Moves past the unreadable block or partition. Returns the key range that it may have held.
    fn skip_unreadable(&mut self, table: &Table) -> UnreadableRange {
        let before = self.partition_at.checked_sub(1).map(|at| self.top.key(at));
        let (before, until) = match &self.partition {
            Some((_, index)) => {
                // `next_block` has moved the position past the block.
                let at = self.block_at - 1;
                (at.checked_sub(1).map(|at| index.key(at)).or(before), index.key(at))
            }
            None => {
                let until = self.top.key(self.partition_at);
                self.partition_at += 1;
                self.block_at = 0;
                (before, until)
            }
        };
        let all = UnreadableRange::all_of(table.meta());
        UnreadableRange { after: before.or(all.after), until: until.min(all.until) }
    }
}

impl BlockSource {
    /// Reads the index of partition `at`, which is at `extent`.
    fn index(
        &self,
        table: &Table,
        root: &Root,
        (at, extent): (usize, Extent),
        wait: Wait<'_>,
    ) -> Result<Arc<IndexBlock>, Error> {
        match self {
            Self::Scan(_) => table.load_pinned_blocking(root, at, extent, wait).map(Cow::into_owned),
            // Bypasses the window, which would have to jump to the index and back.
            Self::Bulk(_) => table.read_block(root, extent, wait).map(Arc::new),
            Self::Salvage { .. } => with_retries(|| table.read_block(root, extent, wait)).map(Arc::new),
        }
    }

    fn data_block(&mut self, table: &Table, extent: Extent, wait: Wait<'_>) -> Result<CurrentBlock, Error> {
        let (block, stored) = match self {
            Self::Scan(ahead) => match table.peek_cached(extent) {
                Some(block) => {
                    ahead.note_cached(extent);
                    (block, None)
                }
                None => {
                    let root = table.root_blocking(wait)?;
                    ahead.note_read(&*root.file, extent, root.tail.top.offset);
                    (table.read_block(root, extent, wait).map(Arc::new)?, None)
                }
            },
            Self::Bulk(window) => {
                let (block, stored) = table.read_with_stored_form(window, extent)?;
                (Arc::new(block), stored)
            }
            Self::Salvage { .. } => {
                let root = table.root_blocking(wait)?;
                (with_retries(|| table.read_block(root, extent, wait)).map(Arc::new)?, None)
            }
        };
        Ok(CurrentBlock { block, extent, stored })
    }

    /// Checks in the mode [`ReadMode::Salvage`] whether the filter of a partition is readable.
    fn check_filter(&mut self, table: &Table, root: &Root, partition: &Partition) {
        if let (Self::Salvage { lacks_filter }, Some(filter)) = (self, partition.filter) {
            let read = with_retries(|| table.read_block::<FilterBlock>(root, filter, Wait::Allowed));
            *lacks_filter |= read.is_err_and(|error| error.unreadable().is_some());
        }
    }
}

fn with_retries<T>(mut read: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    let more = (1..SALVAGE_TRIES).find_map(|_| read().ok());
    more.map_or_else(read, Ok)
}

impl std::fmt::Debug for TableCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableCursor").field("table", &self.table.id()).finish_non_exhaustive()
    }
}
