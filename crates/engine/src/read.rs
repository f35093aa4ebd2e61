//! Point reads.
//!
//! **Promise.** A read returns the durable cell that supersedes all others of its key, whichever memtable or
//! table it is in. What was returned once is returned again, or something newer, also after a crash.
//!
//! **Mechanism.** Sources are looked at from where new cells are likely: memtables, level 0, then downwards.
//! The place of a cell says nothing about its version, so a source is skipped only when its greatest version
//! is below that of what was found; a hot key is found in the memtable and nothing else is touched. Key
//! ranges and filters spare the rest. A table that cannot be read fails the read unless what the others have is
//! newer than all that it can hold.
//!
//! Who reads for others, and has to answer for the memory, says so ([`read_with_consent`](crate::read_with_consent)).

use crate::engine::Engine;
use crate::sstable::{LargeRead, Lookup, Wait, consent};
use crate::{Error, Sequence};
use std::sync::atomic::Ordering;
use stdx::{Cell, Version};
use xxhash_rust::xxh3::xxh3_64;

/// What a read that may not wait found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TryGet {
    /// The newest cell, if there is one.
    Ready(Option<Cell>),
    /// The disk would have to be waited for.
    WouldWait,
}

/// The newest cell seen so far.
#[derive(Default)]
struct Newest(Option<Cell>);

impl Newest {
    fn offer(&mut self, cell: Option<Cell>) {
        let Some(cell) = cell else { return };
        if self.0.as_ref().is_none_or(|held| cell.as_ref().supersedes(&held.as_ref())) {
            self.0 = Some(cell);
        }
    }

    /// Whether cells of up to this version could still supersede what is held.
    fn may_be_superseded_by(&self, version_max: Version) -> bool {
        self.0.as_ref().is_none_or(|held| version_max >= held.meta.version)
    }
}

impl Engine {
    /// The newest durable cell of `key`, tombstones and expired values included. May wait for the disk.
    ///
    /// # Errors
    /// [`Error::Corrupt`] or [`Error::Io`] when a table that may hold the newest cell cannot be read; [`Error::NoRoom`] when
    /// it is large, and the host that it is read for has no room.
    pub fn get(&self, key: &[u8]) -> Result<Option<Cell>, Error> {
        match self.lookup(key, Wait::Allowed)? {
            TryGet::Ready(cell) => Ok(cell),
            TryGet::WouldWait => unreachable!("waiting is allowed"),
        }
    }

    /// As [`Engine::get`], if it can be done without waiting for the disk.
    ///
    /// # Errors
    /// As [`Engine::get`].
    pub fn try_get(&self, key: &[u8]) -> Result<TryGet, Error> {
        self.lookup(key, Wait::Never)
    }

    /// Waits for a turn to copy a large value of so many bytes, as if it were read from a table. The turn lasts until it is
    /// dropped, or is that of the errand in which the value is copied (see [`read_with_consent`](crate::read_with_consent)).
    ///
    /// # Errors
    /// [`Error::NoRoom`] when the host does not consent.
    pub fn begin_copy(&self, bytes: u64) -> Result<Option<LargeRead>, Error> {
        consent::begin(self.shared.cache.large_reads(), bytes, bytes)
    }

    fn lookup(&self, key: &[u8], wait: Wait) -> Result<TryGet, Error> {
        // The view first: it has every memtable and table with cells up to the watermark read after it.
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
