//! Writes of cells that the store holds already, or holds a newer version of.

mod common;

use cluster::{ReplicaRequest, ReplicaResponse, StoreFault, StoreId, StoreResponse};
use common::{carry_out, commit, hints_for, key, nodes, open, read, value, version, write};
use env::{FaultFs, FaultPlan, MemFs};
use std::sync::{Arc, Mutex};
use stdx::{Cell, Rng};
use store::{Store, WriteGroup};

type Answers = Arc<Mutex<Vec<(StoreId, StoreResponse)>>>;

/// Submits a group and does not commit it.
fn submit(store: &Store, group: WriteGroup) -> Answers {
    let answers = Answers::default();
    let sink = Arc::clone(&answers);
    store.submit(group, move |mut came, _| sink.lock().unwrap().append(&mut came));
    answers
}

fn group_of(store: &Store, id: u64, cell: Cell) -> WriteGroup {
    let mut group = store.write_group();
    group.add(StoreId(id), &write(key(b"hot"), cell));
    group
}

fn stored(id: u64, superseded: bool) -> (StoreId, StoreResponse) {
    (StoreId(id), ReplicaResponse::Written { superseded }.into())
}

#[test]
fn copies_of_a_cell_are_logged_once() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    let cells_logged = || store.engine().wal_stats().cells;
    let before = cells_logged();
    let cell = value(7, b"value");
    let original = submit(&store, group_of(&store, 1, cell.clone()));
    let copies: Vec<Answers> = (2..5).map(|id| submit(&store, group_of(&store, id, cell.clone()))).collect();
    let older = submit(&store, group_of(&store, 5, value(6, b"older")));
    for answers in copies.iter().chain([&original, &older]) {
        assert_eq!(*answers.lock().unwrap(), [], "nothing is durable");
    }
    while store.engine().step_commit().unwrap() {}
    assert_eq!(*original.lock().unwrap(), [stored(1, false)]);
    for (id, answers) in (2..5).zip(&copies) {
        assert_eq!(*answers.lock().unwrap(), [stored(id, false)]);
    }
    assert_eq!(*older.lock().unwrap(), [stored(5, true)]);
    let late = submit(&store, group_of(&store, 6, cell));
    assert_eq!(*late.lock().unwrap(), [stored(6, false)], "the cell is durable");
    assert_eq!(cells_logged(), before + 1);
}

#[test]
fn an_acknowledged_copy_survives_power_loss() {
    for commits in [0, 1, 2] {
        let disk = MemFs::new();
        let (store, _) = open(disk.clone(), 1).unwrap();
        let cell = value(7, b"value");
        let mut answers = vec![submit(&store, group_of(&store, 1, cell.clone()))];
        for _ in 0..commits {
            store.engine().step_commit().unwrap();
        }
        answers.push(submit(&store, group_of(&store, 2, cell.clone())));
        let is_acknowledged = answers.iter().any(|answers| !answers.lock().unwrap().is_empty());
        assert_eq!(is_acknowledged, commits > 0);
        for seed in 0..8 {
            let (store, _) = open(disk.crash(&mut Rng::new(seed)), 2).unwrap();
            let found = read(&store, &key(b"hot"));
            assert!(found.is_none() || found.as_ref() == Some(&cell));
            assert!(found.is_some() || !is_acknowledged, "seed {seed}: an acknowledged copy is lost");
        }
    }
}

#[test]
fn a_copy_with_hints_or_a_greater_from_is_logged() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    carry_out(&store, &write(key(b"hot"), value(7, b"value")));
    let hints = nodes(&[2]);
    let cell = value(7, b"value");
    carry_out(&store, &ReplicaRequest::Write { key: key(b"hot"), cell, hints }.into());
    assert_eq!(hints_for(&store, 2), [(key(b"hot"), version(7))]);
    let for_more_nodes = Cell::value(version(7), 3, b"value".as_slice().into());
    carry_out(&store, &write(key(b"hot"), for_more_nodes.clone()));
    assert_eq!(read(&store, &key(b"hot")), Some(for_more_nodes));
}

#[test]
fn a_copy_fails_with_its_original_and_is_answered_once() {
    let faults = FaultFs::new(Arc::new(MemFs::new()), FaultPlan::none());
    let (store, _) = open(faults.clone(), 1).unwrap();
    let original = submit(&store, group_of(&store, 1, value(7, b"value")));
    faults.set_plan(FaultPlan::on_operation(|_| Some(env::Fault::Error(std::io::ErrorKind::Other))));
    let copies = commit(&store, group_of(&store, 2, value(7, b"value")));
    for answers in [original.lock().unwrap().clone(), copies] {
        assert!(matches!(&answers[..], [(_, StoreResponse::Failed(StoreFault::Io { .. }))]), "{answers:?}");
    }
}

#[test]
fn a_group_that_is_not_submitted_fails_its_covered_writes_too() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    carry_out(&store, &write(key(b"hot"), value(7, b"value")));
    let mut group = group_of(&store, 1, value(7, b"value"));
    assert_eq!((group.len(), group.bytes()), (1, store.write_group().bytes()));
    group.add(StoreId(2), &write(key(b"cold"), value(8, b"value")));
    let mut failed = group.failed(&StoreFault::Expired);
    failed.sort_by_key(|(id, _)| *id);
    let expected = [1, 2].map(|id| (StoreId(id), StoreResponse::Failed(StoreFault::Expired)));
    assert_eq!(failed, expected);
}
