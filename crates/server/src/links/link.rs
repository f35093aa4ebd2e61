//! The writing side of an open link.
//!
//! **Promise.** Messages that are pushed in one event-loop iteration leave in one write call, as
//! far as they fit the buffers. A link holds at most the limit of its outbox, and all links
//! together at most their share of the memory budget. Messages that a peer does not read in time
//! are dropped; the state machines tolerate lost messages.
//!
//! **Mechanism.** Messages wait unencoded in the outbox, with values by reference, until the
//! iteration ends. Then they are encoded into the thread's write buffer and written. Only bytes
//! that the socket did not accept are copied for later.

use super::counters::LinkCounters;
use crate::socket;
use cluster::{Message, NodeIndex};
use limits::Reservation;
use std::io;
use std::rc::Rc;
use stdx::Hlc;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::task::AbortHandle;
use wire::Outbox;

/// Bytes of waiting messages that each link may hold without a reservation.
const WAITING_BYTES_FREE: u64 = 256 << 10;
/// Step in which a link reserves memory for further waiting messages, in bytes.
const WAITING_BYTES_STEP: u64 = 256 << 10;
/// Most bytes that are encoded at once, and so written in one call.
const WRITE_BYTES: usize = 256 << 10;

/// The writing side of an open link. Dropping it closes the link.
pub(crate) struct Link {
    pub(super) peer: NodeIndex,
    /// Version of the protocol.
    pub(super) version: u8,
    pub(super) serial: u64,
    socket: Rc<OwnedWriteHalf>,
    outbox: Outbox,
    /// Memory reservation for waiting messages.
    reservation: Reservation,
    /// Encoded bytes. The socket has accepted those before `rest_begin`.
    rest: Vec<u8>,
    rest_begin: usize,
    /// The link waits for the end of the iteration, or for its socket to accept more.
    pub(super) waits: bool,
    /// The tasks that read the link and that wait for its socket. They end with the link.
    tasks: [Option<AbortHandle>; 2],
}

/// A task of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LinkTask {
    /// The task that reads the link.
    Reads,
    /// The task that waits until the socket accepts more.
    Unblocks,
}

/// Result of a flush.
#[derive(Debug)]
pub(super) enum FlushOutcome {
    /// All messages were written, or the link is broken, which its reader will detect.
    Done,
    /// The socket accepts no more for now.
    Blocked(Rc<OwnedWriteHalf>),
}

impl Link {
    /// A link with `peer` that speaks `version` and whose first bytes are `begins_with`.
    pub(super) fn new(
        (peer, version): (NodeIndex, u8),
        serial: u64,
        socket: OwnedWriteHalf,
        outbox: Outbox,
        reservation: Reservation,
        begins_with: Vec<u8>,
    ) -> Self {
        Self {
            peer,
            version,
            serial,
            socket: Rc::new(socket),
            outbox,
            reservation,
            rest: begins_with,
            rest_begin: 0,
            waits: false,
            tasks: [None, None],
        }
    }

    /// Ties a task to the link: it is aborted when the link is dropped.
    pub(super) fn ends(&mut self, task: LinkTask, handle: AbortHandle) {
        self.tasks[task as usize] = Some(handle);
    }

    /// Queues a message if memory is available. If not, an answer is replaced by its refusal.
    pub(super) fn push(&mut self, message: &Message, counters: &LinkCounters) {
        let has_room = |bytes: usize| {
            let much = (bytes as u64).saturating_sub(WAITING_BYTES_FREE);
            much <= self.reservation.bytes()
                || self.reservation.resize(much.next_multiple_of(WAITING_BYTES_STEP))
        };
        if self.outbox.push_or_refuse(message, has_room).is_ok() {
            counters.sent(self.peer);
        }
    }

    /// Writes the waiting messages. `buffer` is scratch space.
    pub(super) fn flush(
        &mut self,
        clock: Hlc,
        buffer: &mut Vec<u8>,
        counters: &LinkCounters,
    ) -> FlushOutcome {
        loop {
            if self.rest_begin < self.rest.len() {
                match socket::try_send((*self.socket).as_ref(), &self.rest[self.rest_begin..]) {
                    Ok(bytes) => {
                        counters.wrote(self.peer, bytes);
                        self.rest_begin += bytes;
                        continue;
                    }
                    Err(error) => return self.after(&error),
                }
            }
            self.rest = Vec::new();
            self.rest_begin = 0;
            if self.outbox.is_empty() {
                assert!(self.reservation.resize(0), "a smaller reservation always succeeds");
                return FlushOutcome::Done;
            }
            buffer.clear();
            self.outbox.fill(clock, buffer, WRITE_BYTES);
            let written = match socket::try_send((*self.socket).as_ref(), buffer) {
                Ok(bytes) => {
                    counters.wrote(self.peer, bytes);
                    bytes
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(error) => return self.after(&error),
            };
            if written < buffer.len() {
                self.rest.extend_from_slice(&buffer[written..]);
            }
        }
    }

    fn after(&self, error: &io::Error) -> FlushOutcome {
        match error.kind() {
            io::ErrorKind::WouldBlock => FlushOutcome::Blocked(Rc::clone(&self.socket)),
            _ => FlushOutcome::Done,
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.tasks.iter().flatten().for_each(AbortHandle::abort);
    }
}
