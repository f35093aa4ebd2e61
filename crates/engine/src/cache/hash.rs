//! Hashing of block keys. Clients do not choose them, so they need no SipHash.

use std::hash::{BuildHasher, Hasher};

const FIRST: u64 = 0x9e37_79b9_7f4a_7c15;
const SECOND: u64 = 0xd6e8_feb8_6659_fd93;

/// Builds [`BlockHasher`]s.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BlockHashBuilder;

impl BuildHasher for BlockHashBuilder {
    type Hasher = BlockHasher;

    #[inline]
    fn build_hasher(&self) -> BlockHasher {
        BlockHasher(FIRST)
    }
}

/// Folds each integer into the state by a 128-bit multiplication (as wyhash and foldhash do).
pub(super) struct BlockHasher(u64);

impl Hasher for BlockHasher {
    #[inline]
    fn write_u64(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value) * u128::from(SECOND);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
