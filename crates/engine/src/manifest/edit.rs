//! Edits of the set of live tables.

use crate::ownership::{DisownedRange, HashRange};
use crate::sstable::{TableId, TableMeta};
use crate::wal::SegmentId;
use bytes::Bytes;
use stdx::WallTime;
use stdx::codec::{Reader, Truncated, put_bytes, put_varint, put_version};

/// An atomic change of the set of live tables (the version edit of LevelDB).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionEdit {
    /// Tables that become live, with their levels.
    pub added: Vec<(u8, TableMeta)>,
    /// Tables that are no longer live, with their levels. A table in both lists moves.
    pub removed: Vec<(u8, TableId)>,
    /// Ids from this one on were not used before this edit.
    pub next_table_id: Option<TableId>,
    /// The segment from which recovery replays the log; all earlier records are in tables.
    pub wal_floor: Option<SegmentId>,
    /// Tables that were quarantined when a checkpoint was made of them. A running engine records
    /// none.
    pub damaged: Vec<TableId>,
    /// Cursors of ingests that are set, in the order in which they are applied.
    pub ingest_cursors: Vec<IngestCursor>,
    /// Names of cursors that are removed, after the others were set.
    pub removed_ingest_cursors: Vec<Bytes>,
    /// Ranges of key hashes that are disowned, or whose purge began.
    pub disowned: Vec<DisownedRange>,
    /// Disowned ranges that are owned again.
    pub owned: Vec<HashRange>,
    /// Disowned ranges whose purge begins anew, if they are still disowned.
    pub unpurged: Vec<HashRange>,
}

/// The durable position of an ingest: everything up to it is in live tables. Names and positions
/// are chosen by the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngestCursor {
    /// Name of the ingest.
    pub name: Bytes,
    /// Position up to which all cells were ingested.
    pub position: Bytes,
}

/// Tags of the fields of an encoded edit.
mod tag {
    pub(super) const ADDED: u8 = 1;
    pub(super) const REMOVED: u8 = 2;
    pub(super) const NEXT_TABLE_ID: u8 = 3;
    pub(super) const WAL_FLOOR: u8 = 4;
    pub(super) const DAMAGED: u8 = 5;
    pub(super) const INGEST_CURSOR: u8 = 6;
    pub(super) const INGEST_CURSOR_REMOVED: u8 = 7;
    /// A disowned range of which no key stays, so without its `stays_from`.
    pub(super) const DISOWNED_WHOLE: u8 = 8;
    pub(super) const OWNED: u8 = 9;
    pub(super) const DISOWNED: u8 = 10;
    pub(super) const UNPURGED: u8 = 11;
}

impl VersionEdit {
    /// Tables that this edit removes and does not add to another level.
    pub fn dropped(&self) -> impl Iterator<Item = TableId> + '_ {
        let moves = |id: TableId| self.added.iter().any(|(_, meta)| meta.id == id);
        self.removed.iter().map(|(_, id)| *id).filter(move |id| !moves(*id))
    }

    /// Appends the encoded edit.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for (level, id) in &self.removed {
            out.extend_from_slice(&[tag::REMOVED, *level]);
            put_varint(out, id.0);
        }
        for (level, meta) in &self.added {
            out.extend_from_slice(&[tag::ADDED, *level]);
            encode_meta(meta, out);
        }
        if let Some(id) = self.next_table_id {
            out.push(tag::NEXT_TABLE_ID);
            put_varint(out, id.0);
        }
        if let Some(segment) = self.wal_floor {
            out.push(tag::WAL_FLOOR);
            put_varint(out, segment.0);
        }
        for id in &self.damaged {
            out.push(tag::DAMAGED);
            put_varint(out, id.0);
        }
        for IngestCursor { name, position } in &self.ingest_cursors {
            out.push(tag::INGEST_CURSOR);
            put_bytes(out, name);
            put_bytes(out, position);
        }
        for name in &self.removed_ingest_cursors {
            out.push(tag::INGEST_CURSOR_REMOVED);
            put_bytes(out, name);
        }
        for DisownedRange { range, stays_from, purged_from } in &self.disowned {
            let is_whole = *stays_from == u8::MAX;
            out.push(if is_whole { tag::DISOWNED_WHOLE } else { tag::DISOWNED });
            encode_range(range, out);
            if !is_whole {
                out.push(*stays_from);
            }
            out.push(u8::from(purged_from.is_some()));
            if let Some(id) = purged_from {
                put_varint(out, id.0);
            }
        }
        for range in &self.owned {
            out.push(tag::OWNED);
            encode_range(range, out);
        }
        for range in &self.unpurged {
            out.push(tag::UNPURGED);
            encode_range(range, out);
        }
    }

    /// Decodes an edit that takes all of `bytes`.
    ///
    /// # Errors
    /// A description of the fault.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let mut reader = Reader::new(bytes);
        let mut edit = Self::default();
        while !reader.is_empty() {
            edit.decode_part(&mut reader)?;
        }
        Ok(edit)
    }

    fn decode_part(&mut self, reader: &mut Reader<'_>) -> Result<(), String> {
        let ends = |Truncated| "the edit ends inside a field".to_owned();
        match reader.u8().map_err(ends)? {
            tag::ADDED => {
                let level = reader.u8().map_err(ends)?;
                self.added.push((level, decode_meta(reader).map_err(ends)?));
            }
            tag::REMOVED => {
                let level = reader.u8().map_err(ends)?;
                self.removed.push((level, TableId(reader.varint().map_err(ends)?)));
            }
            tag::NEXT_TABLE_ID => self.next_table_id = Some(TableId(reader.varint().map_err(ends)?)),
            tag::WAL_FLOOR => self.wal_floor = Some(SegmentId(reader.varint().map_err(ends)?)),
            tag::DAMAGED => self.damaged.push(TableId(reader.varint().map_err(ends)?)),
            tag::INGEST_CURSOR => self.ingest_cursors.push(IngestCursor {
                name: Bytes::copy_from_slice(reader.length_prefixed().map_err(ends)?),
                position: Bytes::copy_from_slice(reader.length_prefixed().map_err(ends)?),
            }),
            tag::INGEST_CURSOR_REMOVED => {
                let name = reader.length_prefixed().map_err(ends)?;
                self.removed_ingest_cursors.push(Bytes::copy_from_slice(name));
            }
            kind @ (tag::DISOWNED | tag::DISOWNED_WHOLE) => {
                self.disowned.push(decode_disowned(kind, reader).map_err(ends)?);
            }
            tag::OWNED => self.owned.push(decode_range(reader).map_err(ends)?),
            tag::UNPURGED => self.unpurged.push(decode_range(reader).map_err(ends)?),
            other => return Err(format!("the edit has a field of unknown kind {other}")),
        }
        Ok(())
    }
}

fn encode_range(range: &HashRange, out: &mut Vec<u8>) {
    out.extend_from_slice(&range.first.to_le_bytes());
    out.extend_from_slice(&range.last.to_le_bytes());
}

fn decode_range(reader: &mut Reader<'_>) -> Result<HashRange, Truncated> {
    Ok(HashRange { first: reader.u64()?, last: reader.u64()? })
}

fn decode_disowned(kind: u8, reader: &mut Reader<'_>) -> Result<DisownedRange, Truncated> {
    let range = decode_range(reader)?;
    let stays_from = if kind == tag::DISOWNED_WHOLE { u8::MAX } else { reader.u8()? };
    let purged_from = match reader.u8()? {
        0 => None,
        _ => Some(TableId(reader.varint()?)),
    };
    Ok(DisownedRange { range, stays_from, purged_from })
}

fn encode_meta(meta: &TableMeta, out: &mut Vec<u8>) {
    for count in [meta.id.0, meta.file_bytes, meta.data_bytes, meta.cells, meta.tombstones, meta.expiring] {
        put_varint(out, count);
    }
    put_bytes(out, &meta.key_min);
    put_bytes(out, &meta.key_max);
    put_version(out, meta.version_min);
    put_version(out, meta.version_max);
    out.push(u8::from(meta.droppable_from.is_some()));
    if let Some(wall) = meta.droppable_from {
        put_varint(out, wall.micros_since_unix_epoch());
    }
}

fn decode_meta(reader: &mut Reader<'_>) -> Result<TableMeta, Truncated> {
    Ok(TableMeta {
        id: TableId(reader.varint()?),
        file_bytes: reader.varint()?,
        data_bytes: reader.varint()?,
        cells: reader.varint()?,
        tombstones: reader.varint()?,
        expiring: reader.varint()?,
        key_min: Bytes::copy_from_slice(reader.length_prefixed()?),
        key_max: Bytes::copy_from_slice(reader.length_prefixed()?),
        version_min: reader.version()?,
        version_max: reader.version()?,
        droppable_from: match reader.u8()? {
            0 => None,
            _ => Some(WallTime::from_micros_since_unix_epoch(reader.varint()?)),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use stdx::{Hlc, NodeTag, Version};

    fn version() -> impl Strategy<Value = Version> {
        any::<(u64, u64)>().prop_map(|(hlc, tag)| Version::new(Hlc::from_bits(hlc), NodeTag(tag)))
    }

    fn meta() -> impl Strategy<Value = TableMeta> {
        let keys = (vec(any::<u8>(), 0..40), vec(any::<u8>(), 0..40));
        (any::<[u64; 6]>(), keys, version(), version(), any::<Option<u64>>()).prop_map(
            |(counts, (key_min, key_max), version_min, version_max, droppable_from)| TableMeta {
                id: TableId(counts[0]),
                file_bytes: counts[1],
                data_bytes: counts[2],
                cells: counts[3],
                tombstones: counts[4],
                expiring: counts[5],
                key_min: key_min.into(),
                key_max: key_max.into(),
                version_min,
                version_max,
                droppable_from: droppable_from.map(WallTime::from_micros_since_unix_epoch),
            },
        )
    }

    fn edit() -> impl Strategy<Value = VersionEdit> {
        let added = vec((any::<u8>(), meta()), 0..4);
        let removed = vec((any::<u8>(), any::<u64>().prop_map(TableId)), 0..4);
        let damaged = vec(any::<u64>().prop_map(TableId), 0..4);
        let bytes = || vec(any::<u8>(), 0..40).prop_map(Bytes::from);
        let cursor = (bytes(), bytes()).prop_map(|(name, position)| IngestCursor { name, position });
        let cursors = (vec(cursor, 0..4), vec(bytes(), 0..4));
        let range = || any::<(u64, u64)>().prop_map(|(first, last)| HashRange { first, last });
        let disowned = (range(), any::<u8>(), any::<Option<u64>>()).prop_map(|(range, stays_from, from)| {
            DisownedRange { range, stays_from, purged_from: from.map(TableId) }
        });
        let numbers = any::<(Option<u64>, Option<u64>)>();
        let ranges = (vec(disowned, 0..4), vec(range(), 0..4), vec(range(), 0..4));
        (added, removed, numbers, damaged, cursors, ranges).prop_map(
            |(added, removed, (next_table_id, wal_floor), damaged, cursors, (disowned, owned, unpurged))| {
                VersionEdit {
                    added,
                    removed,
                    next_table_id: next_table_id.map(TableId),
                    wal_floor: wal_floor.map(SegmentId),
                    damaged,
                    ingest_cursors: cursors.0,
                    removed_ingest_cursors: cursors.1,
                    disowned,
                    owned,
                    unpurged,
                }
            },
        )
    }

    /// Every release must read these bytes.
    #[test]
    fn the_format_of_disowned_ranges_is_stable() {
        let range = HashRange { first: 1, last: 2 };
        let of = |stays_from| DisownedRange { range, stays_from, purged_from: Some(TableId(7)) };
        let (disowned, unpurged) = (vec![of(u8::MAX), of(3)], vec![range]);
        let edit = VersionEdit { disowned, unpurged, ..VersionEdit::default() };
        let mut bytes = Vec::new();
        edit.encode(&mut bytes);
        let range = [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
        let expected = [&[8], &range[..], &[1, 7], &[10], &range, &[3, 1, 7], &[11], &range].concat();
        assert_eq!(bytes, expected);
        assert_eq!(VersionEdit::decode(&bytes), Ok(edit));
    }

    proptest! {
        #[test]
        fn edits_round_trip(edit in edit()) {
            let mut bytes = Vec::new();
            edit.encode(&mut bytes);
            prop_assert_eq!(VersionEdit::decode(&bytes), Ok(edit));
        }

        #[test]
        fn any_bytes_are_an_edit_or_refused(bytes: Vec<u8>) {
            if let Ok(edit) = VersionEdit::decode(&bytes) {
                prop_assert!(edit.added.len() + edit.removed.len() <= bytes.len());
            }
        }

        #[test]
        fn an_edit_with_a_changed_byte_is_an_edit_or_refused(edit in edit(), at: prop::sample::Index, xor in 1u8..) {
            let mut bytes = Vec::new();
            edit.encode(&mut bytes);
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] ^= xor;
                let _edit_or_refusal = VersionEdit::decode(&bytes);
            }
        }
    }
}
