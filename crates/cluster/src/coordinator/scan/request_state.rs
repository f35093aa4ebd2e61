//! How far a request of a scan has come.
//!
//! A store that has too much to do is asked again after a pause; from its first attempt on, a request has its time.

use std::time::Duration;
use stdx::Instant;

/// Who has too much to do is asked again after this.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) enum RequestState {
    /// Nothing is asked for.
    Idle,
    /// It was asked.
    InFlight { serial: u64, since: Instant },
    /// It had too much to do, and is to be asked again.
    Paused { until: Instant, since: Instant },
}

impl RequestState {
    /// Whether it is the answer of this number that is waited for.
    pub(super) fn awaits(self, number: u64) -> bool {
        matches!(self, Self::InFlight { serial, .. } if serial == number)
    }

    /// Since when an answer is waited for.
    pub(super) const fn since(self) -> Option<Instant> {
        match self {
            Self::Idle => None,
            Self::InFlight { since, .. } | Self::Paused { since, .. } => Some(since),
        }
    }

    /// Whether it is time to ask.
    pub(super) fn is_due(self, now: Instant) -> bool {
        match self {
            Self::Idle => true,
            Self::InFlight { .. } => false,
            Self::Paused { until, .. } => until <= now,
        }
    }

    /// Until when the pause lasts, if it is one.
    pub(super) const fn paused_until(self) -> Option<Instant> {
        match self {
            Self::Paused { until, .. } => Some(until),
            Self::Idle | Self::InFlight { .. } => None,
        }
    }

    /// It is asked, for the first time or again.
    pub(super) fn begin(&mut self, now: Instant, serial: u64) {
        *self = Self::InFlight { serial, since: self.since().unwrap_or(now) };
    }

    /// It is to be asked later.
    pub(super) fn pause(&mut self, now: Instant) {
        *self = Self::Paused { until: now + PAUSE, since: self.since().unwrap_or(now) };
    }
}
