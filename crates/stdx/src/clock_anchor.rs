//! Steps of the wall clock, measured against the monotonic clock.
//!
//! **Promise.** [`ClockAnchor::step`] is the change of the wall clock since the anchor was set,
//! minus the time that the monotonic clock measured. It is zero for a steady clock, positive after
//! a step forward, and negative after a step back.
//!
//! **Mechanism.** The anchor keeps one reading of both clocks. A later reading of the wall clock is
//! compared with the anchor's wall time plus the monotonic time between the two readings.
//!
//! **Caveats.** A slow drift accumulates like a step. So the owner of an anchor sets it again
//! whenever it has reason to trust the wall clock. The monotonic clock of Linux stops while a
//! machine is suspended, so a suspension appears as a step forward.

use crate::{Instant, Now, WallTime, nanos};

/// A reading of both clocks, with which later readings are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockAnchor {
    at: Now,
}

impl ClockAnchor {
    /// Creates an anchor at this reading of the clocks.
    pub const fn new(now: Now) -> Self {
        Self { at: now }
    }

    /// The wall time that a clock without steps would show at `now`.
    pub fn expected_wall(&self, now: Now) -> WallTime {
        self.at.wall.saturating_add_micros(nanos(now.mono - self.at.mono) / 1_000)
    }

    /// The wall time that a clock without steps showed when the monotonic clock was at zero. It
    /// represents the whole anchor, to the microsecond: an anchor at `Instant::ZERO` with this wall
    /// time measures the same steps. If the wall clock showed less than the monotonic clock, it is
    /// the Unix epoch.
    pub fn wall_at_zero(&self) -> WallTime {
        let micros = nanos(self.at.mono - Instant::ZERO) / 1_000;
        WallTime::from_micros_since_unix_epoch(self.at.wall.micros_since_unix_epoch().saturating_sub(micros))
    }

    /// The step of the wall clock since the anchor was set, in microseconds: positive forward,
    /// negative back.
    pub fn step(&self, now: Now) -> i64 {
        let shown = i128::from(now.wall.micros_since_unix_epoch());
        let expected = i128::from(self.expected_wall(now).micros_since_unix_epoch());
        (shown - expected).clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(mono_secs: u64, wall_secs: u64) -> Now {
        Now {
            mono: Instant::from_nanos(mono_secs * 1_000_000_000),
            wall: WallTime::from_micros_since_unix_epoch(wall_secs * 1_000_000),
        }
    }

    #[test]
    fn a_steady_clock_has_no_step() {
        assert_eq!(ClockAnchor::new(at(5, 1_000)).step(at(65, 1_060)), 0);
    }

    #[test]
    fn steps_in_both_directions_are_measured() {
        let anchor = ClockAnchor::new(at(5, 1_000));
        assert_eq!(anchor.step(at(6, 4_601)), 3_600_000_000);
        assert_eq!(anchor.step(at(6, 901)), -100_000_000);
        assert_eq!(anchor.expected_wall(at(6, 901)), at(0, 1_001).wall);
    }

    #[test]
    fn an_anchor_moved_to_zero_measures_the_same_steps() {
        let anchor = ClockAnchor::new(at(5, 1_000));
        let moved = ClockAnchor::new(Now { mono: Instant::ZERO, wall: anchor.wall_at_zero() });
        for later in [at(5, 1_000), at(6, 4_601), at(60, 901)] {
            assert_eq!(moved.step(later), anchor.step(later));
        }
        assert_eq!(ClockAnchor::new(at(5, 1)).wall_at_zero(), at(0, 0).wall);
    }

    #[test]
    fn the_ends_of_the_wall_clock_do_not_overflow() {
        let end = Now {
            mono: Instant::from_nanos(u64::MAX),
            wall: WallTime::from_micros_since_unix_epoch(u64::MAX),
        };
        assert_eq!(ClockAnchor::new(at(0, 0)).step(Now { mono: Instant::ZERO, ..end }), i64::MAX);
        assert_eq!(ClockAnchor::new(end).step(at(0, 0)), i64::MIN);
    }
}
