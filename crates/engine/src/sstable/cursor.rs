//! Walking a table.

use super::Reading;
use super::block_reads::KeptFrame;
use super::damage::{Damage, LostKeys};
use super::data_block::DataBlock;
use super::filter::FilterBlock;
use super::format::Extent;
use super::frame::Stored;
use super::index_block::IndexBlock;
use super::read_ahead::ReadAhead;
use super::table::{Partition, Root, Table};
use super::window::Window;
use crate::Error;
use crate::iter::{Cursor, TakenValue};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use stdx::{CellMeta, CellRef};

/// What is to be passed over was tried so often: much that cannot be read can be read a moment later.
const SALVAGE_TRIES: usize = 4;

/// A position among the cells of a table. It waits for the disk.
pub struct TableCursor {
    table: Arc<Table>,
    reading: Reading,
    /// What was opened; `None` until the first seek.
    state: Option<State>,
    position: Position,
    /// The key at the position; its first `prefix_len` bytes are those of every key of the block.
    key: Vec<u8>,
    prefix_len: usize,
    meta: CellMeta,
    value: Range<usize>,
    /// Where in the block the next entry begins.
    next: usize,
    /// What was passed over since it could not be read, if that is to be passed over.
    damage: Option<Box<Damage>>,
}

/// Whether the cursor is at an entry.
enum Position {
    PastLast,
    In(Loaded),
    /// At an entry whose block, which has no other, was set aside.
    Aside(Extent),
}

/// The block of an entry.
struct Loaded {
    block: Arc<DataBlock>,
    extent: Extent,
    /// With the block, how it is stored.
    kept: Option<KeptFrame>,
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
    /// Each by itself; whether a filter could not be read.
    Salvage {
        lacks_filter: bool,
    },
}

impl TableCursor {
    pub(super) fn new(table: Arc<Table>, reading: Reading) -> Self {
        let meta = CellMeta::tombstone(table.meta().version_min, 1);
        Self {
            table,
            reading,
            state: None,
            position: Position::PastLast,
            key: Vec::new(),
            prefix_len: 0,
            meta,
            value: 0..0,
            next: 0,
            damage: (reading == Reading::Salvage).then(Box::default),
        }
    }

    /// The table it walks.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// The block at the position as it is stored, if it has but one cell and a huge one, and was read in bulk.
    pub(crate) fn stored(&self) -> Option<Stored<'_>> {
        match &self.position {
            Position::In(Loaded { block, kept: Some(kept), .. }) => Some(kept.stored(block)),
            _ => None,
        }
    }

    /// What was passed over since the position was last sought.
    pub fn damage(&self) -> Damage {
        let mut damage = self.damage.as_deref().cloned().unwrap_or_default();
        if let Some(State { source: Source::Salvage { lacks_filter: true }, .. }) = self.state {
            damage.filters = true;
        }
        damage
    }

    fn forget_damage(&mut self) {
        if let Some(damage) = &mut self.damage {
            **damage = Damage::default();
        }
    }

    fn state(&mut self) -> Result<&mut State, Error> {
        if self.state.is_none() {
            self.state = Some(match self.reading {
                Reading::Scan | Reading::Bulk => State::open(&self.table, self.reading)?,
                Reading::Salvage => patiently(|| State::open(&self.table, self.reading))?,
            });
        }
        Ok(self.state.as_mut().expect("it was just set"))
    }

    /// Goes to the first entry of the next block, if there is one.
    fn enter_next_block(&mut self) -> Result<(), Error> {
        let table = self.table.clone();
        loop {
            match self.state().and_then(|state| state.next_block(&table)) {
                Ok(Some(loaded)) => {
                    self.enter(loaded, 0);
                    return Ok(());
                }
                Ok(None) => return Ok(()),
                Err(error) => self.pass_over(error)?,
            }
            if self.state.is_none() {
                return Ok(());
            }
        }
    }

    /// Goes behind what could not be read, if that is to be passed over.
    #[cold]
    fn pass_over(&mut self, error: Error) -> Result<(), Error> {
        let Some(damage) = self.damage.as_mut().filter(|_| error.unreadable().is_some()) else {
            return Err(error);
        };
        match &mut self.state {
            Some(state) => damage.note(state.pass_over(&self.table)),
            // Nothing says where the blocks are.
            None => damage.lost = vec![LostKeys::all_of(self.table.meta())],
        }
        Ok(())
    }

    /// Reads the block at the position, which was set aside.
    #[cold]
    fn read_again(&mut self, extent: Extent) -> Result<(), Error> {
        self.position = Position::PastLast;
        let table = self.table.clone();
        self.position = Position::In(self.state()?.source.data_block(&table, extent)?);
        Ok(())
    }

    /// Goes to the entry at `at` of a block; whether there is one.
    fn enter(&mut self, loaded: Loaded, at: usize) -> bool {
        self.prefix_len = loaded.block.prefix().len();
        self.key.clear();
        self.key.extend_from_slice(loaded.block.prefix());
        self.position = Position::In(loaded);
        self.next = at;
        self.take_next()
    }

    /// Goes to the next entry of the block; whether there is one. If not, the position is past the last.
    #[inline(always)]
    fn take_next(&mut self) -> bool {
        let Position::In(Loaded { block, .. }) = &self.position else { return false };
        let Some(entry) = block.entry(self.next) else {
            self.position = Position::PastLast;
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
        self.position = Position::PastLast;
        self.forget_damage();
        if let Some(state) = &mut self.state {
            state.rewind();
        }
        self.enter_next_block()
    }

    fn seek(&mut self, key: &[u8]) -> Result<(), Error> {
        self.position = Position::PastLast;
        self.forget_damage();
        let table = self.table.clone();
        let loaded = match self.state().and_then(|state| state.block_of(&table, key)) {
            Ok(Some(loaded)) => loaded,
            Ok(None) => return Ok(()),
            Err(error) => {
                self.pass_over(error)?;
                return self.enter_next_block();
            }
        };
        let at = loaded.block.seek(key);
        // A separator may be greater than all keys of its block: the entry is the first behind it.
        if !self.enter(loaded, at) {
            self.enter_next_block()?;
        }
        Ok(())
    }

    #[inline]
    fn advance(&mut self) -> Result<(), Error> {
        if matches!(self.position, Position::PastLast) || self.take_next() {
            return Ok(());
        }
        self.position = Position::PastLast;
        self.enter_next_block()
    }

    #[inline]
    fn entry(&self) -> Option<(&[u8], CellRef<'_>)> {
        match &self.position {
            Position::In(Loaded { block, .. }) => {
                Some((&self.key, CellRef { meta: self.meta, value: block.slice(&self.value) }))
            }
            Position::PastLast => None,
            Position::Aside(_) => panic!("the value at the position was set aside"),
        }
    }

    #[inline]
    fn key_and_meta(&self) -> Option<(&[u8], CellMeta)> {
        match self.position {
            Position::PastLast => None,
            Position::In(_) | Position::Aside(_) => Some((&self.key, self.meta)),
        }
    }

    #[inline]
    fn set_aside(&mut self) {
        if let Position::In(Loaded { block, extent, .. }) = &self.position
            && block.is_large()
        {
            self.position = Position::Aside(*extent);
        }
    }

    #[inline]
    fn bring_back(&mut self) -> Result<(), Error> {
        match self.position {
            Position::Aside(extent) => self.read_again(extent),
            _ => Ok(()),
        }
    }

    fn take_value(&mut self) -> Option<TakenValue> {
        let Position::In(Loaded { block, extent, .. }) = &mut self.position else { return None };
        // A reader who shares it keeps it.
        let block = Arc::get_mut(block).filter(|block| block.is_large())?;
        let bytes = block.take_bytes();
        self.position = Position::Aside(*extent);
        Some(TakenValue { bytes, at: self.value.clone() })
    }
}

impl State {
    fn open(table: &Table, reading: Reading) -> Result<Self, Error> {
        let root = table.root_waiting()?;
        let source = match reading {
            Reading::Scan => Source::Scan(ReadAhead::default()),
            Reading::Bulk => Source::Bulk(table.window(root)),
            Reading::Salvage => Source::Salvage { lacks_filter: false },
        };
        Ok(Self { top: table.top(root)?, source, partition_at: 0, partition: None, block_at: 0 })
    }

    /// Goes before the first block.
    fn rewind(&mut self) {
        (self.partition_at, self.partition, self.block_at) = (0, None, 0);
    }

    /// The block that holds the first key not less than `key`, or the one before it; `None` when there is no
    /// such key.
    fn block_of(&mut self, table: &Table, key: &[u8]) -> Result<Option<Loaded>, Error> {
        let at = self.top.find(key);
        if self.partition.is_none() || self.partition_at != at {
            (self.partition_at, self.partition) = (at, None);
        }
        let Some((_, index)) = self.partition(table)? else { return Ok(None) };
        self.block_at = index.find(key);
        self.next_block(table)
    }

    /// The block at the position, which moves behind it; `None` past the last.
    fn next_block(&mut self, table: &Table) -> Result<Option<Loaded>, Error> {
        loop {
            let block_at = self.block_at;
            let Some((partition, index)) = self.partition(table)? else { return Ok(None) };
            if block_at < index.entries() {
                let extent = table.data_extent(partition, index, block_at);
                self.block_at += 1;
                return self.source.data_block(table, extent?).map(Some);
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
            self.source.look_at_filter(table, root, &partition);
            self.partition = Some((partition, index));
        }
        Ok(self.partition.as_ref())
    }

    /// Goes behind the block, or the partition, that could not be read. What may have been in it.
    fn pass_over(&mut self, table: &Table) -> LostKeys {
        let before = self.partition_at.checked_sub(1).map(|at| self.top.key(at));
        let (before, until) = match &self.partition {
            Some((_, index)) => {
                // Whoever takes a block has moved the position behind it.
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
        let all = LostKeys::all_of(table.meta());
        LostKeys { after: before.or(all.after), until: until.min(all.until) }
    }
}

impl Source {
    /// The index of the partition `at`, which is at `extent`.
    fn index(&self, table: &Table, root: &Root, at: usize, extent: Extent) -> Result<Arc<IndexBlock>, Error> {
        match self {
            Self::Scan(_) => table.reach_waiting(root, at, extent).map(Cow::into_owned),
            // Not through the window: it would have to jump there and back.
            Self::Bulk(_) => table.read_alone(root, extent).map(Arc::new),
            Self::Salvage { .. } => patiently(|| table.read_alone(root, extent)).map(Arc::new),
        }
    }

    fn data_block(&mut self, table: &Table, extent: Extent) -> Result<Loaded, Error> {
        let (block, kept) = match self {
            Self::Scan(ahead) => match table.glimpsed(extent) {
                Some(block) => {
                    ahead.passes(extent);
                    (block, None)
                }
                None => {
                    let root = table.root_waiting()?;
                    ahead.reads(&*root.file, extent, root.tail.top.offset);
                    (table.read_alone(root, extent).map(Arc::new)?, None)
                }
            },
            Self::Bulk(window) => {
                let (block, kept) = table.read_with_stored(window, extent)?;
                (Arc::new(block), kept)
            }
            Self::Salvage { .. } => {
                let root = table.root_waiting()?;
                (patiently(|| table.read_alone(root, extent)).map(Arc::new)?, None)
            }
        };
        Ok(Loaded { block, extent, kept })
    }

    /// Sees whether the filter of a partition can be read, where that is asked.
    fn look_at_filter(&mut self, table: &Table, root: &Root, partition: &Partition) {
        if let (Self::Salvage { lacks_filter }, Some(filter)) = (self, partition.filter) {
            let read = patiently(|| table.read_alone::<FilterBlock>(root, filter));
            *lacks_filter |= read.is_err_and(|error| error.unreadable().is_some());
        }
    }
}

fn patiently<T>(mut read: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    let more = (1..SALVAGE_TRIES).find_map(|_| read().ok());
    more.map_or_else(read, Ok)
}

impl std::fmt::Debug for TableCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableCursor").field("table", &self.table.id()).finish_non_exhaustive()
    }
}
