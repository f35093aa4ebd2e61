//! A connection that waits for a permit, and the refusal of one that gets none.
//!
//! **Promise.** A connection waits for at most [`WAIT_TIME`]. One whose head is complete either
//! gets a permit or is answered `503`, also if the queue displaces it, so that its client knows
//! that the request was not executed.
//!
//! **Mechanism.** The refusal is sent with one system call, which does not wait: the send buffer of
//! a connection without an earlier response has room for it. Then the write side is closed, and
//! input is discarded, because the kernel resets a socket that is closed with unread input, and the
//! client could lose the refusal. The queue bounds the number of connections that linger for the
//! rest of their input.
//!
//! **Caveats.** A client that is still sending a body when its connection stops to linger can lose
//! the refusal.

use crate::accept_queue::QueueTicket;
use crate::accept_state::AcceptState;
use crate::connection_limit::{self, ClientAddress, ConnectionAdmission, ConnectionPermit};
use crate::counters::Refusal;
use crate::date::http_date;
use crate::links::accept;
use crate::messages::{Mailbox, ThreadMessage, send_eviction};
use crate::socket;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

/// Time limit for a refused connection to read its refusal.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// Time limit for the first bytes of a connection without a permit.
const BEGIN_TIME: Duration = Duration::from_millis(200);
/// A first head of which this many bytes arrived counts as whole. Clients rarely send longer ones.
const HEAD_BYTES: usize = 2 << 10;
/// Longest wait of a connection for a permit.
const WAIT_TIME: Duration = Duration::from_secs(1);
/// Interval in which a waiting connection tries to get a permit.
const WAIT_PAUSE: Duration = Duration::from_millis(50);
/// Most reads of [`HEAD_BYTES`] that empty a socket before it is closed without lingering.
const LAST_READS_MAX: usize = 64;

/// A connection that waits for a permit.
pub(crate) struct WaitingConnection {
    pub(crate) stream: TcpStream,
    pub(crate) client: ClientAddress,
    pub(crate) threads: Vec<Mailbox>,
    /// Index of the thread with the fewest connections.
    pub(crate) least: usize,
    pub(crate) state: Arc<AcceptState>,
    pub(crate) ticket: QueueTicket,
}

/// State of the first request of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begin {
    /// The head is not complete.
    Unfinished,
    /// The request of a peer for a link.
    Peer,
    /// A complete head of a request about the node itself.
    Administration,
    /// Any other complete head.
    Other,
}

/// The end of the wait for a permit.
enum WaitEnd {
    Permit(ConnectionPermit),
    Peer,
    /// The client is answered `503`.
    Refused,
    /// The queue has displaced a connection without a complete head.
    Closed,
}

impl WaitingConnection {
    /// Waits for the permit of an evicted connection, and refuses the client if there is none in
    /// time. Peers are admitted, because clients must not cut nodes off from each other, and so are
    /// requests about the node itself.
    pub(crate) async fn wait(self) {
        let end = tokio::select! {
            end = self.wait_for_permit() => end,
            () = self.ticket.displaced() => self.end_of_displaced(),
        };
        let Self { mut stream, state, threads, least, mut ticket, .. } = self;
        match end {
            WaitEnd::Permit(permit) => serve(stream, permit, &threads[least], &state),
            WaitEnd::Peer => {
                if let Ok(stream) = stream.into_std() {
                    threads[least].send(ThreadMessage::Peer(stream));
                }
            }
            WaitEnd::Closed => state.refusals.count(Refusal::Connections),
            WaitEnd::Refused => {
                ticket.begin_refusal();
                tokio::select! {
                    biased;
                    () = refuse(&mut stream, &state) => {}
                    () = ticket.displaced() => {}
                }
                discard_received(&stream);
            }
        }
    }

    async fn wait_for_permit(&self) -> WaitEnd {
        let Self { stream, client, threads, state, ticket, .. } = self;
        let ends = tokio::time::Instant::now() + WAIT_TIME;
        // Clients and peers send a short request in one piece.
        let _ = tokio::time::timeout(BEGIN_TIME, stream.readable()).await;
        loop {
            let begin = begin_of(stream);
            ticket.note_head(begin != Begin::Unfinished);
            if let Some(end) = self.end_without_ordinary_permit(begin) {
                return end;
            }
            let is_over = tokio::time::Instant::now() >= ends;
            // Complete heads have priority: an unfinished one would be evicted again.
            if begin != Begin::Unfinished || is_over {
                let ConnectionAdmission { permit, eviction } = state.limiter.admit(*client);
                if let Some(permit) = permit {
                    return WaitEnd::Permit(permit);
                }
                if let Some(eviction) = eviction {
                    send_eviction(eviction, threads);
                }
            }
            if is_over {
                return WaitEnd::Refused;
            }
            tokio::time::sleep(WAIT_PAUSE).await;
        }
    }

    /// The end of the wait of a peer, or of a request about the node for which a reserved permit is
    /// free.
    fn end_without_ordinary_permit(&self, begin: Begin) -> Option<WaitEnd> {
        match begin {
            Begin::Peer => Some(WaitEnd::Peer),
            Begin::Administration => self.state.limiter.admit_reserved(self.client).map(WaitEnd::Permit),
            Begin::Unfinished | Begin::Other => None,
        }
    }

    /// The end of the wait of a displaced connection. Its head may have arrived since the queue
    /// noted it.
    fn end_of_displaced(&self) -> WaitEnd {
        let begin = begin_of(&self.stream);
        self.end_without_ordinary_permit(begin).unwrap_or(match begin {
            Begin::Unfinished => WaitEnd::Closed,
            _ => WaitEnd::Refused,
        })
    }
}

/// Peeks at the first bytes and leaves them in the socket.
fn begin_of(stream: &TcpStream) -> Begin {
    let mut bytes = [0; HEAD_BYTES];
    let Ok((len, _)) = recv(stream, &mut bytes, RecvFlags::PEEK | RecvFlags::DONTWAIT) else {
        return Begin::Unfinished;
    };
    let bytes = &bytes[..len];
    if accept::is_peer(bytes) {
        return Begin::Peer;
    }
    let is_whole = len == HEAD_BYTES || bytes.windows(4).any(|bytes| bytes == b"\r\n\r\n");
    match is_whole {
        false => Begin::Unfinished,
        true if connection_limit::is_administration(bytes) => Begin::Administration,
        true => Begin::Other,
    }
}

/// Hands a connection to its thread.
pub(crate) fn serve(stream: TcpStream, permit: ConnectionPermit, thread: &Mailbox, state: &AcceptState) {
    match stream.into_std() {
        Ok(stream) => {
            state.accepted.count();
            thread.serve(stream, permit);
        }
        Err(error) => tracing::warn!(%error, "a connection could not be handed to its thread"),
    }
}

/// Answers `503`, which does not wait, and lingers until the client has closed its side.
pub(crate) async fn refuse(stream: &mut TcpStream, state: &AcceptState) {
    let problem = state.refusals.refuse(Refusal::Connections);
    let refusal = problem.to_http1_bytes(&http_date(state.clock.now().wall));
    let is_sent = send(&*stream, &refusal, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok();
    if is_sent && shutdown(&*stream, Shutdown::Write).is_ok() {
        let _ = tokio::time::timeout(REFUSAL_TIME, socket::linger(stream)).await;
    }
}

/// Discards the input that has arrived, so that closing the socket does not reset the connection.
fn discard_received(stream: &TcpStream) {
    let mut buffer = [0; HEAD_BYTES];
    for _ in 0..LAST_READS_MAX {
        if !matches!(recv(stream, &mut buffer, RecvFlags::DONTWAIT), Ok((1.., _))) {
            return;
        }
    }
}
