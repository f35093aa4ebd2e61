//! What operators are told.

use super::Node;
use super::repair::is_in_future;
use crate::{HintCount, NodeIndex, PeerState, SyncState};
use std::num::NonZeroU8;
use std::time::Duration;
use stdx::WallTime;

/// A node's account of itself and its peers, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Its standing.
    pub sync_state: SyncState,
    /// It has what it needs to serve users.
    pub ready: bool,
    /// Its peers and itself, by index.
    pub peers: Vec<PeerStatus>,
    /// The pass of anti-entropy, rebuilding or healing under way.
    pub repair: Option<RepairStatus>,
    /// When the last complete round of passes was begun, by the wall clock of that time.
    pub repaired_at: Option<WallTime>,
    /// Keys whose newest cell was refused, so that reads of them fail here.
    pub refused_keys: usize,
}

impl NodeStatus {
    /// Whether the time of the last round is in the future for a clock that shows `wall`: a clock was wrong then.
    pub fn is_repaired_in_future(&self, wall: WallTime) -> bool {
        self.repaired_at.is_some_and(|at| is_in_future(at, wall))
    }
}

/// A peer, for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Which.
    pub node: NodeIndex,
    /// How it is.
    pub state: PeerState,
    /// Whether its answers count.
    pub sync_state: SyncState,
    /// It has no room for values.
    pub disk_full: bool,
    /// Hints kept here for it.
    pub hints: HintCount,
    /// Hints for it that were dropped here.
    pub hints_dropped: u64,
    /// How far its wall clock is ahead of this node's, in microseconds; what the network takes is in it.
    pub clock_ahead_micros: i64,
    /// From a heartbeat to its answer.
    pub round_trip: Option<Duration>,
    /// How many replicas hold a key when a request to that node does not say it; `None`: it has not reported it in
    /// this life of this node.
    pub default_from: Option<u8>,
}

/// A pass over all keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairStatus {
    /// What it is for.
    pub kind: RepairKind,
    /// The part of the key space passed, in thousandths, by the first bytes of the keys.
    pub permille: u16,
    /// Cells taken from peers or sent to them.
    pub cells: u64,
}

/// What a pass is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairKind {
    /// Replicas are compared.
    AntiEntropy,
    /// This node is filled, which lost its data.
    Rebuild,
    /// What a damaged table has lost is got from others.
    Healing,
}

impl Node {
    pub(super) fn peer_status(&self, node: NodeIndex) -> PeerStatus {
        let peer = self.peer(node);
        let is_own = node == self.member.me;
        let default_from =
            if is_own { Some(self.limits.default_from) } else { peer.default_from.map(NonZeroU8::get) };
        PeerStatus {
            default_from,
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
