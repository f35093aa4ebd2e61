//! An open file.

use crate::fs::{File, IoCounters};
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev, retry_on_intr};
use std::io::{self, IoSlice, IoSliceMut};
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Buffers one vectored system call takes at most (`IOV_MAX` of Linux).
const SLICES_PER_CALL_MAX: usize = 1024;

pub(super) struct OsFile {
    file: std::fs::File,
    counters: Arc<IoCounters>,
    /// Set once the file system refused `RWF_NOWAIT`: asking again would cost a call per read for nothing.
    nowait_refused: AtomicBool,
}

impl OsFile {
    pub(super) fn new(file: std::fs::File, counters: Arc<IoCounters>) -> Self {
        Self { file, counters, nowait_refused: AtomicBool::new(false) }
    }

    /// Fills `buf` as far as the file reaches, without waiting; `None` where that needs the device.
    ///
    /// The kernel answers with what it has in memory, which may be the first part of the range only, so the
    /// rest is asked for until it says "would block", "end of file" or "done".
    fn read_cached(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        let mut filled = 0;
        while filled < buf.len() {
            let at = offset_within_file(offset, filled)?;
            let rest = &mut [IoSliceMut::new(&mut buf[filled..])];
            match retry_on_intr(|| preadv2(&self.file, rest, at, ReadWriteFlags::NOWAIT)) {
                // Linux 5.9 and 5.10 answer 0 before the end of the file too (preadv2(2), BUGS).
                Ok(0) if at < self.len()? => return Ok(None),
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                    self.nowait_refused.store(true, Ordering::Relaxed);
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(filled))
    }
}

impl OsFile {
    /// Has the system drop the pages of this range that it holds and that are durable.
    fn drop_held(&self, offset: u64, len: usize) {
        let page = rustix::param::page_size() as u64;
        let from = offset - offset % page;
        let to = offset.saturating_add(len as u64).next_multiple_of(page);
        let _ = fadvise(&self.file, from, NonZeroU64::new(to - from), Advice::DontNeed);
    }

    fn sync_range(&self, offset: u64, len: u64, flags: libc::c_uint) -> io::Result<()> {
        // A length of 0 would mean "to the end of the file".
        if len == 0 {
            return Ok(());
        }
        let (from, bytes) = (signed(offset)?, signed(len)?);
        // SAFETY: the call takes integers only, and the descriptor is open for as long as `self.file` lives.
        let result = unsafe { libc::sync_file_range(self.file.as_raw_fd(), from, bytes, flags) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl File for OsFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buf.len() {
            match self.file.read_at(&mut buf[filled..], offset_within_file(offset, filled)?) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.counters.count_read(filled);
        Ok(filled)
    }

    fn read_at_nowait(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        let read = match self.nowait_refused.load(Ordering::Relaxed) {
            true => None,
            false => self.read_cached(buf, offset)?,
        };
        match read {
            Some(read) => self.counters.count_read(read),
            None => self.counters.count_would_wait(),
        }
        Ok(read)
    }

    /// What is in memory is dropped first, and what was not, again after. Both are advice: a file system that does not take
    /// it is read as it likes.
    fn read_from_device(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        // Else the kernel would bring in what is behind, which nobody drops.
        let _ = fadvise(&self.file, 0, None, Advice::Random);
        let asks = !self.nowait_refused.load(Ordering::Relaxed);
        let was_held = asks && matches!(self.read_cached(buf, offset), Ok(Some(read)) if read > 0);
        self.drop_held(offset, buf.len());
        let read = self.read_at(buf, offset)?;
        if !was_held {
            self.drop_held(offset, buf.len());
        }
        Ok(read)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)?;
        self.counters.count_write(bytes.len());
        Ok(())
    }

    fn write_vectored_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut at = offset;
        for parts in parts.chunks(SLICES_PER_CALL_MAX) {
            let written = retry_on_intr(|| pwritev(&self.file, parts, at))?;
            at = write_rest(&self.file, parts, written, at)?;
        }
        self.counters.count_write((at - offset) as usize);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()?;
        self.counters.count_sync();
        Ok(())
    }

    fn start_writeback(&self, offset: u64, len: u64) -> io::Result<()> {
        self.sync_range(offset, len, libc::SYNC_FILE_RANGE_WRITE)
    }

    fn finish_writeback(&self, offset: u64, len: u64) -> io::Result<()> {
        self.sync_range(offset, len, libc::SYNC_FILE_RANGE_WAIT_BEFORE)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.metadata().map(|metadata| metadata.len())
    }

    fn prefetch(&self, offset: u64, len: u64) -> io::Result<()> {
        match NonZeroU64::new(len) {
            None => Ok(()),
            len => Ok(fadvise(&self.file, offset, len, Advice::WillNeed)?),
        }
    }
}

/// Writes what of `parts` is behind their first `written` bytes, and gives the offset where they end.
fn write_rest(file: &std::fs::File, parts: &[IoSlice<'_>], written: usize, offset: u64) -> io::Result<u64> {
    let mut behind = written;
    let mut at = offset;
    for part in parts {
        let there = behind.min(part.len());
        if there < part.len() {
            file.write_all_at(&part[there..], at + there as u64)?;
        }
        behind -= there;
        at += part.len() as u64;
    }
    Ok(at)
}

/// `offset + filled`, refused where the system would take it for a negative number (-1 is the cursor's place).
fn offset_within_file(offset: u64, filled: usize) -> io::Result<u64> {
    let at = offset.saturating_add(filled as u64);
    signed(at).map(|_| at)
}

fn signed(value: u64) -> io::Result<i64> {
    i64::try_from(value).map_err(|_| io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_vectored_write_is_continued_at_any_byte() {
        let parts = [IoSlice::new(b"abc"), IoSlice::new(b""), IoSlice::new(b"defgh"), IoSlice::new(b"i")];
        for written in 0..=9 {
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(&b"abcdefghi"[..written], 5).unwrap();
            assert_eq!(write_rest(&file, &parts, written, 5).unwrap(), 14);
            let mut bytes = [0; 9];
            file.read_exact_at(&mut bytes, 5).unwrap();
            assert_eq!(&bytes, b"abcdefghi");
        }
    }

    #[test]
    fn an_offset_that_means_the_cursor_is_refused() {
        let file = OsFile::new(tempfile::tempfile().unwrap(), Arc::default());
        file.write_at(b"abc", 0).unwrap();
        let error = file.read_at_nowait(&mut [0], u64::MAX).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(file.read_at(&mut [0], u64::MAX).is_err());
        assert!(file.write_vectored_at(&[IoSlice::new(b"x")], u64::MAX).is_err());
    }

    /// Whether pages can be dropped is up to the file system; what was held is held again in any case.
    #[test]
    fn what_is_read_from_the_device_is_there_and_stays_held_as_it_was() {
        let bytes: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        let file = OsFile::new(tempfile::tempfile().unwrap(), Arc::default());
        file.write_at(&bytes, 0).unwrap();
        file.sync_data().unwrap();
        let is_held = |offset| matches!(file.read_at_nowait(&mut [0; 8], offset), Ok(Some(8)));
        let mut piece = vec![0; 65_536];
        let was_held = is_held(4_096);
        assert_eq!(file.read_from_device(&mut piece, 4_096).unwrap(), piece.len());
        assert_eq!(piece, bytes[4_096..][..piece.len()]);
        assert!(is_held(4_096) || !was_held);
        file.drop_held(0, bytes.len());
        let can_drop = !is_held(4_096);
        assert_eq!(file.read_from_device(&mut piece, 4_096).unwrap(), piece.len());
        assert_eq!(piece, bytes[4_096..][..piece.len()]);
        assert!(!is_held(4_096) || !can_drop);
        assert!(!is_held(200_000) || !can_drop, "nothing is read ahead");
        // Fewer bytes only at the end.
        assert_eq!(file.read_from_device(&mut piece, bytes.len() as u64 - 10).unwrap(), 10);
        assert_eq!(piece[..10], bytes[bytes.len() - 10..]);
    }
}
