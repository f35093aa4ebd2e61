//! Removal of the files of obsolete tables.
//!
//! **Promise.** Each file is removed soon after the last reader drops its table. Its disk space is
//! released in small pieces, so that no sync of the log waits long for that.
//!
//! **Mechanism.** On a file system mounted with `discard`, released space is reported to the device
//! at once, and the next syncs wait behind that: 10 to 40 ms for each table of 64 MiB on the disk
//! where it was measured. So a file is truncated by one piece at an interval, and removed when at
//! most a piece is left. The more files are pending, the more pieces are released at once. A file
//! with another name, such as one of a checkpoint, is not truncated: its bytes are in use, and
//! removing a name releases no space. While disk space is low, whole files are removed at once.
//!
//! A file that was ever linked into a checkpoint is not truncated either, even when the checkpoint
//! is gone. Another process may still have it open, or be about to link it, and would copy a
//! truncated file as if it were whole. It is removed in one step; the system releases its space
//! when the last process closes it.
//!
//! **Caveats.** Links that an earlier process made are not known. Files that are pending when the
//! process ends are removed at the next start, at once: no manifest names them. Only files that can
//! never be needed again are truncated: their table was dropped by a durable edit, or was never in
//! one.

use crate::Error;
use crate::paths::Paths;
use crate::sstable::TableId;
use env::{File, Fs, OpenMode};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use stdx::Instant;

/// Interval between two pieces at the normal pace.
pub(crate) const PIECE_EVERY: Duration = Duration::from_millis(40);
/// Pieces in the file of a full table: 4 MiB each for 64 MiB, so 100 MiB/s.
const PIECES_PER_TABLE: u64 = 16;
/// One more piece is released at once for each 8 pending files.
const FILES_PER_PIECE: u64 = 8;

/// Files of obsolete tables that are still to be removed.
pub(crate) struct ObsoleteFiles {
    piece_bytes: u64,
    pending: Mutex<Vec<TableId>>,
    /// Tables whose files other processes may read: those of checkpoints.
    shared: Mutex<HashSet<TableId>>,
    removal: Mutex<Removal>,
}

#[derive(Default)]
struct Removal {
    current: Option<PartialFile>,
    /// When a piece was last released.
    last: Option<Instant>,
}

/// A file that is being removed.
struct PartialFile {
    path: PathBuf,
    /// Handle and present length of the file, if it is to be truncated.
    cut: Option<(Arc<dyn File>, u64)>,
}

/// Pace at which files are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemovalPace {
    /// One piece every [`PIECE_EVERY`], by this time.
    Paced(Instant),
    /// All pieces at once: no sync of the log is waiting.
    Unpaced,
    /// Whole files at once: the space is needed.
    WholeFiles,
}

impl ObsoleteFiles {
    /// An empty list, for tables of about `table_bytes`.
    pub(crate) fn new(table_bytes: u64) -> Self {
        let piece_bytes = (table_bytes / PIECES_PER_TABLE).max(1);
        Self { piece_bytes, pending: Mutex::default(), shared: Mutex::default(), removal: Mutex::default() }
    }

    /// Adds the file of a table.
    pub(crate) fn add(&self, id: TableId) {
        self.pending.lock().push(id);
    }

    /// Records that other processes may read the file of this table: it will be removed without
    /// truncation.
    pub(crate) fn mark_shared(&self, id: TableId) {
        self.shared.lock().insert(id);
    }

    /// Whether files are pending.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.lock().is_empty() || self.removal.lock().current.is_some()
    }

    /// Removes the files that are due. Returns whether there were any.
    ///
    /// # Errors
    /// [`Error::Io`] when a file cannot be removed: it is skipped, and the others remain for the
    /// next call.
    pub(crate) fn step(&self, fs: &dyn Fs, paths: &Paths, pace: RemovalPace) -> Result<bool, Error> {
        let mut removal = self.removal.lock();
        let mut pieces = match pace {
            RemovalPace::Unpaced | RemovalPace::WholeFiles => u64::MAX,
            RemovalPace::Paced(now)
                if removal.last.is_some_and(|last| now.saturating_since(last) < PIECE_EVERY) =>
            {
                0
            }
            RemovalPace::Paced(now) => {
                removal.last = Some(now);
                1 + self.pending.lock().len() as u64 / FILES_PER_PIECE
            }
        };
        let piece_bytes = (pace != RemovalPace::WholeFiles).then_some(self.piece_bytes);
        let mut worked = false;
        while pieces > 0 {
            let Some(file) = removal.current.take().or_else(|| self.next(fs, paths, piece_bytes.is_some()))
            else {
                break;
            };
            removal.current = file.release_piece(fs, piece_bytes)?;
            (pieces, worked) = (pieces - 1, true);
        }
        Ok(worked)
    }

    fn next(&self, fs: &dyn Fs, paths: &Paths, may_cut: bool) -> Option<PartialFile> {
        let id = self.pending.lock().pop()?;
        let path = paths.table(id);
        let may_cut = !self.shared.lock().remove(&id) && may_cut;
        // If any of this fails, the file can still be removed without truncation.
        let cut = match may_cut.then(|| fs.link_count(&path)) {
            Some(Ok(1)) => fs.open(&path, OpenMode::ReadWrite).and_then(|file| Ok((file.len()?, file))).ok(),
            _ => None,
        };
        Some(PartialFile { path, cut: cut.map(|(len, file)| (file, len)) })
    }
}

impl PartialFile {
    /// Releases one piece, or all of the file. Returns the remaining file.
    fn release_piece(self, fs: &dyn Fs, piece_bytes: Option<u64>) -> Result<Option<Self>, Error> {
        if let (Some((file, len)), Some(piece_bytes)) = (self.cut, piece_bytes)
            && let Some(rest) = len.checked_sub(piece_bytes).filter(|rest| *rest > 0)
            && matches!(fs.link_count(&self.path), Ok(1))
            && file.set_len(rest).is_ok()
        {
            return Ok(Some(Self { path: self.path, cut: Some((file, rest)) }));
        }
        fs.remove_file(&self.path).map_err(|error| Error::io("remove", &self.path, error))?;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::{Fault, FaultFs, FaultPlan, MemFs, OperationKind, OperationMatch};
    use std::path::Path;

    const MIB: u64 = 1 << 20;

    fn at(millis: u64) -> RemovalPace {
        RemovalPace::Paced(Instant::from_nanos(millis * 1_000_000))
    }

    struct Scene {
        fs: MemFs,
        paths: Paths,
        files: ObsoleteFiles,
    }

    impl Scene {
        /// A scene with one obsolete file for each of these lengths, in MiB; a full table has 16
        /// MiB.
        fn with(lens: &[u64]) -> Self {
            let (fs, paths) = (MemFs::new(), Paths::new(Path::new("/d")));
            fs.create_dir_all(&paths.tables()).unwrap();
            let files = ObsoleteFiles::new(16 * MIB);
            for (number, mib) in lens.iter().enumerate() {
                let id = TableId(number as u64);
                let file = fs.open(&paths.table(id), OpenMode::CreateNew).unwrap();
                file.set_len(mib * MIB).unwrap();
                files.add(id);
            }
            Self { fs, paths, files }
        }

        fn step(&self, pace: RemovalPace) -> bool {
            self.files.step(&self.fs, &self.paths, pace).unwrap()
        }

        /// The lengths of the existing files, in MiB.
        fn lens(&self) -> Vec<u64> {
            let names = self.fs.read_dir(&self.paths.tables()).unwrap();
            let open = |name| self.fs.open(&self.paths.tables().join(name), OpenMode::Read).unwrap();
            names.into_iter().map(|name| open(name).len().unwrap() / MIB).collect()
        }
    }

    #[test]
    fn a_file_is_removed_in_pieces_at_an_interval() {
        let scene = Scene::with(&[3]);
        assert!(scene.step(at(0)));
        assert_eq!(scene.lens(), [2]);
        assert!(!scene.step(at(39)), "too early");
        assert_eq!(scene.lens(), [2]);
        assert!(scene.step(at(40)) && scene.files.has_pending());
        assert_eq!(scene.lens(), [1]);
        assert!(scene.step(at(80)) && !scene.files.has_pending());
        assert!(scene.lens().is_empty() && !scene.step(at(120)));
    }

    #[test]
    fn more_pending_files_release_more_pieces_at_once() {
        let scene = Scene::with(&[16; 24]);
        scene.step(at(0));
        assert_eq!(scene.lens().iter().sum::<u64>(), 16 * 24 - 4);
    }

    #[test]
    fn an_unpaced_step_removes_all_files() {
        for pace in [RemovalPace::Unpaced, RemovalPace::WholeFiles] {
            let scene = Scene::with(&[16, 0, 5]);
            scene.step(at(0));
            assert!(scene.step(pace) && !scene.files.has_pending());
            assert!(scene.lens().is_empty(), "{pace:?}");
        }
    }

    #[test]
    fn a_linked_file_is_not_truncated() {
        let scene = Scene::with(&[3]);
        let kept = scene.paths.tables().join("kept");
        scene.fs.hard_link(&scene.paths.table(TableId(0)), &kept).unwrap();
        assert!(scene.step(at(0)) && !scene.files.has_pending());
        assert_eq!(scene.lens(), [3]);
    }

    #[test]
    fn a_file_that_is_linked_during_removal_is_not_truncated_further() {
        let scene = Scene::with(&[5]);
        assert!(scene.step(at(0)));
        let kept = scene.paths.tables().join("kept");
        scene.fs.hard_link(&scene.paths.table(TableId(0)), &kept).unwrap();
        assert!(scene.step(at(40)) && !scene.files.has_pending());
        assert_eq!(scene.lens(), [4]);
    }

    #[test]
    fn a_file_of_a_checkpoint_is_not_truncated_while_it_may_be_read() {
        let scene = Scene::with(&[3]);
        scene.files.mark_shared(TableId(0));
        let copier = scene.fs.open(&scene.paths.table(TableId(0)), OpenMode::Read).unwrap();
        assert!(scene.step(at(0)) && !scene.files.has_pending());
        assert!(scene.lens().is_empty());
        assert_eq!(copier.len().unwrap(), 3 * MIB);
    }

    #[test]
    fn a_file_that_cannot_be_truncated_is_removed() {
        let scene = Scene::with(&[3]);
        let disk = FaultFs::new(Arc::new(scene.fs.clone()), FaultPlan::none());
        let full = Fault::Error(std::io::ErrorKind::StorageFull);
        disk.set_plan(FaultPlan::fail(OperationMatch::kind(OperationKind::SetLen), full));
        assert!(scene.files.step(&disk, &scene.paths, at(0)).unwrap());
        assert!(scene.lens().is_empty() && !scene.files.has_pending());
    }
}
