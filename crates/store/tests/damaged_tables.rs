//! A damaged table stops no start, whatever it holds: the node's own cells, or those of users.

mod common;

use cluster::{
    Key, NodeRecord, ReplicaRequest, ReplicaResponse, StoreFault, StoreRequest, StoreResponse, SyncState,
};
use common::{DATA, carry_out, env, is_stored, key, nodes, options};
use env::{Fs, MemFs, OpenMode};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use stdx::{Cell, Hlc, NodeTag, Version, WallTime};
use store::{Membership, OpenReport, Store, StoreOptions};

const KEYS: u64 = 60;
const TAG: u64 = 1;
/// Bits flipped in each table, evenly distributed.
const FLIPS_PER_TABLE: u64 = 250;
/// Revision of the stored record.
const REVISION: u64 = 7;

fn alone() -> Membership {
    Membership::of(Vec::new())
}

fn peers() -> Membership {
    let nodes = ["http://a:1", "http://b:1", "http://c:1"].map(str::to_owned);
    Membership::of(nodes.to_vec()).seen_by("http://b:1")
}

fn open(disk: &MemFs, membership: &Membership) -> (Store, OpenReport) {
    let options = StoreOptions { membership: membership.clone(), ..options(TAG) };
    Store::open(env(Arc::new(disk.clone())), Path::new(DATA), options)
        .unwrap_or_else(|error| panic!("the store does not open: {error}"))
}

fn at(second: u64) -> Hlc {
    Hlc::at(WallTime::EPOCH_2020.saturating_add(Duration::from_secs(second)))
}

fn bound() -> Hlc {
    at(50)
}

fn key_of(number: u64) -> Key {
    key(format!("k{number:03}").as_bytes())
}

fn cell(second: u64, number: u64) -> Cell {
    let value = format!("{number} at {second} ").repeat(40);
    Cell::value(Version::new(at(second), NodeTag(TAG)), 3, value.into())
}

/// The newest cell of a key on the disk.
fn newest(number: u64) -> Cell {
    cell(if number.is_multiple_of(3) { 20 } else { 10 }, number)
}

fn write(number: u64, cell: Cell, hinted: &[u8]) -> StoreRequest {
    let hints = nodes(hinted);
    StoreRequest::Replica(ReplicaRequest::Write { key: key_of(number), cell, hints })
}

/// A directory after a clean stop with two tables. The older one holds cells of the node itself and
/// an old cell of all keys, and the newer one the newest cell of a third of the keys. No cell is in
/// the log.
fn stopped(membership: &Membership) -> MemFs {
    let disk = MemFs::new();
    let (store, _) = open(&disk, membership);
    let record = NodeRecord { revision: REVISION, sync_state: SyncState::Settled, ..NodeRecord::default() };
    carry_out(&store, &StoreRequest::PersistRecord { record });
    carry_out(&store, &StoreRequest::RaiseClockBound { bound: bound() });
    store.seal_clock(at(49)).unwrap();
    for number in 0..KEYS {
        assert!(is_stored(&carry_out(&store, &write(number, cell(10, number), &[2]))));
    }
    store.engine().flush().unwrap();
    for number in (0..KEYS).filter(|number| number.is_multiple_of(3)) {
        carry_out(&store, &write(number, cell(20, number), &[]));
    }
    store.engine().flush().unwrap();
    store.close().unwrap();
    drop(store);
    disk.kill()
}

fn tables(disk: &MemFs) -> Vec<PathBuf> {
    let is_table = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "sst");
    disk.file_names().into_iter().filter(is_table).collect()
}

/// Reads a key: the cell, or the fault.
fn read(store: &Store, number: u64) -> Result<Option<Cell>, StoreFault> {
    let request = StoreRequest::Replica(ReplicaRequest::Read { key: key_of(number) });
    match store.answer_blocking(&request) {
        StoreResponse::Replica(ReplicaResponse::Cell(cell)) => Ok(cell),
        StoreResponse::Failed(fault) => Err(fault),
        other => panic!("not an answer to a read: {other:?}"),
    }
}

/// Number of keys whose reads fail. Checks that the failures name the table, and that all other
/// keys have their newest cell.
fn failing(store: &Store, damaged: &Path, what: &str) -> usize {
    let name = damaged.file_name().expect("a file").to_string_lossy();
    let is_failing = |number: &u64| match read(store, *number) {
        Ok(found) => {
            assert_eq!(found, Some(newest(*number)), "{what}: key {number}");
            false
        }
        Err(StoreFault::Corrupt { detail }) => {
            assert!(detail.contains(&*name), "{what}: key {number}: {detail}");
            true
        }
        Err(other) => panic!("{what}: key {number}: {other:?}"),
    };
    (0..KEYS).filter(is_failing).count()
}

/// Opens a directory with a damaged table, twice. Returns the number of keys whose reads fail.
fn check(disk: &MemFs, membership: &Membership, damaged: &Path, what: &str) -> (usize, OpenReport) {
    let (store, opened) = open(disk, membership);
    assert!(opened.clock_start >= at(49), "{what}: a version may be issued twice");
    let record = &opened.record;
    let is_kept = record.revision == REVISION && record.sync_state == SyncState::Settled;
    let is_rebuilding = record.sync_state == SyncState::Rebuilding && record.repair_pending == nodes(&[0, 2]);
    let is_alone = !membership.has_peers() && record.sync_state == SyncState::Unsettled;
    assert!(is_kept || is_alone || is_rebuilding, "{what}: {record:?}");
    let failed = failing(&store, damaged, what);
    store.engine().run_jobs().unwrap();
    // By now the table is set aside, or rewritten if all of its cells can be read.
    failing(&store, damaged, what);
    // Stopped without having written anything: the next start decides the same.
    drop(store);
    let (store, again) = open(disk, membership);
    assert!(again.clock_start >= at(49), "{what}: a version may be issued twice");
    assert_eq!(again.record.sync_state, record.sync_state, "{what}");
    assert!(store.note_alive(WallTime::EPOCH_2020).is_ok(), "{what}: the record can be read");
    // Later cells are found although the table may hold some of the same key.
    carry_out(&store, &StoreRequest::RaiseClockBound { bound: at(300) });
    store.seal_clock(at(299)).unwrap();
    for number in 0..KEYS {
        assert!(is_stored(&carry_out(&store, &write(number, cell(200, number), &[]))), "{what}");
        assert_eq!(read(&store, number), Ok(Some(cell(200, number))), "{what}");
    }
    store.close().unwrap();
    drop(store);
    let (_, last) = open(disk, membership);
    assert_eq!(last.clock_start, at(299), "{what}: the seal is readable again");
    (failed, opened)
}

#[test]
fn a_flipped_bit_of_a_table_stops_no_start() {
    for membership in [alone(), peers()] {
        let whole = stopped(&membership);
        assert_eq!(tables(&whole).len(), 2);
        let (mut with_failures, mut without_record) = (0, 0);
        for path in tables(&whole) {
            let bits = whole.read_file(&path).unwrap().len() as u64 * 8;
            for bit in (0..bits).step_by((bits / FLIPS_PER_TABLE) as usize | 1) {
                let disk = whole.kill();
                disk.corrupt(&path, bit / 8, (bit % 8) as u8).unwrap();
                let what = format!("bit {bit} of {}", path.display());
                let (failed, opened) = check(&disk, &membership, &path, &what);
                with_failures += usize::from(failed > 0);
                without_record += usize::from(opened.record.revision != REVISION);
            }
        }
        assert!(with_failures > 200 && without_record > 20, "{with_failures}, {without_record}");
    }
}

/// A shortened table is a damaged one: no read takes the cells that it lacks for missing.
#[test]
fn a_table_that_was_cut_stops_no_start() {
    for membership in [alone(), peers()] {
        let whole = stopped(&membership);
        for path in tables(&whole) {
            let len = whole.read_file(&path).unwrap().len() as u64;
            for cut in [0, 1, 16, 100, len / 2, len - 1] {
                let disk = whole.kill();
                let file = disk.open(&path, OpenMode::ReadWrite).unwrap();
                file.set_len(cut).and_then(|()| file.sync_data()).unwrap();
                let what = format!("{} has {cut} bytes", path.display());
                let (failed, _) = check(&disk, &membership, &path, &what);
                assert!(failed > 0, "{what}: nothing can be read without its end");
            }
        }
    }
}
