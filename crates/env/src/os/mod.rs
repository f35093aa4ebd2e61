//! The file system and the clocks of Linux.
//!
//! **Promise.** Each method makes the system call that its trait names, and no other. Reads and
//! writes take no lock, allocate nothing and keep no hidden state, so that measurements show the
//! kernel's behaviour. Interrupted calls are repeated, and short writes are continued. Every
//! descriptor is opened with `O_CLOEXEC`. New files and directories are accessible to their owner
//! only, regardless of the umask.
//!
//! **Caveats.** Linux only: `preadv2` with `RWF_NOWAIT`, `sync_file_range` and `/proc` have no
//! substitutes for other systems. Errors are the system's own, without the path: callers know the
//! path and add it.

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

/// Mode of new files.
const FILE_MODE: u32 = 0o600;
/// Mode of new directories.
const DIR_MODE: u32 = 0o700;
/// The mode bits that grant permissions to users other than the owner.
const OTHERS_MODE: u32 = 0o077;

/// The file system of this machine.
#[derive(Debug, Default)]
pub struct OsFs {
    counters: Arc<IoCounters>,
}

impl OsFs {
    /// Creates a handle on the file system, with its own counters.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Fs for OsFs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let file = open_regular(&mut options_of(mode), path)?;
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

/// Opens a regular file. Any other file type is an error of kind
/// [`InvalidInput`](io::ErrorKind::InvalidInput).
fn open_regular(options: &mut OpenOptions, path: &Path) -> io::Result<std::fs::File> {
    let file = options.open(path).map_err(name_symlink)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
}

fn options_of(mode: OpenMode) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(!mode.is_read_only()).mode(FILE_MODE);
    // Without O_NONBLOCK, opening a pipe waits for its other end. The flag does not affect regular
    // files.
    let mut flags = OFlags::NONBLOCK;
    match mode {
        OpenMode::Read | OpenMode::ReadWrite => {}
        OpenMode::ReadRegular => flags |= OFlags::NOFOLLOW,
        OpenMode::CreateNew => {
            // O_EXCL follows no symbolic link.
            options.create_new(true);
        }
        OpenMode::CreateOrTruncate => {
            options.create(true).truncate(true);
            flags |= OFlags::NOFOLLOW;
        }
    }
    options.custom_flags(flags.bits() as i32);
    options
}

/// Replaces `ELOOP`, the system's error for a refused symbolic link, by a clearer error.
fn name_symlink(error: io::Error) -> io::Error {
    match Errno::from_io_error(&error) {
        Some(Errno::LOOP) => {
            io::Error::new(io::ErrorKind::InvalidInput, "it is a symbolic link, which is not followed")
        }
        _ => error,
    }
}
