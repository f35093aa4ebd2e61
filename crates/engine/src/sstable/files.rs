//! The open files of tables: a bounded number of them.
//!
//! **Promise.** At most the bound of table files are open, besides those that a read is using at this moment. A read of a
//! table whose file is open makes no other system call for it and takes no lock. Running out of descriptors is an error of
//! that one read, never damage: [`Error::Exhausted`](crate::Error::Exhausted).
//!
//! **Mechanism.** Each table has a [`TableFile`], which is a [`File`] that opens itself when it is used. An open file is
//! entered in a ring. When there are more than the bound, the ring turns: a file that was used since it last passed stays,
//! another one is closed (second chance, the CLOCK algorithm). Its descriptor goes when the last read that uses it is
//! through. When the system has no descriptor left, a part of the ring is closed and the file is tried once more.
//!
//! **Caveats.** A read that must not wait says that it would where the file is closed. Reading ahead is not done then.

use arc_swap::ArcSwapOption;
use env::{File, Fs, OpenMode, is_out_of_descriptors};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// When no descriptor is left, this part of the open files is closed.
const CLOSED_SHARE: usize = 4;

/// Opens the files of tables, and closes those that were not used for longest. See the module.
pub struct TableFiles {
    fs: Arc<dyn Fs>,
    open_max: usize,
    /// Those that are open, and a few whose table is gone. Never held through I/O.
    ring: Mutex<VecDeque<Weak<TableFile>>>,
}

/// The file of a table, open or not.
pub(super) struct TableFile {
    files: Arc<TableFiles>,
    path: PathBuf,
    open: ArcSwapOption<Opened>,
    /// Whether it was used since the ring last passed it.
    is_used: AtomicBool,
    own: Weak<Self>,
}

struct Opened(Arc<dyn File>);

/// A file had to be opened for the call, and could not be.
#[derive(Debug)]
pub(crate) struct NotOpened(pub(crate) io::Error);

impl TableFiles {
    /// Files of `fs`, of which at most `open_max` stay open; at least one may.
    pub fn new(fs: Arc<dyn Fs>, open_max: usize) -> Self {
        Self { fs, open_max: open_max.max(1), ring: Mutex::default() }
    }

    /// How many are open now, those aside that only a read keeps open.
    pub fn open(&self) -> usize {
        let is_open = |file: &Arc<TableFile>| file.open.load().is_some();
        self.ring.lock().iter().filter_map(Weak::upgrade).filter(is_open).count()
    }

    /// The file at `path`, closed as yet.
    pub(super) fn file(self: &Arc<Self>, path: &Path) -> Arc<TableFile> {
        Arc::new_cyclic(|own| TableFile {
            files: Arc::clone(self),
            path: path.to_owned(),
            open: ArcSwapOption::empty(),
            is_used: AtomicBool::new(false),
            own: Weak::clone(own),
        })
    }

    fn open_file(&self, path: &Path) -> io::Result<Arc<Opened>> {
        let open = || self.fs.open(path, OpenMode::Read).map(|file| Arc::new(Opened(file)));
        let opened = match open() {
            Err(error) if is_out_of_descriptors(&error) => {
                let open_now = self.ring.lock().len();
                let is_less = self.close_beyond(open_now - open_now.div_ceil(CLOSED_SHARE));
                if is_less { open() } else { Err(error) }
            }
            opened => opened,
        };
        opened.map_err(|error| io::Error::other(NotOpened(error)))
    }

    /// Closes files that were not used lately until no more than `max` are open. Whether any was closed.
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
        // Closing is a system call: it is made here, without the lock.
        !closed.is_empty()
    }
}

impl TableFile {
    /// The open file, which is opened first if need be.
    #[cold]
    fn open_now(&self) -> io::Result<Arc<Opened>> {
        // Two readers may come here at once: both open it, and the first to finish is kept.
        let opened = self.files.open_file(&self.path)?;
        {
            let mut ring = self.files.ring.lock();
            if let Some(there) = self.open.load_full() {
                return Ok(there);
            }
            self.open.store(Some(Arc::clone(&opened)));
            // One use is no reason to stay: a job that reads every table once closes none that is used again and again.
            self.is_used.store(false, Ordering::Relaxed);
            ring.push_back(Weak::clone(&self.own));
        }
        self.files.close_beyond(self.files.open_max);
        Ok(opened)
    }

    #[inline]
    fn uses(&self) {
        // Looked at first, so that readers do not take the cache line from each other.
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
    }

    #[inline]
    fn with<T>(&self, call: impl FnOnce(&dyn File) -> io::Result<T>) -> io::Result<T> {
        self.uses();
        if let Some(opened) = &*self.open.load() {
            return call(&*opened.0);
        }
        call(&*self.open_now()?.0)
    }
}

impl File for TableFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.with(|file| file.read_at(buf, offset))
    }

    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        self.uses();
        match &*self.open.load() {
            Some(opened) => opened.0.read_at_nowait(buf, offset),
            None => Ok(None),
        }
    }

    fn read_from_device(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.with(|file| file.read_from_device(buf, offset))
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
        self.with(|file| file.len())
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

impl fmt::Display for NotOpened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for NotOpened {}

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
        /// Tables of one byte, their number.
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
    fn no_more_are_open_than_may_be_and_all_can_be_read() {
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
    fn what_is_read_again_and_again_stays_open() {
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
    fn a_read_that_may_not_wait_opens_nothing() {
        let scene = Scene::with(1, 4);
        assert_eq!(scene.tables[0].read_at_nowait(&mut [0], 0).expect("no error"), None);
        assert_eq!(scene.faults.operations(), 0);
        scene.read(0).expect("read");
        assert_eq!(scene.tables[0].read_at_nowait(&mut [0], 0).expect("no error"), Some(1));
    }

    #[test]
    fn without_descriptors_other_tables_are_closed_first() {
        let scene = Scene::with(9, 8);
        (0..8).for_each(|table| assert_eq!(scene.read(table).expect("read"), table as u8));
        scene.run_out_of_descriptors(OperationMatch::kind(OperationKind::Open));
        assert_eq!(scene.read(8).expect("another was closed for it"), 8);
        assert_eq!(scene.files.open(), 7);
    }

    #[test]
    fn a_read_that_gets_no_descriptor_fails_and_the_next_one_may_not() {
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
    fn tables_that_are_gone_take_no_place() {
        let mut scene = Scene::with(8, 4);
        (0..4).for_each(|table| assert_eq!(scene.read(table).expect("read"), table as u8));
        scene.tables.drain(..4);
        assert_eq!((scene.files.open(), scene.files.ring.lock().len()), (0, 0));
        (0..4).for_each(|table| assert_eq!(scene.read(table).expect("read"), 4 + table as u8));
        assert_eq!(scene.files.open(), 4);
    }
}
