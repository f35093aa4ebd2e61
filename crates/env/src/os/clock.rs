//! The clocks of the machine.

use crate::clock::Clock;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::time::Duration;
use stdx::{Instant, Now, WallTime};

/// `CLOCK_MONOTONIC` and `CLOCK_REALTIME`. All instances agree: the monotonic clock starts with the
/// machine, not with the instance.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsClock;

impl OsClock {
    /// Returns the clocks of this machine.
    pub fn new() -> Self {
        Self
    }
}

impl Clock for OsClock {
    fn now(&self) -> Now {
        Now {
            mono: Instant::from_nanos(nanos(clock_gettime(ClockId::Monotonic))),
            wall: WallTime::from_micros_since_unix_epoch(nanos(clock_gettime(ClockId::Realtime)) / 1_000),
        }
    }

    #[cfg(target_os = "linux")]
    fn since_boot(&self) -> Option<Duration> {
        Some(Duration::from_nanos(nanos(clock_gettime(ClockId::Boottime))))
    }
}

/// Nanoseconds since the start of the clock; 0 for a wall clock before 1970. They overflow in 2554.
fn nanos(time: Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clocks_go_on() {
        let (first, second) = (OsClock::new().now(), OsClock::new().now());
        assert!(second.mono >= first.mono);
        if let Some(since_boot) = OsClock::new().since_boot() {
            assert!(since_boot.as_nanos() >= u128::from(second.mono.as_nanos()));
        }
        assert!(first.wall > WallTime::EPOCH_2020);
    }

    #[test]
    fn a_wall_clock_before_1970_shows_1970() {
        assert_eq!(nanos(Timespec { tv_sec: -1, tv_nsec: 5 }), 5);
    }
}
