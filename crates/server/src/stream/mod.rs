//! The layer between the socket and hyper: the head check.
//!
//! **Promise.** hyper receives only bytes that passed the check, and so no part of a refused head.
//! For a refused request hyper sees the end of the stream after the last valid byte and completes
//! its pending responses. The refusal is kept here until the connection writes it.
//!
//! A connection whose first request asks for a peer link never reaches hyper, which sees the end of
//! the stream at once. The bytes received are kept for the handshake.
//!
//! **Mechanism.** The stream is shared by hyper's handle and by the connection, which takes it over
//! when hyper has ended. Bytes pass through a buffer of the thread: copying a request is cheap, and
//! connections without a request hold no buffer. Only bytes that cannot pass yet (the beginning of
//! a head) are held. Between requests, the fast path answers requests without hyper (`fast_path`).
//! Only one request at a time is given to hyper, because the next one may qualify for the fast
//! path, or another connection's batch may be due.

mod fast_path;
pub(crate) mod refusals;
pub(crate) mod shares;

use crate::connection_activity::{ConnectionActivity, ReadPosition};
use crate::counters::Refusal;
use crate::links::accept;
use crate::outgoing::Outgoing;
use crate::socket;
use crate::thread::Thread;
use api::{HeadCheck, HeadLimits, HeadVerdict, Problem, RequestKind};
use fast_path::FastPath;
use http::StatusCode;
use hyper::rt::ReadBufCursor;
use limits::{MemoryCategory, Reservation};
use refusals::Pause;
use socket2::SockRef;
use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::net::TcpStream;

/// Size of a read between requests, in bytes.
const READ_BYTES: usize = 16 << 10;
/// Bytes of a head that a connection holds without an additional reservation.
const HELD_BYTES_FREE: usize = 2 << 10;

/// A socket whose input passes the head check before hyper reads it.
pub(crate) struct CheckedStream {
    socket: TcpStream,
    check: HeadCheck,
    held: HeldInput,
    state: InputState,
    refusal: Option<Problem>,
    outgoing: Outgoing,
    /// hyper has written bytes and not flushed them.
    is_unflushed: bool,
    fast_path: FastPath,
    /// Reading is paused because too many of the thread's requests are refused.
    pause: Option<Pause>,
    /// The end of the connection would mark the end of the response.
    resets: bool,
    /// No byte has passed yet.
    is_at_start: bool,
    /// A request has passed to hyper in this poll of the connection.
    has_passed_one: bool,
    /// hyper wanted to read a second request in this poll.
    is_held_back: bool,
    /// The client was told that this is the last response.
    is_last_told: bool,
    thread: Rc<Thread>,
    activity: Rc<ConnectionActivity>,
    /// Reservation for the held bytes, if they exceed [`HELD_BYTES_FREE`].
    held_reservation: Option<Reservation>,
}

/// Bytes that were read and not passed on.
#[derive(Default)]
struct HeldInput {
    bytes: Vec<u8>,
    /// Number of these bytes that passed the check.
    passed: usize,
    /// The check has not seen all of these bytes.
    is_news: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum InputState {
    Open,
    /// Nothing more passes: the input was refused, or the last request has passed.
    Stopped,
    /// Nothing passes, because a peer asks for a link. The bytes received are held.
    Peer,
    /// The client has closed its side.
    AtEnd,
}

/// hyper's handle on a [`CheckedStream`]. Its shutdown does nothing, because the connection closes
/// the socket.
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

    /// Takes the refusal of the input, if there is one. The caller sends it to the client.
    pub(crate) fn take_refusal(&mut self) -> Option<Problem> {
        self.refusal.take()
    }

    /// Whether a peer asks for a link.
    pub(crate) fn is_peer(&self) -> bool {
        self.state == InputState::Peer
    }

    /// The socket, with the bytes that were received and not passed on.
    pub(crate) fn into_parts(self) -> (TcpStream, Vec<u8>) {
        (self.socket, self.held.bytes)
    }

    /// Whether the client is on this machine.
    pub(crate) fn is_from_this_machine(&self) -> bool {
        self.peer_ip().is_some_and(|ip| ip.is_loopback())
    }

    /// IP address of the client; `None` if the connection has ended.
    pub(crate) fn peer_ip(&self) -> Option<IpAddr> {
        self.socket.peer_addr().ok().map(|peer| peer.ip().to_canonical())
    }

    /// Whether the client has closed the connection or its sending side. Unread input hides it.
    pub(crate) fn has_left(&self) -> bool {
        use rustix::net::{RecvFlags, recv};
        let received = recv(&self.socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        !matches!(received, Ok((1.., _)) | Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR))
    }

    /// Whether unread input of the client is available.
    pub(crate) fn has_input(&self) -> bool {
        self.held.passed > 0 || rustix::io::ioctl_fionread(&self.socket).is_ok_and(|bytes| bytes > 0)
    }

    /// Whether the client may still be sending bytes that will not be read.
    pub(crate) fn may_get_more(&self) -> bool {
        let is_between_requests = self.check.awaits_head() && self.held.bytes.is_empty();
        self.state != InputState::AtEnd && (!is_between_requests || self.has_input())
    }

    /// Begins a response that ends with the connection. From now on the connection is reset when it
    /// is dropped, also by the end of the process. The client can then not mistake a part of the
    /// response for all of it.
    ///
    /// # Errors
    /// The error of the system if the socket option cannot be set.
    pub(crate) fn begin_close_delimited(&mut self) -> io::Result<()> {
        self.resets = true;
        SockRef::from(&self.socket).set_linger(Some(Duration::ZERO))
    }

    /// Whether the socket only has to be dropped. `ended_well` says whether the connection ended
    /// without an error.
    pub(crate) fn ends_by_reset(&mut self, ended_well: bool) -> io::Result<bool> {
        if self.resets && ended_well {
            self.resets = false;
            SockRef::from(&self.socket).set_linger(None)?;
        }
        Ok(self.resets)
    }

    /// The socket, for the time after hyper.
    pub(crate) fn socket(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    /// Records the status of the response to a request of this kind. If too many requests are
    /// refused, reading of the client pauses for a while.
    pub(crate) fn record_status(&mut self, kind: RequestKind, status: StatusCode) {
        self.thread.recorder.record_status(kind, status);
        let is_refused = status == StatusCode::SERVICE_UNAVAILABLE && kind != RequestKind::Status;
        if is_refused && self.thread.refusals.count() && self.pause.is_none() {
            self.pause = Some(self.thread.refusals.pause());
        }
    }

    /// Waits until the client's input may be read. A connection with an order to close does not
    /// wait.
    pub(crate) fn poll_pause(&mut self, context: &Context<'_>) -> Poll<()> {
        if let Some(pause) = &self.pause
            && self.activity.close_order().is_none()
        {
            ready!(pause.poll(context));
        }
        self.pause = None;
        Poll::Ready(())
    }

    /// Notes that the response announces the end of the connection: no further request is taken.
    pub(crate) fn take_no_more(&mut self) {
        self.is_last_told = true;
    }

    /// Whether the connection must be polled again: hyper is held back, and nothing else will wake
    /// it.
    pub(crate) fn is_stuck(&self) -> bool {
        self.is_held_back && !self.activity.handling.get() && !self.is_unflushed && self.outgoing.is_empty()
    }

    /// Ends a batch in which hyper may have received a request. Returns whether more input is
    /// available for the next one.
    pub(crate) fn end_hyper_slice(&mut self) -> bool {
        let has_more = !self.held.bytes.is_empty();
        if self.has_passed_one {
            self.thread.shares.count(has_more);
        }
        has_more
    }

    /// Whether further requests are taken.
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

    /// Passes held bytes on to hyper. `false`: none pass for now.
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

    /// Reads once. `true`: some of the bytes passed on to hyper.
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

    /// Reads once. An empty slice: the client has closed its side.
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

    /// Applies a verdict of the check. Returns the number of bytes that pass.
    fn obey(&mut self, verdict: HeadVerdict) -> usize {
        match verdict {
            HeadVerdict::Pass(len) => {
                self.is_at_start = false;
                self.has_passed_one |= self.check.awaits_head();
                return len;
            }
            HeadVerdict::NeedMore => {}
            HeadVerdict::Ended => self.state = InputState::Stopped,
            HeadVerdict::Refuse(problem) => {
                self.state = InputState::Stopped;
                self.refusal = Some(problem);
            }
        }
        0
    }

    /// Reserves memory for the held bytes, if they exceed [`HELD_BYTES_FREE`]. Without memory the
    /// input is refused.
    fn reserve_for_held(&mut self) {
        let len = self.held.bytes.len();
        if len <= HELD_BYTES_FREE {
            return;
        }
        let memory = self.thread.memory_holders.budget();
        let reservation = self
            .held_reservation
            .get_or_insert_with(|| memory.empty_reservation(MemoryCategory::Connections));
        if !reservation.resize(len as u64) {
            let problem = self.thread.capacity_refusals.refuse(Refusal::Connections);
            self.state = InputState::Stopped;
            self.refusal = Some(problem);
            self.held = HeldInput::default();
            self.held_reservation = None;
        }
    }

    fn note_position(&self) {
        self.activity.announced_bytes.set(self.check.announced_chunk_bytes());
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
