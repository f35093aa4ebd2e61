//! Walking a table.

use super::Reading;
use super::block::Malformed;
use super::data_block::{DataBlock, Entry, Sought};
use super::format::Extent;
use super::index_block::IndexBlock;
use super::table::{Partition, Root, Table};
use super::window::Window;
use crate::Error;
use crate::iter::Cursor;
use std::ops::Range;
use std::sync::Arc;
use stdx::{CellMeta, CellRef};

/// A position among the cells of a table. It waits for the disk.
pub struct TableCursor {
    table: Arc<Table>,
    reading: Reading,
    /// What was opened; `None` until the first seek.
    state: Option<State>,
    /// The block of the entry at the position; `None` past the last.
    block: Option<Arc<DataBlock>>,
    key: Vec<u8>,
    meta: CellMeta,
    value: Range<usize>,
    /// Where in the block the next entry begins.
    next: usize,
}

/// Where the cursor is among the blocks.
struct State {
    top: Arc<IndexBlock>,
    window: Window,
    partition_at: usize,
    partition: Option<(Partition, Arc<IndexBlock>)>,
    block_at: usize,
    block_offset: u64,
}

impl TableCursor {
    pub(super) fn new(table: Arc<Table>, reading: Reading) -> Self {
        let meta = CellMeta::tombstone(table.meta().version_min, 1);
        Self { table, reading, state: None, block: None, key: Vec::new(), meta, value: 0..0, next: 0 }
    }

    /// The table it walks.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    fn state(&mut self) -> Result<&mut State, Error> {
        if self.state.is_none() {
            self.state = Some(State::open(&self.table, self.reading)?);
        }
        Ok(self.state.as_mut().expect("it was just set"))
    }

    /// Goes to the first entry of the next block, if there is one.
    fn enter_next_block(&mut self) -> Result<(), Error> {
        let (table, reading) = (self.table.clone(), self.reading);
        let Some(block) = self.state()?.next_block(&table, reading)? else { return Ok(()) };
        self.enter(block, 0..0, 0)
    }

    /// Goes to the entry at `at` of `block`, whose restart has its key in `restart_key`.
    fn enter(&mut self, block: Arc<DataBlock>, restart_key: Range<usize>, at: usize) -> Result<(), Error> {
        self.key.clear();
        self.key.extend_from_slice(block.slice(&restart_key));
        match block.entry(at) {
            Ok(Some(entry)) => {
                self.block = Some(block);
                self.take(entry)
            }
            Ok(None) => self.fail(Malformed("a block ends where an entry should begin")),
            Err(malformed) => self.fail(malformed),
        }
    }

    #[inline(always)]
    fn take(&mut self, entry: Entry) -> Result<(), Error> {
        let Some(block) = &self.block else { return Ok(()) };
        // The entry before shares with the restart at least what this one shares with it, so what stays of its
        // key is of the restart's.
        if entry.shared > self.key.len() {
            return self.fail(Malformed("an entry shares more of a key than there is"));
        }
        self.key.truncate(entry.shared);
        self.key.extend_from_slice(block.slice(&entry.suffix));
        self.meta = entry.meta;
        self.next = entry.end();
        self.value = entry.value;
        Ok(())
    }

    #[cold]
    fn fail(&mut self, malformed: Malformed) -> Result<(), Error> {
        self.block = None;
        let offset = self.state.as_ref().map_or(0, |state| state.block_offset);
        Err(self.table.corrupt(offset, malformed))
    }
}

impl Cursor for TableCursor {
    fn seek_to_first(&mut self) -> Result<(), Error> {
        self.block = None;
        self.state()?.rewind();
        self.enter_next_block()
    }

    fn seek(&mut self, key: &[u8]) -> Result<(), Error> {
        self.block = None;
        let (table, reading) = (self.table.clone(), self.reading);
        let Some(block) = self.state()?.block_of(&table, reading, key)? else { return Ok(()) };
        match block.seek(key) {
            Ok(Sought::At { restart_key, entry }) => self.enter(block, restart_key, entry),
            // A separator may be greater than all keys of its block: the entry is the first behind it.
            Ok(Sought::Behind) => self.enter_next_block(),
            Err(malformed) => self.fail(malformed),
        }
    }

    #[inline]
    fn advance(&mut self) -> Result<(), Error> {
        let Some(block) = &self.block else { return Ok(()) };
        match block.entry(self.next) {
            Ok(Some(entry)) => self.take(entry),
            Ok(None) => {
                self.block = None;
                self.enter_next_block()
            }
            Err(malformed) => self.fail(malformed),
        }
    }

    #[inline]
    fn entry(&self) -> Option<(&[u8], CellRef<'_>)> {
        let block = self.block.as_ref()?;
        Some((&self.key, CellRef { meta: self.meta, value: block.slice(&self.value) }))
    }
}

impl State {
    fn open(table: &Table, reading: Reading) -> Result<Self, Error> {
        let root = table.root_waiting()?;
        Ok(Self {
            top: table.top(root)?,
            window: table.window(root, reading == Reading::Bulk),
            partition_at: 0,
            partition: None,
            block_at: 0,
            block_offset: 0,
        })
    }

    /// Goes before the first block.
    fn rewind(&mut self) {
        (self.partition_at, self.partition, self.block_at) = (0, None, 0);
    }

    /// The block that holds the first key not less than `key`, or the one before it; `None` when there is no
    /// such key.
    fn block_of(
        &mut self,
        table: &Table,
        reading: Reading,
        key: &[u8],
    ) -> Result<Option<Arc<DataBlock>>, Error> {
        let at = self.top.find(key);
        if self.partition.is_none() || self.partition_at != at {
            (self.partition_at, self.partition) = (at, None);
        }
        let Some((_, index)) = self.partition(table, reading)? else { return Ok(None) };
        self.block_at = index.find(key);
        self.next_block(table, reading)
    }

    /// The block at the position, which moves behind it; `None` past the last.
    fn next_block(&mut self, table: &Table, reading: Reading) -> Result<Option<Arc<DataBlock>>, Error> {
        loop {
            let block_at = self.block_at;
            let Some((partition, index)) = self.partition(table, reading)? else { return Ok(None) };
            if block_at < index.entries() {
                let extent = table.data_extent(partition, index, block_at)?;
                self.block_at += 1;
                return self.data_block(table, reading, extent).map(Some);
            }
            (self.partition_at, self.partition, self.block_at) = (self.partition_at + 1, None, 0);
        }
    }

    /// The partition at the position; `None` past the last.
    fn partition(
        &mut self,
        table: &Table,
        reading: Reading,
    ) -> Result<Option<&(Partition, Arc<IndexBlock>)>, Error> {
        if self.partition.is_none() && self.partition_at < self.top.entries() {
            let root = table.root_waiting()?;
            let partition = table.partition(root, &self.top, self.partition_at)?;
            let index = Self::index(table, root, reading, partition.index)?;
            self.partition = Some((partition, index));
        }
        Ok(self.partition.as_ref())
    }

    fn index(table: &Table, root: &Root, reading: Reading, extent: Extent) -> Result<Arc<IndexBlock>, Error> {
        match reading {
            Reading::Cached => table.load_waiting(root, extent),
            // Not through the window: it would have to jump there and back.
            Reading::Bulk => table.read_uncached(&mut table.window(root, false), extent).map(Arc::new),
        }
    }

    fn data_block(
        &mut self,
        table: &Table,
        reading: Reading,
        extent: Extent,
    ) -> Result<Arc<DataBlock>, Error> {
        self.block_offset = extent.offset;
        if reading == Reading::Bulk {
            return table.read_uncached(&mut self.window, extent).map(Arc::new);
        }
        match table.cached(extent) {
            Some(block) => Ok(block),
            None => {
                let block = table.read_uncached(&mut self.window, extent)?;
                Ok(table.keep(extent, Arc::new(block)))
            }
        }
    }
}

impl std::fmt::Debug for TableCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableCursor").field("table", &self.table.id()).finish_non_exhaustive()
    }
}
