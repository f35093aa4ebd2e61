//! Iteration over a snapshot.
//!
//! **Promise.** A seek reads only tables whose key range contains the key; a step reads only tables
//! that it reaches. Reading does not change the block cache. An idle cursor holds its snapshot, at
//! most one data block per source that was reached, and no buffers. At most one of the blocks has a
//! large value, and none after [`Cursor::release_value`]. Thousands of cursors may be idle.
//!
//! **Mechanism.** The merge has one source per memtable and per *run*: a table of level 0, or all
//! tables of another level, which are opened one at a time. The least key of every table is known
//! without opening it. So a run whose next table begins behind the position stays *unreached*: it
//! cannot contribute before the merge reaches that key. Then the table is opened and becomes the
//! source of its run.
//!
//! **Caveats.** A table whose key range contains the sought key is opened even if its next key is
//! far away: three reads if none of its blocks is cached. In the active memtable, cells that are
//! newer than the snapshot are skipped one by one.

use crate::iter::{Cursor, MergeCursor, OwnedValue};
use crate::memtable::MemtableCursor;
use crate::ownership::OwnershipFilter;
use crate::sstable::{ReadMemory, ReadMode, Table, TableCursor};
use crate::view::View;
use crate::{Error, Sequence};
use std::cmp::Reverse;
use std::sync::Arc;
use stdx::{CellMeta, CellRef};

/// A position in a snapshot.
pub struct SnapshotCursor {
    /// Sources of the runs, in order, then of the memtables.
    merge: MergeCursor<Source>,
    runs: Vec<Run>,
    /// Runs whose next table was not reached, in descending order of its least key: the next one to
    /// reach is last.
    unreached: Vec<usize>,
    /// Mode in which tables are read: `Scan` or `Versions`.
    mode: ReadMode,
    /// The keys that are passed.
    filter: Arc<OwnershipFilter>,
    /// Memory of the large blocks, if the reader accounts for it.
    memory: Option<Arc<ReadMemory>>,
}

/// Consecutive, non-overlapping tables.
struct Run {
    tables: Arc<[Arc<Table>]>,
    /// Index of the first table that the merge has not reached.
    next: usize,
}

impl Run {
    fn next_table(&self) -> Option<&Arc<Table>> {
        self.tables.get(self.next)
    }
}

impl SnapshotCursor {
    pub(super) fn over(view: &View, visible: Sequence, mode: ReadMode) -> Self {
        let level0 = view.levels.level(0).iter().map(|table| Arc::from([Arc::clone(table)]));
        let deeper = (1..view.levels.depth()).map(|level| Arc::clone(view.levels.shared_level(level)));
        let runs: Vec<Run> = level0.chain(deeper).map(|tables| Run { tables, next: 0 }).collect();
        let sources = runs.iter().map(|_| Source::Unreached);
        let memtables = view.memtables().map(|logged| Source::Memtable(logged.memtable.cursor(visible)));
        let sources = sources.chain(memtables).collect();
        let merge = match mode {
            ReadMode::Versions => MergeCursor::of_versions(sources),
            _ => MergeCursor::new(sources),
        };
        let filter = Arc::clone(&view.filter);
        Self { merge, runs, unreached: Vec::new(), mode, filter, memory: None }
    }

    /// Sets the memory that covers the large blocks read from now on. `None`: the cursor holds a
    /// permit while it reads a large block.
    pub fn set_memory(&mut self, memory: Option<Arc<ReadMemory>>) {
        for source in self.merge.sources_mut() {
            if let Source::Table(cursor) = source {
                cursor.set_memory(memory.as_ref());
            }
        }
        self.memory = memory;
    }

    fn cursor_of(&self, table: &Arc<Table>) -> Box<TableCursor> {
        let mut cursor = table.cursor(self.mode);
        cursor.set_memory(self.memory.as_ref());
        Box::new(cursor)
    }

    /// Moves to the next entry that is not hidden, from the present one on. The merge is at all
    /// cells of its key, so its `from` is the greatest one.
    #[inline]
    fn pass_hidden(&mut self) -> Result<(), Error> {
        if self.filter.is_empty() {
            return Ok(());
        }
        while self.merge.key_and_meta().is_some_and(|(key, meta)| self.filter.hides(key, meta.from)) {
            self.merge.advance()?;
            self.open_reached_runs()?;
        }
        Ok(())
    }

    /// Opens the next table of every run that the merge has reached.
    fn open_reached_runs(&mut self) -> Result<(), Error> {
        while let Some(run) = self.reached_run() {
            self.unreached.pop();
            let mut cursor = self.cursor_of(&self.runs[run].tables[self.runs[run].next]);
            // The cell at the head may be superseded by one in the table.
            self.merge.release_value();
            cursor.seek_to_first().inspect_err(|_| self.merge.clear())?;
            self.runs[run].next += 1;
            self.merge.replace_source(run, Source::Table(cursor))?;
            self.enqueue(run);
        }
        Ok(())
    }

    /// Returns a run whose next table begins at or before the entry of the merge.
    #[inline]
    fn reached_run(&self) -> Option<usize> {
        let run = *self.unreached.last()?;
        let is_ahead = self.merge.key_and_meta().is_some_and(|(key, _)| key < self.next_key(run));
        (!is_ahead).then_some(run)
    }

    /// Adds a run to the unreached runs, if it has another table.
    fn enqueue(&mut self, run: usize) {
        if self.runs[run].next_table().is_some() {
            let key = Reverse(self.next_key(run));
            let at = self.unreached.partition_point(|other| Reverse(self.next_key(*other)) < key);
            self.unreached.insert(at, run);
        }
    }

    /// Least key of the next table of an unreached run.
    fn next_key(&self, run: usize) -> &[u8] {
        self.runs[run].next_table().map_or(&[], |table| &table.meta().key_min)
    }
}

impl Cursor for SnapshotCursor {
    fn seek_to_first(&mut self) -> Result<(), Error> {
        self.seek(&[])
    }

    fn seek(&mut self, key: &[u8]) -> Result<(), Error> {
        self.merge.clear();
        self.unreached.clear();
        for run in 0..self.runs.len() {
            let tables = &self.runs[run].tables;
            let first = tables.partition_point(|table| table.meta().key_max < key);
            let around = tables.get(first).filter(|table| table.meta().key_min <= key);
            let source = around.map_or(Source::Unreached, |table| Source::Table(self.cursor_of(table)));
            self.runs[run].next = first + usize::from(around.is_some());
            self.merge.replace_source(run, source)?;
            self.enqueue(run);
        }
        self.merge.seek(key)?;
        self.open_reached_runs()?;
        self.pass_hidden()
    }

    #[inline]
    fn advance(&mut self) -> Result<(), Error> {
        self.merge.advance()?;
        self.open_reached_runs()?;
        self.pass_hidden()
    }

    #[inline]
    fn entry(&self) -> Option<(&[u8], CellRef<'_>)> {
        self.merge.entry()
    }

    #[inline]
    fn key_and_meta(&self) -> Option<(&[u8], CellMeta)> {
        self.merge.key_and_meta()
    }

    fn holds_value(&self) -> bool {
        self.merge.holds_value()
    }

    fn release_value(&mut self) {
        self.merge.release_value();
    }

    fn reload_value(&mut self) -> Result<(), Error> {
        self.merge.reload_value()
    }

    fn take_value(&mut self) -> Option<OwnedValue> {
        self.merge.take_value()
    }
}

impl std::fmt::Debug for SnapshotCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotCursor").field("at", &self.key_and_meta()).finish()
    }
}

/// A source of the merge.
enum Source {
    Memtable(MemtableCursor),
    Table(Box<TableCursor>),
    /// A run that is unreached or finished.
    Unreached,
}

impl Cursor for Source {
    fn seek_to_first(&mut self) -> Result<(), Error> {
        match self {
            Self::Memtable(cursor) => cursor.seek_to_first(),
            Self::Table(cursor) => cursor.seek_to_first(),
            Self::Unreached => Ok(()),
        }
    }

    fn seek(&mut self, key: &[u8]) -> Result<(), Error> {
        match self {
            Self::Memtable(cursor) => cursor.seek(key),
            Self::Table(cursor) => cursor.seek(key),
            Self::Unreached => Ok(()),
        }
    }

    #[inline]
    fn advance(&mut self) -> Result<(), Error> {
        match self {
            Self::Memtable(cursor) => cursor.advance(),
            Self::Table(cursor) => cursor.advance(),
            Self::Unreached => unreachable!("a merge moves only sources that are at an entry"),
        }
    }

    #[inline]
    fn entry(&self) -> Option<(&[u8], CellRef<'_>)> {
        match self {
            Self::Memtable(cursor) => cursor.entry(),
            Self::Table(cursor) => cursor.entry(),
            Self::Unreached => None,
        }
    }

    #[inline]
    fn key_and_meta(&self) -> Option<(&[u8], CellMeta)> {
        match self {
            Self::Memtable(cursor) => cursor.key_and_meta(),
            Self::Table(cursor) => cursor.key_and_meta(),
            Self::Unreached => None,
        }
    }

    #[inline]
    fn holds_value(&self) -> bool {
        match self {
            Self::Table(cursor) => cursor.holds_value(),
            Self::Memtable(_) | Self::Unreached => true,
        }
    }

    #[inline]
    fn release_value(&mut self) {
        if let Self::Table(cursor) = self {
            cursor.release_value();
        }
    }

    #[inline]
    fn reload_value(&mut self) -> Result<(), Error> {
        match self {
            Self::Table(cursor) => cursor.reload_value(),
            Self::Memtable(_) | Self::Unreached => Ok(()),
        }
    }

    fn take_value(&mut self) -> Option<OwnedValue> {
        match self {
            Self::Table(cursor) => cursor.take_value(),
            Self::Memtable(_) | Self::Unreached => None,
        }
    }
}
