//! A node's store and its backups on an in-memory disk.

#![allow(dead_code, reason = "each test file uses its part")]

use cluster::{Key, NodeSet, ReplicaRequest, StoreId, StoreRequest, StoreResponse};
use ctl::{AddedBackup, CtlError, Repository};
use env::{Env, Fs, ManualClock, MemFs};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use stdx::{Cell, Hlc, NodeTag, Version, WallTime};
use store::{AWAY_MAX_DEFAULT, AfterAbsence, Membership, OpenReport, Store, StoreError, StoreOptions};

pub(crate) const DATA: &str = "/srv/data";
pub(crate) const BACKUPS: &str = "/backups";
pub(crate) const RESTORED: &str = "/srv/restored";

pub(crate) type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

pub(crate) fn taken_at() -> WallTime {
    WallTime::EPOCH_2020.saturating_add_micros(1_000_000)
}

pub(crate) fn env(fs: impl Fs + 'static) -> Env {
    Env { fs: Arc::new(fs), clock: Arc::new(ManualClock::new(taken_at())) }
}

/// A single node, or one of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Alone,
    OfThree,
}

fn options(tag: u64, kind: Kind) -> StoreOptions {
    let nodes = match kind {
        Kind::Alone => Vec::new(),
        Kind::OfThree => ["http://a:1", "http://b:1", "http://c:1"].map(str::to_owned).to_vec(),
    };
    StoreOptions {
        engine: engine::Options {
            memory_bytes: 16 << 20,
            wal_segment_bytes: 16 << 10,
            ..engine::Options::default()
        },
        membership: Membership::of(nodes).seen_by("http://a:1"),
        new_tag: NodeTag(tag),
        away_max: AWAY_MAX_DEFAULT,
        after_absence: AfterAbsence::Refuse,
        snapshot_age: store::SNAPSHOT_AGE_DEFAULT,
    }
}

pub(crate) fn open(disk: &MemFs, dir: &str, tag: u64, kind: Kind) -> Store {
    try_open(disk, dir, tag, kind).expect("it opens").0
}

pub(crate) fn try_open(
    disk: &MemFs,
    dir: &str,
    tag: u64,
    kind: Kind,
) -> Result<(Store, OpenReport), StoreError> {
    Store::open(env(disk.clone()), Path::new(dir), options(tag, kind))
}

/// Writes these entries with ascending versions from `hlc`, and flushes them to a table.
pub(crate) fn write(store: &Store, hlc: u64, entries: &Contents) {
    let mut group = store.write_group();
    for (at, (key, value)) in entries.iter().enumerate() {
        let version = Version::new(Hlc::from_bits(hlc + at as u64), NodeTag(1));
        let key = Key::new(key.clone().into()).expect("a key");
        let cell = Cell::value(version, 1, value.clone().into());
        group.add(
            StoreId(at as u64),
            &StoreRequest::Replica(ReplicaRequest::Write { key, cell, hints: NodeSet::EMPTY }),
        );
    }
    let acknowledged = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&acknowledged);
    store.submit(group, move |answers, _| {
        assert!(answers.iter().all(|(_, answer)| !matches!(answer, StoreResponse::Failed(_))), "{answers:?}");
        count.fetch_add(answers.len(), Ordering::Relaxed);
    });
    while store.engine().step_commit().expect("the disk is well") {}
    assert_eq!(acknowledged.load(Ordering::Relaxed), entries.len());
    store.engine().flush().expect("the disk is well");
}

/// All entries of a data directory.
pub(crate) fn contents(disk: &MemFs, dir: &str, kind: Kind) -> Contents {
    let store = open(disk, dir, 0, kind);
    let request = StoreRequest::Scan {
        after: None,
        until: None,
        limit: cluster::ScanLimit { entries: usize::MAX, bytes: usize::MAX },
        values: true,
    };
    match store.answer_blocking(&request) {
        StoreResponse::Scanned { entries, .. } => {
            entries.into_iter().map(|(key, cell)| (key.as_bytes().to_vec(), cell.value.to_vec())).collect()
        }
        other => panic!("not cells: {other:?}"),
    }
}

pub(crate) fn entries(from: u32, count: u32) -> Contents {
    let value = |at: u32| format!("value\n{at}\0").repeat(20).into_bytes();
    (from..from + count).map(|at| (format!("key {at:06}").into_bytes(), value(at))).collect()
}

/// Takes a backup of the directory, which is not open.
pub(crate) fn back_up(fs: impl Fs + 'static) -> Result<AddedBackup, CtlError> {
    let env = env(fs);
    Repository::open_or_create(&env, Path::new(BACKUPS))?.add_backup(Path::new(DATA), taken_at(), &mut ())
}

/// Takes a backup of an open store.
pub(crate) fn back_up_checkpoint(disk: &MemFs, store: &Store) -> AddedBackup {
    let env = env(disk.clone());
    let repository = Repository::open_or_create(&env, Path::new(BACKUPS)).expect("a repository");
    let checkpoint = store.checkpoint().expect("the disk is well");
    let taken = repository.add_backup(&checkpoint.path, taken_at(), &mut ()).expect("the disk is well");
    assert!(store.remove_checkpoint(&checkpoint.name).expect("the disk is well"));
    taken
}

/// Removes a directory with its contents.
pub(crate) fn remove(disk: &MemFs, dir: &str) {
    let fs: &dyn Fs = disk;
    fs.remove_dir_all(Path::new(dir)).expect("it is there");
}
