//! Reading blocks in a row in larger pieces.
//!
//! A block that is larger than a piece is read by itself, into memory of its own: it is there once, and the piece stays
//! small for those behind it.

use super::format::Extent;
use super::table::read_exact;
use crate::Error;
use env::File;
use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

/// What is read at once. While it is worked off, the system reads the next piece.
const PIECE_BYTES: u64 = 256 << 10;

/// A piece of the file in memory that slides forward: for jobs that read all of a table, of which few run at once.
pub(super) struct Window {
    file: Arc<dyn File>,
    path: PathBuf,
    /// Nothing behind this is read.
    limit: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    pub(super) fn new(file: Arc<dyn File>, path: PathBuf, limit: u64) -> Self {
        Self { file, path, limit, start: 0, bytes: Vec::new() }
    }

    /// The bytes of a block that lies below the limit.
    pub(super) fn read(&mut self, extent: Extent) -> Result<Cow<'_, [u8]>, Error> {
        if extent.bytes > PIECE_BYTES {
            return self.read_alone(extent).map(Cow::Owned);
        }
        if extent.offset < self.start || extent.end() > self.end() {
            self.slide(extent)?;
        }
        let at = (extent.offset - self.start) as usize;
        Ok(Cow::Borrowed(&self.bytes[at..at + extent.bytes as usize]))
    }

    fn read_alone(&mut self, extent: Extent) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; extent.bytes as usize];
        read_exact(&*self.file, &self.path, &mut bytes, extent.offset)?;
        self.start = extent.end();
        self.bytes.clear();
        self.prefetch_next();
        Ok(bytes)
    }

    fn slide(&mut self, extent: Extent) -> Result<(), Error> {
        let len = PIECE_BYTES.min(self.limit.saturating_sub(extent.offset));
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

    /// Lets the system read the next piece meanwhile. It is only advice, so its failure changes nothing.
    fn prefetch_next(&self) {
        let len = PIECE_BYTES.min(self.limit.saturating_sub(self.end()));
        if len > 0 {
            let _ = self.file.prefetch(self.end(), len);
        }
    }
}
