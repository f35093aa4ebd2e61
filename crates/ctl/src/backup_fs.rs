//! A backup presented as the data directory that it would be restored to, without copying.

use crate::repository::{BackupManifest, Repository};
use env::{DirLock, File, Fs, IoCounters, OpenMode};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Path at which a mounted backup appears.
pub(crate) const ROOT: &str = "/";

/// Read-only file system with the files of one backup, at [`ROOT`].
pub(crate) struct BackupFs {
    fs: Arc<dyn Fs>,
    /// Objects by their path below [`ROOT`].
    files: BTreeMap<PathBuf, PathBuf>,
}

impl BackupFs {
    pub(crate) fn new(repository: &Repository, manifest: &BackupManifest) -> Self {
        let object_path = |path: &str| Path::new(ROOT).join(path);
        let files = manifest
            .files
            .iter()
            .map(|file| (object_path(&file.path), repository.object(&file.object)))
            .collect();
        Self { fs: Arc::clone(repository.fs()), files }
    }

    /// Object that appears at `path`.
    pub(crate) fn object_at(&self, path: &Path) -> Option<&Path> {
        self.files.get(path).map(PathBuf::as_path)
    }

    fn is_dir(&self, path: &Path) -> bool {
        self.files.keys().any(|file| file != path && file.starts_with(path))
    }
}

fn refused<T>() -> io::Result<T> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}

impl Fs for BackupFs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        match self.files.get(path) {
            Some(object) if mode.is_read_only() => self.fs.open(object, OpenMode::ReadRegular),
            None if mode.is_read_only() => Err(io::ErrorKind::NotFound.into()),
            _ => refused(),
        }
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        if self.is_dir(path) { Ok(()) } else { refused() }
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        if self.files.contains_key(path) {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let mut names: Vec<String> = self
            .files
            .keys()
            .filter_map(|file| file.strip_prefix(path).ok()?.iter().next()?.to_str().map(str::to_owned))
            .collect();
        names.dedup();
        if names.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(names) }
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        Ok(self.files.contains_key(path) || self.is_dir(path))
    }

    fn link_count(&self, path: &Path) -> io::Result<u64> {
        let object = self.files.get(path).ok_or(io::ErrorKind::NotFound)?;
        self.fs.link_count(object)
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        refused()
    }

    fn remove_file(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    fn remove_dir(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    fn hard_link(&self, _: &Path, _: &Path) -> io::Result<()> {
        refused()
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    /// Always succeeds: the file system is read-only, so that any number of processes may lock it.
    fn lock(&self, _: &Path) -> io::Result<Box<dyn DirLock>> {
        struct Unneeded;
        impl DirLock for Unneeded {}
        Ok(Box::new(Unneeded))
    }

    fn available_bytes(&self, _: &Path) -> io::Result<u64> {
        Ok(0)
    }

    fn counters(&self) -> &IoCounters {
        self.fs.counters()
    }
}
