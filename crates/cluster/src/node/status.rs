//! Status of the node and its peers for operators.

use super::Node;
use super::repair::is_in_future;
use crate::{HintCount, Incarnation, LayoutEpoch, NodeIndex, PeerState, SyncState};
use std::num::NonZeroU8;
use std::time::Duration;
use stdx::WallTime;

/// Status of a node and its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Sync state of this node.
    pub sync_state: SyncState,
    /// Whether the node may serve users.
    pub ready: bool,
    /// Status of all nodes in the order of their slots, this node included.
    pub peers: Vec<PeerStatus>,
    /// Progress of the running rebuild, healing or pass of anti-entropy.
    pub repair: Option<RepairStatus>,
    /// Start of the last complete round of anti-entropy, by the wall clock at that time.
    pub repaired_at: Option<WallTime>,
    /// Number of keys whose newest cell was refused, so that reads of them fail here.
    pub refused_keys: usize,
    /// The newest epoch that this process has fenced.
    pub fenced: LayoutEpoch,
    /// The purge of what this node has lost by changes of the layout.
    pub purge: PurgeStatus,
}

impl NodeStatus {
    /// Whether the time of the last round is in the future of a clock that shows `wall`. A clock
    /// was wrong then.
    pub fn is_repaired_in_future(&self, wall: WallTime) -> bool {
        self.repaired_at.is_some_and(|at| is_in_future(at, wall))
    }
}

/// The purge of what a node has lost by changes of the layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PurgeStatus {
    /// Partitions of which some keys are still to be purged.
    pub partitions: usize,
    /// Bytes of the tables that are still to be rewritten for that.
    pub bytes_left: u64,
}

/// Status of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Index of the peer.
    pub node: NodeIndex,
    /// State by the failure detector.
    pub state: PeerState,
    /// Sync state of the peer, which decides whether its answers to reads count.
    pub sync_state: SyncState,
    /// Whether the peer has no disk space for values.
    pub disk_full: bool,
    /// Hints that this node holds for the peer.
    pub hints: HintCount,
    /// Number of hints for the peer that were dropped here.
    pub hints_dropped: u64,
    /// Difference of the peer's wall clock to this node's in microseconds, network delay included.
    /// Positive if the peer's clock is ahead.
    pub clock_ahead_micros: i64,
    /// Round-trip time of the last heartbeat.
    pub round_trip: Option<Duration>,
    /// Default number of replicas of a key on that node. `None`: it has not reported one since the
    /// start of this process.
    pub default_from: Option<u8>,
    /// Process of the newest generation of that node which this node remembers durably. Of this
    /// node itself: this process, once it is durable.
    pub remembered: Option<Incarnation>,
}

/// Progress of a pass over the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairStatus {
    /// Kind of the pass.
    pub kind: RepairKind,
    /// Passed part of the key space in thousandths, by the first bytes of the keys.
    pub permille: u16,
    /// Number of cells fetched from peers or sent to them.
    pub cells: u64,
}

/// Kind of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairKind {
    /// The replicas are compared and differences exchanged.
    AntiEntropy,
    /// This node lost its data and is filled from the others.
    Rebuild,
    /// The lost ranges of a damaged table are pulled from the others.
    Healing,
}

impl Node {
    pub(super) fn peer_status(&self, node: NodeIndex) -> PeerStatus {
        let peer = self.peer(node);
        let is_own = node == self.member.me;
        let default_from =
            if is_own { Some(self.limits.default_from) } else { peer.default_from.map(NonZeroU8::get) };
        let record = self.record.durable();
        let remembered = if is_own {
            let current = record.own_generations.current();
            current.filter(|generation| generation.incarnation == self.member.incarnation)
        } else {
            record.peer_generations.get(&node)
        };
        PeerStatus {
            default_from,
            remembered: remembered.map(|generation| generation.incarnation),
            node,
            state: self.view.peer(node).state,
            sync_state: self.sync_state_of(node),
            disk_full: self.view.peer(node).disk_full,
            hints: self.member.hints.held(node),
            hints_dropped: self.member.hints.dropped(node),
            clock_ahead_micros: peer.clock_ahead_micros,
            round_trip: peer.round_trip,
        }
    }
}
