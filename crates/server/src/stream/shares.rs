//! How many pipelined requests of one connection are answered before it is another's turn.
//!
//! **Promise.** A connection that asks for one thing at a time gets as many turns as those that send without waiting,
//! and in each turn they get no more than it. Where all send without waiting, they take long turns, which saves calls
//! to the system.
//!
//! **Mechanism.** The turns of a thread are counted by whose they are, those too whose last request has to wait. While
//! there were turns of both kinds of clients lately, they are short.

use std::cell::Cell;

/// Requests answered in a long turn, at most.
pub(super) const LONG: usize = 64;
/// The same in a short one.
pub(super) const SHORT: usize = 1;
/// Turns after which it is decided anew.
pub(super) const TURNS: u32 = 256;

/// The turns of the connections of a thread.
#[derive(Debug)]
pub(crate) struct Shares {
    most: Cell<usize>,
    /// Turns of those that send without waiting, and of those that wait.
    greedy: Cell<u32>,
    modest: Cell<u32>,
}

impl Default for Shares {
    fn default() -> Self {
        Self { most: Cell::new(LONG), greedy: Cell::new(0), modest: Cell::new(0) }
    }
}

impl Shares {
    /// How many requests the next turn may take.
    pub(super) fn most(&self) -> usize {
        self.most.get()
    }

    /// A turn in which something was taken in has ended: of a client that sends without waiting, or of one that waits.
    pub(super) fn count(&self, is_greedy: bool) {
        let count = if is_greedy { &self.greedy } else { &self.modest };
        count.set(count.get() + 1);
        if self.greedy.get() + self.modest.get() >= TURNS {
            let has_both = self.greedy.get() > 0 && self.modest.get() > 0;
            self.most.set(if has_both { SHORT } else { LONG });
            self.greedy.set(0);
            self.modest.set(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_short_while_some_ask_for_one_thing_at_a_time_and_others_do_not() {
        let shares = Shares::default();
        let turns = |greedy: usize, modest: usize| {
            (0..greedy).for_each(|_| shares.count(true));
            (0..modest).for_each(|_| shares.count(false));
            shares.most()
        };
        assert_eq!(turns(256, 0), LONG);
        assert_eq!(turns(0, 256), LONG);
        assert_eq!(turns(252, 4), SHORT);
        assert_eq!(turns(256, 0), LONG, "the others have gone");
    }
}
