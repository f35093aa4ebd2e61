//! What happens, and when.

use crate::Nanos;
use crate::host::process::Answers;
use crate::nemesis::Mend;
use crate::network::{Connection, Network, Place, Side};
use crate::packet::Packet;
use cluster::{
    Command, DialFailure, NodeIndex, PeerHello, RequestId, ScanId, StoreId, StoreRequest, StoreResponse,
};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use stdx::Instant;
use store::WriteGroup;

/// Something that happens at some time.
#[derive(Debug)]
pub(crate) enum Event {
    /// A machine's timeout.
    Wake(Place),
    /// A command reaches a machine.
    Command(Place, RequestId, Command),
    /// A reply is due.
    ReplyDue(Place, RequestId),
    /// The store's answer reaches a machine.
    Stored(Place, StoreId, StoreResponse),
    /// The store reads for a machine.
    Read(Place, StoreId, StoreRequest, Option<Instant>),
    /// What the node has published reaches a coordinator.
    View(Place),
    /// The engine of a host syncs its log.
    Commit(Place),
    /// A disk of bounded rate has written a group of the log.
    Durable(Place, Answers),
    /// The engine of a host does some of what it owes: a turn of this chain of turns, which ends when another began.
    Jobs(Place, u64),
    /// The engine of a host scrubs, if it is time to.
    Scrub(Place),
    /// The store of a host lets go of snapshots that are too old.
    Expire(Place),
    /// A process looks whether it has drained.
    Drained(Place),
    /// A host's process is started.
    Start(NodeIndex),
    /// A connection reaches the host that was dialed.
    DialArrives(Connection),
    /// A connection is let in, and the dialer hears of it.
    DialAnswered(Connection, PeerHello),
    /// The dialer is refused, or tired of waiting.
    DialFailed(Connection, DialFailure),
    /// This end of a connection hears that the other is gone.
    EndLost(Connection, Side),
    /// A packet reaches this end of a connection.
    Packet(Connection, Side, Packet),
    /// A client has something to ask, in this workload.
    Client(u64),
    /// A client begins to read a range.
    ScanBegins,
    /// A client wants the next page of a scan.
    PullPage(Place, ScanId),
    /// A client leaves a scan, if it goes on.
    ScanLeft(Place, ScanId),
    /// The nemesis strikes.
    Fault,
    /// A fault ends.
    Mend(Mend),
    /// A node has had room on its disk for a while, in this life.
    RoomDue(NodeIndex, u64),
    /// Bytes of a stream reach this end of a connection.
    Bytes(Connection, Side, Vec<u8>),
    /// The send buffer towards this end of a connection may have room.
    PipeHasRoom(Connection, Side),
    /// A thread hands a group of writes to the store; after this time nobody waits for any of them.
    Submit(Place, Box<WriteGroup>, Instant),
}

impl Event {
    /// A number for its kind, for the trace.
    pub(crate) const fn kind(&self) -> u64 {
        match self {
            Self::Wake(_) => 0,
            Self::Command(..) => 1,
            Self::ReplyDue(..) => 2,
            Self::Stored(..) => 3,
            Self::Read(..) => 4,
            Self::View(_) => 5,
            Self::Commit(_) => 6,
            Self::Jobs(..) => 7,
            Self::Drained(_) => 8,
            Self::Start(_) => 9,
            Self::DialArrives(_) => 10,
            Self::DialAnswered(..) => 11,
            Self::DialFailed(..) => 12,
            Self::EndLost(..) => 13,
            Self::Packet(..) => 14,
            Self::Client(_) => 15,
            Self::Fault => 16,
            Self::Mend(_) => 17,
            Self::RoomDue(..) => 22,
            Self::ScanBegins => 18,
            Self::PullPage(..) => 19,
            Self::ScanLeft(..) => 20,
            Self::Expire(_) => 21,
            Self::Scrub(_) => 23,
            Self::Bytes(..) => 24,
            Self::PipeHasRoom(..) => 25,
            Self::Submit(..) => 26,
            Self::Durable(..) => 27,
        }
    }

    /// The process that it happens to, which does not notice while it stands still.
    pub(crate) fn process(&self, network: &Network) -> Option<NodeIndex> {
        let at = |connection: &Connection, side| network.link(*connection).map(|link| link.place(side).node);
        match self {
            Self::Wake(place)
            | Self::Command(place, ..)
            | Self::ReplyDue(place, _)
            | Self::Stored(place, ..)
            | Self::Read(place, ..)
            | Self::View(place)
            | Self::Commit(place)
            | Self::Durable(place, _)
            | Self::Jobs(place, _)
            | Self::PullPage(place, _)
            | Self::ScanLeft(place, _)
            | Self::Expire(place)
            | Self::Scrub(place)
            | Self::Submit(place, ..)
            | Self::Drained(place) => Some(place.node),
            Self::DialArrives(connection) => at(connection, Side::Acceptor),
            Self::DialAnswered(connection, _) | Self::DialFailed(connection, _) => {
                at(connection, Side::Dialer)
            }
            Self::EndLost(connection, side)
            | Self::Packet(connection, side, _)
            | Self::Bytes(connection, side, _) => at(connection, *side),
            Self::PipeHasRoom(connection, toward) => at(connection, toward.other()),
            Self::Start(_)
            | Self::Client(_)
            | Self::ScanBegins
            | Self::Fault
            | Self::Mend(_)
            | Self::RoomDue(..) => None,
        }
    }
}

/// Events in the order of their time; at one time, in the order in which they were put in.
#[derive(Default)]
pub(crate) struct EventQueue {
    heap: BinaryHeap<Reverse<Entry>>,
    put: u64,
}

struct Entry {
    at: Nanos,
    number: u64,
    event: Event,
}

impl EventQueue {
    pub(crate) fn put(&mut self, at: Nanos, event: Event) {
        self.heap.push(Reverse(Entry { at, number: self.put, event }));
        self.put += 1;
    }

    /// The next event, if it happens before `end`.
    pub(crate) fn take_before(&mut self, end: Nanos) -> Option<(Nanos, Event)> {
        if self.heap.peek()?.0.at >= end {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }
}

impl Entry {
    const fn order(&self) -> (Nanos, u64) {
        (self.at, self.number)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}
