//! Status and statistics of an open log.

use super::format::{LogEnd, SegmentId};
use env::{Clock, File};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use stdx::Instant;
use stdx::histogram::{Histogram, HistogramSnapshot};

/// Status and statistics of a log since it was opened. Written by the thread that holds the log,
/// readable by any.
pub struct WalStatus {
    clock: Arc<dyn Clock>,
    sync_nanos: Histogram,
    written_bytes: AtomicU64,
    /// Begin and end of the last successful sync, in nanoseconds of the clock; 0 before the first.
    last_sync: [AtomicU64; 2],
    /// Whether a writer waits for a sync.
    is_syncing: AtomicBool,
    /// End of the durable part of the log. Locked briefly.
    durable_end: Mutex<Option<LogEnd>>,
    /// The segment that receives groups. Locked briefly.
    active: Mutex<Option<SegmentId>>,
}

impl WalStatus {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            sync_nanos: Histogram::new(),
            written_bytes: AtomicU64::new(0),
            last_sync: Default::default(),
            is_syncing: AtomicBool::new(false),
            durable_end: Mutex::new(None),
            active: Mutex::new(None),
        }
    }

    /// Durations of successful syncs, in nanoseconds: usually one per group, and none for groups
    /// that are acknowledged before they are durable. Deferred syncs are not counted.
    pub fn sync_nanos(&self) -> HistogramSnapshot {
        self.sync_nanos.snapshot()
    }

    /// Bytes of groups and closing records, headers included.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    /// End of the durable part of the log at the last sync; `None` while there is no segment. It
    /// never decreases while the log is open.
    pub fn durable_end(&self) -> Option<LogEnd> {
        *self.durable_end.lock()
    }

    /// The segment that receives groups; its file has its name. `None` between the end of one
    /// segment and the beginning of the next, for example on a full disk. Successive results never
    /// name an older segment.
    pub fn active(&self) -> Option<SegmentId> {
        *self.active.lock()
    }

    /// Records that a segment has begun.
    pub(super) fn set_active(&self, segment: SegmentId) {
        *self.active.lock() = Some(segment);
    }

    /// Records that the active segment has ended and may be released.
    pub(super) fn clear_active(&self) {
        *self.active.lock() = None;
    }

    pub(super) fn set_durable_end(&self, end: LogEnd) {
        *self.durable_end.lock() = Some(end);
    }

    /// Syncs `file`, and records the duration.
    pub(super) fn sync(&self, file: &dyn File) -> io::Result<()> {
        let began = self.clock.now().mono;
        self.is_syncing.store(true, Ordering::Relaxed);
        let synced = file.sync_data();
        self.is_syncing.store(false, Ordering::Relaxed);
        synced?;
        let ended = self.clock.now().mono;
        self.sync_nanos.record_alone(ended.saturating_since(began).as_nanos() as u64);
        for (time, is) in self.last_sync.iter().zip([began, ended]) {
            time.store(is.as_nanos(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Begin and end of the last successful sync. Only for the thread that holds the log: others
    /// may read a torn pair.
    pub(super) fn last_sync(&self) -> Option<(Instant, Instant)> {
        let [began, ended] = [0, 1].map(|part: usize| self.last_sync[part].load(Ordering::Relaxed));
        (ended > 0).then(|| (Instant::from_nanos(began), Instant::from_nanos(ended)))
    }

    /// Whether a writer waits for a sync, or one ended less than `within` ago.
    pub(crate) fn has_synced_within(&self, within: Duration) -> bool {
        let ended = self.last_sync[1].load(Ordering::Relaxed);
        self.is_syncing.load(Ordering::Relaxed)
            || (ended > 0 && self.clock.now().mono.saturating_since(Instant::from_nanos(ended)) < within)
    }

    pub(super) fn wrote(&self, bytes: u64) {
        // No other thread holds the log, so no update is lost.
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
