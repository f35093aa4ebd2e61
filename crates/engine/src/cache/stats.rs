//! Counts of the cache, striped so that readers on different cores do not share a line for them.

use super::BlockKind;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const KINDS: usize = 3;
/// Threads beyond so many share stripes.
const STRIPES: usize = 16;

static NEXT_STRIPE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The stripe this thread counts in, of every cache.
    static STRIPE: usize = NEXT_STRIPE.fetch_add(1, Ordering::Relaxed) % STRIPES;
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

#[derive(Default)]
pub(super) struct Counters {
    stripes: [Stripe; STRIPES],
    bytes: [AtomicU64; KINDS],
}

/// Two cache lines: processors fetch lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Stripe {
    hits: [AtomicU64; KINDS],
    misses: [AtomicU64; KINDS],
}

impl Counters {
    #[inline]
    pub(super) fn count_lookup(&self, kind: BlockKind, hit: bool) {
        let stripe = &self.stripes[STRIPE.with(|stripe| *stripe % STRIPES)];
        let counts = if hit { &stripe.hits } else { &stripe.misses };
        counts[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn grow(&self, kind: BlockKind, bytes: u64) {
        self.bytes[kind as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn shrink(&self, kind: BlockKind, bytes: u64) {
        self.bytes[kind as usize].fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn stats(&self) -> CacheStats {
        let of = |kind: BlockKind| KindStats {
            hits: self.stripes.iter().map(|stripe| stripe.hits[kind as usize].load(Ordering::Relaxed)).sum(),
            misses: (self.stripes.iter())
                .map(|stripe| stripe.misses[kind as usize].load(Ordering::Relaxed))
                .sum(),
            bytes: self.bytes[kind as usize].load(Ordering::Relaxed),
        };
        CacheStats { data: of(BlockKind::Data), index: of(BlockKind::Index), filter: of(BlockKind::Filter) }
    }
}
