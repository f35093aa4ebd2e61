//! A small record, and the voters of its epochs.

use cluster::{ChainNode, ChainRecord, LayoutEpoch, NodeIndex};
use stdx::NodeTag;

/// A record whose content is a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NamedRecord {
    pub(crate) epoch: LayoutEpoch,
    pub(crate) name: u64,
    pub(crate) parent: u64,
    slots: Vec<NodeIndex>,
    ids: Vec<NodeTag>,
    pub(crate) needs_all: bool,
}

impl NamedRecord {
    /// The record of epoch 1, whose voters are these nodes.
    pub(crate) fn first(voters: &[ChainNode]) -> Self {
        let slots = voters.iter().map(|voter| voter.slot).collect();
        let ids = voters.iter().map(|voter| voter.id).collect();
        Self { epoch: LayoutEpoch(1), name: 0, parent: 0, slots, ids, needs_all: false }
    }

    /// The record of epoch 1, which names no ids.
    pub(crate) fn first_without_ids(voters: usize) -> Self {
        let slots = (0..voters as u8).map(NodeIndex).collect();
        Self { epoch: LayoutEpoch(1), name: 0, parent: 0, slots, ids: Vec::new(), needs_all: true }
    }

    pub(crate) fn ids(&self) -> &[NodeTag] {
        &self.ids
    }

    pub(crate) fn child(&self, name: u64) -> Self {
        let epoch = self.epoch.next().expect("there are few epochs");
        Self { epoch, name, parent: self.name, ..self.clone() }
    }

    /// A child in which `new` takes the place of the voter `old`.
    pub(crate) fn child_with_voter(&self, name: u64, old: NodeTag, new: ChainNode) -> Self {
        let mut child = self.child(name);
        let index = child.ids.iter().position(|voter| *voter == old).expect("`old` is a voter");
        (child.slots[index], child.ids[index]) = (new.slot, new.id);
        child
    }
}

impl ChainRecord for NamedRecord {
    fn epoch(&self) -> LayoutEpoch {
        self.epoch
    }

    fn voters(&self) -> &[NodeIndex] {
        &self.slots
    }

    fn is_voter(&self, node: ChainNode) -> bool {
        match self.ids.is_empty() {
            true => self.slots.contains(&node.slot),
            false => self.slots.iter().zip(&self.ids).any(|(slot, id)| (*slot, *id) == (node.slot, node.id)),
        }
    }

    fn needs_all_voters(&self) -> bool {
        self.needs_all
    }

    fn is_child_of(&self, parent: &Self) -> bool {
        Some(self.epoch) == parent.epoch.next() && self.parent == parent.name
    }

    fn is_later_than(&self, earlier: &Self) -> bool {
        self.epoch > earlier.epoch
    }
}
