//! The requests of a copy store its cells durably, together with its position.

mod common;

use bytes::Bytes;
use cluster::{CopyCursor, IngestRequest, IngestResponse, Key, StoreFault, StoreRequest, StoreResponse};
use common::{key, open, read, value};
use env::MemFs;
use stdx::{Cell, Rng};
use store::Store;

const NAME: Bytes = Bytes::from_static(b"attempt 4, node 7");

fn ask(store: &Store, request: IngestRequest) -> StoreResponse {
    store.answer_blocking(&StoreRequest::Ingest(request))
}

/// Cells with these keys, and the position behind them.
fn append(names: &[&str], position: &'static str, is_rewound: bool, is_last: bool) -> IngestRequest {
    let cell = |name: &&str| (key(name.as_bytes()), value(5, b"moved"));
    let cells: Vec<(Key, Cell)> = names.iter().map(cell).collect();
    IngestRequest::Append { name: NAME, is_rewound, cells, position: position.into(), is_last }
}

const fn appended(is_durable: bool) -> StoreResponse {
    StoreResponse::Ingest(IngestResponse::Appended { is_durable, is_stalled: false })
}

fn cursors(store: &Store) -> Vec<CopyCursor> {
    match ask(store, IngestRequest::ReadCursors) {
        StoreResponse::Ingest(IngestResponse::Cursors(cursors)) => cursors,
        response => panic!("{response:?}"),
    }
}

fn cursor(position: &'static str) -> CopyCursor {
    CopyCursor { name: NAME, position: position.into() }
}

fn is_stored(store: &Store, name: &str) -> bool {
    read(store, &key(name.as_bytes())) == Some(value(5, b"moved"))
}

#[test]
fn the_chunks_of_a_copy_are_durable_with_their_position() {
    let disk = MemFs::new();
    let (store, _) = open(disk.clone(), 1).unwrap();
    assert_eq!(cursors(&store), []);
    assert_eq!(ask(&store, append(&["a", "b"], "b", true, false)), appended(false));
    assert_eq!(ask(&store, append(&["c"], "c", false, false)), appended(false));
    assert!(!is_stored(&store, "a") && cursors(&store).is_empty(), "nothing is visible before it is durable");
    assert_eq!(ask(&store, append(&["d"], "d", false, true)), appended(true));
    assert_eq!(ask(&store, append(&["e"], "e", false, false)), appended(false));

    let (store, _) = open(disk.kill(), 1).unwrap();
    assert!(["a", "b", "c", "d"].iter().all(|name| is_stored(&store, name)));
    assert!(!is_stored(&store, "e"));
    assert_eq!(cursors(&store), [cursor("d")]);
    assert_eq!(ask(&store, append(&["e"], "e", true, true)), appended(true));
    assert!(is_stored(&store, "e"));
}

#[test]
fn a_chunk_that_fills_a_table_is_durable() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    let (table_bytes, value_bytes) = (store.engine().options().table_bytes, 1 << 20);
    let mut durable = None;
    for number in 0..=table_bytes / value_bytes {
        let mut cell = value(5, b"");
        let mut noise = vec![0; value_bytes as usize];
        Rng::new(number).fill(&mut noise);
        cell.value = noise.into();
        let request = IngestRequest::Append {
            name: NAME,
            is_rewound: number == 0,
            cells: vec![(key(format!("{number:04}").as_bytes()), cell)],
            position: format!("{number}").into(),
            is_last: false,
        };
        match ask(&store, request) {
            StoreResponse::Ingest(IngestResponse::Appended { is_durable: true, .. }) => {
                durable = Some(number);
            }
            StoreResponse::Ingest(IngestResponse::Appended { .. }) => {}
            response => panic!("{response:?}"),
        }
    }
    let durable = durable.expect("a table was filled");
    assert_eq!(cursors(&store)[0].position, format!("{durable}").as_bytes());
}

#[test]
fn cells_that_are_not_durable_are_discarded_when_the_copy_goes_back() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    assert_eq!(ask(&store, append(&["a"], "a", true, true)), appended(true));
    assert_eq!(ask(&store, append(&["b", "c"], "c", false, false)), appended(false));
    // The copy goes on at its durable position, from where "b" is gone by now.
    assert_eq!(ask(&store, append(&["c"], "c", true, true)), appended(true));
    assert!(is_stored(&store, "a") && is_stored(&store, "c") && !is_stored(&store, "b"));
}

#[test]
fn after_a_fault_the_copy_goes_on_only_from_its_durable_position() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    assert_eq!(ask(&store, append(&["a"], "a", true, true)), appended(true));
    let failed = |response| matches!(response, StoreResponse::Failed(StoreFault::Io { .. }));
    assert!(failed(ask(&store, append(&["c", "b"], "c", false, false))), "keys ascend");
    assert!(failed(ask(&store, append(&["d"], "d", false, true))), "cells would be missing before it");
    assert_eq!(cursors(&store), [cursor("a")]);
    assert_eq!(ask(&store, append(&["b", "c", "d"], "d", true, true)), appended(true));
    assert!(["a", "b", "c", "d"].iter().all(|name| is_stored(&store, name)));
}

#[test]
fn the_first_request_of_a_process_begins_at_the_durable_position() {
    let (store, _) = open(MemFs::new(), 1).unwrap();
    let response = ask(&store, append(&["b"], "b", false, true));
    assert!(matches!(response, StoreResponse::Failed(StoreFault::Io { .. })), "{response:?}");
    assert!(!is_stored(&store, "b") && cursors(&store).is_empty());
}

#[test]
fn the_position_of_a_copy_that_is_forgotten_is_removed_and_its_cells_stay() {
    let disk = MemFs::new();
    let (store, _) = open(disk.clone(), 1).unwrap();
    assert_eq!(ask(&store, append(&["a"], "a", true, true)), appended(true));
    assert_eq!(ask(&store, append(&["b"], "b", false, false)), appended(false));
    let forget = || IngestRequest::Forget { name: NAME };
    assert_eq!(ask(&store, forget()), StoreResponse::Ingest(IngestResponse::Forgotten));
    assert_eq!(ask(&store, forget()), StoreResponse::Ingest(IngestResponse::Forgotten), "there is none");
    assert_eq!(cursors(&store), []);
    let (store, _) = open(disk.kill(), 1).unwrap();
    assert!(is_stored(&store, "a") && !is_stored(&store, "b") && cursors(&store).is_empty());
    assert_eq!(ask(&store, append(&["0"], "0", true, true)), appended(true), "from the first key");
}
