//! How many ranges are open, and what they take in memory.

use crate::budget::{COPIES_OF_VALUE, MemoryBudget, Part, Taken};
use api::entries::{Coding, Format};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Ranges that a node sends at once.
const RANGES_MAX: usize = 1_024;
/// A page, but for one entry that alone is larger.
pub(super) const PAGE_BYTES: usize = 128 << 10;
/// What every open range takes: the page that is being sent, the one that was read ahead, what was gathered for the
/// socket, and itself.
const RANGE_BYTES: u64 = 2 * PAGE_BYTES as u64 + (64 << 10);
/// Window and tables of a compressor.
const ZSTD_BYTES: u64 = 1536 << 10;
const GZIP_BYTES: u64 = 384 << 10;
/// Of an entry that is larger than a page there is the page, and in formats that are written anew the entry as it is
/// written and as it was compressed.
const COPIES_OF_STREAM: u64 = COPIES_OF_VALUE;

/// The ranges that are open in the process.
#[derive(Debug, Default)]
pub(crate) struct OpenRanges(AtomicUsize);

/// An open range, until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenRange {
    ranges: Arc<OpenRanges>,
    memory: Arc<MemoryBudget>,
    /// What is taken for it apart from large pages.
    taken: Taken,
    copies: u64,
}

impl OpenRanges {
    /// Opens one more in this form; `None` when there are as many as there may be, or no memory for one more.
    pub(crate) fn enter(
        self: &Arc<Self>,
        memory: &Arc<MemoryBudget>,
        format: Format,
        coding: Coding,
    ) -> Option<OpenRange> {
        let compressor = match coding {
            Coding::Identity => 0,
            Coding::Zstd => ZSTD_BYTES,
            Coding::Gzip => GZIP_BYTES,
        };
        let copies = if format == Format::Lines { 1 } else { COPIES_OF_STREAM };
        let taken = memory.take(Part::Ranges, RANGE_BYTES + compressor)?;
        let open = |open| (open < RANGES_MAX).then_some(open + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, open).ok()?;
        Some(OpenRange { ranges: Arc::clone(self), memory: Arc::clone(memory), taken, copies })
    }

    /// How many are open.
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl OpenRange {
    /// What a page of so many bytes takes beyond what is taken for every range. Never more than there can be.
    pub(super) fn weigh(&self, page_bytes: usize) -> u64 {
        if page_bytes <= PAGE_BYTES {
            return 0;
        }
        (self.copies * page_bytes as u64).min(self.memory.part_max(Part::Ranges) - self.taken.bytes())
    }

    /// Takes so many bytes for a page; `None`: they are not left.
    pub(super) fn take(&self, bytes: u64) -> Option<Taken> {
        self.memory.take(Part::Ranges, bytes)
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
    use crate::budget::Largest;
    use crate::config::Limits;

    fn memory(bytes: u64) -> Arc<MemoryBudget> {
        Arc::new(MemoryBudget::new(
            &Limits { memory_bytes: bytes, ..Limits::default() },
            0,
            Largest::default(),
        ))
    }

    #[test]
    fn there_is_room_again_when_one_ends() {
        let (ranges, memory) = (Arc::new(OpenRanges::default()), memory(1 << 30));
        let enter = || ranges.enter(&memory, Format::Lines, Coding::Identity);
        let mut open: Vec<_> = (0..RANGES_MAX).map(|_| enter().expect("room")).collect();
        assert!(enter().is_none());
        assert_eq!(ranges.count(), RANGES_MAX);
        assert_eq!(memory.taken(Part::Ranges), RANGES_MAX as u64 * RANGE_BYTES);
        open.pop();
        assert!(enter().is_some());
        drop(open);
        assert_eq!((ranges.count(), memory.taken(Part::Ranges)), (0, 0));
    }

    #[test]
    fn compressed_ranges_are_fewer_and_a_large_page_has_room_in_the_least_budget() {
        let (ranges, memory) = (Arc::new(OpenRanges::default()), memory(8 << 20));
        let enter = |coding| ranges.enter(&memory, Format::Ndjson, coding);
        let open: Vec<_> = std::iter::from_fn(|| enter(Coding::Zstd)).collect();
        assert_eq!(open.len(), 2);
        assert!(enter(Coding::Gzip).is_none());
        drop(open);
        let range = enter(Coding::Gzip).expect("room");
        assert_eq!(range.weigh(PAGE_BYTES), 0);
        assert!(range.take(range.weigh(16 << 20)).is_some());
    }
}
