//! What a reader looks at: the memtables and the levels, as they were at one moment.
//!
//! A [`View`] never changes. Whoever rotates a memtable, finishes a flush or finishes a compaction makes a
//! new one and puts it in place; readers keep the one they began with, and with it the memtables and tables
//! it names.

use crate::Sequence;
use crate::manifest::Levels;
use crate::memtable::Memtable;
use crate::wal::SegmentId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stdx::Version;

/// A memtable, and where its cells are in the log and in the order of commits.
pub(crate) struct LoggedMemtable {
    pub(crate) memtable: Arc<Memtable>,
    /// The first segment of the log that holds a record of it; `u64::MAX` before the first.
    log_from: AtomicU64,
    /// The last such segment.
    log_to: AtomicU64,
    /// The greatest sequence given out for it.
    last: AtomicU64,
}

impl LoggedMemtable {
    pub(crate) fn new(id: u64, capacity_bytes: u64) -> Self {
        Self {
            memtable: Arc::new(Memtable::new(id, capacity_bytes)),
            log_from: AtomicU64::new(u64::MAX),
            log_to: AtomicU64::new(0),
            last: AtomicU64::new(0),
        }
    }

    /// Tells that a record of this memtable is in `segment`.
    pub(crate) fn logged_in(&self, segment: SegmentId) {
        self.log_from.fetch_min(segment.0, Ordering::AcqRel);
        self.log_to.fetch_max(segment.0, Ordering::AcqRel);
    }

    /// The first segment that must be kept for this memtable, if any.
    pub(crate) fn log_from(&self) -> Option<SegmentId> {
        let segment = self.log_from.load(Ordering::Acquire);
        (segment != u64::MAX).then_some(SegmentId(segment))
    }

    /// Tells that sequences up to `last` were given out for this memtable.
    pub(crate) fn extend_to(&self, last: Sequence) {
        self.last.fetch_max(last.0, Ordering::AcqRel);
    }

    /// The greatest sequence given out for it. Final once it is sealed.
    pub(crate) fn last(&self) -> Sequence {
        Sequence(self.last.load(Ordering::Acquire))
    }
}

/// Memtables and levels at one moment.
pub(crate) struct View {
    /// Takes the writes.
    pub(crate) active: Arc<LoggedMemtable>,
    /// Full memtables that wait to be flushed, the newest first.
    pub(crate) sealed: Vec<Arc<LoggedMemtable>>,
    /// The tables.
    pub(crate) levels: Arc<Levels>,
}

impl View {
    /// All memtables, the newest first.
    pub(crate) fn memtables(&self) -> impl Iterator<Item = &Arc<LoggedMemtable>> {
        std::iter::once(&self.active).chain(&self.sealed)
    }

    /// What all memtables take, in bytes.
    pub(crate) fn memtable_bytes(&self) -> u64 {
        self.memtables().map(|logged| logged.memtable.bytes()).sum()
    }

    /// This view after the active memtable was sealed and `active` took its place.
    pub(crate) fn rotated(&self, active: Arc<LoggedMemtable>) -> Self {
        let sealed = self.memtables().cloned().collect();
        Self { active, sealed, levels: Arc::clone(&self.levels) }
    }

    /// This view after `flushed` became tables of `levels`.
    pub(crate) fn flushed(&self, flushed: &Arc<LoggedMemtable>, levels: Arc<Levels>) -> Self {
        let sealed = self.sealed.iter().filter(|logged| !Arc::ptr_eq(logged, flushed)).cloned().collect();
        Self { active: Arc::clone(&self.active), sealed, levels }
    }

    /// This view with other levels.
    pub(crate) fn with_levels(&self, levels: Arc<Levels>) -> Self {
        Self { active: Arc::clone(&self.active), sealed: self.sealed.clone(), levels }
    }
}

/// Memtables that were flushed, but some of whose records are still in segments that a recovery would replay,
/// since another memtable needs those. So their cells can come back into a memtable, and compaction must not
/// drop a tombstone that hides one.
#[derive(Default)]
pub(crate) struct Replayable {
    /// By the memtable's id: the last segment that has a record of it, and its least version.
    flushed: BTreeMap<u64, (SegmentId, Version)>,
}

impl Replayable {
    /// Takes note of a memtable whose flush is about to count.
    pub(crate) fn flushed(&mut self, logged: &LoggedMemtable) {
        let log_to = SegmentId(logged.log_to.load(Ordering::Acquire));
        self.flushed.insert(logged.memtable.id(), (log_to, logged.memtable.version_min()));
    }

    /// Takes note that segments before `floor` will not be replayed any more.
    pub(crate) fn released(&mut self, floor: SegmentId) {
        self.flushed.retain(|_, (log_to, _)| *log_to >= floor);
    }

    /// The least version of a cell that may come back.
    pub(crate) fn version_min(&self) -> Option<Version> {
        self.flushed.values().map(|(_, version_min)| *version_min).min()
    }
}
