//! How many ranges are open.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Ranges that a node sends at once.
const RANGES_MAX: usize = 1_024;

/// The ranges that are open in the process.
#[derive(Debug, Default)]
pub(crate) struct OpenRanges(AtomicUsize);

/// An open range, until it is dropped.
pub(crate) struct OpenRange(Arc<OpenRanges>);

impl OpenRanges {
    /// Opens one more; `None` when there are as many as there may be.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<OpenRange> {
        let open = |open| (open < RANGES_MAX).then_some(open + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, open).ok()?;
        Some(OpenRange(Arc::clone(self)))
    }

    /// How many are open.
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for OpenRange {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_again_when_one_ends() {
        let ranges = Arc::new(OpenRanges::default());
        let mut open: Vec<_> = (0..RANGES_MAX).map(|_| ranges.enter().expect("room")).collect();
        assert!(ranges.enter().is_none());
        assert_eq!(ranges.count(), RANGES_MAX);
        open.pop();
        assert!(ranges.enter().is_some());
        drop(open);
        assert_eq!(ranges.count(), 0);
    }
}
