//! Reading and writing of whole files.
//!
//! Only regular files are read, and symbolic links are refused: a planted pipe cannot block a
//! backup, and a planted link cannot make it copy another file. A file that is written is always
//! new.

use crate::checksum::{Checksum, ChecksumHasher};
use crate::error::CtlError;
use crate::progress::Meter;
use env::{File, Fs, OpenMode};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Suffix of the name of an incomplete file.
pub(crate) const UNFINISHED: &str = ".new";

/// Size of a read or write, in bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// Length and checksum of a file that was read by [`copy`] or [`sum`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) bytes: u64,
    pub(crate) checksum: Checksum,
}

/// Copies `from` to `to`, which must not exist, and syncs the data. The directory of `to` is not
/// synced.
pub(crate) fn copy(fs: &dyn Fs, from: &Path, to: &Path, meter: &mut Meter<'_>) -> Result<Contents, CtlError> {
    let target = fs.open(to, OpenMode::CreateNew).map_err(CtlError::io("create", to))?;
    let contents = read_through(fs, from, |offset, chunk| {
        target.write_at(chunk, offset).map_err(CtlError::io("write", to))?;
        target.start_writeback(offset, chunk.len() as u64).map_err(CtlError::io("write", to))?;
        meter.pass(chunk.len() as u64)
    })?;
    target.sync_data().map_err(CtlError::io("sync", to))?;
    Ok(contents)
}

/// Reads a file to compute its length and checksum.
pub(crate) fn checksum(fs: &dyn Fs, path: &Path, meter: &mut Meter<'_>) -> Result<Contents, CtlError> {
    read_through(fs, path, |_, chunk| meter.pass(chunk.len() as u64))
}

fn read_through(
    fs: &dyn Fs,
    path: &Path,
    mut each: impl FnMut(u64, &[u8]) -> Result<(), CtlError>,
) -> Result<Contents, CtlError> {
    let file = fs.open(path, OpenMode::ReadRegular).map_err(CtlError::io("open", path))?;
    let len = file.len().map_err(CtlError::io("read", path))?;
    let mut buffer = vec![0; len.min(CHUNK_BYTES as u64) as usize];
    let (mut bytes, mut summer) = (0, ChecksumHasher::new());
    while bytes < len {
        let chunk = &mut buffer[..(len - bytes).min(CHUNK_BYTES as u64) as usize];
        file.read_exact_at(chunk, bytes).map_err(CtlError::io("read", path))?;
        summer.add(chunk);
        each(bytes, chunk)?;
        bytes += chunk.len() as u64;
    }
    Ok(Contents { bytes, checksum: summer.finish() })
}

/// Reads a file. A file longer than `bytes_max` is reported as damaged.
pub(crate) fn read_small(fs: &dyn Fs, path: &Path, bytes_max: u64) -> Result<Vec<u8>, CtlError> {
    let file = fs.open(path, OpenMode::ReadRegular).map_err(CtlError::io("open", path))?;
    let len = file.len().map_err(CtlError::io("read", path))?;
    if len > bytes_max {
        return Err(CtlError::damaged(path, format!("it has {len} bytes, and {bytes_max} are the most")));
    }
    read_range(&*file, path, 0, len)
}

/// Reads the last `bytes_max` bytes of a file, or all if it is shorter. Also returns its length.
pub(crate) fn read_tail(fs: &dyn Fs, path: &Path, bytes_max: u64) -> Result<(Vec<u8>, u64), CtlError> {
    let file = fs.open(path, OpenMode::ReadRegular).map_err(CtlError::io("open", path))?;
    let len = file.len().map_err(CtlError::io("read", path))?;
    let tail_len = len.min(bytes_max);
    Ok((read_range(&*file, path, len - tail_len, tail_len)?, len))
}

fn read_range(file: &dyn File, path: &Path, offset: u64, len: u64) -> Result<Vec<u8>, CtlError> {
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, offset).map_err(CtlError::io("read", path))?;
    Ok(bytes)
}

/// Atomically replaces the contents of the file `name` in `dir` by `bytes`. They are durable when
/// this returns; after an earlier crash the file has the old or the new contents.
pub(crate) fn replace(fs: &dyn Fs, dir: &Path, name: &str, bytes: &[u8]) -> Result<(), CtlError> {
    let (new, path) = (dir.join(format!("{name}{UNFINISHED}")), dir.join(name));
    let file = create_anew(fs, &new)?;
    file.write_at(bytes, 0).map_err(CtlError::io("write", &new))?;
    file.sync_data().map_err(CtlError::io("sync", &new))?;
    fs.rename(&new, &path).map_err(CtlError::io("rename", &new))?;
    fs.sync_dir(dir).map_err(CtlError::io("sync", dir))
}

/// Creates the file `path`, and replaces one that an interrupted process left.
pub(crate) fn create_anew(fs: &dyn Fs, path: &Path) -> Result<Arc<dyn File>, CtlError> {
    let create = || fs.open(path, OpenMode::CreateNew);
    let created = match create() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs.remove_file(path).map_err(CtlError::io("remove", path))?;
            create()
        }
        created => created,
    };
    created.map_err(CtlError::io("create", path))
}

/// Refuses `path` if it is a symbolic link.
///
/// # Errors
/// [`CtlError::Io`], also if `path` does not exist.
pub(crate) fn refuse_symlink(fs: &dyn Fs, path: &Path) -> Result<(), CtlError> {
    let refused =
        || io::Error::new(io::ErrorKind::InvalidInput, "it is a symbolic link, which is not followed");
    match fs.is_symlink(path) {
        Ok(false) => Ok(()),
        Ok(true) => Err(CtlError::io("read", path)(refused())),
        Err(error) => Err(CtlError::io("look for", path)(error)),
    }
}

/// Refuses `path` unless it is a regular file. Does not block on other kinds.
pub(crate) fn refuse_other_than_plain(fs: &dyn Fs, path: &Path) -> Result<(), CtlError> {
    fs.open(path, OpenMode::ReadRegular).map(drop).map_err(CtlError::io("open", path))
}

/// Files below `root`, as sorted relative paths with `/` as separator. Symbolic links are refused.
pub(crate) fn tree(fs: &dyn Fs, root: &Path) -> Result<Vec<String>, CtlError> {
    let mut found = Vec::new();
    let mut unlisted = vec![String::new()];
    while let Some(dir) = unlisted.pop() {
        let path = root.join(&dir);
        refuse_symlink(fs, &path)?;
        match fs.read_dir(&path) {
            Ok(names) => {
                let below = |name: String| if dir.is_empty() { name } else { format!("{dir}/{name}") };
                unlisted.extend(names.into_iter().map(below));
            }
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => found.push(dir),
            Err(error) => return Err(CtlError::io("list", &path)(error)),
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Names in a directory; empty if it does not exist.
pub(crate) fn names(fs: &dyn Fs, dir: &Path) -> Result<Vec<String>, CtlError> {
    match fs.read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        listed => listed.map_err(CtlError::io("list", dir)),
    }
}
