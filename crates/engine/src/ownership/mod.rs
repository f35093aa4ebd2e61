//! The ownership filter: ranges of key hashes whose keys the engine treats as absent.
//!
//! **Promise.** When [`Engine::disown`] returns, the ranges are durably *disowned*: reads, and
//! snapshots taken from then on, find no key of them. It takes effect at one moment, without
//! tombstones, whatever the number of cells. Compaction then removes the cells from disk. A range
//! is owned again, with [`Engine::own_again`], only after no cell of it can return, not even after
//! a crash.
//!
//! **Mechanism.** The disowned ranges are part of the manifest and of each [`View`]. So a reader
//! has the filter that belongs to its tables, and a snapshot that was taken before still finds the
//! keys. The hash of a key leaves out its first byte, so that a host with key spaces filters the
//! keys of its users by their partitions. Local keys are never filtered.
//!
//! *Purge.* Once the filter is durable, all tables are written without the cells that it hides: by
//! flushes, compactions and healing. Each table takes the filter when it gets its id. After the
//! jobs have the filter, the next table id is recorded as *purged from*: later tables have no cell
//! of the range. A table that is older is rewritten at its level when no other compaction is
//! worthwhile. The live tables are a complete account: a running job holds its inputs live until
//! its outputs replace them, and an output with an older id counts as an older table. So a range is
//! *purged* when no live table is older than its record and when the memtables of that time are
//! flushed and released from the log.
//!
//! *Owning again.* The jobs leave out the filter first, and then the manifest and the view do. In
//! between and before there is no cell that it would hide.
//!
//! *Ingests.* A part that was begun under other disowned ranges is refused at its commit: its cells
//! may be older than a purge.
//!
//! **Caveats.** The host neither writes nor ingests keys of a disowned range; an ingest refuses
//! them. A purge rewrites every table, because hashes spread the keys of a range over all of them.
//! A quarantined table delays it until it is healed. A step of a cursor passes all hidden keys
//! before the next visible one, and reads them.

mod filter;
mod state;

pub(crate) use filter::OwnershipFilter;
pub use filter::{DisownedRange, HashRange};
pub use state::JobFilter;
pub(crate) use state::Ownership;

use crate::Error;
use crate::engine::Engine;
use crate::manifest::VersionEdit;
use crate::sstable::TableId;
use crate::view::View;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// State of the purge of a disowned range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PurgeProgress {
    /// The range.
    pub range: HashRange,
    /// Bytes of the tables that may hold cells of the range, of other ranges too.
    pub bytes_left: u64,
    /// Whether no cell of the range is left and none can return: the range may be owned again.
    pub is_purged: bool,
}

impl Engine {
    /// Treats all keys with hashes in these ranges as absent, durably and from one moment on. A
    /// range that is disowned already stays so. Blocks on disk I/O.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty range, and for one that overlaps another one without being
    /// equal to it. [`Error::Full`], [`Error::Exhausted`]: nothing has changed.
    /// [`Error::Poisoned`].
    pub fn disown(&self, ranges: &[HashRange]) -> Result<(), Error> {
        self.check_poison()?;
        let _one_at_a_time = self.shared.ownership.change.lock();
        let mut all: Vec<DisownedRange> = self.filter().ranges().to_vec();
        let mut disowned = Vec::new();
        for &range in ranges {
            if all.iter().any(|known| known.range == range) {
                continue;
            }
            if range.first > range.last || all.iter().any(|known| known.range.overlaps(&range)) {
                return Err(Error::Invalid(format!("{range:?} is empty or overlaps another range")));
            }
            let added = DisownedRange { range, purged_from: None };
            all.push(added);
            disowned.push(added);
        }
        if disowned.is_empty() {
            return Ok(());
        }
        let added: Vec<HashRange> = disowned.iter().map(|added| added.range).collect();
        self.install_filter(&VersionEdit { disowned, ..VersionEdit::default() }, all)?;
        // Batches that were queued before have memtables of this moment.
        let sealed = self.seal();
        let mut memtables: BTreeSet<u64> = sealed.iter().map(|logged| logged.memtable.id()).collect();
        memtables.extend(self.shared.replayable.lock().ids());
        self.shared.ownership.record_memtables(added, &memtables);
        self.begin_purge_if_possible().map(drop)
    }

    /// As [`Engine::begin_purge`]; for lack of space the upkeep tries again. Returns whether the
    /// purge began.
    fn begin_purge_if_possible(&self) -> Result<bool, Error> {
        match self.begin_purge() {
            Err(error) if error.is_shortage() => {
                tracing::debug!(%error, "the purge of disowned keys begins later");
                Ok(false)
            }
            begun => begun.map(|()| true),
        }
    }

    /// Makes the jobs leave out the cells of all disowned ranges, and records from which table id
    /// on they do. Has no effect if that is recorded for each range.
    fn begin_purge(&self) -> Result<(), Error> {
        let filter = self.filter();
        if filter.ranges().iter().all(|disowned| disowned.purged_from.is_some()) {
            return Ok(());
        }
        self.shared.ownership.jobs.set(&filter);
        // Pairs with the fence in `JobFilter::for_table`: either a table that is begun has the new
        // filter, or its id is below the one that is read here.
        fence(Ordering::SeqCst);
        let purged_from = TableId(self.shared.next_table_id.load(Ordering::SeqCst));
        let (mut all, mut disowned) = (filter.ranges().to_vec(), Vec::new());
        for range in all.iter_mut().filter(|range| range.purged_from.is_none()) {
            range.purged_from = Some(purged_from);
            disowned.push(*range);
        }
        // The id must not be assigned to a table of an earlier job after a restart.
        let next_table_id = Some(purged_from);
        self.install_filter(&VersionEdit { disowned, next_table_id, ..VersionEdit::default() }, all)?;
        // The picker learns which tables are to be rewritten.
        self.shared.ownership.jobs.set(&self.filter());
        self.shared.signals.compact.notify();
        Ok(())
    }

    /// Begins the purge if a range waits for it, and returns whether it did. For the upkeep.
    pub(crate) fn retry_purge(&self) -> Result<bool, Error> {
        let waits = self.filter().ranges().iter().any(|disowned| disowned.purged_from.is_none());
        match self.shared.ownership.change.try_lock() {
            Some(_changing) if waits => self.begin_purge_if_possible(),
            _ => Ok(false),
        }
    }

    /// The disowned ranges with the state of their purge, in ascending order.
    pub fn disowned(&self) -> Vec<PurgeProgress> {
        let view = self.shared.view.load();
        let memtables = self.unreleased_memtables();
        let progress = |disowned: &DisownedRange| {
            let bytes_left = self.unpurged_bytes(&view, disowned.purged_from);
            let in_memory = self.shared.ownership.has_memtables(disowned.range, &memtables);
            let is_purged = disowned.purged_from.is_some() && bytes_left == 0 && !in_memory;
            PurgeProgress { range: disowned.range, bytes_left, is_purged }
        };
        view.filter.ranges().iter().map(progress).collect()
    }

    fn unpurged_bytes(&self, view: &View, purged_from: Option<TableId>) -> u64 {
        let local_end = self.shared.options.local_keys_end.as_deref().unwrap_or(&[]);
        let may_hold = |id: TableId| purged_from.is_none_or(|from| id < from);
        let tables = view.levels.iter().map(|(_, table)| table.meta());
        tables
            .filter(|meta| may_hold(meta.id) && *meta.key_max >= *local_end)
            .map(|meta| meta.file_bytes)
            .sum()
    }

    /// Ends the filtering of ranges whose cells are purged. A range that is not disowned stays
    /// owned. May flush memtables. Blocks on disk I/O.
    ///
    /// # Errors
    /// [`Error::Invalid`] while a range is not purged; [`Error::Full`], [`Error::Exhausted`]:
    /// nothing has changed. [`Error::Poisoned`].
    pub fn own_again(&self, ranges: &[HashRange]) -> Result<(), Error> {
        self.check_poison()?;
        let _one_at_a_time = self.shared.ownership.change.lock();
        let before = self.filter();
        let (owned, rest): (Vec<DisownedRange>, Vec<_>) =
            before.ranges().iter().copied().partition(|disowned| ranges.contains(&disowned.range));
        if owned.is_empty() {
            return Ok(());
        }
        if let Some(left) = self.first_unpurged(&owned) {
            if left.bytes_left > 0 {
                return Err(unpurged(&left));
            }
            // The cells are gone from the tables. The log may still have them.
            self.release_log()?;
            if let Some(left) = self.first_unpurged(&owned) {
                return Err(unpurged(&left));
            }
        }
        let owned: Vec<HashRange> = owned.iter().map(|disowned| disowned.range).collect();
        let local_end = self.shared.options.local_end().unwrap_or_default();
        self.shared.ownership.jobs.set(&Arc::new(OwnershipFilter::new(rest.clone(), local_end)));
        let edit = VersionEdit { owned: owned.clone(), ..VersionEdit::default() };
        self.install_filter(&edit, rest).inspect_err(|_| self.shared.ownership.jobs.set(&before))?;
        self.shared.ownership.forget(&owned);
        Ok(())
    }

    fn first_unpurged(&self, ranges: &[DisownedRange]) -> Option<PurgeProgress> {
        let is_asked = |range| ranges.iter().any(|disowned| disowned.range == range);
        self.disowned().into_iter().find(|progress| is_asked(progress.range) && !progress.is_purged)
    }

    /// The filter of the present view.
    pub(crate) fn filter(&self) -> Arc<OwnershipFilter> {
        Arc::clone(&self.shared.view.load().filter)
    }

    /// Makes an edit durable, and publishes the filter that it leaves.
    fn install_filter(&self, edit: &VersionEdit, ranges: Vec<DisownedRange>) -> Result<(), Error> {
        let local_end = self.shared.options.local_end().unwrap_or_default();
        let filter = Arc::new(OwnershipFilter::new(ranges, local_end));
        // An ingest compares the filters under this lock.
        let _no_ingest = self.shared.jobs.busy.lock();
        let installed =
            self.shared.install_edit(edit, |view, levels| view.with_levels(levels).with_filter(filter));
        installed.map_err(|error| self.job_failed(error))
    }
}

fn unpurged(left: &PurgeProgress) -> Error {
    Error::Invalid(format!("{:?} is not purged: tables of {} bytes are left", left.range, left.bytes_left))
}
