//! A node as a member of its cluster: what all of its machines share.

use crate::{ClusterView, HintLedger, HybridClock, Incarnation, Layout, NodeIndex, PeerView};
use std::sync::Arc;
use stdx::NodeTag;

/// A node as a member of its cluster: what all of its machines share. Clones share clock and ledger.
#[derive(Clone, Debug)]
pub struct Member {
    /// Who holds what.
    pub layout: Arc<Layout>,
    /// Which of the nodes this one is.
    pub me: NodeIndex,
    /// Part of every version that it issues.
    pub tag: NodeTag,
    /// This life of its process.
    pub incarnation: Incarnation,
    /// Issues versions.
    pub clock: Arc<HybridClock>,
    /// Counts the hints that it keeps.
    pub hints: Arc<HintLedger>,
}

impl Member {
    /// The view of a process that has heard nothing of its peers yet, and whose own answers count for nothing
    /// unless it is alone.
    pub fn first_view(&self) -> Arc<ClusterView> {
        let mut peers = vec![PeerView::UNKNOWN; usize::from(self.layout.len())];
        peers[self.me.as_usize()].read_eligible = self.layout.len() == 1;
        Arc::new(ClusterView { peers, ..ClusterView::default() })
    }
}
