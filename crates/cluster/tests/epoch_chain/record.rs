//! A small record, and the voters of its epochs.

use cluster::{ChainRecord, Epoch};
use stdx::NodeTag;

/// A record whose content is a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NamedRecord {
    pub(crate) epoch: Epoch,
    pub(crate) name: u64,
    pub(crate) parent: u64,
    pub(crate) voters: Vec<NodeTag>,
}

impl NamedRecord {
    pub(crate) fn first(voters: &[u64]) -> Self {
        let voters = voters.iter().map(|tag| NodeTag(*tag)).collect();
        Self { epoch: Epoch(1), name: 0, parent: 0, voters }
    }

    pub(crate) fn child(&self, name: u64) -> Self {
        Self { epoch: self.epoch.next(), name, parent: self.name, voters: self.voters.clone() }
    }

    /// A child in which `new` takes the place of the voter `old`.
    pub(crate) fn child_with_voter(&self, name: u64, old: NodeTag, new: NodeTag) -> Self {
        let mut child = self.child(name);
        let index = child.voters.iter().position(|voter| *voter == old).expect("`old` is a voter");
        child.voters[index] = new;
        child
    }
}

impl ChainRecord for NamedRecord {
    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn voters(&self) -> &[NodeTag] {
        &self.voters
    }

    fn is_child_of(&self, parent: &Self) -> bool {
        self.epoch == parent.epoch.next() && self.parent == parent.name
    }

    fn is_later_than(&self, earlier: &Self) -> bool {
        self.epoch > earlier.epoch
    }
}
