//! Threads that wait for the disk, so that no I/O thread does.
//!
//! **Promise.** A read of one key finds a thread however many ranges are open: at most half of the threads read pages, and
//! of what waits, points come first. Nor do points keep pages from being read, of which repair and hints are made as
//! ranges are: one that waits and has a thread to go to lets at most [`POINTS_BEFORE_PAGE_MAX`] of them pass.
//!
//! **Mechanism.** Two queues, one for points and one for pages, both bounded; what finds no room is refused.
//!
//! **Caveats.** A pool of one thread has no half: a point waits for the page that is being read.

use crate::inbox::{Answers, Inbox};
use crate::metrics::ReadWaits;
use crate::stages::StoreTimes;
use cluster::{StoreFault, StoreId, StoreRequest, StoreResponse};
use env::Clock;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use stdx::{BoundedQueue, Instant, Now};
use store::Store;

/// Reads of a kind that may wait for a thread.
const READS_WAITING_MAX: usize = 4_096;
/// So many points pass a page that waits, while a thread may read it.
const POINTS_BEFORE_PAGE_MAX: u32 = 8;
/// What a read is told that finds no room.
const RETRY_AFTER: Duration = Duration::from_secs(1);

struct Read {
    id: StoreId,
    request: StoreRequest,
    answer_to: Arc<Inbox>,
    came: Instant,
}

/// Reads that wait for a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadsWaiting {
    pub(crate) points: usize,
    pub(crate) pages: usize,
}

struct Queue {
    points: BoundedQueue<Read>,
    pages: BoundedQueue<Read>,
    /// Threads that read pages.
    paging: usize,
    paging_max: usize,
    /// Points that have passed the page that comes next.
    points_passed: u32,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
    clock: Arc<dyn Clock>,
    /// Where it is recorded how long reads waited, if it is.
    waits: Option<Arc<ReadWaits>>,
}

/// Threads that wait for the disk. They end when this is dropped.
pub(crate) struct ReadPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl ReadPool {
    /// A pool of `threads` threads that read from `store`.
    pub(crate) fn start(
        store: &Store,
        threads: usize,
        clock: &Arc<dyn Clock>,
        waits: Option<Arc<ReadWaits>>,
    ) -> io::Result<Self> {
        let queue = Queue::new((threads / 2).max(1));
        let (queue, clock) = (Mutex::new(queue), Arc::clone(clock));
        let shared = Arc::new(Shared { queue, filled: Condvar::new(), clock, waits });
        let mut pool = Self { shared: Arc::clone(&shared), threads: Vec::with_capacity(threads) };
        for number in 0..threads {
            let (shared, store) = (Arc::clone(&shared), store.clone());
            let thread = std::thread::Builder::new().name(format!("veche-read-{number}"));
            pool.threads.push(thread.spawn(move || shared.work(&store))?);
        }
        Ok(pool)
    }

    /// Answers `request`, which comes `now`, and leaves the answer in `answer_to`; a refusal when too many wait.
    pub(crate) fn read(&self, now: Now, id: StoreId, request: StoreRequest, answer_to: &Arc<Inbox>) {
        let read = Read { id, request, answer_to: Arc::clone(answer_to), came: now.mono };
        if self.shared.queue.lock().push(read) {
            self.shared.filled.notify_one();
        } else {
            let fault = StoreFault::Overloaded { retry_after: RETRY_AFTER };
            let responses = vec![(id, StoreResponse::Failed(fault))];
            answer_to.put(Answers { responses, times: StoreTimes::Refused });
        }
    }

    /// What waits for a thread now.
    pub(crate) fn waiting(&self) -> ReadsWaiting {
        let queue = self.shared.queue.lock();
        ReadsWaiting { points: queue.points.len(), pages: queue.pages.len() }
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

impl Queue {
    fn new(paging_max: usize) -> Self {
        let reads = || BoundedQueue::new(READS_WAITING_MAX);
        Self { points: reads(), pages: reads(), paging: 0, paging_max, points_passed: 0, closed: false }
    }

    /// `false`: there is no room.
    fn push(&mut self, read: Read) -> bool {
        let queue = if read.is_of_page() { &mut self.pages } else { &mut self.points };
        queue.push(read).is_ok()
    }

    fn pop(&mut self) -> Option<Read> {
        // Where no more may read pages, one of those that do takes the next when it is done.
        let may_page = self.paging < self.paging_max && !self.pages.is_empty();
        if may_page && (self.points.is_empty() || self.points_passed == POINTS_BEFORE_PAGE_MAX) {
            self.paging += 1;
            self.points_passed = 0;
            return self.pages.pop();
        }
        let point = self.points.pop()?;
        self.points_passed += u32::from(may_page);
        Some(point)
    }
}

impl Read {
    /// Whether it reads many entries.
    fn is_of_page(&self) -> bool {
        !matches!(self.request, StoreRequest::Read { .. })
    }
}

impl Shared {
    fn work(&self, store: &Store) {
        let mut was_page = false;
        while let Some(read) = self.next(was_page) {
            was_page = read.is_of_page();
            let (came, taken) = (read.came, self.clock.now().mono);
            if let Some(waits) = &self.waits {
                waits.record(was_page, taken.saturating_since(came));
            }
            let responses = vec![(read.id, store.answer_blocking(&read.request))];
            let times = StoreTimes::Read { came, taken, done: self.clock.now().mono };
            read.answer_to.put(Answers { responses, times });
        }
    }

    /// Waits for the next read, after one of a page or of a point.
    fn next(&self, was_page: bool) -> Option<Read> {
        let mut queue = self.queue.lock();
        queue.paging -= usize::from(was_page);
        loop {
            if queue.closed {
                return None;
            }
            if let Some(read) = queue.pop() {
                return Some(read);
            }
            self.filled.wait(&mut queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use cluster::{Key, ScanLimit};

    fn read(number: u64, is_page: bool) -> Read {
        let key = Key::new(Bytes::from_static(b"k")).expect("a key");
        let limit = ScanLimit { entries: 1, bytes: 1 };
        let request = match is_page {
            true => StoreRequest::Scan { after: None, until: None, limit, values: true },
            false => StoreRequest::Read { key },
        };
        Read { id: StoreId(number), request, answer_to: Arc::default(), came: Instant::ZERO }
    }

    #[test]
    fn points_pass_pages_and_pages_leave_threads_to_points() {
        let mut queue = Queue::new(2);
        for number in 0..4 {
            assert!(queue.push(read(number, true)));
        }
        assert!(queue.push(read(10, false)));
        let mut taken = || queue.pop().map(|read| read.id.0);
        assert_eq!([taken(), taken(), taken(), taken()], [Some(10), Some(0), Some(1), None]);
        assert!(queue.push(read(11, false)));
        assert_eq!(queue.pop().map(|read| read.id.0), Some(11), "a point finds a thread all the same");
        queue.paging -= 1;
        assert_eq!(queue.pop().map(|read| read.id.0), Some(2));
    }

    #[test]
    fn points_without_end_let_a_page_through_now_and_then() {
        let mut queue = Queue::new(1);
        assert!(queue.push(read(1, true)) && queue.push(read(2, true)));
        let mut points_before_page = |is_page_done: bool| {
            queue.paging -= usize::from(is_page_done);
            let mut points = 0;
            loop {
                assert!(queue.push(read(10, false)), "there are always points");
                match queue.pop().expect("something waits") {
                    point if !point.is_of_page() => points += 1,
                    page => return (points, page.id.0),
                }
                assert!(points < 100, "pages starve");
            }
        };
        assert_eq!(points_before_page(false), (POINTS_BEFORE_PAGE_MAX, 1));
        assert_eq!(points_before_page(true), (POINTS_BEFORE_PAGE_MAX, 2));
    }

    #[test]
    fn each_kind_has_its_own_room() {
        let mut queue = Queue::new(1);
        for number in 0..READS_WAITING_MAX as u64 {
            assert!(queue.push(read(number, true)));
        }
        assert!(!queue.push(read(0, true)));
        assert!(queue.push(read(0, false)));
    }
}
