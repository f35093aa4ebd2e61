//! Why two nodes do not talk.

use super::ClusterDigest;
use super::parcel::refused;
use crate::{PROTOCOL_VERSION, PROTOCOL_VERSION_MIN};
use cluster::NodeIndex;
use std::fmt;

/// The versions of the protocol that a node speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolVersions {
    /// The oldest.
    pub min: u8,
    /// The newest.
    pub max: u8,
}

impl ProtocolVersions {
    /// Those of this build.
    pub const OURS: Self = Self { min: PROTOCOL_VERSION_MIN, max: PROTOCOL_VERSION };

    /// The version in which two nodes talk: the newest that both speak.
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

/// Why a handshake ended without a link. Each is a sentence for the log that says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The nodes disagree about the cluster they belong to.
    #[error(
        "the nodes disagree about the cluster ({ours} here, {theirs} there): give all the same --cluster"
    )]
    AnotherList {
        /// This node's cluster.
        ours: ClusterDigest,
        /// The other's.
        theirs: ClusterDigest,
    },
    /// The nodes have different secrets, or bytes were altered on their way.
    #[error("the nodes have different secrets: give all the same --cluster-secret")]
    AnotherSecret,
    /// No version of the protocol is spoken by both.
    #[error(
        "the nodes have no protocol in common ({} here, {theirs} there): upgrade one release at a time",
        ProtocolVersions::OURS
    )]
    AnotherProtocol {
        /// What the other speaks.
        theirs: ProtocolVersions,
    },
    /// Another node answers than the one that was dialed.
    #[error("{expected:?} was dialed and {found:?} answered: see whether its --self-url leads to it")]
    WrongNode {
        /// Who was dialed.
        expected: NodeIndex,
        /// Who answered.
        found: NodeIndex,
    },
    /// A node that says to be this one.
    #[error("{node:?} met itself or a second node of its name: give each node a --self-url of its own")]
    SameNode {
        /// This node.
        node: NodeIndex,
    },
    /// The other side does not want the link.
    #[error("the peer refused the link: {reason}")]
    RefusedByPeer {
        /// What it said.
        reason: String,
    },
    /// The bytes are no handshake.
    #[error("what came is no handshake ({what}): see whether a veche node listens at that address")]
    Malformed {
        /// What is wrong with them.
        what: &'static str,
    },
}

impl HandshakeError {
    /// What to send to the other side before the connection is closed, so that it can say why too; nothing when
    /// it was the one to refuse.
    pub fn refusal_bytes(&self) -> Option<Vec<u8>> {
        let reason = match self {
            Self::RefusedByPeer { .. } => return None,
            Self::AnotherList { ours, theirs } => {
                Self::AnotherList { ours: *theirs, theirs: *ours }.to_string()
            }
            Self::AnotherProtocol { theirs } => {
                format!(
                    "there, {} can be spoken, here {theirs}: upgrade one release at a time",
                    ProtocolVersions::OURS
                )
            }
            _ => self.to_string(),
        };
        Some(refused(&reason))
    }
}
