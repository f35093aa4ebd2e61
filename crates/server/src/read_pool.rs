//! A thread pool for reads from disk, so that no I/O thread blocks on the disk.
//!
//! **Promise.** A point read gets a thread regardless of the number of open ranges: at most half of
//! the threads read pages, and waiting point reads have priority over pages. Point reads do not
//! starve pages either, which repair and hint delivery need as ranges do. If a thread may read the
//! waiting page, at most [`POINTS_BEFORE_PAGE_MAX`] point reads overtake it.
//!
//! **Mechanism.** There are two queues, one for point reads and one for pages. A read that would
//! wait for longer than a tenth of the deadline is refused ([`Admission`]). The two kinds are
//! estimated separately, so a flood of ranges leaves the capacity for point reads. A read whose
//! deadline has passed when its thread is free is skipped.
//!
//! For a large value, memory is reserved before it is read and until its reader has received it.
//! Without memory the read is refused (`response_memory`). Other large data, such as a page, is not
//! reserved on its way to its I/O thread. It holds the permit under which it was read, and few such
//! permits exist at a time (see [`ReadMemory`]).
//!
//! **Caveats.** A pool of one thread cannot be halved: a point read waits for the page in progress.

use crate::inbox::{ResponseInbox, StoreResponses};
use crate::metrics::ReadWaits;
use crate::response_memory::ReadValues;
use crate::stages::StoreTimes;
use cluster::{StoreFault, StoreId, StoreRequest, StoreResponse};
use engine::{LargeReadPermit, ReadMemory};
use env::Clock;
use limits::{Admission, Deadline};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use stdx::{BoundedQueue, Instant, Now};
use store::Store;

/// Most waiting reads of each kind.
const READS_WAITING_MAX: usize = 4_096;
/// Most point reads that overtake a waiting page while a thread may read it.
const POINTS_BEFORE_PAGE_MAX: u32 = 8;
/// A read may wait for at most this fraction of its deadline: 1 / 10.
const WAIT_SHARE: u32 = 10;

struct Read {
    id: StoreId,
    request: StoreRequest,
    inbox: Arc<ResponseInbox>,
    enqueued: Instant,
    /// The read is skipped after this time.
    deadline: Deadline,
}

/// Numbers of reads that wait for a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadsWaiting {
    pub(crate) points: usize,
    pub(crate) pages: usize,
}

struct Queue {
    points: BoundedQueue<Read>,
    pages: BoundedQueue<Read>,
    /// Admission of point reads, waiting and in progress.
    point_delay: Admission,
    page_delay: Admission,
    /// Threads that read pages at the moment.
    paging: usize,
    paging_max: usize,
    /// Point reads that have overtaken the next page.
    points_passed: u32,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
    clock: Arc<dyn Clock>,
    /// Metric of the waiting times, if metrics are enabled.
    waits: Option<Arc<ReadWaits>>,
    /// Memory of large values that were read.
    values: Arc<ReadValues>,
}

/// A thread pool for reads from disk. Dropping it ends the threads.
pub(crate) struct ReadPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Longest time for which a read may wait.
    patience: Duration,
}

impl ReadPool {
    /// Starts a pool of `threads` threads that read from `store`.
    pub(crate) fn start(
        store: &Store,
        threads: usize,
        request_timeout: Duration,
        clock: &Arc<dyn Clock>,
        waits: Option<Arc<ReadWaits>>,
        values: &Arc<ReadValues>,
    ) -> io::Result<Self> {
        let (queue, patience) = (Queue::new((threads / 2).max(1)), request_timeout / WAIT_SHARE);
        let (queue, clock) = (Mutex::new(queue), Arc::clone(clock));
        let shared = Shared { queue, filled: Condvar::new(), clock, waits, values: Arc::clone(values) };
        let shared = Arc::new(shared);
        let mut pool = Self { shared: Arc::clone(&shared), threads: Vec::with_capacity(threads), patience };
        for number in 0..threads {
            let (shared, store) = (Arc::clone(&shared), store.clone());
            let thread = std::thread::Builder::new().name(format!("veche-read-{number}"));
            pool.threads.push(thread.spawn(move || shared.work(&store))?);
        }
        Ok(pool)
    }

    /// Queues a request that arrives `now`, and delivers the response to `inbox`. If the request
    /// would wait too long, the response is a refusal. A request that is not begun by its
    /// `deadline` is skipped.
    pub(crate) fn read(
        &self,
        now: Now,
        (id, request): (StoreId, StoreRequest),
        deadline: Deadline,
        inbox: &Arc<ResponseInbox>,
    ) {
        let read = Read { id, request, inbox: Arc::clone(inbox), enqueued: now.mono, deadline };
        let pushed = self.shared.queue.lock().push(read, self.patience);
        if let Err(retry_after) = pushed {
            let responses = vec![(id, StoreResponse::Failed(StoreFault::Overloaded { retry_after }))];
            inbox.put(StoreResponses { responses, times: StoreTimes::Refused, large_read: None });
        } else {
            self.shared.filled.notify_one();
        }
    }

    /// Numbers of waiting reads.
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
        Self {
            points: reads(),
            pages: reads(),
            point_delay: Admission::sequential(),
            page_delay: Admission::sequential(),
            paging: 0,
            paging_max,
            points_passed: 0,
            closed: false,
        }
    }

    /// Queues a read.
    ///
    /// # Errors
    /// The time to retry after, if the queue is full or the read would wait for longer than
    /// `patience`.
    fn push(&mut self, read: Read, patience: Duration) -> Result<(), Duration> {
        let (queue, delay) = match read.is_of_page() {
            true => (&mut self.pages, &mut self.page_delay),
            false => (&mut self.points, &mut self.point_delay),
        };
        let enqueued = read.enqueued;
        if !delay.admits(patience) || queue.push(read).is_err() {
            return Err(delay.drain_time());
        }
        delay.begin(enqueued, 0);
        Ok(())
    }

    /// Records that a read of a page or of a point is done.
    fn done(&mut self, now: Instant, was_page: bool) {
        let delay = if was_page { &mut self.page_delay } else { &mut self.point_delay };
        delay.end(now, 0);
        self.paging -= usize::from(was_page);
    }

    fn pop(&mut self) -> Option<Read> {
        // If the page limit is reached, one of the threads that read pages takes the next page when
        // it is done.
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
    /// Whether the request reads a page of entries.
    fn is_of_page(&self) -> bool {
        !matches!(self.request, StoreRequest::Replica(_))
    }
}

impl Shared {
    fn work(&self, store: &Store) {
        let mut done = None;
        while let Some(read) = self.next(done) {
            let (is_page, enqueued, dequeued) = (read.is_of_page(), read.enqueued, self.clock.now().mono);
            if let Some(waits) = &self.waits {
                waits.record(is_page, dequeued.saturating_since(enqueued));
            }
            let (response, large_read) = match read.deadline.has_passed(dequeued) {
                true => (StoreResponse::Failed(StoreFault::Expired), None),
                false => self.answer(store, &read.request),
            };
            let read_at = self.clock.now().mono;
            done = Some((read_at, is_page));
            let (responses, times) =
                (vec![(read.id, response)], StoreTimes::Read { enqueued, dequeued, done: read_at });
            read.inbox.put(StoreResponses { responses, times, large_read });
        }
    }

    /// Executes a request. Returns the response, and the permit of a large value in it whose memory
    /// is not reserved.
    fn answer(&self, store: &Store, request: &StoreRequest) -> (StoreResponse, Option<LargeReadPermit>) {
        if matches!(request, StoreRequest::Replica(_)) {
            return self.values.read(|memory| store.answer_covered(request, memory));
        }
        let memory = Arc::<ReadMemory>::default();
        let response = store.answer_covered(request, &memory);
        (response, memory.take().permit)
    }

    /// Waits for the next read, after recording that the previous one, of a page or of a point, is
    /// `done`.
    fn next(&self, done: Option<(Instant, bool)>) -> Option<Read> {
        let mut queue = self.queue.lock();
        if let Some((now, was_page)) = done {
            queue.done(now, was_page);
        }
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
    use crate::config::Limits;
    use crate::memory_holders::MemoryHolders;
    use crate::refusals::Refusals;
    use bytes::Bytes;
    use cluster::{
        Incarnation, Key, KeyRange, NodeSet, PageContent, PageRequest, ReplicaRequest, ReplicaResponse,
        Requester, ScanLimit, SnapshotId,
    };
    use env::{Env, ManualClock, MemFs};
    use limits::{Budget, LargestValue, MemoryCategory};
    use std::path::Path;
    use stdx::{Cell, Hlc, NodeTag, Version, WallTime};
    use store::StoreOptions;

    fn read(number: u64, is_page: bool) -> Read {
        let key = Key::new(Bytes::from_static(b"k")).expect("a key");
        let limit = ScanLimit { entries: 1, bytes: 1 };
        let request = match is_page {
            true => StoreRequest::Scan { after: None, until: None, limit, values: true },
            false => StoreRequest::Replica(ReplicaRequest::Read { key }),
        };
        Read {
            id: StoreId(number),
            request,
            inbox: Arc::default(),
            enqueued: Instant::ZERO,
            deadline: Deadline::NEVER,
        }
    }

    const PATIENCE: Duration = Duration::from_millis(100);

    #[test]
    fn point_reads_overtake_pages_and_keep_a_thread() {
        let mut queue = Queue::new(2);
        for number in 0..4 {
            assert!(queue.push(read(number, true), PATIENCE).is_ok());
        }
        assert!(queue.push(read(10, false), PATIENCE).is_ok());
        let mut dequeued = || queue.pop().map(|read| read.id.0);
        assert_eq!([dequeued(), dequeued(), dequeued(), dequeued()], [Some(10), Some(0), Some(1), None]);
        assert!(queue.push(read(11, false), PATIENCE).is_ok());
        assert_eq!(queue.pop().map(|read| read.id.0), Some(11), "a point read gets the other thread");
        queue.done(Instant::ZERO, true);
        assert_eq!(queue.pop().map(|read| read.id.0), Some(2));
    }

    #[test]
    fn an_endless_stream_of_point_reads_does_not_starve_pages() {
        let mut queue = Queue::new(1);
        assert!(queue.push(read(1, true), PATIENCE).is_ok() && queue.push(read(2, true), PATIENCE).is_ok());
        let mut points_before_page = |is_page_done: bool| {
            if is_page_done {
                queue.done(Instant::ZERO, true);
            }
            let mut points = 0;
            loop {
                assert!(queue.push(read(10, false), PATIENCE).is_ok(), "the queue accepts the point read");
                match queue.pop().expect("a read waits") {
                    point if !point.is_of_page() => points += 1,
                    page => return (points, page.id.0),
                }
                assert!(points < 100, "pages starve");
            }
        };
        assert_eq!(points_before_page(false), (POINTS_BEFORE_PAGE_MAX, 1));
        assert_eq!(points_before_page(true), (POINTS_BEFORE_PAGE_MAX, 2));
    }

    /// A store with a table that contains the value of `k`.
    fn store_with(value: Bytes, env: Env) -> Store {
        let options = StoreOptions {
            engine: engine::Options { memory_bytes: 16 << 20, ..engine::Options::default() },
            membership: store::Membership::of(Vec::new()),
            new_tag: NodeTag(1),
            away_max: store::AWAY_MAX_DEFAULT,
            after_absence: store::AfterAbsence::default(),
            snapshot_age: Duration::from_secs(60),
        };
        let (store, _) = Store::open(env, Path::new("/data"), options).expect("an empty disk");
        let StoreRequest::Replica(ReplicaRequest::Read { key }) = read(0, false).request else {
            unreachable!("it is of a point")
        };
        let cell = Cell::value(Version::new(Hlc::from_bits(1), NodeTag(1)), 1, value);
        let mut group = store.write_group();
        group.add(
            StoreId(0),
            &StoreRequest::Replica(ReplicaRequest::Write { key, cell, hints: NodeSet::EMPTY }),
        );
        store.submit(group, |_, _| ());
        store.engine().flush().expect("space on the disk");
        store
    }

    #[test]
    fn a_large_read_holds_a_reservation_or_its_permit() {
        const MIB: usize = 1 << 20;
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(WallTime::EPOCH_2020));
        let env = Env { fs: Arc::new(MemFs::new()), clock: Arc::clone(&clock) };
        let store = store_with(vec![7; MIB].into(), env);
        let limits = Limits { memory_bytes: 3 * MIB as u64, ..Limits::default() };
        let memory = Arc::new(Budget::new(limits.memory_bytes, 0, LargestValue::default()));
        let holders = Arc::new(MemoryHolders::new(Arc::clone(&memory)));
        let values = Arc::new(ReadValues::new(&holders, &Arc::new(Refusals::new(1))));
        let pool = ReadPool::start(&store, 2, Duration::from_secs(10), &clock, None, &values);
        let (pool, inbox) = (pool.expect("threads"), Arc::<ResponseInbox>::default());
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let receiver = inbox.receiver();
        let answer = |request| {
            pool.read(clock.now(), (StoreId(1), request), Deadline::NEVER, &inbox);
            let StoreResponses { mut responses, large_read, .. } =
                runtime.block_on(receiver.take()).remove(0);
            (responses.remove(0).1, large_read)
        };
        let point = || answer(read(0, false).request);
        let page = PageRequest {
            snapshot: SnapshotId {
                incarnation: Incarnation(1),
                requester: Requester::Coordinator(0),
                number: 1,
            },
            range: KeyRange { from: None, to: None },
            partitions: None,
            limit: ScanLimit { entries: 1, bytes: 1 },
            content: PageContent::Live { at: WallTime::EPOCH_2020 },
        };
        let (paged, large_read) = answer(StoreRequest::ReadPage(page));
        assert!(
            matches!(paged, StoreResponse::Replica(ReplicaResponse::Page { .. })) && large_read.is_some(),
            "{paged:?}"
        );
        drop((paged, large_read));
        let (found, large_read) = point();
        assert!(
            matches!(found, StoreResponse::Replica(ReplicaResponse::Cell(Some(_)))) && large_read.is_none(),
            "its memory is reserved"
        );
        assert_eq!(memory.reserved_bytes(MemoryCategory::Replies), MIB as u64);
        let (overcommit, large_read) = point();
        assert!(
            matches!(overcommit, StoreResponse::Replica(ReplicaResponse::Cell(Some(_))))
                && large_read.is_some(),
            "one value is read in overcommit"
        );
        let (refused, no_large_read) = point();
        assert!(matches!(refused, StoreResponse::Failed(StoreFault::NoMemory { .. })), "{refused:?}");
        assert!(no_large_read.is_none());
        let StoreRequest::Replica(ReplicaRequest::Read { key }) = read(0, false).request else {
            unreachable!("it is of a point")
        };
        let (version, no_large_read) = answer(StoreRequest::Replica(ReplicaRequest::ReadMeta { key }));
        assert!(
            matches!(version, StoreResponse::Replica(ReplicaResponse::Meta(Some(_)))),
            "a version needs no memory: {version:?}"
        );
        assert!(no_large_read.is_none());
        drop((found, overcommit, large_read));
        assert_eq!(memory.reserved_bytes(MemoryCategory::Replies), 0);
    }

    #[test]
    fn each_kind_of_read_has_its_own_delay_limit() {
        let mut queue = Queue::new(1);
        let mut now = Instant::ZERO;
        let at = |number, is_page, enqueued| Read { enqueued, ..read(number, is_page) };
        let (mut refused, mut number) = (0, 0);
        // Reading a page takes a millisecond, in which ten requests arrive.
        for _ in 0..1_000 {
            for _ in 0..10 {
                number += 1;
                refused += u64::from(queue.push(at(number, true, now), PATIENCE).is_err());
            }
            now = now + Duration::from_millis(1);
            assert!(queue.pop().is_some_and(|read| read.is_of_page()), "one waits");
            queue.done(now, true);
        }
        assert!(refused > 8_000 && (50..=200).contains(&queue.pages.len()), "{}", queue.pages.len());
        let retry_after = queue.push(at(0, true, now), Duration::ZERO).expect_err("pages wait");
        assert!(retry_after > PATIENCE / 2 && retry_after < PATIENCE * 2, "{retry_after:?}");
        assert!(queue.push(at(0, false, now), PATIENCE).is_ok());
    }
}
