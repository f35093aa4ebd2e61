//! Whether the files of a data directory keep their names while a process has it open.
//!
//! **Promise.** [`WatchedNames::lost`] tells when somebody has removed, moved away or replaced the directory of a running
//! node, or a part of it that the next start needs and the node goes on to write to: the identity, the log mark, the
//! shard, its log, its tables' directory, the manifest, the segment that takes writes, the lock files. Open descriptors would otherwise go
//! on to take writes into files that no start finds again; and without the lock files a second process could start on the
//! same directory.
//!
//! **Mechanism.** The identity and the directories never change while a node runs: the system is asked which file has the
//! name, and each is kept open, so that no other file gets its number. What the node itself replaces is looked for by
//! its name alone ([`engine::Engine::find_missing_file`]).
//!
//! **Caveats.** A log mark that was removed and written again by the node in between is as good as before. Single tables
//! and older segments are not looked for.

use crate::directory::{LOCK, SHARD};
use crate::identity::IDENTITY_FILE;
use crate::log_mark;
use crate::store::Store;
use env::{File, Fs, OpenMode};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The names that the data directory of one store must keep. Keeps the store open.
pub struct WatchedNames {
    store: Store,
    /// What never changes, the outermost first.
    fixed: Vec<Fixed>,
    log_mark: Option<PathBuf>,
}

/// A file or directory that has one name, and that name one file.
struct Fixed {
    path: PathBuf,
    number: u64,
    /// Open, if the file system opens such a thing.
    _held: Option<Arc<dyn File>>,
}

impl Store {
    /// Begins to watch the names of the files of this store.
    ///
    /// # Errors
    /// Something is missing already, or the disk does not answer.
    pub fn watch_names(&self) -> io::Result<WatchedNames> {
        let fs = self.log_mark.fs();
        let data = self.log_mark.dir();
        let mut paths = vec![data.to_owned(), data.join(IDENTITY_FILE)];
        paths.extend(self.engine.directories());
        for lock in [data.join(LOCK), data.join(SHARD).join(LOCK)] {
            // A file system that locks by other means has none.
            paths.extend(fs.exists(&lock)?.then_some(lock));
        }
        let fixed = paths.into_iter().map(|path| Fixed::new(&**fs, path)).collect::<io::Result<Vec<_>>>()?;
        // With a full disk there may be none yet.
        let log_mark = log_mark::path(data);
        let log_mark = fs.exists(&log_mark)?.then_some(log_mark);
        Ok(WatchedNames { store: self.clone(), fixed, log_mark })
    }
}

impl WatchedNames {
    /// What has lost its name since the watch began, if anything has. Waits for the disk; costs a few system calls. An
    /// error of the disk is no loss.
    pub fn lost(&self) -> Option<PathBuf> {
        let fs = self.store.log_mark.fs();
        let fixed = self.fixed.iter().find(|fixed| is_lost(&fs.file_number(&fixed.path), fixed.number));
        fixed
            .map(|fixed| fixed.path.clone())
            .or_else(|| self.store.engine.find_missing_file().ok().flatten())
            .or_else(|| self.log_mark.clone().filter(|mark| is_missing(&**fs, mark)))
    }
}

impl std::fmt::Debug for WatchedNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchedNames").finish_non_exhaustive()
    }
}

impl Fixed {
    fn new(fs: &dyn Fs, path: PathBuf) -> io::Result<Self> {
        let held = fs.open(&path, OpenMode::Read).ok();
        let number = fs.file_number(&path)?;
        Ok(Self { path, number, _held: held })
    }
}

/// Whether another file, or none, has the name. An error of the disk says neither.
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
    fn another_file_or_none_is_a_loss_and_a_failing_disk_is_not() {
        assert!(!is_lost(&Ok(7), 7) && is_lost(&Ok(8), 7));
        assert!(is_lost(&Err(io::ErrorKind::NotFound.into()), 7));
        assert!(is_lost(&Err(io::ErrorKind::NotADirectory.into()), 7));
        assert!(!is_lost(&Err(io::Error::other("input/output error")), 7));
    }
}
