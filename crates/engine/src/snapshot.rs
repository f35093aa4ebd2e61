//! Snapshots: the data as it was at one moment.
//!
//! A snapshot is a watermark, the memtables and the tables of the moment it was taken, held by reference.
//! Later writes have later sequences, later tables are not among those held, so nothing needs to be copied
//! or kept back: dropping the snapshot lets memory and files go.

use crate::engine::Engine;
use crate::iter::{Cursor, LevelCursor, MergeCursor};
use crate::sstable::Reading;
use crate::view::View;
use crate::{Error, Sequence};
use std::sync::Arc;
use stdx::CellRef;

/// The data as it was at one moment.
#[derive(Clone)]
pub struct Snapshot {
    view: Arc<View>,
    visible: Sequence,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("visible", &self.visible).finish_non_exhaustive()
    }
}

impl Engine {
    /// The data as it is now: all that was acknowledged, nothing that was not.
    pub fn snapshot(&self) -> Snapshot {
        let (view, visible) = self.shared.consistent_view();
        Snapshot { view, visible }
    }
}

impl Snapshot {
    /// A cursor over all keys in byte order, each once, with its newest cell; tombstones and expired values
    /// included, so that each step is bounded work. It is to be sought before it is read.
    pub fn cursor(&self) -> SnapshotCursor {
        let mut sources: Vec<Box<dyn Cursor>> = Vec::new();
        for logged in self.view.memtables() {
            sources.push(Box::new(logged.memtable.cursor(self.visible)));
        }
        for table in self.view.levels.level(0) {
            sources.push(Box::new(table.cursor(Reading::Cached)));
        }
        for level in 1..self.view.levels.depth() {
            let tables = self.view.levels.level(level);
            if !tables.is_empty() {
                sources.push(Box::new(LevelCursor::new(tables.to_vec(), Reading::Cached)));
            }
        }
        SnapshotCursor { merge: MergeCursor::new(sources) }
    }
}

/// A position in a snapshot.
pub struct SnapshotCursor {
    merge: MergeCursor,
}

impl std::fmt::Debug for SnapshotCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotCursor").field("entry", &self.entry()).finish()
    }
}

impl Cursor for SnapshotCursor {
    fn seek_to_first(&mut self) -> Result<(), Error> {
        self.merge.seek_to_first()
    }

    fn seek(&mut self, key: &[u8]) -> Result<(), Error> {
        self.merge.seek(key)
    }

    fn advance(&mut self) -> Result<(), Error> {
        self.merge.advance()
    }

    fn entry(&self) -> Option<(&[u8], CellRef<'_>)> {
        self.merge.entry()
    }
}
