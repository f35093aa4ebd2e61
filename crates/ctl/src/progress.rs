//! Progress reports and cancellation of long operations.

use crate::error::CtlError;
use std::time::Duration;

/// Progress of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationProgress {
    /// Bytes done.
    pub bytes_done: u64,
    /// Total bytes, if known.
    pub bytes_total: Option<u64>,
    /// Entries done; 0 if files are counted instead of entries.
    pub entries_done: u64,
}

/// Observer of an operation, which may also cancel it.
pub trait ProgressObserver {
    /// Called frequently, with numbers that never decrease.
    fn on_progress(&mut self, progress: OperationProgress);

    /// Called before the operation waits for `time` because of `refused`.
    fn on_wait(&mut self, refused: &CtlError, time: Duration) {
        let _ = (refused, time);
    }

    /// Whether the operation should stop without leaving partial results. Polled frequently by
    /// backups, restores and verifications. Exports and imports end when their future is dropped.
    fn is_cancelled(&self) -> bool;
}

/// Observer that ignores progress and never cancels.
impl ProgressObserver for () {
    fn on_progress(&mut self, _: OperationProgress) {}

    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Counts progress for a [`ProgressObserver`].
pub(crate) struct Meter<'a> {
    observer: &'a mut dyn ProgressObserver,
    progress: OperationProgress,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(observer: &'a mut dyn ProgressObserver, bytes_total: Option<u64>) -> Self {
        let progress = OperationProgress { bytes_total, ..OperationProgress::default() };
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
