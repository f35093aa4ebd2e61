//! How far something is, for whoever waits for it.

use crate::error::CtlError;

/// How far something is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that are done.
    pub bytes_done: u64,
    /// Bytes in all, where that is known.
    pub bytes_total: Option<u64>,
    /// Entries that are done; 0 where files are counted and not entries.
    pub entries_done: u64,
}

/// Waits for something, and may end it.
pub trait Observer {
    /// Called often, with numbers that never fall.
    fn on_progress(&mut self, progress: Progress);

    /// Whether it is to end, leaving nothing half done. Asked often by backups, restores and checks; exports and imports end
    /// when their future is dropped.
    fn is_cancelled(&self) -> bool;
}

/// Nobody waits.
impl Observer for () {
    fn on_progress(&mut self, _: Progress) {}

    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Counts what is done for an [`Observer`].
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

    /// So many bytes more are done.
    ///
    /// # Errors
    /// [`CtlError::Cancelled`]: it is to end.
    pub(crate) fn pass(&mut self, bytes: u64) -> Result<(), CtlError> {
        self.progress.bytes_done += bytes;
        self.observer.on_progress(self.progress);
        if self.observer.is_cancelled() { Err(CtlError::Cancelled) } else { Ok(()) }
    }
}
