//! What a node remembers of itself and its peers, as one cell of the system space.
//!
//! **Promise.** Of two records the one with the greater revision is found, in whatever order they were stored; a
//! record of every released version is read for ever.
//!
//! **Mechanism.** The record is stored whole. Its cell's version is the time, never less than that of the record
//! with the greatest revision so far; a lesser revision gets the same version as that one. Where versions are
//! equal the greater bytes win, and the revision stands first in them. The time, and not the revision itself,
//! because a cell from the distant past would keep compaction from dropping what is younger.

use crate::error::StoreError;
use crate::keyspace::NODE_RECORD;
use cluster::{NODES_MAX, NodeIndex, NodeRecord, NodeSet, Standing};
use engine::Engine;
use env::Clock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use stdx::codec::{Reader, Truncated, put_varint};
use stdx::{Hlc, NodeTag, Version, WallTime};

/// The only version of the format so far.
const FORMAT: u8 = 1;

const UNSETTLED: u8 = 0;
const REBUILDING: u8 = 1;
const SETTLED: u8 = 2;

/// The record in `engine`, and what gives versions to the next ones, which the node of this tag will store.
pub(crate) fn load(
    engine: &Engine,
    tag: NodeTag,
    clock: Arc<dyn Clock>,
) -> Result<(Option<NodeRecord>, RecordVersions), StoreError> {
    let Some((record, version)) = find(engine)? else {
        let last = Last { revision: 0, hlc: Hlc::ZERO };
        return Ok((None, RecordVersions { clock, last: Mutex::new(last) }));
    };
    // Of equal clock values the greater tag wins, and this may be a copy of what another one stored.
    let hlc = if version.tag == tag { version.hlc } else { version.hlc.next() };
    let last = Last { revision: record.revision, hlc };
    Ok((Some(record), RecordVersions { clock, last: Mutex::new(last) }))
}

/// The record in `engine`, and its version.
pub(crate) fn find(engine: &Engine) -> Result<Option<(NodeRecord, Version)>, StoreError> {
    let Some(cell) = engine.get(NODE_RECORD)? else { return Ok(None) };
    let record = decode(&cell.value).map_err(|detail| StoreError::NodeRecord { detail })?;
    Ok(Some((record, cell.meta.version)))
}

/// Gives versions to records.
pub(crate) struct RecordVersions {
    clock: Arc<dyn Clock>,
    last: Mutex<Last>,
}

/// The greatest revision so far, and its version.
#[derive(Debug)]
struct Last {
    revision: u64,
    hlc: Hlc,
}

impl RecordVersions {
    /// The clock value for the record of this revision.
    pub(crate) fn of(&self, revision: u64) -> Hlc {
        // What is under the lock is whole after each statement.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if revision > last.revision {
            *last = Last { revision, hlc: last.hlc.max(Hlc::at(self.clock.now().wall)) };
        }
        last.hlc
    }
}

impl std::fmt::Debug for RecordVersions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordVersions").field("last", &self.last).finish_non_exhaustive()
    }
}

/// The record's bytes. See `docs/storage-format/store.md`.
pub(crate) fn encode(record: &NodeRecord) -> Vec<u8> {
    let NodeRecord { revision, standing, peers, repaired_at, repair_owed } = record;
    let mut bytes = vec![FORMAT];
    bytes.extend_from_slice(&revision.to_be_bytes());
    bytes.push(match standing {
        Standing::Unsettled => UNSETTLED,
        Standing::Rebuilding => REBUILDING,
        Standing::Settled => SETTLED,
    });
    put_varint(&mut bytes, peers.len() as u64);
    for (peer, tag) in peers {
        bytes.push(peer.0);
        bytes.extend_from_slice(&tag.0.to_le_bytes());
    }
    bytes.push(u8::from(repaired_at.is_some()));
    if let Some(wall) = repaired_at {
        bytes.extend_from_slice(&wall.micros_since_unix_epoch().to_le_bytes());
    }
    bytes.extend_from_slice(&repair_owed.to_bits().to_le_bytes());
    bytes
}

/// The inverse of `encode`; the error says what is wrong.
fn decode(bytes: &[u8]) -> Result<NodeRecord, String> {
    match bytes {
        [FORMAT, rest @ ..] => decode_first(rest),
        [other, ..] => Err(format!("it has format {other}, and this build reads {FORMAT}")),
        [] => Err("it is empty".to_owned()),
    }
}

fn decode_first(bytes: &[u8]) -> Result<NodeRecord, String> {
    let cut = |_: Truncated| "it is cut short".to_owned();
    let mut reader = Reader::new(bytes);
    let revision = reader.array().map(u64::from_be_bytes).map_err(cut)?;
    let standing = match reader.u8().map_err(cut)? {
        UNSETTLED => Standing::Unsettled,
        REBUILDING => Standing::Rebuilding,
        SETTLED => Standing::Settled,
        other => return Err(format!("{other} is not a standing")),
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
    let repair_owed = NodeSet::from_bits(reader.u64().map_err(cut)?);
    match reader.rest().len() {
        0 => Ok(NodeRecord { revision, standing, peers, repaired_at, repair_owed }),
        more => Err(format!("{more} bytes stand behind its end")),
    }
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

    fn sample() -> NodeRecord {
        NodeRecord {
            revision: 0x0102_0304_0506_0708,
            standing: Standing::Settled,
            peers: [(NodeIndex(1), NodeTag(0x1122_3344_5566_7788)), (NodeIndex(63), NodeTag(2))].into(),
            repaired_at: Some(WallTime::from_micros_since_unix_epoch(0x0a0b)),
            repair_owed: NodeSet::from_iter([NodeIndex(0), NodeIndex(63)]),
        }
    }

    /// Nodes of the first release wrote these bytes; they must be read for ever.
    #[test]
    fn the_record_is_what_it_was() {
        let bytes = [
            1, 1, 2, 3, 4, 5, 6, 7, 8, // Format, revision.
            2, 2, // Settled, two peers.
            1, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, // The first.
            63, 2, 0, 0, 0, 0, 0, 0, 0, // The second.
            1, 0x0b, 0x0a, 0, 0, 0, 0, 0, 0, // Repaired at.
            1, 0, 0, 0, 0, 0, 0, 0x80, // Repair owed to nodes 0 and 63.
        ];
        assert_eq!(encode(&sample()), bytes);
        assert_eq!(decode(&bytes), Ok(sample()));
    }

    #[test]
    fn every_cut_and_every_addition_is_refused() {
        let bytes = encode(&sample());
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        assert!(decode(&[bytes, vec![0]].concat()).is_err());
    }

    proptest! {
        #[test]
        fn records_round_trip(
            revision: u64,
            standing in 0u8..3,
            peers in proptest::collection::btree_map(0u8..64, any::<u64>(), 0..64),
            repaired_at: Option<u64>,
            owed: u64,
        ) {
            let record = NodeRecord {
                revision,
                standing: [Standing::Unsettled, Standing::Rebuilding, Standing::Settled][usize::from(standing)],
                peers: peers.into_iter().map(|(peer, tag)| (NodeIndex(peer), NodeTag(tag))).collect(),
                repaired_at: repaired_at.map(WallTime::from_micros_since_unix_epoch),
                repair_owed: NodeSet::from_bits(owed),
            };
            prop_assert_eq!(decode(&encode(&record)), Ok(record));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = decode(&bytes);
            let _ = decode(&[&[FORMAT], &bytes[..]].concat());
        }
    }

    #[test]
    fn a_greater_revision_never_gets_a_lesser_version_and_a_lesser_never_a_greater() {
        let clock = Arc::new(ManualClock::new(WallTime::EPOCH_2020.saturating_add(Duration::from_secs(9))));
        let last = Mutex::new(Last { revision: 4, hlc: Hlc::ZERO });
        let versions = RecordVersions { clock: Arc::clone(&clock) as Arc<dyn Clock>, last };
        assert_eq!(versions.of(4), Hlc::ZERO);
        let fifth = versions.of(5);
        assert_eq!(fifth.wall(), clock.now().wall);
        clock.set_wall(WallTime::EPOCH_2020);
        assert_eq!(versions.of(6), fifth, "a clock that was set back");
        clock.advance(Duration::from_secs(20));
        assert_eq!(versions.of(5), fifth);
        assert!(versions.of(7) > fifth);
    }
}
