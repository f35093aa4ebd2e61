//! The level that an ingested table joins. A pure function of the levels.
//!
//! Levels are not ordered by version, so any level is correct in which the table overlaps nothing.
//! The choice decides how often the table is rewritten. Above the level that the picker would fill
//! last, each merge from above rewrites it soon. So the levels are tried in this order:
//!
//! 1. The *natural* level: the shallowest one whose target is at least the size of all tables after
//!    the ingest. Then the deeper ones, then the shallower ones from the natural one up. Only
//!    levels that stay within their targets count.
//! 2. From the deepest level up, those that exceed their targets. The picker merges such a table
//!    into a level of a similar size.
//! 3. Level 0, where the table is merged like a flushed one.

use crate::Options;
use crate::compaction::{GRANDPARENT_TABLES_MAX, RunningPlans, level_target_bytes};
use crate::manifest::{HasMeta, LEVELS, Levels};
use crate::sstable::TableMeta;

const LAST: usize = LEVELS - 1;

/// The level for a table that is about to join `levels`. `expected_bytes` is the size of the tables
/// that are expected to follow it, itself included.
pub(super) fn choose_level<T: HasMeta>(
    levels: &Levels<T>,
    running: &RunningPlans,
    options: &Options,
    meta: &TableMeta,
    expected_bytes: u64,
) -> usize {
    let total_bytes = levels.file_bytes().saturating_add(expected_bytes.max(meta.file_bytes));
    let natural = (1..LAST).find(|level| level_target_bytes(*level, options) >= total_bytes).unwrap_or(LAST);
    let has_room = |level: usize| {
        levels.bytes(level).saturating_add(meta.file_bytes) <= level_target_bytes(level, options)
    };
    let is_free = |level: usize| {
        overlap_bytes(levels, level, meta) == 0
            && !running.has_writer_in(level, &meta.key_min, &meta.key_max)
            && has_few_below(levels, options, level, meta)
    };
    let by_size = (natural..=LAST).chain((1..natural).rev());
    by_size
        .filter(|level| has_room(*level))
        .chain((1..=LAST).rev())
        .find(|level| is_free(*level))
        .unwrap_or(0)
}

/// Whether the table overlaps so little of the next level that a later merge stays small.
fn has_few_below<T: HasMeta>(levels: &Levels<T>, options: &Options, level: usize, meta: &TableMeta) -> bool {
    let overlap_max = options.table_bytes.saturating_mul(GRANDPARENT_TABLES_MAX);
    level == LAST || overlap_bytes(levels, level + 1, meta) <= overlap_max
}

fn overlap_bytes<T: HasMeta>(levels: &Levels<T>, level: usize, meta: &TableMeta) -> u64 {
    levels.overlapping(level, &meta.key_min, &meta.key_max).map(|table| table.meta().file_bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::{Input, Plan, Reason};
    use crate::manifest::VersionEdit;
    use crate::sstable::TableId;
    use std::sync::Arc;
    use stdx::Version;

    const MIB: u64 = 1 << 20;

    /// Targets: 10, 100, 1,000 MiB and so on from level 1 down.
    fn options() -> Options {
        Options { table_bytes: MIB, level1_bytes: 10 * MIB, level_growth: 10, ..Options::default() }
    }

    fn table(id: u64, keys: &'static str, mib: u64) -> TableMeta {
        let (min, max) = keys.split_once('-').expect("a range");
        TableMeta {
            id: TableId(id),
            file_bytes: mib * MIB,
            data_bytes: mib * MIB,
            cells: 1,
            tombstones: 0,
            expiring: 0,
            key_min: min.into(),
            key_max: max.into(),
            version_min: Version::MIN,
            version_max: Version::MAX,
            droppable_from: None,
        }
    }

    fn levels(tables: &[(u8, &'static str, u64)]) -> Levels<TableMeta> {
        let added = tables.iter().zip(1..).map(|(&(level, keys, mib), id)| (level, table(id, keys, mib)));
        let edit = VersionEdit { added: added.collect(), ..VersionEdit::default() };
        Levels::default().apply(&edit, &mut |meta| Arc::new(meta.clone())).expect("levels")
    }

    fn chosen(
        levels: &Levels<TableMeta>,
        running: &RunningPlans,
        keys: &'static str,
        expected_mib: u64,
    ) -> usize {
        choose_level(levels, running, &options(), &table(99, keys, 1), expected_mib * MIB)
    }

    #[test]
    fn an_empty_engine_gets_the_level_of_the_expected_size() {
        let idle = RunningPlans::default();
        for (expected_mib, level) in
            [(0, 1), (10, 1), (11, 2), (100, 2), (101, 3), (1_001, 4), (u64::MAX / MIB, 6)]
        {
            assert_eq!(chosen(&levels(&[]), &idle, "a-c", expected_mib), level, "{expected_mib} MiB");
        }
    }

    #[test]
    fn a_table_that_overlaps_goes_deeper_then_shallower_then_to_level_0() {
        let idle = RunningPlans::default();
        let mut held = vec![(3, "a-z", 1)];
        assert_eq!(chosen(&levels(&held), &idle, "c-d", 200), 4);
        held.extend([(4, "a-z", 1), (5, "a-z", 1), (6, "a-z", 1)]);
        assert_eq!(chosen(&levels(&held), &idle, "c-d", 200), 2);
        held.push((2, "d-e", 1));
        assert_eq!(chosen(&levels(&held), &idle, "c-d", 200), 1);
        held.push((1, "a-c", 1));
        assert_eq!(chosen(&levels(&held), &idle, "c-d", 200), 0);
        assert_eq!(chosen(&levels(&held), &idle, "ca-cz", 200), 2, "between two tables");
    }

    #[test]
    fn a_level_that_would_exceed_its_target_comes_before_level_0_only() {
        let idle = RunningPlans::default();
        let deep = [(3, "a-z", 1), (4, "a-z", 1), (5, "a-z", 1), (6, "a-z", 1)];
        let held = [&deep[..], &[(2, "x-z", 100), (1, "x-z", 9)]].concat();
        assert_eq!(chosen(&levels(&held), &idle, "c-d", 200), 1);
        let held = [&deep[..], &[(2, "x-z", 100), (1, "x-z", 10)]].concat();
        assert_eq!(chosen(&levels(&held), &idle, "c-d", 200), 2, "the deeper of two full levels");
    }

    #[test]
    fn a_table_over_much_of_the_next_level_does_not_join_above_it() {
        let idle = RunningPlans::default();
        assert_eq!(chosen(&levels(&[(3, "a-z", 10)]), &idle, "c-d", 60), 2);
        assert_eq!(chosen(&levels(&[(3, "a-z", 11)]), &idle, "c-d", 60), 4);
    }

    #[test]
    fn a_running_plan_keeps_its_key_range_of_its_output_level() {
        let held = levels(&[(2, "f-h", 1)]);
        let tables = vec![Arc::clone(&held.level(2)[0])];
        let plan = Plan {
            inputs: vec![Input { level: 2, tables }],
            output_level: 3,
            is_move: false,
            reason: Reason::Size,
        };
        let mut running = RunningPlans::default();
        let id = running.begin(&plan);
        assert_eq!(chosen(&held, &running, "g-g", 200), 4);
        assert_eq!(chosen(&held, &running, "a-e", 200), 3);
        running.end(id);
        assert_eq!(chosen(&held, &running, "g-g", 200), 3);
    }
}
