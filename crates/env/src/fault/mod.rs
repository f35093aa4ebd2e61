//! A file system that fails on demand.
//!
//! **Promise.** [`FaultFs`] passes every call to another file system, unless its [`FaultPlan`]
//! injects a fault. Calls are numbered from 0 in the order in which they begin, including calls on
//! open files. A test first counts the calls of a run ([`FaultFs::operations`]), then repeats the
//! run once per number with [`FaultPlan::stop_after`]. It then has stopped at every possible point.
//!
//! A call that fails by a plan has no effect, with three exceptions:
//!
//! - A torn or short write has a partial effect.
//! - [`Fault::ErrnoAfterEffect`] has the full effect.
//! - [`Fault::LoseUnsynced`] drops the unsynced bytes of the file.
//!
//! **Caveats.** After [`Fault::Error`] and [`Fault::Errno`] of a sync, the bytes stay unsynced, so
//! that the next sync makes them durable. The kernel promises this only for errors before it begins
//! to write. A failed sync of a directory drops no names: file systems keep names in a journal, and
//! stop when they cannot write it. An open file keeps the path by which it was opened, also when it
//! is renamed. Dropping a lock is not numbered and always succeeds. Nothing here sleeps: a delay
//! calls a function that the test provides.

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

pub use plan::{Fault, FaultPlan, FsCall, OperationKind, OperationMatch};

/// A file system with faults. Clones share the plan and the counter.
#[derive(Clone)]
pub struct FaultFs {
    inner: Arc<dyn Fs>,
    faults: Arc<Faults>,
}

/// State shared between a file system and its open files.
struct Faults {
    plan: RwLock<Arc<FaultPlan>>,
    operations: AtomicU64,
}

/// How a call is carried out that the plan does not fail beforehand.
enum Execution {
    Normal,
    /// A read in which this bit of the returned bytes is flipped.
    FlipBit(u64),
    /// A write of this number of bytes, which then fails because the process stopped.
    Tear(usize),
    /// A write of this number of bytes, which then fails with this error number.
    Short(usize, i32),
    /// The complete call, which then fails with this error number.
    Fail(i32),
    /// A call that drops the unsynced bytes of the file.
    Lose(Lost),
}

/// The error number of a sync that loses bytes, and the seed that selects surviving ones.
#[derive(Clone, Copy)]
struct Lost {
    errno: i32,
    seed: u64,
}

impl FaultFs {
    /// Wraps `inner` with the faults of `plan`.
    pub fn new(inner: Arc<dyn Fs>, plan: FaultPlan) -> Self {
        let faults = Faults { plan: RwLock::new(Arc::new(plan)), operations: AtomicU64::new(0) };
        Self { inner, faults: Arc::new(faults) }
    }

    /// Replaces the plan from the next call on, also for open files. The numbering continues.
    pub fn set_plan(&self, plan: FaultPlan) {
        *self.faults.plan.write() = Arc::new(plan);
    }

    /// Removes all faults.
    pub fn clear(&self) {
        self.set_plan(FaultPlan::none());
    }

    /// The number of calls that have begun, which is the number of the next call.
    pub fn operations(&self) -> u64 {
        self.faults.operations.load(Ordering::Relaxed)
    }

    /// Whether [`Fault::Stop`] or [`Fault::Tear`] caused this error.
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
    fn begin(&self, kind: OperationKind, path: &Path, len: usize) -> io::Result<Execution> {
        self.begin_pair(kind, path, None, len)
    }

    /// Numbers a call, consults the plan, and applies the faults that precede the call's effect.
    fn begin_pair(
        &self,
        kind: OperationKind,
        path: &Path,
        to: Option<&Path>,
        len: usize,
    ) -> io::Result<Execution> {
        let number = self.operations.fetch_add(1, Ordering::Relaxed);
        // Cloned, so that a plan can replace itself and a delay blocks no other thread.
        let plan = Arc::clone(&self.plan.read());
        match plan.decide(&FsCall { number, kind, path, to, len }) {
            None => Ok(Execution::Normal),
            Some(Fault::Error(kind)) => Err(io::Error::new(kind, "injected fault")),
            Some(Fault::DeviceError) => Err(io::Error::from_raw_os_error(libc::EIO)),
            Some(Fault::Stop) => Err(stopped()),
            Some(Fault::Tear { bytes }) => Ok(Execution::Tear(bytes)),
            Some(Fault::Errno(errno)) => Err(io::Error::from_raw_os_error(errno)),
            Some(Fault::ErrnoAfterEffect(errno)) => Ok(Execution::Fail(errno)),
            Some(Fault::ShortWrite { bytes, errno }) => Ok(Execution::Short(bytes, errno)),
            Some(Fault::LoseUnsynced { errno, seed }) => Ok(Execution::Lose(Lost { errno, seed })),
            Some(Fault::FlipBit { bit }) => Ok(Execution::FlipBit(bit)),
            Some(Fault::Delay { duration, wait }) => {
                wait(duration);
                Ok(Execution::Normal)
            }
        }
    }
}

impl Execution {
    /// Carries out a call without bytes to tear, flip or lose. Such a call stops or fails before
    /// its effect.
    fn without_bytes<T>(self, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self {
            Self::Normal | Self::FlipBit(_) => call(),
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
