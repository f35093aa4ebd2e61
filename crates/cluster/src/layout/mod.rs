//! The layout: the nodes that hold a key, in order of preference.
//!
//! **Promise.** All nodes that hold the same [`LayoutRecord`] have the same layout. Epoch 1 of a
//! cluster is the same on all nodes that build it from the same list, given in any order.
//!
//! A key belongs to one of a fixed number of partitions; a partition's *preference list* names
//! every node once. The replicas of a key for `from` are the first `from` nodes of its list, so the
//! replicas of a smaller `from` are among those of a larger one. The lists of epoch 1 are balanced:
//! every node is first for the same number of partitions, give or take one; behind each first node
//! the second positions are spread evenly over the others, and so on.
//!
//! **Mechanism.** The record contains the preference lists, so the placement of a cluster does not
//! depend on the release that a node runs. Epoch 1 uses rendezvous scores (Thaler and Ravishankar,
//! "Using name-based mappings to increase hit rates", 1998) under quotas. Partitions whose lists
//! begin alike form a group. Within a group, each remaining node gets an even share of the next
//! position, and pairs of partition and node are taken in the order of their score.
//!
//! **Changes.** While a swap of a record's plan runs for a partition, its keys have two sets of
//! replicas: those of its list, and those of the list after the exchange. The list of the layout is
//! the one before it.
//!
//! **Slots.** A node is named by its slot, which it keeps while it is a member. Slots between those
//! of members may be free. Tables by slot have [`Layout::slot_count`] entries. Counts of nodes use
//! [`Layout::len`], which is the number of members.
//!
//! **Caveats.** At most [`NODES_MAX`] nodes.

mod balance;
mod command;
mod node_set;
mod placement;
mod record;

pub use command::{CommandRefusal, JoiningNode};
pub use node_set::{NodeIndex, NodeSet};
pub(crate) use placement::next_swap;
pub use placement::{
    MemberPreview, PairMove, PlacementChange, PlacementFault, PlacementNote, PlacementPlan, PlacementPreview,
    PlacementRefusal, PlacementSwap,
};
pub(crate) use record::voter_count;
pub use record::{
    ClusterId, ClusterOrigin, CopyProgress, FEATURE_LEVEL, FEATURE_LEVEL_MAX_DEFAULT, FEATURE_LEVEL_NAMED,
    FEATURE_LEVEL_PLANS, FORMER_IDS_MAX, LAYOUT_RECORD_BYTES_MAX, LayoutDecodeError, LayoutEpoch,
    LayoutMember, LayoutRecord, LayoutRecordError, MemberState, PairSwap, PlanStatements, RateLimit,
    RecordHash, RunningPlan, SWAPS_MAX, SwapAttempt, SwapPhase, SwapSet, URL_BYTES_MAX, VOTERS_MAX,
    ZONE_BYTES_MAX,
};

use crate::Key;
use crate::quorum::{ReplicaSets, SwappedReplicas, least_from, replica_count, replicas_of_cell};
use stdx::NodeTag;

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
        Self::of_hash(hash, partitions)
    }

    /// The partition of the keys with this hash.
    #[inline]
    pub(crate) fn of_hash(hash: u64, partitions: u32) -> Self {
        Self(((u128::from(hash) * u128::from(partitions)) >> 64) as u32)
    }

    /// The least and the greatest hash of the keys of this partition, of `partitions`: a power of
    /// two.
    pub(crate) fn hashes(self, partitions: u32) -> (u64, u64) {
        let len = (1u128 << 64) / u128::from(partitions);
        let first = u128::from(self.0) * len;
        (first as u64, (first + len - 1) as u64)
    }
}

/// Maps keys to partitions, and partitions to preference lists of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Epoch of the record.
    epoch: LayoutEpoch,
    members: NodeSet,
    /// Number of members.
    len: u8,
    /// The members' names by slot; empty for a free slot.
    names: Vec<String>,
    /// The members' node ids by slot, as far as the record names them.
    ids: Vec<Option<NodeTag>>,
    partitions: u32,
    /// The preference lists, concatenated.
    lists: Vec<NodeIndex>,
    /// The epoch of each partition's last change.
    changed: Vec<LayoutEpoch>,
    newest_change: LayoutEpoch,
    /// The swap of each partition that has two sets of replicas. Empty if no swap runs.
    swaps: Vec<Option<RunningSwap>>,
    /// Nodes that hold and serve nothing any more.
    excluded: NodeSet,
}

/// The swap of a partition, which has two sets of replicas because of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunningSwap {
    pub(crate) phase: SwapPhase,
    /// Epoch of the PREPARE whose copy counts.
    pub(crate) attempt: LayoutEpoch,
    /// The replicas that are exchanged.
    pub(crate) replicas: SwappedReplicas,
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
        Ok(Self {
            epoch: LayoutEpoch::FIRST,
            members: NodeSet::first(nodes.len() as u8),
            len: nodes.len() as u8,
            ids: vec![None; nodes.len()],
            names: nodes,
            partitions,
            lists,
            changed: vec![LayoutEpoch::FIRST; partitions as usize],
            newest_change: LayoutEpoch::FIRST,
            swaps: Vec::new(),
            excluded: NodeSet::EMPTY,
        })
    }

    /// The layout of `record`; the members' URLs are the nodes' names.
    pub fn of_record(record: &LayoutRecord) -> Self {
        let slots = record.members.last().map_or(0, |member| member.slot.as_usize() + 1);
        let (mut names, mut ids) = (vec![String::new(); slots], vec![None; slots]);
        for member in &record.members {
            names[member.slot.as_usize()].clone_from(&member.url);
            ids[member.slot.as_usize()] = member.node_id;
        }
        let is_excluded = |member: &&LayoutMember| member.state == MemberState::Dead;
        let excluded = match record.feature_level >= FEATURE_LEVEL_PLANS {
            true => record.members.iter().filter(is_excluded).map(|member| member.slot).collect(),
            false => NodeSet::EMPTY,
        };
        Self {
            epoch: record.epoch,
            members: record.slots(),
            len: record.members.len() as u8,
            names,
            ids,
            partitions: record.partitions(),
            lists: record.lists.clone(),
            newest_change: record.changed.iter().copied().max().unwrap_or(LayoutEpoch::FIRST),
            changed: record.changed.clone(),
            swaps: running_swaps(record),
            excluded,
        }
    }

    /// This layout with another name for its only node, whose record has no address.
    #[must_use]
    pub fn named(mut self, name: String) -> Self {
        if let [only] = &mut self.names[..] {
            *only = name;
        }
        self
    }

    /// Epoch of the record.
    pub const fn epoch(&self) -> LayoutEpoch {
        self.epoch
    }

    /// Number of nodes, including this one: at least 1.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a layout is never empty")]
    pub const fn len(&self) -> u8 {
        self.len
    }

    /// Number of slots up to the greatest one of a node: the length of a table by slot.
    pub fn slot_count(&self) -> usize {
        self.names.len()
    }

    /// Number of partitions.
    pub fn partitions(&self) -> u32 {
        self.partitions
    }

    /// The nodes' names by slot, empty for a free slot. In epoch 1 they are in byte order.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// All nodes, in the order of their slots.
    pub fn nodes(&self) -> impl Iterator<Item = NodeIndex> + use<> {
        self.members.iter()
    }

    /// All nodes, as a set.
    #[inline]
    pub const fn members(&self) -> NodeSet {
        self.members
    }

    /// The node with this name.
    pub fn find(&self, name: &str) -> Option<NodeIndex> {
        self.nodes().find(|node| self.names[node.as_usize()] == name)
    }

    /// The slots of this layout whose nodes are gone in the later layout `next`: the slot is free
    /// there, or has another node at another address. A node that has lost its disk has another id
    /// and the same address, and one that has moved has the same id.
    pub(crate) fn departed(&self, next: &Self) -> NodeSet {
        let is_other = |node: &NodeIndex| {
            let slot = node.as_usize();
            let is_renamed = self.ids[slot].is_some() && self.ids[slot] != next.ids[slot];
            is_renamed && self.names[slot] != next.names[slot]
        };
        let kept = self.members.intersection(next.members);
        self.members.without(kept).union(kept.iter().filter(is_other).collect())
    }

    /// The nodes whose addresses differ in the later layout `next`.
    pub(crate) fn moved(&self, next: &Self) -> NodeSet {
        let kept = self.members.intersection(next.members);
        kept.iter().filter(|node| self.names[node.as_usize()] != next.names[node.as_usize()]).collect()
    }

    /// Whether the nodes that both layouts have are in another order in some list of `next`: swaps
    /// have ended in between.
    pub(crate) fn is_reordered_in(&self, next: &Self) -> bool {
        let common = self.members.intersection(next.members);
        let of = |layout: &'_ Self, partition| -> Vec<NodeIndex> {
            let list = layout.preference_list(partition).iter();
            list.filter(|node| common.contains(**node)).copied().collect()
        };
        let mut partitions = (0..self.partitions).map(PartitionId);
        self.lists != next.lists && partitions.any(|partition| of(self, partition) != of(next, partition))
    }

    /// The partition of a key.
    #[inline]
    pub fn partition_of(&self, key: &Key) -> PartitionId {
        PartitionId::of(key.as_bytes(), self.partitions)
    }

    /// The epoch of the last change of `partition`. A request for its keys that was planned before
    /// is refused.
    #[inline]
    pub fn changed(&self, partition: PartitionId) -> LayoutEpoch {
        self.changed[partition.0 as usize]
    }

    /// The epoch in which some partition changed last. A request that was planned then or later is
    /// planned by this layout or a newer one.
    #[inline]
    pub fn newest_change(&self) -> LayoutEpoch {
        self.newest_change
    }

    /// The swap because of which `partition` has two sets of replicas.
    #[inline]
    pub(crate) fn running_swap(&self, partition: PartitionId) -> Option<RunningSwap> {
        self.swaps.get(partition.0 as usize).copied().flatten()
    }

    /// Whether `node` is to hold the cells of `partition` with this `from`: as a replica of its
    /// list, or of the list after its running swap. A node that is no member is not.
    #[inline]
    pub(crate) fn is_intended_replica(&self, node: NodeIndex, partition: PartitionId, from: u8) -> bool {
        let index = self.preference_list(partition).iter().position(|other| *other == node);
        let replicas = || replicas_of_cell(from, self.swapped_replicas(partition));
        index.is_some_and(|index| replicas().contains(index as u8))
    }

    /// Whether `node` is to hold the cell of `key` with this `from`: as a replica of its list, or
    /// of the list after its running swap. A node that is no member is not.
    #[inline]
    pub fn is_intended_holder(&self, node: NodeIndex, key: &Key, from: u8) -> bool {
        self.is_intended_replica(node, self.partition_of(key), from)
    }

    /// The least `from` with which `node` is to hold the cells of `partition`.
    pub(crate) fn least_from(&self, node: NodeIndex, partition: PartitionId) -> u8 {
        least_from(self.replica_index(partition, node), self.swapped_replicas(partition))
    }

    /// The swap by which `node` gains a place in `partition`, while there are two sets of replicas.
    pub(crate) fn gaining_swap(&self, node: NodeIndex, partition: PartitionId) -> Option<RunningSwap> {
        let gains = self.least_from(node, partition) <= self.replica_index(partition, node);
        self.running_swap(partition).filter(|_| gains)
    }

    /// The nodes that the running swap of `partition` exchanges for this `from`: the one that reads
    /// ask, then the other one.
    pub(crate) fn swapped_nodes(&self, partition: PartitionId, from: u8) -> Option<[NodeIndex; 2]> {
        let swap = self.running_swap(partition)?;
        let swapped = ReplicaSets::of(replica_count(from, self.len()), Some(swap.replicas)).swapped();
        let node = |index: u8| self.preference_list(partition)[usize::from(index)];
        let (loser, gainer) = (node(swapped.first_index()?), node(swapped.last_index()?));
        Some(match swap.phase {
            SwapPhase::ReadNew => [gainer, loser],
            SwapPhase::Prepare | SwapPhase::Back | SwapPhase::New => [loser, gainer],
        })
    }

    /// The replicas that the running swap of `partition` exchanges.
    #[inline]
    pub(crate) fn swapped_replicas(&self, partition: PartitionId) -> Option<SwappedReplicas> {
        self.running_swap(partition).map(|swap| swap.replicas)
    }

    /// Whether `node` is dead: nothing is sent to it, and it counts nowhere.
    #[inline]
    pub(crate) fn is_excluded(&self, node: NodeIndex) -> bool {
        self.excluded.contains(node)
    }

    /// All nodes in the order in which they hold the keys of `partition`.
    #[inline]
    pub fn preference_list(&self, partition: PartitionId) -> &[NodeIndex] {
        let len = usize::from(self.len);
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

/// The swaps with two sets of replicas, by partition; empty if there are none.
fn running_swaps(record: &LayoutRecord) -> Vec<Option<RunningSwap>> {
    let running = || record.swaps().iter().filter(|swap| swap.phase.has_two_sets());
    if running().next().is_none() {
        return Vec::new();
    }
    let mut swaps = vec![None; record.changed.len()];
    for swap in running() {
        for partition in &swap.partitions {
            let list = record.preference_list(*partition);
            let index = |slot| list.iter().position(|other| *other == slot).map(|index| index as u8);
            if let (Some(loser), Some(gainer)) = (index(swap.loser), index(swap.gainer)) {
                let replicas = SwappedReplicas::new(loser, gainer);
                swaps[partition.0 as usize] =
                    Some(RunningSwap { phase: swap.phase, attempt: swap.attempt, replicas });
            }
        }
    }
    swaps
}
