//! Time limits of work.

use std::time::Duration;
use stdx::Instant;

/// The time after which the result of some work is not needed. Work that was not begun by then is
/// dropped. A later deadline is greater, and [`Deadline::NEVER`] is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// No time limit.
    pub const NEVER: Self = Self(Instant::from_nanos(u64::MAX));

    /// The deadline at this time.
    pub const fn at(time: Instant) -> Self {
        Self(time)
    }

    /// The deadline `timeout` after `now`; without one, never.
    pub fn after(now: Instant, timeout: Option<Duration>) -> Self {
        timeout.map_or(Self::NEVER, |timeout| Self(now + timeout))
    }

    /// Whether the deadline has passed.
    pub fn has_passed(self, now: Instant) -> bool {
        self != Self::NEVER && self.0 <= now
    }

    /// The time that is left, 0 if the deadline has passed; `None` without a time limit.
    pub fn remaining(self, now: Instant) -> Option<Duration> {
        (self != Self::NEVER).then(|| self.0.saturating_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_passes_at_its_time_and_never_does_not() {
        let at = |nanos| Instant::from_nanos(nanos);
        let deadline = Deadline::after(at(10), Some(Duration::from_nanos(5)));
        assert_eq!(
            (deadline.remaining(at(12)), deadline.remaining(at(20))),
            (Some(Duration::from_nanos(3)), Some(Duration::ZERO))
        );
        assert!(!deadline.has_passed(at(14)) && deadline.has_passed(at(15)));
        assert_eq!(deadline, Deadline::at(at(15)));
        assert_eq!(
            (Deadline::after(at(10), None), Deadline::NEVER.remaining(at(1))),
            (Deadline::NEVER, None)
        );
        assert!(
            !Deadline::NEVER.has_passed(at(u64::MAX)) && deadline.max(Deadline::NEVER) == Deadline::NEVER
        );
    }
}
