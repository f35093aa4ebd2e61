//! Accounting of flushed memtables that snapshots still reference.
//!
//! **Promise.** The memory that old snapshots pin is known: all bytes of each memtable, from its
//! flush until its last reference is dropped.
//!
//! **Mechanism.** A memtable that leaves the view is recorded by a weak reference. References to
//! freed memtables are removed at the next flush.
//!
//! **Caveats.** The engine frees no snapshot itself: its owner drops the oldest when they pin more
//! than [`pinned_bytes_max`].

use crate::Options;
use crate::memtable::Memtable;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// Snapshots may pin a quarter of the memory budget.
const SHARE_OF_BUDGET: u64 = 4;
/// Snapshots may always pin two memtables: any snapshot that is open when a flush ends pins one.
const MEMTABLES_MIN: u64 = 2;

/// Flushed memtables that may still be referenced.
#[derive(Default)]
pub(crate) struct PinnedMemtables(Mutex<Vec<Weak<Memtable>>>);

impl PinnedMemtables {
    /// Records a memtable that has left the view.
    pub(crate) fn flushed(&self, memtable: &Arc<Memtable>) {
        let mut flushed = self.0.lock();
        flushed.retain(|memtable| memtable.strong_count() > 0);
        flushed.push(Arc::downgrade(memtable));
    }

    /// Bytes of the flushed memtables that are still referenced.
    pub(crate) fn bytes(&self) -> u64 {
        // Collected under the lock and dropped after it: one of these may be the last reference by
        // now.
        let held: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        held.iter().map(|memtable| memtable.bytes()).sum()
    }
}

/// Limit of the bytes that snapshots should pin.
pub(crate) fn pinned_bytes_max(options: &Options) -> u64 {
    (options.memory_bytes / SHARE_OF_BUDGET).max(options.memtable_bytes() * MEMTABLES_MIN)
}
