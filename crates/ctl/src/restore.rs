//! Restore of a backup to a data directory.
//!
//! **Promise.** When [`restore`] returns, the directory can be started as the node of the backup,
//! with all of its data. Before that it cannot be started, neither with part of the data nor as a
//! new node: not during the restore, and not after a crash. A restore that fails removes its files.
//! Files left by a crash must be removed by hand, which the next restore reports.
//!
//! **Mechanism.** Each object is verified as it is copied. A data directory with a shard but
//! without an identity cannot be opened. The directory of the shard is therefore created first,
//! durably, and the identity is written when everything else is durable. A node of a cluster is
//! also refused until it knows about the time after the backup ([`store::prepare_restored`]), which
//! is the last step. Only regular files are restored, and each is created anew.

use crate::error::CtlError;
use crate::files;
use crate::progress::{Meter, ProgressObserver};
use crate::repository::{BackupFile, BackupManifest, Repository};
use crate::verify::missing_is_damage;
use env::{Env, Fs};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use store::AfterRestore;

/// File without which a directory that contains data cannot be opened.
const IDENTITY: &str = "identity";
/// Additional free space that is required for file system metadata, in bytes.
const ROOM_BYTES_SPARE: u64 = 1 << 20;

/// Restores a backup to `dir`, which must be empty or missing.
///
/// # Errors
/// [`CtlError::NotEmpty`]; [`CtlError::Damaged`] with the file of the repository;
/// [`CtlError::NoRoom`] and others. `dir` is then unchanged, unless the error is
/// [`CtlError::NotCleanedUp`].
pub fn restore(
    env: &Env,
    repository: &Repository,
    manifest: &BackupManifest,
    dir: &Path,
    after: AfterRestore,
    observer: &mut dyn ProgressObserver,
) -> Result<(), CtlError> {
    let fs = &*env.fs;
    let was_there = fs.exists(dir).map_err(CtlError::io("look for", dir))?;
    if let Some(found) = files::names(fs, dir)?.pop() {
        return Err(CtlError::NotEmpty { path: dir.to_owned(), found });
    }
    let (identity, others) = split_identity(repository, manifest)?;
    let mut meter = Meter::new(observer, Some(manifest.bytes()));
    let filled = fill(fs, repository, &others, dir, &mut meter)
        .and_then(|()| copy_object(fs, repository, identity, dir, &mut meter))
        .and_then(|()| sync_tree(fs, dir, [identity]))
        .and_then(|()| Ok(store::prepare_restored(env, dir, after)?));
    filled.map(|_| ()).map_err(|error| undo(fs, dir, was_there, error))
}

/// The identity file, and all other files.
fn split_identity<'a>(
    repository: &Repository,
    manifest: &'a BackupManifest,
) -> Result<(&'a BackupFile, Vec<&'a BackupFile>), CtlError> {
    let (identity, others): (Vec<_>, Vec<_>) = manifest.files.iter().partition(|file| file.path == IDENTITY);
    match identity[..] {
        [identity] => Ok((identity, others)),
        _ => Err(CtlError::damaged(repository.dir(), format!("backup {} has no identity", manifest.number))),
    }
}

/// Writes all files except the identity, durably.
fn fill(
    fs: &dyn Fs,
    repository: &Repository,
    others: &[&BackupFile],
    dir: &Path,
    meter: &mut Meter<'_>,
) -> Result<(), CtlError> {
    fs.create_dir_all_durably(dir).map_err(CtlError::io("make the directory", dir))?;
    let needed = others.iter().map(|file| file.bytes).sum::<u64>() + ROOM_BYTES_SPARE;
    let available = fs.available_bytes(dir).map_err(CtlError::io("read the free space of", dir))?;
    if available < needed {
        return Err(CtlError::NoRoom { path: dir.to_owned(), needed, available });
    }
    let dirs = dirs_of(others.iter().copied());
    for below in &dirs {
        let path = dir.join(below);
        fs.create_dir_all(&path).map_err(CtlError::io("make the directory", &path))?;
    }
    // From here on the directory cannot be mistaken for that of a new node.
    fs.sync_dir(dir).map_err(CtlError::io("sync", dir))?;
    for file in others {
        copy_object(fs, repository, file, dir, meter)?;
    }
    sync_tree(fs, dir, others.iter().copied())
}

/// Copies one file, and syncs its data but not its name.
fn copy_object(
    fs: &dyn Fs,
    repository: &Repository,
    file: &BackupFile,
    dir: &Path,
    meter: &mut Meter<'_>,
) -> Result<(), CtlError> {
    let (object, path) = (repository.object(&file.object), dir.join(&file.path));
    let found = files::copy(fs, &object, &path, meter).map_err(missing_is_damage)?;
    file.check(&object, &found)
}

/// Syncs the directories of these files.
fn sync_tree<'a>(
    fs: &dyn Fs,
    dir: &Path,
    of: impl IntoIterator<Item = &'a BackupFile>,
) -> Result<(), CtlError> {
    for below in dirs_of(of) {
        let path = dir.join(below);
        fs.sync_dir(&path).map_err(CtlError::io("sync", &path))?;
    }
    Ok(())
}

/// Directories of these files relative to the data directory, with all ancestors. The first one is
/// the empty path, which is the data directory itself.
fn dirs_of<'a>(files: impl IntoIterator<Item = &'a BackupFile>) -> BTreeSet<PathBuf> {
    files.into_iter().flat_map(|file| Path::new(&file.path).ancestors().skip(1).map(Path::to_owned)).collect()
}

/// Removes the files in `dir`, which was empty or missing. Returns the error to report.
fn undo(fs: &dyn Fs, dir: &Path, was_there: bool, error: CtlError) -> CtlError {
    let removed = files::names(fs, dir).and_then(|names| {
        // Remove the identity first, so that the remaining files cannot be started.
        let identity = names.iter().filter(|name| *name == IDENTITY);
        let others = names.iter().filter(|name| *name != IDENTITY);
        identity.chain(others).try_for_each(|name| remove(fs, &dir.join(name)))?;
        fs.sync_dir(dir).map_err(CtlError::io("sync", dir))?;
        if was_there { Ok(()) } else { fs.remove_dir(dir).map_err(CtlError::io("remove", dir)) }
    });
    match removed {
        Ok(()) => error,
        Err(left) => {
            CtlError::NotCleanedUp { path: dir.to_owned(), error: Box::new(error), left: Box::new(left) }
        }
    }
}

fn remove(fs: &dyn Fs, path: &Path) -> Result<(), CtlError> {
    let removed = match fs.remove_dir_all(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => fs.remove_file(path),
        removed => removed,
    };
    removed.map_err(CtlError::io("remove", path))
}
