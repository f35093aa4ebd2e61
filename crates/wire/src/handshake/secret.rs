//! The cluster's secret, and proofs that one knows it.

use cluster::NodeIndex;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;

/// Length of a proof, in bytes.
pub(super) const PROOF_LEN: usize = 32;

/// What only nodes of the cluster know; empty where there is none.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

/// Who proves.
#[derive(Clone, Copy, Debug)]
pub(super) enum Direction {
    Dial,
    Accept,
}

impl Secret {
    /// The secret of these bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// Proves to know the secret, to whoever said one of these hellos.
    pub(super) fn prove(&self, direction: Direction, dial: &[u8], accept: &[u8]) -> [u8; PROOF_LEN] {
        self.mac(direction, dial, accept).finalize().into_bytes().into()
    }

    /// Whether the other side has proved it. Takes as long whatever the proof is.
    pub(super) fn verify(&self, direction: Direction, dial: &[u8], accept: &[u8], proof: &[u8]) -> bool {
        self.mac(direction, dial, accept).verify_slice(proof).is_ok()
    }

    /// Proves it to the node `to` before the handshake, as the node `from`. See `early`.
    pub(super) fn early_mac(&self, from: NodeIndex, to: NodeIndex, hour: u64) -> [u8; PROOF_LEN] {
        self.early(from, to, hour).finalize().into_bytes().into()
    }

    /// Whether this is how the MAC of [`Secret::early_mac`] begins. Takes as long whatever it is.
    pub(super) fn verify_early_mac(&self, from: NodeIndex, to: NodeIndex, hour: u64, mac: &[u8]) -> bool {
        self.early(from, to, hour).verify_truncated_left(mac).is_ok()
    }

    fn early(&self, from: NodeIndex, to: NodeIndex, hour: u64) -> Hmac<Sha256> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("an HMAC takes keys of any length");
        mac.chain_update(b"veche early").chain_update([from.0, to.0]).chain_update(hour.to_le_bytes())
    }

    /// Hellos need no separator: they tell their own length.
    fn mac(&self, direction: Direction, dial: &[u8], accept: &[u8]) -> Hmac<Sha256> {
        let label: &[u8] = match direction {
            Direction::Dial => b"veche dial",
            Direction::Accept => b"veche accept",
        };
        let mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("an HMAC takes keys of any length");
        mac.chain_update(label).chain_update(dial).chain_update(accept)
    }
}

/// Shows nothing of it.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
