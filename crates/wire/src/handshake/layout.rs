//! The layout record that a node holds, as the acceptor states it.
//!
//! ```text
//!  0 16  id of the cluster
//! 16  8  epoch
//! 24 32  hash of the record
//! 56  1  default number of replicas
//! ```

use super::HandshakeError;
use cluster::{ClusterId, LayoutEpoch, LayoutRecord, RecordHash};
use stdx::codec::{Reader, Truncated};

/// First version of the protocol in which the acceptor states its layout record.
pub(super) const LAYOUTS_SINCE: u8 = 4;
/// Length of a statement in bytes.
pub(super) const STATEMENT_LEN: usize = 57;

/// The layout record that a node holds.
///
/// Nodes of one cluster link whatever their epochs, so that the one with the lesser epoch can fetch
/// the newer record. Different records of one epoch are refused: one of them is of a cluster that
/// was recovered without its majority, or was altered. In epoch 1 they may differ in
/// `default_from`, because each node builds that record itself; the node warns of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutStatement {
    /// The cluster.
    pub cluster: ClusterId,
    /// Epoch of the record.
    pub epoch: LayoutEpoch,
    /// Hash of the record.
    pub hash: RecordHash,
    /// Default number of replicas of the record. It is part of the hash.
    pub default_from: u8,
}

impl LayoutStatement {
    /// The statement of a node that holds `record`.
    pub fn of(record: &LayoutRecord) -> Self {
        let LayoutRecord { cluster, epoch, default_from, .. } = *record;
        Self { cluster, epoch, hash: record.hash(), default_from }
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.cluster.0);
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        out.extend_from_slice(&self.hash.0);
        out.push(self.default_from);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, Truncated> {
        Ok(Self {
            cluster: ClusterId(reader.array()?),
            epoch: LayoutEpoch(reader.u64()?),
            hash: RecordHash(reader.array()?),
            default_from: reader.u8()?,
        })
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
}
