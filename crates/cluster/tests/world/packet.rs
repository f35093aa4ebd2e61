//! Packets: everything that is under way to a state machine or a store.

use super::links::Connection;
use cluster::{
    CopyAnswer, Destination, LinkEvent, LinkId, Message, NodeIndex, NodeRequest, NodeResponse, Origin,
    PeerAnswer, PeerRequest, RangeAnswer, ReplicaRequest, ReplicaResponse, StoreId, StoreRequest,
};
use stdx::Hlc;

/// A state machine of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Machine {
    Node,
    Coordinator,
}

/// An event under way.
#[derive(Clone, Debug)]
pub(crate) enum Packet {
    /// A dial arrives at the acceptor.
    Dial { link: LinkId, connection: Connection },
    /// A state machine is told of a link.
    Link { host: usize, generation: u64, machine: Machine, event: LinkEvent },
    /// A message over the link that `dialer` dialed, with the clock of its sender.
    Message { dialer: usize, acceptor: usize, link: LinkId, machine: Machine, message: Message, clock: Hlc },
    /// A request that a store will carry out.
    AtStore { node: usize, generation: u64, machine: Machine, id: StoreId, request: StoreRequest },
}

impl Packet {
    /// Whether the packet is at a host's store, or on a link that the host accepted.
    pub(crate) fn concerns(&self, host: usize) -> bool {
        match self {
            Self::AtStore { node, .. } => *node == host,
            Self::Message { acceptor, .. } => *acceptor == host,
            Self::Dial { .. } | Self::Link { .. } => false,
        }
    }

    /// Whether the packet is a write at a store.
    pub(crate) fn is_write_at_store(&self) -> bool {
        matches!(self, Self::AtStore { request: StoreRequest::Replica(ReplicaRequest::Write { .. }), .. })
    }

    /// Whether the packet is a read of a range at a store.
    pub(crate) fn is_range_at_store(&self) -> bool {
        matches!(self, Self::AtStore { request: StoreRequest::Scan { .. }, .. })
    }

    /// Whether a client's request, or the moving of a cell, depends on the packet. Heartbeats and
    /// the upkeep of a node do not count.
    pub(crate) fn is_foreground(&self) -> bool {
        match self {
            Self::Message { message, .. } => PacketKind::of(message) != PacketKind::Heartbeat,
            Self::AtStore { request: StoreRequest::Replica(_) | StoreRequest::ReadPage(_), .. } => true,
            Self::AtStore { .. } | Self::Dial { .. } | Self::Link { .. } => false,
        }
    }

    /// The host at which the packet arrives.
    pub(super) fn receiver(&self) -> usize {
        match self {
            Self::Dial { connection, .. } => connection.acceptor,
            Self::Link { host, .. } => *host,
            Self::Message { dialer, acceptor, message, .. } => match message {
                Message::Request { .. } => *acceptor,
                Message::Answer { .. } => *dialer,
            },
            Self::AtStore { node, .. } => *node,
        }
    }
}

/// Origin of a message as its receiver sees it.
pub(super) fn origin(dialer: usize, acceptor: usize, link: LinkId, message: &Message) -> Origin {
    match message {
        Message::Request { .. } => {
            Origin { node: NodeIndex(dialer as u8), link: Destination::Accepted(link) }
        }
        Message::Answer { .. } => {
            let node = NodeIndex(acceptor as u8);
            Origin { node, link: Destination::Dialed(node) }
        }
    }
}

/// Kinds of messages that a script may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketKind {
    Heartbeat,
    Write,
    Read,
    Hint,
    Scan,
    Compare,
    Answer,
}

impl PacketKind {
    pub(crate) const fn of(message: &Message) -> Self {
        match message {
            Message::Answer { answer: PeerAnswer::Node(NodeResponse::Heartbeat(_)), .. }
            | Message::Request { request: PeerRequest::Node(NodeRequest::Heartbeat(_)), .. } => {
                Self::Heartbeat
            }
            Message::Answer { .. } => Self::Answer,
            Message::Request { request, .. } => match request {
                PeerRequest::Replica(ReplicaRequest::Write { .. }) => Self::Write,
                PeerRequest::Replica(ReplicaRequest::Read { .. } | ReplicaRequest::ReadMeta { .. }) => {
                    Self::Read
                }
                PeerRequest::Replica(ReplicaRequest::KeepHints { .. }) => Self::Hint,
                PeerRequest::Replica(ReplicaRequest::EndSnapshot { .. }) | PeerRequest::Scan(_) => Self::Scan,
                PeerRequest::Node(_) => Self::Compare,
            },
        }
    }
}

/// Size of the values of a message in bytes.
pub(super) fn value_bytes(message: &Message) -> u64 {
    let bytes = match message {
        Message::Request { request: PeerRequest::Replica(ReplicaRequest::Write { cell, .. }), .. } => {
            cell.value.len()
        }
        Message::Answer { answer: PeerAnswer::Replica(ReplicaResponse::Cell(Some(cell))), .. } => {
            cell.value.len()
        }
        Message::Answer {
            answer: PeerAnswer::Node(NodeResponse::Range(RangeAnswer::Cells { entries, .. })),
            ..
        }
        | Message::Answer {
            answer: PeerAnswer::Node(NodeResponse::Copied(CopyAnswer { entries, .. })),
            ..
        } => entries.iter().map(|(_, cell)| cell.value.len()).sum(),
        _ => 0,
    };
    bytes as u64
}
