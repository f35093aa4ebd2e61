//! How long the disk takes to make the log durable, and how much is written to it.

use super::format::{LogEnd, SegmentId};
use env::{Clock, File};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stdx::Instant;
use stdx::histogram::{Histogram, Snapshot};

/// Figures of a log, from when it was opened. WritebackRange by whoever has the log in hands, read by anyone.
pub struct WalStatus {
    clock: Arc<dyn Clock>,
    sync_nanos: Histogram,
    written_bytes: AtomicU64,
    /// When the last sync that succeeded began and ended; 0: there was none.
    last_sync: [AtomicU64; 2],
    /// Where the durable part of the log ends. Locked for a moment only.
    durable_end: Mutex<Option<LogEnd>>,
    /// The segment that takes groups. Locked for a moment only.
    active: Mutex<Option<SegmentId>>,
}

impl WalStatus {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            sync_nanos: Histogram::new(),
            written_bytes: AtomicU64::new(0),
            last_sync: Default::default(),
            durable_end: Mutex::new(None),
            active: Mutex::new(None),
        }
    }

    /// How long each sync of a segment took that succeeded, in nanoseconds: mostly one for each group, and none
    /// for those that need not be durable to be acknowledged. Syncs away from the writers are not counted.
    pub fn sync_nanos(&self) -> Snapshot {
        self.sync_nanos.snapshot()
    }

    /// Bytes of groups and of closing records, headers included.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    /// Where the durable part of the log ends, as of the last sync; `None` while there is no segment. It never goes
    /// back while the log is open.
    pub fn durable_end(&self) -> Option<LogEnd> {
        *self.durable_end.lock()
    }

    /// The segment that takes groups; its file has its name. `None` when the last one has ended and none was begun since, as
    /// with a full disk. Of two answers the later one is not of an older segment.
    pub fn active(&self) -> Option<SegmentId> {
        *self.active.lock()
    }

    /// A segment has begun.
    pub(super) fn set_active(&self, segment: SegmentId) {
        *self.active.lock() = Some(segment);
    }

    /// The segment that took groups takes no more, and may be released.
    pub(super) fn clear_active(&self) {
        *self.active.lock() = None;
    }

    pub(super) fn set_durable_end(&self, end: LogEnd) {
        *self.durable_end.lock() = Some(end);
    }

    /// Syncs `file`, and takes the time of it.
    pub(super) fn sync(&self, file: &dyn File) -> io::Result<()> {
        let began = self.clock.now().mono;
        file.sync_data()?;
        let ended = self.clock.now().mono;
        self.sync_nanos.record_alone(ended.saturating_since(began).as_nanos() as u64);
        for (time, is) in self.last_sync.iter().zip([began, ended]) {
            time.store(is.as_nanos(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// When the last sync that succeeded began and ended. Only for whoever has the log: another may see half of it.
    pub(super) fn last_sync(&self) -> Option<(Instant, Instant)> {
        let [began, ended] = [0, 1].map(|part: usize| self.last_sync[part].load(Ordering::Relaxed));
        (ended > 0).then(|| (Instant::from_nanos(began), Instant::from_nanos(ended)))
    }

    pub(super) fn wrote(&self, bytes: u64) {
        // No other thread has the log, so nothing is added in between.
        let before = self.written_bytes.load(Ordering::Relaxed);
        self.written_bytes.store(before + bytes, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for WalStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WalStatus")
            .field("sync_nanos", &self.sync_nanos)
            .field("written_bytes", &self.written_bytes)
            .finish_non_exhaustive()
    }
}
