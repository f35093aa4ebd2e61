//! An open file with faults.

use super::plan::OperationKind;
use super::{Execution, Faults, Lost, stopped};
use crate::fs::File;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

pub(super) struct FaultFile {
    inner: Arc<dyn File>,
    path: PathBuf,
    faults: Arc<Faults>,
    /// The error number of a failed writeback that is not reported yet; 0 if there is none.
    unreported_errno: AtomicI32,
}

impl FaultFile {
    pub(super) fn new(inner: Arc<dyn File>, path: &Path, faults: Arc<Faults>) -> Self {
        Self { inner, path: path.to_owned(), faults, unreported_errno: AtomicI32::new(0) }
    }

    fn call<T>(&self, kind: OperationKind, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.faults.begin(kind, &self.path, 0)?.without_bytes(call)
    }

    /// A call that reports failed writebacks: earlier ones and its own.
    fn waiting_call(&self, kind: OperationKind, call: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let execution = self.faults.begin(kind, &self.path, 0)?;
        match self.unreported_errno.swap(0, Ordering::Relaxed) {
            0 => {}
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
        match execution {
            Execution::Lose(Lost { errno, seed }) => {
                self.inner.lose_unsynced(seed)?;
                Err(io::Error::from_raw_os_error(errno))
            }
            execution => execution.without_bytes(call),
        }
    }

    /// The bit to flip in the returned bytes, if any.
    fn begin_read(&self, len: usize) -> io::Result<Option<u64>> {
        match self.faults.begin(OperationKind::Read, &self.path, len)? {
            Execution::Normal => Ok(None),
            Execution::FlipBit(bit) => Ok(Some(bit)),
            other => other.without_bytes(|| Ok(None)),
        }
    }

    /// Writes the prefix of `len` bytes that the plan permits.
    fn write(&self, len: usize, write: impl FnOnce(usize) -> io::Result<()>) -> io::Result<()> {
        match self.faults.begin(OperationKind::Write, &self.path, len)? {
            Execution::Tear(bytes) => write(bytes.min(len)).and(Err(stopped())),
            Execution::Short(bytes, errno) => {
                write(bytes.min(len)).and(Err(io::Error::from_raw_os_error(errno)))
            }
            execution => execution.without_bytes(|| write(len)),
        }
    }
}

impl File for FaultFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let flip = self.begin_read(buf.len())?;
        let read = self.inner.read_at(buf, offset)?;
        flip_bit(&mut buf[..read], flip);
        Ok(read)
    }

    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        let flip = self.begin_read(buf.len())?;
        let read = self.inner.read_at_nowait(buf, offset)?;
        flip_bit(&mut buf[..read.unwrap_or(0)], flip);
        Ok(read)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write(bytes.len(), |len| self.inner.write_at(&bytes[..len], offset))
    }

    fn write_vectored_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let all: usize = parts.iter().map(|part| part.len()).sum();
        self.write(all, |len| {
            if len == all {
                return self.inner.write_vectored_at(parts, offset);
            }
            let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).take(len).collect();
            self.inner.write_at(&bytes, offset)
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.waiting_call(OperationKind::SyncData, || self.inner.sync_data())
    }

    fn start_writeback(&self, offset: u64, len: u64) -> io::Result<()> {
        match self.faults.begin(OperationKind::StartWriteback, &self.path, 0)? {
            Execution::Lose(Lost { errno, seed }) => {
                self.unreported_errno.store(errno, Ordering::Relaxed);
                self.inner.lose_unsynced(seed)
            }
            execution => execution.without_bytes(|| self.inner.start_writeback(offset, len)),
        }
    }

    fn finish_writeback(&self, offset: u64, len: u64) -> io::Result<()> {
        self.waiting_call(OperationKind::FinishWriteback, || self.inner.finish_writeback(offset, len))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.call(OperationKind::SetLen, || self.inner.set_len(len))
    }

    fn len(&self) -> io::Result<u64> {
        self.call(OperationKind::Len, || self.inner.len())
    }

    fn prefetch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.call(OperationKind::Prefetch, || self.inner.prefetch(offset, len))
    }

    fn lose_unsynced(&self, seed: u64) -> io::Result<()> {
        self.inner.lose_unsynced(seed)
    }
}

/// Flips bit `bit` of `bytes`, modulo their number of bits.
fn flip_bit(bytes: &mut [u8], bit: Option<u64>) {
    if let Some(bit) = bit
        && !bytes.is_empty()
    {
        let bit = bit % (bytes.len() as u64 * 8);
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}
