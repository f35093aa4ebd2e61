//! The ownership filter: ranges of key hashes of which the engine treats keys as absent.
//!
//! **Promise.** When [`Engine::disown`] returns, the ranges are durably *disowned*: reads, and
//! snapshots taken from then on, find none of their *hidden* keys. A key is hidden exactly if all
//! its cells have a `from` below the `stays_from` of its range. It takes effect at one moment,
//! without tombstones, whatever the number of cells. Compaction then removes the cells of hidden
//! keys from disk. A range is owned again, with [`Engine::own_again`], only after no such cell can
//! return, not even after a crash.
//!
//! A cell with a `from` of `n` is for the first `n` nodes of a preference list. A node that falls
//! back to place `p`, counted from 0, disowns with a `stays_from` of `p + 1`, and remains a replica
//! of what was written for more nodes.
//!
//! *Keys, not cells.* If a key has an older cell with a great `from` and a newer one with a small
//! `from`, both stay: without the newer one, a read would return the older one again. Merging gives
//! the newest cell the greatest `from`, see [`MergeCursor`](crate::iter::MergeCursor), and all
//! reads judge by that.
//!
//! **Mechanism.** The disowned ranges are part of the manifest and of each [`View`]. So a reader
//! has the filter that belongs to its tables, and a snapshot that was taken before still finds the
//! keys. The hash of a key leaves out its first byte, so that a host with key spaces filters the
//! keys of its users by their partitions. Local keys are never filtered.
//!
//! *Purge.* Once the filter is durable, all tables are written without the cells of hidden keys: by
//! flushes, compactions and healing. A job that comes upon a cell with a `from` below `stays_from`
//! looks its key up in all memtables and tables that it does not merge; filters make that cheap. If
//! one of them has a cell by which the key stays, the job writes its own cell with the `from` of
//! that one, as a later merge of both would. Otherwise it leaves the cell out. So a written table
//! has *no cell of the range with a smaller `from`*, whatever becomes of the other cells of its key
//! later: a purge never has to look at it again.
//!
//! Each table takes the filter when it gets its id. After the jobs have the filter, the next table
//! id is recorded as *purged from*: later tables have no such cell. A table that is older is
//! rewritten at its level when no other compaction is worthwhile. The live tables are a complete
//! account: a running job holds its inputs live until its outputs replace them, and an output with
//! an older id counts as an older table. So a range is *purged* when no live table is older than
//! its record and when the memtables of that time are flushed and released from the log.
//!
//! *Unreadable tables.* If a lookup fails, the job keeps the cell as it is. In the same edit of the
//! manifest the purge of the range begins anew. It waits until no table is suspected or
//! quarantined, so it ends once damage is healed.
//!
//! *Greater and smaller parts.* [`Engine::disown`] with a greater `stays_from` hides more keys and
//! purges anew. [`Engine::own_again`] with a smaller one requires the purge first. It makes the
//! jobs leave out less, and then the readers. In between and before there is no cell that it would
//! hide.
//!
//! *Collected cells.* If the cell by which a key stays is a tombstone that compaction collects, its
//! `from` is gone with it, as it is without a filter. A newer cell with a small `from` is hidden
//! from then on, unless its table was written after the purge began: then it has the great `from`.
//!
//! *Ingests.* A part that was begun under other disowned ranges is refused at its commit: its cells
//! may be older than a purge.
//!
//! **Caveats.** The host neither writes nor ingests cells of a disowned range with a `from` below
//! `stays_from`; an ingest refuses them. A late cell with a great `from` makes a hidden key visible
//! again, with those of its cells that are not purged yet. If it is older than they are, the
//! tombstone of one of them may be gone already; anti-entropy brings it back.
//!
//! A purge rewrites every table, because hashes spread the keys of a range over all of them. A
//! quarantined table delays it until it is healed. A read of a disowned key that is absent asks all
//! sources. A step of a cursor passes all hidden keys before the next visible one, and reads them.

mod filter;
mod sources;
mod state;

pub use filter::{DisownedRange, HashRange, OwnedRange};
pub(crate) use filter::{Judgement, OwnershipFilter};
pub use sources::OtherSources;
pub use state::JobFilter;
pub(crate) use state::Ownership;

use crate::Error;
use crate::engine::Engine;
use crate::manifest::VersionEdit;
use crate::sstable::TableId;
use crate::view::View;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// State of the purge of a disowned range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PurgeProgress {
    /// The range.
    pub range: HashRange,
    /// A key of the range is hidden if all its cells have a smaller `from`.
    pub stays_from: u8,
    /// Bytes of the tables that may hold cells of hidden keys, of other ranges too.
    pub bytes_left: u64,
    /// Whether no cell of a hidden key is left and none can return: the range may be owned again.
    pub is_purged: bool,
}

impl Engine {
    /// Treats all keys outside of these parts of their ranges as absent, durably and from one
    /// moment on. A range of which exactly such a part is owned already stays as it is. Blocks
    /// on disk I/O.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty range, and for one that overlaps another one without being
    /// equal to it. [`Error::Invalid`] also for a part that is the whole range, and for one that is
    /// greater than the owned one: see [`Engine::own_again`]. [`Error::Full`],
    /// [`Error::Exhausted`]: nothing has changed. [`Error::Poisoned`].
    pub fn disown(&self, parts: &[OwnedRange]) -> Result<(), Error> {
        self.check_poison()?;
        let _one_at_a_time = self.shared.ownership.change.lock();
        let mut all: Vec<DisownedRange> = self.filter().ranges().to_vec();
        let mut disowned: Vec<DisownedRange> = Vec::new();
        for &OwnedRange { range, stays_from } in parts {
            let known = all.iter().position(|known| known.range == range);
            if let Some(known) = known.map(|at| all[at]) {
                if known.stays_from == stays_from {
                    continue;
                }
                if known.stays_from > stays_from {
                    return Err(Error::Invalid(format!("{known:?} is owned again from {stays_from}")));
                }
            }
            if range.first > range.last || stays_from <= 1 {
                return Err(Error::Invalid(format!("nothing is disowned: {range:?} from {stays_from}")));
            }
            if all.iter().any(|known| known.range != range && known.range.overlaps(&range)) {
                return Err(Error::Invalid(format!("{range:?} overlaps another range")));
            }
            for list in [&mut all, &mut disowned] {
                list.retain(|known| known.range != range);
                list.push(DisownedRange { range, stays_from, purged_from: None });
            }
        }
        if disowned.is_empty() {
            return Ok(());
        }
        let added: Vec<HashRange> = disowned.iter().map(|added| added.range).collect();
        self.install_ranges(&VersionEdit { disowned, ..VersionEdit::default() })?;
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

    /// Makes the jobs leave out the cells of all hidden keys, and records from which table id
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
        let waiting = filter.ranges().iter().filter(|disowned| disowned.purged_from.is_none());
        let disowned =
            waiting.map(|disowned| DisownedRange { purged_from: Some(purged_from), ..*disowned }).collect();
        // The id must not be assigned to a table of an earlier job after a restart.
        let next_table_id = Some(purged_from);
        self.install_ranges(&VersionEdit { disowned, next_table_id, ..VersionEdit::default() })?;
        // The picker learns which tables are to be rewritten.
        self.shared.ownership.jobs.set(&self.filter());
        self.shared.signals.compact.notify();
        Ok(())
    }

    /// Begins the purge if a range waits for it, and returns whether it did. For the upkeep.
    pub(crate) fn retry_purge(&self) -> Result<bool, Error> {
        let waits = self.filter().ranges().iter().any(|disowned| disowned.purged_from.is_none())
            && !self.shared.jobs.damaged.has_any();
        match self.shared.ownership.change.try_lock() {
            Some(_changing) if waits => self.begin_purge_if_possible(),
            _ => Ok(false),
        }
    }

    /// The disowned ranges with the state of their purge, in ascending order.
    pub fn disowned(&self) -> Vec<PurgeProgress> {
        let view = self.shared.view.load();
        let memtables = self.unreleased_memtables();
        // Most ranges are purged from one of a few tables on.
        let mut left = BTreeMap::new();
        let mut progress = |disowned: &DisownedRange| {
            let DisownedRange { range, stays_from, purged_from } = *disowned;
            let bytes_left =
                *left.entry(purged_from).or_insert_with(|| self.unpurged_bytes(&view, purged_from));
            let in_memory = self.shared.ownership.has_memtables(range, &memtables);
            let is_purged = purged_from.is_some() && bytes_left == 0 && !in_memory;
            PurgeProgress { range, stays_from, bytes_left, is_purged }
        };
        view.filter.ranges().iter().map(&mut progress).collect()
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

    /// Owns these parts of disowned ranges, which are greater than those that are owned. A range of
    /// which such a part or a greater one is owned already stays as it is. May flush memtables.
    /// Blocks on disk I/O.
    ///
    /// # Errors
    /// [`Error::Invalid`] while a range is not purged; [`Error::Full`], [`Error::Exhausted`]:
    /// nothing has changed. [`Error::Poisoned`].
    pub fn own_again(&self, parts: &[OwnedRange]) -> Result<(), Error> {
        self.check_poison()?;
        let _one_at_a_time = self.shared.ownership.change.lock();
        let before = self.filter();
        let mut changed: Vec<DisownedRange> = Vec::new();
        for part in parts {
            let known = before.ranges().iter().find(|known| known.range == part.range);
            if let Some(known) = known.filter(|known| part.stays_from < known.stays_from) {
                changed.push(DisownedRange { stays_from: part.stays_from, ..*known });
            }
        }
        if changed.is_empty() {
            return Ok(());
        }
        if let Some(left) = self.first_unpurged(&changed) {
            if left.bytes_left > 0 {
                return Err(unpurged(&left));
            }
            // The cells are gone from the tables. The log may still have them.
            self.release_log()?;
            if let Some(left) = self.first_unpurged(&changed) {
                return Err(unpurged(&left));
            }
        }
        let (owned, disowned): (Vec<_>, Vec<_>) =
            changed.into_iter().partition(|changed| changed.stays_from <= 1);
        let owned: Vec<HashRange> = owned.into_iter().map(|whole| whole.range).collect();
        let edit = VersionEdit { owned: owned.clone(), disowned, ..VersionEdit::default() };
        let after = self.filter().after(&edit).expect("the edit has ranges");
        self.shared.ownership.jobs.set(&Arc::new(after));
        self.install_ranges(&edit).inspect_err(|_| self.shared.ownership.jobs.set(&before))?;
        self.shared.ownership.forget(&owned);
        Ok(())
    }

    fn first_unpurged(&self, ranges: &[DisownedRange]) -> Option<PurgeProgress> {
        let is_asked = |range| ranges.iter().any(|disowned| disowned.range == range);
        self.disowned().into_iter().find(|progress| is_asked(progress.range) && !progress.is_purged)
    }

    /// Whether a cell of `key` with this `from` is shown once it is written. Without disowned
    /// ranges it costs one comparison.
    #[inline]
    pub fn owns(&self, key: &[u8], from: u8) -> bool {
        !self.shared.view.load().filter.hides(key, from)
    }

    /// The filter of the present view.
    pub(crate) fn filter(&self) -> Arc<OwnershipFilter> {
        Arc::clone(&self.shared.view.load().filter)
    }

    /// Makes an edit of the disowned ranges durable and visible.
    fn install_ranges(&self, edit: &VersionEdit) -> Result<(), Error> {
        // An ingest compares the filters under this lock.
        let _no_ingest = self.shared.jobs.busy.lock();
        self.shared.install_edit(edit, View::with_levels).map_err(|error| self.job_failed(error))
    }
}

fn unpurged(left: &PurgeProgress) -> Error {
    Error::Invalid(format!("{:?} is not purged: tables of {} bytes are left", left.range, left.bytes_left))
}
