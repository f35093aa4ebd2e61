//! Queue of entries to send; entries to be repeated come first.

use super::source::{Chunk, Chunks};
use crate::error::CtlError;
use api::entries::BatchEntry;
use std::collections::VecDeque;

/// Queue of entries to send.
pub(super) struct EntryQueue {
    chunks: Chunks,
    unsent: VecDeque<BatchEntry>,
    /// Bytes of the file that were read so far.
    pub(super) bytes_read: u64,
    /// Number of entries skipped so far.
    pub(super) skipped: u64,
    is_at_end: bool,
    /// Error that ended reading.
    broken: Option<CtlError>,
}

impl EntryQueue {
    pub(super) fn new(chunks: Chunks) -> Self {
        Self { chunks, unsent: VecDeque::new(), bytes_read: 0, skipped: 0, is_at_end: false, broken: None }
    }

    /// Next entry, if one is available without waiting.
    pub(super) fn next(&mut self) -> Option<BatchEntry> {
        if self.unsent.is_empty()
            && let Ok(chunk) = self.chunks.try_recv()
        {
            self.take(Some(chunk));
        }
        self.unsent.pop_front()
    }

    /// Waits until an entry is available. Returns `false` at the end of the file or after an error.
    pub(super) async fn fill(&mut self) -> bool {
        while self.unsent.is_empty() && !self.is_at_end {
            let chunk = self.chunks.recv().await;
            self.take(chunk);
        }
        !self.unsent.is_empty()
    }

    /// Waits until an entry is available. Returns `false` at the end of the file.
    ///
    /// # Errors
    /// The error that ended reading, once all earlier entries were taken.
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

    /// Puts entries back to the front of the queue.
    pub(super) fn put_back(&mut self, entries: Vec<BatchEntry>) {
        entries.into_iter().rev().for_each(|entry| self.unsent.push_front(entry));
    }
}
