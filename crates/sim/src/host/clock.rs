//! A host's clocks: what it shows of the world's time, rightly or not.

use crate::Nanos;
use env::ManualClock;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Instant, Now, WallTime};

/// 2026-01-01T00:00:00Z, the true time when a run begins.
pub(crate) const EPOCH: WallTime = WallTime::from_micros_since_unix_epoch(1_767_225_600_000_000);

/// A host's clocks. The monotonic one is right but for where it began; the wall clock is off by an error, and
/// may stand still.
#[derive(Debug)]
pub(crate) struct HostClock {
    began: Duration,
    error_micros: i64,
    frozen_at: Option<WallTime>,
    /// Never goes back, as a monotonic clock must not.
    shown: Arc<ManualClock>,
    shown_mono: Instant,
}

impl HostClock {
    /// A clock whose monotonic side has shown `began` when the run began.
    pub(crate) fn new(began: Duration, error_micros: i64) -> Self {
        let shown = Arc::new(ManualClock::new(EPOCH));
        Self { began, error_micros, frozen_at: None, shown, shown_mono: Instant::ZERO }
    }

    /// What both sides show at `at`.
    pub(crate) fn now(&self, at: Nanos) -> Now {
        Now {
            mono: Instant::from_nanos((self.began + Duration::from_nanos(at.0)).as_nanos() as u64),
            wall: self.wall(at),
        }
    }

    /// The moment at which the monotonic side shows `mono`.
    pub(crate) fn when(&self, mono: Instant) -> Nanos {
        Nanos(mono.as_nanos().saturating_sub(self.began.as_nanos() as u64))
    }

    /// Sets what the process reads for itself.
    pub(crate) fn show(&mut self, at: Nanos) -> Now {
        let now = self.now(at);
        self.shown.advance(now.mono - self.shown_mono);
        self.shown.set_wall(now.wall);
        self.shown_mono = now.mono;
        now
    }

    /// The clock for the process.
    pub(crate) fn shown(&self) -> Arc<ManualClock> {
        Arc::clone(&self.shown)
    }

    /// Makes the wall clock jump.
    pub(crate) fn jump(&mut self, micros: i64) {
        self.error_micros += micros;
    }

    /// Stops the wall clock.
    pub(crate) fn freeze(&mut self, at: Nanos) {
        self.frozen_at = Some(self.wall(at));
    }

    /// Lets the wall clock go on, as if it had never stood.
    pub(crate) fn thaw(&mut self) {
        self.frozen_at = None;
    }

    /// Sets the wall clock right but for `error_micros`.
    pub(crate) fn correct(&mut self, error_micros: i64) {
        self.thaw();
        self.error_micros = error_micros;
    }

    fn wall(&self, at: Nanos) -> WallTime {
        self.frozen_at.unwrap_or_else(|| {
            let micros = EPOCH.micros_since_unix_epoch() + at.0 / 1_000;
            WallTime::from_micros_since_unix_epoch(micros.saturating_add_signed(self.error_micros))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wall_clock_errs_and_the_monotonic_one_does_not() {
        let mut clock = HostClock::new(Duration::from_secs(100), -1_000_000);
        let second = |n: u64| Nanos(n * 1_000_000_000);
        assert_eq!(clock.now(second(5)).wall, EPOCH.saturating_add(Duration::from_secs(4)));
        clock.freeze(second(5));
        clock.jump(3_000_000);
        assert_eq!(clock.now(second(9)).wall, EPOCH.saturating_add(Duration::from_secs(4)));
        clock.thaw();
        assert_eq!(clock.now(second(9)).wall, EPOCH.saturating_add(Duration::from_secs(11)));
        assert_eq!(clock.when(clock.now(second(9)).mono), second(9));
        assert_eq!(clock.show(second(9)), env::Clock::now(&*clock.shown()));
    }
}
