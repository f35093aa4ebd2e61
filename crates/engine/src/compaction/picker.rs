//! The picker: chooses the next compaction. It is a pure function of the levels.
//!
//! It tries, in this order:
//!
//! 1. *Sizes.* Level 0 is scored by its number of tables relative to [`Options::level0_tables`],
//!    every other level by its bytes relative to its target. The level with the greatest score of
//!    at least 1 is compacted. From level 0, all tables of one overlapping set are merged at once.
//!    From another level the cheapest table is merged: the one with the fewest bytes on the next
//!    level per byte of its own, and further tables that add no cost. Tables that overlap nothing
//!    on the target level only move, so a load in key order rewrites nothing.
//! 2. *Dead cells.* A table in which enough cells may be dropped. It is merged with its overlap on
//!    the next level. If there is none, it is rewritten in place, provided that something is
//!    *certain* to be dropped. Each choice moves cells down or removes some, so the sequence of
//!    choices terminates.
//! 3. *Tombstones.* A table full of tombstones is merged onto the cells that they hide. A table of
//!    level 0 with local keys qualifies once it has been there for a while.
//! 4. *Purge.* A table that may hold cells of disowned ranges is rewritten in place without them.
//!
//! A table holds either local keys or other keys, except in level 0; compactions cut tables at the
//! boundary. So tables with local keys are small, and their dead cells are dropped without touching
//! other keys.
//!
//! Tables of running plans are excluded, and so is every key range that a running plan writes to.
//! If level 0 has the greatest score and waits for tables of level 1, no other work on level 1 is
//! started.

use super::plan::key_range;
use super::{Horizon, Input, Plan, Reason, RunningPlans};
use crate::Options;
use crate::manifest::{HasMeta, LEVELS, Levels};
use crate::sstable::TableMeta;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Hlc, NodeTag, Version, WallTime};

/// The deepest level. It has no target and no level below it.
const LAST: usize = LEVELS - 1;
/// Maximum number of level 0 tables in one merge: each needs a read buffer.
const LEVEL0_INPUTS_MAX: usize = 16;
/// Maximum input of a widened plan, as a multiple of [`Options::table_bytes`].
const WIDENED_TABLES_MAX: u64 = 12;
/// Maximum overlap of a table with the level below its target level, as a multiple of
/// [`Options::table_bytes`]. A move that would exceed it becomes a merge, which cuts the table.
pub(crate) const GRANDPARENT_TABLES_MAX: u64 = 10;
/// Fraction of dead cells from which a table is compacted early.
const DEAD_SHARE_MIN: f64 = 0.25;
/// Fraction of tombstones from which a table is merged downwards.
const TOMBSTONE_SHARE_MIN: f64 = 0.5;
/// Age of the newest cell from which a level 0 table with local keys is compacted although level 0
/// is small.
const LEVEL0_QUIET: Duration = Duration::from_secs(600);

/// Returns the next worthwhile compaction beside the running ones.
pub fn pick<T: HasMeta>(
    levels: &Levels<T>,
    running: &RunningPlans,
    options: &Options,
    horizon: &Horizon,
) -> Option<Plan<T>> {
    pick_within(levels, running, options, horizon, u64::MAX)
}

/// Same as [`pick`], but the plan's output takes at most `bytes_max` on disk. If the best plan does
/// not fit, a smaller or less valuable one is returned.
pub fn pick_within<T: HasMeta>(
    levels: &Levels<T>,
    running: &RunningPlans,
    options: &Options,
    horizon: &Horizon,
    bytes_max: u64,
) -> Option<Plan<T>> {
    let picker = Picker { levels, running, options, horizon, bytes_max };
    picker
        .by_size()
        .or_else(|| picker.by_dead_cells())
        .or_else(|| picker.by_tombstones())
        .or_else(|| picker.by_disowned_cells())
}

/// Size above which a level is compacted, in bytes. Level 0 is limited by its number of tables, and
/// the last level is unlimited.
pub fn level_target_bytes(level: usize, options: &Options) -> u64 {
    match level {
        0 | LAST => u64::MAX,
        _ => {
            options.level1_bytes.saturating_mul(options.level_growth.saturating_pow(level as u32 - 1)).max(1)
        }
    }
}

struct Picker<'a, T> {
    levels: &'a Levels<T>,
    running: &'a RunningPlans,
    options: &'a Options,
    horizon: &'a Horizon,
    bytes_max: u64,
}

impl<T: HasMeta> Picker<'_, T> {
    fn by_size(&self) -> Option<Plan<T>> {
        let mut scores: Vec<_> = (0..LAST).map(|level| (self.score(level), level)).collect();
        scores.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut level1_is_waited_for = false;
        for (_, level) in scores.into_iter().filter(|(score, _)| *score >= 1.0) {
            let plan = match level {
                0 => self.of_level0(),
                1 if level1_is_waited_for => None,
                _ => self.cheapest_of(level),
            };
            if plan.is_some() {
                return plan;
            }
            // If no plan runs, disk space is missing, and work on level 1 may free some.
            level1_is_waited_for |= level == 0 && !self.running.is_idle();
        }
        None
    }

    /// Ratio of a level's size to its target. Tables of running plans do not count.
    fn score(&self, level: usize) -> f64 {
        match level {
            0 => self.free(0).count() as f64 / self.options.level0_tables.max(1) as f64,
            _ => {
                let bytes: u64 = self.free(level).map(|table| table.meta().file_bytes).sum();
                bytes as f64 / level_target_bytes(level, self.options) as f64
            }
        }
    }

    fn free(&self, level: usize) -> impl Iterator<Item = &Arc<T>> {
        self.levels.level(level).iter().filter(|table| !self.running.is_excluded(table.meta().id))
    }

    /// All tables of level 0 that can move; otherwise a merge of the largest overlapping set.
    fn of_level0(&self) -> Option<Plan<T>> {
        let mut sets = self.overlapping_sets();
        let alone = sets.iter().filter(|set| set.len() == 1);
        let moving: Vec<_> =
            alone.filter(|set| self.can_move(&set[0], 1)).map(|set| Arc::clone(&set[0])).collect();
        if !moving.is_empty() {
            let inputs = vec![Input { level: 0, tables: moving }];
            return Some(Plan { inputs, output_level: 1, is_move: true, reason: Reason::Level0 });
        }
        sets.sort_by_key(|set| std::cmp::Reverse(set.len()));
        sets.into_iter().find_map(|mut set| {
            set.sort_by_key(|table| table.meta().id);
            set.truncate(LEVEL0_INPUTS_MAX);
            loop {
                let plan = self.merged(0, set.clone(), Reason::Level0)?;
                if set.len() == 1 || self.fits(&plan) {
                    return self.within_room(plan);
                }
                // Merging only the oldest tables is better than merging none.
                set.truncate(set.len() / 2);
            }
        })
    }

    /// Available tables of level 0, grouped into sets whose key ranges overlap directly or
    /// transitively.
    fn overlapping_sets(&self) -> Vec<Vec<Arc<T>>> {
        let mut tables: Vec<_> = self.free(0).cloned().collect();
        tables.sort_by(|a, b| a.meta().key_min.cmp(&b.meta().key_min));
        let mut sets: Vec<Vec<Arc<T>>> = Vec::new();
        for table in tables {
            match sets.last_mut() {
                Some(set) if set.iter().any(|other| other.meta().key_max >= table.meta().key_min) => {
                    set.push(table);
                }
                _ => sets.push(vec![table]),
            }
        }
        sets
    }

    /// Returns a merge of the table of `level` with the fewest bytes below it per byte of its own.
    fn cheapest_of(&self, level: usize) -> Option<Plan<T>> {
        let mut tables: Vec<_> =
            self.free(level).map(|table| (self.cost(level, table.meta()), table)).collect();
        tables.sort_by(|a, b| a.0.total_cmp(&b.0));
        tables.into_iter().find_map(|(_, table)| self.merging(level, vec![Arc::clone(table)], Reason::Size))
    }

    fn cost(&self, level: usize, meta: &TableMeta) -> f64 {
        self.overlap_bytes(level + 1, &meta.key_min, &meta.key_max) as f64 / meta.file_bytes.max(1) as f64
    }

    fn overlap_bytes(&self, level: usize, min: &[u8], max: &[u8]) -> u64 {
        self.levels.overlapping(level, min, max).map(|table| table.meta().file_bytes).sum()
    }

    /// Same as [`Picker::merged`], if the output fits on the disk.
    fn merging(&self, level: usize, tables: Vec<Arc<T>>, reason: Reason) -> Option<Plan<T>> {
        self.within_room(self.merged(level, tables, reason)?)
    }

    fn within_room(&self, plan: Plan<T>) -> Option<Plan<T>> {
        self.fits(&plan).then_some(plan)
    }

    fn fits(&self, plan: &Plan<T>) -> bool {
        plan.written_bytes_max() <= self.bytes_max
    }

    /// Returns a plan that merges these tables of a level into the next one, with their overlap
    /// there; `None` if a running plan conflicts.
    fn merged(&self, level: usize, tables: Vec<Arc<T>>, reason: Reason) -> Option<Plan<T>> {
        let output_level = level + 1;
        if let [table] = &tables[..]
            && self.can_move(table, output_level)
        {
            let inputs = vec![Input { level, tables }];
            return Some(Plan { inputs, output_level, is_move: true, reason });
        }
        let (min, max) = key_range(tables.iter());
        let below: Vec<_> = self.levels.overlapping(output_level, &min, &max).cloned().collect();
        let (min, max) = key_range(tables.iter().chain(&below));
        if self.running.has_writer_in(output_level, &min, &max)
            || below.iter().any(|table| self.running.is_excluded(table.meta().id))
        {
            return None;
        }
        let tables =
            if level == 0 || below.is_empty() { tables } else { self.widened(level, tables, &below) };
        let mut inputs = vec![Input { level, tables }];
        if !below.is_empty() {
            inputs.push(Input { level: output_level, tables: below });
        }
        Some(Plan { inputs, output_level, is_move: false, reason })
    }

    /// `tables` and those neighbours that overlap no table below except `below`, as long as the
    /// plan stays small.
    fn widened(&self, level: usize, tables: Vec<Arc<T>>, below: &[Arc<T>]) -> Vec<Arc<T>> {
        let (min, max) = key_range(tables.iter().chain(below));
        let mut bytes: u64 = tables.iter().chain(below).map(|table| table.meta().file_bytes).sum();
        let fits = |meta: &TableMeta| {
            min <= meta.key_min && meta.key_max <= max && !self.running.is_excluded(meta.id)
        };
        let mut wide = tables;
        for table in self.levels.overlapping(level, &min, &max).filter(|table| fits(table.meta())) {
            let is_new = wide.iter().all(|other| other.meta().id != table.meta().id);
            bytes += if is_new { table.meta().file_bytes } else { 0 };
            if is_new
                && bytes <= self.options.table_bytes.saturating_mul(WIDENED_TABLES_MAX).min(self.bytes_max)
            {
                wide.push(Arc::clone(table));
            }
        }
        wide.sort_by(|a, b| a.meta().key_min.cmp(&b.meta().key_min));
        wide
    }

    /// Whether a table can move to `level` without being rewritten.
    fn can_move(&self, table: &T, level: usize) -> bool {
        let TableMeta { key_min, key_max, .. } = table.meta();
        let free = self.overlap_bytes(level, key_min, key_max) == 0
            && !self.running.has_writer_in(level, key_min, key_max)
            && !self.horizon.has_local_end_within(key_min, key_max);
        let grandparents_max = self.options.table_bytes.saturating_mul(GRANDPARENT_TABLES_MAX);
        free && (level == LAST || self.overlap_bytes(level + 1, key_min, key_max) <= grandparents_max)
    }

    fn by_dead_cells(&self) -> Option<Plan<T>> {
        self.downwards().find_map(|(level, table)| {
            let meta = table.meta();
            if !self.has_many_dead(meta) {
                return None;
            }
            if level == 0 || self.has_below(level, meta) {
                return self.merging(level, vec![Arc::clone(table)], Reason::Dead);
            }
            let in_place =
                self.something_goes(meta) && !self.running.has_writer_in(level, &meta.key_min, &meta.key_max);
            let inputs = vec![Input { level, tables: vec![Arc::clone(table)] }];
            let plan = Plan { inputs, output_level: level, is_move: false, reason: Reason::Dead };
            in_place.then(|| self.within_room(plan)).flatten()
        })
    }

    fn by_tombstones(&self) -> Option<Plan<T>> {
        self.downwards().find_map(|(level, table)| {
            let meta = table.meta();
            let many =
                meta.tombstones as f64 >= TOMBSTONE_SHARE_MIN * meta.cells as f64 && meta.tombstones > 0;
            let worth = many
                && match level {
                    0 => meta.key_min < self.horizon.local_end() && self.is_quiet(meta),
                    _ => self.has_below(level, meta),
                };
            worth.then(|| self.merging(level, vec![Arc::clone(table)], Reason::Tombstones)).flatten()
        })
    }

    fn by_disowned_cells(&self) -> Option<Plan<T>> {
        let purged_from = self.horizon.purged_from?;
        self.downwards().find_map(|(level, table)| {
            let meta = table.meta();
            let is_due = meta.id < purged_from
                && *meta.key_max >= *self.horizon.local_end()
                && !self.running.has_writer_in(level, &meta.key_min, &meta.key_max);
            let inputs = vec![Input { level, tables: vec![Arc::clone(table)] }];
            let plan = Plan { inputs, output_level: level, is_move: false, reason: Reason::Purge };
            is_due.then(|| self.within_room(plan)).flatten()
        })
    }

    fn is_quiet(&self, meta: &TableMeta) -> bool {
        since(self.horizon.now, meta.version_max.hlc.wall()).is_some_and(|age| age >= LEVEL0_QUIET)
    }

    /// All tables that no plan uses, from level 0 downwards.
    fn downwards(&self) -> impl Iterator<Item = (usize, &Arc<T>)> {
        self.levels.iter().filter(|(_, table)| !self.running.is_excluded(table.meta().id))
    }

    fn has_below(&self, level: usize, meta: &TableMeta) -> bool {
        (level + 1..LEVELS)
            .any(|below| self.levels.overlapping(below, &meta.key_min, &meta.key_max).next().is_some())
    }

    /// Whether enough cells of a table may be dropped to justify a rewrite: a large fraction of
    /// them by estimate, or some that have been droppable for a whole grace period.
    ///
    /// The estimate assumes that deaths are spread over the same length of time as the writes.
    fn has_many_dead(&self, meta: &TableMeta) -> bool {
        let Some(late) = self.first_goes_at(meta).and_then(|first| since(self.horizon.now, first)) else {
            return false;
        };
        let spread = since(meta.version_max.hlc.wall(), meta.version_min.hlc.wall()).unwrap_or_default();
        let died = (late.as_secs_f64() / spread.as_secs_f64().max(1e-6)).min(1.0);
        let mortal = (meta.tombstones + meta.expiring) as f64 / meta.cells.max(1) as f64;
        died * mortal >= DEAD_SHARE_MIN || late >= self.horizon.grace
    }

    /// Earliest time at which a compaction can drop something: the end of the first tombstone's
    /// grace period, or, if there are only values, the first expiry, when the value's bytes can be
    /// dropped.
    fn first_goes_at(&self, meta: &TableMeta) -> Option<WallTime> {
        let grace = if meta.tombstones == 0 { Duration::ZERO } else { self.rule_for_table(meta).0 };
        meta.droppable_from.map(|from| from.saturating_add(grace))
    }

    /// Whether rewriting a table with nothing below it certainly changes something. An expired
    /// value always loses its bytes. The oldest tombstone is dropped if nothing outside is as old.
    fn something_goes(&self, meta: &TableMeta) -> bool {
        let Some(droppable_from) = meta.droppable_from else { return false };
        // The version of the oldest dead cell is below this one.
        let after = Version::new(Hlc::at(droppable_from.saturating_add_micros(1)), NodeTag(0));
        let younger = |table: &Arc<T>| table.meta().id == meta.id || table.meta().version_min >= after;
        let alone = |level| self.levels.overlapping(level, &meta.key_min, &meta.key_max).all(younger);
        meta.tombstones == 0 || (self.rule_for_table(meta).1 >= after && (0..LEVELS).all(alone))
    }

    /// Applies [`Horizon::rule_for`] to a table: the rule of all its keys, or of those that wait
    /// the longest.
    fn rule_for_table(&self, meta: &TableMeta) -> (Duration, Version) {
        self.horizon.rule_for(&meta.key_max)
    }
}

/// Time from `earlier` to `later`; `None` if `later` is earlier.
fn since(later: WallTime, earlier: WallTime) -> Option<Duration> {
    let micros = later.micros_since_unix_epoch().checked_sub(earlier.micros_since_unix_epoch())?;
    Some(Duration::from_micros(micros))
}

/// Work that compaction has to do until every level is within its target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionDebt {
    /// Estimated bytes to rewrite.
    pub bytes: u64,
}

impl CompactionDebt {
    /// Estimates the debt of these levels: the excess over a level's target moves down and rewrites
    /// its overlap there.
    pub fn of<T: HasMeta>(levels: &Levels<T>, options: &Options) -> Self {
        let mut bytes = 0u64;
        let mut coming = 0;
        if levels.level(0).len() >= options.level0_tables {
            coming = levels.bytes(0);
            bytes = coming + levels.bytes(1);
        }
        for level in 1..LAST {
            let held = levels.bytes(level) + coming;
            coming = held.saturating_sub(level_target_bytes(level, options));
            let below = levels.bytes(level + 1) as f64 / held.max(1) as f64;
            bytes += coming + (coming as f64 * below) as u64;
        }
        Self { bytes }
    }
}
