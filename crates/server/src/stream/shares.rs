//! Fair shares of the pipelined requests of a thread's connections.
//!
//! **Promise.** A connection that sends one request at a time gets as many batches as connections
//! that pipeline, and those get no more requests per batch. If all connections pipeline, their
//! batches are long, which saves system calls. A connection that received a large response, such as
//! a range, then skips as many batches as that was worth.
//!
//! **Mechanism.** The batches of a thread are counted by the kind of their client, including
//! batches whose last request has to wait. If both kinds had batches recently, batches become
//! short. They stay short for as long as a client that waits may need to send again: many short
//! batches of the pipelining clients fit into that time.

use std::cell::Cell;

/// Most requests in a long batch.
pub(super) const LONG: usize = 64;
/// Most requests in a short batch.
pub(super) const SHORT: usize = 1;
/// Length of the observation window in batches, while batches are long.
pub(super) const LONG_TURNS: u32 = 256;
/// Length of the observation window in batches, while they are short: some tenths of a second.
pub(super) const SHORT_TURNS: u32 = 64 << 10;

/// Batches of the connections of a thread.
#[derive(Debug)]
pub(crate) struct Shares {
    batch_max: Cell<usize>,
    /// Batches of clients that pipeline, and of clients that wait for each response.
    greedy: Cell<u32>,
    modest: Cell<u32>,
}

impl Default for Shares {
    fn default() -> Self {
        Self { batch_max: Cell::new(LONG), greedy: Cell::new(0), modest: Cell::new(0) }
    }
}

impl Shares {
    /// Most requests in the next batch.
    pub(super) fn batch_max(&self) -> usize {
        self.batch_max.get()
    }

    /// Whether batches are short, because there are clients of both kinds.
    pub(crate) fn has_short_batches(&self) -> bool {
        self.batch_max.get() == SHORT
    }

    /// Counts a batch in which at least one request was taken, by the kind of its client.
    pub(super) fn count(&self, is_greedy: bool) {
        let count = if is_greedy { &self.greedy } else { &self.modest };
        count.set(count.get() + 1);
        let (batches, has_both) =
            (self.greedy.get() + self.modest.get(), self.greedy.get() > 0 && self.modest.get() > 0);
        let is_long = self.batch_max.get() == LONG;
        if is_long && has_both {
            self.go_on(SHORT);
        } else if is_long && batches >= LONG_TURNS {
            self.go_on(LONG);
        } else if !is_long && batches >= SHORT_TURNS {
            self.go_on(if has_both { SHORT } else { LONG });
        }
    }

    /// Starts a new window, with batches of up to `batch_max` requests.
    fn go_on(&self, batch_max: usize) {
        self.batch_max.set(batch_max);
        self.greedy.set(0);
        self.modest.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_short_while_some_clients_pipeline_and_others_do_not() {
        let shares = Shares::default();
        let batches = |greedy: usize, modest: usize| {
            (0..greedy).for_each(|_| shares.count(true));
            (0..modest).for_each(|_| shares.count(false));
            shares.batch_max()
        };
        let (long, short) = (LONG_TURNS as usize, SHORT_TURNS as usize);
        assert_eq!(batches(long - 1, 0), LONG);
        assert_eq!(batches(1, 0), LONG, "a new window has begun");
        assert_eq!(batches(0, long), LONG);
        assert_eq!(batches(1, 1), SHORT);
        assert_eq!(batches(short - 1, 1), SHORT, "a client that sends rarely still counts");
        assert_eq!(batches(short - 1, 0), SHORT);
        assert_eq!(batches(1, 0), LONG, "the clients of the other kind are gone");
    }
}
