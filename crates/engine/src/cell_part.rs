//! The parts of a cell that a point read can return.
//!
//! A read of metadata takes the same path as a read of the cell: the same memtables, levels and
//! tables, in the same order. It differs in its last step. If the index of a table has the
//! metadata, no block is read.

use crate::Sequence;
use crate::memtable::Memtable;
use crate::sstable::{DataBlock, IndexBlock, Lookup, find_in_block, find_meta_in_block, find_meta_in_index};
use std::sync::Arc;
use stdx::{Cell, CellMeta};

/// A whole cell, or its metadata.
pub(crate) trait CellPart: Sized {
    fn meta(&self) -> &CellMeta;

    /// Whether this cell replaces `other`, a cell of the same key. `None`: only their values tell.
    fn supersedes(&self, other: &Self) -> Option<bool>;

    fn of_memtable(memtable: &Memtable, key: &[u8], hash: u64, visible: Sequence) -> Option<Self>;

    /// The result of the search for `key` in block `at` of an index, if the index has it.
    fn of_index(index: &IndexBlock, at: usize, key: &[u8]) -> Option<Lookup<Self>>;

    /// The result of the search for `key` in a block.
    fn of_block(block: Arc<DataBlock>, key: &[u8]) -> Lookup<Self>;
}

impl CellPart for Cell {
    #[inline]
    fn meta(&self) -> &CellMeta {
        &self.meta
    }

    #[inline]
    fn supersedes(&self, other: &Self) -> Option<bool> {
        Some(self.as_ref().supersedes(&other.as_ref()))
    }

    #[inline]
    fn of_memtable(memtable: &Memtable, key: &[u8], hash: u64, visible: Sequence) -> Option<Self> {
        memtable.get(key, hash, visible)
    }

    #[inline]
    fn of_index(_index: &IndexBlock, _at: usize, _key: &[u8]) -> Option<Lookup<Self>> {
        None
    }

    #[inline]
    fn of_block(block: Arc<DataBlock>, key: &[u8]) -> Lookup<Self> {
        find_in_block(block, key)
    }
}

impl CellPart for CellMeta {
    fn meta(&self) -> &CellMeta {
        self
    }

    fn supersedes(&self, other: &Self) -> Option<bool> {
        let is_decided = self.rank() != other.rank() || self == other;
        is_decided.then(|| self.rank() > other.rank())
    }

    fn of_memtable(memtable: &Memtable, key: &[u8], hash: u64, visible: Sequence) -> Option<Self> {
        memtable.get_meta(key, hash, visible)
    }

    fn of_index(index: &IndexBlock, at: usize, key: &[u8]) -> Option<Lookup<Self>> {
        find_meta_in_index(index, at, key)
    }

    fn of_block(block: Arc<DataBlock>, key: &[u8]) -> Lookup<Self> {
        find_meta_in_block(&block, key)
    }
}
