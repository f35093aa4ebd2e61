//! Counts the hints that a process holds for each node. All state machines of the process share it.
//!
//! **Promise.** The count is never less than the number of hints kept since the last recount, so a
//! bound on the count also bounds the hints on disk. A count is 0 only if there are no hints. The
//! bound also holds for threads that keep hints at the same time.
//!
//! **Mechanism.** The bytes of a hint are added to the total first, if they fit, and then to the
//! entry of its target. They are subtracted in the reverse order, so the total is never less than
//! the sum of the entries.
//!
//! **Caveats.** A newer hint for the same key and node replaces the older one, but both are counted
//! until the next recount.

use crate::{Key, NODES_MAX, NodeIndex};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of hints by target node, bounded in bytes.
#[derive(Debug)]
pub struct HintLedger {
    entries: Vec<Entry>,
    /// Bytes of all entries.
    bytes: AtomicU64,
    bytes_max: u64,
}

#[derive(Debug, Default)]
struct Entry {
    hints: AtomicU64,
    bytes: AtomicU64,
    dropped: AtomicU64,
}

/// The hints held for one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HintCount {
    /// Number of hints.
    pub hints: u64,
    /// Bytes that the hints occupy.
    pub bytes: u64,
}

/// Size with which a hint for `key` is counted, in bytes: about its size in the log and in tables.
pub fn hint_bytes(key: &Key) -> u64 {
    const OVERHEAD: u64 = 48;
    key.as_bytes().len() as u64 + OVERHEAD
}

impl HintLedger {
    /// Creates an empty ledger that allows hints of `bytes_max` bytes in total.
    pub fn new(bytes_max: u64) -> Self {
        Self {
            entries: (0..NODES_MAX).map(|_| Entry::default()).collect(),
            bytes: AtomicU64::new(0),
            bytes_max,
        }
    }

    /// Counts a hint that is about to be kept for `target`. Returns `false` if it does not fit: it
    /// is then counted as dropped and must not be kept.
    pub fn try_keep(&self, target: NodeIndex, bytes: u64) -> bool {
        let entry = &self.entries[target.as_usize()];
        let with_hint = |held: u64| Some(held.saturating_add(bytes)).filter(|sum| *sum <= self.bytes_max);
        if self.bytes.fetch_update(Ordering::AcqRel, Ordering::Relaxed, with_hint).is_err() {
            entry.dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        entry.hints.fetch_add(1, Ordering::Relaxed);
        entry.bytes.fetch_add(bytes, Ordering::AcqRel);
        true
    }

    /// Counts hints for `target` as dropped that were never kept, or kept too long.
    pub fn count_dropped(&self, target: NodeIndex, hints: u64) {
        self.entries[target.as_usize()].dropped.fetch_add(hints, Ordering::Relaxed);
    }

    /// Subtracts hints that were removed.
    pub fn remove(&self, target: NodeIndex, gone: HintCount) {
        self.replace(target, gone, HintCount::default());
    }

    /// Replaces the count at the beginning of a recount by its result. Hints kept since then stay
    /// counted.
    pub fn recount(&self, target: NodeIndex, at_begin: HintCount, counted: HintCount) {
        self.replace(target, at_begin, counted);
    }

    /// The hints held for `target`.
    pub fn held(&self, target: NodeIndex) -> HintCount {
        let entry = &self.entries[target.as_usize()];
        HintCount { hints: entry.hints.load(Ordering::Relaxed), bytes: entry.bytes.load(Ordering::Relaxed) }
    }

    /// Hints for `target` dropped since the start of the process.
    pub fn dropped(&self, target: NodeIndex) -> u64 {
        self.entries[target.as_usize()].dropped.load(Ordering::Relaxed)
    }

    /// Bytes that all hints occupy.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Replaces a part of the count for `target`, and updates the total by the difference.
    fn replace(&self, target: NodeIndex, old: HintCount, new: HintCount) {
        let entry = &self.entries[target.as_usize()];
        let replaced = |count: u64, old: u64, new: u64| count.saturating_sub(old).saturating_add(new);
        let _ = entry.hints.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |hints| {
            Some(replaced(hints, old.hints, new.hints))
        });
        if new.bytes > 0 {
            // Added to the total before the entry is changed.
            self.bytes.fetch_add(new.bytes, Ordering::AcqRel);
        }
        let before = entry.bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, |bytes| {
            Some(replaced(bytes, old.bytes, new.bytes))
        });
        let gone = before.map_or(0, |bytes| bytes.min(old.bytes));
        self.bytes.fetch_sub(gone, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: NodeIndex = NodeIndex(2);

    #[test]
    fn past_the_bound_hints_are_dropped_and_counted() {
        let ledger = HintLedger::new(100);
        assert!(ledger.try_keep(TARGET, 60));
        assert!(!ledger.try_keep(NodeIndex(0), 41));
        assert!(ledger.try_keep(NodeIndex(0), 40));
        assert_eq!((ledger.dropped(NodeIndex(0)), ledger.dropped(TARGET)), (1, 0));
        ledger.remove(TARGET, HintCount { hints: 1, bytes: 60 });
        assert_eq!(ledger.held(TARGET), HintCount::default());
        assert_eq!(ledger.bytes(), 40);
    }

    #[test]
    fn a_recount_keeps_hints_added_meanwhile() {
        let ledger = HintLedger::new(1_000);
        (0..3).for_each(|_| assert!(ledger.try_keep(TARGET, 10)));
        let at_begin = ledger.held(TARGET);
        assert!(ledger.try_keep(TARGET, 10));
        ledger.recount(TARGET, at_begin, HintCount { hints: 1, bytes: 10 });
        assert_eq!(ledger.held(TARGET), HintCount { hints: 2, bytes: 20 });
    }

    #[test]
    fn the_total_is_the_sum_of_the_entries() {
        let ledger = HintLedger::new(100);
        let sum = || (0..NODES_MAX as u8).map(|target| ledger.held(NodeIndex(target)).bytes).sum::<u64>();
        assert!(ledger.try_keep(TARGET, 40) && ledger.try_keep(NodeIndex(0), 30));
        let count = |bytes| HintCount { hints: 1, bytes };
        for (old, new, total) in [(10, 0, 60), (0, 90, 150), (500, 5, 35), (7, 7, 37)] {
            ledger.recount(TARGET, count(old), count(new));
            assert_eq!((ledger.bytes(), sum()), (total, total));
        }
        ledger.remove(TARGET, count(500));
        ledger.remove(NodeIndex(0), count(31));
        assert_eq!((ledger.bytes(), sum()), (0, 0));
    }

    /// Each round leaves space for one hint, which several threads want.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "the claim is about threads")]
    fn threads_that_keep_hints_at_once_do_not_exceed_the_bound() {
        const THREADS: u8 = 4;
        const ROUNDS: usize = 2_000;
        let ledgers: Vec<_> = (0..ROUNDS).map(|_| HintLedger::new(10)).collect();
        let begun = AtomicU64::new(0);
        let keep = |target: NodeIndex| {
            for (round, ledger) in (1..).zip(&ledgers) {
                begun.fetch_add(1, Ordering::SeqCst);
                while begun.load(Ordering::SeqCst) < round * u64::from(THREADS) {
                    std::thread::yield_now();
                }
                ledger.try_keep(target, 10);
            }
        };
        std::thread::scope(|scope| {
            for target in (0..THREADS).map(NodeIndex) {
                let keep = &keep;
                scope.spawn(move || keep(target));
            }
        });
        for ledger in &ledgers {
            let held = (0..THREADS).map(|target| ledger.held(NodeIndex(target)).hints);
            let dropped = (0..THREADS).map(|target| ledger.dropped(NodeIndex(target)));
            assert_eq!((held.sum(), dropped.sum(), ledger.bytes()), (1, u64::from(THREADS) - 1, 10));
        }
    }
}
