//! The real world: the file system and the clocks of Linux.
//!
//! **Promise.** Each method is the system call its trait names and no more: no lock, no allocation and no
//! hidden state on the way of a read or a write, so that what the kernel does is what is measured. Interrupted
//! calls are repeated; a short write is continued. Every descriptor is opened with `O_CLOEXEC`. Files and directories
//! that are made are for their owner alone, whatever the umask allows.
//!
//! **Caveats.** Linux only: `preadv2` with `RWF_NOWAIT`, `sync_file_range` and `/proc` have no stand-in for
//! other systems. Errors are the system's own, without the path: the caller knows it and says it.

mod clock;
mod file;
mod lock;
pub mod process;

use crate::fs::{DirLock, File, Fs, IoCounters, OpenMode};
use file::OsFile;
use lock::OsLock;
use rustix::fs::{OFlags, statvfs};
use rustix::io::Errno;
use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

pub use clock::OsClock;

/// Mode of files that are made.
const FILE_MODE: u32 = 0o600;
/// Mode of directories that are made.
const DIR_MODE: u32 = 0o700;
/// The bits of a mode that give rights to others than the owner.
const OTHERS_MODE: u32 = 0o077;

/// The file system of this machine.
#[derive(Debug, Default)]
pub struct OsFs {
    counters: Arc<IoCounters>,
}

impl OsFs {
    /// The file system, with counters of its own.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Fs for OsFs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let file = options_of(mode).open(path).map_err(name_symlink)?;
        if mode == OpenMode::ReadPlain && !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a plain file"));
        }
        Ok(Arc::new(OsFile::new(file, Arc::clone(&self.counters))))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(DIR_MODE).create(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let name = entry?.file_name().into_string();
            names.push(name.map_err(|name| {
                io::Error::new(io::ErrorKind::InvalidData, format!("file name {name:?} is not UTF-8"))
            })?);
        }
        names.sort_unstable();
        Ok(names)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn file_number(&self, path: &Path) -> io::Result<u64> {
        std::fs::metadata(path).map(|metadata| metadata.ino())
    }

    fn is_symlink(&self, path: &Path) -> io::Result<bool> {
        std::fs::symlink_metadata(path).map(|metadata| metadata.is_symlink())
    }

    fn is_private(&self, path: &Path) -> io::Result<bool> {
        std::fs::metadata(path).map(|metadata| metadata.mode() & OTHERS_MODE == 0)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_dir(path)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::hard_link(from, to)
    }

    fn link_count(&self, path: &Path) -> io::Result<u64> {
        std::fs::metadata(path).map(|metadata| metadata.nlink())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let directory = std::fs::File::open(path)?;
        if !directory.metadata()?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        directory.sync_all()?;
        self.counters.count_sync();
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>> {
        Ok(Box::new(OsLock::take(path)?))
    }

    fn available_bytes(&self, path: &Path) -> io::Result<u64> {
        let space = statvfs(path)?;
        Ok(space.f_bavail.saturating_mul(space.f_frsize))
    }

    fn counters(&self) -> &IoCounters {
        &self.counters
    }
}

fn options_of(mode: OpenMode) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(!mode.is_read_only()).mode(FILE_MODE);
    match mode {
        OpenMode::Read | OpenMode::ReadWrite => {}
        OpenMode::ReadPlain => {
            // Without O_NONBLOCK, opening a pipe waits for a writer. Plain files are read as ever.
            options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
        }
        OpenMode::CreateNew => {
            // O_EXCL follows no link.
            options.create_new(true);
        }
        OpenMode::CreateOrTruncate => {
            options.create(true).truncate(true).custom_flags(OFlags::NOFOLLOW.bits() as i32);
        }
    }
    options
}

/// The system says of a symbolic link that there are too many of them.
fn name_symlink(error: io::Error) -> io::Error {
    match Errno::from_io_error(&error) {
        Some(Errno::LOOP) => {
            io::Error::new(io::ErrorKind::InvalidInput, "it is a symbolic link, which is not followed")
        }
        _ => error,
    }
}
