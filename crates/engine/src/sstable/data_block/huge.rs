//! The block of a single huge cell, without a copy of its value.
//!
//! It is what [`DataBlockBuilder`](super::DataBlockBuilder) would make of the cell, in three parts, of which the second
//! is the value where it lies: whoever writes it needs no memory for it.

use super::entry::put_fields;
use super::{HUGE_BYTES, put_end};
use stdx::CellRef;

/// Whether a cell is so large that it gets a block of its own, which is not kept in the cache.
pub(in super::super) fn is_huge(cell: &CellRef<'_>) -> bool {
    cell.value.len() >= HUGE_BYTES
}

/// See the module.
pub(in super::super) struct HugeBlock<'a> {
    before: Vec<u8>,
    value: &'a [u8],
    behind: Vec<u8>,
}

impl<'a> HugeBlock<'a> {
    /// The block of this cell: all of its key is the prefix.
    pub(in super::super) fn of(key: &[u8], cell: CellRef<'a>) -> Self {
        let (mut before, mut behind) = (Vec::new(), Vec::new());
        put_fields(&mut before, 0, cell.value.len(), 0, &cell.meta);
        put_end(&mut behind, &[cell.meta.version.tag], key, 1);
        Self { before, value: cell.value, behind }
    }

    /// Its bytes, one part behind the other.
    pub(in super::super) fn parts(&self) -> [&[u8]; 3] {
        [&self.before, self.value, &self.behind]
    }

    /// The value alone, which is nearly all of it.
    pub(in super::super) fn value(&self) -> &'a [u8] {
        self.value
    }
}
