//! When users may be served.
//!
//! **Promise.** A node is ready once each peer has been linked with or is unreachable, the hints that reachable
//! peers hold for it are applied, and it knows whether it stands for a lost node as far as reachable peers can
//! tell. A peer that makes no progress for [`PROGRESS_WITHIN`] is not waited for, so that no peer can keep a node
//! from serving. Once ready, it stays so.

use super::Node;
use crate::{NodeIndex, PeerState, Standing};
use std::time::Duration;
use stdx::Now;

/// A peer whose hints for this node have not become fewer for so long is not waited for.
const PROGRESS_WITHIN: Duration = Duration::from_secs(5);

impl Node {
    pub(super) fn look_whether_ready(&mut self, now: Now) {
        if !self.ready {
            let knows_standing = !self.is_standing_open(now);
            self.ready = knows_standing && self.peer_nodes().all(|node| !self.is_waited_for(now, node));
        }
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
