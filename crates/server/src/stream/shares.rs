//! How many pipelined requests of one connection are answered before it is another's turn.
//!
//! **Promise.** A connection that asks for one thing at a time gets as many turns as those that send without waiting,
//! and in each turn they get no more than it. Where all send without waiting, they take long turns, which saves calls
//! to the system. Who has been sent much, as a range, then lets the turns pass that it was worth.
//!
//! **Mechanism.** The turns of a thread are counted by whose they are, those too whose last request has to wait. When
//! there were turns of both kinds of clients lately, they become short, and stay so for as long as it may take a client
//! that waits to come again: many of the others' short turns fit into that.

use std::cell::Cell;

/// Requests answered in a long turn, at most.
pub(super) const LONG: usize = 64;
/// The same in a short one.
pub(super) const SHORT: usize = 1;
/// Turns that are lately, while they are long.
pub(super) const LONG_TURNS: u32 = 256;
/// The same while they are short: some tenths of a second.
pub(super) const SHORT_TURNS: u32 = 64 << 10;

/// The turns of the connections of a thread.
#[derive(Debug)]
pub(crate) struct Shares {
    batch_max: Cell<usize>,
    /// Turns of those that send without waiting, and of those that wait.
    greedy: Cell<u32>,
    modest: Cell<u32>,
}

impl Default for Shares {
    fn default() -> Self {
        Self { batch_max: Cell::new(LONG), greedy: Cell::new(0), modest: Cell::new(0) }
    }
}

impl Shares {
    /// How many requests the next turn may take.
    pub(super) fn batch_max(&self) -> usize {
        self.batch_max.get()
    }

    /// Whether turns are short: there are clients of both kinds.
    pub(crate) fn has_short_batches(&self) -> bool {
        self.batch_max.get() == SHORT
    }

    /// A turn in which something was taken in has ended: of a client that sends without waiting, or of one that waits.
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

    /// Counts anew, with turns of up to `batch_max` requests.
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
    fn turns_are_short_while_some_ask_for_one_thing_at_a_time_and_others_do_not() {
        let shares = Shares::default();
        let batches = |greedy: usize, modest: usize| {
            (0..greedy).for_each(|_| shares.count(true));
            (0..modest).for_each(|_| shares.count(false));
            shares.batch_max()
        };
        let (long, short) = (LONG_TURNS as usize, SHORT_TURNS as usize);
        assert_eq!(batches(long - 1, 0), LONG);
        assert_eq!(batches(1, 0), LONG, "all that counts begins anew");
        assert_eq!(batches(0, long), LONG);
        assert_eq!(batches(1, 1), SHORT);
        assert_eq!(batches(short - 1, 1), SHORT, "one that comes seldom is not forgotten");
        assert_eq!(batches(short - 1, 0), SHORT);
        assert_eq!(batches(1, 0), LONG, "the others have gone");
    }
}
