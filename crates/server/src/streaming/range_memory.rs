//! Admission of ranges: their number, and the memory reserved for them.
//!
//! **Promise.** A range is admitted if there is memory for a whole long range with a page read
//! ahead. It then keeps only what it uses: a small reservation while its length is unknown, and
//! from the first page on, the size of that page and those after it. So hundreds of short ranges
//! fit where only tens of long ones would.
//!
//! If clients of one address hold the memory, ranges of other addresses wait for it a few seconds,
//! and slow clients of that address are disconnected (`memory_holders`).
//!
//! **Mechanism.** Each range counts as at least 1 / [`RANGES_MAX`] of the maximum of its category,
//! so memory bounds the number of ranges, too.
//!
//! **Caveats.** Between its admission and its first page a range has reserved memory for itself
//! alone. If other ranges have used up the budget when that page arrives, and no memory becomes
//! free in time, the range is refused before the first byte of its response.

use crate::connection_activity::{ConnectionActivity, HoldsMemory};
use crate::counters::{Counter, Refusal};
use crate::memory_holders::MemoryHolders;
use crate::refusals::Refusals;
use api::Problem;
use api::entries::{Coding, Format};
use cluster::Page;
use limits::{MemoryCategory, Reservation, VALUE_COPIES_MAX};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of open ranges of a node.
const RANGES_MAX: u64 = 1_024;
/// Maximum size of a page in bytes; a page with a single entry may be larger.
pub(super) const PAGE_BYTES: usize = 128 << 10;
/// Memory of an open range without its pages, in bytes: its state and hyper's buffers.
const RANGE_BYTES: u64 = 16 << 10;
/// Memory of a range while its first page is read, in bytes. That page is small unless an entry is
/// large.
const BEGINNING_BYTES: u64 = RANGE_BYTES + (16 << 10);
/// Memory of a range with more than one page, in bytes: the page being sent, the page read ahead,
/// the socket's write buffer, and the range itself.
const LONG_RANGE_BYTES: u64 = 2 * PAGE_BYTES as u64 + (64 << 10);
/// Window and tables of a zstd compressor, in bytes.
const ZSTD_BYTES: u64 = 1536 << 10;
const GZIP_BYTES: u64 = 384 << 10;

/// The open ranges of the process.
#[derive(Debug)]
pub(crate) struct OpenRanges {
    memory_holders: Arc<MemoryHolders>,
    refusals: Arc<Refusals>,
    count: AtomicUsize,
    /// Number of ranges that were broken off after they had begun.
    broken: Counter,
}

/// An admitted range; dropping it releases its memory.
#[derive(Debug)]
pub(crate) struct OpenRange {
    ranges: Arc<OpenRanges>,
    holding: HoldsMemory,
    /// Memory of the range without large pages.
    reservation: Reservation,
    compressor_bytes: u64,
    /// Copies of an entry larger than a page: the page itself and, in formats that encode entries
    /// anew, the encoded entry and its compressed form.
    copies: u64,
}

impl OpenRanges {
    /// No ranges, of a process with this memory.
    pub(crate) fn new(memory_holders: &Arc<MemoryHolders>, refusals: &Arc<Refusals>) -> Self {
        let (memory_holders, refusals) = (Arc::clone(memory_holders), Arc::clone(refusals));
        Self { memory_holders, refusals, count: AtomicUsize::new(0), broken: Counter::default() }
    }

    /// Admits a range of the client of `activity`. `None` if there is no memory for another long
    /// range.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        activity: &Rc<ConnectionActivity>,
        format: Format,
        coding: Coding,
    ) -> Option<OpenRange> {
        let compressor_bytes = match coding {
            Coding::Identity => 0,
            Coding::Zstd => ZSTD_BYTES,
            Coding::Gzip => GZIP_BYTES,
        };
        let copies = if format == Format::Lines { 1 } else { VALUE_COPIES_MAX };
        let holding = HoldsMemory::begin(activity, MemoryCategory::Ranges, 0, &self.memory_holders);
        let (ranges, reservation) = (Arc::clone(self), holding.entry().empty_reservation());
        ranges.count.fetch_add(1, Ordering::Relaxed);
        let mut range = OpenRange { ranges, holding, reservation, compressor_bytes, copies };
        let is_admitted = range.resize(LONG_RANGE_BYTES).await && range.resize(BEGINNING_BYTES).await;
        is_admitted.then_some(range)
    }

    /// Number of open ranges.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Number of ranges that were broken off after they had begun.
    pub(crate) fn broken_count(&self) -> u64 {
        self.broken.get()
    }

    /// Counts a range that is refused for lack of memory, and returns the response for it.
    pub(crate) fn refuse(&self) -> Problem {
        self.refusals.refuse(Refusal::Ranges)
    }

    /// Maximum memory of all ranges together, in bytes.
    fn bytes_max(&self) -> u64 {
        self.memory_holders.budget().category_max(MemoryCategory::Ranges)
    }
}

impl OpenRange {
    /// Resizes the reservation to the needs of the range from its first page on. Returns `false` if
    /// the budget lacks the memory.
    #[must_use]
    pub(super) async fn begin(&mut self, first: &Page, is_last: bool) -> bool {
        let bytes = match is_last {
            // A small page is copied once more, so that it can be written at once.
            true => (RANGE_BYTES + 2 * first.bytes().len() as u64).min(LONG_RANGE_BYTES),
            false => LONG_RANGE_BYTES,
        };
        self.resize(bytes).await
    }

    /// Resizes the reservation to `bytes` and the compressor. Waits if other addresses hold more
    /// than their share.
    async fn resize(&mut self, bytes: u64) -> bool {
        let bytes_min = self.ranges.bytes_max() / RANGES_MAX;
        let bytes = (bytes + self.compressor_bytes).max(bytes_min);
        self.holding.entry().grow_or_wait(&mut self.reservation, bytes, bytes).await
    }

    /// Returns the memory that a page needs beyond the reservation of every range, in bytes. It
    /// never exceeds the maximum of its category.
    pub(super) fn weigh(&self, page: &Page) -> u64 {
        let bytes = page.bytes().len();
        if bytes <= PAGE_BYTES {
            return 0;
        }
        (self.copies * bytes as u64).min(self.ranges.bytes_max() - self.reservation.bytes())
    }

    /// Reserves `bytes` for a page; `None` if the budget lacks them.
    pub(super) fn reserve(&self, bytes: u64) -> Option<Reservation> {
        let reservation = self.holding.entry().reserve(bytes)?;
        self.note_page(bytes);
        Some(reservation)
    }

    /// A reservation of 0 bytes for a page. It succeeds also while other clients wait.
    pub(super) fn empty_page_reservation(&self) -> Reservation {
        self.holding.entry().empty_reservation()
    }

    /// As [`OpenRange::reserve`]; waits if other addresses hold more than their share.
    pub(super) async fn reserve_first(&self, bytes: u64) -> Option<Reservation> {
        let mut reservation = self.empty_page_reservation();
        let grown = self.holding.entry().grow_or_wait(&mut reservation, bytes, bytes).await;
        self.note_page(reservation.bytes());
        grown.then_some(reservation)
    }

    /// Publishes the memory of the range with that of its large pages.
    pub(super) fn note_page(&self, page_bytes: u64) {
        self.holding.entry().holder.note_bytes(self.reservation.bytes() + page_bytes);
    }

    /// Counts a page that was refused for lack of memory.
    pub(super) fn count_refusal(&self) {
        self.ranges.refusals.count(Refusal::Ranges);
    }

    /// Counts the range as broken off.
    pub(super) fn count_broken(&self) {
        self.ranges.broken.count();
    }
}

impl Drop for OpenRange {
    fn drop(&mut self) {
        self.ranges.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Limits;
    use cluster::PageBuilder;
    use limits::{Budget, LargestValue};
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use stdx::{Cell, Hlc, NodeTag, Version};

    fn ranges(memory_bytes: u64) -> (Arc<OpenRanges>, Arc<Budget>) {
        let memory = Arc::new(Budget::new(memory_bytes, 0, LargestValue::default()));
        let holders = Arc::new(MemoryHolders::new(Arc::clone(&memory)));
        (Arc::new(OpenRanges::new(&holders, &Arc::new(Refusals::new(1)))), memory)
    }

    fn page(value_len: usize) -> Page {
        let mut page = PageBuilder::with_capacity(0);
        let cell = Cell::value(Version::new(Hlc::from_bits(1), NodeTag(1)), 1, vec![0; value_len].into());
        page.push(b"k", cell.as_ref());
        page.finish()
    }

    /// The output of a future that does not wait.
    fn now<T>(future: impl Future<Output = T>) -> T {
        let mut context = Context::from_waker(Waker::noop());
        match pin!(future).poll(&mut context) {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("it waits"),
        }
    }

    fn enter(ranges: &Arc<OpenRanges>, format: Format, coding: Coding) -> Option<OpenRange> {
        let activity = Rc::<ConnectionActivity>::default();
        now(ranges.enter(&activity, format, coding))
    }

    #[test]
    fn the_end_of_a_range_admits_another_one() {
        let (ranges, memory) = ranges(1 << 30);
        let enter = || enter(&ranges, Format::Lines, Coding::Identity);
        let max = memory.category_max(MemoryCategory::Ranges);
        let mut open: Vec<_> = (0..RANGES_MAX).map(|_| enter().expect("room")).collect();
        assert!(enter().is_none());
        assert_eq!((ranges.count() as u64, memory.reserved_bytes(MemoryCategory::Ranges)), (RANGES_MAX, max));
        open.pop();
        assert!(enter().is_some());
        drop(open);
        assert_eq!((ranges.count(), memory.reserved_bytes(MemoryCategory::Ranges)), (0, 0));
    }

    #[test]
    fn the_minimum_budget_admits_hundreds_of_short_ranges_and_as_many_long_ones_as_it_holds() {
        let least = Limits::for_process(1_000, 16 << 20, 16 << 20).memory_bytes;
        let (ranges, memory) = ranges(least);
        let enter = || enter(&ranges, Format::Lines, Coding::Identity);
        let mut open: Vec<_> = (0..400).map(|_| enter().expect("room")).collect();
        for range in &mut open {
            assert!(now(range.begin(&page(1_000), true)), "a short range needs no more memory");
        }
        let reserved = memory.reserved_bytes(MemoryCategory::Ranges);
        assert!(reserved < 400 * BEGINNING_BYTES, "{reserved}");
        let goes_on =
            open.iter_mut().filter_map(|range| now(range.begin(&page(1_000), false)).then_some(())).count();
        assert!((1..=least as usize / 2 / LONG_RANGE_BYTES as usize).contains(&goes_on), "{goes_on}");
        assert!(enter().is_none(), "there is no memory for another long range");
        assert!(memory.reserved_bytes(MemoryCategory::Ranges) <= memory.category_max(MemoryCategory::Ranges));
        drop(open);
        assert_eq!(memory.reserved_bytes(MemoryCategory::Ranges), 0);
    }

    #[test]
    fn a_range_reserves_the_memory_of_its_first_page_and_of_later_ones() {
        let (ranges, memory) = ranges(64 << 20);
        let mut range = enter(&ranges, Format::Lines, Coding::Gzip).expect("room");
        let reserved = || memory.reserved_bytes(MemoryCategory::Ranges) - GZIP_BYTES;
        assert_eq!(reserved(), BEGINNING_BYTES);
        assert!(now(range.begin(&Page::default(), true)));
        assert_eq!(reserved(), RANGE_BYTES);
        assert!(
            now(range.begin(&page(50_000), true)) && (100_000..150_000).contains(&reserved()),
            "{}",
            reserved()
        );
        assert!(now(range.begin(&page(1), false)));
        assert_eq!(reserved(), LONG_RANGE_BYTES);
        assert!(now(range.begin(&page(2 * PAGE_BYTES), true)));
        assert_eq!(reserved(), LONG_RANGE_BYTES, "the rest of a large page is reserved separately");
    }

    #[test]
    fn compressed_ranges_are_fewer_and_a_large_page_fits_into_the_minimum_budget() {
        let (ranges, _) = ranges(8 << 20);
        let enter = |coding| enter(&ranges, Format::Ndjson, coding);
        let open: Vec<_> = std::iter::from_fn(|| enter(Coding::Zstd)).collect();
        assert_eq!(open.len(), 2);
        drop(open);
        let mut range = enter(Coding::Gzip).expect("room");
        assert_eq!(range.weigh(&page(1)), 0);
        let large = page(16 << 20);
        assert!(now(range.begin(&large, true)));
        assert!(range.reserve(range.weigh(&large)).is_some());
    }
}
