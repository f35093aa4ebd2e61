//! How many ranges are open, and what they take in memory.
//!
//! **Promise.** Whoever is let in has found room for a whole range, with a page read ahead, and takes what is there: a
//! little while it is not known how long the range is, and with the first page what that page and those behind it will
//! take. So there is room for hundreds of short ranges where there would be room for some tens of long ones.
//!
//! **Caveats.** Between the gate and its first page a range has room for itself alone. Who finds when that page comes that
//! others were faster is refused then, before the first byte has left.

use crate::budget::{MemoryBudget, MemoryCategory, Reservation, VALUE_COPIES_MAX};
use api::entries::{Coding, Format};
use cluster::Page;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Ranges that a node sends at once.
const RANGES_MAX: usize = 1_024;
/// A page, but for one entry that alone is larger.
pub(super) const PAGE_BYTES: usize = 128 << 10;
/// What an open range takes beside its pages: itself, and the library's buffers.
const RANGE_BYTES: u64 = 16 << 10;
/// What it takes while its first page is read, which is small unless an entry is not.
const BEGINNING_BYTES: u64 = RANGE_BYTES + (16 << 10);
/// What it takes when it goes on behind that: the page that is being sent, the one that was read ahead, what was gathered
/// for the socket, and itself.
const LONG_RANGE_BYTES: u64 = 2 * PAGE_BYTES as u64 + (64 << 10);
/// Window and tables of a compressor.
const ZSTD_BYTES: u64 = 1536 << 10;
const GZIP_BYTES: u64 = 384 << 10;

/// The ranges that are open in the process.
#[derive(Debug, Default)]
pub(crate) struct OpenRanges(AtomicUsize);

/// An open range, until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenRange {
    ranges: Arc<OpenRanges>,
    memory: Arc<MemoryBudget>,
    /// What is taken for it apart from large pages.
    reservation: Reservation,
    compressor_bytes: u64,
    /// Of an entry that is larger than a page there is the page, and in formats that are written anew the entry as it is
    /// written and as it was compressed.
    copies: u64,
}

impl OpenRanges {
    /// Opens one more in this form; `None` when there are as many as there may be, or no memory for a long one more.
    pub(crate) fn enter(
        self: &Arc<Self>,
        memory: &Arc<MemoryBudget>,
        format: Format,
        coding: Coding,
    ) -> Option<OpenRange> {
        let compressor_bytes = match coding {
            Coding::Identity => 0,
            Coding::Zstd => ZSTD_BYTES,
            Coding::Gzip => GZIP_BYTES,
        };
        let copies = if format == Format::Lines { 1 } else { VALUE_COPIES_MAX };
        let mut reservation = memory.reserve(MemoryCategory::Ranges, LONG_RANGE_BYTES + compressor_bytes)?;
        assert!(reservation.resize(BEGINNING_BYTES + compressor_bytes), "less is always to be had");
        let open = |open| (open < RANGES_MAX).then_some(open + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, open).ok()?;
        Some(OpenRange {
            ranges: Arc::clone(self),
            memory: Arc::clone(memory),
            reservation,
            compressor_bytes,
            copies,
        })
    }

    /// How many are open.
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl OpenRange {
    /// Takes what the range takes from its first page on. `false`: so much is not left.
    #[must_use]
    pub(super) fn begin(&mut self, first: &Page, is_last: bool) -> bool {
        let bytes = match is_last {
            // What is small is copied once more, to leave at once.
            true => (RANGE_BYTES + 2 * first.bytes().len() as u64).min(LONG_RANGE_BYTES),
            false => LONG_RANGE_BYTES,
        };
        self.reservation.resize(bytes + self.compressor_bytes)
    }

    /// What a page takes beyond what is taken for every range. Never more than there can be.
    pub(super) fn weigh(&self, page: &Page) -> u64 {
        let bytes = page.bytes().len();
        if bytes <= PAGE_BYTES {
            return 0;
        }
        (self.copies * bytes as u64)
            .min(self.memory.category_max(MemoryCategory::Ranges) - self.reservation.bytes())
    }

    /// Takes so many bytes for a page; `None`: they are not left.
    pub(super) fn reserve(&self, bytes: u64) -> Option<Reservation> {
        self.memory.reserve(MemoryCategory::Ranges, bytes)
    }
}

impl Drop for OpenRange {
    fn drop(&mut self) {
        self.ranges.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::LargestValue;
    use crate::config::Limits;
    use cluster::PageBuilder;
    use stdx::{Cell, Hlc, NodeTag, Version};

    fn memory(bytes: u64) -> Arc<MemoryBudget> {
        Arc::new(MemoryBudget::new(
            &Limits { memory_bytes: bytes, ..Limits::default() },
            0,
            LargestValue::default(),
        ))
    }

    fn page(value_len: usize) -> Page {
        let mut page = PageBuilder::with_capacity(0);
        let cell = Cell::value(Version::new(Hlc::from_bits(1), NodeTag(1)), 1, vec![0; value_len].into());
        page.push(b"k", cell.as_ref());
        page.finish()
    }

    #[test]
    fn there_is_room_again_when_one_ends() {
        let (ranges, memory) = (Arc::new(OpenRanges::default()), memory(1 << 30));
        let enter = || ranges.enter(&memory, Format::Lines, Coding::Identity);
        let mut open: Vec<_> = (0..RANGES_MAX).map(|_| enter().expect("room")).collect();
        assert!(enter().is_none());
        assert_eq!(ranges.count(), RANGES_MAX);
        assert_eq!(memory.reserved_bytes(MemoryCategory::Ranges), RANGES_MAX as u64 * BEGINNING_BYTES);
        open.pop();
        assert!(enter().is_some());
        drop(open);
        assert_eq!((ranges.count(), memory.reserved_bytes(MemoryCategory::Ranges)), (0, 0));
    }

    #[test]
    fn hundreds_of_short_ranges_have_room_in_the_least_budget_and_as_many_long_ones_as_it_holds() {
        let least = Limits::for_process(1_000, 16 << 20, 16 << 20).memory_bytes;
        let (ranges, memory) = (Arc::new(OpenRanges::default()), memory(least));
        let enter = || ranges.enter(&memory, Format::Lines, Coding::Identity);
        let mut open: Vec<_> = (0..400).map(|_| enter().expect("room")).collect();
        for range in &mut open {
            assert!(range.begin(&page(1_000), true), "a short one takes no more than it had");
        }
        let reserved = memory.reserved_bytes(MemoryCategory::Ranges);
        assert!(reserved < 400 * BEGINNING_BYTES, "{reserved}");
        let goes_on =
            open.iter_mut().filter_map(|range| range.begin(&page(1_000), false).then_some(())).count();
        assert!((1..=least as usize / 2 / LONG_RANGE_BYTES as usize).contains(&goes_on), "{goes_on}");
        assert!(enter().is_none(), "a long one would find no room");
        assert!(memory.reserved_bytes(MemoryCategory::Ranges) <= memory.category_max(MemoryCategory::Ranges));
        drop(open);
        assert_eq!(memory.reserved_bytes(MemoryCategory::Ranges), 0);
    }

    #[test]
    fn a_range_takes_what_its_first_page_and_those_behind_it_do() {
        let (ranges, memory) = (Arc::new(OpenRanges::default()), memory(64 << 20));
        let mut range = ranges.enter(&memory, Format::Lines, Coding::Gzip).expect("room");
        let reserved = || memory.reserved_bytes(MemoryCategory::Ranges) - GZIP_BYTES;
        assert_eq!(reserved(), BEGINNING_BYTES);
        assert!(range.begin(&Page::default(), true));
        assert_eq!(reserved(), RANGE_BYTES);
        assert!(
            range.begin(&page(50_000), true) && (100_000..150_000).contains(&reserved()),
            "{}",
            reserved()
        );
        assert!(range.begin(&page(1), false));
        assert_eq!(reserved(), LONG_RANGE_BYTES);
        assert!(range.begin(&page(2 * PAGE_BYTES), true));
        assert_eq!(reserved(), LONG_RANGE_BYTES, "and the rest of a large page as its own");
    }

    #[test]
    fn compressed_ranges_are_fewer_and_a_large_page_has_room_in_the_least_budget() {
        let (ranges, memory) = (Arc::new(OpenRanges::default()), memory(8 << 20));
        let enter = |coding| ranges.enter(&memory, Format::Ndjson, coding);
        let open: Vec<_> = std::iter::from_fn(|| enter(Coding::Zstd)).collect();
        assert_eq!(open.len(), 2);
        drop(open);
        let mut range = enter(Coding::Gzip).expect("room");
        assert_eq!(range.weigh(&page(1)), 0);
        let large = page(16 << 20);
        assert!(range.begin(&large, true));
        assert!(range.reserve(range.weigh(&large)).is_some());
    }
}
