//! LayoutEpoch 1: the record that every node builds from the same list.

use super::{
    ClusterId, FEATURE_LEVEL_OF_LIST, LayoutEpoch, LayoutMember, LayoutRecord, LayoutRecordError,
    MemberState, RecordHash, VOTERS_MAX, WEIGHT_DEFAULT,
};
use crate::layout::{NODES_MAX, NodeIndex, balance};
use sha2::{Digest, Sha256};
use stdx::NodeTag;

/// Separates this hash from other uses of SHA-256.
const LABEL: &[u8] = b"veche cluster 1";

/// The settings that epoch 1 of a cluster is built from.
#[derive(Clone, Debug)]
pub struct ClusterOrigin {
    /// Addresses of all nodes, in any order. Empty for a node that was started without a list.
    pub nodes: Vec<String>,
    /// Number of partitions.
    pub partitions: u32,
    /// Version of the hash that maps keys to partitions.
    pub hash_version: u32,
    /// Number of replicas of a key if a request does not choose it.
    pub default_from: u8,
    /// Tag of the data directory. It distinguishes clusters of one node, whose lists may be equal,
    /// and has no effect on others.
    pub tag: NodeTag,
}

impl ClusterOrigin {
    fn cluster_id(&self) -> ClusterId {
        let mut hash = Sha256::new_with_prefix(LABEL);
        hash.update(self.partitions.to_le_bytes());
        hash.update(self.hash_version.to_le_bytes());
        hash.update((self.nodes.len() as u64).to_le_bytes());
        for node in &self.nodes {
            hash.update((node.len() as u64).to_le_bytes());
            hash.update(node);
        }
        if self.nodes.len() == 1 {
            hash.update(self.tag.0.to_le_bytes());
        }
        ClusterId::of(hash)
    }
}

impl LayoutRecord {
    /// Builds epoch 1 of a cluster.
    ///
    /// # Errors
    /// [`LayoutRecordError`] if the settings are out of bounds.
    pub fn first(mut origin: ClusterOrigin) -> Result<Self, LayoutRecordError> {
        origin.nodes.sort_unstable();
        origin.nodes.dedup();
        if origin.nodes.is_empty() {
            origin.nodes.push(String::new());
        }
        let members = origin.nodes.len();
        if members > NODES_MAX {
            return Err(LayoutRecordError::MemberCount { members });
        }
        let partitions = origin.partitions as usize;
        if !origin.partitions.is_power_of_two() || partitions > super::verify::PARTITIONS_MAX {
            return Err(LayoutRecordError::Partitions { partitions });
        }
        let record = Self {
            cluster: origin.cluster_id(),
            epoch: LayoutEpoch::FIRST,
            parent: RecordHash::NONE,
            feature_level: FEATURE_LEVEL_OF_LIST,
            hash_version: origin.hash_version,
            default_from: origin.default_from,
            voters: first_voters(members as u8),
            former_ids: Vec::new(),
            changed: vec![LayoutEpoch::FIRST; partitions],
            lists: balance::preference_lists(&origin.nodes, origin.partitions),
            members: (0..).map(NodeIndex).zip(origin.nodes).map(first_member).collect(),
            plan: None,
        };
        record.check()?;
        Ok(record)
    }
}

/// The voters of epoch 1 in a cluster of `members`: the least slots, an odd number where more than
/// two members permit it. An even number would tolerate no more absent voters than one less.
fn first_voters(members: u8) -> Vec<NodeIndex> {
    (0..voter_count(usize::from(members)) as u8).map(NodeIndex).collect()
}

/// Number of voters of a cluster of `members`.
pub(crate) const fn voter_count(members: usize) -> usize {
    match members {
        0..=3 => members,
        4 => 3,
        _ => VOTERS_MAX,
    }
}

fn first_member((slot, url): (NodeIndex, String)) -> LayoutMember {
    LayoutMember {
        slot,
        node_id: None,
        url,
        zone: String::new(),
        weight: WEIGHT_DEFAULT,
        state: MemberState::Active,
    }
}
