//! A store on an in-memory disk.

#![allow(dead_code, reason = "each test file uses its part")]

use cluster::{
    Key, NodeIndex, NodeSet, ReplicaRequest, ReplicaResponse, ScanLimit, StoreId, StoreRequest, StoreResponse,
};
use engine::Options;
use env::{Env, Fs, ManualClock, MemFs};
use std::path::Path;
use std::sync::{Arc, Mutex};
use stdx::{Cell, Hlc, NodeTag, Version, WallTime};
use store::{AWAY_MAX_DEFAULT, Membership, OpenReport, Store, StoreError, StoreOptions, WriteGroup};

pub(crate) const DATA: &str = "/srv/veche/data";

pub(crate) fn env(fs: Arc<dyn Fs>) -> Env {
    Env { fs, clock: Arc::new(ManualClock::new(WallTime::EPOCH_2020.saturating_add_micros(1_000_000))) }
}

pub(crate) fn options(tag: u64) -> StoreOptions {
    let engine = Options { memory_bytes: 16 << 20, wal_segment_bytes: 64 << 10, ..Options::default() };
    StoreOptions {
        engine,
        membership: Membership::of(Vec::new()),
        new_tag: NodeTag(tag),
        away_max: AWAY_MAX_DEFAULT,
        after_absence: store::AfterAbsence::Rebuild,
        snapshot_age: store::SNAPSHOT_AGE_DEFAULT,
    }
}

pub(crate) fn open(fs: impl Fs + 'static, tag: u64) -> Result<(Store, OpenReport), StoreError> {
    Store::open(env(Arc::new(fs)), Path::new(DATA), options(tag))
}

/// A disk with a copy of the directory `from` as its data directory.
pub(crate) fn copy_of(disk: &MemFs, from: &Path) -> MemFs {
    let copy = MemFs::new();
    let (copied, data): (&dyn Fs, _) = (&copy, Path::new(DATA));
    copied.create_dir_all_durably(data).unwrap();
    for path in disk.file_names() {
        if let Ok(below) = path.strip_prefix(from) {
            let path = data.join(below);
            let dir = path.parent().unwrap();
            copied.create_dir_all_durably(dir).unwrap();
            copy.write_file(&path, &disk.read_file(from.join(below)).unwrap()).unwrap();
        }
    }
    copy
}

/// Whether a write was stored and found no greater version, as far as that was checked. Tables of
/// the store contain versions of its own that are greater than those in tests.
pub(crate) fn is_stored(answer: &StoreResponse) -> bool {
    matches!(
        answer,
        StoreResponse::Replica(ReplicaResponse::Written { superseded: false })
            | StoreResponse::WrittenUnchecked { .. }
    )
}

pub(crate) fn key(bytes: &[u8]) -> Key {
    Key::new(bytes.to_vec().into()).expect("a key")
}

pub(crate) fn value(hlc: u64, bytes: &'static [u8]) -> Cell {
    Cell::value(version(hlc), 1, bytes.into())
}

pub(crate) fn version(hlc: u64) -> Version {
    Version::new(Hlc::from_bits(hlc), NodeTag(1))
}

pub(crate) fn nodes(indexes: &[u8]) -> NodeSet {
    indexes.iter().copied().map(NodeIndex).collect()
}

/// A write without hints.
pub(crate) fn write(key: Key, cell: Cell) -> StoreRequest {
    StoreRequest::Replica(ReplicaRequest::Write { key, cell, hints: NodeSet::EMPTY })
}

pub(crate) const ALL: ScanLimit = ScanLimit { entries: usize::MAX, bytes: usize::MAX };

/// Size of a small disk, in bytes.
pub(crate) const DISK_BYTES: u64 = 8 << 20;

/// Fills a disk of [`DISK_BYTES`] until values are refused.
pub(crate) fn fill(disk: &MemFs, store: &Store) {
    let available = disk.available_bytes(Path::new(DATA)).unwrap();
    disk.set_capacity(DISK_BYTES - available + (256 << 10));
    store.engine().step_upkeep(0).unwrap();
}

/// Executes one write request and returns its response.
pub(crate) fn carry_out(store: &Store, request: &StoreRequest) -> StoreResponse {
    let mut group = store.write_group();
    group.add(StoreId(1), request);
    let mut answers = commit(store, group);
    assert_eq!(answers.len(), 1, "exactly one answer");
    answers.remove(0).1
}

pub(crate) fn read(store: &Store, key: &Key) -> Option<Cell> {
    match store.answer_blocking(&StoreRequest::Replica(ReplicaRequest::Read { key: key.clone() })) {
        StoreResponse::Replica(ReplicaResponse::Cell(cell)) => cell,
        other => panic!("not a cell: {other:?}"),
    }
}

/// Keys and versions of all hints for a node.
pub(crate) fn hints_for(store: &Store, target: u8) -> Vec<(Key, Version)> {
    let target = NodeIndex(target);
    let request = StoreRequest::ReadHints { target, after: None, limit: ALL, cells: false };
    match store.answer_blocking(&request) {
        StoreResponse::Hints { hints, until: None } => {
            hints.into_iter().map(|hint| (hint.key, hint.version)).collect()
        }
        other => panic!("not all hints: {other:?}"),
    }
}

/// Submits the group and commits it on this thread. Returns the responses in the order of their
/// ids.
pub(crate) fn commit(store: &Store, group: WriteGroup) -> Vec<(StoreId, StoreResponse)> {
    let answers = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&answers);
    store.submit(group, move |mut came, _| sink.lock().unwrap().append(&mut came));
    while store.engine().step_commit().is_ok_and(|worked| worked) {}
    let mut answers = std::mem::take(&mut *answers.lock().unwrap());
    answers.sort_by_key(|(id, _)| *id);
    answers
}
