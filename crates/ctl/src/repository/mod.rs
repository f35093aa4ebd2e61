//! Backup repository: a directory with the backups of one node.
//!
//! **Promise.** A backup exists if its manifest exists, and then all of its files are durable,
//! whatever crashed while it was taken. Taking or removing one backup never affects another. One
//! process at a time uses a repository.
//!
//! **Mechanism.** Files of a backup are stored as *objects* with unique names in one directory, so
//! that backups share them. An object is written under a temporary name, synced, read back, and
//! renamed. When all objects are present and their directory is synced, the manifest is written in
//! the same way. An object with its final name is therefore complete. Objects that no manifest
//! names were left by an interrupted backup; they may be reused or removed.
//!
//! **Caveats.** The data that is read back usually comes from the page cache: this proves that the
//! right bytes were written, not that the disk keeps them. A later
//! [`verify`](crate::verify_repository) proves that.

mod add_backup;
mod checkpoint_note;
mod manifest;
mod object;
mod retention;

pub use add_backup::AddedBackup;
pub use manifest::{BackupFile, BackupLayout, BackupManifest, BackupNumber};
pub use retention::RetentionReport;

use crate::error::CtlError;
use crate::files::{self, UNFINISHED};
use env::{DirLock, Env, Fs};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// File that marks the directory as a repository.
const MARKER: &str = "veche-backups";
const MARKER_TEXT: &[u8] = b"veche-backups 1\n";
const MARKER_BYTES_MAX: u64 = 1 << 10;
const LOCK: &str = "LOCK";
const MANIFESTS: &str = "backups";
const OBJECTS: &str = "objects";
/// Maximum length of a manifest, in bytes: a longer one would name millions of tables.
const MANIFEST_BYTES_MAX: u64 = 1 << 30;

/// The backups of one node, locked by this process.
pub struct Repository {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    /// Lock on the directory; `None` if this process cannot write to it.
    _lock: Option<Box<dyn DirLock>>,
}

impl Repository {
    /// Opens the repository in `dir`. Creates it if the directory is missing or empty.
    ///
    /// # Errors
    /// [`CtlError::RepositoryNotEmpty`], [`CtlError::Locked`], [`CtlError::Io`].
    pub fn open_or_create(env: &Env, dir: &Path) -> Result<Self, CtlError> {
        let fs = &*env.fs;
        fs.create_dir_all_durably(dir).map_err(CtlError::io("make the directory", dir))?;
        if !fs.exists(&dir.join(MARKER)).map_err(CtlError::io("look into", dir))? {
            let is_own = |name: &String| name == LOCK || *name == format!("{MARKER}{UNFINISHED}");
            if !files::names(fs, dir)?.iter().all(is_own) {
                return Err(CtlError::RepositoryNotEmpty { path: dir.to_owned() });
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

    /// Opens the repository in `dir` for reading. It may be on a read-only medium.
    ///
    /// # Errors
    /// [`CtlError::NotARepository`], [`CtlError::Locked`], [`CtlError::Io`].
    pub fn open(env: &Env, dir: &Path) -> Result<Self, CtlError> {
        let fs = &*env.fs;
        let mut repository = Self { fs: Arc::clone(&env.fs), dir: dir.to_owned(), _lock: None };
        if !repository.is_marked()? {
            return Err(CtlError::NotARepository { path: dir.to_owned() });
        }
        repository._lock = match lock(fs, dir) {
            // A directory that is not writable here cannot be changed by another process either, at
            // least not on this machine.
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

    /// Existing backups, from the oldest to the newest.
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

    /// Number of the backup `wanted`, or of the newest one.
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

    /// Reads the manifest of a backup.
    ///
    /// # Errors
    /// [`CtlError::Damaged`], [`CtlError::Io`].
    pub fn manifest(&self, number: BackupNumber) -> Result<BackupManifest, CtlError> {
        let path = self.manifests().join(number.to_string());
        let bytes = files::read_small(&*self.fs, &path, MANIFEST_BYTES_MAX)?;
        let manifest = BackupManifest::decode(&bytes).map_err(|detail| CtlError::damaged(&path, detail))?;
        if manifest.number != number {
            return Err(CtlError::damaged(&path, format!("it is that of backup {}", manifest.number)));
        }
        Ok(manifest)
    }

    /// Directory of the repository.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn fs(&self) -> &Arc<dyn Fs> {
        &self.fs
    }

    /// Path of an object, which need not exist.
    pub(crate) fn object(&self, name: &str) -> PathBuf {
        self.objects().join(name)
    }

    /// Sorted names of all complete objects.
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
