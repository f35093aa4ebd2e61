//! The node record survives restarts, and the greater revision wins.

mod common;

use cluster::{NodeIndex, NodeRecord, NodeSet, StoreFault, StoreId, StoreRequest, StoreResponse, SyncState};
use common::{DISK_BYTES, carry_out, commit, fill, key, open, value, write};
use env::MemFs;
use std::collections::BTreeMap;
use stdx::{Hlc, NodeTag, Rng, WallTime};

fn record(revision: u64) -> NodeRecord {
    NodeRecord {
        revision,
        sync_state: SyncState::Rebuilding,
        peers: BTreeMap::from([(NodeIndex(1), NodeTag(revision))]),
        repaired_at: Some(WallTime::EPOCH_2020),
        repair_pending: NodeSet::first(2),
        ..NodeRecord::default()
    }
}

fn remember(revision: u64) -> StoreRequest {
    StoreRequest::PersistRecord { record: record(revision) }
}

#[test]
fn a_new_directory_has_no_record() {
    let (_, opened) = open(MemFs::new(), 1).unwrap();
    assert_eq!(opened.record, NodeRecord::default());
    assert_eq!(opened.record.sync_state, SyncState::Unsettled);
}

#[test]
fn the_greatest_revision_survives_in_any_order_of_storing() {
    let mut disk = MemFs::new();
    for (round, revisions) in [[1, 3, 2], [3, 4, 2], [7, 6, 5]].into_iter().enumerate() {
        let (store, _) = open(disk.clone(), 1).unwrap();
        for revision in revisions {
            assert_eq!(carry_out(&store, &remember(revision)), StoreResponse::RecordPersisted { revision });
        }
        drop(store);
        disk = disk.crash(&mut Rng::new(round as u64));
        let (_, opened) = open(disk.clone(), 1).unwrap();
        assert_eq!(opened.record, record(*revisions.iter().max().unwrap()));
    }
}

#[test]
fn the_record_does_not_move_the_clock_ahead_of_the_time() {
    let disk = MemFs::new();
    let (store, _) = open(disk.clone(), 1).unwrap();
    carry_out(&store, &remember(u64::MAX));
    drop(store);
    let (_, opened) = open(disk.kill(), 1).unwrap();
    let now = WallTime::EPOCH_2020.saturating_add_micros(1_000_000);
    assert!(opened.clock_start <= Hlc::at(now), "{:?}", opened.clock_start);
}

#[test]
fn the_record_is_stored_on_a_full_disk() {
    let disk = MemFs::with_capacity(DISK_BYTES);
    let (store, _) = open(disk.clone(), 1).unwrap();
    fill(&disk, &store);
    let mut group = store.write_group();
    group.add(StoreId(1), &write(key(b"a"), value(1, b"a")));
    group.add(StoreId(2), &remember(9));
    let expected = vec![
        (StoreId(1), StoreResponse::Failed(StoreFault::Full)),
        (StoreId(2), StoreResponse::RecordPersisted { revision: 9 }),
    ];
    assert_eq!(commit(&store, group), expected);
}
