//! Events of the world, in the order of their times.

use crate::Nanos;
use crate::host::process::StoreAnswers;
use crate::nemesis::fault_end::FaultEnd;
use crate::network::{ConnectionId, ConnectionSide, Endpoint, Network};
use crate::packet::Packet;
use crate::world::joins::JoinEnd;
use cluster::{
    Command, DialFailure, JoiningNode, NodeIndex, PeerHello, RequestId, ScanId, StoreId, StoreRequest,
    StoreResponse, VoterState,
};
use limits::Deadline;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use store::WriteGroup;

/// An event of the world.
#[derive(Debug)]
pub(crate) enum WorldEvent {
    /// The timer of a state machine expires.
    Timer(Endpoint),
    /// A command reaches a coordinator.
    Command(Endpoint, RequestId, Command),
    /// A reply is due: the judge checks that it was sent.
    ReplyDue(Endpoint, RequestId),
    /// An answer of the store reaches a state machine.
    Stored(Endpoint, StoreId, StoreResponse),
    /// The store executes a read for a state machine.
    Read(Endpoint, StoreId, StoreRequest, Deadline),
    /// The view that the node has published reaches a coordinator.
    View(Endpoint),
    /// The engine of a host commits a group of its log.
    Commit(Endpoint),
    /// A disk of bounded rate has written a group of the log.
    Durable(Endpoint, StoreAnswers),
    /// The engine of a host executes a job. The event belongs to the chain of this number, which
    /// ends when another chain begins.
    Jobs(Endpoint, u64),
    /// The engine of a host scrubs, if that is due.
    Scrub(Endpoint),
    /// The store of a host releases snapshots that are too old.
    Expire(Endpoint),
    /// A draining process checks whether it has drained.
    CheckDrained(Endpoint),
    /// The process of a host starts.
    Start(NodeIndex),
    /// A connection attempt reaches the dialed host.
    DialArrives(ConnectionId),
    /// The dialer learns that its connection was admitted.
    DialAnswered(ConnectionId, PeerHello),
    /// The dialer learns that its connection was refused, or times out.
    DialFailed(ConnectionId, DialFailure),
    /// This end of a connection learns that the other end is closed.
    EndLost(ConnectionId, ConnectionSide),
    /// A packet reaches this end of a connection.
    Packet(ConnectionId, ConnectionSide, Packet),
    /// A client submits the next command of this workload.
    NextCommand(u64),
    /// A client begins a scan.
    StartScan,
    /// A client requests the next page of a scan.
    PullPage(Endpoint, ScanId),
    /// A client closes a scan that is still open.
    CloseScan(Endpoint, ScanId),
    /// The nemesis injects a fault.
    Fault,
    /// A fault ends.
    FaultEnd(FaultEnd),
    /// The judge checks that a node of this generation noticed the free space on its disk.
    DiskSpaceDue(NodeIndex, u64),
    /// Bytes of a stream reach this end of a connection.
    Bytes(ConnectionId, ConnectionSide, Vec<u8>),
    /// The send buffer towards this end of a connection may have space.
    PipeHasRoom(ConnectionId, ConnectionSide),
    /// A thread submits a group of writes to the store. The group expires at this time, the
    /// deadline of its last write.
    Submit(Endpoint, Box<WriteGroup>, Deadline),
    /// The store of a host makes this state of the voter durable. The number identifies the state.
    PersistVoter(Endpoint, u64, Box<VoterState>),
    /// The node learns whether the state of the voter with this number is durable.
    VoterPersisted(Endpoint, u64, bool),
    /// Operators propose changes of the layout.
    ChangeLayout,
    /// An operator gives a command on a plan, or changes the members.
    CommandLayout,
    /// An operator has the node of a host join that is not a member.
    BeginJoin(NodeIndex),
    /// The node of a host that is not a member asks to join, in its next attempt.
    Join(NodeIndex),
    /// The request of a node to join reaches a member: the host, the number of its attempt, and the
    /// host of the member.
    JoinAsked(NodeIndex, u64, NodeIndex, Box<JoiningNode>),
    /// This attempt of the node of a host to join ends.
    JoinEnded(NodeIndex, u64, Box<JoinEnd>),
    /// An operator starts a host that was switched off or removed, with the directory that it has.
    Return(NodeIndex),
}

impl WorldEvent {
    /// Number of the kind of event, for the trace.
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
            Self::PersistVoter(..) => 28,
            Self::VoterPersisted(..) => 29,
            Self::ChangeLayout => 30,
            Self::CommandLayout => 31,
            Self::Join(_) => 32,
            Self::BeginJoin(_) => 36,
            Self::JoinAsked(..) => 33,
            Self::JoinEnded(..) => 34,
            Self::Return(_) => 35,
        }
    }

    /// Host of the process that handles the event, which does so only while it is not paused.
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
            | Self::PersistVoter(endpoint, ..)
            | Self::VoterPersisted(endpoint, ..)
            | Self::CheckDrained(endpoint) => Some(endpoint.node),
            Self::DialArrives(connection) => at(connection, ConnectionSide::Acceptor),
            Self::DialAnswered(connection, _) | Self::DialFailed(connection, _) => {
                at(connection, ConnectionSide::Dialer)
            }
            Self::EndLost(connection, side)
            | Self::Packet(connection, side, _)
            | Self::Bytes(connection, side, _) => at(connection, *side),
            Self::PipeHasRoom(connection, toward) => at(connection, toward.other()),
            Self::JoinAsked(_, _, member, _) => Some(*member),
            Self::Start(_)
            | Self::NextCommand(_)
            | Self::StartScan
            | Self::Fault
            | Self::FaultEnd(_)
            | Self::ChangeLayout
            | Self::CommandLayout
            | Self::Join(_)
            | Self::BeginJoin(_)
            | Self::JoinEnded(..)
            | Self::Return(_)
            | Self::DiskSpaceDue(..) => None,
        }
    }
}

/// Queue of events, ordered by time. Events of one time keep the order of their insertion.
#[derive(Default)]
pub(crate) struct EventQueue {
    heap: BinaryHeap<Reverse<Entry>>,
    put: u64,
}

struct Entry {
    at: Nanos,
    number: u64,
    event: WorldEvent,
}

impl EventQueue {
    pub(crate) fn put(&mut self, at: Nanos, event: WorldEvent) {
        self.heap.push(Reverse(Entry { at, number: self.put, event }));
        self.put += 1;
    }

    /// Takes the next event if its time is before `end`.
    pub(crate) fn take_before(&mut self, end: Nanos) -> Option<(Nanos, WorldEvent)> {
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
