//! Clocks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stdx::{Instant, Now, WallTime};

/// A source of wall time and monotonic time.
pub trait Clock: Send + Sync {
    /// Reads both clocks.
    fn now(&self) -> Now;

    /// Time since the machine started, including time spent suspended. The monotonic side of
    /// [`Clock::now`] excludes suspended time. `None` if the platform has no such clock.
    fn since_boot(&self) -> Option<Duration> {
        None
    }
}

/// A clock for tests: it changes only by the calls below.
#[derive(Debug)]
pub struct ManualClock {
    mono_nanos: AtomicU64,
    /// Nanoseconds that the machine spent suspended. The monotonic side excludes them.
    suspended_nanos: AtomicU64,
    wall_micros: AtomicU64,
}

impl ManualClock {
    /// Creates a clock that shows `wall`. Its monotonic side starts at zero.
    pub fn new(wall: WallTime) -> Self {
        Self {
            mono_nanos: AtomicU64::new(0),
            suspended_nanos: AtomicU64::new(0),
            wall_micros: AtomicU64::new(wall.micros_since_unix_epoch()),
        }
    }

    /// Suspends the machine for `duration`: the wall clock advances, the monotonic side does not.
    pub fn suspend(&self, duration: Duration) {
        self.suspended_nanos.fetch_add(duration.as_nanos() as u64, Ordering::Relaxed);
        self.wall_micros.fetch_add(duration.as_micros() as u64, Ordering::Relaxed);
    }

    /// Advances both clocks by `duration`.
    pub fn advance(&self, duration: Duration) {
        self.mono_nanos.fetch_add(duration.as_nanos() as u64, Ordering::Relaxed);
        self.wall_micros.fetch_add(duration.as_micros() as u64, Ordering::Relaxed);
    }

    /// Steps the wall clock forward or backward. The monotonic side does not change.
    pub fn set_wall(&self, wall: WallTime) {
        self.wall_micros.store(wall.micros_since_unix_epoch(), Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Now {
        Now {
            mono: Instant::from_nanos(self.mono_nanos.load(Ordering::Relaxed)),
            wall: WallTime::from_micros_since_unix_epoch(self.wall_micros.load(Ordering::Relaxed)),
        }
    }

    fn since_boot(&self) -> Option<Duration> {
        let parts = [&self.mono_nanos, &self.suspended_nanos];
        Some(Duration::from_nanos(parts.map(|part| part.load(Ordering::Relaxed)).into_iter().sum()))
    }
}
