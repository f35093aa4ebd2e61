//! Does this node stand for one that was lost?
//!
//! **Promise.** A node with a new directory whose address a reachable peer remembers under another identity fills
//! itself from the others before its answers to reads count. Each change of standing is durable before anybody
//! is told of it.
//!
//! **Mechanism.** Each peer says in its heartbeats what it remembers. One that remembers another identity makes
//! this node rebuild. When a majority of all nodes, this one counted, remembers none or this very one, and no
//! peer that may be reachable is still to say, the cluster is new, and so is this node; unless one of them is rebuilding
//! itself, whose word says nothing of what was before: then this node rebuilds too.
//!
//! **Caveats.** A node that lost its disk takes itself for new if all who remember it are unreachable just then and
//! a majority never met it. Who met it is whom it exchanged heartbeats with at any time.

use super::Node;
use super::peer::Peer;
use crate::{NodeIndex, PeerState, Standing, Vitals};
use stdx::Now;

impl Node {
    /// Whether this node's answers to reads count.
    pub(super) fn is_believed(&self) -> bool {
        self.peers_count() == 0 || self.record.durable().standing.is_believed()
    }

    pub(super) fn take_word(&mut self, node: NodeIndex, its: &Vitals) {
        self.peer_mut(node).word = Some(its.remembered_tag_of_you);
        if its.repair_owed {
            // Who lacks a write finds it at any of its replicas; who gave it up may be none of them.
            self.owe_repair(self.peer_nodes().collect());
        }
    }

    /// Decides, as long as nothing is decided durably.
    pub(super) fn decide_standing(&mut self, now: Now) {
        if self.record.durable().standing != Standing::Unsettled {
            return;
        }
        let words = || self.peer_nodes().filter_map(|node| self.peer(node).word);
        if words().any(|word| word.is_some_and(|tag| tag != self.member.tag)) {
            self.record.change().standing = Standing::Rebuilding;
            return;
        }
        let heard = 1 + words().count();
        let is_majority = heard * 2 > usize::from(self.member.layout.len());
        if is_majority && !self.is_word_outstanding() && self.record.wanted().standing == Standing::Unsettled
        {
            let is_rebuilding = |node| self.peer(node).standing() == Standing::Rebuilding;
            if self.peer_nodes().any(is_rebuilding) {
                self.record.change().standing = Standing::Rebuilding;
                return;
            }
            let record = self.record.change();
            record.standing = Standing::Settled;
            // There is nothing that others could hold and this node lacks.
            record.repaired_at = Some(now.wall);
        }
    }

    /// Whether some peer may be reachable and has not said what it remembers.
    pub(super) fn is_word_outstanding(&self) -> bool {
        let may_answer = |peer: &Peer| {
            peer.state != PeerState::Unreachable || peer.dialed.is_some() || peer.accepted.is_some()
        };
        self.peer_nodes().map(|node| self.peer(node)).any(|peer| peer.word.is_none() && may_answer(peer))
    }

    /// The standing of a peer by its word, for operators.
    pub(super) fn standing_of(&self, node: NodeIndex) -> Standing {
        if node == self.member.me { self.record.durable().standing } else { self.peer(node).standing() }
    }
}
