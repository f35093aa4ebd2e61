//! Open files and held locks of a disk in memory.

use super::Disk;
use super::names::FileId;
use crate::fs::{DirLock, File};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use stdx::Rng;

/// A handle on a file. The file exists while it has a handle, also without a name.
pub(super) struct MemFile {
    disk: Arc<Disk>,
    id: FileId,
    writable: bool,
}

impl MemFile {
    /// Creates a handle that the file's handle count already includes.
    pub(super) fn new(disk: Arc<Disk>, id: FileId, writable: bool) -> Self {
        Self { disk, id, writable }
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let read = self.disk.state.lock().node(self.id).content.read(buf, offset);
        self.disk.counters.count_read(read);
        read
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.writable { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }
}

impl Drop for MemFile {
    fn drop(&mut self) {
        self.disk.state.lock().drop_handle(self.id);
    }
}

impl File for MemFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(self.read(buf, offset))
    }

    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        if self.disk.cold.load(Ordering::Relaxed) {
            self.disk.counters.count_would_wait();
            return Ok(None);
        }
        Ok(Some(self.read(buf, offset)))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.check_writable()?;
        self.disk.state.lock().write(self.id, bytes, offset)?;
        self.disk.counters.count_write(bytes.len());
        Ok(())
    }

    /// Writes all parts at once, so that a full disk accepts either all or none of them.
    fn write_vectored_at(&self, parts: &[io::IoSlice<'_>], offset: u64) -> io::Result<()> {
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.write_at(&bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.state.lock().node_mut(self.id).content.sync();
        self.disk.counters.count_sync();
        Ok(())
    }

    fn start_writeback(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn lose_unsynced(&self, seed: u64) -> io::Result<()> {
        self.disk.state.lock().node_mut(self.id).content.lose_unsynced(&mut Rng::new(seed));
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_writable()?;
        self.disk.state.lock().resize(self.id, len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.state.lock().node(self.id).content.len())
    }

    fn prefetch(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
}

/// A held lock. It keeps its file open.
pub(super) struct MemLock {
    disk: Arc<Disk>,
    id: FileId,
}

impl MemLock {
    /// Creates a guard for a lock and a handle that the disk has already recorded.
    pub(super) fn new(disk: Arc<Disk>, id: FileId) -> Self {
        Self { disk, id }
    }
}

impl Drop for MemLock {
    fn drop(&mut self) {
        let mut state = self.disk.state.lock();
        state.locked.remove(&self.id);
        state.drop_handle(self.id);
    }
}

impl DirLock for MemLock {}
