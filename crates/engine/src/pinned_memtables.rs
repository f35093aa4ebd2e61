//! Memtables that were flushed and that snapshots still hold.
//!
//! **Promise.** What readers of the past keep of memory is known: all bytes of each memtable from its flush on until its
//! last reference goes, whoever has it.
//!
//! **Mechanism.** When a memtable leaves the view it is noted by a weak reference; those without a memtable any more are
//! forgotten at the next look.
//!
//! **Caveats.** The engine frees nothing by itself: whoever keeps snapshots lets go of the oldest when they hold more
//! than [`Engine::pinned_memtable_bytes_max`].

use crate::engine::Engine;
use crate::memtable::Memtable;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// Snapshots may hold this part of the memory budget, ...
const SHARE_OF_BUDGET: u64 = 4;
/// ... and always so many memtables: one is held by any snapshot during which a flush ends.
const MEMTABLES_MIN: u64 = 2;

/// See the module.
#[derive(Default)]
pub(crate) struct PinnedMemtables(Mutex<Vec<Weak<Memtable>>>);

impl PinnedMemtables {
    /// Takes note of a memtable that has left the view.
    pub(crate) fn flushed(&self, memtable: &Arc<Memtable>) {
        let mut flushed = self.0.lock();
        flushed.retain(|memtable| memtable.strong_count() > 0);
        flushed.push(Arc::downgrade(memtable));
    }

    fn bytes(&self) -> u64 {
        // Collected under the lock and dropped after it: one of them may be the last reference by now.
        let held: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        held.iter().map(|memtable| memtable.bytes()).sum()
    }
}

impl Engine {
    /// Bytes of memtables that were flushed and are held by snapshots and their cursors alone.
    pub fn pinned_memtable_bytes(&self) -> u64 {
        self.shared.pinned_memtables.bytes()
    }

    /// More than this snapshots should not hold: a quarter of the memory budget, or two memtables if that is more.
    pub fn pinned_memtable_bytes_max(&self) -> u64 {
        let options = &self.shared.options;
        (options.memory_bytes / SHARE_OF_BUDGET).max(options.memtable_bytes() * MEMTABLES_MIN)
    }
}
