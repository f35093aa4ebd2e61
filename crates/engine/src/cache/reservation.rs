//! Division of the budget between pinned blocks and blocks that may be evicted.
//!
//! Pinned blocks may use half of the budget. Space for them is reserved in steps of 1/32 of the
//! budget, and released only when more than 1/8 of the budget is reserved but unused. Each change
//! of the cache's capacity locks every shard and truncates quick_cache's history of evicted blocks,
//! so changes should be rare.

/// Number of reservation steps in the budget.
const STEPS: u64 = 32;
/// Maximum number of steps for pinned blocks.
const PINNED_STEPS_MAX: u64 = STEPS / 2;
/// Number of unused steps beyond which they are released.
const IDLE_STEPS_MAX: u64 = STEPS / 8;

/// Bytes that are pinned, and bytes reserved for pinning.
#[derive(Debug)]
pub(super) struct PinReservation {
    step_bytes: u64,
    pinned_bytes: u64,
    reserved_bytes: u64,
}

impl PinReservation {
    pub(super) fn of(budget_bytes: u64) -> Self {
        Self { step_bytes: budget_bytes / STEPS, pinned_bytes: 0, reserved_bytes: 0 }
    }

    /// Pinned bytes. Never more than the reserved bytes.
    pub(super) fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes
    }

    /// Reserved bytes. Never more than half of the budget.
    pub(super) fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    /// Bytes that could be pinned in addition.
    pub(super) fn pinnable_bytes(&self) -> u64 {
        PINNED_STEPS_MAX * self.step_bytes - self.pinned_bytes
    }

    /// Counts `bytes` as pinned if the limit permits it. Returns whether it does.
    pub(super) fn reserve(&mut self, bytes: u64) -> bool {
        if bytes > self.pinnable_bytes() {
            return false;
        }
        self.pinned_bytes += bytes;
        self.reserved_bytes = self.reserved_bytes.max(self.pinned_in_steps());
        true
    }

    /// Stops counting `bytes` as pinned.
    pub(super) fn release(&mut self, bytes: u64) {
        self.pinned_bytes = self.pinned_bytes.checked_sub(bytes).expect("only reserved bytes are released");
        if self.reserved_bytes - self.pinned_bytes > IDLE_STEPS_MAX * self.step_bytes {
            self.reserved_bytes = self.pinned_in_steps();
        }
    }

    /// Pinned bytes, rounded up to whole steps.
    fn pinned_in_steps(&self) -> u64 {
        self.pinned_bytes.next_multiple_of(self.step_bytes.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pinned_bytes_are_reserved_and_at_most_half_of_the_budget(
            budget in 0u64..10_000,
            blocks in prop::collection::vec((1u64..500, any::<bool>()), 0..200),
        ) {
            let mut reservation = PinReservation::of(budget);
            let mut held = Vec::new();
            for (bytes, drops) in blocks {
                if reservation.reserve(bytes) {
                    held.push(bytes);
                } else {
                    prop_assert!(held.iter().sum::<u64>() + bytes > budget / STEPS * PINNED_STEPS_MAX);
                }
                if drops {
                    held.pop().into_iter().for_each(|bytes| reservation.release(bytes));
                }
                prop_assert_eq!(reservation.pinned_bytes(), held.iter().sum::<u64>());
                prop_assert!(reservation.pinned_bytes() <= reservation.reserved_bytes());
                prop_assert!(reservation.reserved_bytes() <= budget / 2);
                let idle = reservation.reserved_bytes() - reservation.pinned_bytes();
                prop_assert!(idle <= budget / STEPS * IDLE_STEPS_MAX + reservation.step_bytes);
            }
        }
    }

    #[test]
    fn small_changes_do_not_change_the_reservation() {
        let mut reservation = PinReservation::of(3_200);
        assert!(reservation.reserve(500));
        for _ in 0..10 {
            assert!(reservation.reserve(300));
            assert_eq!(reservation.reserved_bytes(), 800);
            reservation.release(300);
        }
        reservation.release(500);
        assert_eq!(reservation.reserved_bytes(), 0);
    }
}
