//! Hedged reads: when an answer to a read is overdue, one more replica is asked.
//!
//! **Promise.** At most one read in twenty is hedged in the long run, so that a cluster that is
//! slow as a whole is not asked twice for everything. A read that has its answers, and lacks only
//! the cell from one that holds it, is not counted: it does not wait for a slow replica.
//!
//! **Mechanism.** A read is checked again when the slowest of the replicas that it asked is past
//! its 95th percentile. Waiting times are rounded up to one of eight values, each with a first-in,
//! first-out queue of its own, so this takes constant time. Reads that have ended meanwhile are
//! skipped. (Dean and Barroso, "The tail at scale", 2013, on hedged requests.)

use super::latency::{OVERDUE_MAX, OVERDUE_MIN};
use super::request_number::OperationId;
use std::collections::VecDeque;
use std::time::Duration;
use stdx::{Instant, Rng};

/// The waiting times, in milliseconds.
const WAITS_MS: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 100];
/// Reads that pay for one hedged read.
const READS_FOR_ONE_HEDGE: u32 = 20;
/// Greatest number of saved hedges.
const HEDGES_SAVED_MAX: u32 = 16;

/// The hedging of the reads of a coordinator.
#[derive(Debug)]
pub(super) struct Hedges {
    pub(super) queue: HedgeQueue,
    pub(super) budget: HedgeBudget,
    /// One read in this number asks all replicas at once; 0: no read does.
    reads_for_one_of_all: u32,
}

/// Reads to check again, in the order of due times.
#[derive(Debug)]
pub(super) struct HedgeQueue {
    queues: [VecDeque<(Instant, OperationId)>; WAITS_MS.len()],
    len_max: usize,
}

/// Token bucket of hedged reads.
#[derive(Debug)]
pub(super) struct HedgeBudget {
    saved: u32,
}

impl Hedges {
    /// Creates the hedging of a coordinator of at most `operations_max` reads at once.
    pub(super) fn new(operations_max: u16, reads_for_one_of_all: u32) -> Self {
        let (queue, budget) = (HedgeQueue::new(operations_max), HedgeBudget::new());
        Self { queue, budget, reads_for_one_of_all }
    }

    /// Whether the next read asks all replicas.
    pub(super) fn asks_all(&self, rng: &mut Rng) -> bool {
        let one_in = self.reads_for_one_of_all;
        one_in > 0 && rng.below(u64::from(one_in)) == 0
    }
}

impl HedgeQueue {
    /// Creates a queue of at most `len_max` reads per waiting time. Further reads are not watched.
    pub(super) fn new(len_max: u16) -> Self {
        let (least, greatest) = (WAITS_MS[0], WAITS_MS[WAITS_MS.len() - 1]);
        assert!(
            OVERDUE_MIN.as_millis() == u128::from(least) && OVERDUE_MAX.as_millis() == u128::from(greatest)
        );
        Self { queues: Default::default(), len_max: usize::from(len_max) }
    }

    /// Schedules a check of this read after `wait`, or somewhat later; returns the time.
    #[inline]
    pub(super) fn watch(&mut self, now: Instant, wait: Duration, id: OperationId) -> Instant {
        let class = WAITS_MS.partition_point(|&millis| Duration::from_millis(millis) < wait);
        let class = class.min(WAITS_MS.len() - 1);
        let queue = &mut self.queues[class];
        let at = now + Duration::from_millis(WAITS_MS[class]);
        if queue.len() < self.len_max {
            queue.push_back((at, id));
        }
        at
    }

    /// Takes out a read that is due.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<OperationId> {
        let queue = self.queues.iter_mut().find(|queue| queue.front().is_some_and(|&(at, _)| at <= now))?;
        queue.pop_front().map(|(_, id)| id)
    }

    /// Removes the next due reads that no longer wait.
    #[inline]
    pub(super) fn forget(&mut self, waits: impl Fn(OperationId) -> bool) {
        for queue in &mut self.queues {
            while queue.front().is_some_and(|&(_, id)| !waits(id)) {
                queue.pop_front();
            }
        }
    }

    /// Time of the next due read.
    #[inline]
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.queues.iter().filter_map(|queue| queue.front()).map(|&(at, _)| at).min()
    }
}

impl HedgeBudget {
    pub(super) const fn new() -> Self {
        Self { saved: HEDGES_SAVED_MAX * READS_FOR_ONE_HEDGE }
    }

    /// Counts a read.
    #[inline]
    pub(super) fn earn(&mut self) {
        self.saved = (self.saved + 1).min(HEDGES_SAVED_MAX * READS_FOR_ONE_HEDGE);
    }

    /// Whether a hedge is left.
    pub(super) const fn has_one(&self) -> bool {
        self.saved >= READS_FOR_ONE_HEDGE
    }

    /// Takes a hedge.
    ///
    /// # Panics
    /// If none is left.
    pub(super) const fn spend(&mut self) {
        assert!(self.has_one());
        self.saved -= READS_FOR_ONE_HEDGE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_read_in_twenty_is_hedged() {
        let mut budget = HedgeBudget::new();
        let hedged = (0..10_000).filter(|_| {
            budget.earn();
            let has_one = budget.has_one();
            if has_one {
                budget.spend();
            }
            has_one
        });
        let hedged = hedged.count();
        assert!((500..=500 + HEDGES_SAVED_MAX as usize).contains(&hedged), "{hedged}");
    }

    #[test]
    fn reads_are_due_in_order_and_ended_reads_are_skipped() {
        let id = |slot| OperationId { uses: 0, slot };
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let mut late = HedgeQueue::new(2);
        assert_eq!(late.watch(at(0), Duration::from_millis(60), id(0)), at(64));
        late.watch(at(1), Duration::from_micros(1), id(1));
        late.watch(at(2), Duration::from_millis(3), id(2));
        late.watch(at(2), Duration::from_secs(3), id(3));
        assert_eq!(late.next_due(), Some(at(2)));
        late.forget(|id| id.slot != 1);
        assert_eq!((late.next_due(), late.take_due(at(5))), (Some(at(6)), None));
        assert_eq!(late.take_due(at(6)), Some(id(2)));
        assert_eq!((late.take_due(at(64)), late.next_due()), (Some(id(0)), Some(at(102))));
        for slot in 0..3 {
            late.watch(at(200), OVERDUE_MIN, id(slot));
        }
        late.forget(|id| id.slot != 3);
        assert_eq!([0; 3].map(|_| late.take_due(at(300))), [Some(id(0)), Some(id(1)), None], "bounded");
    }
}
