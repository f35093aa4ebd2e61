//! A wall clock whose steps forward are not believed at once.
//!
//! **Promise.** The time that [`SteadyWall::observe`] returns never runs ahead of the clock that is read. It follows
//! that clock, but ignores a step forward of more than [`SteadyWall::STEP_MIN`] until the clock has kept the step for
//! [`SteadyWall::HOLD`]. So work that cannot be undone, such as deleting what has expired, does not rely on a
//! clock that was set wrong a moment ago. A step back is believed at once.
//!
//! **Mechanism.** Each reading is compared with the last one that was believed, by the monotonic clock
//! ([`ClockAnchor`]). While a step is held, the returned time goes on from the last believed reading with the
//! monotonic clock. A second step during the hold begins the hold anew.
//!
//! **Caveats.** The first reading is believed. A step is noticed when the clock is read, so the owner reads it
//! regularly. Steps of less than [`SteadyWall::STEP_MIN`] are believed at once, also repeated ones. A suspension of the
//! machine appears as a step forward, and is held.

use crate::{ClockAnchor, Instant, Now, WallTime};
use std::time::Duration;

/// A wall clock, and how far it is believed.
#[derive(Clone, Debug)]
pub struct SteadyWall {
    /// The last reading that was believed.
    believed: ClockAnchor,
    held: Option<HeldStep>,
}

/// A step forward that is not believed yet.
#[derive(Clone, Copy, Debug)]
struct HeldStep {
    since: Instant,
    /// The reading that began the hold.
    anchor: ClockAnchor,
}

impl SteadyWall {
    /// Steps forward of up to this length are believed at once.
    pub const STEP_MIN: Duration = Duration::from_secs(10);
    /// A step forward is believed when the clock has kept it for this time.
    pub const HOLD: Duration = Duration::from_secs(60 * 60);

    /// Believes the reading `now`.
    pub const fn new(now: Now) -> Self {
        Self { believed: ClockAnchor::new(now), held: None }
    }

    /// Takes a reading of the clock, and returns the time that is believed; never later than `now.wall`.
    pub fn observe(&mut self, now: Now) -> WallTime {
        let is_step = |step: u64| step > Self::STEP_MIN.as_micros() as u64;
        if !is_step(self.believed.step(now).max(0).unsigned_abs()) || self.is_kept(now) {
            *self = Self::new(now);
            return now.wall;
        }
        if self.held.is_none_or(|held| is_step(held.anchor.step(now).unsigned_abs())) {
            self.held = Some(HeldStep { since: now.mono, anchor: ClockAnchor::new(now) });
        }
        self.expected(now)
    }

    /// The time that is believed at `now.mono` without a reading of the clock.
    pub fn expected(&self, now: Now) -> WallTime {
        self.believed.expected_wall(now)
    }

    /// Whether the clock has kept a step for long enough.
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
    fn a_step_forward_is_believed_when_it_was_kept_for_the_hold() {
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
    fn a_second_step_begins_the_hold_anew() {
        let mut steady = SteadyWall::new(at(0, 1_000));
        assert_eq!(steady.observe(at(0, 50_000)), wall(1_000));
        assert_eq!(steady.observe(at(HOUR - 1, 90_000)), wall(1_000 + HOUR - 1));
        assert_eq!(steady.observe(at(HOUR, 90_001)), wall(1_000 + HOUR));
        assert_eq!(steady.observe(at(2 * HOUR - 1, 90_000 + HOUR)), wall(90_000 + HOUR));
    }

    #[test]
    fn a_step_back_is_believed_at_once() {
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
