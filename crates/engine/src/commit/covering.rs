//! Writes that need not be logged, because a memtable holds their version or a newer one.
//!
//! Replicas receive copies of a cell by several ways: from the coordinator of its write, from read
//! repair, from hints and from anti-entropy. Of a hot key most copies arrive within milliseconds of
//! each other. The first is logged, and the later ones need no space in the log.
//!
//! **Promise.** [`Engine::find_covering`] returns a cell that makes the write of another cell of
//! its key unnecessary. [`Covering::when_durable`] reports success only when that cell is durable.
//! It then stays durable as any acknowledged write does, and reads of the key return it or a newer
//! one.
//!
//! **Mechanism.** A cell at or below the durable watermark is durable: the watermark advances past
//! a group after its sync, and the cells of a failed group are aborted before that. The watermark
//! is read before the memtables are, so a cell that is found at or below it was not aborted. A cell
//! above the watermark belongs to a batch that is queued or being committed. The write then takes
//! the outcome of that batch, and fails if the batch fails.
//!
//! A cell covers another one of a lower version only if its `from` is at least as great. So a merge
//! of both would not have changed it. Of two cells with one version, the covering one must be the
//! same in all parts. Otherwise replicas that receive both in different orders would not agree.
//!
//! **Caveats.** Tables are not searched: a cell that is only in tables covers nothing, whether or
//! not its value can be read back. Neither does a batch that is stalled.

use super::queue::PendingBatch;
use crate::engine::Engine;
use crate::memtable::hash_key;
use crate::view::View;
use crate::{Error, Sequence};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use stdx::{CellRef, Version};

/// A cell of a memtable that makes a write of its key unnecessary.
pub struct Covering {
    version: Version,
    /// Whether another memtable or a table may hold a version greater than that of the write, which
    /// is that of the cell.
    is_possibly_superseded: bool,
    /// The batch of the cell, if that was not durable when the cell was found.
    batch: Option<Arc<PendingBatch>>,
}

impl Engine {
    /// A cell of `key` in a memtable that makes a write of `cell` unnecessary. Does no I/O. For a
    /// version greater than all versions in the memtables, which is the common case of a new write,
    /// it costs one comparison for each memtable.
    #[inline]
    pub fn find_covering(&self, key: &[u8], cell: CellRef<'_>) -> Option<Covering> {
        let view = self.shared.view.load();
        let may_cover = view.memtables().any(|logged| logged.memtable.version_max() >= cell.meta.version);
        if may_cover { self.search_covering(&view, key, cell) } else { None }
    }

    fn search_covering(&self, view: &View, key: &[u8], cell: CellRef<'_>) -> Option<Covering> {
        // With deferred syncs a poisoned engine may have lost a cell below the watermark.
        self.check_poison().ok()?;
        let meta = cell.meta;
        let durable = Sequence(self.shared.watermark.load(Ordering::Acquire));
        let hash = hash_key(key);
        let find = |visible| {
            let mut memtables =
                view.memtables().filter(|logged| logged.memtable.version_max() >= meta.version);
            memtables.find_map(|logged| {
                let covering = |sequence, held: CellRef<'_>| {
                    covers(held, cell).then_some((logged, sequence, held.meta.version))
                };
                logged.memtable.find_with(key, hash, visible, covering)?
            })
        };
        let (holder, version, batch) = if let Some((holder, _, version)) = find(durable) {
            (holder, version, None)
        } else {
            let (holder, sequence, version) = find(Sequence::MAX)?;
            // A batch that is no longer found has just been committed or has failed.
            let (batch, _group) = self.shared.commit_queue.lock().batch_of(sequence);
            (holder, version, Some(batch?))
        };
        let others = view.memtables().filter(|other| !Arc::ptr_eq(other, holder));
        let greatest = others
            .map(|other| other.memtable.version_max())
            .fold(view.levels.version_max_from(0), Version::max);
        let is_possibly_superseded = version == meta.version && greatest >= version;
        Some(Covering { version, is_possibly_superseded, batch })
    }
}

impl Covering {
    /// Version of the covering cell.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether only a read of the key tells if a version greater than that of the write was stored.
    /// `false` if the covering cell has one: see [`CommitOutcome`](crate::CommitOutcome).
    pub fn is_possibly_superseded(&self) -> bool {
        self.is_possibly_superseded
    }

    /// Calls `done` once: with `Ok` when the cell is durable, with the error of its batch if that
    /// fails. Calls it at once, on this thread, if the outcome is known. Otherwise the thread that
    /// commits the batch calls it, under the conditions of a [`Completion`](crate::Completion).
    pub fn when_durable(self, done: impl FnOnce(Result<(), Error>) + Send + 'static) {
        match self.batch {
            None => done(Ok(())),
            Some(batch) => batch.follow(Box::new(done)),
        }
    }
}

impl std::fmt::Debug for Covering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_durable = self.batch.is_none();
        f.debug_struct("Covering").field("version", &self.version).field("is_durable", &is_durable).finish()
    }
}

/// Whether a store that holds one cell need not store the other one, of the same key.
fn covers(held: CellRef<'_>, other: CellRef<'_>) -> bool {
    let (held_meta, other_meta) = (held.meta, other.meta);
    let is_same = || {
        held_meta.version == other_meta.version
            && held_meta.kind == other_meta.kind
            && held_meta.expires_at == other_meta.expires_at
            && held.value == other.value
    };
    held_meta.from >= other_meta.from && (held_meta.version > other_meta.version || is_same())
}
