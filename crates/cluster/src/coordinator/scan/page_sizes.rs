//! Sizes of the pages of a scan.
//!
//! The first page is small, so that the first entries are sent at once; each further page is twice
//! as large, up to a bound. The cost of a page beside its entries then becomes negligible, and a
//! reader that stops pins little memory.

use crate::{Page, ScanLimit};

/// Size of the first page, in bytes of keys and values.
const BYTES_FIRST: usize = 16 << 10;
/// Greatest size of a page in bytes, except for one entry that alone is larger.
pub(super) const PAGE_BYTES_MAX: usize = Page::USUAL_BYTES_MAX;
/// Least number of cells requested for the first page, because some of them may be dead.
const CELLS_FIRST: usize = 64;
/// Greatest number of entries of a page.
const ENTRIES_MAX: usize = 4_096;

/// Sizes of the pages of a scan.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageSizes {
    bytes: usize,
    cells: usize,
}

impl PageSizes {
    pub(super) const fn new() -> Self {
        Self { bytes: BYTES_FIRST, cells: CELLS_FIRST }
    }

    /// The limit of the next page of live entries, if `wanted` entries remain.
    pub(super) fn limit(self, wanted: Option<u64>) -> ScanLimit {
        let entries = wanted.map_or(ENTRIES_MAX, |wanted| wanted.min(ENTRIES_MAX as u64) as usize);
        ScanLimit { entries, bytes: self.bytes }
    }

    /// The limit of the next page of cells, of which some may be dead.
    pub(super) fn limit_of_cells(self, wanted: Option<u64>) -> ScanLimit {
        let limit = self.limit(wanted);
        ScanLimit { entries: limit.entries.max(self.cells), ..limit }
    }

    /// Doubles the sizes after a page was received.
    pub(super) fn grow(&mut self) {
        self.bytes = (self.bytes * 2).min(PAGE_BYTES_MAX);
        self.cells = (self.cells * 2).min(ENTRIES_MAX);
    }
}
