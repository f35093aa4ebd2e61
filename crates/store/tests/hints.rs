//! Hints are stored with their cells, one per key and node, until they are removed.

mod common;

use cluster::{
    Hint, NodeIndex, ReplicaRequest, ReplicaResponse, ScanLimit, StoreFault, StoreId, StoreRequest,
    StoreResponse,
};
use common::{
    ALL, DATA, DISK_BYTES, carry_out, commit, env, fill, hints_for, key, nodes, open, read, value, version,
    write,
};
use env::{Env, FaultFs, FaultPlan, ManualClock, MemFs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Cell, Hlc, NodeTag, Rng, Version, WallTime};
use store::{Store, TryAnswer};

const SEEDS: u64 = 16;

fn hinted(name: &[u8], cell: Cell, targets: &[u8]) -> StoreRequest {
    StoreRequest::Replica(ReplicaRequest::Write { key: key(name), cell, hints: nodes(targets) })
}

fn keep(name: &[u8], hlc: u64, targets: &[u8]) -> StoreRequest {
    StoreRequest::Replica(ReplicaRequest::KeepHints {
        key: key(name),
        version: version(hlc),
        targets: nodes(targets),
    })
}

fn forget(target: u8, hints: &[(&[u8], u64)]) -> StoreRequest {
    let hints = hints.iter().map(|(name, hlc)| (key(name), version(*hlc))).collect();
    StoreRequest::ForgetHints { target: NodeIndex(target), hints }
}

#[test]
fn the_newest_hint_of_each_key_and_node_is_found() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    let written = StoreResponse::Replica(ReplicaResponse::Written { superseded: false });
    assert_eq!(carry_out(&store, &hinted(b"b", value(5, b"five"), &[0, 63])), written);
    assert_eq!(carry_out(&store, &keep(b"b", 7, &[63])), StoreResponse::Replica(ReplicaResponse::HintsKept));
    assert_eq!(carry_out(&store, &keep(b"b", 6, &[63])), StoreResponse::Replica(ReplicaResponse::HintsKept));
    assert_eq!(
        carry_out(&store, &keep(b"a", 9, &[0, 1])),
        StoreResponse::Replica(ReplicaResponse::HintsKept)
    );
    assert_eq!(hints_for(&store, 0), [(key(b"a"), version(9)), (key(b"b"), version(5))]);
    assert_eq!(hints_for(&store, 1), [(key(b"a"), version(9))]);
    assert_eq!(hints_for(&store, 63), [(key(b"b"), version(7))]);
    assert_eq!(hints_for(&store, 62), []);
    assert_eq!(read(&store, &key(b"a")), None, "a hint is not a cell");
}

#[test]
fn a_corrupt_cell_does_not_block_the_hints_behind_it() {
    let disk = MemFs::new();
    let (store, _) = open(disk.clone(), 1).unwrap();
    let mut noise = vec![0; 40_000];
    Rng::new(1).fill(&mut noise);
    let noisy = Cell::value(version(5), 3, noise.clone().into());
    carry_out(&store, &hinted(b"b", noisy, &[1]));
    carry_out(&store, &hinted(b"a", value(4, b"first"), &[1]));
    carry_out(&store, &hinted(b"c", value(6, b"last"), &[1]));
    // Other blocks of the table lie between the hints and the corrupted block.
    carry_out(&store, &write(key(b"aa"), Cell::value(version(5), 1, noise[..19_000].to_vec().into())));
    store.engine().flush().unwrap();
    drop(store);
    let pattern = &noise[20_000..20_064];
    let place = disk.file_names().into_iter().find_map(|path| {
        let is_table = path.extension().is_none_or(|extension| extension != "wal");
        let bytes = disk.read_file(&path).unwrap();
        let at = bytes.windows(pattern.len()).position(|window| window == pattern).filter(|_| is_table);
        at.map(|at| (path, at as u64))
    });
    let (path, at) = place.expect("the value is in a table");
    disk.corrupt(path, at, 3).unwrap();
    let (store, _) = open(disk, 1).unwrap();
    let request = StoreRequest::ReadHints { target: NodeIndex(1), after: None, limit: ALL, cells: true };
    let StoreResponse::Hints { hints, until: None } = store.answer_blocking(&request) else {
        panic!("the hints are not read")
    };
    let found: Vec<_> = hints.iter().map(|hint| (hint.key.clone(), hint.cell.is_some())).collect();
    assert_eq!(found, [(key(b"a"), true), (key(b"b"), false), (key(b"c"), true)]);
}

#[test]
fn forgetting_a_hint_leaves_a_newer_one() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    carry_out(&store, &keep(b"same", 5, &[1, 2]));
    carry_out(&store, &keep(b"newer", 6, &[1]));
    carry_out(&store, &keep(b"older", 4, &[1]));
    let answer = carry_out(&store, &forget(1, &[(b"same", 5), (b"newer", 5), (b"older", 5), (b"none", 5)]));
    assert_eq!(answer, StoreResponse::HintsForgotten);
    assert_eq!(hints_for(&store, 1), [(key(b"newer"), version(6))]);
    assert_eq!(hints_for(&store, 2), [(key(b"same"), version(5))]);
    carry_out(&store, &keep(b"same", 5, &[1]));
    assert_eq!(hints_for(&store, 1).len(), 1, "a request that comes twice brings nothing back");
}

#[test]
fn hints_include_the_newest_cells_on_request() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    carry_out(&store, &hinted(b"a", value(5, b"old"), &[1]));
    carry_out(&store, &write(key(b"a"), value(6, b"new")));
    carry_out(&store, &hinted(b"b", Cell::tombstone(version(7), 3), &[1]));
    carry_out(&store, &keep(b"c", 8, &[1]));
    let request = StoreRequest::ReadHints { target: NodeIndex(1), after: None, limit: ALL, cells: true };
    assert_eq!(store.try_answer(&request), TryAnswer::WouldWait);
    let hint = |name, hlc, cell| Hint { key: key(name), version: version(hlc), cell };
    let expected = vec![
        hint(b"a", 5, Some(value(6, b"new"))),
        hint(b"b", 7, Some(Cell::tombstone(version(7), 3))),
        hint(b"c", 8, None),
    ];
    let all = StoreResponse::Hints { hints: expected, until: None };
    assert_eq!(store.answer_blocking(&request), all);
}

#[test]
fn a_chunk_of_hints_counts_removed_hints_and_the_bytes_of_cells() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    for name in [b"a", b"b", b"c", b"d"] {
        carry_out(&store, &hinted(name, value(5, b"0123456789"), &[1]));
    }
    carry_out(&store, &forget(1, &[(b"a", 5), (b"b", 5)]));
    let chunk = |after: Option<&[u8]>, entries, bytes, cells| {
        let after = after.map(key);
        let limit = ScanLimit { entries, bytes };
        let request = StoreRequest::ReadHints { target: NodeIndex(1), after, limit, cells };
        match store.answer_blocking(&request) {
            StoreResponse::Hints { hints, until } => {
                (hints.into_iter().map(|hint| hint.key).collect::<Vec<_>>(), until)
            }
            other => panic!("not hints: {other:?}"),
        }
    };
    assert_eq!(chunk(None, 2, 100, true), (vec![], Some(key(b"b"))));
    assert_eq!(chunk(Some(b"b"), 2, 100, true), (vec![key(b"c"), key(b"d")], None));
    assert_eq!(chunk(Some(b"b"), 9, 21, true), (vec![key(b"c")], Some(key(b"c"))));
    assert_eq!(chunk(Some(b"b"), 9, 21, false), (vec![key(b"c"), key(b"d")], None));
    assert_eq!(chunk(Some(b"b"), 0, 0, true), (vec![key(b"c")], Some(key(b"c"))), "one at least");
    assert_eq!(chunk(Some(b"d"), 1, 1, true), (vec![], None));
}

#[test]
fn the_longest_keys_can_be_hinted() {
    let disk = MemFs::new();
    let (store, _) = open(disk.clone(), 1).unwrap();
    let longest = [0xff; 8_192];
    carry_out(&store, &hinted(&longest, value(5, b"five"), &[0, 63]));
    store.engine().flush().unwrap();
    drop(store);
    let (store, _) = open(disk.kill(), 1).unwrap();
    let after = Some(key(&longest[1..]));
    let request = StoreRequest::ReadHints { target: NodeIndex(63), after, limit: ALL, cells: true };
    let hint = Hint { key: key(&longest), version: version(5), cell: Some(value(5, b"five")) };
    let expected = StoreResponse::Hints { hints: vec![hint], until: None };
    assert_eq!(store.answer_blocking(&request), expected);
    carry_out(&store, &forget(63, &[(&longest, 5)]));
    assert_eq!(hints_for(&store, 63), []);
    assert_eq!(hints_for(&store, 0).len(), 1);
}

#[test]
fn requests_without_targets_are_answered() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    assert_eq!(carry_out(&store, &keep(b"a", 1, &[])), StoreResponse::Replica(ReplicaResponse::HintsKept));
    assert_eq!(carry_out(&store, &forget(1, &[])), StoreResponse::HintsForgotten);
}

#[test]
fn each_write_of_a_mixed_group_learns_whether_it_was_superseded() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    carry_out(&store, &hinted(b"new", value(9, b"new"), &[1]));
    let mut group = store.write_group();
    let requests = [
        hinted(b"x", value(5, b"x"), &[1, 2, 3]),
        hinted(b"new", value(5, b"old"), &[1]),
        hinted(b"y", value(5, b"y"), &[]),
        hinted(b"new", value(6, b"old"), &[]),
        hinted(b"new", Cell::tombstone(version(7), 1), &[4]),
        keep(b"new", 8, &[1]),
        hinted(b"z", Cell::tombstone(version(7), 1), &[4]),
    ];
    for (id, request) in requests.iter().enumerate() {
        group.add(StoreId(id as u64), request);
    }
    assert_eq!(group.len(), requests.len());
    let answers: Vec<_> = commit(&store, group).into_iter().map(|(_, answer)| answer).collect();
    let written = |superseded| StoreResponse::Replica(ReplicaResponse::Written { superseded });
    let expected = [
        written(false),
        written(true),
        written(false),
        written(true),
        written(true),
        StoreResponse::Replica(ReplicaResponse::HintsKept),
        written(false),
    ];
    assert_eq!(answers, expected);
}

#[test]
fn forgotten_hints_leave_the_disk_long_before_deleted_values_do() {
    const HINTS: u64 = 2_000;
    let wall = WallTime::EPOCH_2020.saturating_add(Duration::from_secs(1));
    let clock = Arc::new(ManualClock::new(wall));
    let env = Env { fs: Arc::new(MemFs::new()), clock: Arc::clone(&clock) as _ };
    let (store, _) = Store::open(env, Path::new(DATA), common::options(1)).unwrap();
    let version = |number| Version::new(Hlc::from_bits(Hlc::at(wall).to_bits() + number), NodeTag(1));
    let name = |number: u64| key(&number.to_be_bytes());
    let (mut keeping, mut forgetting) = (store.write_group(), store.write_group());
    for number in 0..HINTS {
        let (cell, hints) = (Cell::tombstone(version(number), 1), nodes(&[1]));
        let request = StoreRequest::Replica(ReplicaRequest::Write { key: name(number), cell, hints });
        keeping.add(StoreId(number), &request);
        let hints = vec![(name(number), version(number))];
        forgetting.add(StoreId(number), &StoreRequest::ForgetHints { target: NodeIndex(1), hints });
    }
    let cells = || store.engine().stats().levels.iter().map(|level| level.cells).sum::<u64>();
    commit(&store, keeping);
    store.engine().flush().unwrap();
    assert_eq!(cells(), HINTS * 2);
    commit(&store, forgetting);
    // The log releases the segments that hold them.
    let large = Cell::value(version(HINTS), 1, vec![0; 40 << 10].into());
    (0..8).for_each(|_| drop(carry_out(&store, &write(key(b"large"), large.clone()))));
    store.engine().flush().unwrap();
    clock.advance(Duration::from_secs(3_600));
    store.engine().run_jobs().unwrap();
    assert_eq!(cells(), HINTS + 1, "tombstones of users' keys have their grace period");
    assert_eq!(hints_for(&store, 1), []);
}

/// Requests that must each be stored whole or not at all after a crash.
fn scenario() -> Vec<StoreRequest> {
    vec![
        hinted(b"a", value(1, b"a1"), &[1]),
        hinted(b"b", value(2, b"b2"), &[1, 2]),
        hinted(b"a", Cell::tombstone(version(3), 1), &[2]),
        hinted(b"c", value(4, b"c4"), &[1, 2]),
        hinted(b"d", Cell::tombstone(version(5), 1), &[1, 2]),
    ]
}

#[test]
fn a_crash_at_any_operation_leaves_a_cell_with_all_its_hints_or_without_any() {
    let run = |fs: FaultFs| -> Option<usize> {
        let (store, _) = open(fs, 1).ok()?;
        let answered = |request: &StoreRequest| {
            matches!(carry_out(&store, request), StoreResponse::Replica(ReplicaResponse::Written { .. }))
        };
        Some(scenario().iter().take_while(|request| answered(request)).count())
    };
    let operations = {
        let faults = FaultFs::new(Arc::new(MemFs::new()), FaultPlan::none());
        assert_eq!(run(faults.clone()), Some(scenario().len()));
        faults.operations()
    };
    for stop in 0..=operations {
        let disk = MemFs::new();
        let plan = FaultPlan::stop_after(stop).tear_last_write();
        let acknowledged = run(FaultFs::new(Arc::new(disk.clone()), plan)).unwrap_or(0);
        for seed in 0..SEEDS {
            let place = format!("stop {stop}, seed {seed}");
            let (store, _) = open(disk.crash(&mut Rng::new(seed)), 1).expect(&place);
            check_whole(&store, acknowledged, &place);
        }
    }
}

fn check_whole(store: &Store, acknowledged: usize, place: &str) {
    for (nth, request) in scenario().into_iter().enumerate() {
        let StoreRequest::Replica(ReplicaRequest::Write { key, cell, hints }) = request else {
            unreachable!("all are writes")
        };
        let held = read(store, &key).filter(|held| held.meta.version >= cell.meta.version);
        assert!(held.is_some() || nth >= acknowledged, "{place}: write {nth} is lost");
        for target in hints.iter() {
            let hinted = hints_for(store, target.0)
                .iter()
                .any(|(hinted, version)| *hinted == key && *version >= cell.meta.version);
            assert_eq!(hinted, held.is_some(), "{place}: write {nth} for {target:?}");
        }
    }
}

#[test]
fn on_a_full_disk_values_are_refused_with_their_hints_and_deletes_succeed_with_theirs() {
    let disk = MemFs::with_capacity(DISK_BYTES);
    let (store, _) = open(disk.clone(), 1).unwrap();
    carry_out(&store, &hinted(b"a", value(1, b"a1"), &[1, 2]));
    fill(&disk, &store);
    let full = StoreResponse::Failed(StoreFault::Full);
    assert_eq!(carry_out(&store, &hinted(b"a", value(2, b"a2"), &[3])), full);
    assert_eq!(carry_out(&store, &write(key(b"b"), value(2, b"b2"))), full);
    let written = StoreResponse::Replica(ReplicaResponse::Written { superseded: false });
    assert_eq!(carry_out(&store, &hinted(b"a", Cell::tombstone(version(3), 1), &[3])), written);
    assert_eq!(carry_out(&store, &keep(b"a", 3, &[4])), StoreResponse::Replica(ReplicaResponse::HintsKept));
    assert_eq!(carry_out(&store, &forget(1, &[(b"a", 1)])), StoreResponse::HintsForgotten);
    let expected = [(1, 0), (2, 1), (3, 1), (4, 1)];
    assert_eq!(expected.map(|(target, _)| (target, hints_for(&store, target).len())), expected);
    assert_eq!(hints_for(&store, 3), [(key(b"a"), version(3))], "not that of the refused value");
    drop(store);
    Store::open(env(Arc::new(disk)), Path::new(DATA), common::options(2)).unwrap();
}
