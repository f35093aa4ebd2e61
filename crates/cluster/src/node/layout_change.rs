//! A new layout: the work of the node that a former one planned is dropped or begun again.
//!
//! **Promise.** Each request of the node tells the epoch of the layout by which it was planned. No
//! request of a former plan is sent after [`Node::handle_layout`], and no answer to one is stored
//! or counted by a layout for which it may be wrong.
//!
//! **Mechanism.** Most requests are planned when they are sent: the delivery of a hint, a range of
//! a pull, the retry of a refused key. Two duties keep plans for longer.
//!
//! - A pass of anti-entropy has found differences by the former layout. It ends, its peers stay
//! due, and the next pass begins at the first key.
//! - A pull counts the replicas of the partitions that this node holds. It begins again if one of
//!   these partitions has changed.
//!
//! Peers judge the requests. The replica role of a peer refuses a cell whose partition has changed
//! since. A range request covers all partitions, so both nodes must have the same layout: otherwise
//! a pass skips the chunk with that peer, and a pull asks again after a pause. A hint that is
//! refused stays, and is planned anew by the next pass over the hints for its target.
//!
//! **Caveats.** The nodes of both layouts are the same. While layouts follow each other faster than
//! a pass of anti-entropy takes, no pass ends.

use super::Node;
use crate::{Destination, Layout, LayoutEpoch, PartitionId};
use std::sync::Arc;
use stdx::Now;

impl Node {
    /// Handles a newer layout of the same nodes, whose record is durable. An older one has no
    /// effect.
    ///
    /// # Panics
    /// If the layout has other nodes or partitions.
    pub fn handle_layout(&mut self, now: Now, layout: Arc<Layout>) {
        let former = Arc::clone(&self.member.layout);
        assert!(
            layout.len() == former.len() && layout.partitions() == former.partitions(),
            "the nodes and partitions of a running process are fixed"
        );
        if layout.newest_change() < former.newest_change() {
            return;
        }
        let held = self.replica.learn(&layout);
        self.outbox.set_epoch(layout.newest_change());
        self.member.layout = layout;
        if self.member.layout.newest_change() > former.newest_change() {
            self.abandon_pass();
            if self.is_pull_affected(&former) {
                self.restart_pull(now);
            }
            self.peer_nodes().for_each(|node| self.expedite_handoff(now, node));
        }
        for request in held {
            let (header, request) = request.resumed(now);
            if let Destination::Accepted(link) = header.origin.link {
                self.handle_request(now, link, header, request);
            }
        }
        self.advance(now);
    }

    /// The newest epoch that the node has fenced, as
    /// [`Coordinator::fenced`](crate::Coordinator::fenced).
    pub const fn fenced(&self) -> LayoutEpoch {
        self.replica.fenced()
    }

    /// Whether a partition has changed since the former layout that this node holds by one of the
    /// two, with a `from` that the current pull takes into account.
    fn is_pull_affected(&self, former: &Layout) -> bool {
        let (layout, me) = (&self.member.layout, self.member.me);
        let is_held = |partition, from| {
            layout.is_intended_replica(me, partition, from) || former.is_intended_replica(me, partition, from)
        };
        let froms: Vec<u8> = self.pull_froms().collect();
        (0..layout.partitions()).map(PartitionId).any(|partition| {
            layout.changed(partition) > former.changed(partition)
                && froms.iter().any(|from| is_held(partition, *from))
        })
    }
}
