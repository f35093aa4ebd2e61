//! State of a request of a scan.
//!
//! A busy store is asked again after a pause; the time limit of a request counts from its first
//! attempt. A replica that has refused the plan of the scan is asked again by a new plan only.

use std::time::Duration;
use stdx::Instant;

/// Pause before a busy store is asked again.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// State of a request of a scan.
#[derive(Clone, Copy, Debug)]
pub(super) enum RequestState {
    /// No request is pending.
    Idle,
    /// The request was sent.
    InFlight { serial: u64, since: Instant },
    /// The store was busy, and is asked again after the pause.
    Paused { until: Instant, since: Instant },
    /// The replica has refused the plan, because the layout has changed since.
    Stale { since: Instant },
}

impl RequestState {
    /// Whether the answer with this number is awaited.
    pub(super) fn awaits(self, number: u64) -> bool {
        matches!(self, Self::InFlight { serial, .. } if serial == number)
    }

    /// Start of the wait for an answer.
    pub(super) const fn since(self) -> Option<Instant> {
        match self {
            Self::Idle => None,
            Self::InFlight { since, .. } | Self::Paused { since, .. } | Self::Stale { since } => Some(since),
        }
    }

    /// Whether a request is to be sent now.
    pub(super) fn is_due(self, now: Instant) -> bool {
        match self {
            Self::Idle => true,
            Self::InFlight { .. } | Self::Stale { .. } => false,
            Self::Paused { until, .. } => until <= now,
        }
    }

    /// End of the pause, if there is one.
    pub(super) const fn paused_until(self) -> Option<Instant> {
        match self {
            Self::Paused { until, .. } => Some(until),
            Self::Idle | Self::InFlight { .. } | Self::Stale { .. } => None,
        }
    }

    /// Records that the request is sent, for the first time or again.
    pub(super) fn begin(&mut self, now: Instant, serial: u64) {
        *self = Self::InFlight { serial, since: self.since().unwrap_or(now) };
    }

    /// Records that the request waits for a new plan.
    pub(super) fn await_plan(&mut self, now: Instant) {
        *self = Self::Stale { since: self.since().unwrap_or(now) };
    }

    /// Postpones the request.
    pub(super) fn pause(&mut self, now: Instant) {
        *self = Self::Paused { until: now + PAUSE, since: self.since().unwrap_or(now) };
    }
}
