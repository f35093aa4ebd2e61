//! Parts of partitions are disowned and owned again.

mod common;

use bytes::Bytes;
use cluster::{
    DisownedPart, Key, Layout, OwnedPart, PartitionId, ReplicaRequest, ReplicaResponse, StoreFault, StoreId,
    StoreRequest, StoreResponse,
};
use common::{carry_out, commit, open, value, write};
use env::MemFs;
use stdx::{Cell, Rng};
use store::{Store, TryAnswer};

const PARTITIONS: u32 = 64;

fn partition_of(key: &Key) -> PartitionId {
    Layout::new(vec!["a".to_owned()], PARTITIONS).expect("one node").partition_of(key)
}

fn owned(PartitionId(partition): PartitionId, stays_from: u8) -> OwnedPart {
    let first_hash = u64::from(partition) << (64 - PARTITIONS.ilog2());
    OwnedPart { first_hash, last_hash: first_hash | (u64::MAX >> PARTITIONS.ilog2()), stays_from }
}

fn cell_from(from: u8) -> Cell {
    value(7, b"value").with_from_of_at_least(from)
}

/// A store with 500 keys, each with a cell for 1 to 3 replicas.
fn filled(disk: &MemFs) -> (Store, Vec<(Key, u8)>) {
    let (store, _) = open(disk.clone(), 1).expect("open");
    let keys: Vec<_> = (0..500_u32)
        .map(|number| {
            (Key::new(Bytes::from(format!("key {number}"))).expect("a key"), (number % 3) as u8 + 1)
        })
        .collect();
    let mut group = store.write_group();
    for (id, (key, from)) in (0..).zip(&keys) {
        group.add(StoreId(id), &write(key.clone(), cell_from(*from)));
    }
    commit(&store, group);
    (store, keys)
}

fn ask(store: &Store, request: &StoreRequest) -> Vec<DisownedPart> {
    assert!(request.is_read(), "it is carried out on a thread that may wait");
    assert_eq!(store.try_answer(request), TryAnswer::WouldWait);
    match store.answer_blocking(request) {
        StoreResponse::Disowned(parts) => parts,
        other => panic!("{other:?}"),
    }
}

fn is_found(store: &Store, key: &Key) -> bool {
    let request = StoreRequest::Replica(ReplicaRequest::Read { key: key.clone() });
    match store.answer_blocking(&request) {
        StoreResponse::Replica(ReplicaResponse::Cell(cell)) => cell.is_some(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn keys_of_a_disowned_partition_are_absent_except_those_for_more_replicas() {
    let disk = MemFs::new();
    let (store, keys) = filled(&disk);
    let lost = partition_of(&keys[0].0);
    assert_eq!(ask(&store, &StoreRequest::ReadDisowned), []);
    let part = owned(lost, 3);
    let disowned = ask(&store, &StoreRequest::Disown(vec![part]));
    assert_eq!(disowned.iter().map(|its| its.owned).collect::<Vec<_>>(), [part]);
    let check = |store: &Store| {
        let hidden = keys.iter().filter(|(key, from)| partition_of(key) == lost && *from < 3).count();
        assert!(hidden > 1, "{hidden}");
        for (key, from) in &keys {
            assert_eq!(is_found(store, key), partition_of(key) != lost || *from >= 3, "{key:?} from {from}");
        }
    };
    check(&store);
    drop(store);
    let (store, _) = open(disk.crash(&mut Rng::new(1)), 2).expect("open");
    check(&store);
    assert_eq!(ask(&store, &StoreRequest::ReadDisowned)[0].owned, part);
}

#[test]
fn a_part_is_owned_again_after_its_purge() {
    let (store, keys) = filled(&MemFs::new());
    store.engine().flush().expect("flush");
    let lost = partition_of(&keys[0].0);
    let before = ask(&store, &StoreRequest::Disown(vec![owned(lost, 3)]));
    assert!(before[0].bytes_left > 0 && !before[0].is_purged);
    assert_eq!(ask(&store, &StoreRequest::OwnAgain(vec![owned(lost, 1)])), before, "nothing is purged");
    store.engine().run_jobs().expect("jobs");
    assert_eq!(ask(&store, &StoreRequest::ReadDisowned)[0].bytes_left, 0);
    let less = ask(&store, &StoreRequest::OwnAgain(vec![owned(lost, 2)]));
    assert_eq!(less[0].owned.stays_from, 2);
    assert_eq!(ask(&store, &StoreRequest::OwnAgain(vec![owned(lost, 1)])), []);
    for (key, from) in &keys {
        assert_eq!(is_found(&store, key), partition_of(key) != lost || *from >= 3, "it does not return");
    }
    let (key, _) = keys.iter().find(|(key, from)| partition_of(key) == lost && *from < 3).expect("a key");
    carry_out(&store, &write(key.clone(), cell_from(1)));
    assert!(is_found(&store, key));
}

#[test]
fn a_greater_part_is_not_disowned() {
    let (store, _) = filled(&MemFs::new());
    ask(&store, &StoreRequest::Disown(vec![owned(PartitionId(3), 3)]));
    let refused = store.answer_blocking(&StoreRequest::Disown(vec![owned(PartitionId(3), 2)]));
    assert!(matches!(refused, StoreResponse::Failed(_)), "{refused:?}");
}

#[test]
fn a_write_for_a_disowned_place_is_refused_until_it_is_owned_again() {
    let (store, keys) = filled(&MemFs::new());
    let key = &keys[0].0;
    let lost = partition_of(key);
    ask(&store, &StoreRequest::Disown(vec![owned(lost, 3)]));
    let is_refused = |from| {
        let answer = carry_out(&store, &write(key.clone(), cell_from(from)));
        matches!(answer, StoreResponse::Failed(StoreFault::Overloaded { .. }))
    };
    // Also the copy of a cell that a memtable holds, which is not logged.
    assert!(is_refused(1) && is_refused(2));
    assert!(!is_refused(3), "the node is a replica for three");
    store.engine().run_jobs().expect("jobs");
    ask(&store, &StoreRequest::OwnAgain(vec![owned(lost, 1)]));
    assert!(!is_refused(1));
}
