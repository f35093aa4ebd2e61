//! Cells: what a key holds at one version.
//!
//! **Promise.** Of any two cells of a key, [`CellRef::supersedes`] chooses the same one on every node and in
//! whatever order they are compared, so replicas that have seen the same cells hold the same one.
//!
//! **Mechanism.** The greater version wins. Equal versions with different contents come only from a broken
//! clock or from an expired value beside the tombstone that compaction made of it; then a tombstone wins,
//! then the greater bytes, then the later expiry, then the greater replica count.

use crate::{Version, WallTime};
use bytes::Bytes;
use std::cmp::Ordering;

/// Whether a cell holds a value or records a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CellKind {
    /// The key has a value.
    Value = 0,
    /// The key was deleted.
    Tombstone = 1,
}

/// All of a cell but its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellMeta {
    /// The version of the write.
    pub version: Version,
    /// Value or tombstone.
    pub kind: CellKind,
    /// From this time on the value counts as deleted. A tombstone has one only if compaction made it of an
    /// expired value: then it is the expiry of that value.
    pub expires_at: Option<WallTime>,
    /// `from` of the write: how many nodes hold the key. At least 1.
    pub from: u8,
}

impl CellMeta {
    /// Of two cells of a key, the one with the greater rank supersedes the other. Where ranks are equal, it takes their
    /// values to tell.
    #[inline]
    pub const fn rank(&self) -> (Version, u8) {
        (self.version, self.kind as u8)
    }

    /// A value that never expires.
    pub const fn value(version: Version, from: u8) -> Self {
        Self { version, kind: CellKind::Value, expires_at: None, from }
    }

    /// A tombstone.
    pub const fn tombstone(version: Version, from: u8) -> Self {
        Self { version, kind: CellKind::Tombstone, expires_at: None, from }
    }

    /// Whether a reader at `wall` sees a value: not a tombstone, not expired.
    pub fn is_live_at(&self, wall: WallTime) -> bool {
        self.kind == CellKind::Value && self.expires_at.is_none_or(|expires_at| wall < expires_at)
    }

    /// From when on the cell is dead, and its grace period counts: the time of a delete, the expiry of a
    /// value. `None` for a value without expiry.
    ///
    /// Never before the time of the version: a write with an expiry in the past is still news to the replicas.
    pub fn dead_from(&self) -> Option<WallTime> {
        let written = self.version.hlc.wall();
        match (self.kind, self.expires_at) {
            (_, Some(expires_at)) => Some(expires_at.max(written)),
            (CellKind::Tombstone, None) => Some(written),
            (CellKind::Value, None) => None,
        }
    }
}

/// A cell that owns its bytes. Tombstones have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Version, kind, expiry, replica count.
    pub meta: CellMeta,
    /// The value; empty for a tombstone.
    pub value: Bytes,
}

impl Cell {
    /// A value that never expires.
    pub const fn value(version: Version, from: u8, value: Bytes) -> Self {
        Self { meta: CellMeta::value(version, from), value }
    }

    /// A tombstone.
    pub const fn tombstone(version: Version, from: u8) -> Self {
        Self { meta: CellMeta::tombstone(version, from), value: Bytes::new() }
    }

    /// This cell, borrowed.
    pub fn as_ref(&self) -> CellRef<'_> {
        CellRef { meta: self.meta, value: &self.value }
    }
}

/// A cell that borrows its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellRef<'a> {
    /// Version, kind, expiry, replica count.
    pub meta: CellMeta,
    /// The value; empty for a tombstone.
    pub value: &'a [u8],
}

impl CellRef<'_> {
    /// A copy that owns its bytes.
    pub fn to_cell(self) -> Cell {
        Cell { meta: self.meta, value: Bytes::copy_from_slice(self.value) }
    }

    /// Whether this cell hides `other`, a cell of the same key. False for equal cells.
    pub fn supersedes(&self, other: &CellRef<'_>) -> bool {
        self.order(other) == Ordering::Greater
    }

    fn order(&self, other: &CellRef<'_>) -> Ordering {
        (self.meta.rank().cmp(&other.meta.rank()))
            .then_with(|| self.value.cmp(other.value))
            .then_with(|| expiry_rank(self).cmp(&expiry_rank(other)))
            .then_with(|| self.meta.from.cmp(&other.meta.from))
    }
}

/// No expiry is the latest expiry.
fn expiry_rank(cell: &CellRef<'_>) -> u64 {
    cell.meta.expires_at.map_or(u64::MAX, WallTime::micros_since_unix_epoch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Hlc, NodeTag};

    fn version(hlc: u64) -> Version {
        Version::new(Hlc::from_bits(hlc), NodeTag(1))
    }

    #[test]
    fn the_greater_version_wins_then_the_delete_then_the_greater_bytes() {
        let ascending = [
            Cell::tombstone(version(1), 1),
            Cell::value(version(2), 1, Bytes::from_static(b"a")),
            Cell::value(version(2), 1, Bytes::from_static(b"b")),
            Cell::tombstone(version(2), 1),
            Cell::value(version(3), 1, Bytes::new()),
        ];
        for (i, a) in ascending.iter().enumerate() {
            for (j, b) in ascending.iter().enumerate() {
                assert_eq!(a.as_ref().supersedes(&b.as_ref()), i > j, "{a:?} against {b:?}");
            }
        }
    }

    #[test]
    fn a_value_lives_until_the_microsecond_it_expires() {
        let wall = WallTime::from_micros_since_unix_epoch(10);
        let meta = CellMeta { expires_at: Some(wall), ..CellMeta::value(version(1), 1) };
        assert!(meta.is_live_at(WallTime::from_micros_since_unix_epoch(9)));
        assert!(!meta.is_live_at(wall));
        assert!(!CellMeta::tombstone(version(1), 1).is_live_at(wall));
    }
}
