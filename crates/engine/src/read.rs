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
//! A key of a disowned range is hidden by the greatest `from` of all its cells, which need not be
//! that of the newest one. So a read of such a key skips no source before it has found a cell by
//! which the key stays. See [`ownership`](crate::ownership).
//!
//! A read of metadata ([`Engine::get_meta`]) returns the metadata of the cell that a read of the
//! key would return. It reads no oversized value to learn it, except from tables of the first
//! format version. It says that the cell exists, not that its value is readable: damage to the
//! block of the value is found by a read of the value and by the scrub.
//!
//! A caller that accounts for the memory of a read passes it as a [`ReadMemory`].

use crate::cell_part::CellPart;
use crate::engine::Engine;
use crate::sstable::{Lookup, ReadMemory, Wait};
use crate::view::LoggedMemtable;
use crate::{Error, Sequence};
use std::sync::atomic::Ordering;
use stdx::{Cell, CellMeta, Version};
use xxhash_rust::xxh3::xxh3_64;

/// Number of times that [`Engine::get_readable`] reads a table before it does without.
const READ_ATTEMPTS: u32 = 3;

/// Result of a read that must not block, of a whole cell or of its metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TryGet<P = Cell> {
    /// The newest cell, or `None` when there is none.
    Ready(Option<P>),
    /// The read would have to wait for the disk.
    WouldWait,
}

/// The newest cell of a key among those that can be read.
#[derive(Debug)]
pub struct ReadableCell {
    /// The newest readable cell; `None` when there is none.
    pub cell: Option<Cell>,
    /// What could not be read and may hold a newer cell of the key.
    pub unread: Option<UnreadCell>,
}

/// A cell that may exist in tables that cannot be read.
#[derive(Debug)]
pub struct UnreadCell {
    /// Greatest version that the cell can have.
    pub version_max: Version,
    /// The error of the table with that version.
    pub error: Error,
}

/// The newest cell found so far.
struct Newest<P> {
    found: Option<P>,
    /// Whether another cell was found of which only the value tells whether it supersedes this one.
    is_tied: bool,
    /// Whether the key is in a disowned range, and no cell was found by which it stays.
    is_hidden: bool,
}

impl<P: CellPart> Newest<P> {
    #[inline]
    fn offer(&mut self, cell: Option<P>) {
        let Some(cell) = cell else { return };
        match self.found.as_ref().map_or(Some(true), |held| cell.supersedes(held)) {
            Some(true) => (self.found, self.is_tied) = (Some(cell), false),
            Some(false) => {}
            None => self.is_tied = true,
        }
    }

    /// Whether cells of up to this version could still supersede the cell found, or show that the
    /// key is not hidden.
    #[inline]
    fn may_be_changed_by(&self, version_max: Version) -> bool {
        self.is_hidden || self.found.as_ref().is_none_or(|held| version_max >= held.meta().version)
    }
}

impl Engine {
    /// The newest durable cell of `key`, including tombstones and expired values. May block on disk
    /// I/O.
    ///
    /// # Errors
    /// [`Error::Corrupt`] or [`Error::Io`] when a table that may hold the newest cell cannot be
    /// read.
    pub fn get(&self, key: &[u8]) -> Result<Option<Cell>, Error> {
        self.get_waiting(key, Wait::Allowed)
    }

    /// As [`Engine::get`]; large blocks are covered by `memory` before they are read.
    ///
    /// # Errors
    /// As [`Engine::get`]; [`Error::NoRoom`] when `memory` cannot cover the value.
    pub fn get_covered(&self, key: &[u8], memory: &ReadMemory) -> Result<Option<Cell>, Error> {
        self.get_waiting(key, Wait::Covered(memory))
    }

    fn get_waiting(&self, key: &[u8], wait: Wait<'_>) -> Result<Option<Cell>, Error> {
        let newest = self.lookup(key, wait)?.expect("a read that may block returns a result");
        Ok(newest.found)
    }

    /// As [`Engine::get`], if the read does not have to wait for the disk.
    ///
    /// # Errors
    /// As [`Engine::get`].
    pub fn try_get(&self, key: &[u8]) -> Result<TryGet, Error> {
        let newest = self.lookup(key, Wait::Never)?;
        Ok(newest.map_or(TryGet::WouldWait, |newest| TryGet::Ready(newest.found)))
    }

    /// The metadata of the cell that [`Engine::get`] returns. Reads the value only of an oversized
    /// cell in a table of format version 1, and of cells of one version that differ. May block on
    /// disk I/O.
    ///
    /// # Errors
    /// As [`Engine::get`]. Damage to a value that is not read is not detected.
    pub fn get_meta(&self, key: &[u8]) -> Result<Option<CellMeta>, Error> {
        self.get_meta_waiting(key, Wait::Allowed)
    }

    /// As [`Engine::get_meta`]; large blocks are covered by `memory` before they are read.
    ///
    /// # Errors
    /// As [`Engine::get_meta`] and [`Engine::get_covered`].
    pub fn get_meta_covered(&self, key: &[u8], memory: &ReadMemory) -> Result<Option<CellMeta>, Error> {
        self.get_meta_waiting(key, Wait::Covered(memory))
    }

    fn get_meta_waiting(&self, key: &[u8], wait: Wait<'_>) -> Result<Option<CellMeta>, Error> {
        let newest = self.lookup::<CellMeta>(key, wait)?.expect("a read that may block returns a result");
        match newest.is_tied {
            true => Ok(self.get_waiting(key, wait)?.map(|cell| cell.meta)),
            false => Ok(newest.found),
        }
    }

    /// As [`Engine::get_meta`], if the read does not have to wait for the disk.
    ///
    /// # Errors
    /// As [`Engine::get_meta`].
    pub fn try_get_meta(&self, key: &[u8]) -> Result<TryGet<CellMeta>, Error> {
        match self.lookup::<CellMeta>(key, Wait::Never)? {
            Some(Newest { is_tied: true, .. }) => Ok(match self.try_get(key)? {
                TryGet::Ready(cell) => TryGet::Ready(cell.map(|cell| cell.meta)),
                TryGet::WouldWait => TryGet::WouldWait,
            }),
            Some(newest) => Ok(TryGet::Ready(newest.found)),
            None => Ok(TryGet::WouldWait),
        }
    }

    /// The newest cell of `key` in the tables that can be read, for a host that can do without the
    /// others. Unlike [`Engine::get`] it does not fail because of damage, and reports how new a
    /// cell is at most that it could not read. A table that fails is read a few times, since the
    /// failure may be temporary. May block on disk I/O.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Exhausted`] when a table cannot be opened now.
    pub fn get_readable(&self, key: &[u8]) -> Result<ReadableCell, Error> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let mut unread = None;
            let newest = self.search::<Cell>(key, Wait::Allowed, &mut unread).expect("waiting is allowed");
            match unread.filter(|unread| newest.may_be_changed_by(unread.version_max)) {
                Some(UnreadCell { error, .. }) if error.unreadable().is_none() => return Err(error),
                Some(_) if attempts < READ_ATTEMPTS => {}
                unread => return Ok(ReadableCell { cell: newest.found, unread }),
            }
        }
    }

    /// Covers the copy of a large value of `bytes` by `memory`, as if it were read from a table.
    ///
    /// # Errors
    /// [`Error::NoRoom`] when `memory` cannot cover the value.
    pub fn cover_copy(&self, bytes: u64, memory: &ReadMemory) -> Result<(), Error> {
        memory.cover(self.shared.cache.large_reads(), bytes, bytes)
    }

    /// Finds the newest cell of `key`. `None`: the read would have to wait.
    fn lookup<P: CellPart>(&self, key: &[u8], wait: Wait<'_>) -> Result<Option<Newest<P>>, Error> {
        let mut unread = None;
        let Some(newest) = self.search(key, wait, &mut unread) else { return Ok(None) };
        match unread {
            Some(UnreadCell { version_max, error }) if newest.may_be_changed_by(version_max) => Err(error),
            _ => Ok(Some(newest)),
        }
    }

    /// Searches the sources of `key`, as far as they can be read. Of the tables that fail, `unread`
    /// is the one with the greatest version. `None`: the search would have to wait.
    #[inline(always)]
    fn search<P: CellPart>(
        &self,
        key: &[u8],
        wait: Wait<'_>,
        unread: &mut Option<UnreadCell>,
    ) -> Option<Newest<P>> {
        // The view is loaded first: it has all memtables and tables with cells up to the watermark
        // read after it.
        let view = self.shared.view.load();
        let visible = Sequence(self.shared.watermark.load(Ordering::Acquire));
        let stays_from = view.filter.range_of(key).map_or(0, |disowned| disowned.stays_from);
        let mut newest = Newest { found: None, is_tied: false, is_hidden: stays_from > 0 };
        let hash = xxh3_64(key);
        for LoggedMemtable { memtable, .. } in view.memtables().map(AsRef::as_ref) {
            if newest.may_be_changed_by(memtable.version_max()) {
                newest.offer(P::of_memtable(memtable, key, hash, visible));
                if newest.is_hidden {
                    let greatest_from = memtable.greatest_from(key, hash, visible);
                    newest.is_hidden = greatest_from.is_none_or(|from| from < stays_from);
                }
            }
        }
        for level in 0..view.levels.depth() {
            if !newest.may_be_changed_by(view.levels.version_max_from(level)) {
                break;
            }
            for table in view.levels.candidates(level, key) {
                if !newest.may_be_changed_by(table.meta().version_max) {
                    continue;
                }
                match table.get_part::<P>(key, hash, wait) {
                    Ok(Lookup::Found(cell)) => {
                        newest.is_hidden &= cell.meta().from < stays_from;
                        newest.offer(Some(cell));
                    }
                    Ok(Lookup::Absent) => {}
                    Ok(Lookup::WouldWait) => return None,
                    Err(error) => {
                        self.note_failed_read(&error);
                        let version_max = table.meta().version_max;
                        if unread.as_ref().is_none_or(|greatest| version_max > greatest.version_max) {
                            *unread = Some(UnreadCell { version_max, error });
                        }
                    }
                }
            }
        }
        if newest.is_hidden {
            (newest.found, newest.is_tied) = (None, false);
        }
        Some(newest)
    }
}
