//! A sign that a dialer belongs to the cluster, in the head of its request.
//!
//! **Promise.** Only a process that holds the cluster's secret, or has overheard one that does, can make an early proof. The
//! acceptor checks it with one HMAC over a few bytes, before it keeps anything for the dialer. It decides which places
//! for handshakes the dialer may use, and nothing else: the handshake that follows proves everything anew.
//!
//! **Mechanism.** `<from>-<hour>-<mac>`: the dialing node and the hour since 1970 in decimal digits, and the first 16 bytes
//! of the HMAC-SHA256, under the secret, of a label, both nodes and the hour, in hexadecimal digits.
//!
//! **Caveats.** It can be repeated for up to two hours by a process that overhears it; such a process takes places of that one
//! node only. Where two clocks are more than an hour apart, and in releases that send none, a dialer is a stranger.

use super::Secret;
use cluster::NodeIndex;
use std::fmt::Write;
use stdx::WallTime;

/// Length of what is sent of the HMAC, in bytes.
const MAC_LEN: usize = 16;
/// Microseconds of an hour.
const HOUR_MICROS: u64 = 3_600_000_000;

impl Secret {
    /// The early proof of the node `from`, which dials the node `to` at the time `now`.
    pub fn early_proof(&self, from: NodeIndex, to: NodeIndex, now: WallTime) -> String {
        let hour = hour_of(now);
        let mac = self.early_mac(from, to, hour);
        let mut text = format!("{}-{hour}-", from.0);
        for byte in &mac[..MAC_LEN] {
            write!(text, "{byte:02x}").expect("a string takes all");
        }
        text
    }

    /// The node that made the early proof `text`, for the node `to` in this hour or one beside it.
    pub fn check_early_proof(&self, text: &str, to: NodeIndex, now: WallTime) -> Option<NodeIndex> {
        let mut words = text.splitn(3, '-');
        let from = NodeIndex(words.next()?.parse().ok()?);
        let hour: u64 = words.next()?.parse().ok()?;
        let mac = parse_mac(words.next()?)?;
        let is_right = hour.abs_diff(hour_of(now)) <= 1 && self.verify_early_mac(from, to, hour, &mac);
        is_right.then_some(from)
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
    fn any_other_text_is_no_proof() {
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
