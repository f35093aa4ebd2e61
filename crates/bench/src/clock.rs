//! Clock of the generator: time since the start of a run.

use std::time::Duration;
use stdx::Instant;

/// Monotonic clock that all threads of a run share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunClock {
    origin: std::time::Instant,
}

impl RunClock {
    /// Creates a clock that reads zero now.
    pub(crate) fn start() -> Self {
        Self { origin: std::time::Instant::now() }
    }

    /// Time since the start.
    pub(crate) fn now(self) -> Instant {
        Instant::ZERO + self.origin.elapsed()
    }
}

/// Time from `now` to `then`; zero if `then` has passed.
pub(crate) fn until(now: Instant, then: Instant) -> Duration {
    then.saturating_since(now)
}
