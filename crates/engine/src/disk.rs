//! Disk space: writes are slowed while it is low, and values are refused before it is exhausted.
//!
//! **Promise.** With the disk full or nearly so, values are refused with [`crate::Error::Full`].
//! Reads go on, and deletes go on within a bounded part of the reserve. No operator has to
//! intervene: once there is space, writes are admitted again. Above the reserve writes are only
//! slowed: the *soft limit* refuses nothing.
//!
//! **Mechanism.** A *reserve* is kept for three purposes: to flush the memtables, to log deletes,
//! and to compact deletes with the cells that they shadow, as only that frees space. Values are
//! refused from one of three events on: free space falls below the reserve; the file system reports
//! that it is full; or a value does not fit above the reserve while less than another quarter of it
//! is left. They are admitted again at one quarter more than the reserve. A value that does not fit
//! although more is left is refused alone.
//!
//! The soft limit is twice the reserve. Between soft limit and reserve the permitted write rate
//! falls, so that compaction has time to free space. Admitted bytes are subtracted from the free
//! space that was measured last. When they reach a share of the remainder, the free space is
//! measured again, so that the limit holds at any write rate.
//!
//! Below three quarters of the reserve, deletes may use another quarter and are then refused too.
//! The rest is for the jobs that free space.
//!
//! **Caveats.** Free space is measured, not owned: another process may take it in between. Then a
//! flush or a write fails for lack of space, is undone, and is retried later. The reserve depends
//! on the disk space that the engine used or could use when it was opened. On a disk that was full
//! of other data then, it is small.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

/// The reserve is at most one sixth of the disk space that the engine could ever use.
const RESERVE_SHARE: u64 = 6;
/// The soft limit, as a multiple of the reserve.
const SOFT_RESERVES: u64 = 2;
/// Divisor of the reserve: deletes may use a quarter of it, and values are admitted again at the
/// reserve plus a quarter.
const QUARTER: u64 = 4;
/// Time in which writes at the slowest rate use up the space between soft limit and reserve.
const ZONE_TIME: Duration = Duration::from_secs(5);
/// The permitted rate at the soft limit, as a multiple of the slowest.
const RATE_SPAN: f64 = 32.0;
/// Free space is measured again after an eighth of the space above the reserve was admitted.
const CHECK_SHARE: u64 = 8;
/// Least number of bytes admitted between two measurements.
const CHECK_BYTES_MIN: u64 = 64 << 10;

/// State of the disk space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum DiskSpace {
    /// Free space is above the soft limit.
    #[default]
    Ample,
    /// Free space is below the soft limit: writes are slowed.
    Low,
    /// Free space is below the reserve: values are refused.
    Full,
}

/// Figures of the disk space, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// State that follows from the figures.
    pub space: DiskSpace,
    /// Free space at the last measurement, in bytes.
    pub available_bytes: u64,
    /// Free space below which values are refused, in bytes.
    pub reserve_bytes: u64,
    /// Free space below which writes are slowed, in bytes.
    pub soft_bytes: u64,
    /// Free space from which refused values are admitted again, in bytes.
    pub reopen_bytes: u64,
}

/// The disk space that a batch may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DiskDemand {
    /// All of it: the host cannot operate without the write.
    #[default]
    Critical,
    /// The part of the reserve that is for deletes.
    Delete,
    /// Only space beyond the reserve.
    Value,
}

/// Admission control of writes by free disk space.
#[derive(Debug)]
pub(crate) struct DiskGuard {
    wanted_bytes: u64,
    /// The greatest disk space that the engine used or could use at any measurement.
    usable_bytes: AtomicU64,
    available_bytes: AtomicU64,
    /// Bytes admitted since the last measurement.
    admitted_bytes: AtomicU64,
    /// Bytes of deletes admitted since free space fell below three quarters of the reserve.
    deleted_bytes: AtomicU64,
    /// Whether deletes that may still be in the active memtable were admitted.
    has_unflushed_deletes: AtomicBool,
    full: AtomicBool,
    /// State that [`DiskGuard::observe`] returned last.
    reported: AtomicU8,
}

impl DiskGuard {
    /// A guard with a target reserve of `wanted_bytes`, on a disk with `available_bytes` free and
    /// `engine_bytes` used by the engine.
    pub(crate) fn new(wanted_bytes: u64, available_bytes: u64, engine_bytes: u64) -> Self {
        let guard = Self {
            wanted_bytes,
            usable_bytes: AtomicU64::new(available_bytes.saturating_add(engine_bytes)),
            available_bytes: AtomicU64::new(available_bytes),
            admitted_bytes: AtomicU64::new(0),
            deleted_bytes: AtomicU64::new(0),
            has_unflushed_deletes: AtomicBool::new(false),
            full: AtomicBool::new(false),
            reported: AtomicU8::new(DiskSpace::Ample as u8),
        };
        guard.full.store(available_bytes < guard.reserve_bytes(), Ordering::Relaxed);
        guard
    }

    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    pub(crate) fn space(&self) -> DiskSpace {
        match self.is_full() {
            true => DiskSpace::Full,
            false if self.remaining_bytes() < self.soft_bytes() => DiskSpace::Low,
            false => DiskSpace::Ample,
        }
    }

    pub(crate) fn stats(&self) -> DiskStats {
        DiskStats {
            space: self.space(),
            available_bytes: self.available_bytes.load(Ordering::Relaxed),
            reserve_bytes: self.reserve_bytes(),
            soft_bytes: self.soft_bytes(),
            reopen_bytes: self.reopen_bytes(),
        }
    }

    /// Estimated free space after all admitted writes, in bytes.
    pub(crate) fn remaining_bytes(&self) -> u64 {
        let available = self.available_bytes.load(Ordering::Relaxed);
        available.saturating_sub(self.admitted_bytes.load(Ordering::Relaxed))
    }

    /// Records that the file system refused space, whatever free space it reports. Values are
    /// refused until the next [`DiskGuard::observe`].
    pub(crate) fn mark_full(&self) {
        self.full.store(true, Ordering::Relaxed);
    }

    /// Whether a batch of `bytes` is admitted; if so, it is counted.
    pub(crate) fn admit(&self, demand: DiskDemand, bytes: u64) -> bool {
        let admits = match demand {
            DiskDemand::Critical => true,
            DiskDemand::Delete => self.admits_delete(bytes),
            DiskDemand::Value => self.admits_value(bytes),
        };
        if admits {
            self.admitted_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        admits
    }

    fn admits_value(&self, bytes: u64) -> bool {
        let left = self.remaining_bytes();
        let admits = !self.is_full() && left >= self.reserve_bytes().saturating_add(bytes);
        if !admits && left < self.reopen_bytes() {
            // Values are refused from here on, so that the state is reported and no smaller value
            // takes the rest.
            self.full.store(true, Ordering::Relaxed);
        }
        admits
    }

    fn admits_delete(&self, bytes: u64) -> bool {
        self.has_unflushed_deletes.store(true, Ordering::Relaxed);
        let quarter = self.reserve_bytes() / QUARTER;
        if self.remaining_bytes() >= self.reserve_bytes() - quarter {
            return true;
        }
        let taken = self.deleted_bytes.fetch_add(bytes, Ordering::Relaxed);
        let admits = taken.saturating_add(bytes) <= quarter;
        if !admits {
            self.deleted_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        admits
    }

    /// Whether enough bytes were admitted since the last measurement to require another.
    pub(crate) fn is_check_due(&self) -> bool {
        let available = self.available_bytes.load(Ordering::Relaxed);
        let above = available.saturating_sub(self.reserve_bytes());
        let admitted = self.admitted_bytes.load(Ordering::Relaxed);
        admitted >= (above / CHECK_SHARE).max(CHECK_BYTES_MIN)
    }

    /// Records the free space, the bytes that the engine uses, and the bytes that are admitted but
    /// not written. Returns the state if it changed since the last call.
    pub(crate) fn observe(
        &self,
        available_bytes: u64,
        engine_bytes: u64,
        unwritten_bytes: u64,
    ) -> Option<DiskSpace> {
        self.update(available_bytes, engine_bytes, unwritten_bytes);
        let limit = if self.is_full() { self.reopen_bytes() } else { self.reserve_bytes() };
        self.full.store(self.remaining_bytes() < limit, Ordering::Relaxed);
        if available_bytes >= self.reserve_bytes() {
            self.deleted_bytes.store(0, Ordering::Relaxed);
        }
        let space = self.space();
        (self.reported.swap(space as u8, Ordering::Relaxed) != space as u8).then_some(space)
    }

    /// As [`DiskGuard::observe`], but does not change whether values are refused.
    pub(crate) fn update(&self, available_bytes: u64, engine_bytes: u64, unwritten_bytes: u64) {
        self.usable_bytes.fetch_max(available_bytes.saturating_add(engine_bytes), Ordering::Relaxed);
        self.available_bytes.store(available_bytes, Ordering::Relaxed);
        self.admitted_bytes.store(unwritten_bytes, Ordering::Relaxed);
    }

    /// Whether deletes were admitted since the last call. They free space only after a flush.
    pub(crate) fn take_unflushed_deletes(&self) -> bool {
        self.has_unflushed_deletes.swap(false, Ordering::Relaxed)
    }

    /// The time that `bytes` take at the permitted rate. Below the reserve only deletes are
    /// admitted, unslowed.
    pub(crate) fn time_for(&self, bytes: u64) -> Duration {
        let (soft, reserve) = (self.soft_bytes(), self.reserve_bytes());
        let left = self.remaining_bytes();
        if left >= soft || self.is_full() || soft == reserve {
            return Duration::ZERO;
        }
        let zone = (soft - reserve) as f64;
        let level = ((soft - left) as f64 / zone).min(1.0);
        let slowest = zone / ZONE_TIME.as_secs_f64();
        Duration::from_secs_f64(bytes as f64 / (slowest * RATE_SPAN.powf(1.0 - level)))
    }

    fn reserve_bytes(&self) -> u64 {
        self.wanted_bytes.min(self.usable_bytes.load(Ordering::Relaxed) / RESERVE_SHARE)
    }

    fn soft_bytes(&self) -> u64 {
        self.reserve_bytes().saturating_mul(SOFT_RESERVES)
    }

    fn reopen_bytes(&self) -> u64 {
        self.reserve_bytes().saturating_add(self.reserve_bytes() / QUARTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: u64 = 1_000_000;

    fn guard() -> DiskGuard {
        DiskGuard::new(1_000, DISK, 0)
    }

    #[test]
    fn values_are_refused_below_the_reserve_and_admitted_at_a_quarter_more() {
        let guard = guard();
        assert_eq!(guard.observe(2_000, 0, 0), None);
        assert_eq!(guard.observe(1_000, 0, 0), Some(DiskSpace::Low));
        assert_eq!(guard.observe(999, 0, 0), Some(DiskSpace::Full));
        assert_eq!(guard.observe(1_249, 0, 0), None);
        assert!(guard.is_full());
        assert_eq!(guard.observe(1_250, 0, 0), Some(DiskSpace::Low));
        assert_eq!(guard.observe(2_000, 0, 0), Some(DiskSpace::Ample));
    }

    #[test]
    fn a_disk_that_a_failed_write_found_full_is_reported_at_the_next_measurement() {
        let guard = guard();
        guard.mark_full();
        assert_eq!(guard.observe(500, 0, 0), Some(DiskSpace::Full));
        assert_eq!(guard.observe(1_100, 0, 0), None);
        assert_eq!(guard.observe(9_000, 0, 0), Some(DiskSpace::Ample));
    }

    #[test]
    fn a_small_disk_has_a_small_reserve_that_grows_with_free_space() {
        let guard = DiskGuard::new(100, 200, 40);
        assert_eq!(guard.stats().reserve_bytes, 40);
        guard.observe(500, 40, 0);
        assert_eq!(guard.stats().reserve_bytes, 90);
        guard.observe(10, 40, 0);
        assert_eq!(guard.stats().reserve_bytes, 90);
    }

    #[test]
    fn values_stop_at_the_reserve_without_another_measurement() {
        let guard = guard();
        guard.observe(3_000, 0, 0);
        assert!(guard.admit(DiskDemand::Value, 1_500));
        assert!(!guard.admit(DiskDemand::Value, 600), "the value would reach into the reserve");
        assert_eq!(guard.space(), DiskSpace::Low, "smaller values are admitted");
        assert!(guard.admit(DiskDemand::Value, 500));
        assert!(!guard.admit(DiskDemand::Value, 1));
        assert!(guard.admit(DiskDemand::Critical, 1_000_000));
    }

    #[test]
    fn a_value_that_does_not_fit_marks_the_disk_full() {
        let guard = guard();
        guard.observe(1_240, 0, 0);
        assert_eq!(guard.space(), DiskSpace::Low);
        assert!(!guard.admit(DiskDemand::Value, 300));
        assert_eq!(guard.space(), DiskSpace::Full);
        assert!(!guard.admit(DiskDemand::Value, 1), "smaller values are refused too");
        guard.observe(1_249, 0, 0);
        assert!(!guard.admit(DiskDemand::Value, 1));
        guard.observe(1_250, 0, 0);
        assert_eq!(guard.space(), DiskSpace::Low);
        assert!(guard.admit(DiskDemand::Value, 1));
    }

    #[test]
    fn an_update_of_the_figures_does_not_admit_values() {
        let guard = guard();
        guard.mark_full();
        guard.update(10, 0, 0);
        assert_eq!((guard.space(), guard.stats().available_bytes), (DiskSpace::Full, 10));
        guard.update(DISK, 0, 0);
        assert!(guard.is_full());
    }

    #[test]
    fn deletes_may_use_a_quarter_of_the_reserve() {
        let guard = guard();
        guard.observe(760, 0, 0);
        assert!(guard.admit(DiskDemand::Delete, 20), "three quarters of the reserve are free");
        assert!(guard.admit(DiskDemand::Delete, 150) && guard.admit(DiskDemand::Delete, 100));
        assert!(!guard.admit(DiskDemand::Delete, 1), "deletes have used their quarter");
        assert!(!guard.admit(DiskDemand::Delete, 1), "a refused delete is not counted");
        guard.observe(800, 0, 0);
        assert!(guard.admit(DiskDemand::Delete, 10), "space was freed");
        guard.observe(700, 0, 0);
        assert!(!guard.admit(DiskDemand::Delete, 10), "deletes have used their quarter");
        guard.observe(1_000, 0, 0);
        guard.observe(700, 0, 0);
        assert!(guard.admit(DiskDemand::Delete, 10));
    }

    #[test]
    fn the_rate_falls_continuously_from_the_soft_limit_to_the_reserve() {
        let guard = DiskGuard::new(100 << 20, 1 << 40, 0);
        let rate = |available| {
            guard.observe(available, 0, 0);
            1.0 / guard.time_for(1 << 20).as_secs_f64()
        };
        guard.observe(200 << 20, 0, 0);
        assert_eq!(guard.time_for(1 << 20), Duration::ZERO);
        let mut last = rate((200 << 20) - 1);
        assert!((last - 640.0).abs() < 1.0, "{last} MiB/s");
        for mib in (100..200).rev() {
            let now = rate(mib << 20);
            assert!(now < last && now > last * 0.9, "from {last} to {now} at {mib} MiB");
            last = now;
        }
        assert!((last - 20.0).abs() < 0.2, "{last} MiB/s");
    }

    #[test]
    fn admitted_bytes_require_another_measurement() {
        let guard = DiskGuard::new(1 << 20, 64 << 20, 0);
        assert!(!guard.is_check_due());
        assert!(guard.admit(DiskDemand::Value, 9 << 20));
        assert!(guard.is_check_due());
        guard.observe(60 << 20, 0, 0);
        assert!(!guard.is_check_due());
    }
}
