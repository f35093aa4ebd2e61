//! Connections that the process could not accept, mostly for lack of file descriptors.
//!
//! The shares of descriptors fit into the limit of open files (`FileShares`). A failure therefore
//! means that another part of the process, or of the machine, has used them up.

use crate::counters::Counter;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stdx::Instant;

/// A failure is reported in the status for this time, and logged at most once in it.
const RECENT: Duration = Duration::from_secs(60);

/// The failures of a process.
#[derive(Debug, Default)]
pub(crate) struct AcceptFailures {
    count: Counter,
    /// Time of the last failure in nanoseconds of the monotonic clock; 0: none.
    last_nanos: AtomicU64,
    /// Time of the last failure that was logged, in the same unit.
    logged_nanos: AtomicU64,
}

impl AcceptFailures {
    /// Counts a failure at `now`. Returns whether the caller is to log it.
    pub(crate) fn note(&self, now: Instant) -> bool {
        self.count.count();
        let now_nanos = now.as_nanos().max(1);
        self.last_nanos.store(now_nanos, Ordering::Relaxed);
        let is_logged = is_recent(self.logged_nanos.load(Ordering::Relaxed), now_nanos);
        if !is_logged {
            self.logged_nanos.store(now_nanos, Ordering::Relaxed);
        }
        !is_logged
    }

    /// Number of failures since the start.
    pub(crate) fn count(&self) -> u64 {
        self.count.get()
    }

    /// Whether the last failure was recent.
    pub(crate) fn is_recent(&self, now: Instant) -> bool {
        is_recent(self.last_nanos.load(Ordering::Relaxed), now.as_nanos())
    }
}

fn is_recent(last_nanos: u64, now_nanos: u64) -> bool {
    last_nanos > 0 && Duration::from_nanos(now_nanos.saturating_sub(last_nanos)) < RECENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_logged_once_a_minute_and_reported_for_one() {
        let failures = AcceptFailures::default();
        let at = |secs: u64| Instant::from_nanos(secs * 1_000_000_000);
        assert!(!failures.is_recent(at(0)));
        assert!(failures.note(at(100)) && !failures.note(at(130)));
        assert!(failures.is_recent(at(189)) && !failures.is_recent(at(190)));
        assert!(failures.note(at(160)));
        assert_eq!(failures.count(), 3);
    }
}
