//! Filter and index blocks that are pinned in an open table, so that a point read bypasses the
//! cache.
//!
//! **Promise.** Access to a pinned block costs one load: no lock and no reference count. Pinned
//! blocks count in the cache's budget, and are released when the table is dropped.
//!
//! **Mechanism.** Each partition has a *slot* for its filter and one for its index, initially
//! empty. A block that a reader finds in the cache moves into its slot if the cache permits it (see
//! [`BlockCache::pin`]); otherwise it stays in the cache. It moves on a cache hit and not on
//! loading, so that blocks that a scan touches once do not displace blocks that every read needs.
//!
//! **Caveats.** A filled slot stays filled while the table is open, even if it is rarely used.
//! Tables whose top index is too large to keep in memory have no slots.

use super::block::Block;
use super::filter::FilterBlock;
use super::index_block::IndexBlock;
use crate::cache::{BlockCache, BlockKey};
use std::sync::{Arc, OnceLock};

/// The slots of a table.
#[derive(Default)]
pub(super) struct PinnedBlocks {
    partitions: Box<[Slots]>,
}

/// The slots of one partition.
#[derive(Default)]
pub(super) struct Slots {
    filter: OnceLock<Arc<FilterBlock>>,
    index: OnceLock<Arc<IndexBlock>>,
}

/// A block that can be pinned.
pub(super) trait Pinnable: Block {
    /// The slot for this kind of block.
    fn slot(slots: &Slots) -> &OnceLock<Arc<Self>>;
}

impl Pinnable for FilterBlock {
    #[inline]
    fn slot(slots: &Slots) -> &OnceLock<Arc<Self>> {
        &slots.filter
    }
}

impl Pinnable for IndexBlock {
    #[inline]
    fn slot(slots: &Slots) -> &OnceLock<Arc<Self>> {
        &slots.index
    }
}

impl PinnedBlocks {
    /// Empty slots for this number of partitions.
    pub(super) fn of(partitions: usize) -> Self {
        Self { partitions: (0..partitions).map(|_| Slots::default()).collect() }
    }

    /// The pinned block of partition `at`, if there is one.
    #[inline]
    pub(super) fn get<B: Pinnable>(&self, at: usize) -> Option<&Arc<B>> {
        B::slot(self.partitions.get(at)?).get()
    }

    /// Moves a block that was found in the cache into its slot, if the slot exists and the pinning
    /// budget permits it.
    pub(super) fn fill<B: Pinnable>(&self, at: usize, block: &Arc<B>, cache: &BlockCache, key: BlockKey) {
        if let Some(slots) = self.partitions.get(at) {
            cache.pin(key, block, B::slot(slots));
        }
    }

    /// Memory of the slots without the blocks, in bytes.
    pub(super) fn slot_bytes(&self) -> usize {
        size_of_val(&*self.partitions)
    }

    /// Drops the blocks and releases their share of the budget of `cache`.
    pub(super) fn release(self, cache: &BlockCache) {
        for slots in self.partitions {
            slots.filter.into_inner().into_iter().for_each(|block| cache.unpin(block));
            slots.index.into_inner().into_iter().for_each(|block| cache.unpin(block));
        }
    }
}
