//! A directory that keeps the backups of one node.
//!
//! **Promise.** A backup is there when its manifest is, and then all of its files are, durably, whatever crashed while
//! it was made. What is being made or removed never touches another backup. One process at a time works on a
//! repository.
//!
//! **Mechanism.** Files of a backup are *objects*, each with a name of its own in one directory, so that backups share
//! them. An object is written under an unfinished name, synced, read back, and renamed. When all are there and their
//! directory is synced, the manifest is written in the same way. So an object that has its name is whole, and whoever
//! finds objects that no manifest names (an interrupted backup left them) may go on with them or remove them.
//!
//! **Caveats.** What is read back comes from the system's cache as a rule: that shows that the right bytes were
//! written, not that the disk keeps them. [`verify`](crate::verify_repository) some time later does.

mod held;
mod manifest;
mod object;
mod retention;
mod take;

pub use manifest::{BackupFile, BackupNumber, Manifest};
pub use retention::Removed;
pub use take::Taken;

use crate::error::CtlError;
use crate::files::{self, UNFINISHED};
use env::{DirLock, Env, Fs};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Says what the directory is.
const MARKER: &str = "veche-backups";
const MARKER_TEXT: &[u8] = b"veche-backups 1\n";
const MARKER_BYTES_MAX: u64 = 1 << 10;
const LOCK: &str = "LOCK";
const MANIFESTS: &str = "backups";
const OBJECTS: &str = "objects";
/// A longer file is no manifest: it would name millions of tables.
const MANIFEST_BYTES_MAX: u64 = 1 << 30;

/// The backups of one node, held by this process.
pub struct Repository {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    /// `None`: the directory cannot be written by this process.
    _lock: Option<Box<dyn DirLock>>,
}

impl Repository {
    /// The repository in `dir`, which is made where it is missing or empty.
    ///
    /// # Errors
    /// [`CtlError::NotARepository`]: it holds something else; [`CtlError::Locked`]; [`CtlError::Io`].
    pub fn open_or_create(env: &Env, dir: &Path) -> Result<Self, CtlError> {
        let fs = &*env.fs;
        fs.create_dir_all_durably(dir).map_err(CtlError::io("make the directory", dir))?;
        if !fs.exists(&dir.join(MARKER)).map_err(CtlError::io("look into", dir))? {
            let is_own = |name: &String| name == LOCK || *name == format!("{MARKER}{UNFINISHED}");
            if !files::names(fs, dir)?.iter().all(is_own) {
                return Err(CtlError::NotARepository { path: dir.to_owned(), is_empty: false });
            }
        }
        let repository = Self { fs: Arc::clone(&env.fs), dir: dir.to_owned(), _lock: Some(lock(fs, dir)?) };
        if !repository.is_marked()? {
            files::replace(fs, dir, MARKER, MARKER_TEXT)?;
        }
        for part in [repository.manifests(), repository.objects()] {
            fs.create_dir_all(&part).map_err(CtlError::io("make the directory", &part))?;
        }
        fs.sync_dir(dir).map_err(CtlError::io("sync", dir))?;
        Ok(repository)
    }

    /// The repository in `dir`, to read from. It may be on a medium that cannot be written.
    ///
    /// # Errors
    /// [`CtlError::NotARepository`], [`CtlError::Locked`], [`CtlError::Io`].
    pub fn open(env: &Env, dir: &Path) -> Result<Self, CtlError> {
        let fs = &*env.fs;
        let mut repository = Self { fs: Arc::clone(&env.fs), dir: dir.to_owned(), _lock: None };
        if !repository.is_marked()? {
            let is_empty = files::names(fs, dir)?.is_empty();
            return Err(CtlError::NotARepository { path: dir.to_owned(), is_empty });
        }
        repository._lock = match lock(fs, dir) {
            // Nobody else changes it then either, or at least nobody of this machine.
            Err(CtlError::Io { source, .. })
                if matches!(
                    source.kind(),
                    io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied
                ) =>
            {
                None
            }
            locked => Some(locked?),
        };
        Ok(repository)
    }

    /// The backups that are there, from the oldest to the newest.
    ///
    /// # Errors
    /// [`CtlError::Io`].
    pub fn backups(&self) -> Result<Vec<BackupNumber>, CtlError> {
        let names = files::names(&*self.fs, &self.manifests())?;
        let mut numbers: Vec<BackupNumber> = names
            .iter()
            .filter_map(|name| name.parse().ok().filter(|number: &BackupNumber| number.to_string() == *name))
            .collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The number of the backup `wanted`, or of the newest.
    ///
    /// # Errors
    /// [`CtlError::NoBackup`], [`CtlError::Io`].
    pub fn find(&self, wanted: Option<BackupNumber>) -> Result<BackupNumber, CtlError> {
        let there = self.backups()?;
        let found = match wanted {
            Some(wanted) => there.iter().find(|number| **number == wanted),
            None => there.last(),
        };
        found.copied().ok_or_else(|| CtlError::NoBackup {
            path: self.dir.clone(),
            wanted: wanted.map(|number| number.to_string()),
            there: there.iter().map(ToString::to_string).collect(),
        })
    }

    /// What the backup of this number is made of.
    ///
    /// # Errors
    /// [`CtlError::Damaged`], [`CtlError::Io`].
    pub fn manifest(&self, number: BackupNumber) -> Result<Manifest, CtlError> {
        let path = self.manifests().join(number.to_string());
        let bytes = files::read_small(&*self.fs, &path, MANIFEST_BYTES_MAX)?;
        let manifest = Manifest::decode(&bytes).map_err(|detail| CtlError::damaged(&path, detail))?;
        if manifest.number != number {
            return Err(CtlError::damaged(&path, format!("it is that of backup {}", manifest.number)));
        }
        Ok(manifest)
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn fs(&self) -> &Arc<dyn Fs> {
        &self.fs
    }

    /// Where an object is, or would be.
    pub(crate) fn object(&self, name: &str) -> PathBuf {
        self.objects().join(name)
    }

    /// The names of all objects that are whole, sorted.
    pub(crate) fn object_names(&self) -> Result<Vec<String>, CtlError> {
        let mut names = files::names(&*self.fs, &self.objects())?;
        names.retain(|name| !name.ends_with(UNFINISHED));
        Ok(names)
    }

    fn manifests(&self) -> PathBuf {
        self.dir.join(MANIFESTS)
    }

    fn objects(&self) -> PathBuf {
        self.dir.join(OBJECTS)
    }

    fn is_marked(&self) -> Result<bool, CtlError> {
        let path = self.dir.join(MARKER);
        if !self.fs.exists(&path).map_err(CtlError::io("look for", &path))? {
            return Ok(false);
        }
        if files::read_small(&*self.fs, &path, MARKER_BYTES_MAX)? == MARKER_TEXT {
            return Ok(true);
        }
        Err(CtlError::damaged(
            &path,
            "it does not say \"veche-backups 1\", or is of another version than this build reads",
        ))
    }
}

fn lock(fs: &dyn Fs, dir: &Path) -> Result<Box<dyn DirLock>, CtlError> {
    let path = dir.join(LOCK);
    fs.lock(&path).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => CtlError::Locked { path: dir.to_owned() },
        _ => CtlError::io("lock", &path)(error),
    })
}
