//! Which compaction is worth doing next: pure.
//!
//! In this order:
//!
//! 1. *Sizes.* Level 0 is scored by its tables against [`Options::level0_tables`], every other level by its
//!    bytes against its target; the greatest score of 1 or more is worked on. From level 0 go tables that
//!    overlap each other, all of them at once; from another level the table that costs least: the one with
//!    the fewest bytes on the next level for each of its own, and whatever fits between without more cost.
//!    Tables that overlap nothing where they go only move, so a fill in key order rewrites nothing.
//! 2. *Dead cells.* A table in which enough may go: it is merged with what it overlaps on the next level, or
//!    rewritten in place when there is nothing below it and something is *certain* to go. So each choice
//!    brings cells down or removes some, and choosing comes to an end.
//! 3. *Tombstones.* A table full of them is brought down onto what they hide; one of level 0 that has local keys
//!    once it has lain there for a while.
//!
//! Tables have either local keys or others, except in level 0, which compactions cut apart: so those with local keys
//! are small, and what is dead in them goes without touching anything else.
//!
//! Tables of running plans are left alone, and so is every range into which one writes. When level 0 has
//! most need of work and has to wait for tables of level 1, no further work is begun on level 1.

use super::plan::key_range;
use super::{Busy, Horizon, Input, Plan, Reason};
use crate::Options;
use crate::manifest::{HasMeta, LEVELS, Levels};
use crate::sstable::TableMeta;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Hlc, NodeTag, Version, WallTime};

/// The deepest level: it has no target and nothing below it.
const LAST: usize = LEVELS - 1;
/// The most tables of level 0 that are merged at once: each needs a read buffer.
const LEVEL0_INPUTS_MAX: usize = 16;
/// A plan is widened while it reads no more than so many times [`Options::table_bytes`].
const WIDENED_TABLES_MAX: u64 = 12;
/// A table may overlap so many times [`Options::table_bytes`] on the level below the one it goes to; a move
/// that would overlap more is a merge instead, which cuts it.
pub(super) const GRANDPARENT_TABLES_MAX: u64 = 10;
/// A table is compacted early when this part of its cells is dead.
const DEAD_SHARE_MIN: f64 = 0.25;
/// A table is brought down when this part of its cells are tombstones.
const TOMBSTONE_SHARE_MIN: f64 = 0.5;
/// A table of level 0 whose newest cell is of this age waits for too little else to come to be merged by size.
const LEVEL0_QUIET: Duration = Duration::from_secs(600);

/// The next compaction that is worth doing beside those that run.
pub fn pick<T: HasMeta>(
    levels: &Levels<T>,
    busy: &Busy,
    options: &Options,
    horizon: &Horizon,
) -> Option<Plan<T>> {
    pick_within(levels, busy, options, horizon, u64::MAX)
}

/// As [`pick`], but what the plan writes takes at most `bytes_max` on the disk. Where the best does not fit, one that
/// is smaller, or worth less, is done before.
pub fn pick_within<T: HasMeta>(
    levels: &Levels<T>,
    busy: &Busy,
    options: &Options,
    horizon: &Horizon,
    bytes_max: u64,
) -> Option<Plan<T>> {
    let picker = Picker { levels, busy, options, horizon, bytes_max };
    picker.by_size().or_else(|| picker.by_dead_cells()).or_else(|| picker.by_tombstones())
}

/// The size above which a level is worked off, in bytes. Level 0 goes by tables, the last level grows freely.
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
    busy: &'a Busy,
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
            // Without running plans it is room that is missing, and work on level 1 may make some.
            level1_is_waited_for |= level == 0 && !self.busy.is_idle();
        }
        None
    }

    /// How much a level is above what it should be; tables that are on their way out do not count.
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
        self.levels.level(level).iter().filter(|table| !self.busy.has(table.meta().id))
    }

    /// All tables of level 0 that can simply move; else the largest set that hangs together.
    fn of_level0(&self) -> Option<Plan<T>> {
        let mut sets = self.overlapping_sets();
        let alone = sets.iter().filter(|set| set.len() == 1);
        let moving: Vec<_> =
            alone.filter(|set| self.can_move(&set[0], 1)).map(|set| Arc::clone(&set[0])).collect();
        if !moving.is_empty() {
            let inputs = vec![Input { level: 0, tables: moving }];
            return Some(Plan { inputs, output_level: 1, moves: true, reason: Reason::Level0 });
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
                // The oldest of them are better than nothing.
                set.truncate(set.len() / 2);
            }
        })
    }

    /// The free tables of level 0, those together whose ranges overlap, directly or through others.
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

    /// Of the tables of a level, the one with the fewest bytes below it for each of its own.
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

    /// As [`Picker::merged`], if there is room for it.
    fn merging(&self, level: usize, tables: Vec<Arc<T>>, reason: Reason) -> Option<Plan<T>> {
        self.within_room(self.merged(level, tables, reason)?)
    }

    fn within_room(&self, plan: Plan<T>) -> Option<Plan<T>> {
        self.fits(&plan).then_some(plan)
    }

    fn fits(&self, plan: &Plan<T>) -> bool {
        plan.written_bytes_max() <= self.bytes_max
    }

    /// A plan that brings these tables of a level to the next, with what they overlap there; `None` when a
    /// running plan is in the way.
    fn merged(&self, level: usize, tables: Vec<Arc<T>>, reason: Reason) -> Option<Plan<T>> {
        let output_level = level + 1;
        if let [table] = &tables[..]
            && self.can_move(table, output_level)
        {
            let inputs = vec![Input { level, tables }];
            return Some(Plan { inputs, output_level, moves: true, reason });
        }
        let (min, max) = key_range(tables.iter());
        let below: Vec<_> = self.levels.overlapping(output_level, &min, &max).cloned().collect();
        let (min, max) = key_range(tables.iter().chain(&below));
        if self.busy.writes(output_level, &min, &max)
            || below.iter().any(|table| self.busy.has(table.meta().id))
        {
            return None;
        }
        let tables =
            if level == 0 || below.is_empty() { tables } else { self.widened(level, tables, &below) };
        let mut inputs = vec![Input { level, tables }];
        if !below.is_empty() {
            inputs.push(Input { level: output_level, tables: below });
        }
        Some(Plan { inputs, output_level, moves: false, reason })
    }

    /// `tables` and its neighbours that overlap nothing below but `below`, as long as the plan stays small.
    fn widened(&self, level: usize, tables: Vec<Arc<T>>, below: &[Arc<T>]) -> Vec<Arc<T>> {
        let (min, max) = key_range(tables.iter().chain(below));
        let mut bytes: u64 = tables.iter().chain(below).map(|table| table.meta().file_bytes).sum();
        let fits = |meta: &TableMeta| min <= meta.key_min && meta.key_max <= max && !self.busy.has(meta.id);
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

    /// Whether a table may be put on `level` as it is.
    fn can_move(&self, table: &T, level: usize) -> bool {
        let TableMeta { key_min, key_max, .. } = table.meta();
        let free = self.overlap_bytes(level, key_min, key_max) == 0
            && !self.busy.writes(level, key_min, key_max)
            && !self.horizon.parts(key_min, key_max);
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
                self.something_goes(meta) && !self.busy.writes(level, &meta.key_min, &meta.key_max);
            let inputs = vec![Input { level, tables: vec![Arc::clone(table)] }];
            let plan = Plan { inputs, output_level: level, moves: false, reason: Reason::Dead };
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

    fn is_quiet(&self, meta: &TableMeta) -> bool {
        since(self.horizon.now, meta.version_max.hlc.wall()).is_some_and(|age| age >= LEVEL0_QUIET)
    }

    /// All tables that no plan has, from level 0 downwards.
    fn downwards(&self) -> impl Iterator<Item = (usize, &Arc<T>)> {
        self.levels.iter().filter(|(_, table)| !self.busy.has(table.meta().id))
    }

    fn has_below(&self, level: usize, meta: &TableMeta) -> bool {
        (level + 1..LEVELS)
            .any(|below| self.levels.overlapping(below, &meta.key_min, &meta.key_max).next().is_some())
    }

    /// Whether so many cells of a table may go that it is worth a rewrite: a good part of them by estimate,
    /// or some that should have gone a whole grace period ago.
    ///
    /// The estimate takes the deaths to be spread over as long a time as the writes were.
    fn has_many_dead(&self, meta: &TableMeta) -> bool {
        let Some(late) = self.first_goes_at(meta).and_then(|first| since(self.horizon.now, first)) else {
            return false;
        };
        let spread = since(meta.version_max.hlc.wall(), meta.version_min.hlc.wall()).unwrap_or_default();
        let died = (late.as_secs_f64() / spread.as_secs_f64().max(1e-6)).min(1.0);
        let mortal = (meta.tombstones + meta.expiring) as f64 / meta.cells.max(1) as f64;
        died * mortal >= DEAD_SHARE_MIN || late >= self.horizon.grace
    }

    /// When a compaction can first do something about a dead cell: when the grace period of the first
    /// tombstone ends, or, where there are only values, when the first expires and its bytes can go.
    fn first_goes_at(&self, meta: &TableMeta) -> Option<WallTime> {
        let grace = if meta.tombstones == 0 { Duration::ZERO } else { self.rule_of(meta).0 };
        meta.droppable_from.map(|from| from.saturating_add(grace))
    }

    /// Whether it is certain that rewriting a table, with nothing below it, changes something: an expired
    /// value gives up its bytes in any case, the oldest tombstone goes if nothing outside is as old.
    fn something_goes(&self, meta: &TableMeta) -> bool {
        let Some(droppable_from) = meta.droppable_from else { return false };
        // The version of the oldest dead cell is below this one.
        let after = Version::new(Hlc::at(droppable_from.saturating_add_micros(1)), NodeTag(0));
        let younger = |table: &Arc<T>| table.meta().id == meta.id || table.meta().version_min >= after;
        let alone = |level| self.levels.overlapping(level, &meta.key_min, &meta.key_max).all(younger);
        meta.tombstones == 0 || (self.rule_of(meta).1 >= after && (0..LEVELS).all(alone))
    }

    /// See [`Horizon::of`]: what holds for all keys of a table, or for those that wait the longest.
    fn rule_of(&self, meta: &TableMeta) -> (Duration, Version) {
        self.horizon.of(&meta.key_max)
    }
}

/// The time from `earlier` to `later`; `None` when it is the other way round.
fn since(later: WallTime, earlier: WallTime) -> Option<Duration> {
    let micros = later.micros_since_unix_epoch().checked_sub(earlier.micros_since_unix_epoch())?;
    Some(Duration::from_micros(micros))
}

/// What compaction has to do until every level is within its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Debt {
    /// Bytes to rewrite, by estimate.
    pub bytes: u64,
}

impl Debt {
    /// The debt of these levels: what is above a level's target goes down, and takes with it what it overlaps.
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
