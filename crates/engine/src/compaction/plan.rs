//! What a compaction is to do.

use crate::manifest::{HasMeta, VersionEdit};
use crate::sstable::{Table, TableId};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use stdx::{Version, WallTime};

/// What must be known outside of the tables to judge dead cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Horizon {
    /// The time by which expiry and grace periods are judged, see [`HorizonSource`](crate::HorizonSource).
    pub now: WallTime,
    /// The grace period of tombstones; longer while there are deletes that the replicas have not exchanged.
    pub grace: Duration,
    /// The least version of any cell that is, or can again be, in a memtable: in a memtable now, or in a
    /// segment of the log that a recovery would replay even though its cells were flushed. It must be read
    /// not later than the levels it is used with; else a flush in between hides its cells from both.
    /// [`Version::MAX`] when there is none.
    pub version_min: Version,
    /// Keys that other rules hold for.
    pub local: Option<LocalHorizon>,
}

/// What must be known to judge dead cells of keys that no replica has: see
/// [`Options::local_keys_end`](crate::Options::local_keys_end).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalHorizon {
    /// These keys are below this one.
    pub end: Bytes,
    /// As [`Horizon::version_min`], of *values* of these keys only. An older tombstone that stays behind a dropped
    /// one hides as much as that did; it must not hold it back, for tombstones of these keys come in bulk and in
    /// any order of versions.
    pub version_min: Version,
}

impl Horizon {
    /// Where the keys end whose tombstones have no grace period; none is below the empty key.
    pub(super) fn local_end(&self) -> &[u8] {
        self.local.as_ref().map_or(&[], |local| &local.end)
    }

    /// The grace period of tombstones of `key`, and the least version in memory that counts for them.
    #[inline]
    pub(super) fn of(&self, key: &[u8]) -> (Duration, Version) {
        match &self.local {
            Some(local) if key < local.end => (Duration::ZERO, local.version_min),
            _ => (self.grace, self.version_min),
        }
    }

    /// Whether some of the keys between `min` and `max` are below the end of the local ones, and some not.
    pub(super) fn parts(&self, min: &[u8], max: &[u8]) -> bool {
        let end = self.local_end();
        min < end && end <= max
    }
}

/// Why a compaction is worth doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Level 0 has so many tables that reads suffer.
    Level0,
    /// The level is larger than it should be.
    Size,
    /// Tombstones or expired values may go, and with them what they hide.
    Dead,
    /// Many of the cells are tombstones, and what they hide lies below.
    Tombstones,
}

/// Tables of one level.
#[derive(Debug)]
pub struct Input<T = Table> {
    /// Which level.
    pub level: usize,
    /// By key, and without overlap unless the level is 0.
    pub tables: Vec<Arc<T>>,
}

/// Tables to merge, and the level to which the result goes.
#[derive(Debug)]
pub struct Plan<T = Table> {
    /// What is merged, the upper level first. Never empty.
    pub inputs: Vec<Input<T>>,
    /// Where the result goes.
    pub output_level: usize,
    /// Whether the tables only change their level and are not read.
    pub moves: bool,
    /// Why.
    pub reason: Reason,
}

impl<T> Clone for Input<T> {
    fn clone(&self) -> Self {
        Self { level: self.level, tables: self.tables.clone() }
    }
}

impl<T> Clone for Plan<T> {
    fn clone(&self) -> Self {
        Self { inputs: self.inputs.clone(), ..*self }
    }
}

impl<T: HasMeta> Plan<T> {
    /// All tables that go in.
    pub fn tables(&self) -> impl Iterator<Item = &Arc<T>> + Clone {
        self.inputs.iter().flat_map(|input| &input.tables)
    }

    /// Length of their files, in bytes.
    pub fn bytes(&self) -> u64 {
        self.tables().map(|table| table.meta().file_bytes).sum()
    }

    /// Room that its outputs may take while its inputs are there still, in bytes.
    pub fn written_bytes_max(&self) -> u64 {
        if self.moves { 0 } else { self.bytes() }
    }

    /// The least and the greatest key of them.
    pub fn key_range(&self) -> (Bytes, Bytes) {
        key_range(self.tables())
    }

    /// The edit that takes all inputs away, and gives them their new level if they only move.
    pub(super) fn edit(&self) -> VersionEdit {
        let mut edit = VersionEdit::default();
        for Input { level, tables } in &self.inputs {
            edit.removed.extend(tables.iter().map(|table| (*level as u8, table.meta().id)));
        }
        if self.moves {
            edit.added.extend(self.tables().map(|table| (self.output_level as u8, table.meta().clone())));
        }
        edit
    }
}

/// The least and the greatest key of some tables.
///
/// # Panics
/// When there are none.
pub(super) fn key_range<'a, T: HasMeta + 'a>(
    tables: impl Iterator<Item = &'a Arc<T>> + Clone,
) -> (Bytes, Bytes) {
    let min = tables.clone().map(|table| &table.meta().key_min).min().expect("a plan has tables");
    let max = tables.map(|table| &table.meta().key_max).max().expect("a plan has tables");
    (min.clone(), max.clone())
}

/// Names a running plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlanId(u64);

/// What running plans use: no other plan may have the same inputs, nor write into the same range of a level.
#[derive(Debug, Default)]
pub struct Busy {
    plans: BTreeMap<PlanId, Used>,
    inputs: BTreeSet<TableId>,
    next: u64,
}

#[derive(Debug)]
struct Used {
    inputs: Vec<TableId>,
    /// What may be written, in bytes.
    bytes: u64,
    output_level: usize,
    key_min: Bytes,
    key_max: Bytes,
}

impl Busy {
    /// Takes note of a plan that begins.
    ///
    /// # Panics
    /// When one of its tables is in a running plan.
    pub fn begin<T: HasMeta>(&mut self, plan: &Plan<T>) -> PlanId {
        let id = PlanId(self.next);
        self.next += 1;
        let inputs: Vec<_> = plan.tables().map(|table| table.meta().id).collect();
        for table in &inputs {
            assert!(self.inputs.insert(*table), "table {} is in two plans", table.0);
        }
        let (key_min, key_max) = plan.key_range();
        let bytes = plan.written_bytes_max();
        self.plans.insert(id, Used { inputs, bytes, output_level: plan.output_level, key_min, key_max });
        id
    }

    /// Takes note that a plan ended: its edit is installed, or it was given up.
    ///
    /// # Panics
    /// When it does not run.
    pub fn end(&mut self, id: PlanId) {
        let used = self.plans.remove(&id).expect("a plan ends once");
        for table in used.inputs {
            self.inputs.remove(&table);
        }
    }

    /// Whether no plan runs.
    pub fn is_idle(&self) -> bool {
        self.plans.is_empty()
    }

    /// What running plans may write together, in bytes.
    pub fn bytes(&self) -> u64 {
        self.plans.values().map(|used| used.bytes).sum()
    }

    /// No plan is to have this table from now on.
    pub fn set_aside(&mut self, table: TableId) {
        self.inputs.insert(table);
    }

    /// Plans may have again a table that was set aside, or it is gone.
    pub fn release(&mut self, table: TableId) {
        self.inputs.remove(&table);
    }

    /// Whether a running plan has the table, or none is to have it.
    pub fn has(&self, id: TableId) -> bool {
        self.inputs.contains(&id)
    }

    /// Whether a running plan writes to `level` between `min` and `max`.
    pub(super) fn writes(&self, level: usize, min: &[u8], max: &[u8]) -> bool {
        let meets = |used: &Used| used.output_level == level && used.key_min <= max && min <= used.key_max;
        self.plans.values().any(meets)
    }
}
