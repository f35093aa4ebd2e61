//! The plain path: requests for one entity that are answered without the HTTP library.
//!
//! **Promise.** A request gets the same answer here as from the library, in its place among the others: requests of
//! one connection are carried out and answered one after the other. Whatever is not plain goes to the library as it
//! came.
//!
//! **Mechanism.** While the library rests (it has answered all that has passed to it, and nothing waits to be written),
//! the connection reads here. The head check says whether a whole plain request is there, `api` what it means and how
//! it is answered; between these the driver is asked, as the service asks it. Answers of pipelined requests leave in
//! one write. A reply that does not come at once, or a client that does not read, is waited for before more is read.
//! What stays meanwhile is taken of the memory budget: the value of a request, answers that were not taken. A request
//! for whose value there is no room is the library's, which refuses it.
//! A write for which there is no room is refused before its value is copied (`refusals`); how much of a pipeline is
//! answered in one turn says `shares`.
//!
//! **Caveats.** The test whether the library rests depends on hyper reading only when it wants a request or a body,
//! which it does when half-closed connections are allowed. A request that comes in pieces goes to the library.

use super::{CheckedStream, HeldInput, InputState, READ_BYTES};
use crate::budget::ThreadReservation;
use crate::driver::executing::Execution;
use crate::process::Process;
use crate::response_memory::{self, LARGE_BYTES, ResponseReservation};
use crate::service::InFlightGuard;
use crate::socket;
use crate::stages::RequestEnd;
use crate::thread::Thread;
use api::{HttpDate, ResponseContext, ServingState};
use bytes::{Buf, Bytes};
use cluster::{Command, Reply};
use http::StatusCode;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use stdx::Instant;
use tokio::io::AsyncWrite;

/// Answers that leave together, about; the largest value that is copied to leave with them is of this size, too.
const ANSWER_BYTES_MAX: usize = LARGE_BYTES;
/// Whoever has sent without waiting counts as one that does for so many turns more.
const GREEDY_BATCHES: u8 = 64;

/// Why a connection ends whose client asks on and on and reads nothing.
const NO_ROOM_FOR_ANSWERS: &str = "answers that nobody takes have used up their memory";

/// What the plain path of a connection owes its client.
#[derive(Default)]
pub(super) struct FastPath {
    /// The request that was taken last, while its reply has not come.
    executing: Option<Executing>,
    unsent: Unsent,
    /// The request that ends when that is sent.
    ending: Option<RequestEnd>,
    /// Requests that were taken.
    requests: u64,
    /// Turns for which its client counts as one that sends without waiting.
    greedy_batches: u8,
}

/// A command that is under way.
struct Executing {
    execution: Execution,
    asked: ResponseContext,
    _value_reservation: Option<ThreadReservation>,
    _under_way: InFlightGuard,
}

/// Answers that the socket did not take yet: what is left of heads and small values, and of a large value behind.
#[derive(Default)]
struct Unsent {
    answers: Bytes,
    value: LargeValue,
    _answers_reservation: Option<ThreadReservation>,
}

/// A value that leaves behind its answer, without a copy, and its room in the memory budget.
#[derive(Default)]
struct LargeValue {
    bytes: Bytes,
    _reservation: Option<ResponseReservation>,
}

/// A command that was replied to at once.
struct ImmediateReply {
    reply: Reply,
    execution: Execution,
    asked: ResponseContext,
}

/// When an answer is made.
struct AnswerTime {
    now: Instant,
    date: HttpDate,
}

/// A plain request that was understood.
struct FastRequest {
    command: Command,
    asked: ResponseContext,
    value_reservation: Option<ThreadReservation>,
    len: usize,
    /// It is not to be carried out, but to be tried again after this.
    refused: Option<Duration>,
}

impl CheckedStream {
    /// Answers plain requests as they come. Ready when the library is to be asked what is next, or when the connection
    /// is broken.
    pub(crate) fn poll_fast_path(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        (self.has_passed_one, self.is_held_back) = (false, false);
        let batch_max = self.thread.shares.batch_max();
        let mut batch_left = batch_max;
        let polled = self.poll_batch(context, &mut batch_left);
        self.end_batch(batch_max - batch_left);
        polled
    }

    fn poll_batch(&mut self, context: &mut Context<'_>, batch_left: &mut usize) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_pending(context))?;
            if !self.can_use_fast_path() {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_pause(context));
            if *batch_left == 0 {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let has_answered = match self.held.bytes.is_empty() {
                true => ready!(self.poll_answer_socket(context, batch_left))?,
                false => self.answer_held(context, batch_left)?,
            };
            // What is not plain is the library's, and the end of the stream.
            if !has_answered {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// A turn in which so many requests were taken has ended, be it because the last of them has to wait.
    fn end_batch(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        let has_more = count > 1 || !self.held.bytes.is_empty();
        let greedy_batches =
            if has_more { GREEDY_BATCHES } else { self.fast_path.greedy_batches.saturating_sub(1) };
        self.fast_path.greedy_batches = greedy_batches;
        self.thread.shares.count(greedy_batches > 0);
    }

    /// Whether the next request may be taken here.
    pub(crate) fn can_use_fast_path(&self) -> bool {
        let nothing_was_judged = self.held.bytes.is_empty() || (self.held.is_news && self.held.passed == 0);
        self.goes_on() && self.check.awaits_head() && nothing_was_judged && self.is_hyper_idle()
    }

    fn is_hyper_idle(&self) -> bool {
        !self.is_unflushed
            && self.outgoing.is_empty()
            && !self.activity.handling.get()
            && self.activity.requests.get() == self.check.heads_passed() + self.fast_path.requests
    }

    /// Reads once, and answers what is plain; whether anything was. What is not is held.
    fn poll_answer_socket(
        &mut self,
        context: &mut Context<'_>,
        batch_left: &mut usize,
    ) -> Poll<io::Result<bool>> {
        let thread = Rc::clone(&self.thread);
        let mut buffer = thread.read_buffer.borrow_mut();
        let bytes = ready!(self.poll_socket(context, &mut buffer[..READ_BYTES]))?;
        if bytes.is_empty() {
            return Poll::Ready(Ok(false));
        }
        let answered = self.answer(bytes, context, batch_left)?;
        if answered < bytes.len() {
            self.held = HeldInput { bytes: bytes[answered..].to_vec(), passed: 0, is_news: true };
            self.reserve_for_held();
        }
        Poll::Ready(Ok(answered > 0))
    }

    /// The same with what is held.
    fn answer_held(&mut self, context: &mut Context<'_>, batch_left: &mut usize) -> io::Result<bool> {
        let mut held = std::mem::take(&mut self.held);
        let answered = self.answer(&held.bytes, context, batch_left)?;
        if answered < held.bytes.len() {
            held.bytes.drain(..answered);
            self.held = held;
        } else {
            self.held_reservation = None;
        }
        Ok(answered > 0)
    }

    /// Answers the plain requests that `bytes` begin with, up to the first whose reply does not come at once; how many
    /// bytes they were.
    fn answer(
        &mut self,
        bytes: &[u8],
        context: &mut Context<'_>,
        batch_left: &mut usize,
    ) -> io::Result<usize> {
        let thread = Rc::clone(&self.thread);
        let mut answers = thread.write_buffer.borrow_mut();
        answers.clear();
        let (mut answered, mut value, mut time) = (0, LargeValue::default(), None);
        while *batch_left > 0
            && answers.len() <= ANSWER_BYTES_MAX
            && value.bytes.is_empty()
            && self.fast_path.executing.is_none()
            && self.pause.is_none()
            && let Some(request) = self.parse_request(&thread, &bytes[answered..])
        {
            *batch_left -= 1;
            answered += request.len;
            if let Some(retry_after) = request.refused {
                let time = time.get_or_insert_with(|| AnswerTime::of(&thread));
                self.refuse(&thread, retry_after, &request.asked, &time.date, &mut answers);
                continue;
            }
            if let Some(ImmediateReply { reply, execution, asked }) = self.begin(&thread, request) {
                let time = time.get_or_insert_with(|| AnswerTime::of(&thread));
                let (status, behind) = self.append(&thread, reply, &asked, true, time, &mut answers);
                value = behind;
                self.end(&thread, execution.end(status, time.now));
            }
        }
        self.send(context, &answers, value)?;
        Ok(answered)
    }

    /// Takes the plain request that `bytes` begin with, if they do.
    fn parse_request(&mut self, thread: &Thread, bytes: &[u8]) -> Option<FastRequest> {
        if bytes.is_empty() || thread.driver().is_none() || thread.process.state() == ServingState::Starting {
            return None;
        }
        let http = self.check.peek_fast_path(bytes)?;
        let entity = api::decode_fast_path(&http, &thread.process.rules)?;
        let refused = thread.refuses(&entity, http.body.len());
        let (value, value_reservation) = if entity.takes_value() && refused.is_none() {
            let reservation = thread.writes.reserve(http.body.len() as u64)?;
            (Bytes::copy_from_slice(http.body), Some(reservation))
        } else {
            (Bytes::new(), None)
        };
        let (command, asked) = entity.into_command(value);
        self.check.skip_fast_path_request();
        self.is_at_start = false;
        self.fast_path.requests += 1;
        self.activity.requests.set(self.activity.requests.get() + 1);
        Some(FastRequest { command, asked, value_reservation, len: http.len, refused })
    }

    /// Appends the answer to what is refused.
    fn refuse(
        &mut self,
        thread: &Thread,
        retry_after: Duration,
        asked: &ResponseContext,
        date: &HttpDate,
        answers: &mut Vec<u8>,
    ) {
        thread.refusals.append(retry_after, asked, date, answers);
        thread.count_refused();
        self.note_answer(asked.action.into(), StatusCode::SERVICE_UNAVAILABLE);
    }

    /// Gives the command to the driver. The reply, if it is there at once.
    fn begin(&mut self, thread: &Thread, request: FastRequest) -> Option<ImmediateReply> {
        let driver = thread.driver().expect("without it nothing is taken");
        let FastRequest { command, asked, value_reservation, .. } = request;
        let mut execution = driver.execute(asked.action.into(), command);
        let Some(reply) = execution.take_now() else {
            let in_flight = InFlightGuard::begin(&self.activity);
            self.fast_path.executing = Some(Executing {
                execution,
                asked,
                _value_reservation: value_reservation,
                _under_way: in_flight,
            });
            return None;
        };
        Some(ImmediateReply { reply, execution, asked })
    }

    /// Appends an answer. Its status, and what is to leave behind it, if it is too large to be copied.
    fn append(
        &mut self,
        thread: &Thread,
        reply: Reply,
        asked: &ResponseContext,
        goes_on: bool,
        time: &AnswerTime,
        answers: &mut Vec<u8>,
    ) -> (StatusCode, LargeValue) {
        let (reply, reservation) =
            response_memory::reserve_for(&thread.process, &self.activity, reply, asked);
        let (status, body) = api::encode_http1(reply, asked, goes_on, &time.date, answers);
        self.note_answer(asked.action.into(), status);
        if body.len() > ANSWER_BYTES_MAX {
            return (status, LargeValue { bytes: body, _reservation: reservation });
        }
        answers.extend_from_slice(&body);
        (status, LargeValue::default())
    }

    /// Pays what is owed: what the socket did not take, then the reply that is under way.
    fn poll_pending(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_unsent(context))?;
            let Some(executing) = &mut self.fast_path.executing else {
                return Poll::Ready(Ok(()));
            };
            let reply = ready!(Pin::new(&mut executing.execution).poll(context));
            let Executing { asked, execution, .. } =
                self.fast_path.executing.take().expect("it was there a moment ago");
            // A connection that is to finish ends with this answer, as it would with the library's.
            let goes_on = self.activity.close_order().is_none();
            if !goes_on {
                self.state = InputState::Stopped;
                self.held = HeldInput::default();
            }
            let thread = Rc::clone(&self.thread);
            let mut answers = thread.write_buffer.borrow_mut();
            answers.clear();
            let time = AnswerTime::of(&thread);
            let (status, value) = self.append(&thread, reply, &asked, goes_on, &time, &mut answers);
            self.end(&thread, execution.end(status, time.now));
            self.send(context, &answers, value)?;
        }
    }

    fn poll_unsent(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.fast_path.unsent.is_empty() {
            let mut unsent = std::mem::take(&mut self.fast_path.unsent);
            let polled = self.poll_send_once(context, &unsent.answers, &unsent.value.bytes);
            if let Poll::Ready(Ok(written)) = polled {
                unsent.advance(written);
            }
            // What has left gives its room back now, not when there is another answer.
            if !unsent.is_empty() {
                self.fast_path.unsent = unsent;
            }
            ready!(polled)?;
        }
        if let Some(ending) = self.fast_path.ending.take() {
            let Process { stages, clock, .. } = &*self.thread.process;
            stages.end_after_wait(ending, &**clock);
        }
        Poll::Ready(Ok(()))
    }

    /// A request has its answer. It ends when that is sent.
    fn end(&mut self, thread: &Thread, ending: RequestEnd) {
        if let Some(before) = self.fast_path.ending.replace(ending) {
            thread.process.stages.end(before, &*thread.process.clock);
        }
    }

    /// Sends answers, and a large value behind them. What the socket does not take at once is owed.
    fn send(&mut self, context: &mut Context<'_>, answers: &[u8], value: LargeValue) -> io::Result<()> {
        if answers.is_empty() {
            return Ok(());
        }
        let written = match self.poll_send_once(context, answers, &value.bytes) {
            Poll::Ready(written) => written?,
            Poll::Pending => 0,
        };
        if written == answers.len() + value.bytes.len() {
            if let Some(ending) = self.fast_path.ending.take() {
                let Process { stages, clock, .. } = &*self.thread.process;
                stages.end(ending, &**clock);
            }
            return Ok(());
        }
        let rest = &answers[written.min(answers.len())..];
        let reservation = self.thread.replies.reserve(rest.len() as u64);
        let reservation =
            reservation.ok_or_else(|| io::Error::new(io::ErrorKind::OutOfMemory, NO_ROOM_FOR_ANSWERS))?;
        let mut unsent = Unsent { answers: Bytes::new(), value, _answers_reservation: Some(reservation) };
        unsent.advance(written.saturating_sub(answers.len()));
        unsent.answers = Bytes::copy_from_slice(rest);
        self.fast_path.unsent = unsent;
        Ok(())
    }

    /// Writes once; how many bytes, at least 1.
    fn poll_send_once(
        &mut self,
        context: &mut Context<'_>,
        answers: &[u8],
        value: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = match value.is_empty() {
            true => socket::poll_send(&self.socket, context, answers),
            false => {
                let parts = [IoSlice::new(answers), IoSlice::new(value)];
                Pin::new(&mut self.socket).poll_write_vectored(context, &parts)
            }
        };
        self.activity.write_blocked.set(polled.is_pending());
        let written = ready!(polled)?;
        self.activity.count_moved(written);
        if written == 0 {
            Poll::Ready(Err(io::ErrorKind::WriteZero.into()))
        } else {
            Poll::Ready(Ok(written))
        }
    }
}

impl Unsent {
    fn is_empty(&self) -> bool {
        self.answers.is_empty() && self.value.bytes.is_empty()
    }

    /// So much of it was written.
    fn advance(&mut self, written: usize) {
        let answers = written.min(self.answers.len());
        self.answers.advance(answers);
        self.value.bytes.advance(written - answers);
    }
}

impl AnswerTime {
    fn of(thread: &Thread) -> Self {
        let now = thread.process.clock.now();
        Self { now: now.mono, date: thread.date.at(now.wall) }
    }
}
