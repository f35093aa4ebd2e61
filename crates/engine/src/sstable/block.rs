//! The common interface of the blocks of a table.

use super::data_block::DataBlock;
use super::filter::FilterBlock;
use super::frame::FrameKind;
use super::index_block::IndexBlock;
use super::malformed::Malformed;
use crate::cache::{BlockKind, CachedBlock};
use std::sync::Arc;

/// A decoded block of a table.
pub(crate) trait Block: Sized {
    /// Kind of the block in the cache.
    const KIND: BlockKind;
    /// Kind of the block in its frame.
    const FRAME: FrameKind;

    /// Decodes the uncompressed bytes of a block and checks its structure.
    fn decode(bytes: Vec<u8>) -> Result<Self, Malformed>;

    /// Memory of the block, including itself, in bytes.
    fn heap_bytes(&self) -> usize;

    /// Whether the block may be inserted into the cache.
    fn is_cacheable(&self) -> bool {
        true
    }

    fn into_cached(block: Arc<Self>) -> CachedBlock;

    fn from_cached(block: CachedBlock) -> Option<Arc<Self>>;
}

macro_rules! cached_as {
    ($variant:ident) => {
        fn into_cached(block: Arc<Self>) -> CachedBlock {
            CachedBlock::$variant(block)
        }

        #[inline]
        fn from_cached(block: CachedBlock) -> Option<Arc<Self>> {
            match block {
                CachedBlock::$variant(block) => Some(block),
                _ => None,
            }
        }
    };
}

impl Block for DataBlock {
    const KIND: BlockKind = BlockKind::Data;
    const FRAME: FrameKind = FrameKind::Data;

    fn decode(bytes: Vec<u8>) -> Result<Self, Malformed> {
        DataBlock::decode(bytes)
    }

    fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.content_bytes()
    }

    fn is_cacheable(&self) -> bool {
        !self.is_oversized()
    }

    cached_as!(Data);
}

impl Block for IndexBlock {
    const KIND: BlockKind = BlockKind::Index;
    const FRAME: FrameKind = FrameKind::Index;

    fn decode(bytes: Vec<u8>) -> Result<Self, Malformed> {
        IndexBlock::decode(&bytes)
    }

    fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.content_bytes()
    }

    cached_as!(Index);
}

impl Block for FilterBlock {
    const KIND: BlockKind = BlockKind::Filter;
    const FRAME: FrameKind = FrameKind::Filter;

    fn decode(bytes: Vec<u8>) -> Result<Self, Malformed> {
        FilterBlock::decode(&bytes)
    }

    fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.content_bytes()
    }

    cached_as!(Filter);
}
