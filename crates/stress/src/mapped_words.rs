//! A file of 64-bit words that processes share through a memory mapping.
//!
//! **Promise.** A store to a word is in the file when the instruction has retired. It survives
//! `kill -9`, and not the loss of power. Each word is stored as a whole.

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

/// The words of a mapped file.
pub(crate) struct MappedWords {
    first: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the mapping belongs to this value, and its words are atomic.
unsafe impl Send for MappedWords {}
// SAFETY: as above.
unsafe impl Sync for MappedWords {}

impl MappedWords {
    /// Maps `count` words of the file at `path`, which is created with zeros if it does not exist.
    pub(crate) fn open(path: &Path, count: usize) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let bytes = count * size_of::<AtomicU64>();
        file.set_len(bytes as u64)?;
        // SAFETY: the kernel chooses the address, so no other memory is replaced.
        let mapped = unsafe {
            mmap(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)?
        };
        let first = NonNull::new(mapped.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { first, count })
    }

    /// All words.
    pub(crate) fn all(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, `count` words long, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

impl Drop for MappedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and no borrow of it is left.
        let unmapped = unsafe { munmap(self.first.as_ptr().cast(), self.count * size_of::<AtomicU64>()) };
        debug_assert!(unmapped.is_ok(), "the mapping can be unmapped");
    }
}
