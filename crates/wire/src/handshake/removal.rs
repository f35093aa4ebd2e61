//! The proof of a refusal for ever.
//!
//! **Promise.** A dialer ends for a refusal only if a process that holds the secret of the cluster
//! has refused this handshake: the proof is not valid for another one, and not for another reason.
//!
//! **Mechanism.** The reason is [`refusal::REMOVED`](super::refusal::REMOVED) and 64 hexadecimal
//! digits: an HMAC-SHA256 with the secret as its key, over a label and both hellos. A dialer that
//! does not know the reason logs it like any other.
//!
//! **Caveats.** Without a secret anyone who answers at the address of a peer can end the node.

use super::refusal::REMOVED;
use super::secret::{PROOF_LEN, ProofSender, Secret};
use std::fmt;

/// Proof that the acceptor of a handshake refuses the dialer for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovalProof([u8; PROOF_LEN]);

impl RemovalProof {
    /// The proof for a handshake with these hellos.
    pub(super) fn new(secret: &Secret, dial: &[u8], accept: &[u8]) -> Self {
        Self(secret.prove(ProofSender::Removal, dial, accept))
    }

    /// Whether `reason` is a refusal for ever with a valid proof for a handshake with these hellos.
    pub(super) fn is_in(reason: &str, secret: &Secret, dial: &[u8], accept: &[u8]) -> bool {
        let digits = reason.strip_prefix(REMOVED).and_then(parse);
        digits.is_some_and(|proof| secret.verify(ProofSender::Removal, dial, accept, &proof))
    }
}

fn parse(digits: &str) -> Option<[u8; PROOF_LEN]> {
    let mut proof = [0; PROOF_LEN];
    if digits.len() != 2 * PROOF_LEN || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, pair) in proof.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(proof)
}

/// The reason of the refusal.
impl fmt::Display for RemovalProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REMOVED)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
