//! Point reads.
//!
//! **Promise.** A read returns the durable cell that supersedes all others of its key, in any
//! memtable or table. Later reads return the same cell or a newer one, even after a crash.
//!
//! **Mechanism.** Sources are searched in the order in which new cells are likely: memtables, level
//! 0, then downwards. The position of a cell says nothing about its version, so a source is skipped
//! only when its greatest version is below that of the cell found. A hot key is found in the
//! memtable and touches nothing else. Key ranges and filters exclude other sources. A table that
//! cannot be read fails the read, unless the cell found in the other sources is newer than all
//! cells of that table.
//!
//! A caller that accounts for the memory of a read wraps it in
//! [`read_with_admission`](crate::read_with_admission).

use crate::engine::Engine;
use crate::sstable::{LargeReadPermit, Lookup, Wait, read_admission};
use crate::{Error, Sequence};
use std::sync::atomic::Ordering;
use stdx::{Cell, Version};
use xxhash_rust::xxh3::xxh3_64;

/// Result of a read that must not block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TryGet {
    /// The newest cell, or `None` when there is none.
    Ready(Option<Cell>),
    /// The read would have to wait for the disk.
    WouldWait,
}

/// The newest cell found so far.
#[derive(Default)]
struct Newest(Option<Cell>);

impl Newest {
    fn offer(&mut self, cell: Option<Cell>) {
        let Some(cell) = cell else { return };
        if self.0.as_ref().is_none_or(|held| cell.as_ref().supersedes(&held.as_ref())) {
            self.0 = Some(cell);
        }
    }

    /// Whether cells of up to this version could still supersede the cell found.
    fn may_be_superseded_by(&self, version_max: Version) -> bool {
        self.0.as_ref().is_none_or(|held| version_max >= held.meta.version)
    }
}

impl Engine {
    /// The newest durable cell of `key`, including tombstones and expired values. May block on disk
    /// I/O.
    ///
    /// # Errors
    /// [`Error::Corrupt`] or [`Error::Io`] when a table that may hold the newest cell cannot be
    /// read; [`Error::NoRoom`] when the value is large and the host has no memory for it.
    pub fn get(&self, key: &[u8]) -> Result<Option<Cell>, Error> {
        match self.lookup(key, Wait::Allowed)? {
            TryGet::Ready(cell) => Ok(cell),
            TryGet::WouldWait => unreachable!("waiting is allowed"),
        }
    }

    /// As [`Engine::get`], if the read does not have to wait for the disk.
    ///
    /// # Errors
    /// As [`Engine::get`].
    pub fn try_get(&self, key: &[u8]) -> Result<TryGet, Error> {
        self.lookup(key, Wait::Never)
    }

    /// Acquires a permit to copy a large value of `bytes`, as if it were read from a table. The
    /// permit lasts until it is dropped, or belongs to the enclosing
    /// [`read_with_admission`](crate::read_with_admission) in which the value is copied.
    ///
    /// # Errors
    /// [`Error::NoRoom`] when the host does not consent.
    pub fn begin_copy(&self, bytes: u64) -> Result<Option<LargeReadPermit>, Error> {
        read_admission::acquire(self.shared.cache.large_reads(), bytes, bytes)
    }

    fn lookup(&self, key: &[u8], wait: Wait) -> Result<TryGet, Error> {
        // The view is loaded first: it has all memtables and tables with cells up to the watermark
        // read after it.
        let view = self.shared.view.load();
        let visible = Sequence(self.shared.watermark.load(Ordering::Acquire));
        let hash = xxh3_64(key);
        let mut newest = Newest::default();
        let mut unread: Option<(Version, Error)> = None;
        for logged in view.memtables() {
            if newest.may_be_superseded_by(logged.memtable.version_max()) {
                newest.offer(logged.memtable.get(key, hash, visible));
            }
        }
        for level in 0..view.levels.depth() {
            if !newest.may_be_superseded_by(view.levels.version_max_from(level)) {
                break;
            }
            for table in view.levels.candidates(level, key) {
                if !newest.may_be_superseded_by(table.meta().version_max) {
                    continue;
                }
                match table.get(key, hash, wait) {
                    Ok(Lookup::Found(cell)) => newest.offer(Some(cell)),
                    Ok(Lookup::Absent) => {}
                    Ok(Lookup::WouldWait) => return Ok(TryGet::WouldWait),
                    Err(error) => {
                        self.note_failed_read(&error);
                        let version_max = table.meta().version_max;
                        if unread.as_ref().is_none_or(|(greatest, _)| version_max > *greatest) {
                            unread = Some((version_max, error));
                        }
                    }
                }
            }
        }
        match unread {
            Some((version_max, error)) if newest.may_be_superseded_by(version_max) => Err(error),
            _ => Ok(TryGet::Ready(newest.0)),
        }
    }
}
