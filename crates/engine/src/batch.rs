//! Writes that become durable and visible together.
//!
//! A batch *is* the record that the write-ahead log will hold (see [`crate::wal::record`]): each cell is
//! encoded once, by the thread that has it, and the log writes those bytes as they are.
//!
//! A cell that no record can hold makes the whole batch invalid, so that no part of it is written.

use crate::Error;
use crate::disk::DiskDemand;
use crate::wal::record::{RECORD_BYTES_MAX, RecordBuilder};
use stdx::{CellKind, CellRef};

/// Cells that are written in one record of the log: after a crash all of them are there, or none.
#[derive(Debug, Default)]
pub struct Batch {
    record: RecordBuilder,
    demand: DiskDemand,
    bypasses_stalls: bool,
    /// Why the batch cannot be written: the first cell that was refused.
    refusal: Option<String>,
}

impl Batch {
    /// The longest key, in bytes.
    pub const KEY_BYTES_MAX: usize = 16 << 10;
    /// The longest value, in bytes.
    pub const VALUE_BYTES_MAX: usize = crate::sstable::VALUE_BYTES_MAX;

    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a cell of `key`. Which cell of a key is seen is decided by version, not by the order of calls.
    ///
    /// When the key is empty or longer than [`Batch::KEY_BYTES_MAX`], or the value longer than
    /// [`Batch::VALUE_BYTES_MAX`], or all cells together take more than 2 GiB, the batch becomes invalid: no cell
    /// of it is written, and [`Engine::submit`](crate::Engine::submit) and [`Engine::write`](crate::Engine::write)
    /// answer [`Error::Invalid`].
    pub fn put(&mut self, key: &[u8], cell: CellRef<'_>) {
        self.demand = self.demand.max(match cell.meta.kind {
            CellKind::Value => DiskDemand::Value,
            CellKind::Tombstone => DiskDemand::Delete,
        });
        self.put_critical(key, cell);
    }

    /// As [`Batch::put`], for a cell without which the host cannot go on: it is taken as long as the disk takes it.
    pub fn put_critical(&mut self, key: &[u8], cell: CellRef<'_>) {
        match self.refusal_of(key, cell) {
            None => self.record.push(key, cell),
            refusal => self.refusal = self.refusal.take().or(refusal),
        }
    }

    /// Why a cell cannot be in a batch behind those that are in this one.
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

    /// It is let in whatever waits, and however full the memtables are: for a little now and then that the host cannot
    /// go on without.
    pub const fn bypass_stalls(&mut self) {
        self.bypasses_stalls = true;
    }

    /// Cells in the batch, those aside that were refused.
    pub fn len(&self) -> usize {
        self.record.cells()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it will take in the log, in bytes.
    pub fn bytes(&self) -> usize {
        self.record.bytes()
    }

    /// What it needs of the disk: what the cell needs that needs most.
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
