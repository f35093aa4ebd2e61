//! Checkpoints: a second directory that opens as an engine with the same contents.
//!
//! **Promise.** When [`Engine::checkpoint`] returns, its directory is durable. It holds all writes
//! that were acknowledged before the call, and a prefix of the later ones: no partial batch, and no
//! write without those acknowledged before it. An ingest that commits meanwhile may be in the
//! checkpoint without writes that were acknowledged just before. [`Engine::open`] opens it and
//! [`verify`](crate::verify) checks it like any other directory. Writes, reads and jobs continue
//! meanwhile. On any failure this engine is unchanged, and the directory exists completely or not
//! at all.
//!
//! **Mechanism.** Memtables are flushed, so that all promised writes are in tables. The tables of
//! one view are hard-linked into the new directory: tables are immutable, so a second name equals a
//! copy and costs neither time nor space. The view is held until the end, so that no file is
//! removed before it is linked. A manifest that names exactly these tables is written, beside a log
//! with nothing to replay. All of this happens in `<dir>.tmp`; once it is durable, one rename makes
//! it the checkpoint.
//!
//! An engine that continues from a checkpoint does not collide with its contents. The manifest
//! assigns table ids greater than those of its tables. Sequences start anew at each open, as tables
//! hold none.
//!
//! A quarantined table is linked like any other: its readable part may exist nowhere else. The
//! manifest of the checkpoint lists it as damaged. An engine that opens the checkpoint therefore
//! examines it at once, and [`verify`](crate::verify) reports that the damage was known when the
//! checkpoint was made.
//!
//! **Caveats.** The directory must be on the file system of the data. Files that compaction removes
//! here keep their disk space for as long as a checkpoint names them. Two engines that continue
//! from one checkpoint (or the original and a restored one) give the same table ids to different
//! tables: a file name identifies a table only within one lineage. A crash, or a failure of the
//! cleanup itself, leaves `<dir>.tmp` behind; the next checkpoint of the same name removes it
//! first.

use crate::engine::{Engine, Shared};
use crate::manifest::{Levels, Manifest, RecoveredState, VersionEdit};
use crate::paths::Paths;
use crate::sstable::{TableId, TableMeta, file_name, table_id_of_path};
use crate::view::View;
use crate::{Error, wal};
use env::Fs;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Contents of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointSummary {
    /// The tables, in no particular order.
    pub tables: Vec<CheckpointTable>,
    /// Total length of the table files, in bytes.
    pub bytes: u64,
    /// Cells in the tables. Cells of one key on different levels, tombstones and expired values all
    /// count.
    pub cells: u64,
}

/// A table of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointTable {
    /// Name of the file in `tables/` below the checkpoint's directory.
    pub file_name: String,
    /// The length of the file, in bytes.
    pub file_bytes: u64,
    /// Whether the table cannot be read back: the engine had quarantined it before the checkpoint.
    pub is_damaged: bool,
}

/// The live tables of the engine in `dir`, which is not open: a checkpoint or a copy of one. Reads
/// the manifest, and no table.
///
/// # Errors
/// [`Error::Lost`] when there is no manifest; [`Error::Corrupt`] and [`Error::Io`] of the manifest.
pub fn checkpoint_tables(fs: &Arc<dyn Fs>, dir: &Path) -> Result<Vec<CheckpointTable>, Error> {
    let RecoveredState { tables, damaged, .. } = Manifest::inspect(fs, dir)?;
    Ok(tables.iter().map(|(_, meta)| CheckpointTable::of(meta, &damaged)).collect())
}

impl CheckpointTable {
    fn of(meta: &TableMeta, damaged: &BTreeSet<TableId>) -> Self {
        let is_damaged = damaged.contains(&meta.id);
        Self { file_name: file_name(meta.id), file_bytes: meta.file_bytes, is_damaged }
    }
}

impl Engine {
    /// Makes `dir`, which must not exist, the directory of an engine with the contents of this one.
    /// Missing parent directories are created. Only one checkpoint is made at a time; other calls
    /// wait. Blocks on disk I/O.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `dir` exists or is on another file system; [`Error::Full`],
    /// [`Error::Io`]. Unless the error is [`Error::Poisoned`], this engine is unaffected.
    pub fn checkpoint(&self, dir: &Path) -> Result<CheckpointSummary, Error> {
        let _one_at_a_time = self.shared.checkpointing.lock();
        refuse_taken(&self.shared, dir)?;
        self.flush()?;
        let view = self.shared.view.load_full();
        // Read after the levels: none of their tables has this id or a greater one.
        let next_table_id = TableId(self.shared.next_table_id.load(Ordering::Acquire));
        let damaged = damaged_in(&self.shared, &view.levels);
        if !damaged.is_empty() {
            tracing::warn!(
                dir = %dir.display(),
                tables = damaged.len(),
                "the checkpoint contains tables that cannot be read back"
            );
        }
        let unfinished = unfinished_path(dir);
        remove_leftovers(&self.shared, &unfinished)?;
        let made = fill(&self.shared, &unfinished, &view, next_table_id, &damaged)
            .and_then(|()| name(&self.shared, &unfinished, dir));
        if let Err(error) = made {
            let _removed_by_the_next = remove_leftovers(&self.shared, &unfinished);
            return Err(error);
        }
        Ok(summary_of(&view.levels, &damaged))
    }

    /// Moves the tables that only the checkpoint `dir` of this engine still names back to this
    /// engine, for removal. To be called before the directory of the checkpoint is removed.
    ///
    /// The files are removed one after the other, like other obsolete files. Processes that have
    /// them open keep reading whole files. Files that cannot be moved stay where they are, and
    /// symbolic links are not followed.
    pub fn reclaim_checkpoint(&self, dir: &Path) {
        let Shared { env, paths, obsolete, checkpointing, .. } = &*self.shared;
        let _one_at_a_time = checkpointing.lock();
        let of_checkpoint = Paths::new(dir).tables();
        if [dir, &of_checkpoint].iter().any(|dir| !matches!(env.fs.is_symlink(dir), Ok(false))) {
            return;
        }
        for name in env.fs.read_dir(&of_checkpoint).unwrap_or_default() {
            let from = of_checkpoint.join(name);
            let Some(id) = table_id_of_path(&from) else { continue };
            let to = paths.table(id);
            let is_nobodys =
                matches!(env.fs.link_count(&from), Ok(1)) && matches!(env.fs.exists(&to), Ok(false));
            // No name appears in between: only live tables are linked, and those have a name here.
            if is_nobodys && env.fs.rename(&from, &to).is_ok() {
                obsolete.mark_shared(id);
                obsolete.add(id);
            }
        }
    }
}

/// The quarantined tables of `levels`.
fn damaged_in(shared: &Shared, levels: &Levels) -> BTreeSet<TableId> {
    let quarantined = shared.jobs.damaged.quarantined.lock();
    levels.iter().map(|(_, table)| table.id()).filter(|id| quarantined.contains_key(id)).collect()
}

fn refuse_taken(shared: &Shared, dir: &Path) -> Result<(), Error> {
    match shared.env.fs.exists(dir) {
        Ok(false) => Ok(()),
        Ok(true) => {
            let dir = dir.display();
            Err(Error::Invalid(format!("{dir} exists already: a checkpoint creates its directory itself")))
        }
        Err(error) => Err(Error::io("look for", dir, error)),
    }
}

/// The path at which a checkpoint is built before it is renamed to `dir`.
fn unfinished_path(dir: &Path) -> PathBuf {
    dir.with_added_extension("tmp")
}

fn remove_leftovers(shared: &Shared, unfinished: &Path) -> Result<(), Error> {
    match shared.env.fs.remove_dir_all(unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", unfinished, error)),
        _ => Ok(()),
    }
}

/// Makes `dir` the durable directory of an engine with these tables.
fn fill(
    shared: &Shared,
    dir: &Path,
    view: &View,
    next_table_id: TableId,
    damaged: &BTreeSet<TableId>,
) -> Result<(), Error> {
    let fs = &shared.env.fs;
    let levels = &view.levels;
    let paths = Paths::new(dir);
    let tables = paths.tables();
    fs.create_dir_all_durably(&tables).map_err(|error| Error::io("make", &tables, error))?;
    for (_, table) in levels.iter() {
        shared.obsolete.mark_shared(table.id());
        link(shared, table.path(), &paths.table(table.id()))?;
    }
    fs.sync_dir(&tables).map_err(|error| Error::io("sync", &tables, error))?;
    let wal_floor = wal::begin(fs, &paths.wal())?;
    let added = levels.iter().map(|(level, table)| (level as u8, (**table.meta()).clone())).collect();
    let live = VersionEdit {
        added,
        next_table_id: Some(next_table_id),
        wal_floor: Some(wal_floor),
        damaged: damaged.iter().copied().collect(),
        disowned: view.filter.ranges().to_vec(),
        ..VersionEdit::default()
    };
    Manifest::begin(fs, dir, &live)
}

fn link(shared: &Shared, from: &Path, to: &Path) -> Result<(), Error> {
    shared.env.fs.hard_link(from, to).map_err(|error| match error.kind() {
        io::ErrorKind::CrossesDevices => Error::Invalid(format!(
            "{} is on another file system than {}: a checkpoint shares its files with the data, so it must be \
             on the same",
            to.display(),
            from.display()
        )),
        _ => Error::io("link", to, error),
    })
}

/// Renames the finished directory to `dir`, durably.
fn name(shared: &Shared, unfinished: &Path, dir: &Path) -> Result<(), Error> {
    let fs = &shared.env.fs;
    fs.rename(unfinished, dir).map_err(|error| Error::io("rename", unfinished, error))?;
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs.sync_dir(parent).map_err(|error| {
        let _may_come_back_whole = fs.remove_dir_all(dir);
        Error::io("sync", parent, error)
    })
}

fn summary_of(levels: &Levels, damaged: &BTreeSet<TableId>) -> CheckpointSummary {
    let mut summary = CheckpointSummary::default();
    for (_, table) in levels.iter() {
        let meta = table.meta();
        summary.tables.push(CheckpointTable::of(meta, damaged));
        summary.bytes += meta.file_bytes;
        summary.cells += meta.cells;
    }
    summary
}
