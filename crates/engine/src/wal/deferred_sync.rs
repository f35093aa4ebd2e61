//! Deferred sync of full segments, under [`Durability::Os`](crate::Durability::Os).
//!
//! **Promise.** A writer that requires no sync waits for none: neither for the syncs of the full
//! segment nor for those of the next segment's header and name. At most one full segment is not
//! durable, so power loss affects the end of at most two segments. Everything below
//! [`WalStatus::durable_end`](super::WalStatus::durable_end) is durable.
//!
//! **Mechanism.** A full segment is handed over, and the next one begins with an unsynced header
//! and name. A background worker *settles* the pair ([`DeferredSync::step`]); if the next segment
//! fills up first, the commit thread does. It syncs the full segment, the next one and the
//! directory, in this order, and then clears the flag [`SegmentHeader::is_unsynced`] of the full
//! one. While the flag is set, recovery attributes two states to power loss: a successor without a
//! header, and an end before the one that the successor names. After that, both count as damage.
//!
//! The worker also starts the writeback of written log data, as that call blocks while the device
//! queue is full.
//!
//! **Caveats.** A full segment is not released before it is settled: its file would get another
//! header.

use super::format::{LogEnd, SEGMENT_HEADER_LEN, SegmentHeader, SegmentId};
use super::segment::{Segment, SyncFailureFlag};
use super::status::WalStatus;
use crate::Error;
use env::{File, Fs};
use parking_lot::Mutex;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The full segment of a log that may not be durable yet, if there is one.
pub struct DeferredSync {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    status: Arc<WalStatus>,
    /// Held through I/O: one thread at a time settles.
    pair: Mutex<Option<SegmentPair>>,
    /// Id of the full segment. Locked briefly, as the next two fields are.
    full: Mutex<Option<SegmentId>>,
    written: Mutex<Option<WritebackRange>>,
    /// Whether a worker should be woken.
    has_pending_work: AtomicBool,
}

/// A full segment and its successor.
struct SegmentPair {
    full: Segment,
    /// `None` while the disk has no space for a successor.
    next: Option<Successor>,
}

/// A segment whose header and name may not be durable.
pub(super) struct Successor {
    pub(super) header: SegmentHeader,
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn File>,
    pub(super) sync_failed: SyncFailureFlag,
    /// Whether a failed sync may have dropped the header.
    pub(super) is_header_doubtful: bool,
}

/// A range of a file whose writeback may start.
struct WritebackRange {
    file: Arc<dyn File>,
    bytes: Range<u64>,
}

impl DeferredSync {
    pub(super) fn new(fs: Arc<dyn Fs>, dir: PathBuf, status: Arc<WalStatus>) -> Self {
        Self {
            fs,
            dir,
            status,
            pair: Mutex::default(),
            full: Mutex::default(),
            written: Mutex::default(),
            has_pending_work: AtomicBool::new(false),
        }
    }

    /// Starts pending writeback, and settles a full segment. Returns whether there was one.
    ///
    /// # Errors
    /// As [`Wal::append`](super::Wal::append). After [`Error::Full`] the call can be repeated.
    /// After any other error nothing may be written to the log.
    pub fn step(&self) -> Result<bool, Error> {
        self.start_writeback();
        self.settle()
    }

    /// Whether [`DeferredSync::step`] has had new work since the last call of this function.
    pub(crate) fn take_pending_work(&self) -> bool {
        self.has_pending_work.load(Ordering::Relaxed) && self.has_pending_work.swap(false, Ordering::AcqRel)
    }

    /// The full segment that is not settled.
    pub(super) fn full(&self) -> Option<SegmentId> {
        *self.full.lock()
    }

    /// Hands over a full segment.
    ///
    /// # Panics
    /// When one is pending already.
    pub(super) fn hand_over(&self, full: Segment) {
        let id = full.id;
        let before = self.pair.lock().replace(SegmentPair { full, next: None });
        assert!(before.is_none(), "one full segment at a time is unsettled");
        *self.full.lock() = Some(id);
    }

    /// Sets the successor of the full segment.
    ///
    /// # Panics
    /// When there is no full segment.
    pub(super) fn set_successor(&self, next: Successor) {
        self.pair.lock().as_mut().expect("the full segment was handed over").next = Some(next);
        self.has_pending_work.store(true, Ordering::Release);
    }

    /// Records that this range was written and will not be overwritten soon.
    pub(super) fn wrote(&self, file: &Arc<dyn File>, bytes: Range<u64>) {
        let mut written = self.written.lock();
        match &mut *written {
            Some(before) if Arc::ptr_eq(&before.file, file) => before.bytes.end = bytes.end,
            // The rest of a full segment is written when it is settled.
            other => *other = Some(WritebackRange { file: Arc::clone(file), bytes }),
        }
        drop(written);
        self.has_pending_work.store(true, Ordering::Release);
    }

    /// Starts pending writeback. A failure is ignored: the sync of the segment reports it.
    fn start_writeback(&self) {
        let written = self.written.lock().take();
        if let Some(WritebackRange { file, bytes }) = written {
            let _ = file.start_writeback(bytes.start, bytes.end - bytes.start);
        }
    }

    /// Makes the full segment durable, and then its successor. Returns whether a pair was settled.
    /// A full segment without a successor becomes durable, but remains pending.
    pub(super) fn settle(&self) -> Result<bool, Error> {
        let mut pair = self.pair.lock();
        let Some(SegmentPair { full, next }) = pair.as_mut() else { return Ok(false) };
        full.sync_unmeasured()?;
        let Some(next) = next else { return Ok(false) };
        next.sync()?;
        self.fs.sync_dir(&self.dir).map_err(|error| Error::io("sync", &self.dir, error))?;
        full.clear_unsynced()?;
        self.status.set_durable_end(LogEnd { segment: next.header.id, len: SEGMENT_HEADER_LEN as u64 });
        *self.full.lock() = None;
        *pair = None;
        Ok(true)
    }
}

impl Successor {
    /// Makes the header durable, with the groups written so far.
    fn sync(&mut self) -> Result<(), Error> {
        let mut has_failed = self.sync_failed.lock();
        if self.is_header_doubtful {
            // The groups are written again by the sync that covers them.
            let written = self.file.write_at(&self.header.encode(), 0);
            written.map_err(|error| Error::io("write", &self.path, error))?;
        }
        self.file.sync_data().map_err(|error| {
            (*has_failed, self.is_header_doubtful) = (true, true);
            Error::io("sync", &self.path, error)
        })
    }
}

impl std::fmt::Debug for DeferredSync {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeferredSync").field("full", &self.full()).finish_non_exhaustive()
    }
}
