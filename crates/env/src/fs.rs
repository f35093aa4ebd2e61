//! Files, and the durability of each call.
//!
//! Each call distinguishes two kinds of crash. When the *process* dies (`kill -9`), every call that
//! returned has taken effect. When *power* is lost, only changes that the doc of a call names as
//! durable are certain. Any subset of the other changes may survive, in any order, torn at any
//! byte.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The mode of [`Fs::open`]: how it treats files that exist and files that do not.
///
/// Every mode opens regular files only. A directory, a pipe, a socket or a device is an error of
/// kind [`InvalidInput`](io::ErrorKind::InvalidInput). Opening a pipe never blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Opens an existing file for reading only.
    Read,
    /// Opens an existing file for reading only. A name that is a symbolic link is an error of kind
    /// [`InvalidInput`](io::ErrorKind::InvalidInput).
    ReadRegular,
    /// Opens an existing file for reading and writing.
    ReadWrite,
    /// Creates an empty file for reading and writing. The name must not exist.
    CreateNew,
    /// Creates an empty file, or truncates an existing one, for reading and writing. Fails if the
    /// name is a symbolic link.
    CreateOrTruncate,
}

impl OpenMode {
    /// Whether the file is opened for reading only.
    pub const fn is_read_only(self) -> bool {
        matches!(self, Self::Read | Self::ReadRegular)
    }
}

/// A file system. It uses paths as given: callers join them.
///
/// Errors are `std::io::Error`s. A full disk is [`io::ErrorKind::StorageFull`] or
/// [`io::ErrorKind::QuotaExceeded`].
pub trait Fs: Send + Sync {
    /// Opens a file. A new file is accessible to its owner only (mode 0600). The *name* of a new
    /// file is durable after [`Fs::sync_dir`] of its directory.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>>;

    /// Creates a directory and its missing ancestors, accessible to their owner only (mode 0700).
    /// Each is durable after [`Fs::sync_dir`] of its parent.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Lists the names (not paths) of a directory's entries, sorted.
    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>>;

    /// Whether an entry of any type has this name.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// Identifies the file of this name: the number differs from that of any other file that is
    /// open or has a name. It is 0 on platforms without such numbers. Fails with
    /// [`NotFound`](io::ErrorKind::NotFound) if no file has the name.
    fn file_number(&self, path: &Path) -> io::Result<u64> {
        if self.exists(path)? { Ok(0) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Whether this name is a symbolic link. Fails with [`NotFound`](io::ErrorKind::NotFound) if
    /// the name does not exist.
    fn is_symlink(&self, path: &Path) -> io::Result<bool> {
        if self.exists(path)? { Ok(false) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Whether only the owner and the administrator can access this path (mode `0?00`). True on
    /// platforms without such permissions.
    fn is_private(&self, path: &Path) -> io::Result<bool> {
        if self.exists(path)? { Ok(true) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Renames a file, atomically replacing another, or renames a directory to a name that does not
    /// exist.
    ///
    /// The rename is durable, with the old name gone and the new name present, after
    /// [`Fs::sync_dir`] of both directories. Before that, power loss may undo it, independently of
    /// the order of other renames.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes the name of a file or of a symbolic link. Fails with
    /// [`IsADirectory`](io::ErrorKind::IsADirectory) for a directory. Durable after
    /// [`Fs::sync_dir`]; before that, power loss may restore the name.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory. Durable after [`Fs::sync_dir`] of its parent. Before that, power
    /// loss may restore it, including entries whose removal was not synced.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// Creates a second name for a file. Durable after [`Fs::sync_dir`].
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// The number of names of a file.
    fn link_count(&self, path: &Path) -> io::Result<u64>;

    /// Makes the creations, renames and removals in a directory durable.
    ///
    /// An error leaves these changes pending, so the call may be repeated. File systems keep names
    /// in a journal, and stop when they cannot write it.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Acquires the lock file `path` for this process until the guard is dropped or the process
    /// dies.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] while another holder has the lock, in this process or another.
    /// [`io::ErrorKind::InvalidInput`] if `path` is not a regular file.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>>;

    /// Bytes that an unprivileged writer can still add to the file system that holds `path`.
    fn available_bytes(&self, path: &Path) -> io::Result<u64>;

    /// Counters of the calls to this file system.
    fn counters(&self) -> &IoCounters;
}

/// A held lock. Dropping it releases the lock.
pub trait DirLock: Send + Sync {}

/// An open file. All positions are absolute. Threads may call it concurrently.
pub trait File: Send + Sync {
    /// Reads into `buf` from `offset`. Returns fewer bytes than requested only at the end of the
    /// file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Like [`File::read_at`], but never waits for the device: returns `None` if the read would
    /// wait.
    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>>;

    /// Like [`File::read_at`], but reads from the device where the platform supports it, bypassing
    /// the page cache and leaving it almost unchanged.
    ///
    /// It verifies the bytes that the device holds. It disables read-ahead on this handle, so the
    /// handle should have no other use.
    fn read_from_device(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_at(buf, offset)
    }

    /// Writes all of `bytes` at `offset`, growing the file if necessary. Durable after
    /// [`File::sync_data`].
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Writes all of `parts` consecutively at `offset`, in one system call where the platform
    /// supports it.
    fn write_vectored_at(&self, parts: &[io::IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut at = offset;
        for part in parts {
            self.write_at(part, at)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Makes all bytes written before the call durable, and the file's length as far as reading
    /// those bytes requires it (`fdatasync`).
    ///
    /// After *any* error, including a full disk, the durability of all bytes written since the last
    /// success is unknown. The kernel may have dropped them and marked their pages clean. Reads
    /// return the bytes until the pages are evicted, and the next call succeeds, but the bytes are
    /// not durable. The caller must write them again before it relies on a later success. Lengths
    /// set by [`File::set_len`] are not dropped.
    fn sync_data(&self) -> io::Result<()>;

    /// Starts writing this range to the device, without waiting and without any promise. It spreads
    /// the cost of a later [`File::sync_data`].
    fn start_writeback(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Waits until the device has written the parts of this range whose writeback was started.
    ///
    /// A caller that waits periodically keeps the device's queue short, so that syncs of other
    /// files do not wait behind it. The call makes nothing durable. Treat an error as an error of
    /// [`File::sync_data`], which may not report it again.
    fn finish_writeback(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// Drops the unsynced bytes of a simulated disk, as the kernel does after a device failed to
    /// write them: no later sync makes them durable. `seed` selects bytes that reach the device
    /// nevertheless.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] on a real disk.
    fn lose_unsynced(&self, _seed: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Truncates the file, or extends it with zeros, to `len` bytes. Durable after
    /// [`File::sync_data`].
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// The file's length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file's length is 0.
    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }

    /// Hints that this range will be read soon, so that the system may read it ahead. It neither
    /// waits for the device nor promises anything.
    fn prefetch(&self, offset: u64, len: u64) -> io::Result<()>;
}

/// Whether the process (`EMFILE`) or the system (`ENFILE`) has no file descriptor left. Only calls
/// that open files fail this way, before they have any effect.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

impl dyn Fs + '_ {
    /// Creates a directory and its missing ancestors durably: they survive power loss once this
    /// returns. It skips the sync of ancestors that this process has no permission to read; their
    /// creators are responsible for them.
    pub fn create_dir_all_durably(&self, path: &Path) -> io::Result<()> {
        self.create_dir_all(path)?;
        for above in path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
            match self.sync_dir(above) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
                synced => synced?,
            }
        }
        Ok(())
    }

    /// Removes a directory and its contents, or an entry of any other type. It removes a symbolic
    /// link itself, never its target.
    ///
    /// The removal is as durable as that of [`Fs::remove_dir`]. After an error or the death of the
    /// process, a second call removes the rest.
    ///
    /// A directory that another process concurrently replaces by a symbolic link may be followed.
    /// So only the owner of the directories may have permission to write to them.
    pub fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        // Tried first, because listing the names of a symbolic link would follow it.
        match self.remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {}
            removed => return removed,
        }
        for name in self.read_dir(path)? {
            self.remove_dir_all(&path.join(name))?;
        }
        self.remove_dir(path)
    }
}

impl dyn File + '_ {
    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the file ends before `buf` is full.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.read_at(buf, offset)? == buf.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
}

/// Counts of successful calls since start, for tests and metrics. Updates are relaxed: a reader may
/// see them late.
#[derive(Debug, Default)]
pub struct IoCounters {
    /// Calls of [`File::read_at`], and of [`File::read_at_nowait`] that found their bytes.
    pub reads: AtomicU64,
    /// Bytes returned by these calls.
    pub read_bytes: AtomicU64,
    /// Calls of [`File::read_at_nowait`] that returned `None`.
    pub reads_would_wait: AtomicU64,
    /// Calls of [`File::write_at`] and [`File::write_vectored_at`].
    pub writes: AtomicU64,
    /// Bytes written by these calls.
    pub written_bytes: AtomicU64,
    /// Calls of [`File::sync_data`] and [`Fs::sync_dir`].
    pub syncs: AtomicU64,
}

/// A snapshot of [`IoCounters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounts {
    /// Value of [`IoCounters::reads`].
    pub reads: u64,
    /// Value of [`IoCounters::read_bytes`].
    pub read_bytes: u64,
    /// Value of [`IoCounters::reads_would_wait`].
    pub reads_would_wait: u64,
    /// Value of [`IoCounters::writes`].
    pub writes: u64,
    /// Value of [`IoCounters::written_bytes`].
    pub written_bytes: u64,
    /// Value of [`IoCounters::syncs`].
    pub syncs: u64,
}

impl IoCounters {
    pub(crate) fn count_read(&self, bytes: usize) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_would_wait(&self) {
        self.reads_would_wait.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_write(&self, bytes: usize) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_sync(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    /// Reads all counters.
    pub fn counts(&self) -> IoCounts {
        IoCounts {
            reads: self.reads.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            reads_would_wait: self.reads_would_wait.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            syncs: self.syncs.load(Ordering::Relaxed),
        }
    }
}
