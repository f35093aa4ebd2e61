//! The block cache: decoded blocks of tables under one memory budget.
//!
//! **Promise.** Cached blocks and blocks that open tables have pinned never exceed the budget
//! together. Every block counts with its size in memory, including index and filter blocks.
//!
//! **Mechanism.** quick_cache (clock-based, close to S3-FIFO: Yang et al., "FIFO queues are all you
//! need for cache eviction", 2023), sharded by block. A block that was read once waits in a small
//! queue and is evicted from there. Only blocks that are read again reach the large queue. Scans
//! use cached data blocks and insert none; their index blocks pass through the small queue without
//! displacing frequently used ones. Compactions bypass the cache.
//!
//! A filter or index block that is found here again moves into a slot of its table
//! ([`BlockCache::pin`]). Two of the three lookups of a point read then need no lock, no hash table
//! search and no reference count. Pinned blocks may use half of the budget. The capacity of the
//! cache shrinks before they are pinned (see `reservation`). Hits are counted per thread, not per
//! block, so threads that read the same block do not contend for a cache line.
//!
//! **Caveats.**
//! * Blocks of a dropped table are not removed but age out. Table ids are never reused, so they are
//!   never found.
//! * A block that is larger than a shard (a sixteenth of the budget or more) is not cached.
//! * Evicted blocks that a reader still uses are not counted.
//! * Two readers that request a block while it moves into its slot may leave a second copy in the
//!   cache, which counts and ages out.
//! * A pinned block is released only with its table. If the filters and indexes of all open tables
//!   exceed half of the budget, the first ones requested are pinned and the others go through the
//!   cache.

mod hash;
mod reservation;
mod stats;

pub(crate) use stats::FilterAnswer;
pub use stats::{CacheStats, FilterStats, KindStats};

use crate::sstable::{Block, DataBlock, FilterBlock, IndexBlock, LargeReadLimit, TableId};
use hash::BlockHashBuilder;
use parking_lot::Mutex;
use quick_cache::sync::{Cache, GuardResult};
use quick_cache::{Lifecycle, OptionsBuilder, Weighter};
use reservation::PinReservation;
use stats::Counters;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Overhead of an entry beside its block: key, slots in the table and queues, reference counts, in
/// bytes.
const ENTRY_BYTES: u64 = 128;
/// Minimum size of a shard, in bytes: enough for a few of the largest blocks even if half of the
/// budget is pinned.
const SHARD_BYTES_MIN: u64 = 4 << 20;
/// Maximum number of shards. More bring no benefit on the machines that veche runs on.
const SHARDS_MAX: u64 = 64;
/// Size of a typical block, in bytes, by which the tables of the shards are sized.
const BLOCK_BYTES_TYPICAL: u64 = 16 << 10;

/// Kind of a cached block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Data block: cells.
    Data = 0,
    /// Index block: locations of data blocks.
    Index = 1,
    /// Filter block.
    Filter = 2,
}

/// Location of a block. Table ids are never reused, so a key always denotes the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockKey {
    pub(crate) table: TableId,
    pub(crate) offset: u64,
}

/// A block in the cache.
#[derive(Clone, Debug)]
pub(crate) enum CachedBlock {
    Data(Arc<DataBlock>),
    Index(Arc<IndexBlock>),
    Filter(Arc<FilterBlock>),
}

impl CachedBlock {
    fn kind(&self) -> BlockKind {
        match self {
            Self::Data(_) => BlockKind::Data,
            Self::Index(_) => BlockKind::Index,
            Self::Filter(_) => BlockKind::Filter,
        }
    }

    fn weight(&self) -> u64 {
        match self {
            Self::Data(block) => weight(&**block),
            Self::Index(block) => weight(&**block),
            Self::Filter(block) => weight(&**block),
        }
    }
}

/// Decoded blocks of tables, shared by all of an engine's readers.
pub struct BlockCache {
    blocks: Cache<BlockKey, CachedBlock, BlockWeighter, BlockHashBuilder, Evictions>,
    counters: Arc<Counters>,
    budget_bytes: u64,
    /// Held while the capacity of `blocks` changes.
    reservation: Mutex<PinReservation>,
    /// Bytes that could be pinned in addition, so that a refusal needs no lock.
    pinnable_bytes: AtomicU64,
    large_reads: Arc<LargeReadLimit>,
}

impl BlockCache {
    /// Returns an empty cache with this budget.
    pub fn new(budget_bytes: u64) -> Self {
        let counters = Arc::new(Counters::default());
        let shards = (budget_bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        // Rounded down to a power of two: shard capacities, which are rounded up, must not exceed
        // the whole.
        let shards = 1 << shards.ilog2();
        let options = OptionsBuilder::new()
            .shards(shards)
            .estimated_items_capacity((budget_bytes / BLOCK_BYTES_TYPICAL).max(32 * shards as u64) as usize)
            .weight_capacity(budget_bytes - budget_bytes % shards as u64)
            .build()
            .expect("capacity and estimate are set");
        let evictions = Evictions { counters: counters.clone() };
        let blocks = Cache::with_options(options, BlockWeighter, BlockHashBuilder, evictions);
        let reservation = PinReservation::of(budget_bytes);
        let pinnable_bytes = AtomicU64::new(reservation.pinnable_bytes());
        let (reservation, large_reads) = (Mutex::new(reservation), Arc::default());
        Self { blocks, counters, budget_bytes, reservation, pinnable_bytes, large_reads }
    }

    /// The limit on reads of large blocks, which are not cached.
    pub(crate) const fn large_reads(&self) -> &Arc<LargeReadLimit> {
        &self.large_reads
    }

    /// Budget of all blocks, in bytes.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Size of all cached and pinned blocks, in bytes. Never exceeds the budget.
    pub fn bytes(&self) -> u64 {
        let reservation = self.reservation.lock();
        self.blocks.weight() + reservation.pinned_bytes()
    }

    /// Size of the pinned blocks, which [`BlockCache::bytes`] includes, in bytes. Never exceeds
    /// half of the budget.
    pub fn pinned_bytes(&self) -> u64 {
        self.reservation.lock().pinned_bytes()
    }

    /// Hits, misses and bytes by kind of block.
    pub fn stats(&self) -> CacheStats {
        self.counters.stats()
    }

    /// Results of filter lookups in the tables that use this cache.
    pub fn filter_stats(&self) -> FilterStats {
        self.counters.filter_stats()
    }

    /// Returns the block if it is cached. Counts a hit or a miss.
    #[inline]
    pub(crate) fn get<B: Block>(&self, key: BlockKey) -> Option<Arc<B>> {
        let block = self.blocks.get(&key).and_then(B::from_cached);
        self.counters.count_lookup(B::KIND, block.is_some());
        block
    }

    /// Returns the block if it is cached, without counting the lookup and without affecting
    /// eviction.
    #[inline]
    pub(crate) fn peek<B: Block>(&self, key: BlockKey) -> Option<Arc<B>> {
        self.blocks.peek(&key).and_then(B::from_cached)
    }

    /// Counts a hit of a pinned block.
    #[inline]
    pub(crate) fn count_pinned_hit(&self, kind: BlockKind) {
        self.counters.count_lookup(kind, true);
    }

    /// Counts the result of a filter lookup.
    #[inline]
    pub(crate) fn count_filter_answer(&self, answer: FilterAnswer) {
        self.counters.count_answer(answer);
    }

    /// Inserts the block, unless another reader has inserted it: both read the same bytes.
    pub(crate) fn insert<B: Block>(&self, key: BlockKey, block: &Arc<B>) {
        // Only the holder of the guard inserts, so no entry is ever replaced. A replacement would
        // not be reported to `Evictions`, and the bytes by kind would drift.
        let GuardResult::Guard(guard) = self.blocks.get_value_or_guard(&key, Some(Duration::ZERO)) else {
            return;
        };
        let cached = B::into_cached(block.clone());
        let (kind, weight) = (cached.kind(), cached.weight());
        self.counters.add_bytes(kind, weight);
        if guard.insert(cached).is_err() {
            self.counters.subtract_bytes(kind, weight);
        }
    }

    /// Moves a block from the cache into `slot`, where its table keeps it until
    /// [`BlockCache::unpin`]. Does nothing if that would exceed the pinning budget or if the slot
    /// is filled.
    #[inline]
    pub(crate) fn pin<B: Block>(&self, key: BlockKey, block: &Arc<B>, slot: &OnceLock<Arc<B>>) {
        let weight = weight(&**block);
        if weight <= self.pinnable_bytes.load(Ordering::Relaxed) {
            self.pin_weight(key, block, weight, slot);
        }
    }

    #[cold]
    fn pin_weight<B: Block>(&self, key: BlockKey, block: &Arc<B>, weight: u64, slot: &OnceLock<Arc<B>>) {
        if !self.update_reservation(|reservation| reservation.reserve(weight)) {
            return;
        }
        if slot.set(block.clone()).is_err() {
            self.update_reservation(|reservation| reservation.release(weight));
            return;
        }
        self.counters.add_bytes(B::KIND, weight);
        if let Some((_, block)) = self.blocks.remove(&key) {
            self.counters.subtract_bytes(block.kind(), block.weight());
        }
    }

    /// Drops a pinned block and releases its part of the budget.
    pub(crate) fn unpin<B: Block>(&self, block: Arc<B>) {
        let weight = weight(&*block);
        drop(block);
        self.counters.subtract_bytes(B::KIND, weight);
        self.update_reservation(|reservation| reservation.release(weight));
    }

    /// Changes the reservation of pinned blocks, and sets the cache's capacity to the rest of the
    /// budget.
    fn update_reservation<T>(&self, change: impl FnOnce(&mut PinReservation) -> T) -> T {
        let mut reservation = self.reservation.lock();
        let before = reservation.reserved_bytes();
        let changed = change(&mut reservation);
        if reservation.reserved_bytes() != before {
            let capacity = self.budget_bytes - reservation.reserved_bytes();
            // Rounded down, as in `new`.
            self.blocks.set_capacity(capacity - capacity % self.blocks.num_shards() as u64);
        }
        self.pinnable_bytes.store(reservation.pinnable_bytes(), Ordering::Relaxed);
        changed
    }
}

/// Size of a block as counted: its heap size and the overhead of a cache entry. A slot costs less.
fn weight<B: Block>(block: &B) -> u64 {
    block.heap_bytes() as u64 + ENTRY_BYTES
}

impl std::fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockCache").field("budget_bytes", &self.budget_bytes).finish_non_exhaustive()
    }
}

#[derive(Clone)]
struct BlockWeighter;

impl Weighter<BlockKey, CachedBlock> for BlockWeighter {
    fn weight(&self, _key: &BlockKey, block: &CachedBlock) -> u64 {
        block.weight()
    }
}

#[derive(Clone)]
struct Evictions {
    counters: Arc<Counters>,
}

impl Lifecycle<BlockKey, CachedBlock> for Evictions {
    /// Blocks to drop after the shard is unlocked, because freeing them takes time.
    type RequestState = Vec<CachedBlock>;

    fn on_evict(&self, evicted: &mut Self::RequestState, _key: BlockKey, block: CachedBlock) {
        self.counters.subtract_bytes(block.kind(), block.weight());
        evicted.push(block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_two_readers_move_into_its_slot_is_counted_once() {
        let cache = BlockCache::new(1 << 20);
        let filter =
            <FilterBlock as Block>::decode([&[0; 64][..], &[1]].concat()).expect("one line and a probe");
        let (filter, slot) = (Arc::new(filter), OnceLock::new());
        let key = BlockKey { table: TableId(1), offset: 24 };
        cache.insert(key, &filter);
        let bytes = cache.bytes();
        for _ in 0..2 {
            cache.pin(key, &filter, &slot);
            assert_eq!(
                (cache.pinned_bytes(), cache.bytes(), cache.stats().filter.bytes),
                (bytes, bytes, bytes)
            );
        }
        cache.unpin(slot.into_inner().expect("it is held"));
        assert_eq!((cache.pinned_bytes(), cache.bytes(), cache.stats().filter.bytes), (0, 0, 0));
    }
}
