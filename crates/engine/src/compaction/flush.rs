//! Flushing a memtable, or another source, to level 0 in steps.

use super::job::CELL_COST_BYTES;
use super::output::Outputs;
use super::{CompactionStep, JobContext};
use crate::Error;
use crate::iter::Cursor;
use crate::manifest::VersionEdit;
use crate::memtable::MemtableCursor;

/// A flush in progress. It writes the cells of one source, usually a memtable, unchanged to one
/// table, except those of hidden keys. Dead cells are left to compaction, which sees more tables.
///
/// A flush that is dropped before it is finished leaves a file that no manifest refers to. The next
/// open removes it.
pub struct FlushJob<C = MemtableCursor> {
    cursor: C,
    has_begun: bool,
    done_bytes: u64,
    outputs: Outputs,
}

impl<C: Cursor> FlushJob<C> {
    /// Returns a flush of all cells of `cursor`, not started yet. The sources of `context` are
    /// those beside it.
    pub fn new(cursor: C, context: JobContext) -> Self {
        Self { cursor, has_begun: false, done_bytes: 0, outputs: context.outputs(0, u64::MAX) }
    }

    /// Writes about `budget_bytes` of keys and values. The final edit adds the table, if there was
    /// a cell to write; the caller adds the floor of the log. An error ends the job and removes its
    /// output.
    ///
    /// # Errors
    /// [`Error::Full`] and [`Error::Io`] of the table that is written.
    pub fn step(&mut self, budget_bytes: u64) -> Result<CompactionStep, Error> {
        let stepped = self.write_some(budget_bytes);
        if stepped.is_err() {
            self.outputs.discard();
        }
        stepped
    }

    /// Keys and values written so far, in bytes as budgets count them.
    pub fn done_bytes(&self) -> u64 {
        self.done_bytes
    }

    /// The source of the cells.
    pub fn source(&self) -> &C {
        &self.cursor
    }

    fn write_some(&mut self, budget_bytes: u64) -> Result<CompactionStep, Error> {
        if !self.has_begun {
            self.cursor.seek_to_first()?;
            self.has_begun = true;
        }
        let mut spent_bytes = 0;
        while let Some((key, cell)) = self.cursor.entry() {
            if spent_bytes >= budget_bytes {
                return Ok(CompactionStep::More);
            }
            let cost_bytes = (key.len() + cell.value.len()) as u64 + CELL_COST_BYTES;
            spent_bytes += cost_bytes;
            self.done_bytes += cost_bytes;
            self.outputs.add(key, cell, None)?;
            self.cursor.advance()?;
        }
        let added = self.outputs.finish()?.into_iter().map(|meta| (0, meta)).collect();
        Ok(CompactionStep::Done(Box::new(VersionEdit {
            added,
            next_table_id: Some(self.outputs.next_table_id()),
            unpurged: self.outputs.unpurged(),
            ..VersionEdit::default()
        })))
    }
}
