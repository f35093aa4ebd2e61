//! Tables that cannot be read back.
//!
//! **Promise.** A table of which a block is damaged costs what is in that block, and nothing else: reads of those keys
//! fail and name the file, all others go on, and compaction goes on without the table. Nothing of it is given up
//! before the host says that it has what was lost from elsewhere ([`Engine::allow_replacement`]); then [`heal`](crate::heal)
//! replaces the table, and reads succeed again.
//!
//! **Mechanism.** Whoever cannot read a table makes it *suspected*, and it is looked at from end to end. One that is
//! damaged is *set aside*, with the ranges of keys that are lost. It moves to level 0, where tables may overlap and so
//! none is in the way of others, and no plan takes it again. As cells are merged by version, not by level, no answer
//! changes.
//!
//! **Caveats.** Which tables are set aside is known until the engine is closed; the next one finds out anew, when it
//! comes to what is damaged. Only the manifest of a checkpoint names them: they are suspected from the start. What such a table hides in others, and what others hide in it, keeps its room. Only the
//! host can have other copies of what was lost.

use crate::Error;
use crate::engine::Engine;
use crate::manifest::VersionEdit;
use crate::sstable::{LostKeys, Table, TableId, table_of_file};
use crate::view::View;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stdx::WallTime;

/// What is known of tables that cannot be read.
#[derive(Debug, Default)]
pub(crate) struct DamagedTables {
    /// Those that are to be looked at.
    pub(crate) suspected: Mutex<BTreeSet<TableId>>,
    pub(crate) quarantined: Mutex<BTreeMap<TableId, QuarantinedTable>>,
}

/// A table that was set aside.
#[derive(Debug)]
pub(crate) struct QuarantinedTable {
    path: PathBuf,
    dead_from: Option<WallTime>,
    pub(crate) lost: Vec<LostKeys>,
    /// The host has what was lost, if anything was.
    pub(crate) is_replaceable: bool,
}

/// A table that cannot be read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedTable {
    /// Which one.
    pub id: TableId,
    /// Its file.
    pub path: PathBuf,
    /// Where cells are lost, in key order.
    pub lost: Vec<LostKeys>,
    /// When the first of its cells was or will be dead; `None` when there is none. What such a cell hid elsewhere in this
    /// engine is seen again without it.
    pub dead_from: Option<WallTime>,
}

impl Engine {
    /// The tables that were set aside because they cannot be read.
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

    /// Takes note of an error of a read. If it is one of a table, that is looked at by
    /// [`Engine::step_healing`]. Reads of single keys do so themselves.
    pub fn note_failed_read(&self, error: &Error) {
        if let Some(path) = error.unreadable() {
            self.suspect(path);
        }
    }

    /// The host has all cells that may have been lost with these ranges of a table from elsewhere, durable in this
    /// engine: the table may be replaced by what can be read of it. Nothing happens when the table has lost others.
    pub fn allow_replacement(&self, id: TableId, lost: &[LostKeys]) {
        let mut quarantined = self.shared.jobs.damaged.quarantined.lock();
        if let Some(table) = quarantined.get_mut(&id).filter(|table| table.lost == lost) {
            table.is_replaceable = true;
            self.shared.signals.compact.notify();
        }
    }

    /// A table could not be read. `false`: the file is none of a table.
    pub(crate) fn suspect(&self, path: &Path) -> bool {
        let Some(id) = table_of_file(path) else { return false };
        let damaged = &self.shared.jobs.damaged;
        if !damaged.quarantined.lock().contains_key(&id) && damaged.suspected.lock().insert(id) {
            self.shared.signals.compact.notify();
        }
        true
    }

    /// Goes on without a table, which no plan has and none is to have any more.
    pub(crate) fn quarantine(&self, level: usize, table: &Table, lost: Vec<LostKeys>) -> Result<(), Error> {
        self.move_to_level0(level, table)?;
        tracing::error!(
            path = %table.path().display(),
            ranges_lost = lost.len(),
            "a table cannot be read back: it is set aside, and compaction goes on without it"
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
