//! Layout records as records of the chain.
//!
//! **Caveats.** A record of the chain may have a feature level that a node does not carry out. Its
//! node has it neither accepted nor learned: see `node/agreement/voter`.

use super::{ChainNode, ChainRecord};
use crate::{LayoutEpoch, LayoutRecord, NodeIndex};
use std::sync::Arc;

impl ChainRecord for LayoutRecord {
    fn epoch(&self) -> LayoutEpoch {
        self.epoch
    }

    fn voters(&self) -> &[NodeIndex] {
        &self.voters
    }

    fn is_voter(&self, node: ChainNode) -> bool {
        let has_id = |slot| self.member(slot).is_some_and(|it| it.node_id.is_none_or(|id| id == node.id));
        self.voters.contains(&node.slot) && has_id(node.slot)
    }

    fn needs_all_voters(&self) -> bool {
        let has_id = |slot| self.member(slot).is_some_and(|it| it.node_id.is_some());
        !self.voters.iter().all(|slot| has_id(*slot))
    }

    fn is_child_of(&self, parent: &Self) -> bool {
        self.verify(parent).is_ok()
    }

    fn is_later_than(&self, earlier: &Self) -> bool {
        self.verify_newer(earlier).is_ok()
    }

    fn follows_other_first(&self, held: &Self) -> bool {
        self.follows_other_first(held)
    }
}

/// Messages and states share one copy of a record.
impl<R: ChainRecord> ChainRecord for Arc<R> {
    fn epoch(&self) -> LayoutEpoch {
        (**self).epoch()
    }

    fn voters(&self) -> &[NodeIndex] {
        (**self).voters()
    }

    fn is_voter(&self, node: ChainNode) -> bool {
        (**self).is_voter(node)
    }

    fn needs_all_voters(&self) -> bool {
        (**self).needs_all_voters()
    }

    fn is_child_of(&self, parent: &Self) -> bool {
        (**self).is_child_of(parent)
    }

    fn is_later_than(&self, earlier: &Self) -> bool {
        (**self).is_later_than(earlier)
    }

    fn follows_other_first(&self, held: &Self) -> bool {
        (**self).follows_other_first(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClusterOrigin;
    use stdx::NodeTag;

    fn record() -> LayoutRecord {
        let nodes = ["http://a:1", "http://b:1", "http://c:1"].map(String::from).to_vec();
        let origin =
            ClusterOrigin { nodes, partitions: 4, hash_version: 1, default_from: 3, tag: NodeTag(7) };
        LayoutRecord::first(origin).expect("three nodes are a cluster")
    }

    fn node(slot: u8, id: u64) -> ChainNode {
        ChainNode { slot: NodeIndex(slot), id: NodeTag(id) }
    }

    #[test]
    fn a_voter_without_an_id_is_identified_by_its_slot() {
        let record = record();
        assert!(record.is_voter(node(0, 7)) && record.is_voter(node(2, 8)));
        assert!(!record.is_voter(node(3, 7)));
    }

    #[test]
    fn all_voters_are_needed_until_each_of_them_has_an_id() {
        let mut record = record();
        for slot in 0..3 {
            assert!(record.needs_all_voters(), "slot {slot} has no id");
            record.members[slot].node_id = Some(NodeTag(slot as u64 + 7));
        }
        assert!(!record.needs_all_voters());
        record.members[2].node_id = None;
        record.voters.pop();
        assert!(!record.needs_all_voters(), "a member that does not vote needs no id");
    }

    #[test]
    fn a_voter_with_an_id_is_identified_by_both() {
        let mut record = record();
        record.members[0].node_id = Some(NodeTag(7));
        assert!(record.is_voter(node(0, 7)));
        assert!(!record.is_voter(node(0, 8)), "a lost disk has another id");
    }
}
