//! Views: the memtables and levels at one moment, as readers see them.
//!
//! A [`View`] is immutable. A rotation, flush or compaction installs a new one. Readers keep the
//! view that they began with, and with it its memtables and tables. The memory of memtables that
//! left the view is accounted for in [`pinned_memtables`](crate::pinned_memtables).

use crate::manifest::Levels;
use crate::memtable::{ChunkPool, Memtable};
use crate::ownership::OwnershipFilter;
use crate::wal::SegmentId;
use crate::{PossiblySuperseded, Sequence};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stdx::{CellKind, CellRef, Hlc, NodeTag, Version};

/// Upper bound of [`LoggedMemtable::overhead`]: the records of a replayed memtable were not
/// counted.
const OVERHEAD_MAX: f64 = 8.0;

/// A memtable with the range of its records in the log and of its sequences.
pub(crate) struct LoggedMemtable {
    pub(crate) memtable: Arc<Memtable>,
    local_end: Option<Bytes>,
    /// Least clock value of the values of local keys; `u64::MAX` before the first.
    local_hlc_min: AtomicU64,
    /// The first log segment with a record of this memtable; `u64::MAX` before the first record.
    log_from: AtomicU64,
    /// The last log segment with a record of this memtable.
    log_to: AtomicU64,
    /// Bytes of its records that were written to the log since the engine was opened.
    logged_bytes: AtomicU64,
    /// The greatest sequence assigned for this memtable.
    last: AtomicU64,
}

impl LoggedMemtable {
    /// An empty memtable. Keys below `local_end` are local. `seed` is
    /// [`Options::tower_seed`](crate::Options::tower_seed).
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

    /// Inserts cells with [`Memtable::insert_all`].
    pub(crate) fn insert_all<'c>(
        &self,
        first: Sequence,
        cells: impl IntoIterator<Item = (&'c [u8], CellRef<'c>)>,
    ) -> Vec<u32> {
        let cells = cells.into_iter().inspect(|(key, cell)| self.note_local(key, cell));
        self.memtable.insert_all(first, cells)
    }

    /// Inserts the cells of a batch, and determines those that may be superseded by cells of older
    /// memtables and tables, which hold versions up to `older_max`.
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

    /// The least versions of the inserted cells.
    pub(crate) fn oldest(&self) -> MinVersions {
        let local = self.local_hlc_min.load(Ordering::Relaxed);
        MinVersions {
            version_min: (!self.memtable.is_empty()).then(|| self.memtable.version_min()),
            local_version_min: (local != u64::MAX).then(|| Version::new(Hlc::from_bits(local), NodeTag(0))),
        }
    }

    /// Adds to the bytes of this memtable's records in the log. To be called by the thread that
    /// holds the log.
    pub(crate) fn logged(&self, bytes: u64) {
        let before = self.logged_bytes.load(Ordering::Relaxed);
        self.logged_bytes.store(before + bytes, Ordering::Relaxed);
    }

    /// Bytes of memory per byte written to the log, at least 1.
    pub(crate) fn overhead(&self) -> f64 {
        let logged_bytes = self.logged_bytes.load(Ordering::Relaxed).max(1);
        (self.memtable.bytes_used() as f64 / logged_bytes as f64).clamp(1.0, OVERHEAD_MAX)
    }

    /// Records that `segment` has a record of this memtable.
    pub(crate) fn logged_in(&self, segment: SegmentId) {
        self.log_from.fetch_min(segment.0, Ordering::AcqRel);
        self.log_to.fetch_max(segment.0, Ordering::AcqRel);
    }

    /// The first segment that must be kept for this memtable, if any.
    pub(crate) fn log_from(&self) -> Option<SegmentId> {
        let segment = self.log_from.load(Ordering::Acquire);
        (segment != u64::MAX).then_some(SegmentId(segment))
    }

    /// Records that sequences up to `last` were assigned for this memtable.
    pub(crate) fn extend_to(&self, last: Sequence) {
        self.last.fetch_max(last.0, Ordering::AcqRel);
    }

    /// The greatest sequence assigned for this memtable. Final once it is sealed.
    pub(crate) fn last(&self) -> Sequence {
        Sequence(self.last.load(Ordering::Acquire))
    }
}

/// Cells of an inserted batch that are or may be superseded, as in
/// [`CommitOutcome`](crate::CommitOutcome).
#[derive(Clone, Debug, Default)]
pub(crate) struct InsertOutcome {
    pub(crate) superseded: Vec<u32>,
    pub(crate) possibly_superseded: Vec<PossiblySuperseded>,
}

/// The least versions of a set of cells.
#[derive(Clone, Copy, Default)]
pub(crate) struct MinVersions {
    /// Least version of all cells.
    pub(crate) version_min: Option<Version>,
    /// Least version of values of local keys.
    pub(crate) local_version_min: Option<Version>,
}

impl MinVersions {
    /// The least versions of the union of both sets.
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
    /// Receives the writes.
    pub(crate) active: Arc<LoggedMemtable>,
    /// Memtables that wait to be flushed, the newest first.
    pub(crate) sealed: Vec<Arc<LoggedMemtable>>,
    /// The live tables.
    pub(crate) levels: Arc<Levels>,
    /// The keys that are treated as absent.
    pub(crate) filter: Arc<OwnershipFilter>,
}

impl View {
    /// All memtables, the newest first.
    pub(crate) fn memtables(&self) -> impl Iterator<Item = &Arc<LoggedMemtable>> {
        std::iter::once(&self.active).chain(&self.sealed)
    }

    /// Memory of all memtables, in bytes.
    pub(crate) fn memtable_bytes(&self) -> u64 {
        self.memtables().map(|logged| logged.memtable.bytes()).sum()
    }

    /// This view with the active memtable sealed and replaced by `active`.
    pub(crate) fn rotated(&self, active: Arc<LoggedMemtable>) -> Self {
        let sealed = self.memtables().cloned().collect();
        Self { active, sealed, levels: Arc::clone(&self.levels), filter: Arc::clone(&self.filter) }
    }

    /// This view without `flushed`, whose tables are in `levels`.
    pub(crate) fn flushed(&self, flushed: &Arc<LoggedMemtable>, levels: Arc<Levels>) -> Self {
        let sealed = self.sealed.iter().filter(|logged| !Arc::ptr_eq(logged, flushed)).cloned().collect();
        Self { active: Arc::clone(&self.active), sealed, levels, filter: Arc::clone(&self.filter) }
    }

    /// This view with other levels.
    pub(crate) fn with_levels(&self, levels: Arc<Levels>) -> Self {
        let (active, sealed) = (Arc::clone(&self.active), self.sealed.clone());
        Self { active, sealed, levels, filter: Arc::clone(&self.filter) }
    }

    /// This view with another filter.
    pub(crate) fn with_filter(self, filter: Arc<OwnershipFilter>) -> Self {
        Self { filter, ..self }
    }
}

/// Flushed memtables of which some records are still in segments that recovery would replay,
/// because another memtable needs those segments. Their cells can reappear in a memtable, so
/// compaction must not drop a tombstone that shadows one.
#[derive(Default)]
pub(crate) struct ReplayableMemtables {
    /// By memtable id: the last segment with a record of it, and its least versions.
    flushed: BTreeMap<u64, (SegmentId, MinVersions)>,
}

impl ReplayableMemtables {
    /// Records a memtable whose flush is about to become durable.
    pub(crate) fn flushed(&mut self, logged: &LoggedMemtable) {
        let log_to = SegmentId(logged.log_to.load(Ordering::Acquire));
        self.flushed.insert(logged.memtable.id(), (log_to, logged.oldest()));
    }

    /// Forgets memtables whose records are all in segments below `floor`, which are not replayed
    /// any more.
    pub(crate) fn released(&mut self, floor: SegmentId) {
        self.flushed.retain(|_, (log_to, _)| *log_to >= floor);
    }

    /// Ids of the memtables.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        self.flushed.keys().copied()
    }

    /// The least versions of cells that may reappear.
    pub(crate) fn oldest(&self) -> MinVersions {
        self.flushed.values().fold(MinVersions::default(), |oldest, (_, other)| oldest.with(*other))
    }
}
