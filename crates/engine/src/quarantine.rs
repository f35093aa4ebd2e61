//! Quarantine of tables that cannot be read back.
//!
//! **Promise.** A damaged block affects only its own contents: reads of those keys fail and name
//! the file, all other reads succeed, and compaction continues without the table. No cell is
//! abandoned before the host confirms that it has recovered the lost ranges from elsewhere
//! ([`Engine::allow_replacement`]). Then [`heal`](crate::heal) replaces the table, and reads
//! succeed again.
//!
//! **Mechanism.** A failed read marks the table as *suspected*; it is then scanned from end to end.
//! A damaged table is *quarantined*, with the ranges of keys that are lost. It moves to level 0,
//! where tables may overlap, so it obstructs no other table, and no compaction picks it again.
//! Cells are merged by version, not by level, so no read result changes.
//!
//! **Caveats.** The set of quarantined tables is in memory only: after a restart the next failed
//! read detects the damage again. Only the manifest of a checkpoint lists them, and tables listed
//! there are suspected from the start. Cells that a quarantined table shadows, and its own shadowed
//! cells, keep their disk space. Only the host can have other copies of the lost cells.

use crate::Error;
use crate::damaged::{DamagedTable, QuarantinedTable};
use crate::engine::Engine;
use crate::manifest::VersionEdit;
use crate::sstable::{Table, TableId, UnreadableRange, table_id_of_path};
use crate::view::View;
use std::path::Path;
use std::sync::Arc;

impl Engine {
    /// The quarantined tables.
    pub fn damaged_tables(&self) -> Vec<DamagedTable> {
        let quarantined = self.shared.jobs.damaged.quarantined.lock();
        let described = |(&id, table): (&TableId, &QuarantinedTable)| DamagedTable {
            id,
            path: table.path.clone(),
            lost: table.lost.clone(),
            dead_from: table.dead_from,
        };
        quarantined.iter().map(described).collect()
    }

    /// Reports the error of a read. If it is about a table, [`Engine::step_healing`] scans that
    /// table. [`Engine::get`] and [`Engine::try_get`] report their errors themselves.
    pub fn note_failed_read(&self, error: &Error) {
        if let Some(path) = error.unreadable() {
            self.suspect(path);
        }
    }

    /// Confirms that all cells that may have been lost with these ranges are durable in this
    /// engine: the table may be replaced by its readable part. Has no effect when the lost ranges
    /// of the table differ.
    pub fn allow_replacement(&self, id: TableId, lost: &[UnreadableRange]) {
        let mut quarantined = self.shared.jobs.damaged.quarantined.lock();
        if let Some(table) = quarantined.get_mut(&id).filter(|table| table.lost == lost) {
            table.is_replaceable = true;
            self.shared.signals.compact.notify();
        }
    }

    /// Marks the table of a file that could not be read. Returns `false` when the file is not a
    /// table.
    pub(crate) fn suspect(&self, path: &Path) -> bool {
        let Some(id) = table_id_of_path(path) else { return false };
        let damaged = &self.shared.jobs.damaged;
        if !damaged.quarantined.lock().contains_key(&id) && damaged.suspected.lock().insert(id) {
            self.shared.signals.compact.notify();
        }
        true
    }

    /// Quarantines a table, which no running compaction uses and none may use any more.
    pub(crate) fn quarantine(
        &self,
        level: usize,
        table: &Table,
        lost: Vec<UnreadableRange>,
    ) -> Result<(), Error> {
        self.move_to_level0(level, table)?;
        tracing::error!(
            path = %table.path().display(),
            ranges_lost = lost.len(),
            "a table cannot be read back: it is quarantined, and compaction continues without it"
        );
        let is_replaceable = lost.is_empty();
        let (path, dead_from) = (table.path().to_owned(), table.meta().droppable_from);
        let entry = QuarantinedTable { path, dead_from, lost, is_replaceable };
        self.shared.jobs.damaged.quarantined.lock().insert(table.id(), entry);
        Ok(())
    }

    /// A live table with its level.
    pub(crate) fn live_table(&self, id: TableId) -> Option<(usize, Arc<Table>)> {
        let view = self.shared.view.load();
        let mut tables = view.levels.iter();
        tables.find(|(_, table)| table.id() == id).map(|(level, table)| (level, Arc::clone(table)))
    }

    fn move_to_level0(&self, level: usize, table: &Table) -> Result<(), Error> {
        if level == 0 {
            return Ok(());
        }
        let edit = VersionEdit {
            removed: vec![(level as u8, table.id())],
            added: vec![(0, (**table.meta()).clone())],
            ..VersionEdit::default()
        };
        let installed = self.shared.install_edit(&edit, View::with_levels);
        installed.map_err(|error| self.edit_failed(&edit, error))
    }
}
