//! Between the socket and hyper: the head check.
//!
//! **Promise.** hyper sees no byte that the check has not let pass, and so no part of a head that is refused.
//! Where a request is refused, hyper sees the end of the stream after the last good byte and finishes what it has
//! to answer; the refusal waits here for the connection to write it.
//!
//! A connection whose first request is a peer's wish for a link never reaches hyper, which sees the end of the
//! stream at once: what came is kept for the handshake.
//!
//! **Mechanism.** The stream is shared by hyper's handle on it and by the connection, which takes it over when
//! hyper is done. Bytes pass through a buffer of the thread: to copy what a request takes costs little, and
//! connections without a request hold no buffer. Only what does not pass yet (the beginning of a head) is held.
//! Between requests, what is plain is answered without hyper (`plain`). hyper gets one request at a time: what comes
//! behind it may be plain, and it may be another connection's turn.

mod fast_path;
pub(crate) mod refusals;
pub(crate) mod shares;

use crate::budget::{MemoryCategory, Reservation};
use crate::connection_activity::{ConnectionActivity, ReadPosition};
use crate::counters::Refusal;
use crate::links::accept;
use crate::outgoing::Outgoing;
use crate::socket;
use crate::thread::Thread;
use api::{HeadCheck, HeadLimits, Problem, RequestKind, Verdict};
use fast_path::FastPath;
use http::StatusCode;
use hyper::rt::ReadBufCursor;
use refusals::Pause;
use socket2::SockRef;
use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::net::TcpStream;

/// So much is read at once where requests begin.
const READ_BYTES: usize = 16 << 10;
/// So much of a head is held at the expense of its connection; more is taken of the memory budget.
const HELD_BYTES_FREE: usize = 2 << 10;

/// A socket whose input is checked. See the module.
pub(crate) struct CheckedStream {
    socket: TcpStream,
    check: HeadCheck,
    held: HeldInput,
    state: InputState,
    refusal: Option<Problem>,
    outgoing: Outgoing,
    /// hyper has written what it has not flushed.
    is_unflushed: bool,
    fast_path: FastPath,
    /// Too much is refused for its client to be read on.
    pause: Option<Pause>,
    /// The end of the connection would be taken for the end of the response.
    resets: bool,
    /// Nothing has passed yet.
    is_at_start: bool,
    /// A request has passed to hyper in this turn, ...
    has_passed_one: bool,
    /// ... which wanted to read on.
    is_held_back: bool,
    /// The client was told that this is the last response.
    is_last_told: bool,
    thread: Rc<Thread>,
    activity: Rc<ConnectionActivity>,
    /// What is taken of the memory budget for what is held, if it is much.
    held_reservation: Option<Reservation>,
}

/// Bytes that were read and not handed on.
#[derive(Default)]
struct HeldInput {
    bytes: Vec<u8>,
    /// So many of them have passed the check.
    passed: usize,
    /// The check has not seen all of them.
    is_news: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum InputState {
    Open,
    /// Nothing more passes: it was refused, or the last request has passed.
    Stopped,
    /// Nothing passes: a peer wants to link. What has come is held.
    Peer,
    /// The client has closed its side.
    AtEnd,
}

/// hyper's hold on a [`CheckedStream`]. Its shutdown does nothing: the connection closes the socket.
pub(crate) struct StreamHandle(pub(crate) Rc<RefCell<CheckedStream>>);

impl CheckedStream {
    pub(crate) fn new(socket: TcpStream, thread: Rc<Thread>, activity: Rc<ConnectionActivity>) -> Self {
        Self {
            socket,
            check: HeadCheck::new(HeadLimits::default()),
            held: HeldInput::default(),
            state: InputState::Open,
            refusal: None,
            outgoing: Outgoing::default(),
            is_unflushed: false,
            fast_path: FastPath::default(),
            pause: None,
            resets: false,
            is_at_start: true,
            has_passed_one: false,
            is_held_back: false,
            is_last_told: false,
            thread,
            activity,
            held_reservation: None,
        }
    }

    /// Why the input was refused, if it was. Whoever takes it tells the client.
    pub(crate) fn take_refusal(&mut self) -> Option<Problem> {
        self.refusal.take()
    }

    /// Whether a peer wants to link.
    pub(crate) fn is_peer(&self) -> bool {
        self.state == InputState::Peer
    }

    /// The socket, and what has come over it and was not handed on.
    pub(crate) fn into_parts(self) -> (TcpStream, Vec<u8>) {
        (self.socket, self.held.bytes)
    }

    /// Whether the client is on this machine.
    pub(crate) fn is_from_this_machine(&self) -> bool {
        self.socket.peer_addr().is_ok_and(|peer| peer.ip().to_canonical().is_loopback())
    }

    /// Whether the client has closed the connection, or said that it sends no more. What it has sent before hides it.
    pub(crate) fn has_left(&self) -> bool {
        use rustix::net::{RecvFlags, recv};
        let received = recv(&self.socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        !matches!(received, Ok((1.., _)) | Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR))
    }

    /// Whether the client has sent what was not read yet.
    pub(crate) fn has_input(&self) -> bool {
        self.held.passed > 0 || rustix::io::ioctl_fionread(&self.socket).is_ok_and(|bytes| bytes > 0)
    }

    /// Whether the client may be sending still what nobody will read.
    pub(crate) fn may_get_more(&self) -> bool {
        let is_between_requests = self.check.awaits_head() && self.held.bytes.is_empty();
        self.state != InputState::AtEnd && (!is_between_requests || self.has_input())
    }

    /// A response has begun whose end is that of the connection. From now on the connection is reset when it is dropped,
    /// also by the end of the process: nobody is to take half of it for all.
    pub(crate) fn begin_close_delimited(&mut self) -> io::Result<()> {
        self.resets = true;
        SockRef::from(&self.socket).set_linger(Some(Duration::ZERO))
    }

    /// Whether dropping the socket is all that is left to do, after a connection that did or did not end well.
    pub(crate) fn ends_by_reset(&mut self, ended_well: bool) -> io::Result<bool> {
        if self.resets && ended_well {
            self.resets = false;
            SockRef::from(&self.socket).set_linger(None)?;
        }
        Ok(self.resets)
    }

    /// The socket, for what is to be done after hyper.
    pub(crate) fn socket(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    /// A request of this kind is answered with this status. Where too much is refused, its client is not read on for a
    /// while.
    pub(crate) fn note_answer(&mut self, kind: RequestKind, status: StatusCode) {
        self.thread.recorder.answered(kind, status);
        let is_refused = status == StatusCode::SERVICE_UNAVAILABLE && kind != RequestKind::Status;
        if is_refused && self.thread.refusals.count() && self.pause.is_none() {
            self.pause = Some(self.thread.refusals.pause());
        }
    }

    /// Waits until the client may be read on. A connection that is to end does not wait.
    pub(crate) fn poll_pause(&mut self, context: &Context<'_>) -> Poll<()> {
        if let Some(pause) = &self.pause
            && self.activity.close_order().is_none()
        {
            ready!(pause.poll(context));
        }
        self.pause = None;
        Poll::Ready(())
    }

    /// The client is told that the connection ends with this response: no further request is taken.
    pub(crate) fn take_no_more(&mut self) {
        self.is_last_told = true;
    }

    /// Whether whoever polls the connection has to do so once more: hyper is held back, and nothing else will wake it.
    pub(crate) fn is_stuck(&self) -> bool {
        self.is_held_back && !self.activity.handling.get() && !self.is_unflushed && self.outgoing.is_empty()
    }

    /// A turn in which hyper may have got a request is over. Whether there is more at hand, for the next.
    pub(crate) fn end_hyper_slice(&mut self) -> bool {
        let has_more = !self.held.bytes.is_empty();
        if self.has_passed_one {
            self.thread.shares.count(has_more);
        }
        has_more
    }

    /// Whether more requests are taken.
    fn goes_on(&self) -> bool {
        self.state == InputState::Open && !self.is_last_told && self.activity.close_order().is_none()
    }

    fn poll_read(&mut self, context: &mut Context<'_>, out: &mut ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_pause(context));
        if self.has_passed_one && self.check.awaits_head() && self.held.passed == 0 && self.goes_on() {
            self.is_held_back = true;
            return Poll::Pending;
        }
        loop {
            if self.hand_on_held(out) || self.state != InputState::Open {
                break;
            }
            if ready!(self.poll_read_socket(context, out))? {
                break;
            }
        }
        self.note_position();
        Poll::Ready(Ok(()))
    }

    /// Hands on what passes of the bytes that are held. `false`: nothing does, for now.
    fn hand_on_held(&mut self, out: &mut ReadBufCursor<'_>) -> bool {
        if self.held.passed == 0 && self.held.is_news {
            self.held.is_news = false;
            if self.is_at_start && accept::is_peer(&self.held.bytes) {
                self.state = InputState::Peer;
                return false;
            }
            let verdict = self.check.check(&self.held.bytes);
            self.held.passed = self.obey(verdict);
            self.held.is_news = self.held.passed > 0 && self.held.passed < self.held.bytes.len();
        }
        let len = self.held.passed.min(out.remaining());
        out.put_slice(&self.held.bytes[..len]);
        self.held.bytes.drain(..len);
        self.held.passed -= len;
        if self.held.bytes.is_empty() {
            self.held.bytes = Vec::new();
            self.held_reservation = None;
        }
        len > 0
    }

    /// Reads once. `true`: some of it passed and was handed on.
    fn poll_read_socket(
        &mut self,
        context: &mut Context<'_>,
        out: &mut ReadBufCursor<'_>,
    ) -> Poll<io::Result<bool>> {
        let thread = Rc::clone(&self.thread);
        let mut buffer = thread.read_buffer.borrow_mut();
        let most = if self.check.awaits_head() { READ_BYTES } else { buffer.len() };
        let reservation = out.remaining().min(most);
        let bytes = ready!(self.poll_socket(context, &mut buffer[..reservation]))?;
        if bytes.is_empty() {
            return Poll::Ready(Ok(false));
        }
        if self.is_at_start && self.held.bytes.is_empty() && accept::is_peer(bytes) {
            self.state = InputState::Peer;
            self.held.bytes = bytes.to_vec();
            return Poll::Ready(Ok(false));
        }
        if !self.held.bytes.is_empty() {
            self.held.bytes.extend_from_slice(bytes);
            self.held.is_news = true;
            self.reserve_for_held();
            return Poll::Ready(Ok(false));
        }
        let verdict = self.check.check(bytes);
        let passed = self.obey(verdict);
        out.put_slice(&bytes[..passed]);
        if self.state == InputState::Open && passed < bytes.len() {
            self.held = HeldInput { bytes: bytes[passed..].to_vec(), passed: 0, is_news: passed > 0 };
            self.reserve_for_held();
        }
        Poll::Ready(Ok(passed > 0))
    }

    /// Reads once; nothing: the client has closed its side.
    fn poll_socket<'a>(
        &mut self,
        context: &mut Context<'_>,
        buffer: &'a mut [u8],
    ) -> Poll<io::Result<&'a [u8]>> {
        let polled = socket::poll_receive(&self.socket, context, buffer);
        if polled.is_pending() {
            self.note_position();
        }
        let len = ready!(polled)?;
        if len == 0 {
            self.state = InputState::AtEnd;
        }
        self.activity.count_moved(len);
        Poll::Ready(Ok(&buffer[..len]))
    }

    /// How many bytes pass.
    fn obey(&mut self, verdict: Verdict) -> usize {
        match verdict {
            Verdict::Pass(len) => {
                self.is_at_start = false;
                self.has_passed_one |= self.check.awaits_head();
                return len;
            }
            Verdict::NeedMore => {}
            Verdict::Ended => self.state = InputState::Stopped,
            Verdict::Refuse(problem) => {
                self.state = InputState::Stopped;
                self.refusal = Some(problem);
            }
        }
        0
    }

    /// Takes what is held of the memory budget, if it is much. Where there is no room, nothing more passes.
    fn reserve_for_held(&mut self) {
        let len = self.held.bytes.len();
        if len <= HELD_BYTES_FREE {
            return;
        }
        let process = &self.thread.process;
        let reservation = self
            .held_reservation
            .get_or_insert_with(|| process.memory.empty_reservation(MemoryCategory::Connections));
        if !reservation.resize(len as u64) {
            let problem = process.admission.refuse(Refusal::Connections);
            self.state = InputState::Stopped;
            self.refusal = Some(problem);
            self.held = HeldInput::default();
            self.held_reservation = None;
        }
    }

    fn note_position(&self) {
        self.activity.position.set(match (self.check.awaits_head(), self.held.bytes.is_empty()) {
            (true, true) => ReadPosition::BetweenRequests,
            (true, false) => ReadPosition::InHead,
            (false, _) => ReadPosition::InBody,
        });
    }

    fn poll_write(&mut self, context: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.is_unflushed = true;
        self.outgoing.poll_write(&mut self.socket, context, parts, &self.activity)
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.outgoing.poll_flush(&mut self.socket, context, &self.activity))?;
        self.is_unflushed = false;
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Read for StreamHandle {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut out: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.borrow_mut().poll_read(context, &mut out)
    }
}

impl hyper::rt::Write for StreamHandle {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_write(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_write(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests;
