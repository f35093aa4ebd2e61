//! The healing of one table, in steps.

use crate::Error;
use crate::compaction::{CompactionStep, FlushJob};
use crate::iter::Cursor;
use crate::manifest::VersionEdit;
use crate::sstable::{Damage, Table, TableCursor};
use std::sync::Arc;

/// The healing of one table.
pub(crate) struct HealJob {
    pub(super) table: Arc<Table>,
    pub(super) stage: HealStage,
}

/// Stage of a healing.
pub(super) enum HealStage {
    /// Determining which blocks can be read.
    Scan { cursor: Box<TableCursor>, has_begun: bool },
    /// Writing the readable cells to a new table.
    Rewrite(Box<FlushJob<TableCursor>>),
}

/// Result of a step.
pub(super) enum HealStep {
    More,
    Scanned(Damage),
    Rewritten(Damage, Box<VersionEdit>),
}

impl HealJob {
    pub(super) fn step(&mut self, budget_bytes: u64) -> Result<HealStep, Error> {
        match &mut self.stage {
            HealStage::Scan { cursor, has_begun } => scan(cursor, has_begun, budget_bytes),
            HealStage::Rewrite(job) => Ok(match job.step(budget_bytes)? {
                CompactionStep::More => HealStep::More,
                CompactionStep::Done(edit) => HealStep::Rewritten(job.source().damage(), edit),
            }),
        }
    }
}

fn scan(cursor: &mut TableCursor, has_begun: &mut bool, budget_bytes: u64) -> Result<HealStep, Error> {
    if !*has_begun {
        cursor.seek_to_first()?;
        *has_begun = true;
    }
    let mut spent_bytes = 0;
    while let Some((key, cell)) = cursor.entry() {
        if spent_bytes >= budget_bytes {
            return Ok(HealStep::More);
        }
        spent_bytes += (key.len() + cell.value.len()) as u64;
        cursor.advance()?;
    }
    Ok(HealStep::Scanned(cursor.damage()))
}
