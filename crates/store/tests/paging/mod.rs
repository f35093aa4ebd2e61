//! Reading pages.

#![allow(dead_code, reason = "each test file uses its part")]

use super::common::{ALL, DATA, options};
use cluster::{
    Cut, Incarnation, Key, KeyRange, Page, PageContent, PageRequest, ReplicaRequest, ReplicaResponse,
    Requester, ScanLimit, SnapshotId, StoreFault, StoreRequest, StoreResponse,
};
use env::{Clock, Env, ManualClock, MemFs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Cell, Hlc, NodeTag, Version, WallTime};
use store::{Store, TryAnswer};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const EVERYTHING: KeyRange = KeyRange { from: None, to: None };
pub(crate) const NOW: PageContent = PageContent::Live { at: WallTime::EPOCH_2020 };

pub(crate) fn snapshot(number: u64) -> SnapshotId {
    SnapshotId { incarnation: Incarnation(7), requester: Requester::Coordinator(0), number }
}

pub(crate) fn request(number: u64, range: KeyRange, limit: ScanLimit, content: PageContent) -> PageRequest {
    PageRequest { snapshot: snapshot(number), range, partitions: None, limit, content }
}

pub(crate) fn page(store: &Store, request: &PageRequest) -> (Page, Option<Cut>) {
    match store.answer_blocking(&StoreRequest::ReadPage(request.clone())) {
        StoreResponse::Replica(ReplicaResponse::Page { page, rest }) => (page, rest),
        other => panic!("not a page: {other:?}"),
    }
}

pub(crate) fn fault(store: &Store, request: &PageRequest) -> StoreFault {
    match store.answer_blocking(&StoreRequest::ReadPage(request.clone())) {
        StoreResponse::Failed(fault) => fault,
        other => panic!("not a fault: {other:?}"),
    }
}

pub(crate) fn end(store: &Store, number: u64) {
    let ended =
        store.try_answer(&StoreRequest::Replica(ReplicaRequest::EndSnapshot { id: snapshot(number) }));
    assert_eq!(ended, TryAnswer::Done(StoreResponse::Replica(ReplicaResponse::SnapshotEnded)));
}

pub(crate) fn entries(page: &Page) -> Vec<(Key, Cell)> {
    (0..page.len()).map(|at| (page.key(at), page.cell(at))).collect()
}

/// Reads the whole range, page by page.
pub(crate) fn read_all(store: &Store, mut request: PageRequest) -> Vec<(Key, Cell)> {
    let mut all = Vec::new();
    loop {
        let (page, rest) = page(store, &request);
        all.extend(entries(&page));
        match rest {
            Some(rest) => request.range.from = Some(rest),
            None => return all,
        }
    }
}

pub(crate) fn few(entries: usize) -> ScanLimit {
    ScanLimit { entries, ..ALL }
}

pub(crate) fn opened_at(disk: MemFs, clock: &Arc<ManualClock>) -> Store {
    let clock = Arc::clone(clock) as Arc<dyn Clock>;
    Store::open(Env { fs: Arc::new(disk), clock }, Path::new(DATA), options(1)).expect("it opens").0
}

pub(crate) fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(WallTime::EPOCH_2020))
}

/// A time that the store's own clock does not reach, so that compaction drops none of these cells.
pub(crate) fn at(micros: u64) -> WallTime {
    WallTime::EPOCH_2020.saturating_add(24 * 3600 * SECOND).saturating_add_micros(micros)
}

pub(crate) fn written(micros: u64) -> Version {
    Version::new(Hlc::at(at(micros)), NodeTag(1))
}
