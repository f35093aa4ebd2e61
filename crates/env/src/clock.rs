//! Clocks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stdx::{Instant, Now, WallTime};

/// Tells the time.
pub trait Clock: Send + Sync {
    /// Both clocks, read together.
    fn now(&self) -> Now;

    /// Time since the machine started, in which time spent suspended counts, unlike on the monotonic side of
    /// [`Clock::now`]. `None` where the system does not tell.
    fn since_boot(&self) -> Option<Duration> {
        None
    }
}

/// A clock that stands still until a test moves it.
#[derive(Debug)]
pub struct ManualClock {
    mono_nanos: AtomicU64,
    /// For how long the monotonic side stood still while its machine was suspended.
    suspended_nanos: AtomicU64,
    wall_micros: AtomicU64,
}

impl ManualClock {
    /// A clock that shows `wall`; its monotonic side starts at zero.
    pub fn new(wall: WallTime) -> Self {
        Self {
            mono_nanos: AtomicU64::new(0),
            suspended_nanos: AtomicU64::new(0),
            wall_micros: AtomicU64::new(wall.micros_since_unix_epoch()),
        }
    }

    /// Lets time pass in which the machine is suspended: the monotonic side does not move.
    pub fn suspend(&self, duration: Duration) {
        self.suspended_nanos.fetch_add(duration.as_nanos() as u64, Ordering::Relaxed);
        self.wall_micros.fetch_add(duration.as_micros() as u64, Ordering::Relaxed);
    }

    /// Lets time pass on both sides.
    pub fn advance(&self, duration: Duration) {
        self.mono_nanos.fetch_add(duration.as_nanos() as u64, Ordering::Relaxed);
        self.wall_micros.fetch_add(duration.as_micros() as u64, Ordering::Relaxed);
    }

    /// Sets the wall clock, forward or back; the monotonic side does not move.
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
