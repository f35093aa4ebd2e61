//! The layout record that a node holds and the address at which it is reached, as it states them.
//!
//! ```text
//!  0  16  id of the cluster
//! 16   8  epoch
//! 24  32  hash of the record
//! 56   1  default number of replicas
//! 57   2  length of the URL
//! 59      URL at which the node is reached
//! ```

use super::{HandshakeError, RemovalProof};
use cluster::{
    ClusterId, LayoutEpoch, LayoutRecord, NodeIndex, NodeSet, PeerHello, RecordHash, URL_BYTES_MAX,
};
use stdx::NodeTag;
use stdx::codec::{Reader, Truncated};

/// First version of the protocol in which both sides state their layout records.
pub(super) const LAYOUTS_SINCE: u8 = 4;
/// Greatest length of a statement in bytes.
pub(super) const STATEMENT_LEN_MAX: usize = 59 + URL_BYTES_MAX;

/// The layout record that a node holds, and the address at which it is reached.
///
/// Nodes of one cluster link whatever their epochs, so that the one with the lesser epoch can fetch
/// the newer record. Different records of one epoch are refused: one of them is of a cluster that
/// was recovered without its majority, or was altered. In epoch 1 they may differ in
/// `default_from`, because each node builds that record itself; the node warns of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutStatement {
    /// The cluster.
    pub cluster: ClusterId,
    /// Epoch of the record.
    pub epoch: LayoutEpoch,
    /// Hash of the record.
    pub hash: RecordHash,
    /// Default number of replicas of the record. It is part of the hash.
    pub default_from: u8,
    /// URL at which the node is reached now. It may differ from the one in the record. Empty if the
    /// node does not state it.
    pub url: String,
}

/// A member whose node id the layout record names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedMember {
    /// Its slot.
    pub slot: NodeIndex,
    /// Its node id.
    pub node_id: NodeTag,
    /// Its URL in the record.
    pub url: String,
}

impl NamedMember {
    /// The members of `record` whose node ids it names.
    pub fn all_of(record: &LayoutRecord) -> Vec<Self> {
        let named = record.members.iter().filter_map(|member| {
            Some(Self { slot: member.slot, node_id: member.node_id?, url: member.url.clone() })
        });
        named.collect()
    }
}

impl LayoutStatement {
    /// The statement of a node that holds `record` and states no address.
    pub fn of(record: &LayoutRecord) -> Self {
        let LayoutRecord { cluster, epoch, default_from, .. } = *record;
        Self { cluster, epoch, hash: record.hash(), default_from, url: String::new() }
    }

    /// This statement of a node that is reached at `url`. A URL that is too long for a record is
    /// not stated.
    #[must_use]
    pub fn reached_at(self, url: &str) -> Self {
        let url = if url.len() > URL_BYTES_MAX { "" } else { url };
        Self { url: url.to_owned(), ..self }
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.cluster.0);
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        out.extend_from_slice(&self.hash.0);
        out.push(self.default_from);
        let url = if self.url.len() > URL_BYTES_MAX { "" } else { &self.url };
        out.extend_from_slice(&(url.len() as u16).to_le_bytes());
        out.extend_from_slice(url.as_bytes());
    }

    /// Decodes a statement. `None`: its URL is not one line of text within the limit.
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, Truncated> {
        let cluster = ClusterId(reader.array()?);
        let epoch = LayoutEpoch(reader.u64()?);
        let hash = RecordHash(reader.array()?);
        let default_from = reader.u8()?;
        let url_len = usize::from(reader.u16()?);
        let url = std::str::from_utf8(reader.bytes(url_len)?).ok();
        let url = url.filter(|url| url.len() <= URL_BYTES_MAX && !url.contains(char::is_control));
        Ok(url.map(|url| Self { cluster, epoch, hash, default_from, url: url.to_owned() }))
    }

    /// Compares this node's statement with that of the other one.
    pub(super) fn check(&self, theirs: &Self) -> Result<(), HandshakeError> {
        if self.cluster != theirs.cluster {
            return Err(HandshakeError::AnotherCluster { ours: self.cluster, theirs: theirs.cluster });
        }
        let is_own_choice = self.epoch == LayoutEpoch::FIRST && self.default_from != theirs.default_from;
        match self.epoch == theirs.epoch && self.hash != theirs.hash && !is_own_choice {
            true => Err(HandshakeError::AnotherRecord { epoch: self.epoch }),
            false => Ok(()),
        }
    }

    /// Checks that the slot of the other node has a member in this node's record.
    pub(super) fn check_member(
        &self,
        members: NodeSet,
        peer: &PeerHello,
        theirs: &Self,
    ) -> Result<(), HandshakeError> {
        match theirs.epoch > self.epoch {
            _ if members.contains(peer.node) => Ok(()),
            true => {
                Err(HandshakeError::NotYetMember { node: peer.node, ours: self.epoch, theirs: theirs.epoch })
            }
            false => Err(HandshakeError::NoMember { node: peer.node, epoch: self.epoch }),
        }
    }

    /// Checks that this node's record does not refuse the other node for ever. That is for ever
    /// also where the other node has a newer record.
    pub(super) fn check_removed(
        &self,
        removed: &[NodeTag],
        peer: &PeerHello,
        proof: impl FnOnce() -> Option<RemovalProof>,
    ) -> Result<(), HandshakeError> {
        match removed.contains(&peer.tag) {
            true => Err(HandshakeError::Removed { node_id: peer.tag, epoch: self.epoch, proof: proof() }),
            false => Ok(()),
        }
    }

    /// Compares the identity of the other node with the one that this node's record names for its
    /// slot. A node with a newer record is not judged: its record may name another one.
    ///
    /// A node with the named id is accepted at any address. A node with another id is accepted at
    /// the address of the record only: it stands for one that has lost its disk.
    pub(super) fn check_identity(
        &self,
        named: &[NamedMember],
        peer: &PeerHello,
        theirs: &Self,
    ) -> Result<(), HandshakeError> {
        let member = named.iter().find(|member| member.slot == peer.node);
        let Some(member) = member.filter(|_| theirs.epoch <= self.epoch) else { return Ok(()) };
        if member.node_id == peer.tag || theirs.url.is_empty() || theirs.url == member.url {
            return Ok(());
        }
        Err(HandshakeError::AnotherIdentity {
            node: peer.node,
            named: member.node_id,
            url: member.url.clone(),
            found: peer.tag,
            found_url: theirs.url.clone(),
        })
    }
}
