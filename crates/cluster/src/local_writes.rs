//! The writes that the local store has not answered: this node's own, and those requested by peers.
//!
//! Their sizes are released in the order in which the writes began. The store answers nearly in
//! that order, so the bytes in flight are nearly exact, and exact whenever nothing is in flight.

use limits::Admission;
use std::collections::VecDeque;
use std::time::Duration;
use stdx::Instant;

/// The admission to the local log, by the writes in flight.
#[derive(Debug)]
pub(crate) struct LocalWrites {
    delay: Admission,
    sizes: VecDeque<usize>,
}

impl LocalWrites {
    /// Creates the state of a store without writes in flight.
    pub(crate) const fn new() -> Self {
        Self { delay: Admission::batched(), sizes: VecDeque::new() }
    }

    /// Counts a write of `bytes` bytes that the store is asked for.
    pub(crate) fn begin(&mut self, now: Instant, bytes: usize) {
        self.delay.begin(now, bytes);
        self.sizes.push_back(bytes);
    }

    /// Counts a write that the store has answered.
    ///
    /// # Panics
    /// If no write is in flight.
    pub(crate) fn end(&mut self, now: Instant) {
        let bytes = self.sizes.pop_front().expect("the store answers each write once");
        self.delay.end(now, bytes);
    }

    /// Whether one more write is expected to wait no longer than `within`.
    pub(crate) fn admits(&self, within: Duration) -> bool {
        self.delay.admits(within)
    }

    /// Number of further writes that would wait no longer than `within`, within a `share`th of the
    /// total.
    pub(crate) fn capacity(&self, within: Duration, share: u64) -> usize {
        self.delay.capacity(within, share)
    }

    /// Expected time until the writes in flight are done.
    pub(crate) fn drain_time(&self) -> Duration {
        self.delay.drain_time()
    }

    /// Advances the measurement to `now`.
    pub(crate) fn advance(&mut self, now: Instant) {
        self.delay.advance(now);
    }
}
