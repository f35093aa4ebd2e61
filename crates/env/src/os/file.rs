//! An open file of Linux.

use crate::fs::{File, IoCounters};
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev, retry_on_intr};
use std::io::{self, IoSlice, IoSliceMut};
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of buffers of one vectored system call (`IOV_MAX` of Linux).
const SLICES_PER_CALL_MAX: usize = 1024;

pub(super) struct OsFile {
    file: std::fs::File,
    counters: Arc<IoCounters>,
    /// Set once the file system refused `RWF_NOWAIT`: repeating the request would cost one useless
    /// call per read.
    nowait_refused: AtomicBool,
}

impl OsFile {
    pub(super) fn new(file: std::fs::File, counters: Arc<IoCounters>) -> Self {
        Self { file, counters, nowait_refused: AtomicBool::new(false) }
    }

    /// Fills `buf` as far as the file reaches, without waiting. Returns `None` if that needs the
    /// device.
    ///
    /// The kernel returns the bytes it has in memory, possibly only the first part of the range. So
    /// the call is repeated for the rest until it reports "would block" or end of file, or `buf` is
    /// full.
    fn read_cached(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        let mut filled = 0;
        while filled < buf.len() {
            let at = offset_within_file(offset, filled)?;
            let rest = &mut [IoSliceMut::new(&mut buf[filled..])];
            match retry_on_intr(|| preadv2(&self.file, rest, at, ReadWriteFlags::NOWAIT)) {
                // Linux 5.9 and 5.10 also return 0 before the end of the file (preadv2(2), BUGS).
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

/// A file in the page cache. The file system may ignore the advice.
trait Cached {
    /// Disables read-ahead.
    fn stop_reading_ahead(&self);

    /// Fills `buf` with the prefix of the range that the page cache holds. Returns its length.
    fn read_held(&self, buf: &mut [u8], offset: u64) -> usize;

    /// Drops the clean pages of this range from the page cache.
    fn drop_held(&self, offset: u64, len: usize);

    /// Reads through the page cache.
    fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl Cached for OsFile {
    fn stop_reading_ahead(&self) {
        let _ = fadvise(&self.file, 0, None, Advice::Random);
    }

    fn read_held(&self, buf: &mut [u8], offset: u64) -> usize {
        let may_ask = !self.nowait_refused.load(Ordering::Relaxed);
        let held = if may_ask { self.read_cached(buf, offset) } else { Ok(None) };
        held.ok().flatten().unwrap_or(0)
    }

    fn drop_held(&self, offset: u64, len: usize) {
        let page = rustix::param::page_size() as u64;
        let from = offset - offset % page;
        let to = offset.saturating_add(len as u64).next_multiple_of(page);
        let _ = fadvise(&self.file, from, NonZeroU64::new(to - from), Advice::DontNeed);
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_at(buf, offset)
    }
}

/// Reads a range from the device, and leaves the page cache almost unchanged.
///
/// It first drops the cached pages of the range, so that the read reaches the device. If the range
/// was not cached before, it drops the pages again after the read.
fn read_past_cache(file: &impl Cached, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    // Pages that the kernel reads ahead would stay in the page cache.
    file.stop_reading_ahead();
    let was_held = file.read_held(buf, offset) > 0;
    file.drop_held(offset, buf.len());
    let read = file.read(buf, offset)?;
    if !was_held {
        file.drop_held(offset, buf.len());
    }
    Ok(read)
}

impl OsFile {
    fn sync_range(&self, offset: u64, len: u64, flags: libc::c_uint) -> io::Result<()> {
        // A length of 0 would mean "to the end of the file".
        if len == 0 {
            return Ok(());
        }
        let (from, bytes) = (signed(offset)?, signed(len)?);
        // SAFETY: the call takes integers only, and the descriptor is open while `self.file` lives.
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

    fn read_from_device(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        read_past_cache(self, buf, offset)
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

/// Writes the bytes of `parts` after their first `written` bytes. Returns the offset of their end.
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

/// Returns `offset + filled`. Fails if the system would read it as negative: -1 means the file's
/// cursor.
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
    use std::cell::{Cell, RefCell};
    use std::ops::Range;

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

    /// A page cache that always follows advice. Whether a real one does is the kernel's decision.
    struct ObedientCache {
        device: Vec<u8>,
        /// Whether the page cache holds each byte.
        held: RefCell<Vec<bool>>,
        reads_ahead: Cell<bool>,
        from_device: Cell<usize>,
    }

    impl ObedientCache {
        fn holding(held: Range<usize>) -> Self {
            let device: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
            let held = (0..device.len()).map(|at| held.contains(&at)).collect();
            Self { device, held: RefCell::new(held), reads_ahead: Cell::new(true), from_device: Cell::new(0) }
        }

        fn holds(&self) -> Vec<bool> {
            self.held.borrow().clone()
        }
    }

    impl Cached for ObedientCache {
        fn stop_reading_ahead(&self) {
            self.reads_ahead.set(false);
        }

        fn read_held(&self, buf: &mut [u8], offset: u64) -> usize {
            let at = offset as usize;
            let held = self.held.borrow()[at..].iter().take(buf.len()).take_while(|held| **held).count();
            buf[..held].copy_from_slice(&self.device[at..at + held]);
            held
        }

        fn drop_held(&self, offset: u64, len: usize) {
            let end = self.device.len().min(offset as usize + len);
            self.held.borrow_mut()[offset as usize..end].fill(false);
        }

        fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            let (at, end) = (offset as usize, self.device.len().min(offset as usize + buf.len()));
            let until = if self.reads_ahead.get() { self.device.len() } else { end };
            let mut held = self.held.borrow_mut();
            let missing = held[at..end].iter().filter(|held| !**held).count();
            self.from_device.set(self.from_device.get() + missing);
            held[at..until].fill(true);
            buf[..end - at].copy_from_slice(&self.device[at..end]);
            Ok(end - at)
        }
    }

    #[test]
    fn a_read_from_the_device_reaches_it_and_leaves_the_cache_as_it_was() {
        let mut piece = vec![0; 65_536];
        for held in [0..0, 0..400_000] {
            let cache = ObedientCache::holding(held);
            let before = cache.holds();
            assert_eq!(read_past_cache(&cache, &mut piece, 4_096).unwrap(), piece.len());
            assert_eq!(piece, cache.device[4_096..][..piece.len()]);
            assert_eq!(cache.from_device.get(), piece.len(), "all of it is read from the device");
            assert!(cache.holds() == before, "what was held is held, and nothing more");
        }
    }

    #[test]
    fn a_read_from_the_device_gives_the_bytes_of_a_real_file() {
        let bytes: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        let file = OsFile::new(tempfile::tempfile().unwrap(), Arc::default());
        file.write_at(&bytes, 0).unwrap();
        file.sync_data().unwrap();
        let mut piece = vec![0; 65_536];
        for _ in 0..2 {
            assert_eq!(file.read_from_device(&mut piece, 4_096).unwrap(), piece.len());
            assert_eq!(piece, bytes[4_096..][..piece.len()]);
            file.drop_held(0, bytes.len());
        }
        // A read returns fewer bytes at the end of the file only.
        assert_eq!(file.read_from_device(&mut piece, bytes.len() as u64 - 10).unwrap(), 10);
        assert_eq!(piece[..10], bytes[bytes.len() - 10..]);
    }
}
