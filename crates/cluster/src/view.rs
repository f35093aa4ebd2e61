//! The view of the cluster that a node publishes to the coordinators of its process.

use crate::{NodeIndex, NodeSet, RefusedKeys};

/// State of a peer according to the failure detector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// The peer has not been heard yet.
    Unknown,
    /// The peer answers.
    Up,
    /// The peer is slow: it receives writes, and is read from only if other replicas do not
    /// suffice.
    Suspected,
    /// The peer refused or reset the connection, or was silent for too long. Operations do not wait
    /// for it.
    Unreachable,
}

impl PeerState {
    /// The name of the state in logs and in `GET /v0/status`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Up => "up",
            Self::Suspected => "suspected",
            Self::Unreachable => "unreachable",
        }
    }
}

/// One peer, as the node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerView {
    /// State of the peer.
    pub state: PeerState,
    /// Whether a link with the peer is open in at least one direction, and the other direction is
    /// being dialed. It is [`Unreachable`](PeerState::Unreachable) or
    /// [`Unknown`](PeerState::Unknown) only briefly: operations wait for it.
    pub linking: bool,
    /// Whether the peer's answers to reads count.
    pub read_eligible: bool,
    /// Whether the peer is being filled from other replicas: it will not be read-eligible soon, and
    /// no read waits for that.
    pub rebuilding: bool,
    /// Whether the peer's disk is too full for values.
    pub disk_full: bool,
    /// Whether the peer is about to shut down: it is read from only if other replicas do not
    /// suffice.
    pub draining: bool,
}

impl PeerView {
    /// A peer that has not been heard yet.
    pub const UNKNOWN: Self = Self {
        state: PeerState::Unknown,
        linking: false,
        read_eligible: false,
        rebuilding: false,
        disk_full: false,
        draining: false,
    };
    /// A slot without a member, or one that the view does not know yet.
    pub const UNREACHABLE: Self = Self { state: PeerState::Unreachable, ..Self::UNKNOWN };
    /// A peer that is up and read-eligible.
    pub const UP: Self = Self { state: PeerState::Up, read_eligible: true, ..Self::UNKNOWN };
}

/// The view of the cluster that a node publishes to its coordinators. Each view replaces the
/// previous one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// All nodes by slot; the entry of this node describes itself. A free slot is unreachable.
    pub peers: Vec<PeerView>,
    /// This node's wall clock is so far ahead of most others, or was set forward so far since they
    /// last agreed with it, that they would refuse its versions. For operators only: coordinators
    /// check the ceiling of the clock, which detects this at once.
    pub clock_ahead: bool,
    /// Peers whose wall clocks are so far behind that they would refuse this node's versions.
    pub refusing: NodeSet,
    /// The version clock is ahead of the wall clock, briefly, by the reservation of an earlier
    /// generation, and a peer can be reached. Writes through this node wait, so that they do not
    /// supersede later writes through other nodes.
    pub holds_writes: bool,
    /// Peers that this node must hear before it is read-eligible, because its directory is new: one
    /// of them may remember an earlier directory.
    pub unheard_peers: NodeSet,
    /// Keys for which this node's answers do not count.
    pub refused: RefusedKeys,
}

impl ClusterView {
    /// The view of `node`. A node that has become a member since the view was published is
    /// unreachable.
    #[inline]
    pub fn peer(&self, node: NodeIndex) -> PeerView {
        self.peers.get(node.as_usize()).copied().unwrap_or(PeerView::UNREACHABLE)
    }
}
