//! A batch: entries come, are carried out, and their results leave, all at once.
//!
//! **Promise.** Results are in the order of the entries, one each. What was answered with success is stored; an entry
//! that did not come whole is not. A client may send everything before it reads the first result, up to
//! [`RESULTS_BYTES_MAX`] of them. Past that it loses the connection when it reads nothing for
//! [`Limits::progress_time`](crate::config::Limits::progress_time).
//!
//! **Mechanism.** A task of its own (the [`Pump`]) reads the body, gives the entries that have come to the coordinator
//! in one turn, and writes results as replies come; the body of the response takes them from there. So the one goes on
//! while the other stands still. How many entries are under way is bounded for the batch, and for all batches of a
//! thread, which leave room for single requests; and by what coordinator and store have room for, so that a batch goes as fast
//! as the store, and is not refused because it came faster. Where there is no room at all it waits, for as long as an
//! operation may last; after that entries come in all the same, and are told.
//!
//! **Caveats.** What others write while a batch waits may take the room. An entry that finds none gets a result that says
//! so, and those behind it are tried all the same: in a batch, nothing is done again.

use super::results::Results;
use super::{Pause, StreamAbort, TimeSlices};
use crate::body::RequestBody;
use crate::budget::{MemoryCategory, Reservation};
use crate::connection_activity::{ConnectionActivity, HoldsMemory};
use crate::counters::Refusal;
use crate::driver::Driver;
use crate::driver::coordinator_machine::CoordinatorMachine;
use crate::driver::executing::Executions;
use crate::metrics::Recorder;
use crate::process::Process;
use crate::service::InFlightGuard;
use crate::stream::CheckedStream;
use api::Problem;
use api::entries::{BatchAction, BatchEntry, EntryDecoder, EntryResult, Format, ResultScope};
use bytes::Bytes;
use cluster::{Command, Key, Quorum};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Entries of a batch under way, at most, ...
const ENTRIES_UNDER_WAY_MAX: usize = 4_096;
/// ... and their bytes, but for one entry that alone is larger.
const BYTES_UNDER_WAY_MAX: usize = 4 << 20;
/// ... and no more than one in so many of what the store has: half of what it lets wait for its log.
const STORE_SHARE: u64 = 16;
/// ... and of the room it has left right now, no more than this part: others write too, and what an entry takes there is more
/// than its bytes.
const ROOM_SHARE: u64 = 4;
/// How long a batch waits before it looks for room again.
const ROOM_PAUSE: Duration = Duration::from_millis(5);
/// Entries under way in all batches of a thread together: half of what its coordinator takes.
const THREAD_ENTRIES_MAX: usize = 8_192;
/// What a batch takes beside its entries: the library's buffer, tables, and itself.
const BATCH_BYTES: usize = 64 << 10;
/// What the result of an entry takes, about.
const RESULT_BYTES: usize = 64;
/// What each batch may have under way, however many there are.
const ENTRIES_UNDER_WAY_MIN: usize = 8;
/// Results that wait for their client. When there are more, the body is not read on.
const RESULTS_BYTES_MAX: usize = 16 << 20;

/// The batches of a thread that are open: together they leave room for single requests.
#[derive(Debug, Default)]
pub(crate) struct OpenBatches(Cell<usize>);

/// An open batch, until it is dropped.
struct OpenBatch(Rc<OpenBatches>);

impl OpenBatches {
    fn enter(self: &Rc<Self>) -> OpenBatch {
        self.0.set(self.0.get() + 1);
        OpenBatch(Rc::clone(self))
    }
}

impl OpenBatch {
    /// How many entries it may have under way.
    fn entries_max(&self) -> usize {
        (THREAD_ENTRIES_MAX / self.0.0.get()).clamp(ENTRIES_UNDER_WAY_MIN, ENTRIES_UNDER_WAY_MAX)
    }
}

impl Drop for OpenBatch {
    fn drop(&mut self) {
        self.0.0.set(self.0.0.get() - 1);
    }
}

/// What a batch is held to, and where it is carried out.
#[derive(Clone, Copy)]
pub(crate) struct BatchContext<'a> {
    pub(crate) process: &'a Arc<Process>,
    pub(crate) driver: &'a Rc<Driver<CoordinatorMachine>>,
    pub(crate) open: &'a Rc<OpenBatches>,
    pub(crate) stream: &'a Rc<RefCell<CheckedStream>>,
    pub(crate) activity: &'a Rc<ConnectionActivity>,
    pub(crate) recorder: &'a Rc<Recorder>,
    pub(crate) entries: Format,
    pub(crate) results: Format,
    pub(crate) scope: ResultScope,
    pub(crate) quorum: Quorum,
}

/// A batch that has been begun.
pub(crate) struct StartedBatch {
    results: Rc<Results>,
    pump: PumpHandle,
}

impl StartedBatch {
    /// Carries out the entries of `body` from now on.
    pub(crate) fn begin(body: RequestBody, terms: BatchContext<'_>) -> Self {
        let results = Rc::new(Results::new(terms.results, terms.scope, terms.recorder));
        let value_bytes_max = terms.process.rules.value_bytes_max;
        let pump = Pump {
            decoder: EntryDecoder::new(terms.entries, value_bytes_max),
            body: Some(body),
            activity: Rc::clone(terms.activity),
            stream: Rc::downgrade(terms.stream),
            piece_bytes: 0,
            unfinished_bytes: 0,
            entry_bytes_max: value_bytes_max + Key::LEN_MAX,
            executions: Executions::new(terms.driver),
            pending_results: VecDeque::new(),
            bytes_under_way: 0,
            entries_max: ENTRIES_UNDER_WAY_MIN,
            bytes_max: 0,
            crowded_out: None,
            pause: Pause::default(),
            quorum: terms.quorum,
            process: Arc::clone(terms.process),
            reservation: terms.process.memory.empty_reservation(MemoryCategory::Batches),
            room: terms.open.enter(),
            results: Rc::clone(&results),
        };
        terms.activity.has_body.set(true);
        let pump = PumpHandle(tokio::task::spawn_local(pump).abort_handle());
        Self { results, pump }
    }

    /// Waits for the first result, or the end without one.
    ///
    /// # Errors
    /// The [`Problem`] with the first entry, if it is none: nothing was done.
    pub(crate) async fn first_result(&self) -> Result<(), Problem> {
        poll_fn(|context| self.results.poll_begun(context)).await
    }

    /// The body of its response.
    pub(crate) fn into_body(self, activity: &Rc<ConnectionActivity>, in_flight: InFlightGuard) -> BatchBody {
        BatchBody {
            results: self.results,
            _pump: self.pump,
            slices: TimeSlices::begin(activity, in_flight),
            _holding: HoldsMemory::begin(activity, MemoryCategory::Batches),
        }
    }
}

/// The results of a batch, as they leave.
pub(crate) struct BatchBody {
    results: Rc<Results>,
    slices: TimeSlices,
    _pump: PumpHandle,
    _holding: HoldsMemory,
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

/// The task of a batch, until this is dropped.
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

/// Where the result of an entry comes from.
enum PendingResult {
    /// The reply to its command, of so many bytes.
    Reply { bytes: usize, is_delete: bool },
    /// It is known.
    Decided(EntryResult),
}

/// Carries a batch out. See the module.
struct Pump {
    /// Until its end, or the end of what is understood.
    body: Option<RequestBody>,
    activity: Rc<ConnectionActivity>,
    /// Knows best what is wrong with a body.
    stream: Weak<RefCell<CheckedStream>>,
    decoder: EntryDecoder,
    /// Bytes of the piece that came last, ...
    piece_bytes: usize,
    /// ... and of an entry that has not come whole, at most.
    unfinished_bytes: usize,
    /// An entry has no more.
    entry_bytes_max: usize,
    executions: Executions,
    /// One for each entry that has come and has no result yet.
    pending_results: VecDeque<PendingResult>,
    bytes_under_way: usize,
    /// Entries that may be under way now, ...
    entries_max: usize,
    /// ... and their bytes.
    bytes_max: usize,
    /// Since when the store has had no room.
    crowded_out: Option<Instant>,
    /// Until when the batch waits for room.
    pause: Pause,
    quorum: Quorum,
    process: Arc<Process>,
    /// What the batch takes in memory.
    reservation: Reservation,
    room: OpenBatch,
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
                    // Of what is passed over nothing is held.
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

    /// Whether no more entries may be under way.
    fn is_full(&self) -> bool {
        self.pending_results.len() >= self.entries_max || self.bytes_under_way >= self.bytes_max
    }

    /// Waits for a while, if nothing is under way whose end would make room.
    fn poll_memory(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.pending_results.is_empty() {
            return Poll::Pending;
        }
        self.pause.poll(context, ROOM_PAUSE)
    }

    /// Looks how much may be under way now.
    fn check_memory(&mut self) {
        // What the store can do soon, but never nothing: its rate is known by what it does.
        let soon = (self.pending_results.len() + self.executions.free_count()).max(1);
        self.entries_max = soon.min(self.room.entries_max());
        let bytes_max =
            BYTES_UNDER_WAY_MAX.min((self.process.config.engine.memory_bytes / STORE_SHARE) as usize);
        let room = usize::try_from(self.executions.free_bytes() / ROOM_SHARE).unwrap_or(usize::MAX);
        self.crowded_out = (room == 0).then(|| self.crowded_out.unwrap_or_else(Instant::now));
        // A full disk, or others who leave none for so long: those who come are told.
        let are_told =
            self.crowded_out.is_some_and(|since| since.elapsed() >= self.process.config.request_timeout);
        let room = if are_told { bytes_max } else { room };
        self.bytes_max = bytes_max.min(self.bytes_under_way.saturating_add(room));
    }

    /// Gives the coordinator the entries that have come, as many as there is room for.
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
        self.bytes_under_way += bytes;
        self.pending_results.push_back(PendingResult::Reply { bytes, is_delete });
        entry.into_command(self.quorum)
    }

    /// Writes the results that are known, in the order of the entries. `false`: none is.
    fn take_replies(&mut self, context: &mut Context<'_>) -> bool {
        let said = put_decided(&mut self.pending_results, &self.results);
        let Self { executions, pending_results, bytes_under_way, results, .. } = self;
        let polled = executions.poll_replies(context, |reply| {
            let Some(PendingResult::Reply { bytes, is_delete }) = pending_results.pop_front() else {
                unreachable!("replies come in the order of their places, before which all is said");
            };
            *bytes_under_way -= bytes;
            results.put(&EntryResult::of_reply(reply, is_delete));
            put_decided(pending_results, results);
        });
        said || polled.is_ready()
    }

    /// Reads on, when there is room for what comes of it.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Problem>> {
        let waiting = self.results.poll_waiting(context);
        let is_idle = self.pending_results.is_empty() && waiting == 0;
        // Of entries under way there is their bytes now, and a result soon.
        let results = waiting + self.pending_results.len() * RESULT_BYTES;
        let held = BATCH_BYTES + self.unfinished_bytes + self.bytes_under_way + results;
        let has_room = self.reservation.resize(held as u64);
        if waiting >= RESULTS_BYTES_MAX {
            return Poll::Pending;
        }
        if !has_room {
            // What this batch has under way makes room when it ends.
            return match is_idle {
                true => Poll::Ready(Err(self.process.admission.refuse(Refusal::Batches))),
                false => Poll::Pending,
            };
        }
        let body = self.body.as_mut().expect("not read after its end");
        let polled = body.poll_next(context);
        if !is_idle {
            self.activity.waits_for_body.set(false);
        }
        polled
    }

    /// The rest of the body is not carried out.
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

    /// Ends the results once all are there.
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

/// Writes what is known before the first result that is not; whether there was any.
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
