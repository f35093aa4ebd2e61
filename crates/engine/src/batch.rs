//! Batches: writes that become durable and visible together.
//!
//! A batch *is* the record that the write-ahead log stores (see [`crate::wal::record`]). The
//! submitting thread encodes each cell once, and the log writes those bytes unchanged.
//!
//! A cell that does not fit into a record makes the whole batch invalid: no part of it is written.

use crate::Error;
use crate::disk::DiskDemand;
use crate::wal::record::{RECORD_BYTES_MAX, RecordBuilder};
use stdx::{CellKind, CellRef};

/// Cells that are written in one record of the log: after a crash either all or none of them exist.
#[derive(Debug, Default)]
pub struct Batch {
    record: RecordBuilder,
    demand: DiskDemand,
    bypasses_stalls: bool,
    /// Reason for which the first invalid cell was refused.
    refusal: Option<String>,
}

impl Batch {
    /// Maximum length of a key, in bytes: 16 KiB.
    pub const KEY_BYTES_MAX: usize = 16 << 10;
    /// Maximum length of a value, in bytes: 512 MiB.
    pub const VALUE_BYTES_MAX: usize = crate::sstable::VALUE_BYTES_MAX;

    /// Returns an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a cell of `key`. The visible cell of a key is decided by version, not by the order of
    /// calls.
    ///
    /// The batch becomes invalid when the key is empty or longer than [`Batch::KEY_BYTES_MAX`],
    /// when the value is longer than [`Batch::VALUE_BYTES_MAX`], or when all cells together take
    /// more than 2 GiB. No cell of an invalid batch is written:
    /// [`Engine::submit`](crate::Engine::submit) and [`Engine::write`](crate::Engine::write) return
    /// [`Error::Invalid`].
    pub fn put(&mut self, key: &[u8], cell: CellRef<'_>) {
        self.demand = self.demand.max(match cell.meta.kind {
            CellKind::Value => DiskDemand::Value,
            CellKind::Tombstone => DiskDemand::Delete,
        });
        self.put_critical(key, cell);
    }

    /// Adds a cell of `key` that may use the whole disk reserve, because the host cannot operate
    /// without it. Otherwise as [`Batch::put`].
    pub fn put_critical(&mut self, key: &[u8], cell: CellRef<'_>) {
        match self.refusal_of(key, cell) {
            None => self.record.push(key, cell),
            refusal => self.refusal = self.refusal.take().or(refusal),
        }
    }

    /// The reason for which a cell cannot be added to this batch, if there is one.
    fn refusal_of(&self, key: &[u8], cell: CellRef<'_>) -> Option<String> {
        let (key_bytes, value_bytes) = (key.len(), cell.value.len());
        if !(1..=Self::KEY_BYTES_MAX).contains(&key_bytes) {
            return Some(format!("a key has 1 to {} bytes, not {key_bytes}", Self::KEY_BYTES_MAX));
        }
        if value_bytes > Self::VALUE_BYTES_MAX {
            return Some(format!("a value has at most {} bytes, not {value_bytes}", Self::VALUE_BYTES_MAX));
        }
        if !self.record.has_room_for(key, cell) {
            return Some(format!("a batch has at most {RECORD_BYTES_MAX} bytes"));
        }
        None
    }

    /// Fails when a cell was refused.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.refusal.as_ref().map_or(Ok(()), |refusal| Err(Error::Invalid(refusal.clone())))
    }

    /// Exempts the batch from write stalls: it is admitted before stalled writes and although the
    /// memtables are full. For small, rare writes that the host cannot operate without.
    pub const fn bypass_stalls(&mut self) {
        self.bypasses_stalls = true;
    }

    /// Number of cells in the batch, without refused cells.
    pub fn len(&self) -> usize {
        self.record.cells()
    }

    /// Whether the batch has no cells.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Size of the batch in the log, in bytes.
    pub fn bytes(&self) -> usize {
        self.record.bytes()
    }

    /// The greatest demand on disk space among the cells.
    pub(crate) fn demand(&self) -> DiskDemand {
        self.demand
    }

    pub(crate) fn bypasses_stalls(&self) -> bool {
        self.bypasses_stalls
    }

    pub(crate) fn into_record(self) -> RecordBuilder {
        self.record
    }
}
