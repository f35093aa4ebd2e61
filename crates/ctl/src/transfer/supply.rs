//! The entries of a file that wait to be sent, those before all others that are to be sent again.

use super::source::{Chunk, Chunks};
use crate::error::CtlError;
use api::entries::BatchEntry;
use std::collections::VecDeque;

/// Entries that are to be sent.
pub(super) struct Supply {
    chunks: Chunks,
    unsent: VecDeque<BatchEntry>,
    /// So much of the file was read, in bytes.
    pub(super) bytes_read: u64,
    /// So many entries were left out so far.
    pub(super) skipped: u64,
    is_at_end: bool,
    /// Why no more can be read.
    broken: Option<CtlError>,
}

impl Supply {
    pub(super) fn new(chunks: Chunks) -> Self {
        Self { chunks, unsent: VecDeque::new(), bytes_read: 0, skipped: 0, is_at_end: false, broken: None }
    }

    /// The next entry, if it is there.
    pub(super) fn next(&mut self) -> Option<BatchEntry> {
        if self.unsent.is_empty()
            && let Ok(chunk) = self.chunks.try_recv()
        {
            self.take(Some(chunk));
        }
        self.unsent.pop_front()
    }

    /// Waits until there is an entry. Returns whether there is one; `false` where no more can be read.
    pub(super) async fn fill(&mut self) -> bool {
        while self.unsent.is_empty() && !self.is_at_end {
            let chunk = self.chunks.recv().await;
            self.take(chunk);
        }
        !self.unsent.is_empty()
    }

    /// The same; `false` at the end of the file.
    ///
    /// # Errors
    /// What is wrong with the file, once all entries before that were taken.
    pub(super) async fn wait(&mut self) -> Result<bool, CtlError> {
        match self.fill().await {
            true => Ok(true),
            false => self.broken.take().map_or(Ok(false), Err),
        }
    }

    fn take(&mut self, chunk: Option<Result<Chunk, CtlError>>) {
        match chunk {
            Some(Ok(Chunk { entries, bytes_read, skipped })) => {
                self.skipped += skipped;
                self.unsent.extend(entries);
                self.bytes_read = bytes_read;
            }
            Some(Err(error)) => (self.broken, self.is_at_end) = (Some(error), true),
            None => self.is_at_end = true,
        }
    }

    /// Before all others.
    pub(super) fn put_back(&mut self, entries: Vec<BatchEntry>) {
        entries.into_iter().rev().for_each(|entry| self.unsent.push_front(entry));
    }
}
