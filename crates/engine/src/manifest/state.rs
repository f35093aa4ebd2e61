//! The state that a manifest describes, and its replay.

use super::frame::{self, ManifestFrameKind};
use super::{IngestCursor, Levels, RecoveredState, VersionEdit, current};
use crate::Error;
use crate::ownership::{DisownedRange, HashRange};
use crate::sstable::{TableId, TableMeta};
use crate::wal::SegmentId;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// Approximate size of the edits of a snapshot, in bytes.
const SNAPSHOT_EDIT_BYTES: usize = 1 << 20;

/// The result of all edits.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) tables: BTreeMap<TableId, (u8, TableMeta)>,
    pub(super) next_table_id: TableId,
    pub(super) wal_floor: SegmentId,
    /// Live tables that were quarantined when the checkpoint was made from which this directory
    /// began.
    pub(super) damaged: BTreeSet<TableId>,
    /// Positions of ingests, by name.
    pub(super) ingest_cursors: BTreeMap<Bytes, Bytes>,
    /// Disowned ranges; they are disjoint.
    pub(super) disowned: BTreeMap<HashRange, DisownedRange>,
}

impl State {
    /// The state before the first edit.
    pub(super) fn empty() -> Self {
        Self {
            tables: BTreeMap::new(),
            next_table_id: TableId(0),
            wal_floor: SegmentId(0),
            damaged: BTreeSet::new(),
            ingest_cursors: BTreeMap::new(),
            disowned: BTreeMap::new(),
        }
    }

    /// Checks that `edit` does not contradict earlier edits. The error describes the contradiction.
    pub(super) fn check_edit(&self, edit: &VersionEdit) -> Result<(), String> {
        for (level, id) in &edit.removed {
            if self.tables.get(id).is_none_or(|(held, _)| held != level) {
                return Err(format!("table {} is removed from level {level}, where it is not", id.0));
            }
        }
        let stays =
            |id| self.tables.contains_key(id) && edit.removed.iter().all(|(_, removed)| removed != id);
        if let Some((_, meta)) = edit.added.iter().find(|(_, meta)| stays(&meta.id)) {
            return Err(format!("table {} is added, but is there already", meta.id.0));
        }
        let is_known = |name: &&Bytes| {
            self.ingest_cursors.contains_key(*name)
                || edit.ingest_cursors.iter().any(|cursor| cursor.name == **name)
        };
        match edit.removed_ingest_cursors.iter().find(|name| !is_known(name)) {
            Some(name) => Err(format!("the cursor \"{}\" is removed, but is not there", name.escape_ascii())),
            None => self.check_ranges(edit),
        }
    }

    fn check_ranges(&self, edit: &VersionEdit) -> Result<(), String> {
        let mut ranges: BTreeSet<HashRange> = self.disowned.keys().copied().collect();
        for DisownedRange { range, .. } in &edit.disowned {
            let overlaps = ranges.iter().any(|known| known != range && known.overlaps(range));
            if overlaps || range.first > range.last {
                return Err(format!("{range:?} is disowned, but is empty or overlaps another range"));
            }
            ranges.insert(*range);
        }
        match edit.owned.iter().find(|range| !ranges.remove(range)) {
            Some(range) => Err(format!("{range:?} is owned again, but was not disowned")),
            None => Ok(()),
        }
    }

    /// Applies an edit that [`State::check_edit`] accepts.
    pub(super) fn apply(&mut self, edit: &VersionEdit) {
        for (_, id) in &edit.removed {
            self.tables.remove(id);
        }
        for (level, meta) in &edit.added {
            self.tables.insert(meta.id, (*level, meta.clone()));
            self.next_table_id = self.next_table_id.max(TableId(meta.id.0.saturating_add(1)));
        }
        self.next_table_id = self.next_table_id.max(edit.next_table_id.unwrap_or(TableId(0)));
        self.wal_floor = self.wal_floor.max(edit.wal_floor.unwrap_or(SegmentId(0)));
        self.damaged.extend(&edit.damaged);
        self.damaged.retain(|id| self.tables.contains_key(id));
        for IngestCursor { name, position } in &edit.ingest_cursors {
            self.ingest_cursors.insert(name.clone(), position.clone());
        }
        for name in &edit.removed_ingest_cursors {
            self.ingest_cursors.remove(name);
        }
        self.disowned.extend(edit.disowned.iter().map(|disowned| (disowned.range, *disowned)));
        for range in &edit.owned {
            self.disowned.remove(range);
        }
        for range in &edit.unpurged {
            if let Some(disowned) = self.disowned.get_mut(range) {
                disowned.purged_from = None;
            }
        }
    }

    /// The state as recovery returns it.
    pub(super) fn recovered(&self, orphans: Vec<TableId>, cut_bytes: u64) -> RecoveredState {
        RecoveredState {
            tables: self.tables.values().cloned().collect(),
            next_table_id: self.next_table_id,
            wal_floor: self.wal_floor,
            damaged: self.damaged.clone(),
            ingest_cursors: self.ingest_cursors.clone(),
            disowned: self.disowned.values().copied().collect(),
            orphans,
            cut_bytes,
        }
    }

    /// The cursors of ingests, by name.
    pub(super) fn cursors(&self) -> impl Iterator<Item = IngestCursor> + '_ {
        let cursors = self.ingest_cursors.iter();
        cursors.map(|(name, position)| IngestCursor { name: name.clone(), position: position.clone() })
    }

    /// The state as a sequence of edits.
    pub(super) fn snapshot(&self) -> Vec<VersionEdit> {
        let mut edits = vec![VersionEdit {
            next_table_id: Some(self.next_table_id),
            wal_floor: Some(self.wal_floor),
            ..VersionEdit::default()
        }];
        let mut bytes = 0;
        for (level, meta) in self.tables.values() {
            if bytes > SNAPSHOT_EDIT_BYTES {
                edits.push(VersionEdit::default());
                bytes = 0;
            }
            bytes += size_of::<TableMeta>() + meta.key_min.len() + meta.key_max.len();
            edits.last_mut().expect("the snapshot has an edit").added.push((*level, meta.clone()));
        }
        // In the last edit: by then every table has been added.
        let last = edits.last_mut().expect("the snapshot has an edit");
        last.damaged.extend(&self.damaged);
        last.ingest_cursors.extend(self.cursors());
        last.disowned.extend(self.disowned.values());
        edits
    }

    /// Checks that the tables form valid levels.
    fn check(&self) -> Result<(), String> {
        let added = self.tables.values().cloned().collect();
        let all = VersionEdit { added, ..VersionEdit::default() };
        Levels::<TableMeta>::default().apply(&all, &mut |meta| Arc::new(meta.clone())).map(drop)
    }
}

/// A replayed manifest.
#[derive(Debug)]
pub(super) struct ReplayedManifest {
    pub(super) state: State,
    /// Offset of the next edit.
    pub(super) len: u64,
    /// Bytes of an interrupted write at the end.
    pub(super) cut_bytes: u64,
}

/// Replays all edits of manifest `number`. An invalid frame ends it, unless a valid frame follows:
/// then the invalid one was durable once, and is damaged.
pub(super) fn replay(bytes: &[u8], number: u64, path: &Path) -> Result<ReplayedManifest, Error> {
    if let Some(fault) = current::header_fault(bytes, number) {
        return Err(Error::corrupt(path, 0, fault));
    }
    let mut state = State::empty();
    let mut offset = current::HEADER_BYTES;
    let mut end = offset;
    while let Some(frame) = frame::at(&bytes[offset..], number, offset as u64) {
        end = offset + frame.len();
        if frame.kind == ManifestFrameKind::Mark {
            break;
        }
        let edit = VersionEdit::decode(frame.payload).and_then(|edit| state.check_edit(&edit).map(|()| edit));
        state.apply(&edit.map_err(|detail| Error::corrupt(path, offset as u64, detail))?);
        offset = end;
    }
    if end == offset && has_frame_after(bytes, number, offset) {
        return Err(Error::corrupt(path, offset as u64, "a durable edit is damaged"));
    }
    state.check().map_err(|detail| Error::corrupt(path, offset as u64, detail))?;
    Ok(ReplayedManifest { state, len: offset as u64, cut_bytes: (bytes.len() - end) as u64 })
}

/// Replays a manifest from arbitrary bytes, for tests and fuzzing.
///
/// # Errors
/// A description of the fault.
pub fn check_bytes(bytes: &[u8]) -> Result<(), Error> {
    let number = bytes.get(12..20).and_then(|number| number.try_into().ok()).map_or(0, u64::from_le_bytes);
    replay(bytes, number, Path::new("manifest")).map(drop)
}

/// Whether a valid frame begins anywhere after `offset`.
fn has_frame_after(bytes: &[u8], number: u64, offset: usize) -> bool {
    (offset + 1..bytes.len()).any(|later| frame::at(&bytes[later..], number, later as u64).is_some())
}
