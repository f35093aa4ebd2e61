//! Periodic work until a deadline or a cancellation.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Condition that ends a profile: the time has passed, or it was cancelled.
#[derive(Clone, Copy)]
pub(crate) struct StopCondition<'a> {
    pub(crate) span: Duration,
    pub(crate) cancelled: &'a AtomicBool,
}

/// Calls `step` now, after each interval of `every`, and once more at the end.
pub(crate) fn run_periodically(every: Duration, until: StopCondition<'_>, mut step: impl FnMut()) {
    let begun = Instant::now();
    while !until.cancelled.load(Ordering::Relaxed) {
        step();
        let left = until.span.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(every));
    }
    step();
}
