//! Nodes, and sets of nodes.

use super::NODES_MAX;
use std::fmt;

/// A node, as its slot in the layout record. In epoch 1 that is an index into the sorted list of
/// all nodes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(pub u8);

impl NodeIndex {
    /// The index as a `usize`.
    pub const fn as_usize(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for NodeIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// A set of nodes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct NodeSet(u64);

impl NodeSet {
    /// The empty set.
    pub const EMPTY: Self = Self(0);
    /// All slots that a node can have.
    pub const ALL: Self = Self::first(NODES_MAX as u8);

    /// The first `len` nodes.
    pub const fn first(len: u8) -> Self {
        assert!(len as usize <= NODES_MAX);
        Self(if len as usize == NODES_MAX { u64::MAX } else { (1 << len) - 1 })
    }

    /// The set as bits, for codecs: the least significant bit is node 0.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The inverse of [`NodeSet::to_bits`].
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Whether the set contains `node`.
    pub const fn contains(self, node: NodeIndex) -> bool {
        self.0 & Self::bit(node) != 0
    }

    /// Adds `node`, and returns whether it was absent.
    pub const fn insert(&mut self, node: NodeIndex) -> bool {
        let is_new = !self.contains(node);
        self.0 |= Self::bit(node);
        is_new
    }

    /// Removes `node`, and returns whether it was present.
    pub const fn remove(&mut self, node: NodeIndex) -> bool {
        let was_in = self.contains(node);
        self.0 &= !Self::bit(node);
        was_in
    }

    /// The nodes in this set or the other.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The nodes of this set that are not in the other.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The nodes in both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Number of nodes.
    pub const fn len(self) -> u8 {
        self.0.count_ones() as u8
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The nodes, in order.
    pub fn iter(self) -> impl Iterator<Item = NodeIndex> + use<> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let index = rest.trailing_zeros() as u8;
            rest &= rest.wrapping_sub(1);
            (usize::from(index) < NODES_MAX).then_some(NodeIndex(index))
        })
    }

    const fn bit(node: NodeIndex) -> u64 {
        assert!((node.0 as usize) < NODES_MAX);
        1 << node.0
    }
}

impl FromIterator<NodeIndex> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeIndex>>(nodes: I) -> Self {
        let mut set = Self::EMPTY;
        for node in nodes {
            set.insert(node);
        }
        set
    }
}

impl fmt::Debug for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_every_node_of_the_largest_cluster() {
        let mut set = NodeSet::EMPTY;
        assert!(set.insert(NodeIndex(63)) && set.insert(NodeIndex(0)) && !set.insert(NodeIndex(63)));
        assert_eq!(set.iter().collect::<Vec<_>>(), [NodeIndex(0), NodeIndex(63)]);
        assert_eq!(set.union(NodeSet::first(64)).len(), 64);
        assert!(set.remove(NodeIndex(0)) && !set.remove(NodeIndex(0)));
        assert_eq!(NodeSet::first(64).without(set).len(), 63);
        assert_eq!(set.intersection(NodeSet::first(63)), NodeSet::EMPTY);
    }
}
