//! Checks this node's wall clock against the clocks of its peers.
//!
//! **Promise.** Versions are issued from the wall clock only up to the *ceiling*: a time up to
//! which enough agreeing peers still accept them. If a single peer disagrees, neither clock is
//! assumed to be wrong. This node then issues no version that the peer would refuse, nor the peer
//! one that this node would refuse, and both report the difference.
//!
//! **Mechanism.** Each answer to a heartbeat carries the peer's wall time. It is kept as a
//! [`ClockAnchor`], so the reading of the peer's clock is known at any later time, independent of
//! this node's own wall clock. A peer *agrees* while this node's wall clock is at most
//! [`HybridClock::SKEW_MAX`] ahead of the peer's. A clock that is behind does no harm here, since
//! its versions are accepted. Of the clocks that are heard, this node's included:
//!
//! - More than half agree, one of them a peer's: the ceiling is `SKEW_MAX` past the slowest
//!   agreeing clock. So no agreeing peer refuses a version that is issued before the next
//!   comparison.
//! - At least two peers disagree, and they are more than half: the ceiling is `SKEW_MAX` past a
//!   time that enough of them show. This node's clock is past it, so it issues nothing.
//! - Neither: it is unknown whose clock is wrong. An earlier ceiling stays, which distinguishes a
//!   step of this node's clock from one of the peer's. If there was none, the ceiling is `SKEW_MAX`
//!   past the peers' clocks, so that a node that starts with a clock far ahead of its only peer's
//!   issues nothing.
//! - No peer was heard, and every peer is known to be unreachable: the wall clock is followed.
//!   While a peer may still be heard, nothing is issued.
//!
//! **Caveats.** A ceiling outlasts the peers that it came from. While all peers are unreachable,
//! versions after a forward step of the clock are refused; resuming a suspended machine is such a
//! step too. This lasts until a peer answers, the clock is set back, or the process restarts. An
//! answer shows the peer's time late by its network delay, which lowers the ceiling by as much. An
//! answer that took longer than [`ROUND_TRIP_MAX`] is too inaccurate, and is used only if there is
//! no other.

use super::Node;
use crate::quorum::{is_majority, majority_beside_one};
use crate::{HeartbeatPayload, HybridClock, NODES_MAX, NodeIndex, NodeSet, PeerState, WallCeiling};
use std::time::Duration;
use stdx::{ClockAnchor, Now, WallTime};

/// Longest round-trip time of an answer that is used as a reading of the peer's clock.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(1);

/// Result of the comparison with the peers' clocks so far.
#[derive(Clone, Copy, Debug)]
pub(super) enum ClockComparison {
    /// No peer has reported its time.
    NoPeers,
    /// The clocks that were heard are too few to tell whose is wrong, and have never agreed. Holds
    /// the ceiling.
    Disputed(ClockAnchor),
    /// Enough clocks were compared. Holds the ceiling.
    Compared(ClockAnchor),
}

impl Node {
    /// Records the wall time in a peer's answer.
    pub(super) fn record_wall_clock(&mut self, now: Now, node: NodeIndex, its: &HeartbeatPayload) {
        let peer = self.peer_mut(node);
        if peer.clock.is_none() || now.mono - its.sent <= ROUND_TRIP_MAX {
            peer.clock = Some(ClockAnchor::new(Now { mono: now.mono, wall: its.wall }));
        }
    }

    /// Compares the wall clocks and sets the ceiling of the version clock.
    pub(super) fn compare_clocks(&mut self, now: Now) {
        if let Some(compared) = self.compare_now(now) {
            self.clock_comparison = compared;
        }
        let may_be_heard = |node| self.peer(node).state != PeerState::Unreachable;
        let ceiling = match self.clock_comparison {
            ClockComparison::Compared(ceiling) | ClockComparison::Disputed(ceiling) => {
                WallCeiling::At(ceiling)
            }
            ClockComparison::NoPeers if self.peer_nodes().any(may_be_heard) => WallCeiling::Unheard,
            ClockComparison::NoPeers => WallCeiling::Unlimited,
        };
        self.member.clock.set_ceiling(ceiling);
    }

    /// The time up to which this node has received all deletes, for the driver to store durably.
    /// `None` until the node is ready, and while peers may be reachable that have not reported
    /// their time. It is not past the ceiling: a time that only this node's clock shows would hide
    /// a later absence until that time has come.
    pub fn heard_to(&self, now: Now) -> Option<WallTime> {
        let read_eligible = match self.member.clock.ceiling() {
            WallCeiling::Unlimited => now.wall,
            WallCeiling::Unheard => return None,
            WallCeiling::At(ceiling) => now.wall.min(ceiling.expected_wall(now)),
        };
        self.is_ready().then_some(read_eligible)
    }

    /// The latest time that a majority of the clocks supports at `now`. `None` if the clocks heard
    /// are no majority, or if none was heard.
    pub fn supported_wall(&self, now: Now) -> Option<WallTime> {
        match self.clock_comparison {
            ClockComparison::Compared(ceiling) => Some(ceiling.expected_wall(now)),
            ClockComparison::Disputed(_) | ClockComparison::NoPeers => None,
        }
    }

    /// Whether this node's wall clock is known to be further ahead than its peers accept.
    pub(super) fn is_clock_ahead(&self, now: Now) -> bool {
        matches!(self.clock_comparison, ClockComparison::Compared(ceiling) if now.wall > ceiling.expected_wall(now))
    }

    /// Reachable peers whose clocks are so far behind that they would refuse the versions of this
    /// node.
    pub(super) fn peers_behind(&self, now: Now) -> NodeSet {
        let next = now.wall.max(self.member.clock.issued().wall());
        self.peer_wall_clocks(now)
            .filter(|&(_, wall)| !is_accepted(next, wall))
            .map(|(node, _)| node)
            .collect()
    }

    /// Result of a comparison at `now`. `None`: nothing changes.
    fn compare_now(&self, now: Now) -> Option<ClockComparison> {
        // An array, since every event of the node comes here.
        let mut walls = [WallTime::default(); NODES_MAX];
        let heard =
            self.peer_wall_clocks(now).zip(&mut walls).map(|((_, wall), entry)| *entry = wall).count();
        let walls = &mut walls[..heard];
        walls.sort_unstable_by(|a, b| b.cmp(a));
        // Number of peers that together with this node are more than half of the nodes heard.
        let enough = majority_beside_one(walls.len());
        let fastest_of_enough = *walls.get(enough.checked_sub(1)?)?;
        let agree = walls.iter().take_while(|&&wall| is_accepted(now.wall, wall)).count();
        let disagree = walls.len() - agree;
        let up_to = |wall: WallTime| {
            ClockAnchor::new(Now { mono: now.mono, wall: wall.saturating_add(HybridClock::SKEW_MAX) })
        };
        if agree >= enough {
            Some(ClockComparison::Compared(up_to(walls[agree - 1])))
        } else if disagree >= 2 && is_majority(disagree, walls.len() + 1) {
            Some(ClockComparison::Compared(up_to(fastest_of_enough)))
        } else if !matches!(self.clock_comparison, ClockComparison::Compared(_)) {
            Some(ClockComparison::Disputed(up_to(fastest_of_enough)))
        } else {
            None
        }
    }

    /// Peers that answer, with the readings of their wall clocks.
    pub(super) fn peer_wall_clocks(&self, now: Now) -> impl Iterator<Item = (NodeIndex, WallTime)> {
        let peers = self.peer_nodes().map(|node| (node, self.peer(node)));
        peers
            .filter(|(_, peer)| peer.is_reachable())
            .filter_map(move |(node, peer)| peer.clock.map(|clock| (node, clock.expected_wall(now))))
    }
}

/// Whether a node whose wall clock shows `wall` accepts versions issued at `issued`.
fn is_accepted(issued: WallTime, wall: WallTime) -> bool {
    !HybridClock::is_ahead(stdx::Hlc::at(issued), wall)
}
