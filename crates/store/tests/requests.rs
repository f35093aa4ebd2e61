//! Requests of the protocol, executed on the engine.

mod common;

use cluster::{
    Incarnation, KeyRange, NodeRecord, PageContent, PageRequest, ReplicaRequest, ReplicaResponse, Requester,
    ScanLimit, SnapshotId, StoreFault, StoreId, StoreRequest, StoreResponse,
};
use common::{DATA, carry_out, commit, env, key, nodes, open, options, read, value, version, write};
use env::{Env, FaultFs, FaultPlan, Fs, ManualClock, MemFs};
use std::io;
use std::path::Path;
use std::sync::Arc;
use stdx::{Cell, CellMeta, Hlc, NodeTag, Rng, Version, WallTime};
use store::{Membership, OpenReport, Store, StoreOptions, TryAnswer};

#[test]
fn a_group_is_answered_write_by_write_and_survives_power_loss() {
    let disk = MemFs::new();
    let (store, _) = open(disk.clone(), 1).unwrap();
    let mut group = store.write_group();
    let newer = value(7, b"newer");
    let tombstone = Cell::tombstone(Version::new(Hlc::from_bits(9), NodeTag(1)), 1);
    group.add(StoreId(1), &write(key(b"a"), newer.clone()));
    group.add(StoreId(2), &write(key(b"b"), tombstone.clone()));
    group.add(StoreId(3), &StoreRequest::RaiseClockBound { bound: Hlc::from_bits(99) });
    assert_eq!(group.len(), 3);
    let answers = commit(&store, group);
    let expected = vec![
        (StoreId(1), StoreResponse::Replica(ReplicaResponse::Written { superseded: false })),
        (StoreId(2), StoreResponse::Replica(ReplicaResponse::Written { superseded: false })),
        (StoreId(3), StoreResponse::ClockBoundRaised { bound: Hlc::from_bits(99) }),
    ];
    assert_eq!(answers, expected);

    let mut late = store.write_group();
    late.add(StoreId(4), &write(key(b"a"), value(5, b"older")));
    late.add(StoreId(5), &write(key(b"c"), value(5, b"c")));
    let answers = commit(&store, late);
    assert_eq!(
        answers[0],
        (StoreId(4), StoreResponse::Replica(ReplicaResponse::Written { superseded: true }))
    );
    assert_eq!(
        answers[1],
        (StoreId(5), StoreResponse::Replica(ReplicaResponse::Written { superseded: false }))
    );

    for seed in 0..4 {
        let (store, _) = open(disk.crash(&mut Rng::new(seed)), 2).unwrap();
        for (bytes, expected) in [(b"a", Some(newer.clone())), (b"b", Some(tombstone.clone())), (b"d", None)]
        {
            let expected = StoreResponse::Replica(ReplicaResponse::Cell(expected));
            let request = StoreRequest::Replica(ReplicaRequest::Read { key: key(bytes) });
            assert_eq!(store.answer_blocking(&request), expected, "seed {seed}");
            assert_eq!(store.try_answer(&request), TryAnswer::Done(expected), "seed {seed}");
        }
    }
}

/// Reads of a version, of the versions of a range, and of a page of versions.
#[test]
fn requests_for_versions_do_not_read_a_large_value() {
    let disk = MemFs::new();
    let (store, _) = open(disk.clone(), 1).unwrap();
    let mut noise = vec![0; 16 << 20];
    Rng::new(1).fill(&mut noise);
    let cell = Cell::value(version(7), 1, noise.into());
    for (name, cell) in [(b"a", value(5, b"a")), (b"b", cell.clone()), (b"c", value(6, b"c"))] {
        carry_out(&store, &write(key(name), cell));
    }
    store.engine().flush().unwrap();
    let metas = vec![value(5, b"a").meta, cell.meta, value(6, b"c").meta];
    let bytes_read = || disk.counters().counts().read_bytes;
    let before = bytes_read();
    let request = StoreRequest::Replica(ReplicaRequest::ReadMeta { key: key(b"b") });
    assert_eq!(
        store.answer_blocking(&request),
        StoreResponse::Replica(ReplicaResponse::Meta(Some(cell.meta)))
    );
    assert_eq!(
        store.try_answer(&request),
        TryAnswer::Done(StoreResponse::Replica(ReplicaResponse::Meta(Some(cell.meta))))
    );
    let limit = ScanLimit { entries: 10, bytes: 1 << 10 };
    let request = StoreRequest::Scan { after: None, until: None, limit, values: false };
    let StoreResponse::Scanned { entries, until: None } = store.answer_blocking(&request) else {
        panic!("the range is within the limit")
    };
    assert_eq!(entries.iter().map(|(_, cell)| cell.meta).collect::<Vec<_>>(), metas);
    assert_eq!(page_metas(&store, ScanLimit { entries: 10, bytes: 1 << 10 }), metas);
    assert_eq!(page_metas(&store, ScanLimit { entries: 1, bytes: 1 << 10 }), metas);
    let read = bytes_read() - before;
    assert!(read < 64 << 10, "{read} bytes");
    assert_eq!(common::read(&store, &key(b"b")), Some(cell));
}

/// The metadata of all cells, read in pages of this size.
fn page_metas(store: &Store, limit: ScanLimit) -> Vec<CellMeta> {
    let at = WallTime::EPOCH_2020;
    let snapshot = SnapshotId {
        incarnation: Incarnation(1),
        requester: Requester::Coordinator(0),
        number: limit.entries as u64,
    };
    let mut request = PageRequest {
        snapshot,
        range: KeyRange { from: None, to: None },
        partitions: None,
        limit,
        content: PageContent::Cells { at, dead_since: at, versions_only: true },
    };
    let mut metas = Vec::new();
    loop {
        let StoreResponse::Replica(ReplicaResponse::Page { page, rest }) =
            store.answer_blocking(&StoreRequest::ReadPage(request.clone()))
        else {
            panic!("it is a page")
        };
        metas.extend(page.entries().map(|entry| entry.cell.meta));
        match rest {
            Some(rest) => request.range.from = Some(rest),
            None => return metas,
        }
    }
}

#[test]
fn only_a_write_that_older_tables_may_supersede_needs_a_read() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    let put = |name: &'static [u8], hlc| carry_out(&store, &write(key(name), value(hlc, name)));
    let unsure = |name, hlc| StoreResponse::WrittenUnchecked { key: key(name), version: version(hlc) };
    let sure = |superseded| StoreResponse::Replica(ReplicaResponse::Written { superseded });
    assert_eq!(put(b"a", 70), sure(false));
    store.engine().flush().unwrap();
    assert_eq!(put(b"b", 90), sure(false), "an ordinary write is newer than all tables");
    assert_eq!(put(b"b", 80), sure(true), "the memtable tells");
    assert_eq!(put(b"a", 60), unsure(b"a", 60));
    assert_eq!(put(b"c", 60), unsure(b"c", 60), "tables hold no such key, and a greater version");
    assert_eq!(put(b"a", 60), unsure(b"a", 60), "it came twice");
    assert_eq!(read(&store, &key(b"a")), Some(value(70, b"a")));
    assert_eq!(read(&store, &key(b"c")), Some(value(60, b"c")));
    let hints = StoreRequest::Replica(ReplicaRequest::KeepHints {
        key: key(b"a"),
        version: version(50),
        targets: nodes(&[3]),
    });
    assert_eq!(carry_out(&store, &hints), StoreResponse::Replica(ReplicaResponse::HintsKept));
}

/// Opens the directory of a node with a peer.
fn open_with_peer(disk: MemFs) -> (Store, OpenReport) {
    let membership = Membership::of(vec!["http://a:8080".to_owned(), "http://b:8080".to_owned()]);
    let options = StoreOptions { membership, ..options(1) };
    Store::open(env(Arc::new(disk)), Path::new(DATA), options).unwrap()
}

#[test]
fn a_version_from_the_future_is_reported_and_does_not_advance_the_clock() {
    let mut disk = MemFs::new();
    let (store, opened) = open_with_peer(disk.clone());
    assert_eq!((opened.clock_start, opened.version_ahead), (Hlc::ZERO, None));
    let at = |seconds: u64| Hlc::at(WallTime::EPOCH_2020.saturating_add_micros(seconds * 1_000_000));
    drop(store);
    let near = (at(5), None);
    for (seconds, expected) in [(5, near), (3_600, (at(5), Some(at(3_600))))] {
        let (store, _) = open_with_peer(disk.clone());
        let mut group = store.write_group();
        let from_elsewhere = Version::new(at(seconds), NodeTag(2));
        group.add(StoreId(1), &write(key(b"a"), Cell::value(from_elsewhere, 1, "from elsewhere".into())));
        group.add(StoreId(2), &StoreRequest::RaiseClockBound { bound: at(seconds.min(5)) });
        commit(&store, group);
        drop(store);
        disk = disk.kill();
        let (_, opened) = open_with_peer(disk.clone());
        assert_eq!((opened.clock_start, opened.version_ahead), expected);
    }
}

#[test]
fn a_record_of_a_wrong_wall_clock_does_not_advance_the_version_clock() {
    let membership = Membership::of(vec!["http://a:8080".to_owned(), "http://b:8080".to_owned()]);
    let year_ahead = WallTime::EPOCH_2020.saturating_add_micros(365 * 24 * 3_600 * 1_000_000);
    let open_ahead = |disk: MemFs| {
        let env = Env { fs: Arc::new(disk), clock: Arc::new(ManualClock::new(year_ahead)) };
        let options = StoreOptions { membership: membership.clone(), ..options(1) };
        Store::open(env, Path::new(DATA), options).unwrap()
    };
    let disk = MemFs::new();
    let (store, _) = open_ahead(disk.clone());
    let bound = Hlc::at(WallTime::EPOCH_2020.saturating_add_micros(5_000_000));
    let record = NodeRecord { revision: 1, ..NodeRecord::default() };
    let mut group = store.write_group();
    group.add(StoreId(1), &StoreRequest::RaiseClockBound { bound });
    group.add(StoreId(2), &StoreRequest::PersistRecord { record });
    commit(&store, group);
    drop(store);
    let (_, opened) = open_ahead(disk.kill());
    assert_eq!((opened.clock_start, opened.version_ahead), (bound, None));
}

#[test]
fn the_clock_begins_past_its_bound_and_past_every_version() {
    let disk = MemFs::new();
    let (store, opened) = open(disk.clone(), 1).unwrap();
    assert_eq!(opened.clock_start, Hlc::ZERO);
    let bound = |seconds: u64| Hlc::at(WallTime::EPOCH_2020.saturating_add_micros(seconds * 1_000_000));
    let mut group = store.write_group();
    for (id, seconds) in [10, 30, 20].into_iter().enumerate() {
        group.add(StoreId(id as u64), &StoreRequest::RaiseClockBound { bound: bound(seconds) });
    }
    commit(&store, group);
    drop(store);
    let disk = disk.kill();
    let (store, opened) = open(disk.clone(), 1).unwrap();
    assert_eq!(opened.clock_start, bound(30));
    let mut group = store.write_group();
    group.add(StoreId(1), &write(key(b"a"), value(bound(40).to_bits(), b"from elsewhere")));
    commit(&store, group);
    drop(store);
    let (_, opened) = open(disk.kill(), 1).unwrap();
    assert_eq!(opened.clock_start, bound(40));
}

#[test]
fn a_disk_failure_is_reported_to_every_write_of_the_group() {
    let faults = FaultFs::new(Arc::new(MemFs::new()), FaultPlan::none());
    let (store, _) = open(faults.clone(), 1).unwrap();
    faults.set_plan(FaultPlan::on_operation(|_| Some(env::Fault::Error(io::ErrorKind::Other))));
    let mut group = store.write_group();
    group.add(StoreId(1), &write(key(b"a"), value(1, b"a")));
    group.add(StoreId(2), &write(key(b"b"), value(2, b"b")));
    let answers = commit(&store, group);
    assert_eq!(answers.len(), 2);
    for (_, answer) in answers {
        assert!(matches!(answer, StoreResponse::Failed(StoreFault::Io { .. })), "{answer:?}");
    }
    assert_eq!(read(&store, &key(b"a")), None, "what is not durable is not read");
}

#[test]
fn verify_reads_all_data_and_requires_the_lock() {
    let disk = MemFs::new();
    let (store, _) = open(disk.clone(), 1).unwrap();
    let mut group = store.write_group();
    group.add(StoreId(1), &write(key(b"a"), value(1, b"a")));
    commit(&store, group);
    let verify = || store::verify(&env(Arc::new(disk.clone())), Path::new(DATA), &mut |_| {});
    assert!(matches!(&verify().unwrap_err()[..], [store::StoreError::Locked { .. }]));
    drop(store);
    let store::VerifiedDirectory { identity, data: verified, .. } = verify().unwrap();
    assert_eq!((identity.tag, verified.wal_records), (NodeTag(1), 1));
}
