//! What nodes say to each other.
//!
//! A node *dials* each other node and sends requests over what it dialed; answers come back the same way. What
//! it accepts from others carries their requests and its answers. So a link has one direction of asking, and two
//! nodes that know each other have at least two links.
//!
//! Messages may be lost with their link, come twice, late, or out of order: each request can be carried out any
//! number of times. Ids carry the incarnation of the asking process, so that a process never takes an answer to
//! its former life for one to itself.

use crate::{
    Generation, Key, NodeIndex, NodeSet, ScanAnswer, ScanRequest, SnapshotId, StoreFault, SyncState,
};
use std::num::NonZeroU8;
use std::time::Duration;
use stdx::{Cell, CellMeta, Hlc, Instant, NodeTag, Version, WallTime};

/// One life of a node's process: 64 random bits, drawn at its start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

impl std::fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Names a request among all that were ever made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId {
    /// The life of the process that asks.
    pub incarnation: Incarnation,
    /// Which of its machines asks.
    pub requester: Requester,
    /// Counts the requests of that machine. Its meaning is the asker's own.
    pub number: u64,
}

/// A machine of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Requester {
    /// The process's `Node`.
    Node,
    /// The `Coordinator` of the I/O thread of this number.
    Coordinator(u8),
}

/// An accepted link, by a number that the driver never reuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// The other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Destination {
    /// What this machine dialed to that node.
    Dialed(NodeIndex),
    /// What this machine accepted.
    Accepted(LinkId),
}

/// Where a message came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Which node.
    pub node: NodeIndex,
    /// Over what: also where an answer goes.
    pub link: Destination,
}

/// What nodes say to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Asks for something. Answered once, or never.
    Request {
        /// Comes back with the answer.
        id: MessageId,
        /// What is asked.
        request: PeerRequest,
        /// How long the asker waits for the answer, from when this was sent; what would come later need not be
        /// done. `None`: it is to be done whenever. It travels in milliseconds.
        within: Option<Duration>,
    },
    /// Answers a request.
    Answer {
        /// Which one.
        id: MessageId,
        /// The answer.
        answer: PeerAnswer,
    },
}

impl Message {
    /// What is to be sent in place of an answer with data for which the link has no room: the node is busy, so that the
    /// asker tries again or elsewhere, and does not wait for its deadline. `None` for requests, for answers that are as
    /// short, and for answers that acknowledge something.
    pub fn refusal(&self) -> Option<Self> {
        match self {
            Self::Answer {
                id,
                answer:
                    PeerAnswer::Cell(Some(_)) | PeerAnswer::Range(_) | PeerAnswer::Scan(ScanAnswer::Page { .. }),
            } => Some(Self::Answer { id: *id, answer: PeerAnswer::Failed(PeerFault::Busy) }),
            _ => None,
        }
    }
}

/// What a node asks of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerRequest {
    /// The newest durable cell of a key, tombstones and expired values included.
    ReadCell {
        /// Which key.
        key: Key,
    },
    /// The same without the value.
    ReadMeta {
        /// Which key.
        key: Key,
    },
    /// Store a cell, durably; and in the same batch, markers that these nodes lack it.
    Write {
        /// Under which key.
        key: Key,
        /// What to store.
        cell: Cell,
        /// Nodes to keep hints for.
        hints: NodeSet,
    },
    /// Keep hints that these nodes lack this version of a key, which the asked node holds.
    KeepHints {
        /// Which key.
        key: Key,
        /// Which version.
        version: Version,
        /// Who lacks it.
        targets: NodeSet,
    },
    /// Are you there, and how are you? From `Node` to `Node`.
    Heartbeat(HeartbeatPayload),
    /// What of this range is yours and mine? From `Node` to `Node`.
    Range(RangeRequest),
    /// What is your part in this scan?
    Scan(ScanRequest),
    /// A scan is over: let go of its snapshot.
    EndScan {
        /// Names the scan.
        snapshot: SnapshotId,
    },
}

/// The answer to a [`PeerRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAnswer {
    /// To `ReadCell`.
    Cell(Option<Cell>),
    /// To `ReadMeta`.
    Meta(Option<CellMeta>),
    /// To `Write`: it is durable, with its hints.
    Written {
        /// A greater version was there already. `false` may be wrong.
        superseded: bool,
    },
    /// To `KeepHints`: they are durable.
    HintsKept,
    /// To `Heartbeat`.
    Heartbeat(HeartbeatPayload),
    /// To `Range`.
    Range(RangeAnswer),
    /// To `Scan`.
    Scan(ScanAnswer),
    /// To `EndScan`.
    ScanEnded,
    /// It was not done.
    Failed(PeerFault),
}

/// Why a node did not do as another asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerFault {
    /// Its store failed.
    Store(StoreFault),
    /// Its answers to reads count for nothing yet: see [`SyncState`].
    NotReadEligible,
    /// The version is further ahead of its clock than it allows.
    ClockAhead {
        /// What its wall clock showed.
        wall: WallTime,
    },
    /// Too much of this asker's is under way there.
    Busy,
    /// It has not recovered yet, or is leaving.
    NotServing,
}

/// How a node is, as it tells its peers with each heartbeat and with each answer to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatPayload {
    /// When it was sent, by the asker's monotonic clock; the answer repeats the asker's.
    pub sent: Instant,
    /// The sender's wall clock.
    pub wall: WallTime,
    /// Whether the sender's answers to reads count.
    pub sync_state: SyncState,
    /// The sender is about to end.
    pub draining: bool,
    /// The sender has no room for values.
    pub disk_full: bool,
    /// Hints that the sender still holds for the receiver; an estimate that is 0 only when there are none.
    pub hints_for_you: u64,
    /// The receiver may lack writes that the sender has given up bringing it: it owes itself a pass over all keys
    /// with its peers.
    pub repair_pending: bool,
    /// The identity that the sender remembers of the receiver's address, before this life of it.
    pub remembered_tag_of_you: Option<NodeTag>,
    /// The newest life of that identity that the sender remembers; the clock is the greatest that it heard in
    /// that life.
    pub remembered_generation_of_you: Option<Generation>,
    /// The sender's own life: its number and the durable bound of its version clock. `None` from a sender that does
    /// not count its starts.
    pub generation: Option<GenerationReport>,
    /// How many replicas hold a key when a request to the sender does not say it; `None` from a sender of a release
    /// that does not report it.
    pub default_from: Option<NonZeroU8>,
}

/// A life as its own process reports it; the incarnation is known from the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenerationReport {
    /// Number of the start, from 1 on.
    pub number: u64,
    /// The greatest value of the version clock in this life behind which no later life begins; 0 before there is one.
    /// See [`HybridClock::secured`](crate::HybridClock::secured).
    pub clock: Hlc,
}

/// Asks what a node holds in a range of keys that both it and the asker are to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRequest {
    /// The range begins behind this key; `None`: at the first key of all.
    pub after: Option<Key>,
    /// It ends with this key; `None`: with the last key of all.
    pub until: Option<Key>,
    /// Cells with greater versions are left out: they may still be on their way.
    pub cutoff: Hlc,
    /// What the asker's part of the range amounts to; `None`: it wants what there is.
    pub digest: Option<RangeDigest>,
    /// Wants cells, not only versions.
    pub cells: bool,
}

/// The answer to a [`RangeRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeAnswer {
    /// Both hold the same.
    Same,
    /// What the answering node holds, in key order.
    Versions {
        /// Keys with their versions.
        entries: Vec<(Key, CellMeta)>,
        /// The part of the range that was looked at ends with this key; `None`: all of it was.
        until: Option<Key>,
    },
    /// What the answering node holds, in key order.
    Cells {
        /// Keys with their cells.
        entries: Vec<(Key, Cell)>,
        /// As above.
        until: Option<Key>,
    },
}

/// What a set of keys and versions amounts to: equal sets have equal digests, different ones almost surely not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeDigest {
    /// How many keys.
    pub keys: u64,
    /// The wrapping sum of a hash of each key with its version.
    pub sum: u64,
}
