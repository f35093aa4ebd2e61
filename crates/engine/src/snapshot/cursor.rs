//! Walking a snapshot.
//!
//! **Promise.** A seek reads only of tables whose keys lie around the key sought; a step, only of those that it has
//! come to. What is read leaves the cache as it is. A cursor that is left standing holds its snapshot and at most
//! one data block of each source that was reached, of large values one at most and none when it is set aside, no
//! buffers besides: thousands may stand still.
//!
//! **Mechanism.** The merge has a source for each memtable and each *run*: a table of level 0, or all tables of
//! another level, of which one at a time is walked. The least key of every table is known without opening it, so
//! a run whose next table begins behind the position only *waits*: nothing that is in it can be shown before the
//! merge reaches that key. Then the table is opened, and takes the place of its run in the merge.
//!
//! **Caveats.** A table that holds the sought key in its range is opened even if its next key is far: three reads
//! when nothing of it is in memory. In a memtable that is still written to, keys that came after the snapshot are
//! stepped over one by one.

use crate::iter::{Cursor, MergeCursor, TakenValue};
use crate::memtable::MemtableCursor;
use crate::sstable::{Reading, Table, TableCursor};
use crate::view::View;
use crate::{Error, Sequence};
use std::cmp::Reverse;
use std::sync::Arc;
use stdx::{CellMeta, CellRef};

/// A position in a snapshot.
pub struct SnapshotCursor {
    /// The sources of the runs, in their order, then those of the memtables.
    merge: MergeCursor<Source>,
    runs: Vec<Run>,
    /// The runs whose next table was not reached; what is reached first stands last.
    waiting: Vec<usize>,
}

/// Tables that follow each other in key order without overlap.
struct Run {
    tables: Arc<[Arc<Table>]>,
    /// The first table that the merge has not reached.
    next: usize,
}

impl Run {
    fn next_table(&self) -> Option<&Arc<Table>> {
        self.tables.get(self.next)
    }
}

impl SnapshotCursor {
    pub(super) fn over(view: &View, visible: Sequence) -> Self {
        let level0 = view.levels.level(0).iter().map(|table| Arc::from([Arc::clone(table)]));
        let deeper = (1..view.levels.depth()).map(|level| Arc::clone(view.levels.shared_level(level)));
        let runs: Vec<Run> = level0.chain(deeper).map(|tables| Run { tables, next: 0 }).collect();
        let sources = runs.iter().map(|_| Source::Unreached);
        let memtables = view.memtables().map(|logged| Source::Memtable(logged.memtable.cursor(visible)));
        Self { merge: MergeCursor::new(sources.chain(memtables).collect()), runs, waiting: Vec::new() }
    }

    /// Lets runs come in whose next table the merge has reached.
    fn let_in(&mut self) -> Result<(), Error> {
        while let Some(run) = self.reached() {
            self.waiting.pop();
            let table = &self.runs[run].tables[self.runs[run].next];
            let mut cursor = table.cursor(Reading::Scan);
            // What it stands at now may be passed over for what is in the table.
            self.merge.set_aside();
            cursor.seek_to_first().inspect_err(|_| self.merge.clear())?;
            self.runs[run].next += 1;
            self.merge.put(run, Source::Table(Box::new(cursor)))?;
            self.wait(run);
        }
        Ok(())
    }

    /// A run whose next table begins at the entry of the merge or before it.
    #[inline]
    fn reached(&self) -> Option<usize> {
        let run = *self.waiting.last()?;
        let is_ahead = self.merge.key_and_meta().is_some_and(|(key, _)| key < self.next_key(run));
        (!is_ahead).then_some(run)
    }

    /// Puts a run among the waiting, if it has a table left.
    fn wait(&mut self, run: usize) {
        if self.runs[run].next_table().is_some() {
            let key = Reverse(self.next_key(run));
            let at = self.waiting.partition_point(|other| Reverse(self.next_key(*other)) < key);
            self.waiting.insert(at, run);
        }
    }

    /// The least key of the next table of a run that waits.
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
        self.waiting.clear();
        for run in 0..self.runs.len() {
            let Run { tables, next } = &mut self.runs[run];
            *next = tables.partition_point(|table| table.meta().key_max < key);
            let around = tables.get(*next).filter(|table| table.meta().key_min <= key);
            let source = match around {
                Some(table) => Source::Table(Box::new(table.cursor(Reading::Scan))),
                None => Source::Unreached,
            };
            *next += usize::from(around.is_some());
            self.merge.put(run, source)?;
            self.wait(run);
        }
        self.merge.seek(key)?;
        self.let_in()
    }

    #[inline]
    fn advance(&mut self) -> Result<(), Error> {
        self.merge.advance()?;
        self.let_in()
    }

    #[inline]
    fn entry(&self) -> Option<(&[u8], CellRef<'_>)> {
        self.merge.entry()
    }

    #[inline]
    fn key_and_meta(&self) -> Option<(&[u8], CellMeta)> {
        self.merge.key_and_meta()
    }

    fn set_aside(&mut self) {
        self.merge.set_aside();
    }

    fn bring_back(&mut self) -> Result<(), Error> {
        self.merge.bring_back()
    }

    fn take_value(&mut self) -> Option<TakenValue> {
        self.merge.take_value()
    }
}

impl std::fmt::Debug for SnapshotCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotCursor").field("at", &self.key_and_meta()).finish()
    }
}

/// What the merge compares.
enum Source {
    Memtable(MemtableCursor),
    Table(Box<TableCursor>),
    /// A run that waits, or is over.
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
    fn set_aside(&mut self) {
        if let Self::Table(cursor) = self {
            cursor.set_aside();
        }
    }

    #[inline]
    fn bring_back(&mut self) -> Result<(), Error> {
        match self {
            Self::Table(cursor) => cursor.bring_back(),
            Self::Memtable(_) | Self::Unreached => Ok(()),
        }
    }

    fn take_value(&mut self) -> Option<TakenValue> {
        match self {
            Self::Table(cursor) => cursor.take_value(),
            Self::Memtable(_) | Self::Unreached => None,
        }
    }
}
