//! Reasons why a record is not one of its cluster.

use super::{
    FEATURE_LEVEL_PLANS, FORMER_IDS_MAX, MemberState, SWAPS_MAX, URL_BYTES_MAX, VOTERS_MAX, WEIGHT_DEFAULT,
    ZONE_BYTES_MAX,
};
use crate::layout::{NODES_MAX, NodeIndex, PartitionId};

/// The constraint that a layout record breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutRecordError {
    /// The record needs a later release.
    #[error("it has feature level {level}, and this node supports up to {max}: upgrade it")]
    FeatureLevel {
        /// Feature level of the record.
        level: u32,
        /// Greatest feature level that this node supports.
        max: u32,
    },
    /// There are no members, or too many.
    #[error("it has {members} members, and a cluster has 1 to {NODES_MAX}")]
    MemberCount {
        /// Number of members.
        members: usize,
    },
    /// The slots are not in strict order, or exceed the limit of this release.
    #[error("slot {} is out of order, or not below {NODES_MAX}", slot.0)]
    SlotOrder {
        /// The slot.
        slot: NodeIndex,
    },
    /// The URL, zone, weight or node id of a member is out of bounds.
    #[error(
        "the URL of slot {} is empty or longer than {URL_BYTES_MAX} bytes, its zone is longer than {ZONE_BYTES_MAX}, its \
         weight is less than {WEIGHT_DEFAULT}, or its node id is zero",
        slot.0
    )]
    MemberBounds {
        /// Slot of the member.
        slot: NodeIndex,
    },
    /// Two members have the same URL or node id.
    #[error("slot {} has the URL or the node id of another member", slot.0)]
    DuplicateMember {
        /// Slot of the second member.
        slot: NodeIndex,
    },
    /// The default number of replicas is not possible.
    #[error("default_from is {from}, and there are {members} members")]
    DefaultFrom {
        /// The default number of replicas.
        from: u8,
        /// Number of members.
        members: usize,
    },
    /// The voters are not 1 to 5 members in order.
    #[error("its voters are not 1 to {VOTERS_MAX} members in order")]
    Voters,
    /// The former ids are not those of the parent and the ones that the record drops, or there are
    /// too many, or one is twice among them.
    #[error(
        "its former node ids are not the newest {FORMER_IDS_MAX} of those in the parent and of those that it drops"
    )]
    FormerIds,
    /// A member has the id of a former member.
    #[error("slot {} has the node id of a node that was removed or replaced", slot.0)]
    FormerMember {
        /// Slot of the member.
        slot: NodeIndex,
    },
    /// A member was removed that is neither leaving nor dead.
    #[error("slot {} is removed, and was neither leaving nor dead in the parent", slot.0)]
    MemberRemoved {
        /// Slot of the member.
        slot: NodeIndex,
    },
    /// The number of partitions is not a power of two from 1 to 65,536.
    #[error("partitions are a power of two from 1 to 65536, not {partitions}")]
    Partitions {
        /// Number of partitions.
        partitions: usize,
    },
    /// A preference list does not name every member once.
    #[error("the preference list of partition {} does not name every member once", partition.0)]
    NotAPermutation {
        /// The partition.
        partition: PartitionId,
    },
    /// The epoch of a partition's last change is not possible.
    #[error("partition {} did not change in the epoch that the record says", partition.0)]
    ChangedEpoch {
        /// The partition.
        partition: PartitionId,
    },
    /// The epoch is 0, or only one of epoch 1 and an absent parent is given.
    #[error("a record of epoch 1 has no parent, and every later one has one")]
    EpochWithoutParent,
    /// The record is not the child of its parent.
    #[error("it does not follow the record that this node holds: cluster, epoch or parent hash differ")]
    NotTheChild,
    /// The record belongs to another cluster, or is not newer.
    #[error("it is of another cluster, or not newer than the record that this node holds")]
    NotNewer,
    /// A property that no epoch may change differs from the parent.
    #[error("it changes the partitions, the hash of keys or default_from, or lowers the feature level")]
    FixedProperty,
    /// No member has this slot.
    #[error("there is no member with slot {}", slot.0)]
    NoSuchMember {
        /// The slot.
        slot: NodeIndex,
    },
    /// All members are lost.
    #[error("no member remains")]
    NoMemberRemains,
    /// The majority of the voters is not lost.
    #[error("{remaining} of the {voters} voters remain, which is a majority: start them, and they decide")]
    MajorityRemains {
        /// Number of voters that are not lost.
        remaining: usize,
        /// Number of voters.
        voters: usize,
    },
    /// A slot belongs to another node than in the parent.
    #[error("slot {} passes from one node to another", slot.0)]
    SlotReused {
        /// The slot.
        slot: NodeIndex,
    },
    /// The node id of a member was removed.
    #[error("slot {} loses its node id", slot.0)]
    NodeIdRemoved {
        /// Slot of the member.
        slot: NodeIndex,
    },
    /// The state of a member does not follow from that in the parent.
    #[error("slot {} cannot be {} after the parent", slot.0, state.name())]
    StateChange {
        /// Slot of the member.
        slot: NodeIndex,
        /// State in the record.
        state: MemberState,
    },
    /// More than one voter was replaced, by another member or by another node in its slot.
    #[error("it replaces more than one voter")]
    SeveralVoters,
    /// A preference list changes by more than one exchange, or members were not added or removed at
    /// its end.
    #[error("the preference list of partition {} changes by more than one exchange", partition.0)]
    ListChange {
        /// The partition.
        partition: PartitionId,
    },
    /// The record has a running plan, and its members need not support that.
    #[error("it has a running plan, which needs feature level {FEATURE_LEVEL_PLANS}")]
    PlanLevel,
    /// The epoch in which the plan began is not possible, its swaps are out of order, or there are
    /// too many.
    #[error("its plan began in another epoch, or its swaps are not at most {SWAPS_MAX} in order")]
    PlanBounds,
    /// The target of the plan is not a list of holders for each partition, or not that of the
    /// parent.
    #[error("the target of its plan does not name the holders of each partition, or has changed")]
    PlanTarget,
    /// The swap of a pair is not possible by itself.
    #[error(
        "the swap from slot {} to slot {} has no partition, impossible epochs, a dead gainer or no member",
        loser.0, gainer.0
    )]
    Swap {
        /// The losing slot.
        loser: NodeIndex,
        /// The gaining slot.
        gainer: NodeIndex,
    },
    /// A partition of a swap does not exist, is out of order or in another swap, or its list or
    /// epoch contradicts the swap.
    #[error("partition {} is in two swaps, or its preference list contradicts its swap", partition.0)]
    SwapPartition {
        /// The partition.
        partition: PartitionId,
    },
    /// The swap of a pair does not follow from that in the parent.
    #[error("the swap from slot {} to slot {} does not follow from that in the parent", loser.0, gainer.0)]
    SwapTransition {
        /// The losing slot.
        loser: NodeIndex,
        /// The gaining slot.
        gainer: NodeIndex,
    },
}
