//! The one queue of this process, for the queue that its own threads take of themselves.

use crate::aggregate::SampleAggregator;
use crate::error::ProfileError;
use crate::queue::SampleQueue;
use std::sync::{Mutex, MutexGuard, OnceLock};

static QUEUE: OnceLock<SampleQueue> = OnceLock::new();
static READER_LOCK: Mutex<()> = Mutex::new(());

/// The queue, if a profile has ever needed it. Takes no lock.
pub(crate) fn queue() -> Option<&'static SampleQueue> {
    QUEUE.get()
}

/// The right to read the queue, until it is dropped.
pub(crate) struct QueueReader {
    queue: &'static SampleQueue,
    _lock: MutexGuard<'static, ()>,
}

impl QueueReader {
    /// Takes the right, and throws away what a former profile has left.
    pub(crate) fn acquire() -> Result<Self, ProfileError> {
        let lock = READER_LOCK.try_lock().map_err(|_| ProfileError::Busy)?;
        let queue = QUEUE.get_or_init(SampleQueue::new);
        queue.drain(|_, _| ());
        queue.take_lost();
        Ok(Self { queue, _lock: lock })
    }

    /// Hands over what is there.
    pub(crate) fn drain(&self, into: &mut SampleAggregator) {
        self.queue.drain(|header, addresses| into.add(header, addresses));
        into.add_lost(self.queue.take_lost());
    }
}

/// The tests that need the queue, one after another.
#[cfg(test)]
pub(crate) fn lock_for_test() -> impl Drop {
    static TESTS: Mutex<()> = Mutex::new(());
    TESTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
