//! The writes that the local store has not answered: its own, and those that peers asked for.
//!
//! What each of them holds is taken back in the order in which they came. The store answers nearly in that order, so the
//! bytes under way are nearly right, and right again whenever nothing is under way.

use crate::Flow;
use std::collections::VecDeque;
use std::time::Duration;
use stdx::Instant;

/// See the module.
#[derive(Debug)]
pub(crate) struct LocalWrites {
    flow: Flow,
    sizes: VecDeque<usize>,
}

impl LocalWrites {
    /// None.
    pub(crate) const fn new() -> Self {
        Self { flow: Flow::in_groups(), sizes: VecDeque::new() }
    }

    /// The store is asked to write so many bytes.
    pub(crate) fn begin(&mut self, now: Instant, bytes: usize) {
        self.flow.begin(now, bytes);
        self.sizes.push_back(bytes);
    }

    /// The store has answered.
    ///
    /// # Panics
    /// When it was not asked.
    pub(crate) fn end(&mut self, now: Instant) {
        let bytes = self.sizes.pop_front().expect("the store answers each write once");
        self.flow.end(now, bytes);
    }

    /// Whether one more would wait no longer than `within`, as far as is known.
    pub(crate) fn admits(&self, within: Duration) -> bool {
        self.flow.admits(within)
    }

    /// How many more would wait no longer than `within`.
    pub(crate) fn room(&self, within: Duration, share: u64) -> usize {
        self.flow.room(within, share)
    }

    /// How long those under way will take.
    pub(crate) fn drain(&self) -> Duration {
        self.flow.drain()
    }

    /// Time has passed.
    pub(crate) fn pass(&mut self, now: Instant) {
        self.flow.pass(now);
    }
}
