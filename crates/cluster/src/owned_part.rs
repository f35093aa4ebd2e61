//! The part of a partition that a node owns in its store.

/// The part of a range of key hashes that a node owns: the keys with a cell of at least
/// `stays_from`. The hash of a key is that by which keys are mapped to partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnedPart {
    /// Least hash of the range.
    pub first_hash: u64,
    /// Greatest hash of the range.
    pub last_hash: u64,
    /// Least `from` of a cell by which its key is owned. At most 1: all keys are owned.
    pub stays_from: u8,
}

/// A range of which a node owns a part, and the purge of the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisownedPart {
    /// What is owned.
    pub owned: OwnedPart,
    /// Bytes of the tables that may hold cells of keys that are not owned. They may count for other
    /// ranges too.
    pub bytes_left: u64,
    /// Whether no cell is left of a key that is not owned, and none can return.
    pub is_purged: bool,
}
