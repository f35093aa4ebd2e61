//! Connections as streams of bytes: a bounded rate, a send buffer, and an outbox that may be full.
//!
//! **Promise.** In a run with narrow links, messages go through the shipped [`Outbox`] and
//! [`Inbox`] of their connection. So long messages are sent in fragments between others. A message
//! without space in the outbox is dropped or refused, as by the server. After the heal phase, the
//! rate is high and each outbox is as large as the smallest outbox of a server.
//!
//! **Mechanism.** A *pipe* is one direction of a connection. While the send buffer is not full,
//! frames move from the outbox to the buffer, which drains at the rate of the connection. Each move
//! arrives in two pieces. While the path is cut or clogged nothing moves, and the outbox fills.
//! When the path is clear again the stream continues, as TCP does.
//!
//! **Caveats.** Each connection has a rate of its own: connections between two nodes do not share
//! one.

use super::{World, WorldEvent};
use crate::Nanos;
use crate::network::{ConnectionId, ConnectionSide, EndState};
use crate::scenario::NarrowLinks;
use cluster::Message;
use std::time::Duration;
use wire::{Inbox, InboxLimits, Incoming, Outbox, OutboxLimits, PROTOCOL_VERSION, PushOutcome};

/// Greatest number of bytes moved from the outbox to the send buffer at once, plus one frame.
const MOVED_BYTES: usize = 64 << 10;
/// Length from which a move arrives in two pieces, in bytes.
const PIECE_BYTES_MIN: usize = 256;

/// Least capacity of an outbox of a server, in bytes (`server::links`).
const SERVER_OUTBOX_BYTES: usize = 64 << 20;

/// One direction of a connection.
pub(super) struct Pipe {
    outbox: Outbox,
    inbox: Inbox,
    /// Time at which the send buffer is empty.
    empty_at: Nanos,
    /// Arrival time of the last byte sent.
    last_arrival: Nanos,
    /// Whether an event for space in the send buffer is scheduled.
    waits: bool,
}

impl Pipe {
    fn new(version: u8) -> Self {
        Self {
            outbox: Outbox::new(OutboxLimits { bytes_max: SERVER_OUTBOX_BYTES }).speaking(version),
            inbox: Inbox::new(InboxLimits::default()),
            empty_at: Nanos::ZERO,
            last_arrival: Nanos::ZERO,
            waits: false,
        }
    }

    /// Puts a message into the outbox, or the refusal of an answer. Returns whether there was space
    /// for the message. An empty outbox has space for any message.
    fn push(&mut self, message: &Message, limits: NarrowLinks) -> bool {
        let is_empty = self.outbox.is_empty();
        let has_room = |bytes| is_empty || bytes <= limits.outbox_bytes;
        self.outbox.push_or_refuse(message, has_room) == Ok(PushOutcome::Whole)
    }
}

fn transmission(limits: NarrowLinks, bytes: usize) -> Duration {
    Duration::from_nanos(bytes as u64 * 1_000_000_000 / limits.bytes_per_second)
}

impl World {
    /// Puts messages into the outbox towards this end, as far as there is space.
    pub(super) fn push_messages(
        &mut self,
        connection: ConnectionId,
        toward: ConnectionSide,
        messages: &[Message],
        limits: NarrowLinks,
    ) {
        let limits = self.limits_now(limits);
        let version = self.network.link(connection).map_or(PROTOCOL_VERSION, |link| link.version);
        let pipe = self.pipes.entry((connection, toward)).or_insert_with(|| Pipe::new(version));
        let dropped = messages.iter().filter(|message| !pipe.push(message, limits)).count();
        if dropped > 0 {
            self.trace.note(self.now, || format!("  {connection:?}: no room for {dropped} messages"));
        }
        self.pump(connection, toward);
    }

    /// Continues this direction, whose send buffer may have space again.
    pub(super) fn pipe_has_room(&mut self, connection: ConnectionId, toward: ConnectionSide) {
        if let Some(pipe) = self.pipes.get_mut(&(connection, toward)) {
            pipe.waits = false;
            self.pump(connection, toward);
        }
    }

    /// Continues all directions, after a path may have become clear.
    pub(crate) fn pump_all(&mut self) {
        let network = &self.network;
        self.pipes.retain(|(connection, _), _| network.link(*connection).is_some());
        let all: Vec<(ConnectionId, ConnectionSide)> = self.pipes.keys().copied().collect();
        for (connection, toward) in all {
            self.pump(connection, toward);
        }
    }

    fn limits_now(&self, limits: NarrowLinks) -> NarrowLinks {
        if self.nemesis.is_over() { limits.widened() } else { limits }
    }

    /// Moves frames from the outbox to the send buffer, as far as there is space.
    fn pump(&mut self, connection: ConnectionId, toward: ConnectionSide) {
        let Some(limits) = self.scenario.dimensions.narrow_links() else { return };
        let limits = self.limits_now(limits);
        let Some(link) = self.network.link(connection) else {
            self.pipes.remove(&(connection, toward));
            return;
        };
        let (sender, receiver) = (link.endpoint(toward.other()), link.endpoint(toward));
        let is_open =
            link.end(toward.other()) == EndState::Open && self.hosts[sender.node.as_usize()].paused.is_none();
        let Some(clock) =
            self.process(sender).filter(|_| is_open).map(|process| process.member.clock.shown())
        else {
            return;
        };
        while let Some(delay) = self.network.stream_delay(sender.node, receiver.node) {
            let now = self.now;
            let Some(pipe) = self.pipes.get_mut(&(connection, toward)) else { return };
            if pipe.outbox.is_empty() || pipe.waits {
                return;
            }
            let buffered = pipe.empty_at.max(now) - now;
            let room_at = transmission(limits, limits.send_buffer_bytes);
            if buffered >= room_at {
                pipe.waits = true;
                return self.after(buffered - room_at / 2, WorldEvent::PipeHasRoom(connection, toward));
            }
            let mut bytes = Vec::new();
            pipe.outbox.fill(clock, &mut bytes, MOVED_BYTES.min(limits.send_buffer_bytes));
            pipe.empty_at = pipe.empty_at.max(now) + transmission(limits, bytes.len());
            let first = pipe.last_arrival.max(now);
            let last = first.max(pipe.empty_at + delay);
            pipe.last_arrival = last;
            if bytes.len() >= PIECE_BYTES_MIN {
                let cut = self.network.below(bytes.len() as u64) as usize;
                let rest = bytes.split_off(cut);
                self.at(first, WorldEvent::Bytes(connection, toward, bytes));
                self.at(last, WorldEvent::Bytes(connection, toward, rest));
            } else {
                self.at(last, WorldEvent::Bytes(connection, toward, bytes));
            }
        }
    }

    /// Handles bytes that arrive at this end of a connection. Bytes for a process that has ended
    /// are lost. It may have missed earlier bytes while it was paused, so the rest need not begin
    /// with a frame.
    pub(super) fn bytes(&mut self, connection: ConnectionId, side: ConnectionSide, bytes: &[u8]) {
        let receiver = self.network.link(connection).map(|link| link.endpoint(side));
        if receiver.is_none_or(|receiver| self.process(receiver).is_none()) {
            return;
        }
        let Some(pipe) = self.pipes.get_mut(&(connection, side)) else { return };
        pipe.inbox.feed(bytes);
        let (mut messages, mut clock) = (Vec::new(), stdx::Hlc::ZERO);
        while let Some(incoming) = pipe.inbox.next().expect("bytes arrive unchanged") {
            match incoming {
                Incoming::Clock(shown) => clock = shown,
                Incoming::Message(message) => messages.push((clock, message)),
            }
        }
        self.take_messages(connection, side, messages);
    }
}

impl NarrowLinks {
    /// Limits after the heal phase: high rates, and outboxes no smaller than those of a server. A
    /// smaller outbox does not hold several large answers at once, and a scan would fail that
    /// succeeds in a real cluster.
    const fn widened(self) -> Self {
        Self { bytes_per_second: 64 << 20, outbox_bytes: SERVER_OUTBOX_BYTES, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::EndCause;
    use crate::scenario::Dimension;
    use crate::trace::Trace;
    use crate::{Scale, Scenario};
    use cluster::{Incarnation, MessageId, PeerAnswer, ReplicaResponse, Requester};
    use stdx::{Cell, CellMeta, Hlc, NodeTag, Version};

    const NARROW: NarrowLinks =
        NarrowLinks { bytes_per_second: 1, send_buffer_bytes: 16 << 10, outbox_bytes: 256 << 10 };

    fn answer(value_len: usize) -> Message {
        let id = MessageId { incarnation: Incarnation(1), requester: Requester::Node, number: 1 };
        let meta = CellMeta::value(Version::new(Hlc::from_bits(1), NodeTag(1)), 3);
        let cell = Cell { meta, value: vec![0; value_len].into() };
        Message::Answer { id, answer: PeerAnswer::Replica(ReplicaResponse::Cell(Some(cell))) }
    }

    #[test]
    fn bytes_for_a_process_that_has_ended_are_lost() {
        let mut scenario = Scenario::draw(7, Scale::SMALL, None).with_dimension(Dimension::NarrowLinks);
        (scenario.nodes, scenario.default_from, scenario.faults) = (2, 2, 0);
        let mut world = World::new(scenario, Trace::new(false));
        let second = Duration::from_secs(1);
        world.wait_until("all nodes serve", 10 * second, World::are_all_serving).expect("no faults");
        let is_open = |connection: &ConnectionId| world.network.link(*connection).is_some();
        let connection = (0..1_000).map(ConnectionId).find(is_open).expect("the nodes are linked");
        let side = ConnectionSide::Acceptor;
        let receiver = world.network.link(connection).expect("it is open").endpoint(side);
        world.end_process(receiver.node, EndCause::Kill, None);
        // The process was paused when the first bytes of a frame arrived.
        world.pipes.insert((connection, side), Pipe::new(PROTOCOL_VERSION));
        world.bytes(connection, side, b"the rest of a frame, which has no magic number");
    }

    #[test]
    fn a_narrow_outbox_takes_one_large_answer_and_refuses_the_next() {
        let mut pipe = Pipe::new(PROTOCOL_VERSION);
        assert!(pipe.push(&answer(2 << 20), NARROW));
        assert!(!pipe.push(&answer(100 << 10), NARROW));
    }

    #[test]
    fn after_the_heal_phase_an_outbox_takes_all_large_answers_to_a_scan() {
        let mut pipe = Pipe::new(PROTOCOL_VERSION);
        // A scan reads 16 keys at the same time, and large values are shorter than 2 MiB.
        assert!((0..16).all(|_| pipe.push(&answer(2 << 20), NARROW.widened())));
    }
}
