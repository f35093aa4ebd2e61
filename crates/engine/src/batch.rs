//! Writes that become durable and visible together.
//!
//! A batch *is* the record that the write-ahead log will hold (see [`crate::wal::record`]): each cell is
//! encoded once, by the thread that has it, and the log writes those bytes as they are.

use crate::disk::Need;
use crate::wal::record::RecordBuilder;
use stdx::{CellKind, CellRef};

/// Cells that are written in one record of the log: after a crash all of them are there, or none.
#[derive(Debug, Default)]
pub struct Batch {
    record: RecordBuilder,
    need: Need,
    precedes: bool,
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
    /// # Panics
    /// When the key is empty or longer than [`Batch::KEY_BYTES_MAX`], or the value than
    /// [`Batch::VALUE_BYTES_MAX`].
    pub fn put(&mut self, key: &[u8], cell: CellRef<'_>) {
        self.need = self.need.max(match cell.meta.kind {
            CellKind::Value => Need::Room,
            CellKind::Tombstone => Need::Reserve,
        });
        self.put_within_reserve(key, cell);
    }

    /// As [`Batch::put`], for a cell without which the host cannot go on: it is taken as long as the disk takes it.
    ///
    /// # Panics
    /// As [`Batch::put`].
    pub fn put_within_reserve(&mut self, key: &[u8], cell: CellRef<'_>) {
        assert!((1..=Self::KEY_BYTES_MAX).contains(&key.len()), "a key of {} bytes", key.len());
        assert!(cell.value.len() <= Self::VALUE_BYTES_MAX, "a value of {} bytes", cell.value.len());
        self.record.push(key, cell);
    }

    /// It is let in whatever waits, and however full the memtables are: for a little now and then that the host cannot
    /// go on without.
    pub const fn precede(&mut self) {
        self.precedes = true;
    }

    /// Cells in the batch.
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
    pub(crate) fn need(&self) -> Need {
        self.need
    }

    pub(crate) fn precedes(&self) -> bool {
        self.precedes
    }

    pub(crate) fn into_record(self) -> RecordBuilder {
        self.record
    }
}
