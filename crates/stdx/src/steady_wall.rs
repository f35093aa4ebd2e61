//! A wall clock that accepts steps forward after a delay.
//!
//! **Promise.** The time that [`SteadyWall::observe`] returns is never ahead of the clock that is
//! read. It follows that clock, but ignores a step forward of more than [`SteadyWall::STEP_MIN`]
//! until the clock has kept the step for [`SteadyWall::HOLD`]. So irreversible work, such as the
//! deletion of expired data, does not rely on a clock that was set wrong a moment ago. A step back
//! is accepted immediately.
//!
//! **Mechanism.** Each reading is compared with the last accepted one, by the monotonic clock
//! ([`ClockAnchor`]). While a step is held, the returned time advances from the last accepted
//! reading with the monotonic clock. A second step during the hold restarts the hold.
//!
//! **Caveats.** The first reading is accepted. A step is noticed when the clock is read, so the
//! owner reads it regularly. Steps of less than [`SteadyWall::STEP_MIN`] are accepted immediately,
//! even repeated ones. A suspension of the machine appears as a step forward, and is held.

use crate::{ClockAnchor, Instant, Now, WallTime};
use std::time::Duration;

/// A filter for readings of a wall clock.
#[derive(Clone, Debug)]
pub struct SteadyWall {
    /// The last accepted reading.
    accepted: ClockAnchor,
    held: Option<HeldStep>,
}

/// A step forward that is not accepted yet.
#[derive(Clone, Copy, Debug)]
struct HeldStep {
    since: Instant,
    /// The reading at the start of the hold.
    anchor: ClockAnchor,
}

impl SteadyWall {
    /// The maximum length of a step forward that is accepted immediately.
    pub const STEP_MIN: Duration = Duration::from_secs(10);
    /// The time for which the clock must keep a longer step forward before it is accepted.
    pub const HOLD: Duration = Duration::from_secs(60 * 60);

    /// Accepts the reading `now`.
    pub const fn new(now: Now) -> Self {
        Self { accepted: ClockAnchor::new(now), held: None }
    }

    /// Processes a reading of the clock, and returns the accepted time, which is never later than
    /// `now.wall`.
    pub fn observe(&mut self, now: Now) -> WallTime {
        let is_step = |step: u64| step > Self::STEP_MIN.as_micros() as u64;
        if !is_step(self.accepted.step(now).max(0).unsigned_abs()) || self.is_kept(now) {
            *self = Self::new(now);
            return now.wall;
        }
        if self.held.is_none_or(|held| is_step(held.anchor.step(now).unsigned_abs())) {
            self.held = Some(HeldStep { since: now.mono, anchor: ClockAnchor::new(now) });
        }
        self.expected(now)
    }

    /// The accepted time at `now.mono`, without a reading of the clock.
    pub fn expected(&self, now: Now) -> WallTime {
        self.accepted.expected_wall(now)
    }

    /// Whether the clock has kept the held step for [`SteadyWall::HOLD`].
    fn is_kept(&self, now: Now) -> bool {
        let step_min = Self::STEP_MIN.as_micros() as u64;
        self.held.is_some_and(|held| {
            now.mono - held.since >= Self::HOLD && held.anchor.step(now).unsigned_abs() <= step_min
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;

    fn at(mono_secs: u64, wall_secs: u64) -> Now {
        Now { mono: Instant::from_nanos(mono_secs * 1_000_000_000), wall: wall(wall_secs) }
    }

    fn wall(secs: u64) -> WallTime {
        WallTime::from_micros_since_unix_epoch(secs * 1_000_000)
    }

    #[test]
    fn a_steady_clock_is_followed() {
        let mut steady = SteadyWall::new(at(0, 1_000));
        for secs in [1, 60, 100_000] {
            assert_eq!(steady.observe(at(secs, 1_000 + secs)), wall(1_000 + secs));
        }
    }

    #[test]
    fn a_step_forward_is_accepted_once_the_clock_kept_it_for_the_hold() {
        let mut steady = SteadyWall::new(at(0, 1_000));
        for secs in [1, MINUTE, HOUR] {
            assert_eq!(steady.observe(at(secs, 50_000 + secs)), wall(1_000 + secs), "after {secs} s");
        }
        assert_eq!(steady.observe(at(HOUR + 1, 50_001 + HOUR)), wall(50_001 + HOUR));
        assert_eq!(steady.observe(at(HOUR + 2, 50_002 + HOUR)), wall(50_002 + HOUR));
    }

    #[test]
    fn a_step_that_is_taken_back_is_forgotten() {
        let mut steady = SteadyWall::new(at(0, 1_000));
        assert_eq!(steady.observe(at(1, 50_000)), wall(1_001));
        assert_eq!(steady.observe(at(2, 1_002)), wall(1_002));
        let later = 2 * HOUR;
        assert_eq!(steady.observe(at(later, 50_000 + later)), wall(1_000 + later), "the hold begins anew");
    }

    #[test]
    fn a_second_step_restarts_the_hold() {
        let mut steady = SteadyWall::new(at(0, 1_000));
        assert_eq!(steady.observe(at(0, 50_000)), wall(1_000));
        assert_eq!(steady.observe(at(HOUR - 1, 90_000)), wall(1_000 + HOUR - 1));
        assert_eq!(steady.observe(at(HOUR, 90_001)), wall(1_000 + HOUR));
        assert_eq!(steady.observe(at(2 * HOUR - 1, 90_000 + HOUR)), wall(90_000 + HOUR));
    }

    #[test]
    fn a_step_back_is_accepted_at_once() {
        let mut steady = SteadyWall::new(at(0, 100_000));
        assert_eq!(steady.observe(at(1, 1_000)), wall(1_000));
        assert_eq!(steady.observe(at(2, 1_001)), wall(1_001));
    }

    #[test]
    fn a_time_never_runs_ahead_of_its_clock() {
        let mut steady = SteadyWall::new(at(0, 1_000));
        let mut rng = crate::Rng::new(3);
        let (mut mono, mut shown) = (0, 1_000);
        for _ in 0..10_000 {
            mono += rng.below(2 * MINUTE);
            shown = if rng.chance(0.1) { rng.below(1_000_000) } else { shown + rng.below(2 * MINUTE) };
            assert!(steady.observe(at(mono, shown)) <= wall(shown));
        }
    }
}
