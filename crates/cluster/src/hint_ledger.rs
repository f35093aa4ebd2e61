//! Counts the hints that a process holds for each node. All state machines of the process share it.
//!
//! **Promise.** The count is never less than the number of hints kept since the last recount, so a
//! bound on the count also bounds the hints on disk. A count is 0 only if there are no hints.
//!
//! **Caveats.** A newer hint for the same key and node replaces the older one, but both are counted
//! until the next recount.

use crate::{Key, NODES_MAX, NodeIndex};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of hints by target node, bounded in bytes.
#[derive(Debug)]
pub struct HintLedger {
    entries: Vec<Entry>,
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

/// The size that a hint for `key` is counted with, in bytes: about its size in the log and in
/// tables.
pub fn hint_bytes(key: &Key) -> u64 {
    const OVERHEAD: u64 = 48;
    key.as_bytes().len() as u64 + OVERHEAD
}

impl HintLedger {
    /// Creates an empty ledger that allows hints of `bytes_max` bytes in total.
    pub fn new(bytes_max: u64) -> Self {
        Self { entries: (0..NODES_MAX).map(|_| Entry::default()).collect(), bytes_max }
    }

    /// Counts a hint that is about to be kept for `target`. Returns `false` if it does not fit: it
    /// is then counted as dropped and must not be kept.
    pub fn try_keep(&self, target: NodeIndex, bytes: u64) -> bool {
        let entry = &self.entries[target.as_usize()];
        if self.bytes() + bytes > self.bytes_max {
            entry.dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        entry.hints.fetch_add(1, Ordering::Relaxed);
        entry.bytes.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    /// Counts hints for `target` as dropped that were never kept, or kept too long.
    pub fn count_dropped(&self, target: NodeIndex, hints: u64) {
        self.entries[target.as_usize()].dropped.fetch_add(hints, Ordering::Relaxed);
    }

    /// Subtracts hints that were removed.
    pub fn remove(&self, target: NodeIndex, gone: HintCount) {
        let entry = &self.entries[target.as_usize()];
        let saturating = |counter: &AtomicU64, by: u64| {
            let _ =
                counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| Some(n.saturating_sub(by)));
        };
        saturating(&entry.hints, gone.hints);
        saturating(&entry.bytes, gone.bytes);
    }

    /// Replaces the count at the beginning of a recount by its result. Hints kept since then stay
    /// counted.
    pub fn recount(&self, target: NodeIndex, at_begin: HintCount, counted: HintCount) {
        let entry = &self.entries[target.as_usize()];
        let replace = |counter: &AtomicU64, old: u64, new: u64| {
            let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
                Some(n.saturating_sub(old).saturating_add(new))
            });
        };
        replace(&entry.hints, at_begin.hints, counted.hints);
        replace(&entry.bytes, at_begin.bytes, counted.bytes);
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
        self.entries.iter().map(|entry| entry.bytes.load(Ordering::Relaxed)).sum()
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
}
