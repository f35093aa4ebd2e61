//! Digests of keys with their versions, by which two nodes find out that they hold the same without
//! sending it.

use crate::RangeDigest;
use stdx::Version;

impl RangeDigest {
    /// The digest of these keys and versions, in any order.
    pub(crate) fn of<'a>(entries: impl Iterator<Item = (&'a [u8], Version)>) -> Self {
        let mut bytes = Vec::new();
        entries.fold(Self::default(), |digest, (key, version)| {
            bytes.clear();
            bytes.extend_from_slice(key);
            bytes.extend_from_slice(&version.to_bytes());
            let hash = xxhash_rust::xxh3::xxh3_64(&bytes);
            Self { keys: digest.keys + 1, sum: digest.sum.wrapping_add(hash) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::{Hlc, NodeTag};

    fn digest(entries: &[(&'static str, u64)]) -> RangeDigest {
        let version = |hlc| Version::new(Hlc::from_bits(hlc), NodeTag(1));
        RangeDigest::of(entries.iter().map(|&(key, hlc)| (key.as_bytes(), version(hlc))))
    }

    /// Nodes of different releases compare digests.
    #[test]
    fn digests_never_change() {
        assert_eq!(digest(&[("a", 1), ("b", 2)]), RangeDigest { keys: 2, sum: PINNED });
    }

    const PINNED: u64 = 0x358d_de20_6e54_1eca;

    #[test]
    fn a_digest_depends_on_keys_and_versions() {
        let one = digest(&[("a", 1), ("b", 2)]);
        for other in [digest(&[("a", 1)]), digest(&[("a", 2), ("b", 1)]), digest(&[("a", 1), ("b", 3)])] {
            assert_ne!(one, other);
        }
    }
}
