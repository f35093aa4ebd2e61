//! Exclusive access to the log for the committing thread.

use crate::engine::Shared;
use crate::signals::Signals;
use crate::wal::Wal;
use parking_lot::MutexGuard;
use std::ops::{Deref, DerefMut};

/// The locked log. Dropping it wakes blocked writers: their group is committed, or one of them may
/// have to commit it.
pub(crate) struct WalGuard<'a> {
    wal: Option<MutexGuard<'a, Wal>>,
    signals: &'a Signals,
}

impl Shared {
    /// Locks the log, waiting if necessary.
    pub(crate) fn lock_wal(&self) -> WalGuard<'_> {
        WalGuard { wal: Some(self.wal.lock()), signals: &self.signals }
    }

    /// Locks the log, if no other thread holds it.
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
