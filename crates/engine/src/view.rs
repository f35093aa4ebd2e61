//! What a reader looks at: the memtables and the levels, as they were at one moment.
//!
//! A [`View`] never changes. Whoever rotates a memtable, finishes a flush or finishes a compaction makes a
//! new one and puts it in place; readers keep the one they began with, and with it the memtables and tables
//! it names. What they hold of memtables that are gone from the view is in the account of [`pinned_memtables`](crate::pinned_memtables).

use crate::manifest::Levels;
use crate::memtable::{ChunkPool, Memtable};
use crate::wal::SegmentId;
use crate::{PossiblySuperseded, Sequence};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stdx::{CellKind, CellRef, Hlc, NodeTag, Version};

/// More is not believed of what a memtable takes for each byte that is written: one that was replayed was not written.
const OVERHEAD_MAX: f64 = 8.0;

/// A memtable, and where its cells are in the log and in the order of commits.
pub(crate) struct LoggedMemtable {
    pub(crate) memtable: Arc<Memtable>,
    local_end: Option<Bytes>,
    /// The least clock value of a value of a local key; `u64::MAX` before the first.
    local_hlc_min: AtomicU64,
    /// The first segment of the log that holds a record of it; `u64::MAX` before the first.
    log_from: AtomicU64,
    /// The last such segment.
    log_to: AtomicU64,
    /// Bytes of its records in the log, as far as they were written since the engine was opened.
    logged_bytes: AtomicU64,
    /// The greatest sequence given out for it.
    last: AtomicU64,
}

impl LoggedMemtable {
    /// Keys below `local_end` are local. `seed` is [`Options::tower_seed`](crate::Options::tower_seed).
    pub(crate) fn new(id: u64, pool: &Arc<ChunkPool>, local_end: Option<Bytes>, seed: u64) -> Self {
        Self {
            memtable: Arc::new(Memtable::from_pool(id, pool, seed)),
            local_end,
            local_hlc_min: AtomicU64::new(u64::MAX),
            log_from: AtomicU64::new(u64::MAX),
            log_to: AtomicU64::new(0),
            logged_bytes: AtomicU64::new(0),
            last: AtomicU64::new(0),
        }
    }

    /// Inserts cells: see [`Memtable::insert_all`].
    pub(crate) fn insert_all<'c>(
        &self,
        first: Sequence,
        cells: impl IntoIterator<Item = (&'c [u8], CellRef<'c>)>,
    ) -> Vec<u32> {
        let cells = cells.into_iter().inspect(|(key, cell)| self.note_local(key, cell));
        self.memtable.insert_all(first, cells)
    }

    /// Inserts cells of a batch, and finds those that may be superseded by what older memtables and tables hold, where
    /// versions up to `older_max` are.
    pub(crate) fn insert_new<'c>(
        &self,
        first: Sequence,
        cells: impl IntoIterator<Item = (&'c [u8], CellRef<'c>)>,
        older_max: Version,
    ) -> InsertOutcome {
        let mut possibly_superseded = Vec::new();
        let cells = cells.into_iter().zip(0..).map(|((key, cell), position)| {
            let version = cell.meta.version;
            if version <= older_max && !self.is_local(key) {
                possibly_superseded.push(PossiblySuperseded {
                    position,
                    key: Bytes::copy_from_slice(key),
                    version,
                });
            }
            (key, cell)
        });
        let superseded = self.insert_all(first, cells);
        possibly_superseded
            .retain(|possibly_superseded| superseded.binary_search(&possibly_superseded.position).is_err());
        InsertOutcome { superseded, possibly_superseded }
    }

    fn is_local(&self, key: &[u8]) -> bool {
        self.local_end.as_ref().is_some_and(|end| key < end)
    }

    fn note_local(&self, key: &[u8], cell: &CellRef<'_>) {
        if self.is_local(key) && cell.meta.kind == CellKind::Value {
            self.local_hlc_min.fetch_min(cell.meta.version.hlc.to_bits(), Ordering::Relaxed);
        }
    }

    /// The least versions of what was inserted.
    pub(crate) fn oldest(&self) -> MinVersions {
        let local = self.local_hlc_min.load(Ordering::Relaxed);
        MinVersions {
            version_min: (!self.memtable.is_empty()).then(|| self.memtable.version_min()),
            local_version_min: (local != u64::MAX).then(|| Version::new(Hlc::from_bits(local), NodeTag(0))),
        }
    }

    /// Tells that so many bytes of records of this memtable were written to the log. To be called by whoever has it.
    pub(crate) fn logged(&self, bytes: u64) {
        let before = self.logged_bytes.load(Ordering::Relaxed);
        self.logged_bytes.store(before + bytes, Ordering::Relaxed);
    }

    /// Bytes in memory for each that was written, at least 1.
    pub(crate) fn overhead(&self) -> f64 {
        let logged_bytes = self.logged_bytes.load(Ordering::Relaxed).max(1);
        (self.memtable.bytes_used() as f64 / logged_bytes as f64).clamp(1.0, OVERHEAD_MAX)
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

/// What is known of the cells of a batch when they are in the memtable: as in [`CommitOutcome`](crate::CommitOutcome).
#[derive(Clone, Debug, Default)]
pub(crate) struct InsertOutcome {
    pub(crate) superseded: Vec<u32>,
    pub(crate) possibly_superseded: Vec<PossiblySuperseded>,
}

/// The least versions of some cells.
#[derive(Clone, Copy, Default)]
pub(crate) struct MinVersions {
    /// Of all of them.
    pub(crate) version_min: Option<Version>,
    /// Of values of local keys.
    pub(crate) local_version_min: Option<Version>,
}

impl MinVersions {
    /// Those of the cells of both.
    pub(crate) fn with(self, other: Self) -> Self {
        let least = |a: Option<Version>, b: Option<Version>| a.into_iter().chain(b).min();
        Self {
            version_min: least(self.version_min, other.version_min),
            local_version_min: least(self.local_version_min, other.local_version_min),
        }
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
pub(crate) struct ReplayableMemtables {
    /// By the memtable's id: the last segment that has a record of it, and its least versions.
    flushed: BTreeMap<u64, (SegmentId, MinVersions)>,
}

impl ReplayableMemtables {
    /// Takes note of a memtable whose flush is about to count.
    pub(crate) fn flushed(&mut self, logged: &LoggedMemtable) {
        let log_to = SegmentId(logged.log_to.load(Ordering::Acquire));
        self.flushed.insert(logged.memtable.id(), (log_to, logged.oldest()));
    }

    /// Takes note that segments before `floor` will not be replayed any more.
    pub(crate) fn released(&mut self, floor: SegmentId) {
        self.flushed.retain(|_, (log_to, _)| *log_to >= floor);
    }

    /// The least versions of cells that may come back.
    pub(crate) fn oldest(&self) -> MinVersions {
        self.flushed.values().fold(MinVersions::default(), |oldest, (_, other)| oldest.with(*other))
    }
}
