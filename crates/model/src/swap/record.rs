//! Layout records of one partition, as far as a swap needs them.

use std::fmt;

/// Number of nodes that a model may have.
pub const NODES: usize = 6;
/// Number of records that a model may decide.
pub const EPOCHS: usize = 8;

const NAMES: [char; NODES] = ['x', 'g', 'h', 'a', 'b', 'c'];

/// A node. Node 0 is named x, node 1 g.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SwapNode(pub u8);

/// A set of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapNodeSet(pub u8);

/// The state of a swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// No swap runs: OLD before one, or after its cancellation, and NEW after it.
    #[default]
    Stable,
    /// The gaining node copies. Reads use the old set.
    Prepare,
    /// Reads use the new set.
    ReadNew,
    /// The swap is cancelled after reads used the new set. Reads use the old set.
    Back,
}

/// A decided layout record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapRecord {
    /// The state of the swap.
    pub phase: Phase,
    /// The replicas before the swap.
    pub old: SwapNodeSet,
    /// The replicas after the swap. The same as `old` if no swap runs.
    pub new: SwapNodeSet,
    /// The node that loses its place.
    pub loser: SwapNode,
    /// The node that gains a place.
    pub gainer: SwapNode,
    /// Epoch of the PREPARE whose copy counts.
    pub attempt: u8,
    /// Epoch in which `phase` began.
    pub since: u8,
    /// Nodes that the operator declared dead.
    pub dead: SwapNodeSet,
    /// Nodes that no plan sends to or counts: the dead ones.
    pub excluded: SwapNodeSet,
    /// Epoch since which `dead` is not empty.
    pub dead_since: u8,
    /// Nodes that this record names by the id of their second disk.
    pub replaced: SwapNodeSet,
}

impl SwapNode {
    /// The node as a set.
    pub const fn set(self) -> SwapNodeSet {
        SwapNodeSet(1 << self.0)
    }

    /// The node as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// All nodes.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..NODES as u8).map(Self)
    }
}

impl SwapNodeSet {
    /// No nodes.
    pub const EMPTY: Self = Self(0);

    /// Whether `node` is in the set.
    pub const fn contains(self, node: SwapNode) -> bool {
        self.0 & node.set().0 != 0
    }

    /// Number of nodes.
    pub const fn len(self) -> u8 {
        self.0.count_ones() as u8
    }

    /// Whether there is no node.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The nodes of either set.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The nodes of both sets.
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The nodes that are not in `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Adds a node.
    pub const fn insert(&mut self, node: SwapNode) {
        self.0 |= node.set().0;
    }

    /// The nodes, in order.
    pub fn iter(self) -> impl Iterator<Item = SwapNode> {
        SwapNode::all().filter(move |node| self.contains(*node))
    }

    /// All subsets with `len` nodes.
    pub fn subsets(self, len: u8) -> impl Iterator<Item = Self> {
        (0..1 << NODES).map(Self).filter(move |set| set.without(self).is_empty() && set.len() == len)
    }
}

impl SwapRecord {
    /// The record of a partition without a swap.
    pub fn stable(replicas: SwapNodeSet, since: u8, replaced: SwapNodeSet) -> Self {
        Self { old: replicas, new: replicas, since, replaced, ..Self::default() }
    }

    /// Both sets without excluded nodes.
    pub const fn sets(&self) -> [SwapNodeSet; 2] {
        [self.old.without(self.excluded), self.new.without(self.excluded)]
    }

    /// The nodes to which writes are sent.
    pub const fn targets(&self) -> SwapNodeSet {
        self.old.union(self.new).without(self.excluded)
    }

    /// The nodes that reads ask.
    pub const fn readers(&self) -> SwapNodeSet {
        self.sets()[matches!(self.phase, Phase::ReadNew) as usize]
    }

    /// The replicas that the swap does not touch.
    pub const fn kept(&self) -> SwapNodeSet {
        self.old.intersection(self.new)
    }
}

impl fmt::Display for SwapNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", NAMES[self.index()])
    }
}

impl fmt::Display for SwapNodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|node| write!(f, "{node}"))
    }
}

impl fmt::Display for SwapRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { old, new, .. } = self;
        match self.phase {
            Phase::Stable => write!(f, "stable {old}")?,
            Phase::Prepare => write!(f, "PREPARE {old}->{new}")?,
            Phase::ReadNew => write!(f, "READ-NEW {old}->{new}")?,
            Phase::Back => write!(f, "BACK {old}<-{new}")?,
        }
        if !self.dead.is_empty() {
            write!(f, ", {} dead", self.dead)?;
        }
        if !self.replaced.is_empty() {
            write!(f, ", new disk of {}", self.replaced)?;
        }
        Ok(())
    }
}
