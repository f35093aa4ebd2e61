//! The layout record: the cluster's members and placement in one epoch.
//!
//! **Promise.** A record is immutable and names everything that the nodes of a cluster must agree
//! upon to find each other's keys: the members, the default number of replicas, and the preference
//! list of every partition. Two nodes that build epoch 1 from the same list, in any order, build
//! the same bytes. Equal bytes have equal hashes, so two nodes compare a record by epoch and hash.
//!
//! **Mechanism.** The records of a cluster form a chain: record e+1 contains the hash of record e.
//! [`LayoutRecord::first`] builds epoch 1 from a node list. [`LayoutRecord::encode`] has the pinned
//! format of `docs/storage-format/layout.md`. [`LayoutRecord::check`] holds the constraints of
//! every record, and [`LayoutRecord::verify`] those of a record and its parent. Both judge the
//! constraints and never the algorithm that chose the placement, so a later release may place
//! partitions in another way.
//!
//! A member has a *slot*, which it keeps as long as it is a member: the [`NodeIndex`] of the state
//! machines. A slot is not an identity. A later epoch may give the slot of a removed node to
//! another one. A member is identified by its *node id*, the [`NodeTag`] of its data directory. A
//! list of addresses names no ids, so a member of epoch 1 is identified by its slot and URL until a
//! record names its id.
//!
//! **Adopting a record.** A node that receives a record of its own cluster with a greater epoch
//! takes these steps in order: it decodes the record, which checks it; it verifies the record
//! against its own if that is the parent; it stores the record durably; only then it uses the
//! record and reports the new epoch to its peers.
//!
//! **Recovery.** The operator of a cluster whose majority of voters is lost for good builds a
//! record of another cluster id without agreement: [`LayoutRecord::recovered`].
//!
//! **Changes.** A record may have a running plan, by which the placement changes in steps while the
//! cluster serves: [`RunningPlan`]. The nodes that a change makes former ones are refused for ever:
//! [`LayoutRecord::is_former_id`].
//!
//! **Caveats.** The agreement on a record is not part of this module: a record takes these steps
//! only after it was decided. Slots have 16 bits in the format, and at most
//! [`NODES_MAX`](super::NODES_MAX) values in this release.

mod codec;
mod error;
mod first;
mod former;
mod plan;
mod recovery;
mod statement;
mod verify;

pub use codec::{LAYOUT_RECORD_BYTES_MAX, LayoutDecodeError};
pub use error::LayoutRecordError;
pub use first::ClusterOrigin;
pub(crate) use first::voter_count;
pub use former::FORMER_IDS_MAX;
pub use plan::{PairSwap, RateLimit, RunningPlan, SWAPS_MAX, SwapPhase};
pub use statement::{CopyProgress, PlanStatements, SwapAttempt, SwapSet};

use super::{NodeIndex, PartitionId};
use sha2::{Digest, Sha256};
use std::fmt;
use stdx::NodeTag;

/// The greatest feature level whose records this release reads and checks. A node votes for records
/// and adopts them up to the level of its own limit, which is [`FEATURE_LEVEL_MAX_DEFAULT`] unless
/// it is set.
pub const FEATURE_LEVEL: u32 = FEATURE_LEVEL_PLANS;
/// The greatest feature level of the records that nodes of this release carry out.
pub const FEATURE_LEVEL_MAX_DEFAULT: u32 = FEATURE_LEVEL_PLANS;
/// The feature level of records that are decided and name the ids of all members that are not dead.
/// The nodes of a cluster raise its record to this level by themselves.
pub const FEATURE_LEVEL_NAMED: u32 = 2;
/// The feature level of records that may have a running plan. In such a record, lists change by
/// swaps only, and the death or the lost disk of a member changes every partition.
pub const FEATURE_LEVEL_PLANS: u32 = 3;
/// The feature level of epoch 1, which is computed from a list and not decided.
const FEATURE_LEVEL_OF_LIST: u32 = 1;
/// Most voters of a record.
pub const VOTERS_MAX: usize = 5;
/// Longest URL of a member, in bytes.
pub const URL_BYTES_MAX: usize = 320;
/// Longest name of a zone, in bytes.
pub const ZONE_BYTES_MAX: usize = 64;
/// Weight of a member whose operator has not chosen one.
pub(crate) const WEIGHT_DEFAULT: u16 = 1;

/// Identifies a cluster: 128 bits of a hash of the list that its epoch 1 was built from, or of the
/// record that it was recovered from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(pub [u8; 16]);

/// SHA-256 of the bytes of a record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordHash(pub [u8; 32]);

/// The number of a record in its cluster, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayoutEpoch(pub u64);

impl LayoutEpoch {
    /// The epoch that is built from a node list.
    pub const FIRST: Self = Self(1);

    /// The epoch after this one. `None` past the greatest number.
    pub fn next(self) -> Option<Self> {
        self.0.checked_add(1).map(Self)
    }
}

/// The layout of a cluster in one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutRecord {
    /// The cluster, in all epochs of its lineage.
    pub cluster: ClusterId,
    /// Number of this record.
    pub epoch: LayoutEpoch,
    /// Hash of the record before this one; zeros in epoch 1.
    pub parent: RecordHash,
    /// Features that all members support: a member of a release with a smaller
    /// [`FEATURE_LEVEL`] does not adopt the record.
    pub feature_level: u32,
    /// Version of the hash that maps keys to partitions.
    pub hash_version: u32,
    /// Number of replicas of a key if a request does not choose it.
    pub default_from: u8,
    /// The members, in the order of their slots.
    pub members: Vec<LayoutMember>,
    /// Slots of the members that decide the next record, in order.
    pub voters: Vec<NodeIndex>,
    /// Ids of nodes that were members and are refused for ever, oldest first. Empty below feature
    /// level [`FEATURE_LEVEL_PLANS`].
    pub former_ids: Vec<NodeTag>,
    /// The epoch of each partition's last change.
    pub changed: Vec<LayoutEpoch>,
    /// The preference lists of all partitions, concatenated. Each names every member once.
    pub lists: Vec<NodeIndex>,
    /// The running plan.
    pub plan: Option<RunningPlan>,
}

/// A member of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutMember {
    /// Its number, which it keeps as long as it is a member.
    pub slot: NodeIndex,
    /// Its identity; `None` until a record names it.
    pub node_id: Option<NodeTag>,
    /// Address at which it is reached. Empty for the only member of a cluster that was started
    /// without a list.
    pub url: String,
    /// Failure domain of the member; empty if its operator has not named one.
    pub zone: String,
    /// Relative share of data that it is to hold, at least 1.
    pub weight: u16,
    /// Its part in the cluster.
    pub state: MemberState,
}

/// Part of a member in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It holds the data that its place in the preference lists says.
    Active,
    /// It was added, and is last in the preference lists that it has not moved up in.
    Joining,
    /// It is to be removed.
    Leaving,
    /// Its operator has declared that it does not come back.
    Dead,
}

impl MemberState {
    /// Name of the state, for operators.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Joining => "joining",
            Self::Leaving => "leaving",
            Self::Dead => "dead",
        }
    }
}

impl LayoutRecord {
    /// Number of partitions.
    pub fn partitions(&self) -> u32 {
        self.changed.len() as u32
    }

    /// The member with this slot.
    pub fn member(&self, slot: NodeIndex) -> Option<&LayoutMember> {
        let position = self.members.binary_search_by_key(&slot, |member| member.slot).ok()?;
        Some(&self.members[position])
    }

    /// The preference list of `partition`.
    ///
    /// # Panics
    /// If the record has fewer partitions.
    pub fn preference_list(&self, partition: PartitionId) -> &[NodeIndex] {
        let len = self.members.len();
        &self.lists[partition.0 as usize * len..][..len]
    }

    /// The fraction of all replicas that each member holds, in the order of the members, if every
    /// key has the default number of replicas. The sum is 1.
    pub fn shares(&self) -> Vec<f64> {
        let from = usize::from(self.default_from).min(self.members.len());
        let lists = self.lists.chunks_exact(self.members.len().max(1));
        let mut counts = vec![0_u32; self.members.len()];
        for slot in lists.flat_map(|list| &list[..from]) {
            if let Ok(position) = self.members.binary_search_by_key(slot, |member| member.slot) {
                counts[position] += 1;
            }
        }
        let all = f64::from(self.partitions()) * from as f64;
        counts.into_iter().map(|count| f64::from(count) / all).collect()
    }
}

impl ClusterId {
    /// The id with the first 128 bits of this hash.
    fn of(hash: Sha256) -> Self {
        let hash: [u8; 32] = hash.finalize().into();
        Self(*hash.first_chunk().expect("a hash is longer than that"))
    }
}

impl RecordHash {
    /// The parent hash of epoch 1, which has no parent.
    pub const NONE: Self = Self([0; 32]);

    /// The hash of an encoded record.
    pub(crate) fn of(encoded: &[u8]) -> Self {
        Self(Sha256::digest(encoded).into())
    }
}

fn fmt_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_hex(f, &self.0)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_hex(f, &self.0)
    }
}

impl fmt::Display for RecordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_hex(f, &self.0)
    }
}

impl fmt::Debug for RecordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_hex(f, &self.0)
    }
}

impl fmt::Display for LayoutEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
