//! The cluster's secret, and proofs of its possession.

use cluster::NodeIndex;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;

/// Length of a proof in bytes.
pub(super) const PROOF_LEN: usize = 32;

/// The shared secret of the cluster's nodes. Empty if the cluster has none.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

/// The side that sends a proof.
#[derive(Clone, Copy, Debug)]
pub(super) enum ProofSender<'a> {
    Dial {
        /// The dialer's statement of its layout record, which its proof carries. Empty before
        /// version 4.
        statement: &'a [u8],
    },
    Accept,
    /// The acceptor, in a refusal for ever.
    Removal,
    /// The member that a joining node has dialed.
    JoinAccept,
    JoinDial {
        /// The request of the joining node, which its proof carries.
        request: &'a [u8],
    },
}

impl Secret {
    /// Creates a secret from its bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// Creates the proof of this side over what both sides have sent.
    pub(super) fn prove(&self, sender: ProofSender<'_>, dial: &[u8], accept: &[u8]) -> [u8; PROOF_LEN] {
        self.mac(sender, dial, accept).finalize().into_bytes().into()
    }

    /// Whether the proof of the other side is valid. Takes constant time.
    pub(super) fn verify(&self, sender: ProofSender<'_>, dial: &[u8], accept: &[u8], proof: &[u8]) -> bool {
        self.mac(sender, dial, accept).verify_slice(proof).is_ok()
    }

    /// The MAC of the early proof by which the node `from` authenticates itself to the node `to`.
    pub(super) fn early_mac(&self, from: NodeIndex, to: NodeIndex, hour: u64) -> [u8; PROOF_LEN] {
        self.early(from, to, hour).finalize().into_bytes().into()
    }

    /// Whether `mac` is a prefix of [`Secret::early_mac`]. Takes constant time.
    pub(super) fn verify_early_mac(&self, from: NodeIndex, to: NodeIndex, hour: u64, mac: &[u8]) -> bool {
        self.early(from, to, hour).verify_truncated_left(mac).is_ok()
    }

    fn early(&self, from: NodeIndex, to: NodeIndex, hour: u64) -> Hmac<Sha256> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("an HMAC takes keys of any length");
        mac.chain_update(b"veche early").chain_update([from.0, to.0]).chain_update(hour.to_le_bytes())
    }

    /// MAC over a label, both hellos and the dialer's statement. The hellos need no separator,
    /// since each contains its length.
    fn mac(&self, sender: ProofSender<'_>, dial: &[u8], accept: &[u8]) -> Hmac<Sha256> {
        let (label, statement): (&[u8], &[u8]) = match sender {
            ProofSender::Dial { statement } => (b"veche dial", statement),
            ProofSender::Accept => (b"veche accept", &[]),
            ProofSender::Removal => (b"veche removed", &[]),
            ProofSender::JoinAccept => (b"veche join accept", &[]),
            ProofSender::JoinDial { request } => (b"veche join dial", request),
        };
        let mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("an HMAC takes keys of any length");
        mac.chain_update(label).chain_update(dial).chain_update(accept).chain_update(statement)
    }
}

/// Does not print the secret.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
