//! Progress reports and cancellation of long operations.

use crate::error::CtlError;

/// Progress of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes done.
    pub bytes_done: u64,
    /// Total bytes, if known.
    pub bytes_total: Option<u64>,
    /// Entries done; 0 if files are counted instead of entries.
    pub entries_done: u64,
}

/// Observer of an operation, which may also cancel it.
pub trait Observer {
    /// Called frequently, with numbers that never decrease.
    fn on_progress(&mut self, progress: Progress);

    /// Whether the operation should stop without leaving partial results. Polled frequently by
    /// backups, restores and verifications. Exports and imports end when their future is dropped.
    fn is_cancelled(&self) -> bool;
}

/// Observer that ignores progress and never cancels.
impl Observer for () {
    fn on_progress(&mut self, _: Progress) {}

    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Counts progress for an [`Observer`].
pub(crate) struct Meter<'a> {
    observer: &'a mut dyn Observer,
    progress: Progress,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(observer: &'a mut dyn Observer, bytes_total: Option<u64>) -> Self {
        let progress = Progress { bytes_total, ..Progress::default() };
        observer.on_progress(progress);
        Self { observer, progress }
    }

    /// Adds `bytes` to the bytes done.
    ///
    /// # Errors
    /// [`CtlError::Cancelled`] if the observer cancels.
    pub(crate) fn pass(&mut self, bytes: u64) -> Result<(), CtlError> {
        self.progress.bytes_done += bytes;
        self.observer.on_progress(self.progress);
        if self.observer.is_cancelled() { Err(CtlError::Cancelled) } else { Ok(()) }
    }
}
