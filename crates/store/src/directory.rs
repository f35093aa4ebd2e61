//! The data directory: made durably, locked for one process.

use crate::error::StoreError;
use env::{DirLock, Fs};
use std::io;
use std::path::{Path, PathBuf};

/// The name of the file that a process locks, in the data directory and in the shard.
pub(crate) const LOCK: &str = "LOCK";
/// The directory of the first shard's engine, in the data directory. One shard, for now.
pub(crate) const SHARD: &str = "shard-000";

/// Makes `dir` and what is missing above it, so that power loss does not take it away again.
pub(crate) fn create(fs: &dyn Fs, dir: &Path) -> Result<(), StoreError> {
    let mut missing = Vec::new();
    for ancestor in dir.ancestors().filter(|ancestor| !ancestor.as_os_str().is_empty()) {
        if fs.exists(ancestor).map_err(StoreError::io("look for", ancestor))? {
            break;
        }
        missing.push(ancestor);
    }
    fs.create_dir_all(dir).map_err(StoreError::io("make the directory", dir))?;
    for made in missing.into_iter().rev() {
        let parent = parent_of(made);
        fs.sync_dir(&parent).map_err(StoreError::io("sync", &parent))?;
    }
    Ok(())
}

/// Warns of a directory that others than its owner may use, as earlier releases made it where the umask allowed. It is
/// left as it is: an operator may have given a group access, and the files that this release makes are private.
pub(crate) fn warn_if_shared(fs: &dyn Fs, dir: &Path) {
    if matches!(fs.is_private(dir), Ok(false)) {
        tracing::warn!(
            "other users of this machine may look into the data directory, and read files that an earlier release made in \
             it: chmod -R go= {}",
            stdx::shell_path(dir)
        );
    }
}

/// Takes the directory for this process.
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
