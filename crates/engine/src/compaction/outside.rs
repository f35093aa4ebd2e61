//! Tables outside of a merge that may hold cells that a tombstone hides.

use super::{Horizon, Plan};
use crate::Error;
use crate::manifest::{HasMeta, LEVELS, Levels};
use crate::sstable::{Lookup, Table, TableMeta, Wait};
use std::collections::BTreeSet;
use std::sync::Arc;
use stdx::{Hlc, NodeTag, Version};

/// A table that can return the version at which it holds a key.
pub(super) trait VersionLookup: HasMeta {
    /// Version of the key's cell in the table; `None` if the table does not contain the key.
    fn version_of(&self, key: &[u8], hash: u64) -> Result<Option<Version>, Error>;
}

impl VersionLookup for Table {
    fn version_of(&self, key: &[u8], hash: u64) -> Result<Option<Version>, Error> {
        match self.get_meta(key, hash, Wait::Allowed)? {
            Lookup::Found(meta) => Ok(Some(meta.version)),
            Lookup::Absent => Ok(None),
            Lookup::WouldWait => unreachable!("waiting is allowed"),
        }
    }
}

/// All tables outside of a plan that overlap its key range and may hold cells that a droppable
/// tombstone hides: above, below and beside the plan.
///
/// The set stays valid while the plan runs. The output of a concurrent compaction holds no cell
/// that its inputs did not. A table flushed meanwhile holds cells of memtables, which
/// [`Horizon::version_min`] covers. A table ingested meanwhile is found when the plan ends: see
/// [`crate::ingest`].
pub(super) struct OutsideTables<T = Table> {
    levels: [Vec<Arc<T>>; LEVELS],
}

impl<T: VersionLookup> OutsideTables<T> {
    pub(super) fn of(plan: &Plan<T>, levels: &Levels<T>, horizon: &Horizon) -> Self {
        let inputs: BTreeSet<_> = plan.tables().map(|table| table.meta().id).collect();
        let (min, max) = plan.key_range();
        // Tombstones past their grace period are older than this.
        let old = Version::new(
            Hlc::at(horizon.now.saturating_sub(horizon.grace).saturating_add_micros(1)),
            NodeTag(0),
        );
        // Local tombstones are dropped at any age.
        let is_local = |meta: &TableMeta| meta.key_min < horizon.local_end();
        let counts = |table: &&Arc<T>| {
            let meta = table.meta();
            (meta.version_min < old || is_local(meta)) && !inputs.contains(&meta.id)
        };
        Self {
            levels: std::array::from_fn(|level| {
                levels.overlapping(level, &min, &max).filter(counts).cloned().collect()
            }),
        }
    }

    /// Whether a table holds a cell of `key` at `version` or below. An unreadable table may.
    pub(super) fn may_hold(&self, key: &[u8], version: Version) -> Result<bool, Error> {
        let hash = crate::memtable::hash_key(key);
        for (level, tables) in self.levels.iter().enumerate() {
            // Without overlap, only the first table that does not end before the key can hold it.
            let from =
                if level == 0 { 0 } else { tables.partition_point(|table| table.meta().key_max < key) };
            let count = if level == 0 { tables.len() } else { 1 };
            for table in tables[from..].iter().take(count) {
                let meta = table.meta();
                if !meta.covers(key) || meta.version_min > version {
                    continue;
                }
                match table.version_of(key, hash) {
                    Ok(held) if held.is_none_or(|held| held > version) => {}
                    Ok(_) => return Ok(true),
                    Err(error) if error.unreadable().is_some() => return Ok(true),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(false)
    }
}
