//! What is known of a table without opening it.

use bytes::Bytes;
use stdx::{Version, WallTime};

/// Names a table file of one data directory; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u64);

/// What is known of a table without opening it. It is kept in the manifest, and again in the footer of the
/// table, where `verify` compares the two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableMeta {
    /// Which table.
    pub id: TableId,
    /// Length of the file, in bytes.
    pub file_bytes: u64,
    /// Keys and values before compression and prefix sharing, in bytes.
    pub data_bytes: u64,
    /// Cells in the table; each key has one.
    pub cells: u64,
    /// Of these, tombstones.
    pub tombstones: u64,
    /// Of these, values with an expiry.
    pub expiring: u64,
    /// The least key.
    pub key_min: Bytes,
    /// The greatest key.
    pub key_max: Bytes,
    /// The least version.
    pub version_min: Version,
    /// The greatest version.
    pub version_max: Version,
    /// When the first of its cells was or will be dead: the least [`CellMeta::dead_from`](stdx::CellMeta::dead_from);
    /// `None` when there is none.
    pub droppable_from: Option<WallTime>,
}

impl TableMeta {
    /// Whether the key range of the table holds `key`.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.key_min <= key && key <= self.key_max
    }

    /// Whether the key range of the table meets `min..=max`.
    pub fn overlaps(&self, min: &[u8], max: &[u8]) -> bool {
        self.key_min <= max && min <= self.key_max
    }
}
