//! Metadata of a table that is known without opening it.

use bytes::Bytes;
use stdx::{Version, WallTime};

/// Identifier of a table file within a data directory. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u64);

/// Metadata of a table that is known without opening it. The manifest stores it, and so does the
/// footer of the table; `verify` compares the two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableMeta {
    /// Id of the table.
    pub id: TableId,
    /// Length of the file, in bytes.
    pub file_bytes: u64,
    /// Keys and values before compression and prefix sharing, in bytes.
    pub data_bytes: u64,
    /// Number of cells; each key has one.
    pub cells: u64,
    /// Number of tombstones.
    pub tombstones: u64,
    /// Number of values with an expiry.
    pub expiring: u64,
    /// Least key.
    pub key_min: Bytes,
    /// Greatest key.
    pub key_max: Bytes,
    /// Least version.
    pub version_min: Version,
    /// Greatest version.
    pub version_max: Version,
    /// Time of death of the cell that dies first: the least
    /// [`CellMeta::dead_from`](stdx::CellMeta::dead_from); `None` if no cell ever dies.
    pub droppable_from: Option<WallTime>,
}

impl TableMeta {
    /// Whether `key` is within the key range of the table.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.key_min <= key && key <= self.key_max
    }

    /// Whether the key range of the table intersects `min..=max`.
    pub fn overlaps(&self, min: &[u8], max: &[u8]) -> bool {
        self.key_min <= max && min <= self.key_max
    }
}
