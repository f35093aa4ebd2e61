//! Room on the disk: values are refused before the last of it is gone, and taken again when there is more.
//!
//! **Promise.** With the disk full or nearly so, values are refused with [`crate::Error::Full`], reads go on,
//! deletes go on within a reserve, and no person has to disarm anything: once there is room, writes go on.
//!
//! **Mechanism.** A reserve is kept for flushing what is in memory and for compaction. Falling below it, or
//! being told by the file system that there is no room, closes the door to values; it opens again at twice
//! the reserve. The host has the free space looked at regularly ([`crate::Engine::step_upkeep`]).
//!
//! **Caveats.** Free space is looked at, not owned: another process may take it in between. Then a flush or a
//! write fails for lack of space, is undone, and is tried again later.

use std::sync::atomic::{AtomicBool, Ordering};

/// The reserve is at most this part of what the engine could ever use of the disk.
const RESERVE_SHARE: u64 = 8;

/// Whether values may be written.
#[derive(Debug)]
pub(crate) struct DiskGuard {
    full: AtomicBool,
    /// What the last observation came to.
    told_full: AtomicBool,
    reserve_bytes: u64,
}

impl DiskGuard {
    /// A guard that wants `wanted_bytes` in reserve on a disk of which the engine has or could have
    /// `usable_bytes`.
    pub(crate) fn new(wanted_bytes: u64, usable_bytes: u64) -> Self {
        Self {
            full: AtomicBool::new(false),
            told_full: AtomicBool::new(false),
            reserve_bytes: wanted_bytes.min(usable_bytes / RESERVE_SHARE),
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    pub(crate) fn reserve_bytes(&self) -> u64 {
        self.reserve_bytes
    }

    /// The file system had no room.
    pub(crate) fn found_full(&self) {
        self.full.store(true, Ordering::Relaxed);
    }

    /// Takes note of the free space. Returns whether the door is open where it was closed at the last
    /// observation, or closed where it was open.
    pub(crate) fn observe(&self, available_bytes: u64) -> bool {
        let limit = if self.is_full() { self.reserve_bytes * 2 } else { self.reserve_bytes };
        let full = available_bytes < limit;
        self.full.store(full, Ordering::Relaxed);
        self.told_full.swap(full, Ordering::Relaxed) != full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_closes_below_the_reserve_and_opens_at_twice_of_it() {
        let guard = DiskGuard::new(100, 1_000_000);
        assert!(!guard.observe(100));
        assert!(guard.observe(99));
        assert!(!guard.observe(199));
        assert!(guard.is_full());
        assert!(guard.observe(200));
        assert!(!guard.is_full());
    }

    #[test]
    fn a_door_that_a_failed_write_closed_is_told_at_the_next_observation() {
        let guard = DiskGuard::new(100, 1_000_000);
        guard.found_full();
        assert!(guard.observe(50));
        assert!(!guard.observe(150));
        assert!(guard.observe(200));
    }

    #[test]
    fn a_small_disk_has_a_small_reserve() {
        assert_eq!(DiskGuard::new(100, 320).reserve_bytes(), 40);
    }
}
