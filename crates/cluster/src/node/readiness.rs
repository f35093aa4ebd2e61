//! When users may be served.
//!
//! **Promise.** A node is ready once each peer has been linked with or is unreachable, the hints that reachable
//! peers hold for it are applied, and it knows whether it stands for a lost node as far as reachable peers can
//! tell. A peer that makes no progress for [`PROGRESS_WITHIN`] is not waited for, so that no peer can keep a node
//! from serving. Once ready, it stays so.
//!
//! No write through this node hides a write that is made later through a peer that this node can reach, although
//! its version clock may start ahead of the wall clock by what a former life had reserved.
//!
//! **Mechanism.** While the version clock is ahead of the wall clock for that reason and a peer can be reached, the node
//! *holds writes*. A node that starts is not ready meanwhile. If no peer can be reached, it is ready at once: no write
//! through it is acknowledged by another node. When a peer links with such a node within the reserved second, the view
//! tells the coordinators to hold writes until the wall clock has caught up; reads go on. After a clean stop nothing is
//! reserved, and nothing is held.
//!
//! **Caveats.** A node that was killed, and whose peers run but refuse the connection (a firewall that rejects), may
//! acknowledge writes with `ack=1` in that second. Such a write has a version up to [`HybridClock::RESERVATION`] ahead, and hides
//! a write of the same key that is made through another node later in that second.

use super::Node;
use crate::{HybridClock, NodeIndex, PeerState, SyncState};
use std::time::Duration;
use stdx::Now;

/// A peer whose hints for this node have not become fewer for so long is not waited for.
const PROGRESS_WITHIN: Duration = Duration::from_secs(5);
/// What was reserved is not waited out for longer than this: then the wall clock was set back.
const RESERVED_WAIT_MAX: Duration = HybridClock::RESERVATION.saturating_add(Duration::from_millis(250));

impl Node {
    pub(super) fn look_whether_ready(&mut self, now: Now) {
        if !self.ready {
            let knows_standing = !self.is_standing_open(now);
            self.ready = knows_standing
                && !self.holds_writes(now)
                && self.peer_nodes().all(|node| !self.is_waited_for(now, node));
        }
    }

    /// Whether a write through this node could hide one that is made through a peer a moment later.
    pub(super) fn holds_writes(&self, now: Now) -> bool {
        let is_ahead = self.member.clock.start().wall() > now.wall;
        let can_reach = |node| self.peer(node).state != PeerState::Unreachable || self.is_linking(now, node);
        is_ahead && now.mono - self.started < RESERVED_WAIT_MAX && self.peer_nodes().any(can_reach)
    }

    fn is_waited_for(&self, now: Now, node: NodeIndex) -> bool {
        let peer = self.peer(node);
        let is_served =
            self.is_usable(node) && peer.heartbeat().is_some_and(|heartbeat| heartbeat.hints_for_you == 0);
        let is_stuck = now.mono - peer.hints_there.since >= PROGRESS_WITHIN;
        peer.state != PeerState::Unreachable && !is_served && !is_stuck
    }

    /// Whether this node's standing is undecided, or decided and not yet durable, and waiting helps.
    fn is_standing_open(&self, now: Now) -> bool {
        if !self.words_are_heard {
            return true;
        }
        let is_open = self.peers_count() > 0 && self.record.durable().sync_state == SyncState::Unsettled;
        let is_decided = self.record.wanted().sync_state != SyncState::Unsettled;
        let is_stuck =
            self.peer_nodes().all(|node| now.mono - self.peer(node).hints_there.since >= PROGRESS_WITHIN);
        is_open && !is_stuck && (is_decided || self.is_word_outstanding())
    }
}
