//! A file system that fails on demand.
//!
//! **Promise.** [`FaultFs`] passes every call on to another file system, unless its [`FaultPlan`] names a fault
//! for it. Calls are numbered from 0 in the order in which they begin, those on open files included; so a test
//! runs once to learn how many there are ([`FaultFs::operations`]), then once for each number with
//! [`FaultPlan::stop_after`], and has stopped at every place where the process can. A call that fails by a
//! plan has had no effect, except where the [`Fault`] names one: a torn or short write has a part of it,
//! [`Fault::ErrnoAfterEffect`] all of it, and [`Fault::LoseUnsynced`] drops what the file had unsynced.
//!
//! **Caveats.** [`Fault::Error`] and [`Fault::Errno`] of a sync leave the bytes unsynced, so that the next sync makes
//! them durable: the kernel promises that only for errors before it began to write. A failed sync of a directory drops
//! no names: file systems keep them in a journal, and stop when they cannot write it. A file keeps the path by which it
//! was opened when it is renamed. Dropping a lock is not a call: it always works. Nothing here sleeps: a delay calls
//! what the test gives.

mod file;
mod plan;

use crate::fs::{DirLock, File, Fs, IoCounters, OpenMode};
use file::FaultFile;
use parking_lot::RwLock;
use plan::Stopped;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use plan::{Fault, FaultPlan, Operation, OperationKind, OperationMatch};

/// A file system with faults. Clones share the plan and the count.
#[derive(Clone)]
pub struct FaultFs {
    inner: Arc<dyn Fs>,
    faults: Arc<Faults>,
}

/// What a file system shares with its open files.
struct Faults {
    plan: RwLock<Arc<FaultPlan>>,
    operations: AtomicU64,
}

/// How a call that may go on goes on.
enum Course {
    AsAsked,
    /// A read with this bit of what it read turned over.
    FlipBit(u64),
    /// A write of this many bytes, which then fails.
    Tear(usize),
    /// A write of this many bytes, which then fails with this error number.
    Short(usize, i32),
    /// All of the call, which then fails with this error number.
    Fail(i32),
    /// The unsynced bytes of the file are dropped.
    Lose(Lost),
}

/// What becomes of unsynced bytes, and how it is told.
#[derive(Clone, Copy)]
struct Lost {
    errno: i32,
    seed: u64,
}

impl FaultFs {
    /// `inner`, with the faults of `plan`.
    pub fn new(inner: Arc<dyn Fs>, plan: FaultPlan) -> Self {
        let faults = Faults { plan: RwLock::new(Arc::new(plan)), operations: AtomicU64::new(0) };
        Self { inner, faults: Arc::new(faults) }
    }

    /// Has `plan` decide from the next call on, also for open files. Numbering goes on.
    pub fn set_plan(&self, plan: FaultPlan) {
        *self.faults.plan.write() = Arc::new(plan);
    }

    /// Ends all faults.
    pub fn clear(&self) {
        self.set_plan(FaultPlan::none());
    }

    /// How many calls have begun: the number of the next one.
    pub fn operations(&self) -> u64 {
        self.faults.operations.load(Ordering::Relaxed)
    }

    /// Whether this error says that the process has stopped by [`Fault::Stop`] or [`Fault::Tear`].
    pub fn is_stop(error: &io::Error) -> bool {
        match error.get_ref() {
            Some(inner) => inner.is::<Stopped>(),
            None => false,
        }
    }

    fn call<T>(
        &self,
        kind: OperationKind,
        path: &Path,
        call: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        self.faults.begin_pair(kind, path, None, 0)?.without_bytes(call)
    }

    fn call_pair(
        &self,
        kind: OperationKind,
        from: &Path,
        to: &Path,
        call: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        self.faults.begin_pair(kind, from, Some(to), 0)?.without_bytes(call)
    }
}

impl Fs for FaultFs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let file = self.call(OperationKind::Open, path, || self.inner.open(path, mode))?;
        Ok(Arc::new(FaultFile::new(file, path, Arc::clone(&self.faults))))
    }

    fn is_private(&self, path: &Path) -> io::Result<bool> {
        self.inner.is_private(path)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.call(OperationKind::CreateDir, path, || self.inner.create_dir_all(path))
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        self.call(OperationKind::ReadDir, path, || self.inner.read_dir(path))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.call(OperationKind::Exists, path, || self.inner.exists(path))
    }

    fn file_number(&self, path: &Path) -> io::Result<u64> {
        self.call(OperationKind::Exists, path, || self.inner.file_number(path))
    }

    fn is_symlink(&self, path: &Path) -> io::Result<bool> {
        self.call(OperationKind::Exists, path, || self.inner.is_symlink(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call_pair(OperationKind::Rename, from, to, || self.inner.rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.call(OperationKind::Remove, path, || self.inner.remove_file(path))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.call(OperationKind::RemoveDir, path, || self.inner.remove_dir(path))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call_pair(OperationKind::Link, from, to, || self.inner.hard_link(from, to))
    }

    fn link_count(&self, path: &Path) -> io::Result<u64> {
        self.call(OperationKind::LinkCount, path, || self.inner.link_count(path))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.call(OperationKind::SyncDir, path, || self.inner.sync_dir(path))
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>> {
        self.call(OperationKind::Lock, path, || self.inner.lock(path))
    }

    fn available_bytes(&self, path: &Path) -> io::Result<u64> {
        self.call(OperationKind::AvailableBytes, path, || self.inner.available_bytes(path))
    }

    fn counters(&self) -> &IoCounters {
        self.inner.counters()
    }
}

impl Faults {
    fn begin(&self, kind: OperationKind, path: &Path, len: usize) -> io::Result<Course> {
        self.begin_pair(kind, path, None, len)
    }

    /// Numbers a call, asks the plan, and carries out what can be carried out before it.
    fn begin_pair(
        &self,
        kind: OperationKind,
        path: &Path,
        to: Option<&Path>,
        len: usize,
    ) -> io::Result<Course> {
        let number = self.operations.fetch_add(1, Ordering::Relaxed);
        // Cloned, so that a plan may replace itself and a delay holds up nobody else.
        let plan = Arc::clone(&self.plan.read());
        match plan.decide(&Operation { number, kind, path, to, len }) {
            None => Ok(Course::AsAsked),
            Some(Fault::Error(kind)) => Err(io::Error::new(kind, "injected fault")),
            Some(Fault::DeviceError) => Err(io::Error::from_raw_os_error(libc::EIO)),
            Some(Fault::Stop) => Err(stopped()),
            Some(Fault::Tear { bytes }) => Ok(Course::Tear(bytes)),
            Some(Fault::Errno(errno)) => Err(io::Error::from_raw_os_error(errno)),
            Some(Fault::ErrnoAfterEffect(errno)) => Ok(Course::Fail(errno)),
            Some(Fault::ShortWrite { bytes, errno }) => Ok(Course::Short(bytes, errno)),
            Some(Fault::LoseUnsynced { errno, seed }) => Ok(Course::Lose(Lost { errno, seed })),
            Some(Fault::FlipBit { bit }) => Ok(Course::FlipBit(bit)),
            Some(Fault::Delay { duration, wait }) => {
                wait(duration);
                Ok(Course::AsAsked)
            }
        }
    }
}

impl Course {
    /// Carries out a call that has no bytes to tear, to turn over or to lose: such a call stops or fails before its effect.
    fn without_bytes<T>(self, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self {
            Self::AsAsked | Self::FlipBit(_) => call(),
            Self::Tear(_) => Err(stopped()),
            Self::Fail(errno) => call().and(Err(io::Error::from_raw_os_error(errno))),
            Self::Short(_, errno) | Self::Lose(Lost { errno, .. }) => {
                Err(io::Error::from_raw_os_error(errno))
            }
        }
    }
}

fn stopped() -> io::Error {
    io::Error::other(Stopped)
}
