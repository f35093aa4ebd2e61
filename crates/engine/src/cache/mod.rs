//! The block cache: decoded blocks of tables, under one budget.
//!
//! **Promise.** The blocks in it, and those that open tables hold out of it, never weigh more together than
//! the budget it was made with. Every block counts with what it takes in memory, whatever its kind: index and
//! filter blocks are not free.
//!
//! **Mechanism.** quick_cache (clock-based, close to S3-FIFO: Yang et al., "FIFO queues are all you need for
//! cache eviction", 2023), sharded by block. A block that was read once waits in a small queue and leaves
//! from there; only blocks that are read again reach the large one. Scans use the data blocks that are here and
//! leave none; their index blocks pass through without pushing out those that every read touches. Compactions do
//! not go through the cache at all.
//!
//! A filter or index block that is found here again moves out, into a slot of its table
//! ([`BlockCache::hold`]): of the three lookups of a point read two then need no lock, no search in a hash
//! table and no reference count. Held blocks may take half of the budget, and the capacity for the others
//! shrinks by what they take, before they take it (see `reservation`). Counts of hits are kept by thread, not by
//! block: threads that read the same block do not pass a line of counters to and fro.
//!
//! **Caveats.** The blocks of a dropped table are not removed but age out: table ids are never used twice, so
//! nobody finds them. A block that is larger than a shard (a sixteenth of the budget or more) is not kept.
//! Blocks that a reader still uses after their eviction are not counted. Two readers that come for a block
//! while it moves into its slot may leave a second copy here, which counts and ages out. A held block leaves
//! only with its table: where filters and indexes of all open tables exceed half of the budget, those that
//! were asked for first are held, and the others go through the cache.

mod hash;
mod reservation;
mod stats;

pub(crate) use stats::FilterAnswer;
pub use stats::{CacheStats, FilterStats, KindStats};

use crate::sstable::{Block, DataBlock, FilterBlock, IndexBlock, LargeReads, TableId};
use hash::BlockHashBuilder;
use parking_lot::Mutex;
use quick_cache::sync::{Cache, GuardResult};
use quick_cache::{Lifecycle, OptionsBuilder, Weighter};
use reservation::Reservation;
use stats::Counters;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// What an entry costs beside its block: the key, the slot in the table and queues, the reference counts.
const ENTRY_BYTES: u64 = 128;
/// A shard is not made smaller than this, so that it holds at least a few of the largest blocks, also when
/// half of the budget is held.
const SHARD_BYTES_MIN: u64 = 4 << 20;
/// More shards than this bring nothing on the machines veche runs on.
const SHARDS_MAX: u64 = 64;
/// Size of a typical block, from which the tables of the shards are sized.
const BLOCK_BYTES_TYPICAL: u64 = 16 << 10;

/// What a cached block is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Cells.
    Data = 0,
    /// Where data blocks are.
    Index = 1,
    /// Which keys are not there.
    Filter = 2,
}

/// Where a block is from. Table ids are never used twice, so a key means the same bytes for ever.
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
    /// Locked while what `blocks` may take is changed.
    reservation: Mutex<Reservation>,
    /// What could be held beside what is, so that a refusal needs no lock.
    memtable_space_bytes: AtomicU64,
    large_reads: Arc<LargeReads>,
}

impl BlockCache {
    /// An empty cache that will hold up to `budget_bytes` of blocks.
    pub fn new(budget_bytes: u64) -> Self {
        let counters = Arc::new(Counters::default());
        let shards = (budget_bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        // Rounded down to a power of two: the parts, which are rounded up, must not exceed the whole.
        let shards = 1 << shards.ilog2();
        let options = OptionsBuilder::new()
            .shards(shards)
            .estimated_items_capacity((budget_bytes / BLOCK_BYTES_TYPICAL).max(32 * shards as u64) as usize)
            .weight_capacity(budget_bytes - budget_bytes % shards as u64)
            .build()
            .expect("capacity and estimate are set");
        let evictions = Evictions { counters: counters.clone() };
        let blocks = Cache::with_options(options, BlockWeighter, BlockHashBuilder, evictions);
        let reservation = Reservation::of(budget_bytes);
        let memtable_space_bytes = AtomicU64::new(reservation.memtable_space_bytes());
        let (reservation, large_reads) = (Mutex::new(reservation), Arc::default());
        Self { blocks, counters, budget_bytes, reservation, memtable_space_bytes, large_reads }
    }

    /// The large blocks that are being read, and not kept here.
    pub(crate) const fn large_reads(&self) -> &Arc<LargeReads> {
        &self.large_reads
    }

    /// What the blocks may weigh together, in bytes.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// What the blocks weigh together, those held by tables included, in bytes. Never more than the budget.
    pub fn bytes(&self) -> u64 {
        let reservation = self.reservation.lock();
        self.blocks.weight() + reservation.held_bytes()
    }

    /// Of [`BlockCache::bytes`], what tables hold. Never more than half of the budget.
    pub fn held_bytes(&self) -> u64 {
        self.reservation.lock().held_bytes()
    }

    /// Hits, misses and bytes by kind of block.
    pub fn stats(&self) -> CacheStats {
        self.counters.stats()
    }

    /// What filters answered to lookups in the tables that use this cache.
    pub fn filter_stats(&self) -> FilterStats {
        self.counters.filter_stats()
    }

    /// The block, when it is here; counts a hit or a miss.
    #[inline]
    pub(crate) fn get<B: Block>(&self, key: BlockKey) -> Option<Arc<B>> {
        let block = self.blocks.get(&key).and_then(B::from_cached);
        self.counters.count_lookup(B::KIND, block.is_some());
        block
    }

    /// The block, when it is here, without a trace: nothing is counted, and it is not kept the longer for it.
    #[inline]
    pub(crate) fn glimpse<B: Block>(&self, key: BlockKey) -> Option<Arc<B>> {
        self.blocks.peek(&key).and_then(B::from_cached)
    }

    /// Counts a hit of a block that its table holds.
    #[inline]
    pub(crate) fn count_held_hit(&self, kind: BlockKind) {
        self.counters.count_lookup(kind, true);
    }

    /// Counts what a filter answered.
    #[inline]
    pub(crate) fn count_filter_answer(&self, answer: FilterAnswer) {
        self.counters.count_answer(answer);
    }

    /// Keeps the block, unless another reader was faster: both read the same bytes.
    pub(crate) fn insert<B: Block>(&self, key: BlockKey, block: &Arc<B>) {
        // Only the holder of the guard inserts, so that no entry is ever replaced: replacing one would not be
        // reported to `Evictions`, and the bytes by kind would drift.
        let GuardResult::Guard(guard) = self.blocks.get_value_or_guard(&key, Some(Duration::ZERO)) else {
            return;
        };
        let cached = B::into_cached(block.clone());
        let (kind, weight) = (cached.kind(), cached.weight());
        self.counters.grow(kind, weight);
        if guard.insert(cached).is_err() {
            self.counters.shrink(kind, weight);
        }
    }

    /// Moves a block out of the cache into `slot`, where its table holds it until it calls
    /// [`BlockCache::release`]. Does nothing when held blocks may not take so much, or the slot is filled.
    #[inline]
    pub(crate) fn hold<B: Block>(&self, key: BlockKey, block: &Arc<B>, slot: &OnceLock<Arc<B>>) {
        let weight = weight(&**block);
        if weight <= self.memtable_space_bytes.load(Ordering::Relaxed) {
            self.hold_weight(key, block, weight, slot);
        }
    }

    #[cold]
    fn hold_weight<B: Block>(&self, key: BlockKey, block: &Arc<B>, weight: u64, slot: &OnceLock<Arc<B>>) {
        if !self.reserve(|reservation| reservation.take(weight)) {
            return;
        }
        if slot.set(block.clone()).is_err() {
            self.reserve(|reservation| reservation.give_back(weight));
            return;
        }
        self.counters.grow(B::KIND, weight);
        if let Some((_, block)) = self.blocks.remove(&key) {
            self.counters.shrink(block.kind(), block.weight());
        }
    }

    /// Frees a block that was held, and counts it no more.
    pub(crate) fn release<B: Block>(&self, block: Arc<B>) {
        let weight = weight(&*block);
        drop(block);
        self.counters.shrink(B::KIND, weight);
        self.reserve(|reservation| reservation.give_back(weight));
    }

    /// Changes what is held, and gives the other blocks what is left of the budget.
    fn reserve<T>(&self, change: impl FnOnce(&mut Reservation) -> T) -> T {
        let mut reservation = self.reservation.lock();
        let before = reservation.reserved_bytes();
        let changed = change(&mut reservation);
        if reservation.reserved_bytes() != before {
            let capacity = self.budget_bytes - reservation.reserved_bytes();
            // Rounded down, as in `new`.
            self.blocks.set_capacity(capacity - capacity % self.blocks.num_shards() as u64);
        }
        self.memtable_space_bytes.store(reservation.memtable_space_bytes(), Ordering::Relaxed);
        changed
    }
}

/// What a block counts: on the heap, and what an entry of the cache costs, which a slot costs less.
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
    /// Blocks to drop after the shard was unlocked: freeing them takes a while.
    type RequestState = Vec<CachedBlock>;

    fn on_evict(&self, evicted: &mut Self::RequestState, _key: BlockKey, block: CachedBlock) {
        self.counters.shrink(block.kind(), block.weight());
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
            cache.hold(key, &filter, &slot);
            assert_eq!(
                (cache.held_bytes(), cache.bytes(), cache.stats().filter.bytes),
                (bytes, bytes, bytes)
            );
        }
        cache.release(slot.into_inner().expect("it is held"));
        assert_eq!((cache.held_bytes(), cache.bytes(), cache.stats().filter.bytes), (0, 0, 0));
    }
}
