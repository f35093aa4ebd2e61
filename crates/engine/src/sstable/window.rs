//! Reading consecutive blocks in large chunks.
//!
//! A block that is larger than a chunk is read individually into a buffer of its own, so it is in
//! memory once and the chunk buffer stays small.

use super::format::Extent;
use super::table::read_exact;
use crate::Error;
use env::File;
use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes read at once. While a chunk is processed, the operating system reads the next one.
const CHUNK_BYTES: u64 = 256 << 10;

/// A chunk of the file that slides forward, for jobs that read a whole table. Few such jobs run at
/// once.
pub(super) struct Window {
    file: Arc<dyn File>,
    path: PathBuf,
    /// End of the readable range, as a file offset.
    limit: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    pub(super) fn new(file: Arc<dyn File>, path: PathBuf, limit: u64) -> Self {
        Self { file, path, limit, start: 0, bytes: Vec::new() }
    }

    /// Returns the bytes of a block below the limit.
    pub(super) fn read(&mut self, extent: Extent) -> Result<Cow<'_, [u8]>, Error> {
        if extent.bytes > CHUNK_BYTES {
            return self.read_large_block(extent).map(Cow::Owned);
        }
        if extent.offset < self.start || extent.end() > self.end() {
            self.slide(extent)?;
        }
        let at = (extent.offset - self.start) as usize;
        Ok(Cow::Borrowed(&self.bytes[at..at + extent.bytes as usize]))
    }

    fn read_large_block(&mut self, extent: Extent) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; extent.bytes as usize];
        read_exact(&*self.file, &self.path, &mut bytes, extent.offset)?;
        self.start = extent.end();
        self.bytes.clear();
        self.prefetch_next();
        Ok(bytes)
    }

    fn slide(&mut self, extent: Extent) -> Result<(), Error> {
        let len = CHUNK_BYTES.min(self.limit.saturating_sub(extent.offset));
        self.bytes.resize(len.max(extent.bytes) as usize, 0);
        self.start = extent.offset;
        if let Err(error) = read_exact(&*self.file, &self.path, &mut self.bytes, extent.offset) {
            self.bytes.clear();
            return Err(error);
        }
        self.prefetch_next();
        Ok(())
    }

    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Requests read-ahead of the next chunk. This is only a hint, so its failure is ignored.
    fn prefetch_next(&self) {
        let len = CHUNK_BYTES.min(self.limit.saturating_sub(self.end()));
        if len > 0 {
            let _ = self.file.prefetch(self.end(), len);
        }
    }
}
