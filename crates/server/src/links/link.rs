//! The writing side of an open link.
//!
//! **Promise.** What is pushed in one turn leaves in one write call, as far as it fits the buffers. A link holds
//! no more than its outbox may, and all links no more than the memory budget lets them: what a peer does not read in
//! time is dropped, and the machines know how to live with lost messages.
//!
//! **Mechanism.** Messages wait in the outbox as they are, values by reference, until the turn ends; then they are
//! encoded into the thread's write buffer and written. Only what the socket did not take is copied for later.

use super::counters::LinkCounters;
use crate::budget::Reservation;
use crate::socket;
use cluster::{Message, NodeIndex};
use std::io;
use std::rc::Rc;
use stdx::Hlc;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::task::AbortHandle;
use wire::Outbox;

/// Of what waits, each link holds so much without taking it of the memory budget; ...
const WAITING_BYTES_FREE: u64 = 256 << 10;
/// ... what is more is taken in steps.
const WAITING_BYTES_STEP: u64 = 256 << 10;
/// Encoded at once: what is written in one call, at most.
const WRITE_BYTES: usize = 256 << 10;

/// The writing side of an open link. Dropping it closes the link.
pub(crate) struct Link {
    peer: NodeIndex,
    pub(super) serial: u64,
    socket: Rc<OwnedWriteHalf>,
    outbox: Outbox,
    /// What is taken of the memory budget for what waits.
    reservation: Reservation,
    /// Encoded, and not taken by the socket yet, from `rest_begin` on.
    rest: Vec<u8>,
    rest_begin: usize,
    /// Waits for its turn's end, or for the socket to take more.
    pub(super) waits: bool,
    /// What reads it, and what waits for its socket; they end with it.
    tasks: [Option<AbortHandle>; 2],
}

/// A task of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LinkTask {
    /// It reads the link.
    Reads,
    /// It waits for the socket to take more.
    Unblocks,
}

/// What became of a flush.
#[derive(Debug)]
pub(super) enum FlushOutcome {
    /// Everything left, or the link is broken, which its reader will find out.
    Done,
    /// The socket takes no more for now.
    Blocked(Rc<OwnedWriteHalf>),
}

impl Link {
    /// A link with `peer` that begins with these bytes.
    pub(super) fn new(
        peer: NodeIndex,
        serial: u64,
        socket: OwnedWriteHalf,
        outbox: Outbox,
        reservation: Reservation,
        begins_with: Vec<u8>,
    ) -> Self {
        Self {
            peer,
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

    /// This task ends with the link.
    pub(super) fn ends(&mut self, task: LinkTask, handle: AbortHandle) {
        self.tasks[task as usize] = Some(handle);
    }

    /// Takes in a message, if there is room, or the refusal of an answer.
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

    /// Writes what waits. `buffer` is only used within.
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
                assert!(self.reservation.resize(0), "less is always to be had");
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
