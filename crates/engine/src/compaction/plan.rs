//! Compaction plans, and the bookkeeping of running ones.

use crate::manifest::{HasMeta, VersionEdit};
use crate::sstable::{Table, TableId};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use stdx::{Version, WallTime};

/// Inputs of the drop rule beside the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Horizon {
    /// Time by which expiry and grace periods are judged, see
    /// [`HorizonSource`](crate::HorizonSource).
    pub now: WallTime,
    /// Grace period of tombstones. It is extended while there are deletes that the replicas have
    /// not exchanged.
    pub grace: Duration,
    /// Least version of any cell that is in a memtable or can be again: in a memtable now, or in a
    /// segment of the log that a recovery would replay even though its cells were flushed. Must be
    /// read no later than the levels that it is used with; otherwise a flush in between would hide
    /// its cells from both. [`Version::MAX`] if there is none.
    pub version_min: Version,
    /// Tables with smaller ids may hold cells of disowned ranges.
    pub purged_from: Option<TableId>,
    /// Rule for local keys; `None` if there are no local keys.
    pub local: Option<LocalHorizon>,
}

/// Inputs of the drop rule for local keys, which no replica has: see
/// [`Options::local_keys_end`](crate::Options::local_keys_end).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalHorizon {
    /// Exclusive upper bound of the local keys.
    pub end: Bytes,
    /// Same as [`Horizon::version_min`], for *values* of local keys only. An older tombstone that
    /// remains behind a dropped one hides as much as that did. It must not block the drop, because
    /// tombstones of local keys come in bulk and in any order of versions.
    pub version_min: Version,
}

impl Horizon {
    /// Exclusive upper bound of the keys whose tombstones have no grace period; empty if there are
    /// none.
    pub(super) fn local_end(&self) -> &[u8] {
        self.local.as_ref().map_or(&[], |local| &local.end)
    }

    /// Grace period for tombstones of `key`, and the least version in memory that applies to them.
    #[inline]
    pub(super) fn rule_for(&self, key: &[u8]) -> (Duration, Version) {
        match &self.local {
            Some(local) if key < local.end => (Duration::ZERO, local.version_min),
            _ => (self.grace, self.version_min),
        }
    }

    /// Whether the boundary of the local keys lies within `min..=max`.
    pub(super) fn has_local_end_within(&self, min: &[u8], max: &[u8]) -> bool {
        let end = self.local_end();
        min < end && end <= max
    }
}

/// Why a compaction is worthwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Level 0 has at least [`Options::level0_tables`](crate::Options::level0_tables) tables, which
    /// slows reads.
    Level0,
    /// The level exceeds its target.
    Size,
    /// Tombstones or expired values can be dropped, with the cells that they hide.
    Dead,
    /// Many cells are tombstones, and the cells that they hide are on lower levels.
    Tombstones,
    /// The table may hold cells of disowned ranges, which are left out.
    Purge,
}

/// Input tables of one level.
#[derive(Debug)]
pub struct Input<T = Table> {
    /// The level.
    pub level: usize,
    /// Tables in key order, without overlap except on level 0.
    pub tables: Vec<Arc<T>>,
}

/// Tables to merge, and the level of the output.
#[derive(Debug)]
pub struct Plan<T = Table> {
    /// Inputs, upper level first. Never empty.
    pub inputs: Vec<Input<T>>,
    /// Level of the output.
    pub output_level: usize,
    /// Whether the tables only change their level and are not read.
    pub is_move: bool,
    /// Why this plan was chosen.
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
    /// All input tables.
    pub fn tables(&self) -> impl Iterator<Item = &Arc<T>> + Clone {
        self.inputs.iter().flat_map(|input| &input.tables)
    }

    /// Total length of the input files, in bytes.
    pub fn bytes(&self) -> u64 {
        self.tables().map(|table| table.meta().file_bytes).sum()
    }

    /// Maximum disk space of the outputs while the inputs still exist, in bytes.
    pub fn written_bytes_max(&self) -> u64 {
        if self.is_move { 0 } else { self.bytes() }
    }

    /// Least and greatest key of the inputs.
    pub fn key_range(&self) -> (Bytes, Bytes) {
        key_range(self.tables())
    }

    /// The edit that removes all inputs, and adds them to their new level if they only move.
    pub(super) fn edit(&self) -> VersionEdit {
        let mut edit = VersionEdit::default();
        for Input { level, tables } in &self.inputs {
            edit.removed.extend(tables.iter().map(|table| (*level as u8, table.meta().id)));
        }
        if self.is_move {
            edit.added.extend(self.tables().map(|table| (self.output_level as u8, table.meta().clone())));
        }
        edit
    }
}

/// Least and greatest key of some tables.
///
/// # Panics
/// If there are no tables.
pub(super) fn key_range<'a, T: HasMeta + 'a>(
    tables: impl Iterator<Item = &'a Arc<T>> + Clone,
) -> (Bytes, Bytes) {
    let min = tables.clone().map(|table| &table.meta().key_min).min().expect("a plan has tables");
    let max = tables.map(|table| &table.meta().key_max).max().expect("a plan has tables");
    (min.clone(), max.clone())
}

/// Identifier of a running plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlanId(u64);

/// Resources of running plans. Invariant: no two plans share an input or write to the same key
/// range of a level.
#[derive(Debug, Default)]
pub struct RunningPlans {
    plans: BTreeMap<PlanId, RunningPlan>,
    inputs: BTreeSet<TableId>,
    next: u64,
}

#[derive(Debug)]
struct RunningPlan {
    inputs: Vec<TableId>,
    /// Maximum bytes of output.
    bytes: u64,
    output_level: usize,
    key_min: Bytes,
    key_max: Bytes,
}

impl RunningPlans {
    /// Registers a plan that starts.
    ///
    /// # Panics
    /// If one of its tables is an input of a running plan.
    pub fn begin<T: HasMeta>(&mut self, plan: &Plan<T>) -> PlanId {
        let id = PlanId(self.next);
        self.next += 1;
        let inputs: Vec<_> = plan.tables().map(|table| table.meta().id).collect();
        for table in &inputs {
            assert!(self.inputs.insert(*table), "table {} is in two plans", table.0);
        }
        let (key_min, key_max) = plan.key_range();
        let bytes = plan.written_bytes_max();
        self.plans
            .insert(id, RunningPlan { inputs, bytes, output_level: plan.output_level, key_min, key_max });
        id
    }

    /// Removes a plan that ended: its edit is installed, or the plan was abandoned.
    ///
    /// # Panics
    /// If the plan is not registered.
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

    /// Maximum output of all running plans together, in bytes.
    pub fn bytes(&self) -> u64 {
        self.plans.values().map(|used| used.bytes).sum()
    }

    /// Excludes a table from all further plans.
    pub fn quarantine(&mut self, table: TableId) {
        self.inputs.insert(table);
    }

    /// Makes a quarantined table available to plans again, or forgets a removed one.
    pub fn end_quarantine(&mut self, table: TableId) {
        self.inputs.remove(&table);
    }

    /// Whether a table is an input of a running plan or quarantined.
    pub fn is_excluded(&self, id: TableId) -> bool {
        self.inputs.contains(&id)
    }

    /// The running plans whose key range overlaps `min..=max`.
    pub(crate) fn overlapping(&self, min: &[u8], max: &[u8]) -> impl Iterator<Item = PlanId> {
        self.plans
            .iter()
            .filter(move |(_, used)| used.key_min <= max && min <= used.key_max)
            .map(|(id, _)| *id)
    }

    /// Whether a running plan writes to `level` within `min..=max`.
    pub(crate) fn has_writer_in(&self, level: usize, min: &[u8], max: &[u8]) -> bool {
        let meets =
            |used: &RunningPlan| used.output_level == level && used.key_min <= max && min <= used.key_max;
        self.plans.values().any(meets)
    }
}
