//! When a profile ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The end of a profile, whichever comes first.
#[derive(Clone, Copy)]
pub(crate) struct StopCondition<'a> {
    pub(crate) span: Duration,
    pub(crate) cancelled: &'a AtomicBool,
}

/// Does something now, every so often, and at the end.
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
