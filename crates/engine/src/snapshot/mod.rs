//! Snapshots: the data as of one moment.
//!
//! A snapshot is a watermark with references to the memtables and tables of that moment. Later
//! writes have greater sequences, and later tables are not referenced, so nothing is copied.
//! Dropping the snapshot releases the memory and the files.

mod cursor;

pub use cursor::SnapshotCursor;

use crate::Sequence;
use crate::engine::Engine;
use crate::sstable::ReadMode;
use crate::view::View;
use std::sync::Arc;

/// A view of the data as of one moment.
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
    /// Returns a snapshot of all acknowledged writes, and of no others.
    pub fn snapshot(&self) -> Snapshot {
        let (view, visible) = self.shared.consistent_view();
        Snapshot { view, visible }
    }
}

impl Snapshot {
    /// Returns a cursor over all keys in byte order, each with its newest cell. It includes
    /// tombstones and expired values, so that the work of each step is bounded. The cursor must be
    /// positioned by a seek before it is read.
    pub fn cursor(&self) -> SnapshotCursor {
        SnapshotCursor::over(&self.view, self.visible, ReadMode::Scan)
    }

    /// Same as [`Snapshot::cursor`], for versions: the cursor does not read an oversized value if
    /// the index of its table has the metadata. Such an entry is read by
    /// [`key_and_meta`](crate::iter::Cursor::key_and_meta).
    pub fn version_cursor(&self) -> SnapshotCursor {
        SnapshotCursor::over(&self.view, self.visible, ReadMode::Versions)
    }
}
