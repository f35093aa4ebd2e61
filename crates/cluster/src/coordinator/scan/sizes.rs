//! How large pages are.
//!
//! The first is small, so that the first entries are on their way at once; each next one is twice as large, up to a
//! bound. What a page costs beside its entries then hardly shows, and a reader that stops pins little.

use crate::ScanLimit;

/// Of the first page, in bytes of keys and values.
const BYTES_FIRST: usize = 16 << 10;
/// Of any page, but for one entry that alone is larger.
pub(crate) const PAGE_BYTES_MAX: usize = 128 << 10;
/// Entries of a page, at most.
pub(crate) const PAGE_ENTRIES_MAX: usize = 4_096;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageSizes {
    next: usize,
}

impl PageSizes {
    pub(super) const fn new() -> Self {
        Self { next: BYTES_FIRST }
    }

    /// The limit of the next page, which is to have no more entries than are wanted.
    pub(super) fn limit(self, wanted: Option<u64>) -> ScanLimit {
        let entries = wanted.map_or(PAGE_ENTRIES_MAX, |wanted| wanted.min(PAGE_ENTRIES_MAX as u64) as usize);
        ScanLimit { entries, bytes: self.next }
    }

    /// A page has come.
    pub(super) fn grow(&mut self) {
        self.next = (self.next * 2).min(PAGE_BYTES_MAX);
    }
}
