//! Reading ranges of keys in chunks.
//!
//! **Promise.** A chunk is bounded work, for any content of the range: it ends at its
//! [`ScanLimit`], which counts every visited entry, and visits at least one. Consecutive chunks
//! visit every key that exists throughout exactly once, independent of concurrent writes.
//!
//! **Mechanism.** Each chunk reads a snapshot of its own, from behind the key where the last one
//! ended. No state is kept between chunks, so a requester that disappears costs nothing.
//!
//! **Caveats.** Values that are not requested count towards the limit if they are read: tables
//! store small ones beside their keys. Oversized ones are not read, and do not count.

use crate::group::fault_of;
use crate::keyspace::{self, ENTITIES, with_entity_key};
use bytes::Bytes;
use cluster::{Hint, Key, NodeIndex, ScanLimit, StoreFault, StoreResponse};
use engine::{Cursor, Engine, Error, ReadMemory, SnapshotCursor};
use std::sync::Arc;
use stdx::{Cell, CellKind, CellRef};

/// A range of users' keys.
pub(crate) struct Range<'a> {
    /// Exclusive lower bound.
    pub(crate) after: Option<&'a Key>,
    /// Inclusive upper bound.
    pub(crate) until: Option<&'a Key>,
}

/// Reads the newest cells of a range. Without `values`, their values are omitted.
pub(crate) fn cells(
    engine: &Engine,
    range: &Range<'_>,
    limit: ScanLimit,
    values: bool,
    memory: &Arc<ReadMemory>,
) -> Result<StoreResponse, StoreFault> {
    let mut entries = Vec::new();
    let snapshot = engine.snapshot();
    let mut cursor = if values { snapshot.cursor() } else { snapshot.version_cursor() };
    cursor.set_memory(Some(Arc::clone(memory)));
    let until = walk(engine, cursor, &[ENTITIES], range, limit, |key, cell, remaining| {
        if !remaining.try_consume(key.len() + cell.value.len()) {
            return Ok(false);
        }
        let value = if values { Bytes::copy_from_slice(cell.value) } else { Bytes::new() };
        entries.push((user_key(key)?, Cell { meta: cell.meta, value }));
        Ok(true)
    })?;
    Ok(StoreResponse::Scanned { entries, until })
}

/// Reads hints for `target` behind `after`. With `cells`, each hint includes the newest cell of its
/// key, if that is readable.
pub(crate) fn hints(
    engine: &Engine,
    target: NodeIndex,
    after: Option<&Key>,
    limit: ScanLimit,
    cells: bool,
    memory: &Arc<ReadMemory>,
) -> Result<StoreResponse, StoreFault> {
    let mut hints = Vec::new();
    let range = Range { after, until: None };
    let (mut cursor, prefix) = (engine.snapshot().cursor(), keyspace::hints_of(target));
    cursor.set_memory(Some(Arc::clone(memory)));
    let until = walk(engine, cursor, &prefix, &range, limit, |key, marker, remaining| {
        if marker.meta.kind == CellKind::Tombstone {
            return Ok(remaining.try_consume(key.len()));
        }
        let cell = match cells && remaining.has_room(key.len()) {
            true => readable(with_entity_key(key, |key| engine.get_covered(key, memory)))?,
            false => None,
        };
        let value_bytes = cell.as_ref().map_or(0, |cell| cell.value.len());
        if !remaining.try_consume(key.len() + value_bytes) {
            return Ok(false);
        }
        hints.push(Hint { key: user_key(key)?, version: marker.meta.version, cell });
        Ok(true)
    })?;
    Ok(StoreResponse::Hints { hints, until })
}

/// The cell of a hint. A corrupt cell is logged and omitted: it must not block the hints behind it,
/// and other replicas hold it, too.
fn readable(cell: Result<Option<Cell>, Error>) -> Result<Option<Cell>, StoreFault> {
    match cell {
        Err(error @ Error::Corrupt { .. }) => {
            tracing::error!(%error, "a cell that another node lacks cannot be handed over");
            Ok(None)
        }
        cell => cell.map_err(|error| fault_of(&error)),
    }
}

/// Calls `visit` with each user key in `range` of the space with this `prefix`, in order, until it
/// refuses one. A cell whose value the cursor does not hold is shown without it. Returns the last
/// accepted key if there are more.
fn walk(
    engine: &Engine,
    mut cursor: SnapshotCursor,
    prefix: &[u8],
    range: &Range<'_>,
    limit: ScanLimit,
    mut visit: impl FnMut(&[u8], CellRef<'_>, &mut Remaining) -> Result<bool, StoreFault>,
) -> Result<Option<Key>, StoreFault> {
    let fault = |error| {
        engine.note_failed_read(&error);
        fault_of(&error)
    };
    cursor.seek(&begin_of(prefix, range.after)).map_err(fault)?;
    let mut remaining = Remaining { limit, has_visited: false };
    let mut last = Vec::new();
    while let Some((key, cell)) = held_entry(&cursor) {
        let Some(key) = key.strip_prefix(prefix) else { return Ok(None) };
        if range.until.is_some_and(|until| key > until.as_bytes()) {
            return Ok(None);
        }
        if !visit(key, cell, &mut remaining)? {
            return user_key(&last).map(Some);
        }
        last.clear();
        last.extend_from_slice(key);
        cursor.advance().map_err(fault)?;
    }
    Ok(None)
}

/// The entry at the cursor, with an empty value if the cursor does not hold it.
#[inline]
pub(crate) fn held_entry(cursor: &impl Cursor) -> Option<(&[u8], CellRef<'_>)> {
    match cursor.holds_value() {
        true => cursor.entry(),
        false => cursor.key_and_meta().map(|(key, meta)| (key, CellRef { meta, value: &[] })),
    }
}

/// First engine key of a walk.
fn begin_of(prefix: &[u8], after: Option<&Key>) -> Vec<u8> {
    match after {
        // The least key after this one.
        Some(after) => [prefix, after.as_bytes(), &[0]].concat(),
        None => prefix.to_vec(),
    }
}

/// The rest of a chunk's limit.
struct Remaining {
    limit: ScanLimit,
    has_visited: bool,
}

impl Remaining {
    fn has_room(&self, bytes: usize) -> bool {
        !self.has_visited || (self.limit.entries > 0 && bytes <= self.limit.bytes)
    }

    /// Consumes an entry of `bytes` if it fits. Returns whether it did.
    fn try_consume(&mut self, bytes: usize) -> bool {
        if !self.has_room(bytes) {
            return false;
        }
        self.has_visited = true;
        self.limit.entries = self.limit.entries.saturating_sub(1);
        self.limit.bytes = self.limit.bytes.saturating_sub(bytes);
        true
    }
}

fn user_key(bytes: &[u8]) -> Result<Key, StoreFault> {
    Key::new(Bytes::copy_from_slice(bytes)).map_err(|error| StoreFault::Corrupt {
        detail: format!("the engine holds bytes that cannot be a key: {error}"),
    })
}
