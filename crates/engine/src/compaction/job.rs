//! Executing a compaction plan in steps.

use super::drop_rule::{Verdict, judge};
use super::output::{OutputOptions, Outputs};
use super::outside::OutsideTables;
use super::picker::GRANDPARENT_TABLES_MAX;
use super::{Horizon, LocalHorizon, Plan};
use crate::iter::{Cursor, LevelCursor, MergeCursor};
use crate::manifest::{LEVELS, Levels, VersionEdit};
use crate::ownership::{JobFilter, OtherSources};
use crate::sstable::{ReadMode, Table, TableMeta, TableOptions};
use crate::{Error, Options};
use bytes::Bytes;
use env::Env;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use stdx::{CellRef, Version, WallTime};

/// Cost of a cell in budgets beside its bytes.
pub(super) const CELL_COST_BYTES: u64 = 32;
/// Additional filter bits per key in level 0, where a read consults every table.
const LEVEL0_FILTER_BITS_MORE: u32 = 6;
/// Additional filter bits per key on levels above the last one. Together they hold few keys.
const UPPER_FILTER_BITS_MORE: u32 = 4;

/// Inputs of a job from the engine, captured when the job begins.
pub struct JobContext {
    /// File system and clock.
    pub env: Env,
    /// Directory of the tables.
    pub tables_dir: PathBuf,
    /// Allocator of table ids.
    pub next_table_id: Arc<AtomicU64>,
    /// Options for tables of the last level.
    pub table_options: TableOptions,
    /// Options of the engine.
    pub options: Options,
    /// The bound [`Horizon::version_min`]; `None` if there is no such cell. Must be read no later
    /// than `levels`.
    pub memtable_version_min: Option<Version>,
    /// The bound [`LocalHorizon::version_min`]; the same order of reads applies.
    pub memtable_local_version_min: Option<Version>,
    /// The live tables.
    pub levels: Arc<Levels>,
    /// The horizon: cells that expired, or whose grace period ended, before this time are dead.
    pub wall: WallTime,
    /// Time up to which the replicas have exchanged all deletes.
    pub exchanged_to: WallTime,
    /// Cells that are left out of all outputs.
    pub filter: JobFilter,
    /// All sources of the engine, without those of the job.
    pub sources: OtherSources,
}

impl JobContext {
    /// Returns the horizon for judging dead cells. The grace period is extended so that no
    /// tombstone is dropped that the replicas have not exchanged.
    pub fn horizon(&self) -> Horizon {
        let micros = |wall: WallTime| wall.micros_since_unix_epoch();
        let since_exchange = micros(self.wall).saturating_sub(micros(self.exchanged_to));
        Horizon {
            now: self.wall,
            grace: self.options.tombstone_grace.max(Duration::from_micros(since_exchange)),
            version_min: self.memtable_version_min.unwrap_or(Version::MAX),
            purged_from: self.filter.load().purged_from(),
            local: self.options.local_end().map(|end| LocalHorizon {
                end,
                version_min: self.memtable_local_version_min.unwrap_or(Version::MAX),
            }),
        }
    }

    /// Returns the outputs for tables of `level` that are cut at `table_bytes`.
    pub(crate) fn outputs(self, level: usize, table_bytes: u64) -> Outputs {
        let base = self.table_options.filter_bits_per_key;
        let more = match level {
            0 => LEVEL0_FILTER_BITS_MORE,
            _ if level + 1 >= self.levels.depth() => 0,
            _ => UPPER_FILTER_BITS_MORE,
        };
        let filter_bits_per_key = if base == 0 { 0 } else { base + more };
        Outputs::new(OutputOptions {
            env: self.env,
            dir: self.tables_dir,
            next_table_id: self.next_table_id,
            table: TableOptions { filter_bits_per_key, ..self.table_options },
            table_bytes,
            filter: self.filter,
            sources: self.sources,
        })
    }
}

/// Result of a step.
#[derive(Debug)]
pub enum CompactionStep {
    /// There is more to do.
    More,
    /// All output is written and durable. It becomes live with this edit.
    Done(Box<VersionEdit>),
}

/// A compaction in progress.
///
/// A job that is dropped before it is finished leaves files that no manifest refers to. The next
/// open removes them.
pub struct Job {
    plan: Plan,
    horizon: Horizon,
    outside: OutsideTables,
    merge: MergeCursor<LevelCursor>,
    /// Whether the merge is at a cell that is already processed. A large value is released between
    /// two steps, and the next one is not loaded.
    has_begun: bool,
    grandparents: Grandparents,
    outputs: Outputs,
    local_end_passed: bool,
    dropped: DroppedVersions,
    done_bytes: u64,
    cost_bytes: u64,
}

/// Greatest versions of the dropped tombstones. If a cell at or below such a version is written
/// while the job runs, the job did not see it, and its edit must not be installed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedVersions {
    /// Greatest version among replicated keys.
    pub version_max: Option<Version>,
    /// Greatest version among local keys. Only values conflict with it.
    pub local_version_max: Option<Version>,
}

impl Job {
    /// Returns a job that has not started yet.
    pub fn new(plan: Plan, mut context: JobContext) -> Self {
        let horizon = context.horizon();
        context.sources = context.sources.without_tables(plan.tables().map(|table| table.meta().id));
        let table_bytes = context.options.table_bytes;
        Self {
            outside: OutsideTables::of(&plan, &context.levels, &horizon),
            merge: MergeCursor::new(sources(&plan)),
            has_begun: false,
            grandparents: Grandparents::of(&plan, &context.levels, table_bytes),
            outputs: context.outputs(plan.output_level, table_bytes),
            local_end_passed: false,
            dropped: DroppedVersions::default(),
            done_bytes: 0,
            cost_bytes: plan.tables().map(|table| cost_bytes(table.meta())).sum(),
            horizon,
            plan,
        }
    }

    /// Merges about `budget_bytes` of keys and values. An error ends the job and removes its
    /// output.
    ///
    /// # Errors
    /// [`Error::Corrupt`] and [`Error::Io`] of a table that is read, [`Error::Full`] and
    /// [`Error::Io`] of tables that are written.
    pub fn step(&mut self, budget_bytes: u64) -> Result<CompactionStep, Error> {
        if self.plan.is_move {
            return Ok(CompactionStep::Done(Box::new(self.plan.edit())));
        }
        let stepped = self.merge_some(budget_bytes);
        if stepped.is_err() {
            self.outputs.discard();
        }
        stepped
    }

    /// The plan that is executed.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Greatest versions of the tombstones dropped so far.
    pub fn dropped(&self) -> DroppedVersions {
        self.dropped
    }

    /// Completed fraction, from 0 to 1, assuming that no cell supersedes another.
    pub fn progress(&self) -> f64 {
        (self.done_bytes as f64 / self.cost_bytes.max(1) as f64).min(1.0)
    }

    fn merge_some(&mut self, budget_bytes: u64) -> Result<CompactionStep, Error> {
        match std::mem::replace(&mut self.has_begun, true) {
            false => self.merge.seek_to_first()?,
            true => self.merge.advance()?,
        }
        let mut spent_bytes = 0;
        while let Some((key, cell)) = self.merge.entry() {
            let cost_bytes = (key.len() + cell.value.len()) as u64 + CELL_COST_BYTES;
            spent_bytes += cost_bytes;
            self.done_bytes += cost_bytes;
            let version = cell.meta.version;
            let stored =
                self.merge.head().and_then(LevelCursor::stored).filter(|_| !self.merge.has_raised_from());
            let kept = match judge(key, &cell.meta, &self.horizon, || self.outside.may_hold(key, version))? {
                Verdict::Keep => Some((cell, stored)),
                Verdict::Bury => Some((CellRef { meta: cell.meta.buried(), value: &[] }, None)),
                Verdict::Drop => None,
            };
            match kept {
                Some((cell, stored)) => {
                    let passes_local_end = !self.local_end_passed && key >= self.horizon.local_end();
                    self.local_end_passed |= passes_local_end;
                    if self.grandparents.cut_before(key) || passes_local_end {
                        self.outputs.cut()?;
                    }
                    self.outputs.add(key, cell, stored)?;
                }
                None => {
                    let greatest = match key < self.horizon.local_end() {
                        true => &mut self.dropped.local_version_max,
                        false => &mut self.dropped.version_max,
                    };
                    *greatest = (*greatest).max(Some(version));
                }
            }
            if spent_bytes >= budget_bytes {
                self.merge.release_value();
                return Ok(CompactionStep::More);
            }
            self.merge.advance()?;
        }
        self.finish()
    }

    fn finish(&mut self) -> Result<CompactionStep, Error> {
        let level = self.plan.output_level as u8;
        let mut edit = self.plan.edit();
        edit.added = self.outputs.finish()?.into_iter().map(|meta| (level, meta)).collect();
        edit.next_table_id = Some(self.outputs.next_table_id());
        edit.unpurged = self.outputs.unpurged();
        Ok(CompactionStep::Done(Box::new(edit)))
    }
}

/// Cost of all cells of a table in budgets, in bytes.
fn cost_bytes(meta: &TableMeta) -> u64 {
    meta.data_bytes + meta.cells * CELL_COST_BYTES
}

/// Returns one source per table of level 0, and one source for all tables of each other level.
fn sources(plan: &Plan) -> Vec<LevelCursor> {
    let mut sources = Vec::new();
    for input in &plan.inputs {
        let runs: Vec<Vec<Arc<Table>>> = match input.level {
            0 => input.tables.iter().map(|table| vec![Arc::clone(table)]).collect(),
            _ => vec![input.tables.clone()],
        };
        sources.extend(runs.into_iter().map(|run| LevelCursor::new(run, ReadMode::Bulk)));
    }
    sources
}

/// Positions at which outputs are cut, so that none overlaps too much of the level below (LevelDB's
/// grandparents).
struct Grandparents {
    /// Greatest key and file length of each table of that level.
    tables: Vec<(Bytes, u64)>,
    next: usize,
    overlap_bytes: u64,
    overlap_bytes_max: u64,
}

impl Grandparents {
    fn of(plan: &Plan, levels: &Levels, table_bytes: u64) -> Self {
        let (min, max) = plan.key_range();
        let below = plan.output_level + 1;
        let tables = (below < LEVELS).then(|| levels.overlapping(below, &min, &max));
        Self {
            tables: tables
                .into_iter()
                .flatten()
                .map(|table| (table.meta().key_max.clone(), table.meta().file_bytes))
                .collect(),
            next: 0,
            overlap_bytes: 0,
            overlap_bytes_max: table_bytes.saturating_mul(GRANDPARENT_TABLES_MAX),
        }
    }

    /// Whether the current output overlaps too much already if it ends before `key`.
    #[inline]
    fn cut_before(&mut self, key: &[u8]) -> bool {
        while self.tables.get(self.next).is_some_and(|(key_max, _)| key_max < key) {
            self.overlap_bytes += self.tables[self.next].1;
            self.next += 1;
        }
        let cuts = self.overlap_bytes > self.overlap_bytes_max;
        if cuts {
            self.overlap_bytes = 0;
        }
        cuts
    }
}
