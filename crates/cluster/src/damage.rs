//! Damage of the local store: tables that cannot be read back as they were written.

use crate::Key;
use stdx::WallTime;

/// A table of the local store that cannot be read back as it was written.
///
/// Until the table is [abandoned](crate::StoreRequest::AbandonTable), reads of keys that may have
/// been lost with it fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableDamage {
    /// Number of the table; no other table ever has it.
    pub table: u64,
    /// Key ranges in which entities may be lost, in key order.
    pub ranges: Vec<LostRange>,
    /// Whether cells of the node itself may be lost too: hints, its record, the bound of its clock.
    pub own_cells: bool,
    /// The earliest time at which a cell of the table is dead, by a delete or by expiry; `None` if
    /// there is no such cell.
    pub dead_from: Option<WallTime>,
}

/// A range of keys in which entities may be lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRange {
    /// Exclusive lower bound; `None`: the range begins at the first key.
    pub after: Option<Key>,
    /// Inclusive upper bound; `None`: the range ends with the last key.
    pub until: Option<Key>,
}
