//! Walking a table.

use super::Reading;
use super::data_block::DataBlock;
use super::format::Extent;
use super::index_block::IndexBlock;
use super::read_ahead::ReadAhead;
use super::table::{Partition, Root, Table};
use super::window::Window;
use crate::Error;
use crate::iter::Cursor;
use std::borrow::Cow;
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
    /// The key at the position; its first `prefix_len` bytes are those of every key of the block.
    key: Vec<u8>,
    prefix_len: usize,
    meta: CellMeta,
    value: Range<usize>,
    /// Where in the block the next entry begins.
    next: usize,
}

/// Where the cursor is among the blocks.
struct State {
    top: Arc<IndexBlock>,
    source: Source,
    partition_at: usize,
    partition: Option<(Partition, Arc<IndexBlock>)>,
    block_at: usize,
}

/// How blocks are read that are not in memory.
enum Source {
    Scan(ReadAhead),
    Bulk(Window),
}

impl TableCursor {
    pub(super) fn new(table: Arc<Table>, reading: Reading) -> Self {
        let meta = CellMeta::tombstone(table.meta().version_min, 1);
        Self {
            table,
            reading,
            state: None,
            block: None,
            key: Vec::new(),
            prefix_len: 0,
            meta,
            value: 0..0,
            next: 0,
        }
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
        let table = self.table.clone();
        if let Some(block) = self.state()?.next_block(&table)? {
            self.enter(block, 0);
        }
        Ok(())
    }

    /// Goes to the entry at `at` of `block`; whether there is one.
    fn enter(&mut self, block: Arc<DataBlock>, at: usize) -> bool {
        self.prefix_len = block.prefix().len();
        self.key.clear();
        self.key.extend_from_slice(block.prefix());
        self.block = Some(block);
        self.next = at;
        self.take_next()
    }

    /// Goes to the next entry of the block; whether there is one. If not, the position is past the last.
    #[inline(always)]
    fn take_next(&mut self) -> bool {
        let Some(block) = &self.block else { return false };
        let Some(entry) = block.entry(self.next) else {
            self.block = None;
            return false;
        };
        self.key.truncate(self.prefix_len);
        self.key.extend_from_slice(block.slice(&entry.key));
        self.meta = entry.meta;
        // Where the entry after the next begins, if they are of one size: it is not in the processor's caches.
        block.prefetch(2 * entry.end() - self.next);
        self.next = entry.end();
        self.value = entry.value;
        true
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
        let table = self.table.clone();
        let Some(block) = self.state()?.block_of(&table, key)? else { return Ok(()) };
        let at = block.seek(key);
        // A separator may be greater than all keys of its block: the entry is the first behind it.
        if !self.enter(block, at) {
            self.enter_next_block()?;
        }
        Ok(())
    }

    #[inline]
    fn advance(&mut self) -> Result<(), Error> {
        if self.block.is_none() || self.take_next() {
            return Ok(());
        }
        self.enter_next_block()
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
        let source = match reading {
            Reading::Scan => Source::Scan(ReadAhead::default()),
            Reading::Bulk => Source::Bulk(table.window(root)),
        };
        Ok(Self { top: table.top(root)?, source, partition_at: 0, partition: None, block_at: 0 })
    }

    /// Goes before the first block.
    fn rewind(&mut self) {
        (self.partition_at, self.partition, self.block_at) = (0, None, 0);
    }

    /// The block that holds the first key not less than `key`, or the one before it; `None` when there is no
    /// such key.
    fn block_of(&mut self, table: &Table, key: &[u8]) -> Result<Option<Arc<DataBlock>>, Error> {
        let at = self.top.find(key);
        if self.partition.is_none() || self.partition_at != at {
            (self.partition_at, self.partition) = (at, None);
        }
        let Some((_, index)) = self.partition(table)? else { return Ok(None) };
        self.block_at = index.find(key);
        self.next_block(table)
    }

    /// The block at the position, which moves behind it; `None` past the last.
    fn next_block(&mut self, table: &Table) -> Result<Option<Arc<DataBlock>>, Error> {
        loop {
            let block_at = self.block_at;
            let Some((partition, index)) = self.partition(table)? else { return Ok(None) };
            if block_at < index.entries() {
                let extent = table.data_extent(partition, index, block_at)?;
                self.block_at += 1;
                return self.source.data_block(table, extent).map(Some);
            }
            (self.partition_at, self.partition, self.block_at) = (self.partition_at + 1, None, 0);
        }
    }

    /// The partition at the position; `None` past the last.
    fn partition(&mut self, table: &Table) -> Result<Option<&(Partition, Arc<IndexBlock>)>, Error> {
        if self.partition.is_none() && self.partition_at < self.top.entries() {
            let root = table.root_waiting()?;
            let partition = table.partition(root, &self.top, self.partition_at)?;
            let index = self.source.index(table, root, self.partition_at, partition.index)?;
            self.partition = Some((partition, index));
        }
        Ok(self.partition.as_ref())
    }
}

impl Source {
    /// The index of the partition `at`, which is at `extent`.
    fn index(&self, table: &Table, root: &Root, at: usize, extent: Extent) -> Result<Arc<IndexBlock>, Error> {
        match self {
            Self::Scan(_) => table.reach_waiting(root, at, extent).map(Cow::into_owned),
            // Not through the window: it would have to jump there and back.
            Self::Bulk(_) => table.read_alone(root, extent).map(Arc::new),
        }
    }

    fn data_block(&mut self, table: &Table, extent: Extent) -> Result<Arc<DataBlock>, Error> {
        match self {
            Self::Scan(ahead) => match table.glimpsed(extent) {
                Some(block) => {
                    ahead.passes(extent);
                    Ok(block)
                }
                None => {
                    let root = table.root_waiting()?;
                    ahead.reads(&*root.file, extent, root.tail.top.offset);
                    table.read_alone(root, extent).map(Arc::new)
                }
            },
            Self::Bulk(window) => table.read_uncached(window, extent).map(Arc::new),
        }
    }
}

impl std::fmt::Debug for TableCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableCursor").field("table", &self.table.id()).finish_non_exhaustive()
    }
}
