//! How the budget is divided between blocks that are held for good and blocks that may be evicted.
//!
//! Held blocks may take half of the budget. What they take is set aside in steps of a thirty-second, and only
//! handed back when more than an eighth lies idle: each change of the rest's capacity locks every shard, and
//! rounds down what quick_cache remembers of evicted blocks, so changes should be few.

/// Bytes are set aside in so many parts of the budget.
const STEPS: u64 = 32;
/// Held blocks take no more than this many steps.
const HELD_STEPS_MAX: u64 = STEPS / 2;
/// More idle steps than this are handed back.
const IDLE_STEPS_MAX: u64 = STEPS / 8;

/// What is held, and what is set aside for it.
#[derive(Debug)]
pub(super) struct Reservation {
    step_bytes: u64,
    held_bytes: u64,
    reserved_bytes: u64,
}

impl Reservation {
    pub(super) fn of(budget_bytes: u64) -> Self {
        Self { step_bytes: budget_bytes / STEPS, held_bytes: 0, reserved_bytes: 0 }
    }

    /// What is held. Never more than what is reserved.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// What is set aside. Never more than half of the budget.
    pub(super) fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    /// What could be held beside what is.
    pub(super) fn memtable_space_bytes(&self) -> u64 {
        HELD_STEPS_MAX * self.step_bytes - self.held_bytes
    }

    /// Counts `bytes` as held, if there is room.
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        if bytes > self.memtable_space_bytes() {
            return false;
        }
        self.held_bytes += bytes;
        self.reserved_bytes = self.reserved_bytes.max(self.held_in_steps());
        true
    }

    /// Counts `bytes` as held no more.
    pub(super) fn give_back(&mut self, bytes: u64) {
        self.held_bytes = self.held_bytes.checked_sub(bytes).expect("only what was taken is given back");
        if self.reserved_bytes - self.held_bytes > IDLE_STEPS_MAX * self.step_bytes {
            self.reserved_bytes = self.held_in_steps();
        }
    }

    /// What is held, rounded up to steps.
    fn held_in_steps(&self) -> u64 {
        self.held_bytes.next_multiple_of(self.step_bytes.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_held_is_reserved_and_no_more_than_half(
            budget in 0u64..10_000,
            blocks in prop::collection::vec((1u64..500, any::<bool>()), 0..200),
        ) {
            let mut reservation = Reservation::of(budget);
            let mut held = Vec::new();
            for (bytes, drops) in blocks {
                if reservation.take(bytes) {
                    held.push(bytes);
                } else {
                    prop_assert!(held.iter().sum::<u64>() + bytes > budget / STEPS * HELD_STEPS_MAX);
                }
                if drops {
                    held.pop().into_iter().for_each(|bytes| reservation.give_back(bytes));
                }
                prop_assert_eq!(reservation.held_bytes(), held.iter().sum::<u64>());
                prop_assert!(reservation.held_bytes() <= reservation.reserved_bytes());
                prop_assert!(reservation.reserved_bytes() <= budget / 2);
                let idle = reservation.reserved_bytes() - reservation.held_bytes();
                prop_assert!(idle <= budget / STEPS * IDLE_STEPS_MAX + reservation.step_bytes);
            }
        }
    }

    #[test]
    fn a_small_rise_and_fall_changes_nothing() {
        let mut reservation = Reservation::of(3_200);
        assert!(reservation.take(500));
        for _ in 0..10 {
            assert!(reservation.take(300));
            assert_eq!(reservation.reserved_bytes(), 800);
            reservation.give_back(300);
        }
        reservation.give_back(500);
        assert_eq!(reservation.reserved_bytes(), 0);
    }
}
