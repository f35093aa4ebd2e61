//! Snapshots: the data as it was at one moment.
//!
//! A snapshot is a watermark, the memtables and the tables of the moment it was taken, held by reference.
//! Later writes have later sequences, later tables are not among those held, so nothing needs to be copied
//! or kept back: dropping the snapshot lets memory and files go.

mod cursor;

pub use cursor::SnapshotCursor;

use crate::Sequence;
use crate::engine::Engine;
use crate::view::View;
use std::sync::Arc;

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
        SnapshotCursor::over(&self.view, self.visible)
    }
}
