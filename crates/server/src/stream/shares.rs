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
pub(super) const LONG_BATCH: usize = 64;
/// Most requests in a short batch.
pub(super) const SHORT_BATCH: usize = 1;
/// Length of the observation window in batches, while batches are long.
pub(super) const LONG_WINDOW: u32 = 256;
/// Length of the observation window in batches, while they are short: some tenths of a second.
pub(super) const SHORT_WINDOW: u32 = 64 << 10;

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
        Self { batch_max: Cell::new(LONG_BATCH), greedy: Cell::new(0), modest: Cell::new(0) }
    }
}

impl Shares {
    /// Most requests in the next batch.
    pub(super) fn batch_max(&self) -> usize {
        self.batch_max.get()
    }

    /// Whether batches are short, because there are clients of both kinds.
    pub(crate) fn has_short_batches(&self) -> bool {
        self.batch_max.get() == SHORT_BATCH
    }

    /// Counts a batch in which at least one request was taken, by the kind of its client.
    pub(super) fn count(&self, is_greedy: bool) {
        let count = if is_greedy { &self.greedy } else { &self.modest };
        count.set(count.get() + 1);
        let (batches, has_both) =
            (self.greedy.get() + self.modest.get(), self.greedy.get() > 0 && self.modest.get() > 0);
        let is_long = self.batch_max.get() == LONG_BATCH;
        if is_long && has_both {
            self.start_window(SHORT_BATCH);
        } else if is_long && batches >= LONG_WINDOW {
            self.start_window(LONG_BATCH);
        } else if !is_long && batches >= SHORT_WINDOW {
            self.start_window(if has_both { SHORT_BATCH } else { LONG_BATCH });
        }
    }

    /// Starts a new window, with batches of up to `batch_max` requests.
    fn start_window(&self, batch_max: usize) {
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
        let (long, short) = (LONG_WINDOW as usize, SHORT_WINDOW as usize);
        assert_eq!(batches(long - 1, 0), LONG_BATCH);
        assert_eq!(batches(1, 0), LONG_BATCH, "a new window has begun");
        assert_eq!(batches(0, long), LONG_BATCH);
        assert_eq!(batches(1, 1), SHORT_BATCH);
        assert_eq!(batches(short - 1, 1), SHORT_BATCH, "a client that sends rarely still counts");
        assert_eq!(batches(short - 1, 0), SHORT_BATCH);
        assert_eq!(batches(1, 0), LONG_BATCH, "the clients of the other kind are gone");
    }
}
