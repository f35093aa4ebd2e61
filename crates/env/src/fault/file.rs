//! An open file with faults.

use super::plan::OperationKind;
use super::{Course, Faults, stopped};
use crate::fs::File;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) struct FaultFile {
    inner: Arc<dyn File>,
    path: PathBuf,
    faults: Arc<Faults>,
}

impl FaultFile {
    pub(super) fn new(inner: Arc<dyn File>, path: &Path, faults: Arc<Faults>) -> Self {
        Self { inner, path: path.to_owned(), faults }
    }

    fn check(&self, kind: OperationKind) -> io::Result<()> {
        self.faults.check(kind, &self.path)
    }

    /// The bit to turn over in what is read, if any.
    fn begin_read(&self, len: usize) -> io::Result<Option<u64>> {
        match self.faults.begin(OperationKind::Read, &self.path, len)? {
            Course::AsAsked => Ok(None),
            Course::FlipBit(bit) => Ok(Some(bit)),
            Course::Tear(_) => Err(stopped()),
        }
    }

    /// How many bytes to write before the write fails; all and no failure for `None`.
    fn begin_write(&self, len: usize) -> io::Result<Option<usize>> {
        match self.faults.begin(OperationKind::Write, &self.path, len)? {
            Course::AsAsked | Course::FlipBit(_) => Ok(None),
            Course::Tear(bytes) => Ok(Some(bytes.min(len))),
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
        match self.begin_write(bytes.len())? {
            None => self.inner.write_at(bytes, offset),
            Some(kept) => self.inner.write_at(&bytes[..kept], offset).and(Err(stopped())),
        }
    }

    fn write_vectored_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let len = parts.iter().map(|part| part.len()).sum();
        match self.begin_write(len)? {
            None => self.inner.write_vectored_at(parts, offset),
            Some(kept) => {
                let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).take(kept).collect();
                self.inner.write_at(&bytes, offset).and(Err(stopped()))
            }
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.check(OperationKind::SyncData)?;
        self.inner.sync_data()
    }

    fn start_writeback(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(OperationKind::StartWriteback)?;
        self.inner.start_writeback(offset, len)
    }

    fn finish_writeback(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(OperationKind::FinishWriteback)?;
        self.inner.finish_writeback(offset, len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check(OperationKind::SetLen)?;
        self.inner.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        self.check(OperationKind::Len)?;
        self.inner.len()
    }

    fn prefetch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(OperationKind::Prefetch)?;
        self.inner.prefetch(offset, len)
    }
}

/// Turns over bit `bit` of `bytes`, counted around where there are fewer.
fn flip_bit(bytes: &mut [u8], bit: Option<u64>) {
    if let Some(bit) = bit
        && !bytes.is_empty()
    {
        let bit = bit % (bytes.len() as u64 * 8);
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}
