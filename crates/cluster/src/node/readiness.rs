//! When users may be served.
//!
//! **Promise.** A node is ready once each peer has been linked with or is unreachable, the hints that reachable
//! peers hold for it are applied, and it knows whether it stands for a lost node as far as reachable peers can
//! tell, and its version clock is no longer ahead of the wall for what its former life had reserved. A peer that makes no progress for [`PROGRESS_WITHIN`] is not waited for, so that no peer can keep a node
//! from serving. Once ready, it stays so.

use super::Node;
use crate::{HybridClock, NodeIndex, PeerState, Standing};
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
                && !self.waits_out_reserved(now)
                && self.peer_nodes().all(|node| !self.is_waited_for(now, node));
        }
    }

    /// Until then, a write through this node could hide one that is made through another a moment later.
    fn waits_out_reserved(&self, now: Now) -> bool {
        let is_ahead = self.member.clock.start().wall() > now.wall;
        self.peers_count() > 0 && is_ahead && now.mono - self.started < RESERVED_WAIT_MAX
    }

    fn is_waited_for(&self, now: Now, node: NodeIndex) -> bool {
        let peer = self.peer(node);
        let is_served = self.is_usable(node) && peer.vitals().is_some_and(|vitals| vitals.hints_for_you == 0);
        let is_stuck = now.mono - peer.hints_there.since >= PROGRESS_WITHIN;
        peer.state != PeerState::Unreachable && !is_served && !is_stuck
    }

    /// Whether this node's standing is undecided, or decided and not yet durable, and waiting helps.
    fn is_standing_open(&self, now: Now) -> bool {
        let is_open = self.peers_count() > 0 && self.record.durable().standing == Standing::Unsettled;
        let is_decided = self.record.wanted().standing != Standing::Unsettled;
        let is_stuck =
            self.peer_nodes().all(|node| now.mono - self.peer(node).hints_there.since >= PROGRESS_WITHIN);
        is_open && !is_stuck && (is_decided || self.is_word_outstanding())
    }
}
