//! Reading ahead for scans.
//!
//! A scan reads block by block and keeps none of what it has read: there may be thousands of them, each in dozens
//! of tables, most standing still until their readers want more. What lies ahead is read by the system, into
//! memory that it takes back when it is needed elsewhere.

use super::format::Extent;
use env::File;

/// Reading ahead begins with this much, at the second block in a row that must be read...
const AHEAD_BYTES_MIN: u64 = 32 << 10;
/// ... and doubles up to this.
const AHEAD_BYTES_MAX: u64 = 256 << 10;

/// How far ahead of a scan the system was asked to read.
#[derive(Default)]
pub(super) struct ReadAhead {
    /// Where the next block begins, if the scan goes on.
    next: u64,
    /// The end of what was asked for.
    asked: u64,
    ahead_bytes: u64,
}

impl ReadAhead {
    /// Takes note that the block at `extent` is about to be read from `file`, and lets the system read on behind it,
    /// up to `limit`. It is only advice, so its failure changes nothing.
    pub(super) fn reads(&mut self, file: &dyn File, extent: Extent, limit: u64) {
        // Between partitions there are filters and indexes, mostly within what was asked for.
        let in_a_row = (self.next..=self.asked.max(self.next)).contains(&extent.offset);
        self.next = extent.end();
        if !in_a_row {
            (self.asked, self.ahead_bytes) = (extent.end(), 0);
        } else if self.asked < extent.end() + self.ahead_bytes / 2 {
            self.ahead_bytes = (self.ahead_bytes * 2).clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX);
            let from = self.asked.max(extent.end());
            self.asked = (extent.end() + self.ahead_bytes).min(limit).max(from);
            if self.asked > from {
                let _ = file.prefetch(from, self.asked - from);
            }
        }
    }

    /// Takes note that the block at `extent` was found in memory.
    pub(super) fn passes(&mut self, extent: Extent) {
        self.next = extent.end();
    }
}
