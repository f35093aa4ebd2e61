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

use super::{CheckedStream, Held, InputState, READ_BYTES};
use crate::budget::Lent;
use crate::driver::executing::Execution;
use crate::process::Process;
use crate::reply_room::{self, LARGE_BYTES, ReplyRoom};
use crate::service::UnderWay;
use crate::socket;
use crate::stages::Ending;
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
const GREEDY_TURNS: u8 = 64;

/// Why a connection ends whose client asks on and on and reads nothing.
const NO_ROOM_FOR_ANSWERS: &str = "answers that nobody takes have used up their memory";

/// What the plain path of a connection owes its client.
#[derive(Default)]
pub(super) struct PlainPath {
    /// The request that was taken last, while its reply has not come.
    executing: Option<Executing>,
    unsent: Unsent,
    /// The request that ends when that is sent.
    ending: Option<Ending>,
    /// Requests that were taken.
    requests: u64,
    /// Turns for which its client counts as one that sends without waiting.
    greedy_turns: u8,
}

/// A command that is under way.
struct Executing {
    execution: Execution,
    asked: ResponseContext,
    _value_room: Option<Lent>,
    _under_way: UnderWay,
}

/// Answers that the socket did not take yet: what is left of heads and small values, and of a large value behind.
#[derive(Default)]
struct Unsent {
    answers: Bytes,
    value: LargeValue,
    _answers_room: Option<Lent>,
}

/// A value that leaves behind its answer, without a copy, and its room in the memory budget.
#[derive(Default)]
struct LargeValue {
    bytes: Bytes,
    _room: Option<ReplyRoom>,
}

/// A command that was replied to at once.
struct Begun {
    reply: Reply,
    execution: Execution,
    asked: ResponseContext,
}

/// When an answer is made.
struct Moment {
    now: Instant,
    date: HttpDate,
}

/// A plain request that was understood.
struct Taken {
    command: Command,
    asked: ResponseContext,
    value_room: Option<Lent>,
    len: usize,
    /// It is not to be carried out, but to be tried again after this.
    refused: Option<Duration>,
}

impl CheckedStream {
    /// Answers plain requests as they come. Ready when the library is to be asked what is next, or when the connection
    /// is broken.
    pub(crate) fn poll_plain(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        (self.has_passed_one, self.is_held_back) = (false, false);
        let most = self.thread.shares.most();
        let mut turn_left = most;
        let polled = self.poll_turn(context, &mut turn_left);
        self.end_turn(most - turn_left);
        polled
    }

    fn poll_turn(&mut self, context: &mut Context<'_>, turn_left: &mut usize) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_owed(context))?;
            if !self.is_plain_turn() {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_pause(context));
            if *turn_left == 0 {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let has_answered = match self.held.bytes.is_empty() {
                true => ready!(self.poll_answer_socket(context, turn_left))?,
                false => self.answer_held(context, turn_left)?,
            };
            // What is not plain is the library's, and the end of the stream.
            if !has_answered {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// A turn in which so many requests were taken has ended, be it because the last of them has to wait.
    fn end_turn(&mut self, taken: usize) {
        if taken == 0 {
            return;
        }
        let has_more = taken > 1 || !self.held.bytes.is_empty();
        let greedy_turns = if has_more { GREEDY_TURNS } else { self.plain.greedy_turns.saturating_sub(1) };
        self.plain.greedy_turns = greedy_turns;
        self.thread.shares.count(greedy_turns > 0);
    }

    /// Whether the next request may be taken here.
    pub(crate) fn is_plain_turn(&self) -> bool {
        let nothing_was_judged = self.held.bytes.is_empty() || (self.held.is_news && self.held.passed == 0);
        self.goes_on() && self.check.awaits_head() && nothing_was_judged && self.library_rests()
    }

    fn library_rests(&self) -> bool {
        !self.is_unflushed
            && self.outgoing.is_empty()
            && !self.vitals.handling.get()
            && self.vitals.requests.get() == self.check.heads_passed() + self.plain.requests
    }

    /// Reads once, and answers what is plain; whether anything was. What is not is held.
    fn poll_answer_socket(
        &mut self,
        context: &mut Context<'_>,
        turn_left: &mut usize,
    ) -> Poll<io::Result<bool>> {
        let thread = Rc::clone(&self.thread);
        let mut buffer = thread.read_buffer.borrow_mut();
        let bytes = ready!(self.poll_socket(context, &mut buffer[..READ_BYTES]))?;
        if bytes.is_empty() {
            return Poll::Ready(Ok(false));
        }
        let answered = self.answer(bytes, context, turn_left)?;
        if answered < bytes.len() {
            self.held = Held { bytes: bytes[answered..].to_vec(), passed: 0, is_news: true };
            self.find_room_for_held();
        }
        Poll::Ready(Ok(answered > 0))
    }

    /// The same with what is held.
    fn answer_held(&mut self, context: &mut Context<'_>, turn_left: &mut usize) -> io::Result<bool> {
        let mut held = std::mem::take(&mut self.held);
        let answered = self.answer(&held.bytes, context, turn_left)?;
        if answered < held.bytes.len() {
            held.bytes.drain(..answered);
            self.held = held;
        } else {
            self.held_room = None;
        }
        Ok(answered > 0)
    }

    /// Answers the plain requests that `bytes` begin with, up to the first whose reply does not come at once; how many
    /// bytes they were.
    fn answer(
        &mut self,
        bytes: &[u8],
        context: &mut Context<'_>,
        turn_left: &mut usize,
    ) -> io::Result<usize> {
        let thread = Rc::clone(&self.thread);
        let mut answers = thread.write_buffer.borrow_mut();
        answers.clear();
        let (mut answered, mut value, mut moment) = (0, LargeValue::default(), None);
        while *turn_left > 0
            && answers.len() <= ANSWER_BYTES_MAX
            && value.bytes.is_empty()
            && self.plain.executing.is_none()
            && self.pause.is_none()
            && let Some(taken) = self.take(&thread, &bytes[answered..])
        {
            *turn_left -= 1;
            answered += taken.len;
            if let Some(retry_after) = taken.refused {
                let moment = moment.get_or_insert_with(|| Moment::of(&thread));
                self.refuse(&thread, retry_after, &taken.asked, &moment.date, &mut answers);
                continue;
            }
            if let Some(Begun { reply, execution, asked }) = self.begin(&thread, taken) {
                let moment = moment.get_or_insert_with(|| Moment::of(&thread));
                let (status, behind) = self.append(&thread, reply, &asked, true, moment, &mut answers);
                value = behind;
                self.end(&thread, execution.end(status, moment.now));
            }
        }
        self.send(context, &answers, value)?;
        Ok(answered)
    }

    /// Takes the plain request that `bytes` begin with, if they do.
    fn take(&mut self, thread: &Thread, bytes: &[u8]) -> Option<Taken> {
        if bytes.is_empty() || thread.driver().is_none() || thread.process.state() == ServingState::Starting {
            return None;
        }
        let request = self.check.peek_fast_path(bytes)?;
        let entity = api::decode_fast_path(&request, &thread.process.rules)?;
        let refused = thread.refuses(&entity, request.body.len());
        let (value, value_room) = if entity.takes_value() && refused.is_none() {
            let room = thread.writes.lend(request.body.len() as u64)?;
            (Bytes::copy_from_slice(request.body), Some(room))
        } else {
            (Bytes::new(), None)
        };
        let (command, asked) = entity.into_command(value);
        self.check.skip_fast_path_request();
        self.is_at_start = false;
        self.plain.requests += 1;
        self.vitals.requests.set(self.vitals.requests.get() + 1);
        Some(Taken { command, asked, value_room, len: request.len, refused })
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
    fn begin(&mut self, thread: &Thread, taken: Taken) -> Option<Begun> {
        let driver = thread.driver().expect("without it nothing is taken");
        let Taken { command, asked, value_room, .. } = taken;
        let mut execution = driver.execute(asked.action.into(), command);
        let Some(reply) = execution.take_now() else {
            let under_way = UnderWay::begin(&self.vitals);
            self.plain.executing =
                Some(Executing { execution, asked, _value_room: value_room, _under_way: under_way });
            return None;
        };
        Some(Begun { reply, execution, asked })
    }

    /// Appends an answer. Its status, and what is to leave behind it, if it is too large to be copied.
    fn append(
        &mut self,
        thread: &Thread,
        reply: Reply,
        asked: &ResponseContext,
        goes_on: bool,
        moment: &Moment,
        answers: &mut Vec<u8>,
    ) -> (StatusCode, LargeValue) {
        let (reply, room) = reply_room::find(&thread.process, &self.vitals, reply, asked);
        let (status, body) = api::encode_http1(reply, asked, goes_on, &moment.date, answers);
        self.note_answer(asked.action.into(), status);
        if body.len() > ANSWER_BYTES_MAX {
            return (status, LargeValue { bytes: body, _room: room });
        }
        answers.extend_from_slice(&body);
        (status, LargeValue::default())
    }

    /// Pays what is owed: what the socket did not take, then the reply that is under way.
    fn poll_owed(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_unsent(context))?;
            let Some(executing) = &mut self.plain.executing else {
                return Poll::Ready(Ok(()));
            };
            let reply = ready!(Pin::new(&mut executing.execution).poll(context));
            let Executing { asked, execution, .. } =
                self.plain.executing.take().expect("it was there a moment ago");
            // A connection that is to finish ends with this answer, as it would with the library's.
            let goes_on = self.vitals.order().is_none();
            if !goes_on {
                self.state = InputState::Stopped;
                self.held = Held::default();
            }
            let thread = Rc::clone(&self.thread);
            let mut answers = thread.write_buffer.borrow_mut();
            answers.clear();
            let moment = Moment::of(&thread);
            let (status, value) = self.append(&thread, reply, &asked, goes_on, &moment, &mut answers);
            self.end(&thread, execution.end(status, moment.now));
            self.send(context, &answers, value)?;
        }
    }

    fn poll_unsent(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.plain.unsent.is_empty() {
            let mut unsent = std::mem::take(&mut self.plain.unsent);
            let polled = self.poll_send_once(context, &unsent.answers, &unsent.value.bytes);
            if let Poll::Ready(Ok(written)) = polled {
                unsent.advance(written);
            }
            // What has left gives its room back now, not when there is another answer.
            if !unsent.is_empty() {
                self.plain.unsent = unsent;
            }
            ready!(polled)?;
        }
        if let Some(ending) = self.plain.ending.take() {
            let Process { stages, clock, .. } = &*self.thread.process;
            stages.end_after_wait(ending, &**clock);
        }
        Poll::Ready(Ok(()))
    }

    /// A request has its answer. It ends when that is sent.
    fn end(&mut self, thread: &Thread, ending: Ending) {
        if let Some(before) = self.plain.ending.replace(ending) {
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
            if let Some(ending) = self.plain.ending.take() {
                let Process { stages, clock, .. } = &*self.thread.process;
                stages.end(ending, &**clock);
            }
            return Ok(());
        }
        let rest = &answers[written.min(answers.len())..];
        let room = self.thread.replies.lend(rest.len() as u64);
        let room = room.ok_or_else(|| io::Error::new(io::ErrorKind::OutOfMemory, NO_ROOM_FOR_ANSWERS))?;
        let mut unsent = Unsent { answers: Bytes::new(), value, _answers_room: Some(room) };
        unsent.advance(written.saturating_sub(answers.len()));
        unsent.answers = Bytes::copy_from_slice(rest);
        self.plain.unsent = unsent;
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
        self.vitals.write_blocked.set(polled.is_pending());
        let written = ready!(polled)?;
        self.vitals.moved(written);
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

impl Moment {
    fn of(thread: &Thread) -> Self {
        let now = thread.process.clock.now();
        Self { now: now.mono, date: thread.date.at(now.wall) }
    }
}
