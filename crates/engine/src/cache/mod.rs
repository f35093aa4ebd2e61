//! The block cache: decoded blocks of tables, under one budget.
//!
//! **Promise.** The blocks it holds never weigh more together than the budget it was made with. Every block
//! counts with what it takes in memory, whatever its kind: index and filter blocks are not free.
//!
//! **Mechanism.** quick_cache (clock-based, close to S3-FIFO: Yang et al., "FIFO queues are all you need for
//! cache eviction", 2023), sharded by block. A block that was read once waits in a small queue and leaves
//! from there; only blocks that are read again reach the large one. So a scan over cold data passes through
//! without pushing out the index and filter blocks that every read touches. Compactions do not go through the
//! cache at all.
//!
//! **Caveats.** The blocks of a dropped table are not removed but age out: table ids are never used twice, so
//! nobody finds them. A block that is larger than a shard (a sixteenth of the budget or more) is not kept.
//! Blocks that a reader still holds after their eviction are not counted.

mod hash;
mod stats;

pub use stats::{CacheStats, KindStats};

use crate::sstable::{Block, DataBlock, FilterBlock, IndexBlock, TableId};
use hash::BlockHashBuilder;
use quick_cache::sync::{Cache, GuardResult};
use quick_cache::{Lifecycle, OptionsBuilder, Weighter};
use stats::Counters;
use std::sync::Arc;
use std::time::Duration;

/// What an entry costs beside its block: the key, the slot in the table and queues, the reference counts.
const ENTRY_BYTES: u64 = 128;
/// A shard is not made smaller than this, so that it holds at least a few of the largest blocks.
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
        let heap_bytes = match self {
            Self::Data(block) => block.heap_bytes(),
            Self::Index(block) => block.heap_bytes(),
            Self::Filter(block) => block.heap_bytes(),
        };
        heap_bytes as u64 + ENTRY_BYTES
    }
}

/// Decoded blocks of tables, shared by all of an engine's readers.
pub struct BlockCache {
    blocks: Cache<BlockKey, CachedBlock, BlockWeighter, BlockHashBuilder, Evictions>,
    counters: Arc<Counters>,
    budget_bytes: u64,
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
        Self { blocks, counters, budget_bytes }
    }

    /// What the blocks may weigh together, in bytes.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// What the blocks weigh together, in bytes. Never more than the budget.
    pub fn bytes(&self) -> u64 {
        self.blocks.weight()
    }

    /// Hits, misses and bytes by kind of block.
    pub fn stats(&self) -> CacheStats {
        self.counters.stats()
    }

    /// The block, when it is here; counts a hit or a miss.
    #[inline]
    pub(crate) fn get<B: Block>(&self, key: BlockKey) -> Option<Arc<B>> {
        let block = self.blocks.get(&key).and_then(B::from_cached);
        self.counters.count_lookup(B::KIND, key, block.is_some());
        block
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
