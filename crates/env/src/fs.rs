//! Files, with what each call survives.
//!
//! Two kinds of crash are told apart. After the *process* dies (`kill -9`), every call that returned has
//! happened. After *power* is lost, only what the doc of a call names as durable is certain; of the rest any
//! part may be there, in any order, torn at any byte.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How [`Fs::open`] treats a file that is or is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Must be there; opened for reading only.
    Read,
    /// Must be there and be a plain file, and its name no symbolic link; opened for reading only. Anything else is an
    /// error of the kind [`InvalidInput`](io::ErrorKind::InvalidInput) and is not waited for, as opening a pipe would.
    ReadPlain,
    /// Must be there; opened for reading and writing.
    ReadWrite,
    /// Must not be there; made empty, for reading and writing.
    CreateNew,
    /// Made empty, or emptied if it was there; for reading and writing. An error where the name is a symbolic link.
    CreateOrTruncate,
}

impl OpenMode {
    /// Whether the file is opened for reading only.
    pub const fn is_read_only(self) -> bool {
        matches!(self, Self::Read | Self::ReadPlain)
    }
}

/// A file system. Paths are used as given; the caller joins them.
///
/// Errors are `std::io::Error`s. A full disk is [`io::ErrorKind::StorageFull`] or
/// [`io::ErrorKind::QuotaExceeded`].
pub trait Fs: Send + Sync {
    /// Opens a file. One that is made is for its owner alone (mode 0600). The *name* of a new file is durable after [`Fs::sync_dir`] of its directory.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>>;

    /// Makes a directory and those above it, for their owner alone (mode 0700). Durable after [`Fs::sync_dir`] of the parent of each.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Names (not paths) of the entries of a directory, sorted.
    fn read_dir(&self, path: &Path) -> io::Result<Vec<String>>;

    /// Whether something is there by this name.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// A number that tells the file of this name from any other file that is open or has a name, where the platform has
    /// such numbers. An error of the kind [`NotFound`](io::ErrorKind::NotFound) where no file has the name.
    fn file_number(&self, path: &Path) -> io::Result<u64> {
        if self.exists(path)? { Ok(0) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Whether this name is a symbolic link. An error of the kind [`NotFound`](io::ErrorKind::NotFound) where nothing has
    /// the name.
    fn is_symlink(&self, path: &Path) -> io::Result<bool> {
        if self.exists(path)? { Ok(false) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Whether only the owner may use what has this name (mode `0?00`), and the administrator. True where the platform has
    /// no such rights.
    fn is_private(&self, path: &Path) -> io::Result<bool> {
        if self.exists(path)? { Ok(true) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Renames a file over another, atomically for readers, or a directory to a name that is not taken. Durable,
    /// old name gone and new name there, after [`Fs::sync_dir`] of the directories; before that, power loss may
    /// undo it, also out of order with other renames.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes the name of a file or of a symbolic link. An error of the kind
    /// [`IsADirectory`](io::ErrorKind::IsADirectory) for a directory. Durable after [`Fs::sync_dir`]; before that, power loss may bring it back.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes a directory that is empty. Durable after [`Fs::sync_dir`] of its parent; before that, power loss may
    /// bring it back, also with what was removed from it and not synced.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// Gives a file a second name. Durable after [`Fs::sync_dir`].
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// How many names a file has.
    fn link_count(&self, path: &Path) -> io::Result<u64>;

    /// Makes the entries of a directory (creations, renames, removals) durable. After an error they are as before the
    /// call: file systems keep names in a journal, and stop when they cannot write it. So it can be called again.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Takes the lock file `path` for this process until the guard is dropped or the process dies.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] while another holder, in this process or another, has it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>>;

    /// Bytes that an unprivileged writer may still add to the file system that holds `path`.
    fn available_bytes(&self, path: &Path) -> io::Result<u64>;

    /// What was asked of this file system so far.
    fn counters(&self) -> &IoCounters;
}

/// A held lock. Dropping it releases it.
pub trait DirLock: Send + Sync {}

/// An open file. All positions are absolute; any number of threads may call at once.
pub trait File: Send + Sync {
    /// Reads into `buf` from `offset`; fewer bytes than asked only at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// As [`File::read_at`], but only if it need not wait for the device: `None` when it would. Never waits.
    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>>;

    /// As [`File::read_at`], but from the device where the platform can, and not from what the system holds in memory; that
    /// it leaves about as it was. For whoever wants to know what the device has, on a handle that is for nothing else: it
    /// is not read ahead of any more.
    fn read_from_device(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_at(buf, offset)
    }

    /// Writes all of `bytes` at `offset`, growing the file. Durable after [`File::sync_data`].
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Writes all of `parts`, one after the other, at `offset`: one system call where the platform can.
    fn write_vectored_at(&self, parts: &[io::IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut at = offset;
        for part in parts {
            self.write_at(part, at)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Makes every byte written before the call durable, and the file's length as far as reading them back
    /// needs it (`fdatasync`).
    ///
    /// After *any* error, a full disk included, nothing may be assumed of the bytes that were written since the last
    /// success. The kernel may have dropped them and taken their pages for clean: reads show them until the pages
    /// are evicted, the next call succeeds, and the bytes are not durable. They must be written again before a later
    /// call is believed. Lengths that were set with [`File::set_len`] are not dropped.
    fn sync_data(&self) -> io::Result<()>;

    /// Asks the device to begin writing this range, without waiting and without any promise: it spreads the
    /// cost of a later [`File::sync_data`].
    fn start_writeback(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Waits until the device has written what of this range it was asked to begin with: who does so now and then
    /// leaves it no long queue, in which the syncs of others would wait. Promises nothing; a failure is to be taken as
    /// one of [`File::sync_data`], which may not tell of it again.
    fn finish_writeback(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// Loses the unsynced bytes of a simulated disk, as the kernel does after a device did not take them: no later sync
    /// makes them durable. `seed` decides which reach the device all the same.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] on a real disk.
    fn lose_unsynced(&self, _seed: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Cuts or extends with zeros to `len` bytes. Durable after [`File::sync_data`].
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// The length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }

    /// Tells the system that this range will be read soon, so that it can begin to. Does not wait for the
    /// device, and promises nothing.
    fn prefetch(&self, offset: u64, len: u64) -> io::Result<()>;
}

/// Whether the process (`EMFILE`) or the system (`ENFILE`) has no file descriptor left. Only calls that open something
/// fail so, before they have any effect.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

impl dyn Fs + '_ {
    /// Makes a directory and those above it, so that all of them survive the loss of power when this returns.
    /// Directories above that may not be read are left to whoever made them.
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

    /// Removes a directory with all that is in it, or whatever else has this name. A symbolic link is removed, and what
    /// it leads to stays. As durable as [`Fs::remove_dir`] makes it; what is left when it fails, or when the process
    /// dies, can be removed by calling it again.
    ///
    /// A directory that another process replaces by a symbolic link meanwhile may be followed: only the owner of the
    /// directories may have the right to write to them.
    pub fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        // Tried first, because a list of names cannot be had of a link without following it.
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
    /// [`io::ErrorKind::UnexpectedEof`] when the file ends before.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.read_at(buf, offset)? == buf.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
}

/// Counts of calls that succeeded since start, for tests and metrics. Relaxed: a reader may see them a little late.
#[derive(Debug, Default)]
pub struct IoCounters {
    /// Calls of [`File::read_at`], and of [`File::read_at_nowait`] that found their bytes.
    pub reads: AtomicU64,
    /// Bytes they returned.
    pub read_bytes: AtomicU64,
    /// Calls of [`File::read_at_nowait`] that would have waited.
    pub reads_would_wait: AtomicU64,
    /// Calls of [`File::write_at`] and [`File::write_vectored_at`].
    pub writes: AtomicU64,
    /// Bytes they wrote.
    pub written_bytes: AtomicU64,
    /// Calls of [`File::sync_data`] and [`Fs::sync_dir`].
    pub syncs: AtomicU64,
}

/// A reading of [`IoCounters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounts {
    /// See [`IoCounters::reads`].
    pub reads: u64,
    /// See [`IoCounters::read_bytes`].
    pub read_bytes: u64,
    /// See [`IoCounters::reads_would_wait`].
    pub reads_would_wait: u64,
    /// See [`IoCounters::writes`].
    pub writes: u64,
    /// See [`IoCounters::written_bytes`].
    pub written_bytes: u64,
    /// See [`IoCounters::syncs`].
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

    /// Reads all counts.
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
