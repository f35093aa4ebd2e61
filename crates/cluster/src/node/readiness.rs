//! Readiness: when the node may serve users.
//!
//! **Promise.** A node is ready when all of these hold:
//!
//! - Each peer is linked or unreachable.
//! - The hints that reachable peers hold for this node are applied.
//! - Its sync state is decided, as far as reachable peers can contribute.
//!
//! A peer that makes no progress for [`PROGRESS_TIMEOUT`] is not waited for, so that no peer can
//! keep a node from serving. Once ready, the node stays ready.
//!
//! No write through this node hides a write that is made later through a peer which this node can
//! reach. This holds although its version clock may start ahead of the wall clock, by the versions
//! that its previous generation had reserved.
//!
//! **Mechanism.** While the version clock is ahead of the wall clock for that reason and a peer can
//! be reached, the node *holds writes*. A starting node is not ready meanwhile. If no peer can be
//! reached, it is ready at once, since no other node acknowledges a write through it. If a peer
//! links with such a node within the reserved second, the view tells the coordinators to hold
//! writes until the wall clock has caught up. Reads continue. After a clean stop nothing is
//! reserved and no writes are held.
//!
//! **Caveats.** A killed node whose peers run but refuse the connection (a firewall that rejects)
//! may acknowledge writes with `ack=1` in that second. Such a write has a version up to
//! [`HybridClock::RESERVATION`] ahead. It hides a write of the same key that is made through
//! another node later in that second.

use super::Node;
use crate::{HybridClock, NodeIndex, PeerState, SyncState};
use std::time::Duration;
use stdx::Now;

/// Time after which a peer is no longer waited for if its hints for this node do not become fewer.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the wall clock to pass the reserved versions. After that, the wall clock must
/// have been set back.
const RESERVATION_WAIT_MAX: Duration = HybridClock::RESERVATION.saturating_add(Duration::from_millis(250));

impl Node {
    pub(super) fn update_readiness(&mut self, now: Now) {
        if !self.ready {
            let is_decided = !self.is_sync_state_undecided(now);
            self.ready = is_decided
                && !self.holds_writes(now)
                && self.peer_nodes().all(|node| !self.is_awaited(now, node));
        }
    }

    /// Whether a write through this node could hide one that is made through a peer a moment later.
    pub(super) fn holds_writes(&self, now: Now) -> bool {
        let is_ahead = self.member.clock.start().wall() > now.wall;
        let can_reach = |node| self.peer(node).state != PeerState::Unreachable || self.is_linking(now, node);
        is_ahead && now.mono - self.started < RESERVATION_WAIT_MAX && self.peer_nodes().any(can_reach)
    }

    fn is_awaited(&self, now: Now, node: NodeIndex) -> bool {
        let peer = self.peer(node);
        let is_served =
            self.is_usable(node) && peer.heartbeat().is_some_and(|heartbeat| heartbeat.hints_for_you == 0);
        let is_stuck = now.mono - peer.hint_progress.since >= PROGRESS_TIMEOUT;
        peer.state != PeerState::Unreachable && !is_served && !is_stuck
    }

    /// Whether this node's sync state is undecided or not durable yet, and waiting can help.
    fn is_sync_state_undecided(&self, now: Now) -> bool {
        if !self.has_identity_reports {
            return true;
        }
        let is_open = self.peers_count() > 0 && self.record.durable().sync_state == SyncState::Unsettled;
        let is_decided = self.record.wanted().sync_state != SyncState::Unsettled;
        let is_stuck =
            self.peer_nodes().all(|node| now.mono - self.peer(node).hint_progress.since >= PROGRESS_TIMEOUT);
        is_open && !is_stuck && (is_decided || self.is_identity_report_missing())
    }
}
