//! Metadata accumulated over the cells of a table. The writer stores it in the footer, and `verify`
//! compares it.

use super::meta::{TableId, TableMeta};
use bytes::Bytes;
use stdx::{CellKind, CellRef, Version, WallTime};

/// Accumulates metadata over cells in key order.
#[derive(Default)]
pub(super) struct Summary {
    data_bytes: u64,
    cells: u64,
    tombstones: u64,
    expiring: u64,
    key_min: Vec<u8>,
    key_last: Vec<u8>,
    versions: Option<(Version, Version)>,
    droppable_from: Option<WallTime>,
}

impl Summary {
    pub(super) fn cells(&self) -> u64 {
        self.cells
    }

    /// The last key; `None` before the first cell.
    pub(super) fn key_last(&self) -> Option<&[u8]> {
        (self.cells > 0).then_some(&self.key_last)
    }

    pub(super) fn add(&mut self, key: &[u8], cell: &CellRef<'_>) {
        if self.cells == 0 {
            self.key_min = key.to_vec();
        }
        self.key_last.clear();
        self.key_last.extend_from_slice(key);
        self.cells += 1;
        self.data_bytes += (key.len() + cell.value.len()) as u64;
        let version = cell.meta.version;
        let (min, max) = self.versions.unwrap_or((version, version));
        self.versions = Some((min.min(version), max.max(version)));
        let is_tombstone = cell.meta.kind == CellKind::Tombstone;
        self.tombstones += u64::from(is_tombstone);
        self.expiring += u64::from(!is_tombstone && cell.meta.expires_at.is_some());
        if let Some(from) = cell.meta.dead_from() {
            self.droppable_from = Some(self.droppable_from.map_or(from, |earliest| earliest.min(from)));
        }
    }

    /// Returns the metadata of the table with these cells.
    ///
    /// # Panics
    /// If there were no cells.
    pub(super) fn finish(self, id: TableId, file_bytes: u64) -> TableMeta {
        let (version_min, version_max) = self.versions.expect("a table holds a cell at least");
        TableMeta {
            id,
            file_bytes,
            data_bytes: self.data_bytes,
            cells: self.cells,
            tombstones: self.tombstones,
            expiring: self.expiring,
            key_min: Bytes::from(self.key_min),
            key_max: Bytes::from(self.key_last),
            version_min,
            version_max,
            droppable_from: self.droppable_from,
        }
    }
}
