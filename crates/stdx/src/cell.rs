//! Cells: the value or tombstone of a key at one version.
//!
//! **Promise.** Of any two cells of a key, [`CellRef::supersedes`] chooses the same one on every
//! node and in any order of comparison. So replicas that received the same cells store the same
//! one.
//!
//! **Mechanism.** The greater version wins. Equal versions with different contents have two causes:
//! a broken clock, and an expired value beside the *expiry tombstone* that compaction made of it.
//! Among equal versions a delete wins over a value, and a value over an expiry tombstone. Then the
//! greater bytes win, then the later expiry, then the greater replica count. This is a total order,
//! so merging by it is commutative and associative.
//!
//! An expiry tombstone is a tombstone with an expiry. It loses to its original value, because the
//! node that made it may have had a wrong clock. So the clock of the reader's coordinator decides
//! whether the value is visible, and not the node that compacted first.

use crate::{Version, WallTime};
use bytes::Bytes;
use std::cmp::Ordering;

/// The kind of a cell: a value or a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CellKind {
    /// The key has a value.
    Value = 0,
    /// The key was deleted.
    Tombstone = 1,
}

/// A cell without its value bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellMeta {
    /// The version of the write.
    pub version: Version,
    /// Value or tombstone.
    pub kind: CellKind,
    /// The time from which the value counts as deleted. Among tombstones, only an expiry tombstone
    /// has one: the expiry of its original value.
    pub expires_at: Option<WallTime>,
    /// The `from` of the write: the number of nodes that hold the key. At least 1.
    pub from: u8,
}

impl CellMeta {
    /// The version, then the precedence among cells of one version: expiry tombstone 0, value 1,
    /// delete 2. Of two cells of a key, the one with the greater rank supersedes the other. Cells
    /// of equal rank are ordered by their values.
    #[inline]
    pub const fn rank(&self) -> (Version, u8) {
        let precedence = match (self.kind, self.expires_at) {
            (CellKind::Tombstone, Some(_)) => 0,
            (CellKind::Value, _) => 1,
            (CellKind::Tombstone, None) => 2,
        };
        (self.version, precedence)
    }

    /// A value that never expires.
    pub const fn value(version: Version, from: u8) -> Self {
        Self { version, kind: CellKind::Value, expires_at: None, from }
    }

    /// A tombstone.
    pub const fn tombstone(version: Version, from: u8) -> Self {
        Self { version, kind: CellKind::Tombstone, expires_at: None, from }
    }

    /// Returns the expiry tombstone that compaction makes of an expired value: its version, without
    /// its bytes.
    pub const fn buried(self) -> Self {
        Self { kind: CellKind::Tombstone, ..self }
    }

    /// Whether the cell is a value that is not expired at `wall`.
    pub fn is_live_at(&self, wall: WallTime) -> bool {
        self.kind == CellKind::Value && self.expires_at.is_none_or(|expires_at| wall < expires_at)
    }

    /// The time from which the cell is dead, which begins its grace period: the time of a delete,
    /// or the expiry of a value. `None` for a value without expiry.
    ///
    /// It is never before the time of the version, because a write with an expiry in the past is
    /// still unknown to other replicas.
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

    /// Returns this cell with the greater of its own `from` and this one.
    #[must_use]
    pub fn with_from_of_at_least(mut self, from: u8) -> Self {
        self.meta.from = self.meta.from.max(from);
        self
    }

    /// Borrows this cell.
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
    /// Copies this cell with its bytes.
    pub fn to_cell(self) -> Cell {
        Cell { meta: self.meta, value: Bytes::copy_from_slice(self.value) }
    }

    /// Whether this cell replaces `other`, a cell of the same key. False for equal cells.
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

/// Orders expiries. A missing expiry is the latest.
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

    /// Cells of two versions: deletes, expiry tombstones, and values of every expiry and replica
    /// count.
    fn all_cells() -> Vec<Cell> {
        let expiries = [None, Some(5), Some(6)].map(|at| at.map(WallTime::from_micros_since_unix_epoch));
        let mut cells = Vec::new();
        for (hlc, from) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
            for expires_at in expiries {
                let meta = CellMeta { expires_at, ..CellMeta::value(version(hlc), from) };
                cells.extend(["", "a", "b"].map(|value| Cell { meta, value: value.into() }));
                cells.push(Cell { meta: meta.buried(), value: Bytes::new() });
            }
        }
        cells
    }

    fn merged<'a>(a: &'a Cell, b: &'a Cell) -> &'a Cell {
        if b.as_ref().supersedes(&a.as_ref()) { b } else { a }
    }

    #[test]
    fn merging_is_total_commutative_and_associative() {
        let cells = all_cells();
        for a in &cells {
            for b in &cells {
                let (a_wins, b_wins) =
                    (a.as_ref().supersedes(&b.as_ref()), b.as_ref().supersedes(&a.as_ref()));
                assert_eq!(a_wins || b_wins, a != b, "one of two different cells wins: {a:?}, {b:?}");
                assert!(!(a_wins && b_wins));
                assert_eq!(merged(a, b), merged(b, a));
                for c in &cells {
                    assert_eq!(merged(merged(a, b), c), merged(a, merged(b, c)), "{a:?}, {b:?}, {c:?}");
                }
            }
        }
    }

    #[test]
    fn an_expiry_tombstone_never_beats_a_value_of_its_version() {
        let cells = all_cells();
        let of_version = |hlc| cells.iter().filter(move |cell| cell.meta.version == version(hlc));
        for buried in of_version(2).filter(|cell| cell.meta.rank().1 == 0) {
            for value in of_version(2).filter(|cell| cell.meta.kind == CellKind::Value) {
                assert!(value.as_ref().supersedes(&buried.as_ref()), "{value:?} against {buried:?}");
                let delete = Cell::tombstone(value.meta.version, 1);
                assert!(delete.as_ref().supersedes(&value.as_ref()));
                assert!(delete.as_ref().supersedes(&buried.as_ref()));
            }
            for older in of_version(1) {
                assert!(buried.as_ref().supersedes(&older.as_ref()), "{buried:?} against {older:?}");
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
