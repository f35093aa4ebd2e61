//! Clocks of a host: the times that it shows, derived from the world's time.

use crate::Nanos;
use env::ManualClock;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Instant, Now, WallTime};

/// 2026-01-01T00:00:00Z, the true time at which a run begins.
pub(crate) const EPOCH: WallTime = WallTime::from_micros_since_unix_epoch(1_767_225_600_000_000);

/// Longest step after which a clock still counts as correct.
const STEP_ACCEPTED: Duration = Duration::from_secs(5);

/// The clocks of a host.
///
/// The monotonic clock is exact except for its origin, and stands still while the host is
/// suspended. The wall clock has an error, and may be frozen.
#[derive(Debug)]
pub(crate) struct HostClock {
    began: Duration,
    /// Total time for which the monotonic clock stood still, over all finished suspensions.
    stood: Duration,
    suspended_at: Option<Nanos>,
    error_micros: i64,
    /// Whether the wall clock has stepped by more than the accepted clock skew.
    is_wrong: bool,
    frozen_at: Option<WallTime>,
    /// Clock that the process reads. Its monotonic time never goes back.
    shown: Arc<ManualClock>,
    shown_mono: Instant,
    /// Part of `stood` that `shown` includes.
    shown_stood: Duration,
}

impl HostClock {
    /// Creates clocks whose monotonic clock shows `began` when the run begins.
    pub(crate) fn new(began: Duration, error_micros: i64) -> Self {
        let shown = Arc::new(ManualClock::new(EPOCH));
        Self {
            began,
            stood: Duration::ZERO,
            suspended_at: None,
            error_micros,
            is_wrong: false,
            frozen_at: None,
            shown,
            shown_mono: Instant::ZERO,
            shown_stood: Duration::ZERO,
        }
    }

    /// Times of both clocks at `at`.
    pub(crate) fn now(&self, at: Nanos) -> Now {
        Now {
            mono: Instant::from_nanos((self.began + self.awake(at)).as_nanos() as u64),
            wall: self.wall(at),
        }
    }

    /// Moment at which the monotonic clock shows `mono`.
    pub(crate) fn when(&self, mono: Instant) -> Nanos {
        let awake = mono.as_nanos().saturating_sub(self.began.as_nanos() as u64);
        Nanos(awake + self.stood.as_nanos() as u64)
    }

    /// Time for which the monotonic clock has run at `at`, since the run began.
    fn awake(&self, at: Nanos) -> Duration {
        let at = self.suspended_at.unwrap_or(at);
        at - (Nanos::ZERO + self.stood)
    }

    /// Stops the monotonic clock.
    pub(crate) fn suspend(&mut self, at: Nanos) {
        self.suspended_at.get_or_insert(at);
    }

    /// Lets the monotonic clock continue where it stopped. Returns whether it was stopped.
    pub(crate) fn resume(&mut self, at: Nanos) -> bool {
        let since = self.suspended_at.take();
        self.stood += since.map_or(Duration::ZERO, |since| at - since);
        since.is_some()
    }

    /// Sets the clock that the process reads to `at`. Returns its times.
    pub(crate) fn show(&mut self, at: Nanos) -> Now {
        let now = self.now(at);
        self.shown.advance(now.mono - self.shown_mono);
        self.shown.suspend(self.stood - self.shown_stood);
        self.shown_stood = self.stood;
        self.shown.set_wall(now.wall);
        self.shown_mono = now.mono;
        now
    }

    /// Clock for the process.
    pub(crate) fn shown(&self) -> Arc<ManualClock> {
        Arc::clone(&self.shown)
    }

    /// Moves the wall clock by `micros`.
    pub(crate) fn jump(&mut self, micros: i64) {
        self.error_micros += micros;
    }

    /// Moves the wall clock by `micros`. After a long step it counts as wrong until it is
    /// corrected.
    pub(crate) fn step(&mut self, micros: i64) {
        self.jump(micros);
        self.is_wrong |= micros.unsigned_abs() > STEP_ACCEPTED.as_micros() as u64;
    }

    /// Whether the wall clock is wrong by more than the accepted clock skew.
    pub(crate) const fn is_wrong(&self) -> bool {
        self.is_wrong
    }

    /// Stops the wall clock.
    pub(crate) fn freeze(&mut self, at: Nanos) {
        self.frozen_at = Some(self.wall(at));
    }

    /// Lets the wall clock continue, as if it had never been frozen.
    pub(crate) fn thaw(&mut self) {
        self.frozen_at = None;
    }

    /// Sets the wall clock to the true time plus `error_micros`.
    pub(crate) fn correct(&mut self, error_micros: i64) {
        self.thaw();
        self.is_wrong = false;
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

    #[test]
    fn the_monotonic_clock_stands_still_while_its_host_is_suspended() {
        let mut clock = HostClock::new(Duration::from_secs(100), 0);
        let second = |n: u64| Nanos(n * 1_000_000_000);
        clock.suspend(second(5));
        assert_eq!(clock.now(second(9)).mono, clock.now(second(5)).mono);
        assert_eq!(clock.now(second(9)).wall, EPOCH.saturating_add(Duration::from_secs(9)));
        assert!(clock.resume(second(9)));
        assert!(!clock.resume(second(10)));
        let later = clock.now(second(11)).mono;
        assert_eq!(later, Instant::from_nanos(107_000_000_000));
        assert_eq!(clock.when(later), second(11));
        clock.show(second(11));
        assert_eq!(env::Clock::since_boot(&*clock.shown()), Some(Duration::from_secs(111)));
    }

    #[test]
    fn a_clock_is_wrong_from_a_long_step_until_it_is_corrected() {
        let mut clock = HostClock::new(Duration::ZERO, 0);
        clock.step(-3_000_000);
        assert!(!clock.is_wrong());
        clock.step(60_000_000);
        assert!(clock.is_wrong());
        clock.correct(0);
        assert!(!clock.is_wrong());
    }
}
