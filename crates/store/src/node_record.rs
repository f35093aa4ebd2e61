//! The node record: durable state about this node and its peers, stored as one cell of the system
//! space.
//!
//! **Promise.** Of two records the one with the greater revision wins, in any order of storing. A
//! record of every released version can be read.
//!
//! **Mechanism.** The record is stored whole. The version of its cell is the current time, but at
//! least the version of the record with the greatest revision so far. A record with a lower
//! revision gets the same version as that one. Between equal versions the greater bytes win, and
//! they begin with the revision. The version is the time and not the revision itself, because a
//! cell from the distant past would prevent compaction from dropping younger cells.

use crate::error::StoreError;
use crate::keyspace::NODE_RECORD;
use bytes::Bytes;
use cluster::{
    Generation, GenerationHistory, Incarnation, Key, LayoutEpoch, NODES_MAX, NodeIndex, NodeRecord, NodeSet,
    RefusedKey, RefusedKeys, SyncState,
};
use engine::{Engine, ReadableCell, UnreadCell};
use env::Clock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use stdx::codec::{Reader, Truncated, put_bytes, put_varint};
use stdx::{Cell, Hlc, NodeTag, Version, WallTime};

/// Newest version of the format, written from the first change of a partition on. Version 1 ends
/// before the generations. Version 2, which earlier releases read, ends before the refused keys.
/// Version 3 ends before the epoch of what was disowned.
const FORMAT: u8 = 4;
const FORMAT_WITHOUT_LIVES: u8 = 1;
const FORMAT_WITHOUT_REFUSED: u8 = 2;
const FORMAT_WITHOUT_DISOWNED: u8 = 3;

const UNSETTLED: u8 = 0;
const REBUILDING: u8 = 1;
const SETTLED: u8 = 2;

/// The record at a start.
#[derive(Debug)]
pub(crate) struct LoadedRecord {
    /// The stored record. It is an earlier one or `None` if `is_unread`.
    pub(crate) record: Option<NodeRecord>,
    /// Version of the stored record.
    pub(crate) version: Option<Version>,
    /// Whether a table that may hold a newer record cannot be read.
    pub(crate) is_unread: bool,
    /// Allocator of versions for later records of this node.
    pub(crate) versions: RecordVersions,
}

/// Loads the record in `engine` at a start of the node `tag`. A later record supersedes the loaded
/// one, and also each that could not be read.
pub(crate) fn load(engine: &Engine, tag: NodeTag, clock: Arc<dyn Clock>) -> Result<LoadedRecord, StoreError> {
    let ReadableCell { cell, unread } = engine.get_readable(NODE_RECORD)?;
    let version = cell.as_ref().map(|cell| cell.meta.version);
    let record = cell.map(|cell| decode_cell(&cell)).transpose()?;
    // Between equal clock values the greater tag wins, and this may be a copy of another node's
    // record.
    let found = version.map(|version| if version.tag == tag { version.hlc } else { version.hlc.next() });
    let past_unread = unread.as_ref().map(|unread| unread.version_max.hlc.next());
    if let Some(UnreadCell { error, .. }) = &unread {
        tracing::error!(%error, "the node's record of itself and its peers cannot be read");
    }
    let last = LastRecord {
        revision: record.as_ref().map_or(0, |record| record.revision),
        hlc: found.max(past_unread).unwrap_or(Hlc::ZERO),
    };
    let versions = RecordVersions { clock, last: Mutex::new(last) };
    Ok(LoadedRecord { record, version, is_unread: unread.is_some(), versions })
}

/// Loads the record in `engine` with its version.
pub(crate) fn find(engine: &Engine) -> Result<Option<(NodeRecord, Version)>, StoreError> {
    let Some(cell) = engine.get(NODE_RECORD)? else { return Ok(None) };
    Ok(Some((decode_cell(&cell)?, cell.meta.version)))
}

fn decode_cell(cell: &Cell) -> Result<NodeRecord, StoreError> {
    decode(&cell.value).map_err(|detail| StoreError::NodeRecord { detail })
}

/// Allocates versions for records.
pub(crate) struct RecordVersions {
    clock: Arc<dyn Clock>,
    last: Mutex<LastRecord>,
}

/// Greatest revision so far, and its version.
#[derive(Debug)]
struct LastRecord {
    revision: u64,
    hlc: Hlc,
}

impl RecordVersions {
    /// The clock value for the record with this revision.
    pub(crate) fn clock_for(&self, revision: u64) -> Hlc {
        // The data under the lock is consistent after each statement, so a poisoned lock is usable.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if revision > last.revision {
            *last = LastRecord { revision, hlc: last.hlc.max(Hlc::at(self.clock.now().wall)) };
        }
        last.hlc
    }
}

impl std::fmt::Debug for RecordVersions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordVersions").field("last", &self.last).finish_non_exhaustive()
    }
}

/// Encodes the record. The format is in `docs/storage-format/store.md`.
pub(crate) fn encode(record: &NodeRecord) -> Vec<u8> {
    let format = match record.disowned_to {
        Some(_) => FORMAT,
        None if !record.refused.is_empty() => FORMAT_WITHOUT_DISOWNED,
        None => FORMAT_WITHOUT_REFUSED,
    };
    let mut bytes = vec![format];
    put_first(&mut bytes, record);
    put_varint(&mut bytes, record.own_generations.iter().len() as u64);
    record.own_generations.iter().for_each(|generation| put_generation(&mut bytes, generation));
    put_varint(&mut bytes, record.peer_generations.len() as u64);
    for (peer, generation) in &record.peer_generations {
        bytes.push(peer.0);
        put_generation(&mut bytes, generation);
    }
    bytes.extend_from_slice(&record.unheard.to_bits().to_le_bytes());
    if format >= FORMAT_WITHOUT_DISOWNED {
        put_refused(&mut bytes, &record.refused);
    }
    if let Some(LayoutEpoch(epoch)) = record.disowned_to {
        bytes.extend_from_slice(&epoch.to_le_bytes());
    }
    bytes
}

fn put_refused(bytes: &mut Vec<u8>, refused: &RefusedKeys) {
    put_varint(bytes, refused.len() as u64);
    for (key, RefusedKey { since, holders }) in refused.iter() {
        put_bytes(bytes, key.as_bytes());
        bytes.extend_from_slice(&since.to_bits().to_le_bytes());
        bytes.extend_from_slice(&holders.to_bits().to_le_bytes());
    }
}

fn put_generation(bytes: &mut Vec<u8>, generation: &Generation) {
    let Generation { number, incarnation, clock } = generation;
    for field in [*number, incarnation.0, clock.to_bits()] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
}

/// Encodes the part that all versions of the format share.
fn put_first(bytes: &mut Vec<u8>, record: &NodeRecord) {
    let NodeRecord { revision, sync_state, peers, repaired_at, repair_pending, .. } = record;
    bytes.extend_from_slice(&revision.to_be_bytes());
    bytes.push(match sync_state {
        SyncState::Unsettled => UNSETTLED,
        SyncState::Rebuilding => REBUILDING,
        SyncState::Settled => SETTLED,
    });
    put_varint(bytes, peers.len() as u64);
    for (peer, tag) in peers {
        bytes.push(peer.0);
        bytes.extend_from_slice(&tag.0.to_le_bytes());
    }
    bytes.push(u8::from(repaired_at.is_some()));
    if let Some(wall) = repaired_at {
        bytes.extend_from_slice(&wall.micros_since_unix_epoch().to_le_bytes());
    }
    bytes.extend_from_slice(&repair_pending.to_bits().to_le_bytes());
}

/// Inverse of `encode`; the error describes the defect.
fn decode(bytes: &[u8]) -> Result<NodeRecord, String> {
    let (format, rest) = bytes.split_first().ok_or("it is empty")?;
    let mut reader = Reader::new(rest);
    let record = match *format {
        FORMAT_WITHOUT_LIVES => decode_first(&mut reader)?,
        FORMAT_WITHOUT_REFUSED => {
            let record = decode_first(&mut reader)?;
            decode_lives(&mut reader, record)?
        }
        FORMAT_WITHOUT_DISOWNED | FORMAT => {
            let record = decode_first(&mut reader)?;
            let record = decode_lives(&mut reader, record)?;
            let record = decode_refused(&mut reader, record)?;
            let disowned_to = (*format == FORMAT).then(|| reader.u64().map(LayoutEpoch)).transpose();
            NodeRecord { disowned_to: disowned_to.map_err(cut)?, ..record }
        }
        other => return Err(format!("it has format {other}, and this build reads up to {FORMAT}")),
    };
    match reader.rest().len() {
        0 => Ok(record),
        more => Err(format!("{more} bytes stand behind its end")),
    }
}

fn cut(_: Truncated) -> String {
    "it is cut short".to_owned()
}

fn decode_lives(reader: &mut Reader<'_>, record: NodeRecord) -> Result<NodeRecord, String> {
    let count = reader.varint().map_err(cut)?;
    if count > GenerationHistory::COUNT_MAX as u64 {
        return Err(format!("it names {count} generations"));
    }
    let own = (0..count).map(|_| generation(reader)).collect::<Result<_, _>>()?;
    let own_generations = GenerationHistory::of(own).ok_or("its generations are not consecutive")?;
    let count = reader.varint().map_err(cut)?;
    if count > NODES_MAX as u64 {
        return Err(format!("it names generations of {count} peers"));
    }
    let mut peer_generations = BTreeMap::new();
    for _ in 0..count {
        let peer = node(reader.u8().map_err(cut)?)?;
        peer_generations.insert(peer, generation(reader)?);
    }
    let unheard = NodeSet::from_bits(reader.u64().map_err(cut)?);
    Ok(NodeRecord { own_generations, peer_generations, unheard, ..record })
}

fn decode_refused(reader: &mut Reader<'_>, record: NodeRecord) -> Result<NodeRecord, String> {
    let count = reader.varint().map_err(cut)?;
    if count > RefusedKeys::COUNT_MAX as u64 {
        return Err(format!("it names {count} refused keys"));
    }
    let mut refused = BTreeMap::new();
    for _ in 0..count {
        let key = Bytes::copy_from_slice(reader.length_prefixed().map_err(cut)?);
        let key = Key::new(key).map_err(|error| format!("it names a refused key that is none: {error}"))?;
        let since = Hlc::from_bits(reader.u64().map_err(cut)?);
        let holders = NodeSet::from_bits(reader.u64().map_err(cut)?);
        refused.insert(key, RefusedKey { since, holders });
    }
    let refused = RefusedKeys::of(refused).ok_or("its refused keys are too long")?;
    Ok(NodeRecord { refused, ..record })
}

fn generation(reader: &mut Reader<'_>) -> Result<Generation, String> {
    let mut field = || reader.u64().map_err(cut);
    let (number, incarnation, clock) = (field()?, field()?, field()?);
    Ok(Generation { number, incarnation: Incarnation(incarnation), clock: Hlc::from_bits(clock) })
}

fn decode_first(reader: &mut Reader<'_>) -> Result<NodeRecord, String> {
    let revision = reader.array().map(u64::from_be_bytes).map_err(cut)?;
    let sync_state = match reader.u8().map_err(cut)? {
        UNSETTLED => SyncState::Unsettled,
        REBUILDING => SyncState::Rebuilding,
        SETTLED => SyncState::Settled,
        other => return Err(format!("{other} is not a sync state")),
    };
    let count = reader.varint().map_err(cut)?;
    if count > NODES_MAX as u64 {
        return Err(format!("it names {count} peers"));
    }
    let mut peers = BTreeMap::new();
    for _ in 0..count {
        let peer = node(reader.u8().map_err(cut)?)?;
        peers.insert(peer, NodeTag(reader.u64().map_err(cut)?));
    }
    let repaired_at = match reader.u8().map_err(cut)? {
        0 => None,
        1 => Some(WallTime::from_micros_since_unix_epoch(reader.u64().map_err(cut)?)),
        other => return Err(format!("{other} is not yes or no")),
    };
    let repair_pending = NodeSet::from_bits(reader.u64().map_err(cut)?);
    Ok(NodeRecord { revision, sync_state, peers, repaired_at, repair_pending, ..NodeRecord::default() })
}

fn node(index: u8) -> Result<NodeIndex, String> {
    match usize::from(index) < NODES_MAX {
        true => Ok(NodeIndex(index)),
        false => Err(format!("{index} is not a node")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::ManualClock;
    use proptest::prelude::*;
    use std::time::Duration;

    fn generation(number: u64) -> Generation {
        let incarnation = Incarnation(number.wrapping_add(0x2122_2324));
        Generation { number, incarnation, clock: Hlc::from_bits(number.wrapping_add(0x3132)) }
    }

    fn sample() -> NodeRecord {
        NodeRecord {
            own_generations: GenerationHistory::of(vec![generation(5), generation(6)]).expect("consecutive"),
            peer_generations: [(NodeIndex(1), generation(0x41))].into(),
            unheard: NodeSet::from_iter([NodeIndex(8)]),
            ..without_lives()
        }
    }

    fn with_refused() -> NodeRecord {
        let key = Key::new(Bytes::from_static(b"k1")).expect("a key");
        let refusal =
            RefusedKey { since: Hlc::from_bits(0x0506), holders: NodeSet::from_iter([NodeIndex(2)]) };
        let refused = RefusedKeys::of([(key, refusal)].into()).expect("one key");
        NodeRecord { refused, ..sample() }
    }

    fn without_lives() -> NodeRecord {
        NodeRecord {
            revision: 0x0102_0304_0506_0708,
            sync_state: SyncState::Settled,
            peers: [(NodeIndex(1), NodeTag(0x1122_3344_5566_7788)), (NodeIndex(63), NodeTag(2))].into(),
            repaired_at: Some(WallTime::from_micros_since_unix_epoch(0x0a0b)),
            repair_pending: NodeSet::from_iter([NodeIndex(0), NodeIndex(63)]),
            ..NodeRecord::default()
        }
    }

    /// Format 1 is no longer written. Every release must read it.
    #[test]
    fn a_record_without_lives_is_read() {
        let bytes = [
            1, 1, 2, 3, 4, 5, 6, 7, 8, // Format, revision.
            2, 2, // Settled, two peers.
            1, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, // The first.
            63, 2, 0, 0, 0, 0, 0, 0, 0, // The second.
            1, 0x0b, 0x0a, 0, 0, 0, 0, 0, 0, // Repaired at.
            1, 0, 0, 0, 0, 0, 0, 0x80, // Repair owed to nodes 0 and 63.
        ];
        assert_eq!(decode(&bytes), Ok(without_lives()));
    }

    /// Every release must read these bytes.
    #[test]
    fn the_record_format_is_stable() {
        let bytes = [
            2, 1, 2, 3, 4, 5, 6, 7, 8, // Format, revision.
            2, 2, // Settled, two peers.
            1, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, // The first.
            63, 2, 0, 0, 0, 0, 0, 0, 0, // The second.
            1, 0x0b, 0x0a, 0, 0, 0, 0, 0, 0, // Repaired at.
            1, 0, 0, 0, 0, 0, 0, 0x80, // Repair owed to nodes 0 and 63.
            2,    // Two own lives.
            5, 0, 0, 0, 0, 0, 0, 0, 0x29, 0x23, 0x22, 0x21, 0, 0, 0, 0, 0x37, 0x31, 0, 0, 0, 0, 0, 0, //
            6, 0, 0, 0, 0, 0, 0, 0, 0x2a, 0x23, 0x22, 0x21, 0, 0, 0, 0, 0x38, 0x31, 0, 0, 0, 0, 0, 0, //
            1, 1, // One peer's life, that of node 1.
            0x41, 0, 0, 0, 0, 0, 0, 0, 0x65, 0x23, 0x22, 0x21, 0, 0, 0, 0, 0x73, 0x31, 0, 0, 0, 0, 0,
            0, //
            0, 1, 0, 0, 0, 0, 0, 0, // Node 8 was not heard.
        ];
        assert_eq!(encode(&sample()), bytes);
        assert_eq!(decode(&bytes), Ok(sample()));
    }

    /// Every release must read these bytes.
    #[test]
    fn refused_keys_are_last_in_the_record() {
        let mut bytes = encode(&sample());
        bytes[0] = 3;
        bytes.extend([1, 2, b'k', b'1', 6, 5, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(encode(&with_refused()), bytes);
        assert_eq!(decode(&bytes), Ok(with_refused()));
    }

    /// Every release must read these bytes.
    #[test]
    fn the_epoch_of_what_was_disowned_is_last_in_the_record() {
        let mut bytes = encode(&with_refused());
        bytes[0] = 4;
        bytes.extend([2, 1, 0, 0, 0, 0, 0, 0]);
        let record = NodeRecord { disowned_to: Some(LayoutEpoch(0x0102)), ..with_refused() };
        assert_eq!(encode(&record), bytes);
        assert_eq!(decode(&bytes), Ok(record));
    }

    #[test]
    fn every_truncation_and_extension_is_refused() {
        let bytes = encode(&with_refused());
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        assert!(decode(&[bytes, vec![0]].concat()).is_err());
    }

    proptest! {
        #[test]
        fn records_round_trip(
            revision: u64,
            sync_state in 0u8..3,
            peers in proptest::collection::btree_map(0u8..64, any::<u64>(), 0..64),
            repaired_at: Option<u64>,
            owed: u64,
            generations in (0u64..u64::MAX - 64, 0usize..=GenerationHistory::COUNT_MAX),
            peer_generations in proptest::collection::btree_map(0u8..64, any::<u64>(), 0..64),
            unheard: u64,
            refused in proptest::collection::btree_map("[a-z]{1,20}", any::<(u64, u64)>(), 0..20),
            disowned_to: Option<u64>,
        ) {
            let refused = refused.into_iter().map(|(key, (since, holders))| {
                let refusal = RefusedKey { since: Hlc::from_bits(since), holders: NodeSet::from_bits(holders) };
                (Key::new(key.into()).expect("a short key"), refusal)
            });
            let own_generations = (1..=generations.1 as u64).map(|n| generation(generations.0 + n)).collect();
            let record = NodeRecord {
                revision,
                sync_state: [SyncState::Unsettled, SyncState::Rebuilding, SyncState::Settled][usize::from(sync_state)],
                peers: peers.into_iter().map(|(peer, tag)| (NodeIndex(peer), NodeTag(tag))).collect(),
                repaired_at: repaired_at.map(WallTime::from_micros_since_unix_epoch),
                repair_pending: NodeSet::from_bits(owed),
                own_generations: GenerationHistory::of(own_generations).expect("consecutive"),
                peer_generations: peer_generations.into_iter().map(|(peer, number)| (NodeIndex(peer), generation(number))).collect(),
                unheard: NodeSet::from_bits(unheard),
                refused: RefusedKeys::of(refused.collect()).expect("few keys"),
                disowned_to: disowned_to.map(LayoutEpoch),
            };
            prop_assert_eq!(decode(&encode(&record)), Ok(record));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = decode(&bytes);
            for format in [FORMAT_WITHOUT_LIVES, FORMAT_WITHOUT_REFUSED, FORMAT_WITHOUT_DISOWNED, FORMAT] {
                let _ = decode(&[&[format], &bytes[..]].concat());
            }
        }
    }

    #[test]
    fn versions_are_monotonic_in_the_revision() {
        let clock = Arc::new(ManualClock::new(WallTime::EPOCH_2020.saturating_add(Duration::from_secs(9))));
        let last = Mutex::new(LastRecord { revision: 4, hlc: Hlc::ZERO });
        let versions = RecordVersions { clock: Arc::clone(&clock) as Arc<dyn Clock>, last };
        assert_eq!(versions.clock_for(4), Hlc::ZERO);
        let fifth = versions.clock_for(5);
        assert_eq!(fifth.wall(), clock.now().wall);
        clock.set_wall(WallTime::EPOCH_2020);
        assert_eq!(versions.clock_for(6), fifth, "a clock that was set back");
        clock.advance(Duration::from_secs(20));
        assert_eq!(versions.clock_for(5), fifth);
        assert!(versions.clock_for(7) > fifth);
    }
}
