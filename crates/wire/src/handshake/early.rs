//! The early proof: a token in the head of the upgrade request that shows the dialer's membership.
//!
//! **Promise.** Only a process that holds the cluster's secret, or has overheard an early proof of
//! one that does, can present an early proof. The acceptor verifies it with one HMAC over a few
//! bytes before it allocates anything for the dialer. The proof only selects the handshake slots
//! that the dialer may use: the handshake that follows proves everything again.
//!
//! **Mechanism.** `<from>-<hour>-<mac>`: the index of the dialing node and the hour since 1970 as
//! decimal numbers, then the first 16 bytes of an HMAC-SHA256 in hexadecimal digits. The HMAC has
//! the secret as its key, and covers a label, both nodes and the hour.
//!
//! **Caveats.** A process that overhears a proof can replay it for up to two hours; it then uses
//! slots of that one node only. If two clocks differ by more than an hour, or the dialer's release
//! sends no proof, the dialer is treated as unauthenticated.

use super::Secret;
use cluster::NodeIndex;
use std::fmt::Write;
use stdx::WallTime;

/// Number of bytes of the HMAC that are sent.
const MAC_LEN: usize = 16;
/// Microseconds of an hour.
const HOUR_MICROS: u64 = 3_600_000_000;

impl Secret {
    /// Creates the early proof of the node `from` for the node `to` at the time `now`.
    pub fn early_proof(&self, from: NodeIndex, to: NodeIndex, now: WallTime) -> String {
        let hour = hour_of(now);
        let mac = self.early_mac(from, to, hour);
        let mut text = format!("{}-{hour}-", from.0);
        for byte in &mac[..MAC_LEN] {
            write!(text, "{byte:02x}").expect("writing to a string cannot fail");
        }
        text
    }

    /// Returns the node that created the early proof `text` for the node `to` in this hour, the
    /// previous one or the next.
    pub fn check_early_proof(&self, text: &str, to: NodeIndex, now: WallTime) -> Option<NodeIndex> {
        let mut words = text.splitn(3, '-');
        let from = NodeIndex(words.next()?.parse().ok()?);
        let hour: u64 = words.next()?.parse().ok()?;
        let mac = parse_mac(words.next()?)?;
        let is_valid = hour.abs_diff(hour_of(now)) <= 1 && self.verify_early_mac(from, to, hour, &mac);
        is_valid.then_some(from)
    }
}

fn hour_of(now: WallTime) -> u64 {
    now.micros_since_unix_epoch() / HOUR_MICROS
}

fn parse_mac(text: &str) -> Option<[u8; MAC_LEN]> {
    let digits = text.as_bytes();
    let mut mac = [0; MAC_LEN];
    if digits.len() != 2 * MAC_LEN || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, pair) in mac.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: WallTime = WallTime::from_micros_since_unix_epoch(500_000 * HOUR_MICROS);
    const A: NodeIndex = NodeIndex(0);
    const B: NodeIndex = NodeIndex(1);

    fn hours_later(hours: u64) -> WallTime {
        WallTime::from_micros_since_unix_epoch((500_000 + hours) * HOUR_MICROS)
    }

    #[test]
    fn a_proof_is_of_one_node_for_one_other_under_one_secret_for_a_while() {
        let secret = Secret::new("a secret of the cluster");
        let proof = secret.early_proof(A, B, NOW);
        assert_eq!(secret.check_early_proof(&proof, B, NOW), Some(A));
        assert_eq!(secret.check_early_proof(&proof, B, hours_later(1)), Some(A));
        assert_eq!(secret.check_early_proof(&proof, B, hours_later(2)), None);
        assert_eq!(secret.check_early_proof(&proof, A, NOW), None);
        assert_eq!(Secret::new("another secret").check_early_proof(&proof, B, NOW), None);
        let as_another = proof.replacen("0-", "2-", 1);
        assert_eq!(secret.check_early_proof(&as_another, B, NOW), None);
    }

    #[test]
    fn any_other_text_is_not_a_proof() {
        let secret = Secret::new("a secret of the cluster");
        let proof = secret.early_proof(A, B, NOW);
        for end in 0..proof.len() {
            assert_eq!(secret.check_early_proof(&proof[..end], B, NOW), None, "{end}");
        }
        for text in [format!("{proof}0"), proof.replace('-', "_"), format!("+{proof}"), "---".to_owned()] {
            assert_ne!(secret.check_early_proof(&text, B, NOW), Some(B), "{text}");
        }
        assert_eq!(secret.check_early_proof("0-500000-\u{e4}", B, NOW), None);
    }
}
