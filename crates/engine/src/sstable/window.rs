//! Reading blocks in a row in larger pieces.

use super::format::Extent;
use super::table::read_exact;
use crate::Error;
use env::File;
use std::path::PathBuf;
use std::sync::Arc;

/// What a bulk read asks for at once. While it is worked off, the system reads the next piece.
const BULK_BYTES: u64 = 256 << 10;
/// Reading ahead for a scan begins with this much, at the second block in a row that was not cached...
const AHEAD_BYTES_MIN: u64 = 32 << 10;
/// ... and doubles up to this.
const AHEAD_BYTES_MAX: u64 = 256 << 10;

/// A piece of the file in memory that slides forward.
pub(super) struct Window {
    file: Arc<dyn File>,
    path: PathBuf,
    /// Nothing behind this is read.
    limit: u64,
    start: u64,
    bytes: Vec<u8>,
    ahead_bytes: u64,
    /// Whether reading ahead is full from the beginning.
    bulk: bool,
}

impl Window {
    pub(super) fn new(file: Arc<dyn File>, path: PathBuf, limit: u64, bulk: bool) -> Self {
        let ahead_bytes = if bulk { BULK_BYTES } else { 0 };
        Self { file, path, limit, start: 0, bytes: Vec::new(), ahead_bytes, bulk }
    }

    /// The bytes of a block that lies below the limit.
    pub(super) fn read(&mut self, extent: Extent) -> Result<&[u8], Error> {
        if extent.offset < self.start || extent.end() > self.end() {
            self.slide(extent)?;
        }
        let at = (extent.offset - self.start) as usize;
        Ok(&self.bytes[at..at + extent.bytes as usize])
    }

    fn slide(&mut self, extent: Extent) -> Result<(), Error> {
        let in_a_row = extent.offset == self.end() || (self.start..self.end()).contains(&extent.offset);
        let len = extent.bytes.max(self.ahead_bytes).min(self.limit.saturating_sub(extent.offset));
        self.bytes.resize(len.max(extent.bytes) as usize, 0);
        self.start = extent.offset;
        if let Err(error) = read_exact(&*self.file, &self.path, &mut self.bytes, extent.offset) {
            self.bytes.clear();
            return Err(error);
        }
        if !self.bulk {
            let next = (self.ahead_bytes * 2).clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX);
            self.ahead_bytes = if in_a_row || self.ahead_bytes == 0 { next } else { 0 };
        }
        self.prefetch_next();
        Ok(())
    }

    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Lets the system read the next piece meanwhile. It is only advice, so its failure changes nothing.
    fn prefetch_next(&self) {
        let len = self.ahead_bytes.min(self.limit.saturating_sub(self.end()));
        if len > 0 {
            let _ = self.file.prefetch(self.end(), len);
        }
    }
}
