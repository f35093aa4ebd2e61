//! What the coordinators of a process are told of the cluster by its node.

use crate::{NodeIndex, NodeSet, RefusedKeys};

/// How a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// Nothing has been heard of it yet.
    Unknown,
    /// It answers.
    Up,
    /// It is late: still written to, not read from while others will do.
    Suspected,
    /// It refused or reset the connection, or was silent too long. Operations do not wait for it.
    Unreachable,
}

impl PeerState {
    /// The state in one word, as logs and `GET /v0/status` name it.
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
    /// How it is.
    pub state: PeerState,
    /// A link with it is open in one direction at least, and the other direction is being dialed. It is
    /// [`Unreachable`](PeerState::Unreachable) or [`Unknown`](PeerState::Unknown) for a moment only: operations wait for it.
    pub linking: bool,
    /// Its answers to reads count.
    pub read_eligible: bool,
    /// It is being filled from other replicas: its answers to reads will not count soon, and no read waits for that.
    pub rebuilding: bool,
    /// It has no room for values.
    pub disk_full: bool,
    /// It is about to end: not read from while others will do.
    pub draining: bool,
}

impl PeerView {
    /// A peer of which nothing has been heard yet.
    pub const UNKNOWN: Self = Self {
        state: PeerState::Unknown,
        linking: false,
        read_eligible: false,
        rebuilding: false,
        disk_full: false,
        draining: false,
    };
    /// A peer that answers, and whose answers count.
    pub const UP: Self = Self { state: PeerState::Up, read_eligible: true, ..Self::UNKNOWN };
}

/// What the coordinators of a process are told of the cluster by its node. Each view replaces the one before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// All nodes by their index; the entry of this node itself is about itself.
    pub peers: Vec<PeerView>,
    /// This node's wall clock is so far ahead of most others, or was set forward so far since they last agreed with it,
    /// that they would refuse its versions. For operators: coordinators go by the clock's ceiling, which knows at once.
    pub clock_ahead: bool,
    /// Peers whose wall clocks are so far behind that they would refuse the versions of this node.
    pub refusing: NodeSet,
    /// The version clock is ahead of the wall clock, for a moment, by what a former life of this node had reserved, and a
    /// peer can be reached: writes through this node wait, so that they hide none that is made through another node
    /// later.
    pub holds_writes: bool,
    /// This node's directory is new, and its answers to reads do not count before it has heard these nodes: one of
    /// them may remember what was here before.
    pub unheard_peers: NodeSet,
    /// Keys for which this node's answers do not count.
    pub refused: RefusedKeys,
}

impl ClusterView {
    /// How `node` is.
    pub fn peer(&self, node: NodeIndex) -> PeerView {
        self.peers[node.as_usize()]
    }
}
