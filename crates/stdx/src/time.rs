//! Time as an argument.
//!
//! Only `env` and the binaries read clocks. Callers pass [`Now`], which real clocks and the
//! simulator's virtual clock both provide.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A point on the monotonic clock of one process, in nanoseconds since an arbitrary start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The start of the clock.
    pub const ZERO: Self = Self(0);

    /// The instant `nanos` nanoseconds after the start of the clock.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the start of the clock.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time since `earlier`; zero if `earlier` is later.
    pub fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }
}

impl Sub<Self> for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.saturating_since(earlier)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from_nanos(self.0))
    }
}

/// Returns a duration in nanoseconds, at most [`u64::MAX`], which is 584 years.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A wall-clock time, in microseconds since 1970-01-01T00:00:00Z. It may jump, so durations are
/// measured by [`Instant`] instead.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct WallTime(u64);

impl WallTime {
    /// 2020-01-01T00:00:00Z, the epoch of versions.
    pub const EPOCH_2020: Self = Self(1_577_836_800_000_000);
    /// 2101-01-01T00:00:00Z. Every expiry is earlier.
    pub const EXPIRY_END: Self = Self(4_133_980_800_000_000);

    /// The time `micros` microseconds after the Unix epoch.
    pub const fn from_micros_since_unix_epoch(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    pub const fn micros_since_unix_epoch(self) -> u64 {
        self.0
    }

    /// Milliseconds since the Unix epoch, rounded down.
    pub const fn millis_since_unix_epoch(self) -> u64 {
        self.0 / 1_000
    }

    /// The time since `earlier`; zero if `earlier` is later.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// This time plus `micros` microseconds, or the greatest time if the sum overflows.
    pub const fn saturating_add_micros(self, micros: u64) -> Self {
        Self(self.0.saturating_add(micros))
    }

    /// This time plus `duration`, or the greatest time if the sum overflows.
    pub fn saturating_add(self, duration: Duration) -> Self {
        self.saturating_add_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }

    /// This time minus `duration`, or the Unix epoch if the result would precede it.
    pub fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// A reading of both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Now {
    /// Monotonic time, for durations and deadlines.
    pub mono: Instant,
    /// Wall time, for versions and expiries.
    pub wall: WallTime,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_times_are_apart_in_one_direction_only() {
        let (earlier, later) = (WallTime(1_999), WallTime(3_001));
        assert_eq!(later.saturating_since(earlier), Duration::from_micros(1_002));
        assert_eq!(earlier.saturating_since(later), Duration::ZERO);
        assert_eq!([earlier, later].map(WallTime::millis_since_unix_epoch), [1, 3]);
    }
}
