//! What happens, and when.

use crate::Nanos;
use crate::host::process::Answers;
use crate::nemesis::FaultEnd;
use crate::network::{ConnectionId, Endpoint, Network, Side};
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
    Timer(Endpoint),
    /// A command reaches a machine.
    Command(Endpoint, RequestId, Command),
    /// A reply is due.
    ReplyDue(Endpoint, RequestId),
    /// The store's answer reaches a machine.
    Stored(Endpoint, StoreId, StoreResponse),
    /// The store reads for a machine.
    Read(Endpoint, StoreId, StoreRequest, Option<Instant>),
    /// What the node has published reaches a coordinator.
    View(Endpoint),
    /// The engine of a host syncs its log.
    Commit(Endpoint),
    /// A disk of bounded rate has written a group of the log.
    Durable(Endpoint, Answers),
    /// The engine of a host does some of what it owes: a turn of this chain of turns, which ends when another began.
    Jobs(Endpoint, u64),
    /// The engine of a host scrubs, if it is time to.
    Scrub(Endpoint),
    /// The store of a host lets go of snapshots that are too old.
    Expire(Endpoint),
    /// A process looks whether it has drained.
    CheckDrained(Endpoint),
    /// A host's process is started.
    Start(NodeIndex),
    /// A connection reaches the host that was dialed.
    DialArrives(ConnectionId),
    /// A connection is let in, and the dialer hears of it.
    DialAnswered(ConnectionId, PeerHello),
    /// The dialer is refused, or tired of waiting.
    DialFailed(ConnectionId, DialFailure),
    /// This end of a connection hears that the other is gone.
    EndLost(ConnectionId, Side),
    /// A packet reaches this end of a connection.
    Packet(ConnectionId, Side, Packet),
    /// A client has something to ask, in this workload.
    NextCommand(u64),
    /// A client begins to read a range.
    StartScan,
    /// A client wants the next page of a scan.
    PullPage(Endpoint, ScanId),
    /// A client leaves a scan, if it goes on.
    CloseScan(Endpoint, ScanId),
    /// The nemesis strikes.
    Fault,
    /// A fault ends.
    FaultEnd(FaultEnd),
    /// A node has had room on its disk for a while, in this generation.
    DiskSpaceDue(NodeIndex, u64),
    /// Bytes of a stream reach this end of a connection.
    Bytes(ConnectionId, Side, Vec<u8>),
    /// The send buffer towards this end of a connection may have room.
    PipeHasRoom(ConnectionId, Side),
    /// A thread hands a group of writes to the store; after this time nobody waits for any of them.
    Submit(Endpoint, Box<WriteGroup>, Instant),
}

impl Event {
    /// A number for its kind, for the trace.
    pub(crate) const fn kind(&self) -> u64 {
        match self {
            Self::Timer(_) => 0,
            Self::Command(..) => 1,
            Self::ReplyDue(..) => 2,
            Self::Stored(..) => 3,
            Self::Read(..) => 4,
            Self::View(_) => 5,
            Self::Commit(_) => 6,
            Self::Jobs(..) => 7,
            Self::CheckDrained(_) => 8,
            Self::Start(_) => 9,
            Self::DialArrives(_) => 10,
            Self::DialAnswered(..) => 11,
            Self::DialFailed(..) => 12,
            Self::EndLost(..) => 13,
            Self::Packet(..) => 14,
            Self::NextCommand(_) => 15,
            Self::Fault => 16,
            Self::FaultEnd(_) => 17,
            Self::DiskSpaceDue(..) => 22,
            Self::StartScan => 18,
            Self::PullPage(..) => 19,
            Self::CloseScan(..) => 20,
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
        let at =
            |connection: &ConnectionId, side| network.link(*connection).map(|link| link.endpoint(side).node);
        match self {
            Self::Timer(endpoint)
            | Self::Command(endpoint, ..)
            | Self::ReplyDue(endpoint, _)
            | Self::Stored(endpoint, ..)
            | Self::Read(endpoint, ..)
            | Self::View(endpoint)
            | Self::Commit(endpoint)
            | Self::Durable(endpoint, _)
            | Self::Jobs(endpoint, _)
            | Self::PullPage(endpoint, _)
            | Self::CloseScan(endpoint, _)
            | Self::Expire(endpoint)
            | Self::Scrub(endpoint)
            | Self::Submit(endpoint, ..)
            | Self::CheckDrained(endpoint) => Some(endpoint.node),
            Self::DialArrives(connection) => at(connection, Side::Acceptor),
            Self::DialAnswered(connection, _) | Self::DialFailed(connection, _) => {
                at(connection, Side::Dialer)
            }
            Self::EndLost(connection, side)
            | Self::Packet(connection, side, _)
            | Self::Bytes(connection, side, _) => at(connection, *side),
            Self::PipeHasRoom(connection, toward) => at(connection, toward.other()),
            Self::Start(_)
            | Self::NextCommand(_)
            | Self::StartScan
            | Self::Fault
            | Self::FaultEnd(_)
            | Self::DiskSpaceDue(..) => None,
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
