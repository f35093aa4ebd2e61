//! The writes that the local store has not answered: its own, and those that peers asked for.
//!
//! What each of them holds is taken back in the order in which they came. The store answers nearly in that order, so the
//! bytes under way are nearly right, and right again whenever nothing is under way.

use crate::DelayEstimator;
use std::collections::VecDeque;
use std::time::Duration;
use stdx::Instant;

/// See the module.
#[derive(Debug)]
pub(crate) struct LocalWrites {
    delay: DelayEstimator,
    sizes: VecDeque<usize>,
}

impl LocalWrites {
    /// None.
    pub(crate) const fn new() -> Self {
        Self { delay: DelayEstimator::batched(), sizes: VecDeque::new() }
    }

    /// The store is asked to write so many bytes.
    pub(crate) fn begin(&mut self, now: Instant, bytes: usize) {
        self.delay.begin(now, bytes);
        self.sizes.push_back(bytes);
    }

    /// The store has answered.
    ///
    /// # Panics
    /// When it was not asked.
    pub(crate) fn end(&mut self, now: Instant) {
        let bytes = self.sizes.pop_front().expect("the store answers each write once");
        self.delay.end(now, bytes);
    }

    /// Whether one more would wait no longer than `within`, as far as is known.
    pub(crate) fn admits(&self, within: Duration) -> bool {
        self.delay.admits(within)
    }

    /// How many more would wait no longer than `within`.
    pub(crate) fn capacity(&self, within: Duration, share: u64) -> usize {
        self.delay.capacity(within, share)
    }

    /// How long those under way will take.
    pub(crate) fn drain_time(&self) -> Duration {
        self.delay.drain_time()
    }

    /// Time has passed.
    pub(crate) fn advance(&mut self, now: Instant) {
        self.delay.advance(now);
    }
}
