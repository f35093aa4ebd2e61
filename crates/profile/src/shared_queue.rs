//! The process-wide queue of samples that threads take of themselves.

use crate::aggregate::SampleAggregator;
use crate::error::ProfileError;
use crate::queue::SampleQueue;
use std::sync::{Mutex, MutexGuard, OnceLock};

static QUEUE: OnceLock<SampleQueue> = OnceLock::new();
static READER_LOCK: Mutex<()> = Mutex::new(());

/// Returns the queue if a profile has ever used it. Takes no lock.
pub(crate) fn queue() -> Option<&'static SampleQueue> {
    QUEUE.get()
}

/// Exclusive right to read the queue, held until it is dropped.
pub(crate) struct QueueReader {
    queue: &'static SampleQueue,
    _lock: MutexGuard<'static, ()>,
}

impl QueueReader {
    /// Acquires the right to read, and discards samples that an earlier profile left behind.
    pub(crate) fn acquire() -> Result<Self, ProfileError> {
        let lock = READER_LOCK.try_lock().map_err(|_| ProfileError::Busy)?;
        let queue = QUEUE.get_or_init(SampleQueue::new);
        queue.drain(|_, _| ());
        queue.take_lost();
        Ok(Self { queue, _lock: lock })
    }

    /// Moves the pending samples to `into`.
    pub(crate) fn drain(&self, into: &mut SampleAggregator) {
        self.queue.drain(|header, addresses| into.add(header, addresses));
        into.add_lost(self.queue.take_lost());
    }
}

/// Serialises the tests that use the queue.
#[cfg(test)]
pub(crate) fn lock_for_test() -> impl Drop {
    static TESTS: Mutex<()> = Mutex::new(());
    TESTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
