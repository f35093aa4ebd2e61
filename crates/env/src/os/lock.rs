//! A lock file.
//!
//! `flock` belongs to the open file description, not to the process. So a second open in the same
//! process is refused too, and the kernel releases the lock with the last descriptor, however the
//! process dies. The file stays: removing it would allow two holders to lock two files of the same
//! name.

use super::{FILE_MODE, open_regular};
use crate::fs::DirLock;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::retry_on_intr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A lock that is held while its descriptor is open.
pub(super) struct OsLock {
    _held: File,
}

impl OsLock {
    pub(super) fn take(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
        options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
        let file = open_regular(&mut options, path)?;
        retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockExclusive))?;
        Ok(Self { _held: file })
    }
}

impl DirLock for OsLock {}
