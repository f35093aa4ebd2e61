//! Snapshots: the data as of one moment.
//!
//! A snapshot is a watermark with references to the memtables and tables of that moment. Later
//! writes have greater sequences, and later tables are not referenced, so nothing is copied.
//! Dropping the snapshot releases the memory and the files.

mod cursor;

pub use cursor::SnapshotCursor;

use crate::Sequence;
use crate::engine::Engine;
use crate::pinned_memtables::pinned_bytes_max;
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

    /// Bytes of flushed memtables that only snapshots and their cursors reference.
    pub fn pinned_memtable_bytes(&self) -> u64 {
        self.shared.pinned_memtables.bytes()
    }

    /// Limit of the bytes that snapshots should pin: a quarter of the memory budget, or two
    /// memtables if that is more.
    pub fn pinned_memtable_bytes_max(&self) -> u64 {
        pinned_bytes_max(self.options())
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
    /// [`key_and_meta`](crate::Cursor::key_and_meta).
    pub fn version_cursor(&self) -> SnapshotCursor {
        SnapshotCursor::over(&self.view, self.visible, ReadMode::Versions)
    }
}
