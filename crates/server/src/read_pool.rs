//! Threads that wait for the disk, so that no I/O thread does.

use crate::inbox::Inbox;
use cluster::{StoreFault, StoreId, StoreRequest, StoreResponse};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use stdx::BoundedQueue;
use store::Store;

/// Reads that may wait for a thread.
const READS_WAITING_MAX: usize = 4_096;
/// What a read is told that finds no room.
const RETRY_AFTER: Duration = Duration::from_secs(1);

struct Read {
    id: StoreId,
    request: StoreRequest,
    answer_to: Arc<Inbox>,
}

struct Queue {
    reads: BoundedQueue<Read>,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
}

/// Threads that wait for the disk. They end when this is dropped.
pub(crate) struct ReadPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl ReadPool {
    /// A pool of `threads` threads that read from `store`.
    pub(crate) fn start(store: &Store, threads: usize) -> io::Result<Self> {
        let queue = Queue { reads: BoundedQueue::new(READS_WAITING_MAX), closed: false };
        let shared = Arc::new(Shared { queue: Mutex::new(queue), filled: Condvar::new() });
        let mut pool = Self { shared: Arc::clone(&shared), threads: Vec::with_capacity(threads) };
        for number in 0..threads {
            let (shared, store) = (Arc::clone(&shared), store.clone());
            let thread = std::thread::Builder::new().name(format!("veche-read-{number}"));
            pool.threads.push(thread.spawn(move || shared.work(&store))?);
        }
        Ok(pool)
    }

    /// Answers `request` and leaves what it is in `answer_to`; a refusal when too many wait.
    pub(crate) fn read(&self, id: StoreId, request: StoreRequest, answer_to: &Arc<Inbox>) {
        let read = Read { id, request, answer_to: Arc::clone(answer_to) };
        if self.shared.queue.lock().reads.push(read).is_ok() {
            self.shared.filled.notify_one();
        } else {
            let fault = StoreFault::Overloaded { retry_after: RETRY_AFTER };
            answer_to.put(vec![(id, StoreResponse::Failed(fault))]);
        }
    }
}

impl Drop for ReadPool {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.filled.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that reads from disk panicked");
            }
        }
    }
}

impl Shared {
    fn work(&self, store: &Store) {
        while let Some(read) = self.next() {
            let response = store.answer_blocking(&read.request);
            read.answer_to.put(vec![(read.id, response)]);
        }
    }

    fn next(&self) -> Option<Read> {
        let mut queue = self.queue.lock();
        loop {
            if queue.closed {
                return None;
            }
            if let Some(read) = queue.reads.pop() {
                return Some(read);
            }
            self.filled.wait(&mut queue);
        }
    }
}
