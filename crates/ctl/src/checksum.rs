//! Checksum of files in a backup: XXH3 with 128 bits.
//!
//! It is computed faster than a disk reads. With 128 bits, two different files of a repository do
//! not share a checksum by accident, so it also identifies contents. It does not protect against an
//! attacker who can write to the repository: no checksum without a key does.

use std::fmt;
use std::str::FromStr;
use xxhash_rust::xxh3::Xxh3;

/// XXH3-128 checksum of some bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Checksum(u128);

impl Checksum {
    /// Computes the checksum of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(xxhash_rust::xxh3::xxh3_128(bytes))
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Error: the text is not 32 lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseChecksumError;

impl FromStr for Checksum {
    type Err = ParseChecksumError;

    fn from_str(text: &str) -> Result<Self, ParseChecksumError> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 32 || !text.bytes().all(is_digit) {
            return Err(ParseChecksumError);
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| ParseChecksumError)
    }
}

/// Computes a [`Checksum`] incrementally.
pub(crate) struct ChecksumHasher(Box<Xxh3>);

impl ChecksumHasher {
    pub(crate) fn new() -> Self {
        Self(Box::default())
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(&self) -> Checksum {
        Checksum(self.0.digest128())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Repositories of the first release contain these checksums.
    #[test]
    fn checksums_are_stable() {
        assert_eq!(Checksum::of(b"").to_string(), "99aa06d3014798d86001c324468d497f");
        assert_eq!(Checksum::of(b"veche").to_string().parse(), Ok(Checksum::of(b"veche")));
        let mut summer = ChecksumHasher::new();
        [&b"ve"[..], b"", b"che"].into_iter().for_each(|piece| summer.add(piece));
        assert_eq!(summer.finish(), Checksum::of(b"veche"));
        for text in
            ["", "99aa06d3014798d86001c324468d497", "99AA06D3014798D86001C324468D497F", &"+".repeat(32)]
        {
            assert_eq!(text.parse::<Checksum>(), Err(ParseChecksumError));
        }
    }
}
