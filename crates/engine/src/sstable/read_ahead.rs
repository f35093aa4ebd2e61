//! Read-ahead for scans.
//!
//! A scan reads block by block and keeps no block that it has passed. There may be thousands of
//! open scans, each over dozens of tables, and most of them idle. So the operating system reads
//! ahead into its page cache, which it can reclaim.

use super::format::Extent;
use env::File;

/// First size of the read-ahead, in bytes. It begins at the second consecutive block that is not
/// cached.
const AHEAD_BYTES_MIN: u64 = 32 << 10;
/// Maximum size of the read-ahead, in bytes. It doubles up to this.
const AHEAD_BYTES_MAX: u64 = 256 << 10;

/// How far ahead of a scan the operating system was asked to read.
#[derive(Default)]
pub(super) struct ReadAhead {
    /// Offset of the next block if the scan continues.
    next: u64,
    /// End of the range that was requested.
    requested_end: u64,
    ahead_bytes: u64,
}

impl ReadAhead {
    /// Records that the block at `extent` is about to be read from `file`, and requests the
    /// following bytes up to `limit`. The request is only a hint, so its failure is ignored.
    pub(super) fn note_read(&mut self, file: &dyn File, extent: Extent, limit: u64) {
        // Filters and indexes lie between partitions, mostly within the requested range.
        let in_a_row = (self.next..=self.requested_end.max(self.next)).contains(&extent.offset);
        self.next = extent.end();
        if !in_a_row {
            (self.requested_end, self.ahead_bytes) = (extent.end(), 0);
        } else if self.requested_end < extent.end() + self.ahead_bytes / 2 {
            self.ahead_bytes = (self.ahead_bytes * 2).clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX);
            let from = self.requested_end.max(extent.end());
            self.requested_end = (extent.end() + self.ahead_bytes).min(limit).max(from);
            if self.requested_end > from {
                let _ = file.prefetch(from, self.requested_end - from);
            }
        }
    }

    /// Records that the block at `extent` was cached.
    pub(super) fn note_cached(&mut self, extent: Extent) {
        self.next = extent.end();
    }
}
