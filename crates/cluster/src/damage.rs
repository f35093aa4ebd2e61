//! What the local store cannot read back.

use crate::Key;
use stdx::WallTime;

/// A table of the local store that cannot be read back as it was written.
///
/// Until it was [given up](crate::StoreRequest::AbandonTable), reads of what may have been lost with it fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Names the table; no other one ever has its number.
    pub table: u64,
    /// Where entities may be lost, in key order.
    pub ranges: Vec<LostRange>,
    /// Cells of the node's own may be lost too: hints, what it remembers, the bound of its clock.
    pub own_cells: bool,
    /// When the first delete in it was made, or value will have expired; `None` when there is none.
    pub dead_from: Option<WallTime>,
}

/// A range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRange {
    /// It begins behind this key; `None`: at the first of all.
    pub after: Option<Key>,
    /// It ends with this key; `None`: with the last of all.
    pub until: Option<Key>,
}
