//! Messages between nodes.
//!
//! A node *dials* each other node and sends requests over the dialed link; answers come back the
//! same way. An accepted link carries the requests of the peer and this node's answers. Requests on
//! a link thus go in one direction, and two nodes that know each other have at least two links.
//!
//! Messages may be lost with their link, duplicated, delayed or reordered: each request can be
//! carried out any number of times. Message ids contain the incarnation of the requesting process,
//! so that a process never accepts an answer to an earlier process of its node.

mod copy;

use crate::{
    ChainRequest, ChainResponse, Generation, Key, LayoutDecodeError, LayoutEpoch, LayoutRecord, NodeIndex,
    PlanStatements, RecordHash, ReplicaFault, ReplicaOutcome, ReplicaRequest, ReplicaResponse, ScanRequest,
    SyncState,
};
use bytes::Bytes;
pub use copy::{CopyAnswer, CopyRequest};
use std::fmt;
use std::num::NonZeroU8;
use std::time::Duration;
use stdx::{Cell, CellMeta, Hlc, Instant, NodeTag, WallTime};

/// Identifies a process of a node: 64 random bits, drawn at its start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Identifies a request among all requests ever made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId {
    /// Incarnation of the requesting process.
    pub incarnation: Incarnation,
    /// State machine that sent the request.
    pub requester: Requester,
    /// Number of the request. Its encoding is private to the requester.
    pub number: u64,
}

/// A state machine of a node, as the source of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Requester {
    /// The process's `Node`.
    Node,
    /// The `Coordinator` of the I/O thread with this number.
    Coordinator(u8),
}

/// Identifies an accepted link; the driver never reuses a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// The other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Destination {
    /// The link that this state machine dialed to a node.
    Dialed(NodeIndex),
    /// A link that this state machine accepted.
    Accepted(LinkId),
}

/// Source of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The sender.
    pub node: NodeIndex,
    /// The link, which is also the destination of an answer.
    pub link: Destination,
}

/// A message between nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A request, which is answered at most once.
    Request {
        /// Repeated in the answer.
        id: MessageId,
        /// The request.
        request: PeerRequest,
        /// Time from sending for which the requester waits for the answer; a request that cannot be
        /// answered by then need not be carried out. `None`: no limit. Sent in milliseconds.
        within: Option<Duration>,
        /// Epoch of the newest change in the layout by which the request was planned. A node
        /// refuses requests for partitions that have changed since. [`LayoutEpoch::FIRST`] if the
        /// request is not [planned](PeerRequest::is_planned).
        epoch: LayoutEpoch,
    },
    /// The answer to a request.
    Answer {
        /// The id of the request.
        id: MessageId,
        /// The answer.
        answer: PeerAnswer,
    },
}

impl Message {
    /// The message to send in place of an answer with data that does not fit into the link's
    /// buffer: the node is busy, so the requester retries or asks elsewhere instead of waiting for
    /// its deadline. `None` for requests, for answers that are as short, and for acknowledgements.
    pub fn refusal(&self) -> Option<Self> {
        match self {
            Self::Answer { id, answer } if answer.carries_data() => {
                Some(Self::Answer { id: *id, answer: PeerAnswer::Failed(ReplicaFault::Busy) })
            }
            _ => None,
        }
    }
}

/// A request to another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerRequest {
    /// A request to the node as a replica. A `Node` that moves cells sends these too.
    Replica(ReplicaRequest),
    /// Requests the receiver's part of a scan.
    Scan(ScanRequest),
    /// A request from `Node` to `Node`.
    Node(NodeRequest),
}

impl PeerRequest {
    /// Whether the request is planned by a layout, so that its epoch matters.
    pub const fn is_planned(&self) -> bool {
        match self {
            Self::Replica(_) | Self::Scan(_) | Self::Node(NodeRequest::Range(_) | NodeRequest::Copy(_)) => {
                true
            }
            Self::Node(NodeRequest::Heartbeat(_) | NodeRequest::Chain(_) | NodeRequest::ReadLayout) => false,
        }
    }
}

/// A request between the `Node`s of two processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeRequest {
    /// Probes a peer and reports the sender's state.
    Heartbeat(HeartbeatPayload),
    /// Reads the keys of a range that both nodes replicate.
    Range(RangeRequest),
    /// A request to the receiver as a voter or learner of the epoch chain. Sent only to a peer
    /// whose heartbeats have a [`LayoutStamp`].
    Chain(ChainRequest<EncodedRecord>),
    /// Reads the newest layout record that the receiver has adopted. Sent as `Chain` is.
    ReadLayout,
    /// Reads cells that the sender gains by a running swap. Sent as `Chain` is.
    Copy(CopyRequest),
}

/// The answer to a [`PeerRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAnswer {
    /// Answers `Replica` and `Scan`.
    Replica(ReplicaResponse),
    /// Answers `Node`.
    Node(NodeResponse),
    /// The request was not carried out.
    Failed(ReplicaFault),
}

/// The answer to a [`NodeRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeResponse {
    /// Answers `Heartbeat`.
    Heartbeat(HeartbeatPayload),
    /// Answers `Range`.
    Range(RangeAnswer),
    /// Answers `Chain`.
    Chain(ChainResponse<EncodedRecord>),
    /// Answers `ReadLayout`.
    Layout(EncodedRecord),
    /// Answers `Copy`.
    Copied(CopyAnswer),
}

impl PeerAnswer {
    /// The outcome of a request to a replica. An answer to another kind of request is a fault of
    /// the peer.
    pub(crate) fn into_outcome(self) -> ReplicaOutcome {
        match self {
            Self::Replica(response) => Ok(response),
            Self::Failed(fault) => Err(fault),
            Self::Node(_) => Err(ReplicaFault::NotServing),
        }
    }

    /// Whether the answer is about as large as the data that it carries.
    const fn carries_data(&self) -> bool {
        match self {
            Self::Replica(response) => response.carries_data(),
            Self::Node(NodeResponse::Range(_) | NodeResponse::Layout(_) | NodeResponse::Copied(_)) => true,
            Self::Node(NodeResponse::Chain(response)) => response.record().is_some(),
            Self::Node(NodeResponse::Heartbeat(_)) | Self::Failed(_) => false,
        }
    }
}

impl From<ReplicaRequest> for PeerRequest {
    fn from(request: ReplicaRequest) -> Self {
        Self::Replica(request)
    }
}

impl From<NodeRequest> for PeerRequest {
    fn from(request: NodeRequest) -> Self {
        Self::Node(request)
    }
}

impl From<ReplicaOutcome> for PeerAnswer {
    fn from(outcome: ReplicaOutcome) -> Self {
        match outcome {
            Ok(response) => Self::Replica(response),
            Err(fault) => Self::Failed(fault),
        }
    }
}

impl From<NodeResponse> for PeerAnswer {
    fn from(response: NodeResponse) -> Self {
        Self::Node(response)
    }
}

/// The state of a node, as it reports it to its peers in each heartbeat and in each answer to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatPayload {
    /// Send time by the requester's monotonic clock; the answer repeats it.
    pub sent: Instant,
    /// The sender's wall clock.
    pub wall: WallTime,
    /// The sender's sync state, which decides whether it is read-eligible.
    pub sync_state: SyncState,
    /// Whether the sender is about to shut down.
    pub draining: bool,
    /// Whether the sender's disk is too full for values.
    pub disk_full: bool,
    /// Hints that the sender still holds for the receiver; an estimate that is 0 only if there are
    /// none.
    pub hints_for_you: u64,
    /// Whether the receiver may lack writes that the sender has stopped trying to deliver. The
    /// receiver must then compare all keys with its peers.
    pub repair_pending: bool,
    /// The identity that the sender remembers of the receiver's address, from before the receiver's
    /// present generation.
    pub remembered_tag_of_you: Option<NodeTag>,
    /// The newest generation of that identity that the sender remembers; its clock is the greatest
    /// value that the sender heard in that generation.
    pub remembered_generation_of_you: Option<Generation>,
    /// The sender's own generation. `None` from a sender that does not count its starts.
    pub generation: Option<GenerationReport>,
    /// Default number of replicas of a key for requests to the sender; `None` from a sender of a
    /// release that does not report it.
    pub default_from: Option<NonZeroU8>,
    /// The newest layout record that the sender has adopted. `None` from a sender that takes no
    /// part in the agreement on layout records, or over a link whose protocol lacks it.
    pub layout: Option<LayoutStamp>,
    /// Whether the sender's directory has forgotten votes by its own id, so that it votes no more.
    /// `false` over a link whose protocol lacks it.
    pub votes_forgotten: bool,
    /// Greatest feature level of the layout records that the sender carries out. 0 from a sender
    /// that takes no part in the agreement on them, or over a link whose protocol lacks it.
    pub feature_level_max: u32,
    /// The sender's statements about the plan of that record. None without a record, or over a link
    /// whose protocol lacks them.
    pub plan: PlanStatements,
}

/// Identifies a layout record among those that nodes of one cluster may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutStamp {
    /// Epoch of the record.
    pub epoch: LayoutEpoch,
    /// The first 8 bytes of the hash of the record, which tell different records of one epoch
    /// apart.
    pub fingerprint: u64,
}

impl LayoutStamp {
    /// The stamp of a record with this epoch and hash.
    pub fn new(epoch: LayoutEpoch, hash: RecordHash) -> Self {
        let first = hash.0.first_chunk().expect("a hash is longer than that");
        Self { epoch, fingerprint: u64::from_le_bytes(*first) }
    }
}

/// The bytes of a layout record, as nodes send it. They are decoded where the record is judged: a
/// record that this release cannot read must not end the link that brought it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct EncodedRecord(pub Bytes);

impl EncodedRecord {
    /// Encodes a record.
    pub fn of(record: &LayoutRecord) -> Self {
        Self(record.encode().into())
    }

    /// SHA-256 of the bytes.
    pub fn hash(&self) -> RecordHash {
        RecordHash::of(&self.0)
    }

    /// Decodes and checks the record.
    ///
    /// # Errors
    /// [`LayoutDecodeError`].
    pub fn decode(&self) -> Result<LayoutRecord, LayoutDecodeError> {
        LayoutRecord::decode(&self.0)
    }
}

impl fmt::Debug for EncodedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EncodedRecord({} bytes)", self.0.len())
    }
}

/// A generation as its own process reports it. The incarnation is known from the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenerationReport {
    /// Number of the start, from 1.
    pub number: u64,
    /// The greatest value of the version clock in this generation behind which no later generation
    /// starts; 0 before there is one: [`HybridClock::secured`](crate::HybridClock::secured).
    pub clock: Hlc,
}

/// Requests the cells of a range of keys that both nodes replicate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRequest {
    /// Exclusive lower bound; `None`: the range begins at the first key.
    pub after: Option<Key>,
    /// Inclusive upper bound; `None`: the range ends with the last key.
    pub until: Option<Key>,
    /// Cells with greater versions are left out, because they may still be in flight.
    pub cutoff: Hlc,
    /// Digest of the requester's cells in the range; `None`: the entries are wanted in any case.
    pub digest: Option<RangeDigest>,
    /// Whether cells are wanted, not only versions.
    pub cells: bool,
}

/// The answer to a [`RangeRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeAnswer {
    /// Both nodes hold the same versions in the range.
    Same,
    /// The versions that the answering node holds, in key order.
    Versions {
        /// Keys with their versions.
        entries: Vec<(Key, CellMeta)>,
        /// Last key of the part of the range that was read; `None`: all of it was read.
        until: Option<Key>,
    },
    /// The cells that the answering node holds, in key order.
    Cells {
        /// Keys with their cells.
        entries: Vec<(Key, Cell)>,
        /// Last key of the part of the range that was read; `None`: all of it was read.
        until: Option<Key>,
    },
}

/// Digest of a set of keys and versions: equal sets have equal digests, different sets almost
/// surely not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeDigest {
    /// Number of keys.
    pub keys: u64,
    /// Wrapping sum of a hash of each key with its version.
    pub sum: u64,
}
