//! The state of nodes and their views of each other.

use super::World;
use cluster::{Node, NodeIndex, PeerState, PeerView, SyncState};
use stdx::Now;

impl World {
    pub(crate) fn node(&self, host: usize) -> &Node {
        self.hosts[host].node.as_ref().expect("the host runs")
    }

    pub(crate) fn node_mut(&mut self, host: usize) -> (Now, &mut Node) {
        let now = self.now_at(host);
        (now, self.hosts[host].node.as_mut().expect("the host runs"))
    }

    pub(crate) fn sync_state(&self, host: usize) -> SyncState {
        self.node(host).status().sync_state
    }

    /// The latest view that `host` has of `peer`.
    pub(crate) fn view_of(&self, host: usize, peer: usize) -> PeerView {
        self.node(host).view().peer(NodeIndex(peer as u8))
    }

    pub(crate) fn state(&self, host: usize, peer: usize) -> PeerState {
        self.view_of(host, peer).state
    }
}
