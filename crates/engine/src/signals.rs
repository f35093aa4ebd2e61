//! Signals between threads: for workers that wait for work, and writers that wait for space or a
//! commit.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::time::Duration;

/// A condition to wait for. A notification without a waiter is kept for the next one, once.
#[derive(Default)]
pub(crate) struct Signal {
    raised: Mutex<bool>,
    changed: Condvar,
    waiting: AtomicUsize,
}

impl Signal {
    /// Wakes all waiters. Without a waiter it costs one atomic load and a short lock.
    pub(crate) fn notify(&self) {
        *self.raised.lock() = true;
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.changed.notify_all();
        }
    }

    /// Wakes the waiters in [`Signal::wait_unless`]; nothing is kept for later. Without a waiter it
    /// costs two atomic operations. The state that `done` reads must have changed before.
    pub(crate) fn wake_waiters(&self) {
        // Pairs with the increment in `wait_unless`: either this load sees it, or `done` there sees
        // the change.
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            drop(self.raised.lock());
            self.changed.notify_all();
        }
    }

    /// Waits for a notification for at most `timeout`. Returns whether there was one that no other
    /// thread consumed.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let mut raised = self.raised.lock();
        if !*raised {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            self.changed.wait_for(&mut raised, timeout);
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        std::mem::take(&mut *raised)
    }

    /// Waits for a notification without a limit of the time. There is one waiter.
    pub(crate) fn wait_until_notified(&self) {
        let mut raised = self.raised.lock();
        while !std::mem::take(&mut *raised) {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            self.changed.wait(&mut raised);
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Waits for a notification unless `done` holds. `done` must become true only before a
    /// notification.
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

/// The signals of an engine.
#[derive(Default)]
pub(crate) struct Signals {
    /// A batch was queued for the commit.
    pub(crate) commit: Signal,
    /// A group was committed.
    pub(crate) committed: Signal,
    /// A memtable was sealed, or the log has work for the upkeep.
    pub(crate) flush: Signal,
    /// The levels have changed.
    pub(crate) compact: Signal,
    /// The compaction debt or the throughput of compaction may have changed.
    pub(crate) debt: Signal,
    /// Ends the pauses of the compaction threads when the engine closes.
    pub(crate) compaction_pause: Signal,
    /// A memtable was flushed, or the backlog shrank.
    pub(crate) capacity: Signal,
    /// Ends the pauses of the scrub thread when the engine closes.
    pub(crate) scrub: Signal,
    /// Ends the pause before a failed job is retried when the engine closes.
    pub(crate) retry: Signal,
    workers: AtomicUsize,
}

impl Signals {
    /// Wakes all threads: the engine or its workers are stopping.
    pub(crate) fn notify_all(&self) {
        let Self { commit, committed, flush, compact, debt, compaction_pause, .. } = self;
        let Self { capacity, scrub, retry, .. } = self;
        for signal in [commit, committed, flush, compact, debt, compaction_pause, capacity, scrub, retry] {
            signal.notify();
        }
    }

    pub(crate) fn worker_started(&self) {
        self.workers.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn worker_stopped(&self) {
        self.workers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether worker threads step the jobs.
    pub(crate) fn has_workers(&self) -> bool {
        self.workers.load(Ordering::SeqCst) > 0
    }
}
