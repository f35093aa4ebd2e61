//! How large pages are.
//!
//! The first is small, so that the first entries are on their way at once; each next one is twice as large, up to a
//! bound. What a page costs beside its entries then hardly shows, and a reader that stops pins little.

use crate::{Page, ScanLimit};

/// Of the first page, in bytes of keys and values.
const BYTES_FIRST: usize = 16 << 10;
/// Of any page, but for one entry that alone is larger.
pub(super) const PAGE_BYTES_MAX: usize = Page::USUAL_BYTES_MAX;
/// Cells of the first page, whatever little is wanted: some of them may be dead.
const CELLS_FIRST: usize = 64;
/// Entries of a page, at most.
const ENTRIES_MAX: usize = 4_096;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageSizes {
    bytes: usize,
    cells: usize,
}

impl PageSizes {
    pub(super) const fn new() -> Self {
        Self { bytes: BYTES_FIRST, cells: CELLS_FIRST }
    }

    /// The limit of the next page of live entries, when so many are wanted.
    pub(super) fn limit(self, wanted: Option<u64>) -> ScanLimit {
        let entries = wanted.map_or(ENTRIES_MAX, |wanted| wanted.min(ENTRIES_MAX as u64) as usize);
        ScanLimit { entries, bytes: self.bytes }
    }

    /// The same for cells, of which some may be dead.
    pub(super) fn limit_of_cells(self, wanted: Option<u64>) -> ScanLimit {
        let limit = self.limit(wanted);
        ScanLimit { entries: limit.entries.max(self.cells), ..limit }
    }

    /// A page has come.
    pub(super) fn grow(&mut self) {
        self.bytes = (self.bytes * 2).min(PAGE_BYTES_MAX);
        self.cells = (self.cells * 2).min(ENTRIES_MAX);
    }
}
