//! Errors of the handshake.

use super::framing::refused;
use super::layout::LAYOUTS_SINCE;
use super::{ClusterDigest, RemovalProof, refusal};
use crate::plan_epoch::PLAN_EPOCHS_SINCE;
use crate::{PROTOCOL_VERSION, PROTOCOL_VERSION_MIN};
use cluster::{ClusterId, FEATURE_LEVEL_PLANS, LayoutEpoch, LayoutRecord, NodeIndex};
use std::fmt;
use stdx::NodeTag;

/// The range of protocol versions that a node speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolVersions {
    /// Oldest version.
    pub min: u8,
    /// Newest version.
    pub max: u8,
}

impl ProtocolVersions {
    /// The versions of this build.
    pub const OURS: Self = Self { min: PROTOCOL_VERSION_MIN, max: PROTOCOL_VERSION };

    /// The versions that a node speaks while it holds this layout record. Peers that have no
    /// records know the cluster of epoch 1 only. Peers that tell no epochs of plans know neither
    /// changed partitions nor running plans.
    pub fn with_record(record: &LayoutRecord) -> Self {
        let is_first = |epoch: &LayoutEpoch| *epoch == LayoutEpoch::FIRST;
        let min = match is_first(&record.epoch) {
            true => PROTOCOL_VERSION_MIN,
            false if record.feature_level < FEATURE_LEVEL_PLANS && record.changed.iter().all(is_first) => {
                LAYOUTS_SINCE
            }
            false => PLAN_EPOCHS_SINCE,
        };
        Self { min, ..Self::OURS }
    }

    /// The newest version that both nodes speak.
    pub fn common(self, other: Self) -> Option<u8> {
        let newest = self.max.min(other.max);
        (newest >= self.min.max(other.min)).then_some(newest)
    }
}

impl fmt::Display for ProtocolVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.min == self.max {
            true => write!(f, "version {}", self.max),
            false => write!(f, "versions {} to {}", self.min, self.max),
        }
    }
}

/// Reason why a handshake ended without a link. Each message is a sentence for the log that says
/// how to fix it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The nodes disagree about the cluster that they belong to.
    #[error(
        "the nodes disagree about the cluster ({ours} here, {theirs} there): give all the same --cluster"
    )]
    AnotherList {
        /// Digest of this node's cluster.
        ours: ClusterDigest,
        /// Digest of the other node's cluster.
        theirs: ClusterDigest,
    },
    /// The nodes belong to different clusters.
    #[error(
        "the nodes disagree about the cluster (id {ours} here, {theirs} there): give all new nodes the same --cluster list; a \
         node of another cluster needs an empty --data to join this one, and the file layout of a member if this one was \
         recovered or its addresses have changed: start it, stop it, copy the file, and start it again"
    )]
    AnotherCluster {
        /// Cluster of this node.
        ours: ClusterId,
        /// Cluster of the other node.
        theirs: ClusterId,
    },
    /// The nodes hold different layout records of one epoch.
    #[error(
        "the nodes hold different layout records of epoch {epoch}: one of them belongs to a cluster that was recovered from \
         the other's, or its file was altered; give the node that is to join the other an empty --data"
    )]
    AnotherRecord {
        /// Epoch of both.
        epoch: LayoutEpoch,
    },
    /// The nodes have different secrets, or bytes were altered in transit.
    #[error("the nodes have different secrets: give all the same --cluster-secret")]
    AnotherSecret,
    /// The nodes have no version of the protocol in common.
    #[error(
        "the nodes have no protocol in common ({} here, {theirs} there): upgrade one release at a time",
        ProtocolVersions::OURS
    )]
    AnotherProtocol {
        /// The versions that the other node speaks.
        theirs: ProtocolVersions,
    },
    /// The other node speaks only versions of the protocol that this node's record rules out.
    #[error(
        "the cluster has the layout record of epoch {epoch}, and a node that speaks {theirs} of the protocol cannot follow it: \
         install a release on it that speaks version {needed}, and keep its --data"
    )]
    TooOldForRecord {
        /// Epoch of this node's record.
        epoch: LayoutEpoch,
        /// Oldest version that this node speaks with its record.
        needed: u8,
        /// The versions that the other node speaks.
        theirs: ProtocolVersions,
    },
    /// This node's layout record refuses the other node for ever.
    #[error(
        "the node with the id {:016x} was removed, replaced or declared dead, as the layout record of epoch {epoch} says, and is \
         refused for ever: stop it; to replace it at its address, start it with an empty --data, and with the file layout of \
         a member if it is refused again", node_id.0
    )]
    Removed {
        /// The node.
        node_id: NodeTag,
        /// Epoch of this node's record.
        epoch: LayoutEpoch,
        /// The proof for a dialer, which ends for it. An acceptor is told the sentence.
        proof: Option<RemovalProof>,
    },
    /// The layout record of the other node refuses this one for ever.
    #[error(
        "the peer refuses this node for ever: the layout record of epoch {epoch} there has removed or replaced it, or declares it \
         dead"
    )]
    RemovedByPeer {
        /// Epoch of the other node's record.
        epoch: LayoutEpoch,
    },
    /// The slot of the other node has no member in this node's layout record.
    #[error(
        "slot {} has no member in the layout record of epoch {epoch}: the node that calls itself this slot was removed from \
         the cluster, and is refused for ever: stop it", node.0
    )]
    NoMember {
        /// The slot.
        node: NodeIndex,
        /// Epoch of this node's record.
        epoch: LayoutEpoch,
    },
    /// The slot of the other node has no member in this node's layout record, which is older than
    /// that of the other node.
    #[error(
        "slot {} has no member in the layout record of epoch {ours} here, and may have one in that of epoch {theirs} there: \
         it is admitted once this node has learned that record", node.0
    )]
    NotYetMember {
        /// The slot.
        node: NodeIndex,
        /// Epoch of this node's record.
        ours: LayoutEpoch,
        /// Epoch of the other node's record.
        theirs: LayoutEpoch,
    },
    /// The layout record names another id for the slot of the other node, and it is not reached at
    /// the address of the record either.
    #[error(
        "slot {} is the node with the id {:016x} at {url}, and a node with the id {:016x} at {found_url} calls itself this \
         slot: start it with --self-url {url} if it replaces that node for good; if it is no member, stop it",
        node.0, named.0, found.0
    )]
    AnotherIdentity {
        /// The slot.
        node: NodeIndex,
        /// The id that the record names.
        named: NodeTag,
        /// The URL in the record.
        url: String,
        /// The id of the other node.
        found: NodeTag,
        /// The URL that the other node states.
        found_url: String,
    },
    /// Another node answers than the one that was dialed.
    #[error(
        "slot {} was dialed and slot {} answered: check that the --self-url of each node leads to it", expected.0, found.0
    )]
    WrongNode {
        /// The node that was dialed.
        expected: NodeIndex,
        /// The node that answered.
        found: NodeIndex,
    },
    /// The other node claims to be this one.
    #[error("slot {} met itself or a second node of its name: give each node a --self-url of its own", node.0)]
    SameNode {
        /// Index of this node.
        node: NodeIndex,
    },
    /// The other side refused the link.
    #[error("the peer refused the link: {reason}")]
    RefusedByPeer {
        /// The reason that it sent.
        reason: String,
    },
    /// The bytes are not those of a handshake.
    #[error("the bytes are no handshake ({what}): check that a veche node listens at that address")]
    Malformed {
        /// Description of the invalid bytes.
        what: &'static str,
    },
}

impl HandshakeError {
    /// Message to send before the connection is closed, so that the other side can report the
    /// reason as well. `None` if the other side refused.
    pub fn refusal_bytes(&self) -> Option<Vec<u8>> {
        let reason = match self {
            Self::RefusedByPeer { .. } | Self::RemovedByPeer { .. } => return None,
            Self::Removed { proof: Some(proof), .. } => proof.to_string(),
            Self::AnotherList { ours, theirs } => {
                Self::AnotherList { ours: *theirs, theirs: *ours }.to_string()
            }
            Self::AnotherCluster { ours, theirs } => {
                Self::AnotherCluster { ours: *theirs, theirs: *ours }.to_string()
            }
            Self::AnotherProtocol { theirs } => {
                format!(
                    "there, {} can be spoken, here {theirs}: upgrade one release at a time",
                    ProtocolVersions::OURS
                )
            }
            Self::NotYetMember { .. } => refusal::NOT_YET.to_owned(),
            _ => self.to_string(),
        };
        Some(refused(&reason))
    }
}
