//! Counters of the cache and of filters, striped so that readers on different cores do not share a
//! cache line.
//!
//! The first threads that count have a stripe of their own and need no locked instruction; they are
//! a server's reader threads. Later threads share stripes and use atomic increments.

use super::BlockKind;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const KINDS: usize = 3;
const ANSWERS: usize = 3;
/// Number of threads, over the lifetime of the process, that have a stripe of their own.
const OWN_STRIPES: usize = 32;
/// Number of stripes that all other threads share.
const SHARED_STRIPES: usize = 8;

static NEXT_THREAD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Index of this thread among all that ever counted; never reused.
    static THREAD: usize = NEXT_THREAD.fetch_add(1, Ordering::Relaxed);
}

/// Statistics of the cache for one kind of block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindStats {
    /// Lookups that found their block.
    pub hits: u64,
    /// Lookups that did not find their block.
    pub misses: u64,
    /// Size of the cached and pinned blocks of this kind, in bytes.
    pub bytes: u64,
}

/// Statistics of the cache by kind of block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Data blocks.
    pub data: KindStats,
    /// Index blocks.
    pub index: KindStats,
    /// Filter blocks.
    pub filter: KindStats,
}

/// Results of filter lookups, by point reads and by compactions that search for older cells of a
/// tombstone. A lookup that would have to wait for the disk is counted once it is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterStats {
    /// Lookups that consulted a filter.
    pub checked: u64,
    /// Lookups that the filter answered: the key is certainly absent.
    pub negatives: u64,
    /// Lookups that passed the filter although the key was absent.
    pub false_positives: u64,
}

/// Result of a filter lookup.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FilterAnswer {
    /// The filter excluded the key.
    Negative = 0,
    /// The filter admitted the key, and it was present.
    Positive = 1,
    /// The filter admitted the key, and it was absent.
    FalsePositive = 2,
}

#[derive(Default)]
pub(super) struct Counters {
    own: [Stripe; OWN_STRIPES],
    shared: [Stripe; SHARED_STRIPES],
    bytes: [AtomicU64; KINDS],
}

/// Two cache lines, because processors prefetch lines in pairs.
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

    /// Increments a counter of this thread's stripe.
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

    pub(super) fn add_bytes(&self, kind: BlockKind, bytes: u64) {
        self.bytes[kind as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn subtract_bytes(&self, kind: BlockKind, bytes: u64) {
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

    /// Starts more threads than there are own stripes, and each runs for longer than a time slice
    /// of a processor.
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
