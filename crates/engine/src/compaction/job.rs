//! Carrying out a plan, step by step.

use super::drop_rule::{Verdict, judge};
use super::output::{OutputOptions, Outputs};
use super::outside::Outside;
use super::picker::GRANDPARENT_TABLES_MAX;
use super::{Horizon, LocalHorizon, Plan};
use crate::iter::{Cursor, LevelCursor, MergeCursor};
use crate::manifest::{LEVELS, Levels, VersionEdit};
use crate::sstable::{Reading, Table, TableMeta, TableOptions};
use crate::{Error, Options};
use bytes::Bytes;
use env::Env;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use stdx::{CellRef, Version, WallTime};

/// What a cell costs of a budget besides its bytes.
pub(super) const CELL_COST_BYTES: u64 = 32;
/// Bits of filter that a key costs more in level 0, where a read asks every table.
const LEVEL0_FILTER_BITS_MORE: u32 = 6;
/// Bits of filter that a key costs more on a level that is not the last: all together they are few.
const UPPER_FILTER_BITS_MORE: u32 = 4;

/// What a job needs of the engine, as it is when the job begins.
pub struct JobContext {
    /// The file system.
    pub env: Env,
    /// Where tables are.
    pub tables_dir: PathBuf,
    /// Gives ids to new tables.
    pub next_table_id: Arc<AtomicU64>,
    /// How tables of the last level are written.
    pub table_options: TableOptions,
    /// The options of the engine.
    pub options: Options,
    /// See [`Horizon::version_min`]; `None` when there is no such cell. To be read not later than `levels`.
    pub memtable_version_min: Option<Version>,
    /// See [`LocalHorizon::version_min`]; the same holds for it.
    pub memtable_local_version_min: Option<Version>,
    /// The live tables.
    pub levels: Arc<Levels>,
    /// The horizon: what expired, or whose grace period ended, before this time is dead.
    pub wall: WallTime,
    /// The time up to which the replicas have exchanged all deletes.
    pub exchanged_to: WallTime,
}

impl JobContext {
    /// What judges dead cells. The grace period is so long that no tombstone goes that the replicas have not exchanged.
    pub fn horizon(&self) -> Horizon {
        let micros = |wall: WallTime| wall.micros_since_unix_epoch();
        let since_exchange = micros(self.wall).saturating_sub(micros(self.exchanged_to));
        Horizon {
            now: self.wall,
            grace: self.options.tombstone_grace.max(Duration::from_micros(since_exchange)),
            version_min: self.memtable_version_min.unwrap_or(Version::MAX),
            local: self.options.local_end().map(|end| LocalHorizon {
                end,
                version_min: self.memtable_local_version_min.unwrap_or(Version::MAX),
            }),
        }
    }

    /// How tables for `level` are written, cut at `table_bytes`.
    pub(super) fn outputs(self, level: usize, table_bytes: u64) -> Outputs {
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
        })
    }
}

/// What a step came to.
#[derive(Debug)]
pub enum Step {
    /// There is more to do.
    More,
    /// All is written and durable; it becomes live with this edit.
    Done(VersionEdit),
}

/// A compaction under way.
///
/// A job that is dropped before it is done leaves files behind that no manifest names; the next open removes
/// them.
pub struct Job {
    plan: Plan,
    horizon: Horizon,
    outside: Outside,
    merge: MergeCursor<LevelCursor>,
    /// Whether it stands at a cell, which is done. If that is large it is not held between two steps, nor is the next one.
    has_begun: bool,
    grandparents: Grandparents,
    outputs: Outputs,
    local_end_passed: bool,
    dropped: Dropped,
    done_bytes: u64,
    cost_bytes: u64,
}

/// The greatest versions of tombstones that were dropped. A cell of that version or below which is written while
/// the job runs was not known to it: then its edit must not be installed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Of keys that replicas have.
    pub version_max: Option<Version>,
    /// Of local keys. Only values count for it.
    pub local_version_max: Option<Version>,
}

impl Job {
    /// A job that has done nothing yet.
    pub fn new(plan: Plan, context: JobContext) -> Self {
        let horizon = context.horizon();
        let table_bytes = context.options.table_bytes;
        Self {
            outside: Outside::of(&plan, &context.levels, &horizon),
            merge: MergeCursor::new(sources(&plan)),
            has_begun: false,
            grandparents: Grandparents::of(&plan, &context.levels, table_bytes),
            outputs: context.outputs(plan.output_level, table_bytes),
            local_end_passed: false,
            dropped: Dropped::default(),
            done_bytes: 0,
            cost_bytes: plan.tables().map(|table| cost_bytes(table.meta())).sum(),
            horizon,
            plan,
        }
    }

    /// Goes on for about `budget_bytes` of keys and values. After an error the job is over, and what it had
    /// written is removed.
    ///
    /// # Errors
    /// [`Error::Corrupt`] and [`Error::Io`] of a table that is read, [`Error::Full`] and [`Error::Io`] of
    /// those that are written.
    pub fn step(&mut self, budget_bytes: u64) -> Result<Step, Error> {
        if self.plan.moves {
            return Ok(Step::Done(self.plan.edit()));
        }
        let stepped = self.merge_some(budget_bytes);
        if stepped.is_err() {
            self.outputs.discard();
        }
        stepped
    }

    /// The plan that is carried out.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What was dropped so far.
    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// Which part of it is done, from 0 to 1, as if no cell superseded another.
    pub fn progress(&self) -> f64 {
        (self.done_bytes as f64 / self.cost_bytes.max(1) as f64).min(1.0)
    }

    fn merge_some(&mut self, budget_bytes: u64) -> Result<Step, Error> {
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
            let stored = self.merge.head().and_then(LevelCursor::stored).filter(|_| !self.merge.is_raised());
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
                self.merge.set_aside();
                return Ok(Step::More);
            }
            self.merge.advance()?;
        }
        self.finish()
    }

    fn finish(&mut self) -> Result<Step, Error> {
        let level = self.plan.output_level as u8;
        let mut edit = self.plan.edit();
        edit.added = self.outputs.finish()?.into_iter().map(|meta| (level, meta)).collect();
        edit.next_table_id = Some(self.outputs.next_table_id());
        Ok(Step::Done(edit))
    }
}

/// What all cells of a table cost of budgets.
fn cost_bytes(meta: &TableMeta) -> u64 {
    meta.data_bytes + meta.cells * CELL_COST_BYTES
}

/// A source for each table of level 0, and one for all tables of another level.
fn sources(plan: &Plan) -> Vec<LevelCursor> {
    let mut sources = Vec::new();
    for input in &plan.inputs {
        let runs: Vec<Vec<Arc<Table>>> = match input.level {
            0 => input.tables.iter().map(|table| vec![Arc::clone(table)]).collect(),
            _ => vec![input.tables.clone()],
        };
        sources.extend(runs.into_iter().map(|run| LevelCursor::new(run, Reading::Bulk)));
    }
    sources
}

/// Where outputs are cut so that none overlaps too much of the level below theirs.
struct Grandparents {
    /// The greatest key and the file length of each table there.
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

    /// Whether the output that would take `key` overlaps too much already.
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
