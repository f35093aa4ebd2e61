//! The fast path: requests for one entity that are answered without hyper.
//!
//! **Promise.** A request gets the same response here as from hyper, in the order of its
//! connection: requests of one connection are executed and answered one after the other. Requests
//! that do not qualify go to hyper unchanged.
//!
//! **Mechanism.** The connection reads here while hyper is idle: hyper has answered all requests
//! that passed to it, and no output is pending. The head check finds a complete request that
//! qualifies, `api` decodes it and encodes its response, and the driver executes it as it does for
//! the service. Responses to pipelined requests leave in one write. If a reply is not available at
//! once, or the client does not read, the path waits before it reads on. Memory that is held
//! meanwhile is reserved: the value of a request, and responses that were not sent. If there is no
//! memory for a value, hyper gets the request, and the service refuses it. A write that exceeds the
//! admission limits is refused before its value is copied (`refusals`). `shares` limits the number
//! of pipelined requests that are answered in one batch.
//!
//! **Caveats.** The test whether hyper is idle requires that hyper reads only when it wants a
//! request or a body. It does so when half-closed connections are allowed. A request that arrives
//! in several reads goes to hyper.

use super::{CheckedStream, HeldInput, InputState, READ_BYTES};
use crate::connection_activity::InFlightGuard;
use crate::driver::executing::Execution;
use crate::read_execution::{ReadExecution, ReservedReply};
use crate::response_memory::{LARGE_BYTES, ResponseReservation};
use crate::socket;
use crate::stages::RequestEnd;
use crate::thread::Thread;
use api::{HttpDate, ResponseContext, ServingState};
use bytes::{Buf, Bytes};
use cluster::Command;
use http::StatusCode;
use limits::ThreadReservation;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use stdx::Instant;
use tokio::io::AsyncWrite;

/// Approximate size of the responses that leave together, in bytes. Also the largest value that is
/// copied to leave with them.
const RESPONSE_BYTES_MAX: usize = LARGE_BYTES;
/// Number of further batches for which a client that pipelined counts as one that does.
const GREEDY_BATCHES: u8 = 64;

/// Error that ends the connection of a client that sends requests and reads no responses.
const UNREAD_RESPONSES: &str = "responses that the client does not read have used up their memory";

/// The pending work of a connection on the fast path.
#[derive(Default)]
pub(super) struct FastPath {
    /// The last request, while its reply is pending.
    executing: Option<Executing>,
    unsent: Unsent,
    /// The trace of the request that ends when the pending bytes are sent.
    ending: Option<RequestEnd>,
    /// Number of requests that were taken.
    requests: u64,
    /// Number of further batches for which the client counts as one that pipelines.
    greedy_batches: u8,
}

/// A command in flight.
struct Executing {
    execution: ReadExecution,
    asked: ResponseContext,
    _value_reservation: Option<ThreadReservation>,
    _in_flight: InFlightGuard,
}

/// Responses that the socket did not accept yet: the rest of heads and small values, and of a large
/// value after them.
#[derive(Default)]
struct Unsent {
    responses: Bytes,
    value: LargeValue,
    _responses_reservation: Option<ThreadReservation>,
}

/// A value that is sent after its response head without a copy, with its reservation.
#[derive(Default)]
struct LargeValue {
    bytes: Bytes,
    _reservation: Option<ResponseReservation>,
}

/// A command that was replied to at once.
struct ImmediateReply {
    reply: ReservedReply,
    execution: Execution,
    asked: ResponseContext,
}

/// The time of a response.
struct ResponseTime {
    now: Instant,
    date: HttpDate,
}

/// A decoded request.
struct FastRequest {
    command: Command,
    asked: ResponseContext,
    value_reservation: Option<ThreadReservation>,
    len: usize,
    /// The request is refused, with this `Retry-After`.
    refused: Option<Duration>,
}

impl CheckedStream {
    /// Answers requests that qualify as they arrive. Ready when hyper must be polled for the next
    /// request, or when the connection is broken.
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
            // hyper handles other requests and the end of the stream.
            if !has_answered {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Ends a batch of `count` requests, also if the last of them has to wait.
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

    /// Reads once and answers the requests that qualify. Other bytes are held. Returns whether any
    /// request was answered.
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

    /// Answers the held requests that qualify. Returns whether any was answered.
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

    /// Answers the requests at the beginning of `bytes` that qualify, up to the first whose reply
    /// is not available at once. Returns their length in bytes.
    fn answer(
        &mut self,
        bytes: &[u8],
        context: &mut Context<'_>,
        batch_left: &mut usize,
    ) -> io::Result<usize> {
        let thread = Rc::clone(&self.thread);
        let mut responses = thread.write_buffer.borrow_mut();
        responses.clear();
        let (mut answered, mut value, mut time) = (0, LargeValue::default(), None);
        while *batch_left > 0
            && responses.len() <= RESPONSE_BYTES_MAX
            && value.bytes.is_empty()
            && self.fast_path.executing.is_none()
            && self.pause.is_none()
            && let Some(request) = self.parse_request(&thread, &bytes[answered..])
        {
            *batch_left -= 1;
            answered += request.len;
            if let Some(retry_after) = request.refused {
                let time = time.get_or_insert_with(|| ResponseTime::of(&thread));
                self.refuse(&thread, retry_after, &request.asked, &time.date, &mut responses);
                continue;
            }
            if let Some(ImmediateReply { reply, execution, asked }) = self.begin(&thread, request) {
                let time = time.get_or_insert_with(|| ResponseTime::of(&thread));
                let (status, rest_value) = self.append(reply, &asked, true, time, &mut responses);
                value = rest_value;
                self.end(&thread, execution.end(status, time.now));
            }
        }
        self.send(context, &responses, value)?;
        Ok(answered)
    }

    /// Takes the request at the beginning of `bytes`, if it qualifies.
    fn parse_request(&mut self, thread: &Thread, bytes: &[u8]) -> Option<FastRequest> {
        if bytes.is_empty()
            || thread.driver().is_none()
            || thread.serving_state.get() == ServingState::Starting
        {
            return None;
        }
        let http = self.check.peek_fast_path(bytes)?;
        let entity = api::decode_fast_path(&http, &thread.rules())?;
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

    /// Appends the refusal of a request.
    fn refuse(
        &mut self,
        thread: &Thread,
        retry_after: Duration,
        asked: &ResponseContext,
        date: &HttpDate,
        responses: &mut Vec<u8>,
    ) {
        thread.refusals.append(retry_after, asked, date, responses);
        thread.count_refused();
        self.record_status(asked.action.into(), StatusCode::SERVICE_UNAVAILABLE);
    }

    /// Passes the command to the driver. Returns the reply if it is available at once.
    fn begin(&mut self, thread: &Thread, request: FastRequest) -> Option<ImmediateReply> {
        let driver = thread.driver().expect("requests are taken only with a driver");
        let FastRequest { command, asked, value_reservation, .. } = request;
        let mut execution = ReadExecution::begin(driver, &thread.memory_holders, command, &asked);
        let Some(reply) = execution.take_now(&thread.read_values, &self.activity, &asked) else {
            let in_flight = InFlightGuard::begin(&self.activity);
            self.fast_path.executing = Some(Executing {
                execution,
                asked,
                _value_reservation: value_reservation,
                _in_flight: in_flight,
            });
            return None;
        };
        Some(ImmediateReply { reply, execution: execution.into_execution(), asked })
    }

    /// Appends a response. Returns its status, and a value that is too large to be copied.
    fn append(
        &mut self,
        (reply, reservation): ReservedReply,
        asked: &ResponseContext,
        goes_on: bool,
        time: &ResponseTime,
        responses: &mut Vec<u8>,
    ) -> (StatusCode, LargeValue) {
        let (status, body) = api::encode_http1(reply, asked, goes_on, &time.date, responses);
        self.record_status(asked.action.into(), status);
        if body.len() > RESPONSE_BYTES_MAX {
            return (status, LargeValue { bytes: body, _reservation: reservation });
        }
        responses.extend_from_slice(&body);
        (status, LargeValue::default())
    }

    /// Completes the pending work: first the bytes that the socket did not accept, then the command
    /// in flight.
    fn poll_pending(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_unsent(context))?;
            let Some(executing) = &mut self.fast_path.executing else {
                return Poll::Ready(Ok(()));
            };
            let Executing { execution, asked, .. } = executing;
            let reply = ready!(execution.poll(context, &self.thread.read_values, &self.activity, asked));
            let Executing { asked, execution, .. } =
                self.fast_path.executing.take().expect("the command was polled in this iteration");
            // A connection with an order to finish ends with this response, as it does with
            // hyper's.
            let goes_on = self.activity.close_order().is_none();
            if !goes_on {
                self.state = InputState::Stopped;
                self.held = HeldInput::default();
            }
            let thread = Rc::clone(&self.thread);
            let mut responses = thread.write_buffer.borrow_mut();
            responses.clear();
            let time = ResponseTime::of(&thread);
            let (status, value) = self.append(reply, &asked, goes_on, &time, &mut responses);
            self.end(&thread, execution.into_execution().end(status, time.now));
            self.send(context, &responses, value)?;
        }
    }

    fn poll_unsent(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.fast_path.unsent.is_empty() {
            let mut unsent = std::mem::take(&mut self.fast_path.unsent);
            let polled = self.poll_send_once(context, &unsent.responses, &unsent.value.bytes);
            if let Poll::Ready(Ok(written)) = polled {
                unsent.advance(written);
            }
            // Releases the reservation of sent bytes now, and not at the next response.
            if !unsent.is_empty() {
                self.fast_path.unsent = unsent;
            }
            ready!(polled)?;
        }
        if let Some(ending) = self.fast_path.ending.take() {
            self.thread.stages.end_after_wait(ending);
        }
        Poll::Ready(Ok(()))
    }

    /// Sets the request that ends when its response is sent.
    fn end(&mut self, thread: &Thread, ending: RequestEnd) {
        if let Some(before) = self.fast_path.ending.replace(ending) {
            thread.stages.end(before);
        }
    }

    /// Sends responses with a large value after them. Bytes that the socket does not accept at once
    /// become pending.
    ///
    /// # Errors
    /// The socket's error, or a lack of memory for the pending responses.
    fn send(&mut self, context: &mut Context<'_>, responses: &[u8], value: LargeValue) -> io::Result<()> {
        if responses.is_empty() {
            return Ok(());
        }
        let written = match self.poll_send_once(context, responses, &value.bytes) {
            Poll::Ready(written) => written?,
            Poll::Pending => 0,
        };
        if written == responses.len() + value.bytes.len() {
            if let Some(ending) = self.fast_path.ending.take() {
                self.thread.stages.end(ending);
            }
            return Ok(());
        }
        let rest = &responses[written.min(responses.len())..];
        let reservation = self.thread.replies.reserve(rest.len() as u64);
        let reservation =
            reservation.ok_or_else(|| io::Error::new(io::ErrorKind::OutOfMemory, UNREAD_RESPONSES))?;
        let mut unsent = Unsent { responses: Bytes::new(), value, _responses_reservation: Some(reservation) };
        unsent.advance(written.saturating_sub(responses.len()));
        unsent.responses = Bytes::copy_from_slice(rest);
        self.fast_path.unsent = unsent;
        Ok(())
    }

    /// Writes once. Returns the number of bytes, at least 1.
    fn poll_send_once(
        &mut self,
        context: &mut Context<'_>,
        responses: &[u8],
        value: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = match value.is_empty() {
            true => socket::poll_send(&self.socket, context, responses),
            false => {
                let parts = [IoSlice::new(responses), IoSlice::new(value)];
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
        self.responses.is_empty() && self.value.bytes.is_empty()
    }

    /// Removes `written` bytes from the front.
    fn advance(&mut self, written: usize) {
        let responses = written.min(self.responses.len());
        self.responses.advance(responses);
        self.value.bytes.advance(written - responses);
    }
}

impl ResponseTime {
    fn of(thread: &Thread) -> Self {
        let now = thread.clock.now();
        Self { now: now.mono, date: thread.date.at(now.wall) }
    }
}
