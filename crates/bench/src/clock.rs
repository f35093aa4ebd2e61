//! The generator's clock: nanoseconds since its run began.

use std::time::Duration;
use stdx::Instant;

/// A monotonic clock that all threads of a run share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunClock {
    origin: std::time::Instant,
}

impl RunClock {
    /// A clock that shows zero now.
    pub(crate) fn start() -> Self {
        Self { origin: std::time::Instant::now() }
    }

    /// Time since the start.
    pub(crate) fn now(self) -> Instant {
        Instant::ZERO + self.origin.elapsed()
    }
}

/// The time from `now` to `then`; zero when that has passed.
pub(crate) fn until(now: Instant, then: Instant) -> Duration {
    then.saturating_since(now)
}
