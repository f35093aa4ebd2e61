//! The filter of the jobs, and the memtables that may hold cells of disowned ranges.

use super::{HashRange, OwnershipFilter};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// The filter by which jobs leave out cells.
#[derive(Clone, Debug, Default)]
pub struct JobFilter(Arc<ArcSwap<OwnershipFilter>>);

impl JobFilter {
    pub(super) fn set(&self, filter: &Arc<OwnershipFilter>) {
        self.0.store(Arc::clone(filter));
    }

    /// The present filter.
    pub(crate) fn load(&self) -> Arc<OwnershipFilter> {
        self.0.load_full()
    }

    /// The filter for a table whose id was just assigned.
    pub(crate) fn for_table(&self) -> Arc<OwnershipFilter> {
        // Pairs with the fence in `Engine::begin_purge`.
        fence(Ordering::SeqCst);
        self.load()
    }
}

/// State of the disowned ranges beside the manifest and the view.
#[derive(Default)]
pub(crate) struct Ownership {
    /// Held while ranges are disowned or owned again.
    pub(super) change: Mutex<()>,
    pub(crate) jobs: JobFilter,
    /// For each disowned range, the ids of the memtables that may have cells of it.
    memtables: Mutex<BTreeMap<HashRange, BTreeSet<u64>>>,
}

impl Ownership {
    /// The state after recovery, when all memtables were replayed from the log.
    pub(crate) fn recovered(filter: &Arc<OwnershipFilter>, memtables: &BTreeSet<u64>) -> Self {
        let ownership = Self::default();
        ownership.jobs.set(filter);
        let ranges = filter.ranges().iter().map(|disowned| disowned.range).collect();
        ownership.record_memtables(ranges, memtables);
        ownership
    }

    pub(super) fn record_memtables(&self, ranges: Vec<HashRange>, memtables: &BTreeSet<u64>) {
        let mut recorded = self.memtables.lock();
        recorded.extend(ranges.into_iter().map(|range| (range, memtables.clone())));
    }

    /// Whether one of the recorded memtables of a range is among `unreleased`.
    pub(super) fn has_memtables(&self, range: HashRange, unreleased: &BTreeSet<u64>) -> bool {
        let recorded = self.memtables.lock();
        recorded.get(&range).is_none_or(|ids| ids.iter().any(|id| unreleased.contains(id)))
    }

    pub(super) fn forget(&self, ranges: &[HashRange]) {
        let mut recorded = self.memtables.lock();
        recorded.retain(|range, _| !ranges.contains(range));
    }
}
