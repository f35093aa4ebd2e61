//! The tables that cannot be read back, by state: see [`quarantine`](crate::quarantine).

use crate::sstable::{TableId, UnreadableRange};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use stdx::WallTime;

/// Tables that cannot be read, by state.
#[derive(Debug, Default)]
pub(crate) struct DamagedTables {
    /// Tables that are to be scanned.
    pub(crate) suspected: Mutex<BTreeSet<TableId>>,
    pub(crate) quarantined: Mutex<BTreeMap<TableId, QuarantinedTable>>,
}

impl DamagedTables {
    /// Whether there is a table that cannot be read, or may be one.
    pub(crate) fn has_any(&self) -> bool {
        !self.suspected.lock().is_empty() || !self.quarantined.lock().is_empty()
    }
}

/// A table that compaction does not pick any more because it is damaged.
#[derive(Debug)]
pub(crate) struct QuarantinedTable {
    pub(crate) path: PathBuf,
    pub(crate) dead_from: Option<WallTime>,
    pub(crate) lost: Vec<UnreadableRange>,
    /// Whether the host has recovered all lost cells, or none were lost.
    pub(crate) is_replaceable: bool,
}

/// A table that cannot be read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedTable {
    /// Id of the table.
    pub id: TableId,
    /// Path of its file.
    pub path: PathBuf,
    /// Ranges of keys whose cells are lost, in key order.
    pub lost: Vec<UnreadableRange>,
    /// The earliest time at which a cell of the table is or was droppable; `None` when it has no
    /// such cell. Cells of this engine that such a cell shadows become visible without it.
    pub dead_from: Option<WallTime>,
}
