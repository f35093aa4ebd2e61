//! Detection of files of the data directory that are removed or replaced while a process has it
//! open.
//!
//! **Promise.** [`NameWatch::lost`] reports when the directory of a running node, or a part of it
//! that the next start needs and the node still writes to, was removed, moved or replaced: the
//! identity, the log mark, the shard, its log, its directory of tables, the manifest, the active
//! segment, the lock files. Otherwise writes would continue through open descriptors into files
//! that no start finds again. Without the lock files a second process could start in the same
//! directory.
//!
//! **Mechanism.** The identity and the directories never change while a node runs. Their file
//! numbers are compared with the ones at the start. Each of them is kept open, so that its number
//! is not reused. Files that the node itself replaces are only checked for existence
//! ([`engine::Engine::find_missing_file`]).
//!
//! **Caveats.** A log mark that was removed and rewritten by the node in the meantime is not
//! reported. Individual tables and older segments are not checked.

use crate::directory::{LOCK, SHARD};
use crate::identity::IDENTITY_FILE;
use crate::log_mark;
use crate::store::Store;
use env::{File, Fs, OpenMode};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Watches the names of one store's files. It keeps the store open.
pub struct NameWatch {
    store: Store,
    /// Files and directories that never change, outermost first.
    fixed: Vec<WatchedFile>,
    log_mark: Option<PathBuf>,
}

/// A file or directory whose name and number must stay the same.
struct WatchedFile {
    path: PathBuf,
    number: u64,
    /// Keeps the file open, if the file system can open it.
    _held: Option<Arc<dyn File>>,
}

impl Store {
    /// Begins to watch the names of this store's files.
    ///
    /// # Errors
    /// If a file is missing already or the disk fails.
    pub fn watch_names(&self) -> io::Result<NameWatch> {
        let fs = self.log_mark.fs();
        let data = self.log_mark.dir();
        let mut paths = vec![data.to_owned(), data.join(IDENTITY_FILE)];
        paths.extend(self.engine.directories());
        for lock in [data.join(LOCK), data.join(SHARD).join(LOCK)] {
            // A file system with another locking mechanism has no lock files.
            paths.extend(fs.exists(&lock)?.then_some(lock));
        }
        let fixed =
            paths.into_iter().map(|path| WatchedFile::new(&**fs, path)).collect::<io::Result<Vec<_>>>()?;
        // On a full disk there may be no mark yet.
        let log_mark = log_mark::path(data);
        let log_mark = fs.exists(&log_mark)?.then_some(log_mark);
        Ok(NameWatch { store: self.clone(), fixed, log_mark })
    }
}

impl NameWatch {
    /// Returns a path that was lost since the watch began, if any. Blocks on the disk and costs a
    /// few system calls. An error of the disk is not a loss.
    pub fn lost(&self) -> Option<PathBuf> {
        let fs = self.store.log_mark.fs();
        let fixed = self.fixed.iter().find(|fixed| is_lost(&fs.file_number(&fixed.path), fixed.number));
        fixed
            .map(|fixed| fixed.path.clone())
            .or_else(|| self.store.engine.find_missing_file().ok().flatten())
            .or_else(|| self.log_mark.clone().filter(|mark| is_missing(&**fs, mark)))
    }
}

impl std::fmt::Debug for NameWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NameWatch").finish_non_exhaustive()
    }
}

impl WatchedFile {
    fn new(fs: &dyn Fs, path: PathBuf) -> io::Result<Self> {
        let held = fs.open(&path, OpenMode::Read).ok();
        let number = fs.file_number(&path)?;
        Ok(Self { path, number, _held: held })
    }
}

/// Whether the name now belongs to another file or to none. An error of the disk proves neither.
fn is_lost(found: &io::Result<u64>, number: u64) -> bool {
    match found {
        Ok(found) => *found != number,
        Err(error) => matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
    }
}

fn is_missing(fs: &dyn Fs, path: &Path) -> bool {
    fs.exists(path).is_ok_and(|is_there| !is_there)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_or_missing_file_is_lost_and_a_disk_error_is_not() {
        assert!(!is_lost(&Ok(7), 7) && is_lost(&Ok(8), 7));
        assert!(is_lost(&Err(io::ErrorKind::NotFound.into()), 7));
        assert!(is_lost(&Err(io::ErrorKind::NotADirectory.into()), 7));
        assert!(!is_lost(&Err(io::Error::other("input/output error")), 7));
    }
}
