//! Tables that cannot be read back.
//!
//! **Promise.** A table of which a block is damaged costs what is in that block, and nothing else: reads of those keys
//! fail and name the file, all others go on, and compaction goes on without the table. Nothing of it is given up: what
//! else it holds is served, and the file stays for whoever can make something of it.
//!
//! **Mechanism.** A compaction that cannot read a table is tried again; after [`TRIES_MAX`] times the table is *set
//! aside*. It moves to level 0, where tables may overlap and so none is in the way of others, and no plan takes it
//! again. As cells are merged by version, not by level, no answer changes.
//!
//! **Caveats.** Which tables are set aside is known until the engine is closed; the next one finds out anew. What such
//! a table hides in others, and what others hide in it, keeps its room. Only the host can have other copies of what
//! was lost.

use crate::Error;
use crate::engine::Engine;
use crate::manifest::VersionEdit;
use crate::sstable::{Table, TableId};
use crate::view::View;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// After so many compactions that could not read it, a table is set aside.
const TRIES_MAX: u32 = 3;

/// What is known of tables that cannot be read.
#[derive(Debug, Default)]
pub(crate) struct Damaged {
    /// How often each could not be read.
    failures: Mutex<BTreeMap<TableId, u32>>,
    set_aside: Mutex<Vec<PathBuf>>,
}

/// The file that could not be read back, if that is what went wrong.
pub(crate) fn unreadable(error: &Error) -> Option<&Path> {
    match error {
        Error::Corrupt { path, .. } | Error::Io { operation: "read" | "stat", path, .. } => Some(path),
        _ => None,
    }
}

impl Engine {
    /// The files of tables that were set aside because they cannot be read.
    pub fn tables_set_aside(&self) -> Vec<PathBuf> {
        self.shared.jobs.damaged.set_aside.lock().clone()
    }

    /// A compaction that has ended could not read a file. `false`: it is none of a table.
    ///
    /// # Errors
    /// As [`Engine::step_compaction`], when the levels cannot be changed.
    pub(crate) fn note_unreadable(&self, path: &Path) -> Result<bool, Error> {
        let levels = Arc::clone(&self.shared.view.load().levels);
        let Some((level, table)) = levels.iter().find(|(_, table)| table.path() == path) else {
            return Ok(false);
        };
        let failures = {
            let mut failures = self.shared.jobs.damaged.failures.lock();
            let failures = failures.entry(table.id()).or_default();
            *failures += 1;
            *failures
        };
        if failures >= TRIES_MAX && self.set_aside(table) {
            self.bring_up(level, table)?;
            tracing::error!(
                path = %path.display(),
                "a table cannot be read back: it is set aside, and compaction goes on without it"
            );
            self.shared.jobs.damaged.set_aside.lock().push(path.to_owned());
        }
        Ok(true)
    }

    /// `false`: another compaction has it, and will find out itself.
    fn set_aside(&self, table: &Table) -> bool {
        let mut busy = self.shared.jobs.busy.lock();
        let is_free = !busy.has(table.id());
        if is_free {
            busy.set_aside(table.id());
        }
        is_free
    }

    fn bring_up(&self, level: usize, table: &Table) -> Result<(), Error> {
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
