//! Digest of the settings that all nodes of a cluster must share.

use sha2::{Digest, Sha256};
use std::fmt;

/// Digest of the settings that all nodes of a cluster must share. Equal clusters have equal
/// digests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ClusterDigest {
    /// The first 8 bytes of a hash of the sorted list of nodes.
    pub(super) list: u64,
    pub(super) nodes: u8,
    pub(super) partitions: u32,
    pub(super) hash_version: u32,
}

impl ClusterDigest {
    /// Creates the digest of a cluster with these node names, in any order, this number of
    /// partitions, and this version of the hash of keys.
    pub fn of(names: &[String], partitions: u32, hash_version: u32) -> Self {
        let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        let mut hash = Sha256::new();
        for name in &names {
            hash.update((name.len() as u64).to_le_bytes());
            hash.update(name);
        }
        let hash: [u8; 32] = hash.finalize().into();
        let list = u64::from_le_bytes(*hash.first_chunk().expect("a hash is longer than that"));
        Self { list, nodes: u8::try_from(names.len()).unwrap_or(u8::MAX), partitions, hash_version }
    }
}

impl fmt::Display for ClusterDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { list, nodes, partitions, hash_version } = self;
        write!(f, "list {list:016x} of {nodes} nodes, {partitions} partitions, hash version {hash_version}")
    }
}

impl fmt::Debug for ClusterDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterDigest({self})")
    }
}
