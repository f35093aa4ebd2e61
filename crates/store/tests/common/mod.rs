//! A store on a disk in memory.

#![allow(dead_code, reason = "each test file uses its part")]

use cluster::{Key, StoreId, StoreResponse};
use engine::Options;
use env::{Env, Fs, ManualClock};
use std::path::Path;
use std::sync::{Arc, Mutex};
use stdx::{Cell, Hlc, NodeTag, Version, WallTime};
use store::{Membership, Opened, Store, StoreError, StoreOptions, WriteGroup};

pub(crate) const DATA: &str = "/srv/veche/data";

pub(crate) fn env(fs: Arc<dyn Fs>) -> Env {
    Env { fs, clock: Arc::new(ManualClock::new(WallTime::EPOCH_2020.saturating_add_micros(1_000_000))) }
}

pub(crate) fn options(tag: u64) -> StoreOptions {
    let engine = Options { memory_bytes: 16 << 20, wal_segment_bytes: 64 << 10, ..Options::default() };
    StoreOptions { engine, membership: Membership::of(Vec::new()), new_tag: NodeTag(tag) }
}

pub(crate) fn open(fs: impl Fs + 'static, tag: u64) -> Result<(Store, Opened), StoreError> {
    Store::open(env(Arc::new(fs)), Path::new(DATA), options(tag))
}

pub(crate) fn key(bytes: &[u8]) -> Key {
    Key::new(bytes.to_vec().into()).expect("a key")
}

pub(crate) fn value(hlc: u64, bytes: &'static [u8]) -> Cell {
    Cell::value(Version::new(Hlc::from_bits(hlc), NodeTag(1)), 1, bytes.into())
}

/// Submits the group and commits it on this thread. The answers in the order of their ids.
pub(crate) fn commit(store: &Store, group: WriteGroup) -> Vec<(StoreId, StoreResponse)> {
    let answers = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&answers);
    store.submit(group, move |mut came| sink.lock().unwrap().append(&mut came));
    while store.engine().step_commit().is_ok_and(|worked| worked) {}
    let mut answers = std::mem::take(&mut *answers.lock().unwrap());
    answers.sort_by_key(|(id, _)| *id);
    answers
}
