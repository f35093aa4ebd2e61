//! Counts of the cache and of filters, striped so that readers on different cores do not share a line for them.
//!
//! The first threads that count have a stripe for themselves and need no locked instruction: they are the ones
//! that a server reads with. Whoever comes later shares stripes, with one.

use super::BlockKind;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const KINDS: usize = 3;
const ANSWERS: usize = 3;
/// So many threads, over the life of the process, have a stripe for themselves.
const OWN_STRIPES: usize = 32;
/// All others share these.
const SHARED_STRIPES: usize = 8;

static NEXT_THREAD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// This thread among all that ever counted; never given to another.
    static THREAD: usize = NEXT_THREAD.fetch_add(1, Ordering::Relaxed);
}

/// What the cache did and holds, for one kind of block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindStats {
    /// Lookups that found their block.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// What the blocks of this kind weigh, in bytes.
    pub bytes: u64,
}

/// What the cache did and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Data blocks.
    pub data: KindStats,
    /// Index blocks.
    pub index: KindStats,
    /// Filter blocks.
    pub filter: KindStats,
}

/// What filters answered to lookups of a key in a table, by point reads and by compactions that look for what a
/// tombstone hides. A lookup that would have to wait for the disk is counted when it was done in the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterStats {
    /// Lookups that asked a filter.
    pub checked: u64,
    /// Of these, those that were spared by it: it was certain that the key is not there.
    pub negatives: u64,
    /// Of these, those that it let pass and that found no such key.
    pub false_positives: u64,
}

/// What a filter said to a lookup, and whether it was right.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FilterAnswer {
    /// The key is not there.
    Negative = 0,
    /// The key may be there, and it was.
    Positive = 1,
    /// The key may be there, and it was not.
    FalsePositive = 2,
}

#[derive(Default)]
pub(super) struct Counters {
    own: [Stripe; OWN_STRIPES],
    shared: [Stripe; SHARED_STRIPES],
    bytes: [AtomicU64; KINDS],
}

/// Two cache lines: processors fetch lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Stripe {
    hits: [AtomicU64; KINDS],
    misses: [AtomicU64; KINDS],
    answers: [AtomicU64; ANSWERS],
}

impl Counters {
    #[inline]
    pub(super) fn count_lookup(&self, kind: BlockKind, hit: bool) {
        self.count(|stripe| if hit { &stripe.hits[kind as usize] } else { &stripe.misses[kind as usize] });
    }

    #[inline]
    pub(super) fn count_answer(&self, answer: FilterAnswer) {
        self.count(|stripe| &stripe.answers[answer as usize]);
    }

    /// Adds one to a counter of this thread's stripe.
    #[inline]
    fn count(&self, counter: impl FnOnce(&Stripe) -> &AtomicU64) {
        let thread = THREAD.with(|thread| *thread);
        match self.own.get(thread) {
            Some(stripe) => {
                let counter = counter(stripe);
                counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
            None => {
                counter(&self.shared[thread % SHARED_STRIPES]).fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn grow(&self, kind: BlockKind, bytes: u64) {
        self.bytes[kind as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn shrink(&self, kind: BlockKind, bytes: u64) {
        self.bytes[kind as usize].fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn stats(&self) -> CacheStats {
        let of = |kind: BlockKind| KindStats {
            hits: self.sum(|stripe| &stripe.hits[kind as usize]),
            misses: self.sum(|stripe| &stripe.misses[kind as usize]),
            bytes: self.bytes[kind as usize].load(Ordering::Relaxed),
        };
        CacheStats { data: of(BlockKind::Data), index: of(BlockKind::Index), filter: of(BlockKind::Filter) }
    }

    pub(super) fn filter_stats(&self) -> FilterStats {
        let of = |answer: FilterAnswer| self.sum(|stripe| &stripe.answers[answer as usize]);
        let (negatives, false_positives) = (of(FilterAnswer::Negative), of(FilterAnswer::FalsePositive));
        let checked = negatives + of(FilterAnswer::Positive) + false_positives;
        FilterStats { checked, negatives, false_positives }
    }

    fn sum(&self, counter: impl Fn(&Stripe) -> &AtomicU64) -> u64 {
        self.own.iter().chain(&self.shared).map(|stripe| counter(stripe).load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    const ROUNDS: u64 = 400_000;

    /// More threads than have stripes of their own, each for longer than a turn on a processor.
    #[test]
    fn no_thread_loses_counts_of_another() {
        let counters = Counters::default();
        let threads = (OWN_STRIPES + 4 * SHARED_STRIPES) as u64;
        let start = Barrier::new(threads as usize);
        let count = || {
            start.wait();
            for _ in 0..ROUNDS {
                counters.count_lookup(BlockKind::Data, true);
                counters.count_lookup(BlockKind::Index, false);
                counters.count_answer(FilterAnswer::Negative);
                counters.count_answer(FilterAnswer::FalsePositive);
                counters.count_answer(FilterAnswer::Positive);
            }
        };
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(count))));
        let (stats, filters) = (counters.stats(), counters.filter_stats());
        assert_eq!((stats.data.hits, stats.index.misses), (threads * ROUNDS, threads * ROUNDS));
        assert_eq!((stats.data.misses, stats.index.hits, stats.filter), (0, 0, KindStats::default()));
        assert_eq!((filters.checked, filters.negatives), (threads * 3 * ROUNDS, threads * ROUNDS));
        assert_eq!(filters.false_positives, threads * ROUNDS);
    }
}
