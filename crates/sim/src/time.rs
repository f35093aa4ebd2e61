//! Time of the world: nanoseconds since the run began.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A moment of the run. The clocks of hosts show times derived from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Beginning of the run.
    pub const ZERO: Self = Self(0);
    /// A moment after every event.
    pub const NEVER: Self = Self(u64::MAX);
}

impl Add<Duration> for Nanos {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Nanos {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>3}.{:06}", self.0 / 1_000_000_000, self.0 / 1_000 % 1_000_000)
    }
}
