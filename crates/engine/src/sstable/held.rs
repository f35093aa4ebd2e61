//! Filters and indexes that an open table holds, so that a get reaches them without the cache.
//!
//! **Promise.** A held block is one load away, without a lock and without counting references. What is held
//! is within the budget of the cache, and is given back when the table is dropped.
//!
//! **Mechanism.** Each partition has a *slot* for its filter and one for its index, empty at first. A block
//! that a reader finds in the cache is moved from there into its slot, if the cache has room for it
//! (see [`BlockCache::hold`]); else it stays where it is. It is moved when it is found and not when it is
//! loaded, so that what a scan touches once does not take the place of what every read needs.
//!
//! **Caveats.** A slot that was filled stays so while the table is open, however seldom it is asked. Tables
//! whose top index is too large to be held have no slots.

use super::block::Block;
use super::filter::FilterBlock;
use super::index_block::IndexBlock;
use crate::cache::{BlockCache, BlockKey};
use std::sync::{Arc, OnceLock};

/// The slots of a table.
#[derive(Default)]
pub(super) struct HeldBlocks {
    partitions: Box<[Slots]>,
}

/// The slots of a partition.
#[derive(Default)]
pub(super) struct Slots {
    filter: OnceLock<Arc<FilterBlock>>,
    index: OnceLock<Arc<IndexBlock>>,
}

/// A block that may be held.
pub(super) trait Holdable: Block {
    /// Its slot among those of its partition.
    fn slot(slots: &Slots) -> &OnceLock<Arc<Self>>;
}

impl Holdable for FilterBlock {
    #[inline]
    fn slot(slots: &Slots) -> &OnceLock<Arc<Self>> {
        &slots.filter
    }
}

impl Holdable for IndexBlock {
    #[inline]
    fn slot(slots: &Slots) -> &OnceLock<Arc<Self>> {
        &slots.index
    }
}

impl HeldBlocks {
    /// Empty slots for so many partitions.
    pub(super) fn of(partitions: usize) -> Self {
        Self { partitions: (0..partitions).map(|_| Slots::default()).collect() }
    }

    /// The block of the partition `at`, if it is held.
    #[inline]
    pub(super) fn get<B: Holdable>(&self, at: usize) -> Option<&Arc<B>> {
        B::slot(self.partitions.get(at)?).get()
    }

    /// Moves a block that was found in the cache into its slot, if there is one and room for it.
    pub(super) fn fill<B: Holdable>(&self, at: usize, block: &Arc<B>, cache: &BlockCache, key: BlockKey) {
        if let Some(slots) = self.partitions.get(at) {
            cache.hold(key, block, B::slot(slots));
        }
    }

    /// What the slots take, without the blocks, in bytes.
    pub(super) fn slot_bytes(&self) -> usize {
        size_of_val(&*self.partitions)
    }

    /// Frees the blocks, and gives back what they took of the budget of `cache`.
    pub(super) fn release(self, cache: &BlockCache) {
        for slots in self.partitions {
            slots.filter.into_inner().into_iter().for_each(|block| cache.release(block));
            slots.index.into_inner().into_iter().for_each(|block| cache.release(block));
        }
    }
}
