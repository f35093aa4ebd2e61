//! A bounded set of open table files.
//!
//! **Promise.** At most `open_max` table files are open, besides those that a read is using at the
//! moment. Reading a table whose file is open costs no additional system call and takes no lock. If
//! the process runs out of descriptors, that one read fails with
//! [`Error::Exhausted`](crate::Error::Exhausted); the table is not considered damaged.
//!
//! **Mechanism.** Each table has a [`TableFile`], a [`File`] that opens itself when it is used.
//! Open files form a ring. When there are more than the bound, the CLOCK algorithm (second chance)
//! closes files: a file that was used since its last visit stays. Its descriptor is closed when the
//! last read that uses it ends. When the system has no descriptor left, a quarter of the ring is
//! closed and the open is retried once.
//!
//! **Caveats.** A read that must not wait returns "would wait" if the file is closed. No read-ahead
//! happens in that case.

use arc_swap::ArcSwapOption;
use env::{File, Fs, OpenMode, is_out_of_descriptors};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Fraction of the open files that is closed when no descriptor is left: one in this number.
const CLOSED_DIVISOR: usize = 4;

/// Opens the files of tables and closes the least recently used ones.
pub struct TableFiles {
    fs: Arc<dyn Fs>,
    open_max: usize,
    /// Open files, and entries of a few tables that were dropped. The lock is never held during
    /// I/O.
    ring: Mutex<VecDeque<Weak<TableFile>>>,
}

/// The file of a table, open or closed.
pub(super) struct TableFile {
    files: Arc<TableFiles>,
    path: PathBuf,
    open: ArcSwapOption<OpenFile>,
    /// Whether the file was used since the last visit of the CLOCK hand.
    is_used: AtomicBool,
    own: Weak<Self>,
}

struct OpenFile(Arc<dyn File>);

/// Error of a call that had to open the file first and could not.
#[derive(Debug)]
pub(crate) struct OpenFailed(pub(crate) io::Error);

impl TableFiles {
    /// Returns a set for files of `fs`, of which at most `open_max` stay open; the minimum is 1.
    pub fn new(fs: Arc<dyn Fs>, open_max: usize) -> Self {
        Self { fs, open_max: open_max.max(1), ring: Mutex::default() }
    }

    /// Number of open files, without those that only a running read keeps open.
    pub fn open(&self) -> usize {
        let is_open = |file: &Arc<TableFile>| file.open.load().is_some();
        self.ring.lock().iter().filter_map(Weak::upgrade).filter(is_open).count()
    }

    /// Returns the file at `path`, closed at first.
    pub(super) fn file(self: &Arc<Self>, path: &Path) -> Arc<TableFile> {
        Arc::new_cyclic(|own| TableFile {
            files: Arc::clone(self),
            path: path.to_owned(),
            open: ArcSwapOption::empty(),
            is_used: AtomicBool::new(false),
            own: Weak::clone(own),
        })
    }

    fn open_file(&self, path: &Path) -> io::Result<Arc<OpenFile>> {
        let open = || self.fs.open(path, OpenMode::Read).map(|file| Arc::new(OpenFile(file)));
        let opened = match open() {
            Err(error) if is_out_of_descriptors(&error) => {
                let open_now = self.ring.lock().len();
                let has_closed = self.close_beyond(open_now - open_now.div_ceil(CLOSED_DIVISOR));
                if has_closed { open() } else { Err(error) }
            }
            opened => opened,
        };
        opened.map_err(|error| io::Error::other(OpenFailed(error)))
    }

    /// Closes the least recently used files until at most `max` are open. Returns whether any was
    /// closed.
    fn close_beyond(&self, max: usize) -> bool {
        let mut closed = Vec::new();
        let mut ring = self.ring.lock();
        let mut chances = ring.len();
        while ring.len() > max {
            let Some(oldest) = ring.pop_front() else { break };
            let Some(file) = oldest.upgrade() else { continue };
            if chances > 0 && file.is_used.swap(false, Ordering::Relaxed) {
                chances -= 1;
                ring.push_back(oldest);
            } else {
                closed.extend(file.open.swap(None));
            }
        }
        drop(ring);
        // `closed` is dropped after the lock is released, because closing a file is a system call.
        !closed.is_empty()
    }
}

impl TableFile {
    /// Returns the open file, and opens it first if needed.
    #[cold]
    fn open_now(&self) -> io::Result<Arc<OpenFile>> {
        // Two readers may get here at once. Both open the file, and the first one is kept.
        let opened = self.files.open_file(&self.path)?;
        {
            let mut ring = self.files.ring.lock();
            if let Some(there) = self.open.load_full() {
                return Ok(there);
            }
            self.open.store(Some(Arc::clone(&opened)));
            // The first use does not count, so a job that reads every table once does not displace
            // files that are used repeatedly.
            self.is_used.store(false, Ordering::Relaxed);
            ring.push_back(Weak::clone(&self.own));
        }
        self.files.close_beyond(self.files.open_max);
        Ok(opened)
    }

    #[inline]
    fn mark_used(&self) {
        // The load avoids a store, and with it contention for the cache line, in the common case.
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
    }

    #[inline]
    fn with_open<T>(&self, call: impl FnOnce(&dyn File) -> io::Result<T>) -> io::Result<T> {
        self.mark_used();
        if let Some(opened) = &*self.open.load() {
            return call(&*opened.0);
        }
        call(&*self.open_now()?.0)
    }
}

impl File for TableFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.with_open(|file| file.read_at(buf, offset))
    }

    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        self.mark_used();
        match &*self.open.load() {
            Some(opened) => opened.0.read_at_nowait(buf, offset),
            None => Ok(None),
        }
    }

    fn read_from_device(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.with_open(|file| file.read_from_device(buf, offset))
    }

    fn write_at(&self, _bytes: &[u8], _offset: u64) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn start_writeback(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn len(&self) -> io::Result<u64> {
        self.with_open(|file| file.len())
    }

    fn prefetch(&self, offset: u64, len: u64) -> io::Result<()> {
        match &*self.open.load() {
            Some(opened) => opened.0.prefetch(offset, len),
            None => Ok(()),
        }
    }
}

impl Drop for TableFile {
    fn drop(&mut self) {
        if self.open.load().is_some() {
            self.files.ring.lock().retain(|file| file.strong_count() > 0);
        }
    }
}

impl fmt::Debug for TableFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableFiles").field("open_max", &self.open_max).finish_non_exhaustive()
    }
}

impl fmt::Display for OpenFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for OpenFailed {}

#[cfg(test)]
mod tests {
    use super::*;
    use env::{Fault, FaultFs, FaultPlan, MemFs, OperationKind, OperationMatch};

    struct Scene {
        faults: FaultFs,
        files: Arc<TableFiles>,
        tables: Vec<Arc<TableFile>>,
    }

    impl Scene {
        /// Tables of one byte each, which is the table's number.
        fn with(tables: u8, open_max: usize) -> Self {
            let disk = MemFs::new();
            let path = |number: u8| PathBuf::from(format!("/{number}"));
            (0..tables).for_each(|number| disk.write_file(path(number), &[number]).expect("written"));
            let faults = FaultFs::new(Arc::new(disk), FaultPlan::none());
            let files = Arc::new(TableFiles::new(Arc::new(faults.clone()), open_max));
            let tables = (0..tables).map(|number| files.file(&path(number))).collect();
            Self { faults, files, tables }
        }

        fn read(&self, table: usize) -> io::Result<u8> {
            let mut byte = [0];
            self.tables[table].read_at(&mut byte, 0).map(|_| byte[0])
        }

        fn is_open(&self, table: usize) -> bool {
            self.tables[table].open.load().is_some()
        }

        fn run_out_of_descriptors(&self, calls: OperationMatch) {
            self.faults.set_plan(FaultPlan::fail(calls, Fault::Errno(libc::EMFILE)));
        }
    }

    #[test]
    fn open_files_stay_within_the_bound_and_all_tables_are_readable() {
        let scene = Scene::with(20, 4);
        for round in 0..3 {
            for table in 0..20 {
                assert_eq!(scene.read(table).expect("read"), table as u8, "round {round}");
                assert!(scene.files.open() <= 4);
            }
        }
        assert_eq!(scene.files.open(), 4);
    }

    #[test]
    fn a_file_that_is_read_repeatedly_stays_open() {
        let scene = Scene::with(20, 4);
        scene.read(0).expect("read");
        for table in 1..20 {
            scene.read(table).expect("read");
            assert!(scene.is_open(0), "closed for table {table}");
            let begun = scene.faults.operations();
            scene.read(0).expect("read");
            assert_eq!(scene.faults.operations(), begun + 1, "one call to read, none to open");
        }
    }

    #[test]
    fn a_read_that_must_not_wait_opens_no_file() {
        let scene = Scene::with(1, 4);
        assert_eq!(scene.tables[0].read_at_nowait(&mut [0], 0).expect("no error"), None);
        assert_eq!(scene.faults.operations(), 0);
        scene.read(0).expect("read");
        assert_eq!(scene.tables[0].read_at_nowait(&mut [0], 0).expect("no error"), Some(1));
    }

    #[test]
    fn when_descriptors_run_out_other_files_are_closed_first() {
        let scene = Scene::with(9, 8);
        (0..8).for_each(|table| assert_eq!(scene.read(table).expect("read"), table as u8));
        scene.run_out_of_descriptors(OperationMatch::kind(OperationKind::Open));
        assert_eq!(scene.read(8).expect("another was closed for it"), 8);
        assert_eq!(scene.files.open(), 7);
    }

    #[test]
    fn a_read_without_a_descriptor_fails_and_a_later_one_succeeds() {
        let scene = Scene::with(2, 8);
        scene.read(0).expect("read");
        scene.run_out_of_descriptors(OperationMatch::kind(OperationKind::Open).sticky());
        let error = scene.read(1).expect_err("no descriptor");
        let error = crate::Error::io("read", Path::new("/1"), error);
        assert!(matches!(error, crate::Error::Exhausted { operation: "open", .. }), "{error}");
        assert!(error.unreadable().is_none());
        scene.faults.clear();
        assert_eq!(scene.read(1).expect("read"), 1);
    }

    #[test]
    fn dropped_tables_do_not_count_as_open() {
        let mut scene = Scene::with(8, 4);
        (0..4).for_each(|table| assert_eq!(scene.read(table).expect("read"), table as u8));
        scene.tables.drain(..4);
        assert_eq!((scene.files.open(), scene.files.ring.lock().len()), (0, 0));
        (0..4).for_each(|table| assert_eq!(scene.read(table).expect("read"), 4 + table as u8));
        assert_eq!(scene.files.open(), 4);
    }
}
