//! Creating and locking the data directory.

use crate::error::StoreError;
use env::{DirLock, Fs};
use std::io;
use std::path::{Path, PathBuf};

/// Name of the lock file, in the data directory and in the shard.
pub(crate) const LOCK: &str = "LOCK";
/// Name of the first shard's directory within the data directory. There is one shard for now.
pub(crate) const SHARD: &str = "shard-000";

/// Creates `dir` and its missing ancestors durably.
pub(crate) fn create(fs: &dyn Fs, dir: &Path) -> Result<(), StoreError> {
    let mut missing = Vec::new();
    for ancestor in dir.ancestors().filter(|ancestor| !ancestor.as_os_str().is_empty()) {
        if fs.exists(ancestor).map_err(StoreError::io("look for", ancestor))? {
            break;
        }
        missing.push(ancestor);
    }
    fs.create_dir_all(dir).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => StoreError::io("use", dir)(io::Error::new(
            io::ErrorKind::NotADirectory,
            "it is not a directory; name another path with --data",
        )),
        _ => StoreError::io("make the directory", dir)(error),
    })?;
    for made in missing.into_iter().rev() {
        let parent = parent_of(made);
        fs.sync_dir(&parent).map_err(StoreError::io("sync", &parent))?;
    }
    Ok(())
}

/// Warns about a directory that is accessible to other users, which earlier releases created if the
/// umask allowed it. The mode is not changed: an operator may have granted access to a group, and
/// files of this release are private.
pub(crate) fn warn_if_shared(fs: &dyn Fs, dir: &Path) {
    if matches!(fs.is_private(dir), Ok(false)) {
        tracing::warn!(
            "other users of this machine may look into the data directory, and read files that an earlier release made in \
             it: chmod -R go= {}",
            stdx::shell_path(dir)
        );
    }
}

/// Locks the directory for this process.
pub(crate) fn lock(fs: &dyn Fs, dir: &Path) -> Result<Box<dyn DirLock>, StoreError> {
    let path = dir.join(LOCK);
    fs.lock(&path).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => StoreError::Locked { path: dir.to_owned() },
        _ => StoreError::io("lock", &path)(error),
    })
}

fn parent_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        Some(_) => PathBuf::from("."),
        None => path.to_owned(),
    }
}
