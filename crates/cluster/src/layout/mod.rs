//! The layout: the nodes that hold a key, in order of preference.
//!
//! **Promise.** Every node computes the same layout from the same node list, given in any order. A
//! key belongs to one of a fixed number of partitions; a partition's *preference list* names every
//! node once. The replicas of a key for `from` are the first `from` nodes of its list, so the
//! replicas of a smaller `from` are among those of a larger one. Lists are balanced: every node is
//! first for the same number of partitions, give or take one; behind each first node the second
//! positions are spread evenly over the others, and so on. Adding or removing a node moves little
//! more than balance requires.
//!
//! **Mechanism.** Rendezvous scores (Thaler and Ravishankar, "Using name-based mappings to increase
//! hit rates", 1998) under quotas. Partitions whose lists begin alike form a group. Within a group,
//! each remaining node gets an even share of the next position, and pairs of partition and node are
//! taken in the order of their score.
//!
//! **Caveats.** At most [`NODES_MAX`] nodes. A layout does not change while a node runs.

mod balance;
mod node_set;

pub use node_set::{NodeIndex, NodeSet};

use crate::Key;
use crate::quorum::replica_count;

/// Greatest number of nodes in a cluster.
pub const NODES_MAX: usize = 64;

/// A partition of the key space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId(pub u32);

impl PartitionId {
    /// The partition of a key, of `partitions`: the upper bits of its XXH3 hash.
    #[inline]
    pub(crate) fn of(key: &[u8], partitions: u32) -> Self {
        let hash = xxhash_rust::xxh3::xxh3_64(key);
        Self(((u128::from(hash) * u128::from(partitions)) >> 64) as u32)
    }
}

/// Maps keys to partitions, and partitions to preference lists of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    nodes: Vec<String>,
    partitions: u32,
    /// The preference lists, concatenated.
    lists: Vec<NodeIndex>,
}

/// The reason why a node list has no layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// There are no nodes, or too many.
    #[error("a cluster has 1 to {NODES_MAX} nodes, not {nodes}")]
    Nodes {
        /// Number of nodes listed.
        nodes: usize,
    },
    /// The number of partitions is not a power of two from 1 to 65,536.
    #[error("partitions are a power of two from 1 to 65536, not {partitions}")]
    Partitions {
        /// Requested number of partitions.
        partitions: u32,
    },
}

impl Layout {
    /// Computes the layout of these nodes, given in any order; their addresses are their names.
    ///
    /// # Errors
    /// [`LayoutError`].
    pub fn new(mut nodes: Vec<String>, partitions: u32) -> Result<Self, LayoutError> {
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.is_empty() || nodes.len() > NODES_MAX {
            return Err(LayoutError::Nodes { nodes: nodes.len() });
        }
        if !partitions.is_power_of_two() || partitions > 1 << 16 {
            return Err(LayoutError::Partitions { partitions });
        }
        let lists = balance::preference_lists(&nodes, partitions);
        Ok(Self { nodes, partitions, lists })
    }

    /// Number of nodes, including this one: at least 1.
    #[allow(clippy::len_without_is_empty, reason = "a layout is never empty")]
    pub fn len(&self) -> u8 {
        self.nodes.len() as u8
    }

    /// Number of partitions.
    pub fn partitions(&self) -> u32 {
        self.partitions
    }

    /// The nodes' names in byte order, which is the order of their indexes.
    pub fn names(&self) -> &[String] {
        &self.nodes
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeIndex> + use<> {
        (0..self.len()).map(NodeIndex)
    }

    /// The node with this name.
    pub fn find(&self, name: &str) -> Option<NodeIndex> {
        self.nodes.binary_search_by(|node| node.as_str().cmp(name)).ok().map(|index| NodeIndex(index as u8))
    }

    /// The partition of a key.
    #[inline]
    pub fn partition_of(&self, key: &Key) -> PartitionId {
        PartitionId::of(key.as_bytes(), self.partitions)
    }

    /// All nodes in the order in which they hold the keys of `partition`.
    #[inline]
    pub fn preference_list(&self, partition: PartitionId) -> &[NodeIndex] {
        let len = self.nodes.len();
        &self.lists[partition.0 as usize * len..][..len]
    }

    /// The replicas of `key`: the first `from` nodes of its preference list.
    #[inline]
    pub fn replicas(&self, key: &Key, from: u8) -> &[NodeIndex] {
        self.replicas_of_partition(self.partition_of(key), from)
    }

    /// The replicas of the keys of `partition`, as [`Layout::replicas`].
    #[inline]
    pub fn replicas_of_partition(&self, partition: PartitionId, from: u8) -> &[NodeIndex] {
        &self.preference_list(partition)[..usize::from(replica_count(from, self.len()))]
    }

    /// The index of `node` in the preference list of `partition`.
    #[inline]
    pub(crate) fn replica_index(&self, partition: PartitionId, node: NodeIndex) -> u8 {
        let list = self.preference_list(partition);
        list.iter().position(|other| *other == node).expect("a preference list names every node") as u8
    }

    /// Whether `node` is among the first `from` nodes for `key`.
    pub fn is_replica(&self, node: NodeIndex, key: &Key, from: u8) -> bool {
        self.replicas(key, from).contains(&node)
    }
}
