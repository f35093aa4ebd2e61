//! The log in the hands of the one who commits.

use crate::engine::Shared;
use crate::signals::Signals;
use crate::wal::Wal;
use parking_lot::MutexGuard;
use std::ops::{Deref, DerefMut};

/// The log, held by the one who commits. Letting go of it wakes the writers who wait: for their group, or for
/// somebody to commit it, which one of them may have to do now.
pub(crate) struct WalGuard<'a> {
    wal: Option<MutexGuard<'a, Wal>>,
    signals: &'a Signals,
}

impl Shared {
    /// Waits for the log.
    pub(crate) fn lock_wal(&self) -> WalGuard<'_> {
        WalGuard { wal: Some(self.wal.lock()), signals: &self.signals }
    }

    /// The log, if nobody holds it.
    pub(super) fn try_lock_wal(&self) -> Option<WalGuard<'_>> {
        self.wal.try_lock().map(|wal| WalGuard { wal: Some(wal), signals: &self.signals })
    }
}

impl Deref for WalGuard<'_> {
    type Target = Wal;

    fn deref(&self) -> &Wal {
        self.wal.as_ref().expect("held until dropped")
    }
}

impl DerefMut for WalGuard<'_> {
    fn deref_mut(&mut self) -> &mut Wal {
        self.wal.as_mut().expect("held until dropped")
    }
}

impl Drop for WalGuard<'_> {
    fn drop(&mut self) {
        drop(self.wal.take());
        self.signals.committed.wake_waiters();
    }
}
