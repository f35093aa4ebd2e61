//! Ranges of keys, a chunk at a time.
//!
//! **Promise.** A chunk is bounded work, whatever lies in the range: it ends at its [`ScanLimit`], counting all that
//! it passes over, and passes over one entry at least. Chunks that go on where the last one ended meet every
//! key that is there throughout exactly once, whatever is written in between.
//!
//! **Mechanism.** Each chunk walks a snapshot of its own, from behind the key where the last one ended: nothing is
//! kept between two of them, so an asker that goes away costs nothing.
//!
//! **Caveats.** Values count for the limit also when they are not wanted: tables hold them beside their keys, so
//! they are read either way.

use crate::group::fault_of;
use crate::keyspace::{self, ENTITIES, with_entity_key};
use bytes::Bytes;
use cluster::{Hint, Key, NodeIndex, ScanLimit, StoreFault, StoreResponse};
use engine::iter::Cursor;
use engine::{Engine, Error};
use stdx::{Cell, CellKind, CellRef};

/// A range of the user's keys.
pub(crate) struct Range<'a> {
    /// It begins behind this key.
    pub(crate) after: Option<&'a Key>,
    /// It ends with this key.
    pub(crate) until: Option<&'a Key>,
}

/// The newest cells of a range; without `values`, their values are left out.
pub(crate) fn cells(
    engine: &Engine,
    range: &Range<'_>,
    limit: ScanLimit,
    values: bool,
) -> Result<StoreResponse, StoreFault> {
    let mut entries = Vec::new();
    let until = walk(engine, &[ENTITIES], range, limit, |key, cell, left| {
        if !left.take(key.len() + cell.value.len()) {
            return Ok(false);
        }
        let value = if values { Bytes::copy_from_slice(cell.value) } else { Bytes::new() };
        entries.push((user_key(key)?, Cell { meta: cell.meta, value }));
        Ok(true)
    })?;
    Ok(StoreResponse::Scanned { entries, until })
}

/// Hints for `target` behind `after`; with `cells`, the newest of each key that can be read back as it was written.
pub(crate) fn hints(
    engine: &Engine,
    target: NodeIndex,
    after: Option<&Key>,
    limit: ScanLimit,
    cells: bool,
) -> Result<StoreResponse, StoreFault> {
    let mut hints = Vec::new();
    let range = Range { after, until: None };
    let until = walk(engine, &keyspace::hints_of(target), &range, limit, |key, marker, left| {
        if marker.meta.kind == CellKind::Tombstone {
            return Ok(left.take(key.len()));
        }
        let cell = match cells && left.has_room(key.len()) {
            true => readable(with_entity_key(key, |key| engine.get(key)))?,
            false => None,
        };
        let value_bytes = cell.as_ref().map_or(0, |cell| cell.value.len());
        if !left.take(key.len() + value_bytes) {
            return Ok(false);
        }
        hints.push(Hint { key: user_key(key)?, version: marker.meta.version, cell });
        Ok(true)
    })?;
    Ok(StoreResponse::Hints { hints, until })
}

/// The cell of a hint. One that is corrupt is told to the operator and left out: it must not hold up those behind it,
/// and other replicas hold it too.
fn readable(cell: Result<Option<Cell>, Error>) -> Result<Option<Cell>, StoreFault> {
    match cell {
        Err(error @ Error::Corrupt { .. }) => {
            tracing::error!(%error, "a cell that another node lacks cannot be handed over");
            Ok(None)
        }
        cell => cell.map_err(|error| fault_of(&error)),
    }
}

/// Shows `visit` each of the user's keys in `range` of the space that begins with `prefix`, in order, until it has
/// no room for one. Returns the last key that it had room for, if there are more behind.
fn walk(
    engine: &Engine,
    prefix: &[u8],
    range: &Range<'_>,
    limit: ScanLimit,
    mut visit: impl FnMut(&[u8], CellRef<'_>, &mut Left) -> Result<bool, StoreFault>,
) -> Result<Option<Key>, StoreFault> {
    let fault = |error| {
        engine.note_failed_read(&error);
        fault_of(&error)
    };
    let mut cursor = engine.snapshot().cursor();
    cursor.seek(&begin_of(prefix, range.after)).map_err(fault)?;
    let mut left = Left { limit, passed: false };
    let mut last = Vec::new();
    while let Some((key, cell)) = cursor.entry() {
        let Some(key) = key.strip_prefix(prefix) else { return Ok(None) };
        if range.until.is_some_and(|until| key > until.as_bytes()) {
            return Ok(None);
        }
        if !visit(key, cell, &mut left)? {
            return user_key(&last).map(Some);
        }
        last.clear();
        last.extend_from_slice(key);
        cursor.advance().map_err(fault)?;
    }
    Ok(None)
}

/// The first key of the engine that a walk may meet.
fn begin_of(prefix: &[u8], after: Option<&Key>) -> Vec<u8> {
    match after {
        // No key lies between this one and the one it is to be behind.
        Some(after) => [prefix, after.as_bytes(), &[0]].concat(),
        None => prefix.to_vec(),
    }
}

/// What a chunk may still pass over.
struct Left {
    limit: ScanLimit,
    passed: bool,
}

impl Left {
    fn has_room(&self, bytes: usize) -> bool {
        !self.passed || (self.limit.entries > 0 && bytes <= self.limit.bytes)
    }

    /// Whether there was room for an entry of so many bytes; it is taken then.
    fn take(&mut self, bytes: usize) -> bool {
        if !self.has_room(bytes) {
            return false;
        }
        self.passed = true;
        self.limit.entries = self.limit.entries.saturating_sub(1);
        self.limit.bytes = self.limit.bytes.saturating_sub(bytes);
        true
    }
}

fn user_key(bytes: &[u8]) -> Result<Key, StoreFault> {
    Key::new(Bytes::copy_from_slice(bytes)).map_err(|error| StoreFault::Corrupt {
        detail: format!("the engine holds what cannot be a key: {error}"),
    })
}
