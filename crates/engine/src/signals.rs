//! Waking those who wait: workers for work, writers for room and for their commit.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::time::Duration;

/// A place to wait for something to change. A notification while nobody waits is kept for the next who does,
/// once.
#[derive(Default)]
pub(crate) struct Signal {
    raised: Mutex<bool>,
    changed: Condvar,
    waiting: AtomicUsize,
}

impl Signal {
    /// Wakes all who wait; costs one atomic read and a short lock when nobody does.
    pub(crate) fn notify(&self) {
        *self.raised.lock() = true;
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.changed.notify_all();
        }
    }

    /// Wakes those who wait in [`Signal::wait_unless`]; nothing is kept for later. Costs two atomic operations
    /// when nobody waits. What `done` looks at must have changed before.
    pub(crate) fn wake_waiters(&self) {
        // Against the increment in `wait_unless`: either it is seen here, or the change is seen by `done` there.
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            drop(self.raised.lock());
            self.changed.notify_all();
        }
    }

    /// Waits for a notification, or for as long as `timeout`. Returns whether there was one that nobody else took.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let mut raised = self.raised.lock();
        if !*raised {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            self.changed.wait_for(&mut raised, timeout);
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        std::mem::take(&mut *raised)
    }

    /// Waits for a notification unless `done` holds. `done` must become true only before a notification.
    pub(crate) fn wait_unless(&self, done: impl Fn() -> bool) {
        let mut raised = self.raised.lock();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !done() {
            self.changed.wait(&mut raised);
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Everything that threads wait for.
#[derive(Default)]
pub(crate) struct Signals {
    /// A batch waits to be committed.
    pub(crate) commit: Signal,
    /// A group was committed.
    pub(crate) committed: Signal,
    /// A memtable was sealed, or a spare segment was taken.
    pub(crate) flush: Signal,
    /// The levels have changed.
    pub(crate) compact: Signal,
    /// The pauses of who compacts in a urgent_compaction: only the end of the engine is told.
    pub(crate) urgent_compaction: Signal,
    /// A memtable was flushed, or the backlog shrank.
    pub(crate) capacity: Signal,
    /// Nobody has anything to say to who scrubs but the end of the engine.
    pub(crate) scrub: Signal,
    /// For pauses before a failed job is tried again: only the end of the engine is told.
    pub(crate) retry: Signal,
    workers: AtomicUsize,
}

impl Signals {
    /// Wakes everybody: the engine or its workers are stopping.
    pub(crate) fn notify_all(&self) {
        let Self { commit, committed, flush, compact, urgent_compaction, capacity, scrub, retry, .. } = self;
        for signal in [commit, committed, flush, compact, urgent_compaction, capacity, scrub, retry] {
            signal.notify();
        }
    }

    pub(crate) fn worker_started(&self) {
        self.workers.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn worker_stopped(&self) {
        self.workers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether threads of the host step the jobs.
    pub(crate) fn has_workers(&self) -> bool {
        self.workers.load(Ordering::SeqCst) > 0
    }
}
