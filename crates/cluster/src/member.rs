//! Membership: the state that all state machines of a node share.

use crate::{ClusterView, HintLedger, HybridClock, Incarnation, Layout, NodeIndex, PeerView};
use std::sync::Arc;
use stdx::NodeTag;

/// A node as a member of its cluster: the state that all its state machines share. Clones share
/// clock and ledger.
#[derive(Clone, Debug)]
pub struct Member {
    /// Maps keys to replicas.
    pub layout: Arc<Layout>,
    /// Index of this node.
    pub me: NodeIndex,
    /// Identity of the data directory; part of every version that the node issues.
    pub tag: NodeTag,
    /// Incarnation of this process.
    pub incarnation: Incarnation,
    /// Version clock, which issues versions.
    pub clock: Arc<HybridClock>,
    /// Counts the hints that the node keeps.
    pub hints: Arc<HintLedger>,
}

impl Member {
    /// The view of a process that has not heard its peers yet. The node itself is read-eligible
    /// only if it is alone.
    pub fn first_view(&self) -> Arc<ClusterView> {
        let mut peers = vec![PeerView::UNKNOWN; usize::from(self.layout.len())];
        peers[self.me.as_usize()].read_eligible = self.layout.len() == 1;
        Arc::new(ClusterView { peers, ..ClusterView::default() })
    }
}
