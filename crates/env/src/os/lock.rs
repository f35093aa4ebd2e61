//! A lock file.
//!
//! `flock` belongs to the open file, not to the process: a second open in the same process is refused too, and
//! the lock goes with the last descriptor, however the process dies. The file stays behind; removing it
//! would let two holders lock two files of one name.

use super::FILE_MODE;
use crate::fs::DirLock;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::retry_on_intr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Held for as long as its descriptor is open.
pub(super) struct OsLock {
    _held: File,
}

impl OsLock {
    pub(super) fn take(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
        let file = options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(path)?;
        retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockExclusive))?;
        Ok(Self { _held: file })
    }
}

impl DirLock for OsLock {}
