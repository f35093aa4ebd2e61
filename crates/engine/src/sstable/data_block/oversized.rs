//! The block of a single oversized cell, without a copy of its value.
//!
//! It equals the block that [`DataBlockBuilder`](super::DataBlockBuilder) would build of the cell,
//! in three slices. The second slice is the value in the caller's memory, so writing the block
//! needs no memory for it.

use super::entry::put_fields;
use super::{OVERSIZED_BYTES, put_end};
use stdx::CellRef;

/// Whether a cell is so large that it gets a block of its own, which is not cached.
pub(in super::super) fn is_oversized(cell: &CellRef<'_>) -> bool {
    cell.value.len() >= OVERSIZED_BYTES
}

/// The block of one oversized cell, in three slices.
pub(in super::super) struct OversizedBlock<'a> {
    before: Vec<u8>,
    value: &'a [u8],
    behind: Vec<u8>,
}

impl<'a> OversizedBlock<'a> {
    /// The block of this cell. The whole key is the prefix.
    pub(in super::super) fn of(key: &[u8], cell: CellRef<'a>) -> Self {
        let (mut before, mut behind) = (Vec::new(), Vec::new());
        put_fields(&mut before, 0, cell.value.len(), 0, &cell.meta);
        put_end(&mut behind, &[cell.meta.version.tag], key, 1);
        Self { before, value: cell.value, behind }
    }

    /// The slices of the block, in order.
    pub(in super::super) fn parts(&self) -> [&[u8]; 3] {
        [&self.before, self.value, &self.behind]
    }

    /// The value, which is nearly the whole block.
    pub(in super::super) fn value(&self) -> &'a [u8] {
        self.value
    }
}
