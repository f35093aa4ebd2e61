//! Membership: the state that all state machines of a node share.

use crate::{ClusterView, HintLedger, HybridClock, Incarnation, Layout, NodeIndex, PeerView};
use std::sync::Arc;
use stdx::NodeTag;

/// A node as a member of its cluster: the state that all its state machines share. Clones share
/// clock and ledger.
#[derive(Clone, Debug)]
pub struct Member {
    /// The members, and the map of keys to replicas. Each state machine follows the newest layout
    /// by itself.
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
    /// Whether `layout` is newer than the one of this node, so that the node follows it.
    ///
    /// # Panics
    /// If it has other partitions, or this node is no member of it: such a process ends.
    pub(crate) fn is_followed_by(&self, layout: &Layout) -> bool {
        assert_eq!(layout.partitions(), self.layout.partitions(), "the partitions of a cluster are fixed");
        assert!(layout.members().contains(self.me), "a node that was removed ends");
        layout.epoch() > self.layout.epoch()
    }

    /// The view of a process that has not heard its peers yet. The node itself is read-eligible
    /// only if it is alone.
    pub fn first_view(&self) -> Arc<ClusterView> {
        let mut peers = vec![PeerView::UNREACHABLE; self.layout.slot_count()];
        self.layout.nodes().for_each(|node| peers[node.as_usize()] = PeerView::UNKNOWN);
        peers[self.me.as_usize()].read_eligible = self.layout.len() == 1;
        Arc::new(ClusterView { peers, ..ClusterView::default() })
    }
}
