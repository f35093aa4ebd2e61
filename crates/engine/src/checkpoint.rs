//! Checkpoints: a second directory that opens as an engine with what this one holds.
//!
//! **Promise.** When [`Engine::checkpoint`] returns, its directory is durable and holds all that was acknowledged
//! before the call, and of later writes all up to one moment or nothing: no half batch, no write without those that
//! were acknowledged before it. It opens with [`Engine::open`], and [`verify`](crate::verify) checks it, like any
//! other. Writes, reads and jobs go on meanwhile. Whatever happens, this engine is as it was, and the directory is
//! there whole or not at all.
//!
//! **Mechanism.** Memtables are flushed, so that all of the promise is in tables. Those of one moment are *linked*
//! into the new directory: tables never change, so a second name is as good as a copy, and costs neither time nor
//! space. The view of that moment is held until the end, so that no file goes before it is linked. A manifest is
//! written that names exactly these tables, beside a log with nothing to replay. All of this happens under a name
//! of its own (`<dir>.tmp`); once it is durable, one rename makes it the checkpoint.
//!
//! Nothing that goes on from a checkpoint collides with what is in it: its manifest gives out greater table ids than
//! any of its tables has, and sequences begin anew at each start, for tables hold none.
//!
//! A table that is set aside as damaged is linked as any other: what can be read of it may be nowhere else. The manifest
//! of the checkpoint names it as damaged, so that an engine that opens the checkpoint looks at it at once, and
//! [`verify`](crate::verify) says since when it is known.
//!
//! **Caveats.** The directory must be on the file system of the data. What compaction removes here keeps its
//! space for as long as a checkpoint names it. Two engines that go on from one checkpoint (or the one that was
//! checkpointed and the one that was restored) give the same table ids to different tables: a file is known by its
//! name only within one line of them. A crash, or a failure that even the clearing up does not survive, leaves
//! `<dir>.tmp` behind; the next checkpoint of the same name begins by removing it.

use crate::engine::{Engine, Shared};
use crate::manifest::{Levels, Manifest, VersionEdit};
use crate::paths::Paths;
use crate::sstable::{TableId, file_name, table_of_file};
use crate::{Error, wal};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// What a checkpoint holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointSummary {
    /// Its tables, in no particular order.
    pub tables: Vec<CheckpointTable>,
    /// Length of their files together, in bytes.
    pub bytes: u64,
    /// Cells in them: those of a key on different levels, tombstones and expired values all count.
    pub cells: u64,
}

/// A table of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointTable {
    /// The name of its file in `tables/` below the directory of the checkpoint.
    pub file_name: String,
    /// The length of the file, in bytes.
    pub file_bytes: u64,
    /// The table cannot be read back: the engine had set it aside before the checkpoint.
    pub is_damaged: bool,
}

impl Engine {
    /// Makes `dir`, which must not be there, a directory of an engine that holds what this one does. Directories
    /// above it are made if need be. One checkpoint is made at a time; others wait. It waits for the disk.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `dir` is there, or on another file system; [`Error::Full`], [`Error::Io`]. Unless it
    /// is [`Error::Poisoned`], this engine goes on as if nothing had been asked.
    pub fn checkpoint(&self, dir: &Path) -> Result<CheckpointSummary, Error> {
        let _one_at_a_time = self.shared.checkpointing.lock();
        refuse_taken(&self.shared, dir)?;
        self.flush()?;
        let view = self.shared.view.load_full();
        // Read after the levels: no table of them has this id or a greater one.
        let next_table_id = TableId(self.shared.next_table_id.load(Ordering::Acquire));
        let damaged = damaged_in(&self.shared, &view.levels);
        if !damaged.is_empty() {
            tracing::warn!(
                dir = %dir.display(),
                tables = damaged.len(),
                "the checkpoint has tables that cannot be read back"
            );
        }
        let unfinished = unfinished_path(dir);
        remove_leftovers(&self.shared, &unfinished)?;
        let made = fill(&self.shared, &unfinished, &view.levels, next_table_id, &damaged)
            .and_then(|()| name(&self.shared, &unfinished, dir));
        if let Err(error) = made {
            let _removed_by_the_next = remove_leftovers(&self.shared, &unfinished);
            return Err(error);
        }
        Ok(summary_of(&view.levels, &damaged))
    }

    /// Takes back the tables of a checkpoint of this engine that only the checkpoint still names, before it is removed: they
    /// are removed one after the other, as all that is obsolete. Their files stay whole for processes that have them open.
    /// What cannot be taken is left where it is, and so is all that symbolic links lead to.
    pub fn reclaim_checkpoint(&self, dir: &Path) {
        let Shared { env, paths, obsolete, checkpointing, .. } = &*self.shared;
        let _one_at_a_time = checkpointing.lock();
        let of_checkpoint = Paths::new(dir).tables();
        if [dir, &of_checkpoint].iter().any(|dir| !matches!(env.fs.is_symlink(dir), Ok(false))) {
            return;
        }
        for name in env.fs.read_dir(&of_checkpoint).unwrap_or_default() {
            let from = of_checkpoint.join(name);
            let Some(id) = table_of_file(&from) else { continue };
            let to = paths.table(id);
            let is_nobodys =
                matches!(env.fs.link_count(&from), Ok(1)) && matches!(env.fs.exists(&to), Ok(false));
            // In between no name can come: only live tables are linked, and each of these has its name here.
            if is_nobodys && env.fs.rename(&from, &to).is_ok() {
                obsolete.mark_shared(id);
                obsolete.add(id);
            }
        }
    }
}

/// Tables of `levels` that are set aside.
fn damaged_in(shared: &Shared, levels: &Levels) -> BTreeSet<TableId> {
    let quarantined = shared.jobs.damaged.quarantined.lock();
    levels.iter().map(|(_, table)| table.id()).filter(|id| quarantined.contains_key(id)).collect()
}

fn refuse_taken(shared: &Shared, dir: &Path) -> Result<(), Error> {
    match shared.env.fs.exists(dir) {
        Ok(false) => Ok(()),
        Ok(true) => {
            let dir = dir.display();
            Err(Error::Invalid(format!("{dir} is there already: a checkpoint makes its directory itself")))
        }
        Err(error) => Err(Error::io("look for", dir, error)),
    }
}

/// Where a checkpoint is made that will be renamed to `dir`.
fn unfinished_path(dir: &Path) -> PathBuf {
    dir.with_added_extension("tmp")
}

fn remove_leftovers(shared: &Shared, unfinished: &Path) -> Result<(), Error> {
    match shared.env.fs.remove_dir_all(unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", unfinished, error)),
        _ => Ok(()),
    }
}

/// Makes `dir` durably the directory of an engine with these tables.
fn fill(
    shared: &Shared,
    dir: &Path,
    levels: &Levels,
    next_table_id: TableId,
    damaged: &BTreeSet<TableId>,
) -> Result<(), Error> {
    let fs = &shared.env.fs;
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

/// Gives the finished directory its name, durably.
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
        summary.tables.push(CheckpointTable {
            file_name: file_name(meta.id),
            file_bytes: meta.file_bytes,
            is_damaged: damaged.contains(&meta.id),
        });
        summary.bytes += meta.file_bytes;
        summary.cells += meta.cells;
    }
    summary
}
