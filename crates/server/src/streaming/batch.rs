//! Batches: entries are received and executed, and results sent, concurrently.
//!
//! **Promise.** Results are in the order of the entries, one for each. An entry answered with
//! success is stored; an entry that was not received completely is not. A client may send all
//! entries before it reads the first result, up to [`RESULTS_BYTES_MAX`] of results. A client that
//! leaves more results unread and reads nothing for
//! [`Limits::progress_time`](crate::config::Limits::progress_time) loses its connection.
//!
//! **Mechanism.** A task of its own (the [`Pump`]) reads the body, submits the received entries to
//! the coordinator together, and encodes results as replies arrive. The response body takes the
//! results from there, so each direction continues while the other is blocked. The number of
//! entries in flight is bounded for each batch, and for all batches of a thread, which leave
//! capacity for single requests. It is also bounded by the free capacity of coordinator and store,
//! so a batch runs at the speed of the store and is not refused for being faster. Without free
//! capacity the batch waits, for at most the request timeout. After that, entries are submitted
//! nevertheless, and their results report the overload.
//!
//! **Caveats.** Concurrent writers may use up the capacity while a batch waits. An entry that finds
//! none gets a result that says so, and later entries are still tried: a batch does not retry.

use super::open_batches::{ENTRIES_IN_FLIGHT_MIN, OpenBatch, OpenBatches};
use super::results::Results;
use super::time_slices::{RetryDelay, StreamAbort, TimeSlices};
use crate::body::RequestBody;
use crate::connection_activity::{ConnectionActivity, HoldsMemory, InFlightGuard};
use crate::driver::MachineDriver;
use crate::driver::coordinator_machine::CoordinatorMachine;
use crate::driver::executing::Executions;
use crate::memory_holders::MemoryHolders;
use crate::metrics::RequestRecorder;
use crate::stream::CheckedStream;
use api::Problem;
use api::entries::{BatchAction, BatchEntry, EntryDecoder, EntryResult, Format, ResultScope};
use bytes::Bytes;
use cluster::{Command, Key, Quorum};
use limits::{MemoryCategory, Reservation};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Divisor of the store's free capacity for the entries that a batch adds. Others write too, and an
/// entry takes more memory there than its bytes.
const FREE_DIVISOR: u64 = 4;
/// Delay before a batch checks for free capacity again.
const CAPACITY_CHECK_DELAY: Duration = Duration::from_millis(5);
/// Memory of a batch without its entries, in bytes: hyper's buffer, tables, and the batch itself.
const BATCH_BYTES: usize = 64 << 10;
/// Approximate size of a result, in bytes.
const RESULT_BYTES: usize = 64;
/// Limit for unsent results, in bytes. Above it the body is not read.
const RESULTS_BYTES_MAX: usize = 16 << 20;

/// The environment and the parameters of a batch.
#[derive(Clone, Copy)]
pub(crate) struct BatchContext<'a> {
    pub(crate) driver: &'a Rc<MachineDriver<CoordinatorMachine>>,
    pub(crate) open: &'a Rc<OpenBatches>,
    pub(crate) stream: &'a Rc<RefCell<CheckedStream>>,
    pub(crate) activity: &'a Rc<ConnectionActivity>,
    pub(crate) recorder: &'a Rc<RequestRecorder>,
    pub(crate) entries: Format,
    pub(crate) results: Format,
    pub(crate) scope: ResultScope,
    pub(crate) quorum: Quorum,
}

/// A batch whose pump is running.
pub(crate) struct StartedBatch {
    results: Rc<Results>,
    pump: PumpHandle,
}

impl StartedBatch {
    /// Starts to execute the entries of `body`.
    pub(crate) fn begin(body: RequestBody, context: BatchContext<'_>) -> Self {
        let results = Rc::new(Results::new(context.results, context.scope, context.recorder));
        let open_batch = context.open.enter();
        let value_bytes_max = open_batch.batches().value_bytes_max;
        let pump = Pump {
            decoder: EntryDecoder::new(context.entries, value_bytes_max),
            body: Some(body),
            activity: Rc::clone(context.activity),
            stream: Rc::downgrade(context.stream),
            piece_bytes: 0,
            unfinished_bytes: 0,
            entry_bytes_max: value_bytes_max + Key::LEN_MAX,
            executions: Executions::new(context.driver),
            pending_results: VecDeque::new(),
            in_flight_bytes: 0,
            entries_max: ENTRIES_IN_FLIGHT_MIN,
            bytes_max: 0,
            no_capacity_since: None,
            pause: RetryDelay::default(),
            quorum: context.quorum,
            reservation: open_batch.empty_reservation(),
            open_batch,
            results: Rc::clone(&results),
        };
        context.activity.has_body.set(true);
        let pump = PumpHandle(tokio::task::spawn_local(pump).abort_handle());
        Self { results, pump }
    }

    /// Waits for the first result, or for the end without results.
    ///
    /// # Errors
    /// The [`Problem`] with the first entry, if it cannot be decoded: nothing was
    /// executed.
    pub(crate) async fn first_result(&self) -> Result<(), Problem> {
        poll_fn(|context| self.results.poll_begun(context)).await
    }

    /// Converts the batch into the body of its response.
    pub(crate) fn into_body(
        self,
        activity: &Rc<ConnectionActivity>,
        in_flight: InFlightGuard,
        holders: &Arc<MemoryHolders>,
    ) -> BatchBody {
        BatchBody {
            results: self.results,
            _pump: self.pump,
            slices: TimeSlices::begin(activity, in_flight),
            _holds_memory: HoldsMemory::begin(activity, MemoryCategory::Batches, 0, holders),
        }
    }
}

/// The body of a batch response.
pub(crate) struct BatchBody {
    results: Rc<Results>,
    slices: TimeSlices,
    _pump: PumpHandle,
    _holds_memory: HoldsMemory,
}

impl BatchBody {
    pub(super) fn poll_bytes(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, StreamAbort>>> {
        let polled = self.poll_frame(context);
        self.slices.note(&polled);
        polled
    }

    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, StreamAbort>>> {
        ready!(self.slices.poll(context));
        let frame = ready!(self.results.poll_frame(context));
        if let Some(frame) = &frame {
            self.slices.count(frame.len());
        }
        Poll::Ready(frame.map(Ok))
    }
}

/// Handle of the pump; dropping it aborts the task.
struct PumpHandle(AbortHandle);

impl Drop for Pump {
    fn drop(&mut self) {
        self.activity.has_body.set(false);
    }
}

impl Drop for PumpHandle {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The source of the result of an entry.
enum PendingResult {
    /// The reply to its command; `bytes` is the size of the entry.
    Reply { bytes: usize, is_delete: bool },
    /// The result is known.
    Decided(EntryResult),
}

/// Executes a batch.
struct Pump {
    /// The request body, until its end or the first undecodable byte.
    body: Option<RequestBody>,
    activity: Rc<ConnectionActivity>,
    /// The connection's stream, which has the precise reason for a refused body.
    stream: Weak<RefCell<CheckedStream>>,
    decoder: EntryDecoder,
    /// Size of the last body frame, in bytes.
    piece_bytes: usize,
    /// Upper bound of the size of the incomplete entry, in bytes.
    unfinished_bytes: usize,
    /// Maximum size of an entry, in bytes.
    entry_bytes_max: usize,
    executions: Executions,
    /// One for each received entry without a result.
    pending_results: VecDeque<PendingResult>,
    in_flight_bytes: usize,
    /// Number of entries that may be in flight now.
    entries_max: usize,
    /// Bytes of entries that may be in flight now.
    bytes_max: usize,
    /// Time since which the store has had no free capacity.
    no_capacity_since: Option<Instant>,
    /// Delay until the next check for free capacity.
    pause: RetryDelay,
    quorum: Quorum,
    /// Memory reserved for the batch.
    reservation: Reservation,
    open_batch: OpenBatch,
    results: Rc<Results>,
}

impl Future for Pump {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let pump = self.get_mut();
        let polled = pump.poll_all(context);
        pump.activity.has_body.set(pump.body.is_some());
        pump.results.wake_reader();
        polled
    }
}

impl Pump {
    fn poll_all(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            self.take_entries();
            if self.take_replies(context) {
                continue;
            }
            if self.is_full() {
                ready!(self.poll_memory(context));
                continue;
            }
            if self.body.is_none() {
                ready!(self.poll_end());
                return Poll::Ready(());
            }
            match ready!(self.poll_read(context)) {
                Ok(Some(piece)) => {
                    self.piece_bytes = piece.len();
                    // Skipped bytes are not retained.
                    self.unfinished_bytes = (self.unfinished_bytes + piece.len()).min(self.entry_bytes_max);
                    self.decoder.feed(piece);
                }
                Ok(None) => {
                    self.body = None;
                    if let Err(error) = self.decoder.end() {
                        self.refuse_rest(error.to_problem());
                    }
                }
                Err(problem) => self.refuse_rest(problem),
            }
        }
    }

    /// Whether no further entry may be in flight.
    fn is_full(&self) -> bool {
        self.pending_results.len() >= self.entries_max || self.in_flight_bytes >= self.bytes_max
    }

    /// Delays the next check for free capacity if no entry is in flight whose completion would free
    /// some.
    fn poll_memory(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.pending_results.is_empty() {
            return Poll::Pending;
        }
        self.pause.poll(context, CAPACITY_CHECK_DELAY)
    }

    /// Updates the limits for entries in flight.
    fn check_memory(&mut self) {
        // The coordinator's free capacity, but at least one entry: its rate is estimated from
        // completed operations.
        let soon = (self.pending_results.len() + self.executions.free_count()).max(1);
        self.entries_max = soon.min(self.open_batch.entries_max());
        let bytes_max = self.open_batch.batches().in_flight_bytes_max;
        let free = usize::try_from(self.executions.free_bytes() / FREE_DIVISOR).unwrap_or(usize::MAX);
        self.no_capacity_since = (free == 0).then(|| self.no_capacity_since.unwrap_or_else(Instant::now));
        // The disk is full, or others have used up the capacity for the request timeout: entries
        // are submitted, and their results report it.
        let is_overdue = self
            .no_capacity_since
            .is_some_and(|since| since.elapsed() >= self.open_batch.batches().request_timeout);
        let free = if is_overdue { bytes_max } else { free };
        self.bytes_max = bytes_max.min(self.in_flight_bytes.saturating_add(free));
    }

    /// Submits the received entries to the coordinator, within the limits.
    fn take_entries(&mut self) {
        self.check_memory();
        let mut commands = Vec::new();
        while !self.is_full() {
            match self.decoder.next() {
                Ok(None) => break,
                Ok(Some(entry)) => commands.push(self.pending_result(entry)),
                Err(error) if !error.is_final() => {
                    self.unfinished_bytes = self.piece_bytes;
                    self.pending_results.push_back(PendingResult::Decided(EntryResult::from(&error)));
                }
                Err(error) => {
                    if self.body.is_some() {
                        self.refuse_rest(error.to_problem());
                    }
                    break;
                }
            }
        }
        if !commands.is_empty() {
            self.executions.add(commands.into_iter());
        }
    }

    fn pending_result(&mut self, entry: BatchEntry) -> Command {
        let (value_len, is_delete) = match &entry.action {
            BatchAction::Put { value, .. } => (value.len(), false),
            BatchAction::Delete => (0, true),
        };
        let bytes = entry.key.as_bytes().len() + value_len;
        self.unfinished_bytes = self.piece_bytes;
        self.in_flight_bytes += bytes;
        self.pending_results.push_back(PendingResult::Reply { bytes, is_delete });
        entry.into_command(self.quorum)
    }

    /// Writes the available results, in the order of the entries. Returns `false` if there are
    /// none.
    fn take_replies(&mut self, context: &mut Context<'_>) -> bool {
        let has_written = put_decided(&mut self.pending_results, &self.results);
        let Self { executions, pending_results, in_flight_bytes, results, .. } = self;
        let polled = executions.poll_replies(context, |reply| {
            let Some(PendingResult::Reply { bytes, is_delete }) = pending_results.pop_front() else {
                unreachable!(
                    "a reply belongs to the first pending result, and known results before it are written"
                );
            };
            *in_flight_bytes -= bytes;
            results.put(&EntryResult::of_reply(reply, is_delete));
            put_decided(pending_results, results);
        });
        has_written || polled.is_ready()
    }

    /// Reads from the body if memory can be reserved for its entries and results.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Problem>> {
        let waiting = self.results.poll_waiting(context);
        let is_idle = self.pending_results.is_empty() && waiting == 0;
        // An entry in flight counts with its bytes now, and with its result later.
        let results = waiting + self.pending_results.len() * RESULT_BYTES;
        let held = BATCH_BYTES + self.unfinished_bytes + self.in_flight_bytes + results;
        let is_reserved = self.reservation.resize(held as u64);
        if waiting >= RESULTS_BYTES_MAX {
            return Poll::Pending;
        }
        if !is_reserved {
            // The entries in flight release memory when they complete.
            return match is_idle {
                true => Poll::Ready(Err(self.open_batch.refuse())),
                false => Poll::Pending,
            };
        }
        let body = self.body.as_mut().expect("the body is not read after its end");
        let polled = body.poll_next(context);
        if !is_idle {
            self.activity.waits_for_body.set(false);
        }
        polled
    }

    /// Refuses the rest of the body.
    fn refuse_rest(&mut self, problem: Problem) {
        self.body = None;
        let stream = self.stream.upgrade();
        let problem = stream.and_then(|stream| stream.borrow_mut().take_refusal()).unwrap_or(problem);
        if self.decoder.entries() == 0 {
            self.results.end(Err(problem));
        } else {
            self.pending_results.push_back(PendingResult::Decided(problem.into()));
        }
    }

    /// Ends the results once all of them are written.
    fn poll_end(&mut self) -> Poll<()> {
        if !self.pending_results.is_empty() {
            return Poll::Pending;
        }
        if !self.results.is_ended() {
            self.results.end(Ok(()));
        }
        Poll::Ready(())
    }
}

/// Writes the known results at the head of the queue. Returns whether there were any.
fn put_decided(pending_results: &mut VecDeque<PendingResult>, results: &Results) -> bool {
    let mut any = false;
    while let Some(PendingResult::Decided(result)) =
        pending_results.pop_front_if(|pending_result| matches!(pending_result, PendingResult::Decided(_)))
    {
        results.put(&result);
        any = true;
    }
    any
}
