//! Planted faults: file systems that lose writes. Tests use them to show that a run finds such
//! faults.

use env::{DirLock, File, Fs, IoCounters, OpenMode, OsFs};
use parking_lot::Mutex;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A planted fault of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    /// A write to the log reaches the kernel only together with the next one. So a killed process
    /// loses the last record that it acknowledged, and leaves a log without damage.
    LaggingLog,
    /// Edits of the manifest are dropped, from the fourth write of a process on.
    ForgottenEdits,
}

impl PlantedFault {
    /// All planted faults.
    pub const ALL: [Self; 2] = [Self::LaggingLog, Self::ForgottenEdits];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::LaggingLog => "lagging-log",
            Self::ForgottenEdits => "forgotten-edits",
        }
    }

    /// Planted fault of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|plant| plant.name() == name)
    }

    /// Whether the fault affects writes to this file.
    fn is_for(self, path: &Path) -> bool {
        let is_below = |name: &str| path.components().any(|part| part.as_os_str() == name);
        let is_of_engine = !is_below("checkpoints");
        match self {
            // Segments are created under other names and renamed, so all files of the directory
            // count.
            Self::LaggingLog => is_of_engine && is_below("wal"),
            Self::ForgottenEdits => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                is_of_engine && name.starts_with("manifest-")
            }
        }
    }
}

/// The file system of the host, with a planted fault.
pub struct PlantFs {
    inner: OsFs,
    plant: PlantedFault,
    fault: Arc<Fault>,
}

/// Number of writes to the manifest that are not dropped.
const EDITS_KEPT: u64 = 3;

/// State that the affected files share.
enum Fault {
    /// The write that the kernel does not have yet.
    Lagging(Mutex<Option<DelayedWrite>>),
    /// Number of writes.
    Forgetful(AtomicU64),
}

/// An acknowledged write that the kernel does not have yet.
struct DelayedWrite {
    file: Arc<dyn File>,
    bytes: Vec<u8>,
    offset: u64,
}

impl Fault {
    fn write(&self, file: &Arc<dyn File>, bytes: Vec<u8>, offset: u64) -> io::Result<()> {
        match self {
            Self::Lagging(held) => {
                let mut held = held.lock();
                let next = DelayedWrite { file: Arc::clone(file), bytes, offset };
                held.replace(next).map_or(Ok(()), |last| last.file.write_at(&last.bytes, last.offset))
            }
            Self::Forgetful(writes) if writes.fetch_add(1, Ordering::SeqCst) >= EDITS_KEPT => Ok(()),
            Self::Forgetful(_) => file.write_at(&bytes, offset),
        }
    }
}

impl PlantFs {
    /// Creates the file system with `plant`.
    pub fn new(plant: PlantedFault) -> Self {
        let fault = match plant {
            PlantedFault::LaggingLog => Fault::Lagging(Mutex::default()),
            PlantedFault::ForgottenEdits => Fault::Forgetful(AtomicU64::new(0)),
        };
        Self { inner: OsFs::new(), plant, fault: Arc::new(fault) }
    }
}

impl Fs for PlantFs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let file = self.inner.open(path, mode)?;
        if !self.plant.is_for(path) {
            return Ok(file);
        }
        Ok(Arc::new(PlantFile { inner: file, fault: Arc::clone(&self.fault) }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.inner.create_dir_all(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        self.inner.read_dir(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.inner.exists(path)
    }

    fn file_number(&self, path: &Path) -> io::Result<u64> {
        self.inner.file_number(path)
    }

    fn is_symlink(&self, path: &Path) -> io::Result<bool> {
        self.inner.is_symlink(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_dir(path)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.hard_link(from, to)
    }

    fn link_count(&self, path: &Path) -> io::Result<u64> {
        self.inner.link_count(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.sync_dir(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>> {
        self.inner.lock(path)
    }

    fn available_bytes(&self, path: &Path) -> io::Result<u64> {
        self.inner.available_bytes(path)
    }

    fn counters(&self) -> &IoCounters {
        self.inner.counters()
    }
}

/// A file with a planted fault.
struct PlantFile {
    inner: Arc<dyn File>,
    fault: Arc<Fault>,
}

impl File for PlantFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner.read_at(buf, offset)
    }

    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        self.inner.read_at_nowait(buf, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.fault.write(&self.inner, bytes.to_vec(), offset)
    }

    fn write_vectored_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let bytes = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.fault.write(&self.inner, bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()
    }

    fn start_writeback(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.start_writeback(offset, len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn prefetch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.prefetch(offset, len)
    }
}
