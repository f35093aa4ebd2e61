//! Schedule of dialing a peer: at once, and after failures with exponential back-off.
//!
//! The wait doubles from [`BACK_OFF_MIN`] to [`BACK_OFF_MAX`]. Random jitter makes each wait up to
//! a quarter shorter or longer. So nodes that lost each other at the same time do not all come back
//! at the same time. A sign of life of the peer ends the back-off.

use std::time::Duration;
use stdx::{Instant, Rng};

/// The wait after the first failure.
pub(crate) const BACK_OFF_MIN: Duration = Duration::from_millis(50);
/// The longest wait, before jitter.
pub(crate) const BACK_OFF_MAX: Duration = Duration::from_secs(1);

/// State of the link dialed to one peer. It decides only *when* to dial; its owner reports the
/// outcomes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DialSchedule {
    state: State,
    back_off: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The peer is not dialed before `until`.
    Down {
        until: Instant,
    },
    Dialing,
    Open,
}

impl DialSchedule {
    /// A dialer that may dial at once.
    pub(crate) const fn new() -> Self {
        Self { state: State::Down { until: Instant::ZERO }, back_off: BACK_OFF_MIN }
    }

    /// Begins to dial if that is due now, and returns whether it is.
    pub(crate) fn start(&mut self, now: Instant) -> bool {
        let is_due = matches!(self.state, State::Down { until } if until <= now);
        if is_due {
            self.state = State::Dialing;
        }
        is_due
    }

    /// The time from which [`DialSchedule::start`] returns `true`; `None` while dialing or open.
    pub(crate) const fn due(&self) -> Option<Instant> {
        match self.state {
            State::Down { until } => Some(until),
            State::Dialing | State::Open => None,
        }
    }

    /// Whether the link is open.
    pub(crate) const fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// Whether the link is being dialed.
    pub(crate) const fn is_dialing(&self) -> bool {
        matches!(self.state, State::Dialing)
    }

    /// Whether the link is neither open nor being dialed.
    pub(crate) const fn is_down(&self) -> bool {
        matches!(self.state, State::Down { .. })
    }

    /// Records that the link is open.
    pub(crate) const fn opened(&mut self) {
        *self = Self { state: State::Open, back_off: BACK_OFF_MIN };
    }

    /// Records that the link could not be opened, has ended, or was hung up.
    pub(crate) fn failed(&mut self, now: Instant, rng: &mut Rng) {
        let jitter = 0.75 + rng.unit() / 2.0;
        self.state = State::Down { until: now + self.back_off.mul_f64(jitter) };
        self.back_off = (self.back_off * 2).min(BACK_OFF_MAX);
    }

    /// Ends the back-off, because the peer has shown that it is alive.
    pub(crate) const fn end_back_off(&mut self) {
        self.back_off = BACK_OFF_MIN;
        if let State::Down { .. } = self.state {
            self.state = State::Down { until: Instant::ZERO };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_maximum_with_a_quarter_of_jitter() {
        let mut dialer = DialSchedule::new();
        let mut rng = Rng::new(1);
        let now = Instant::ZERO + Duration::from_secs(10);
        for millis in [50, 100, 200, 400, 800, 1_000, 1_000] {
            assert!(dialer.start(now) && !dialer.start(now) && dialer.due().is_none());
            dialer.failed(now, &mut rng);
            let wait = dialer.due().expect("it waits") - now;
            let expected = Duration::from_millis(millis);
            assert!(
                expected.mul_f64(0.75) <= wait && wait <= expected.mul_f64(1.25),
                "{wait:?} of {expected:?}"
            );
            assert!(!dialer.start(now));
            dialer.state = State::Down { until: now };
        }
        dialer.end_back_off();
        assert!(dialer.start(now));
        dialer.opened();
        assert!(dialer.is_open() && !dialer.start(now));
        dialer.failed(now, &mut rng);
        assert!(dialer.due().expect("it waits") < now + BACK_OFF_MIN * 2, "an open link forgets failures");
    }
}
