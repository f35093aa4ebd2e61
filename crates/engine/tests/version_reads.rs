//! A read of a version does not read the value: of an oversized cell, the index of its table has
//! all but the value.

#[allow(dead_code, reason = "other tests of tables use the rest")]
mod sstable_support;
mod support;

use engine::internals::sstable::{Lookup, ReadMode, TableOptions, Wait, check_bytes};
use engine::{Compression, Cursor, ErrorKind, ReadMemory, TryGet};
use env::Fs;
use limits::{Budget, LargestValue, MemoryCategory};
use sstable_support::{Fixture, get_meta, hash, small_cells, with_oversized_cells};
use std::path::Path;
use std::sync::Arc;
use stdx::Cell;
use support::damage::tables;
use support::{World, batch_of, small_options};

const MIB: usize = 1 << 20;
const KEY: &[u8] = b"user000000000017x";
/// Most bytes that a read of a version may read: the end of the file with the top index, a filter
/// and an index.
const VERSION_BYTES_MAX: u64 = 8 << 10;

/// A table of small cells around one value that does not compress.
fn table_around(len: usize, compression: Compression) -> Fixture {
    let mut cells = small_cells(50);
    let mut value = vec![0; len];
    stdx::Rng::new(len as u64).fill(&mut value);
    cells.insert(KEY.to_vec(), sstable_support::value(9, &value));
    Fixture::new(&cells, TableOptions { compression, ..TableOptions::default() })
}

fn bytes_read(fs: &dyn Fs) -> u64 {
    fs.counters().counts().read_bytes
}

#[test]
fn a_version_read_of_a_large_value_reads_a_few_kib() {
    for len in [100 << 10, MIB, 16 * MIB] {
        for compression in [Compression::None, Compression::Lz4] {
            let fixture = table_around(len, compression);
            let table = fixture.table();
            let before = bytes_read(&*fixture.fs);
            assert!(matches!(get_meta(&table, KEY), Lookup::Found(_)));
            let read = bytes_read(&*fixture.fs) - before;
            assert!((1..=VERSION_BYTES_MAX).contains(&read), "{read} bytes for a value of {len}");
            assert!(matches!(table.get_meta(KEY, hash(KEY), Wait::Never), Ok(Lookup::Found(_))));
        }
    }
}

#[test]
fn a_cursor_for_versions_does_not_read_a_large_value() {
    let fixture = table_around(16 * MIB, Compression::None);
    let table = fixture.table();
    let before = bytes_read(&*fixture.fs);
    assert_eq!(sstable_support::walk_versions(&table).len(), 51);
    let read = bytes_read(&*fixture.fs) - before;
    assert!(read <= VERSION_BYTES_MAX + (16 << 10), "{read} bytes");
    let mut cursor = table.cursor(ReadMode::Versions);
    cursor.seek(KEY).expect("seek");
    assert!(!cursor.holds_value());
    cursor.reload_value().expect("it is whole");
    assert_eq!(cursor.entry().map(|(_, cell)| cell.value.len()), Some(16 * MIB));
    cursor.advance().expect("advance");
    assert_eq!(cursor.entry().map(|(key, _)| key), Some(&b"user000000000018"[..]));
}

/// Flush and compaction write the metadata, also where they copy a block in its stored form.
#[test]
fn an_engine_reads_versions_without_values() {
    let mut world = World::new(1);
    let engine = world.open(&small_options());
    let mut value = vec![0; 4 * MIB];
    world.rng.fill(&mut value);
    let cell = Cell::value(world.next_version(), 1, value.into());
    engine.write(batch_of([&(b"key".to_vec(), cell.clone())])).expect("write");
    world.acknowledge(b"key", &cell);
    engine.flush().expect("flush");
    for round in 0..2 {
        if round == 1 {
            let around = [b"a", b"z"].map(|key| (key.to_vec(), Cell::tombstone(world.next_version(), 1)));
            engine.write(batch_of(&around)).expect("write");
            around.iter().for_each(|(key, cell)| world.acknowledge(key, cell));
            engine.flush().expect("flush");
            engine.run_jobs().expect("jobs");
        }
        let before = bytes_read(&world.disk);
        assert_eq!(engine.get_meta(b"key").expect("get"), Some(cell.meta));
        assert_eq!(engine.try_get_meta(b"key").expect("get"), TryGet::Ready(Some(cell.meta)));
        let mut cursor = engine.snapshot().version_cursor();
        cursor.seek(b"key").expect("seek");
        assert_eq!(cursor.key_and_meta(), Some((&b"key"[..], cell.meta)));
        let read = bytes_read(&world.disk) - before;
        assert!(read <= 2 * VERSION_BYTES_MAX, "{read} bytes in round {round}");
        world.check_all(&engine);
    }
}

/// Equal versions with different values: the read has to look at them.
#[test]
fn cells_of_one_version_that_differ_are_compared_by_their_values() {
    let mut world = World::new(2);
    let engine = world.open(&small_options());
    let version = world.next_version();
    for (from, byte) in [(1, 9), (3, 8), (2, 7)] {
        let cell = Cell::value(version, from, vec![byte; 200 << 10].into());
        engine.write(batch_of([&(b"key".to_vec(), cell.clone())])).expect("write");
        world.acknowledge(b"key", &cell);
        engine.flush().expect("flush");
        world.check_key(&engine, b"key");
    }
    assert_eq!(engine.get_meta(b"key").expect("get").map(|meta| meta.from), Some(1));
}

#[test]
fn a_version_read_needs_no_memory_for_the_value() {
    let budget = Arc::new(Budget::new(0, 0, LargestValue::default()));
    let reservation = || budget.empty_reservation(MemoryCategory::Replies);
    let mut overcommit = reservation();
    assert!(overcommit.cover(1));
    let memory = ReadMemory::reserving(reservation());
    let table = table_around(16 * MIB, Compression::Lz4).table();
    let found = table.get_meta(KEY, hash(KEY), Wait::Covered(&memory));
    assert!(matches!(found, Ok(Lookup::Found(_))));
    let held = memory.take();
    assert!(held.permit.is_none() && held.refused_bytes == 0);
    let memory = ReadMemory::reserving(reservation());
    let found = table.get(KEY, hash(KEY), Wait::Covered(&memory));
    assert!(found.is_err_and(|error| error.kind() != ErrorKind::Corrupt), "the value needs it");
}

/// A damaged value has a version. A read of the value, and the verification, find the damage.
#[test]
fn the_version_of_a_damaged_value_is_read_and_the_value_is_not() {
    let mut world = World::new(3);
    let engine = world.open(&small_options());
    let cell = Cell::value(world.next_version(), 1, vec![3; 200 << 10].into());
    engine.write(batch_of([&(b"key".to_vec(), cell.clone())])).expect("write");
    engine.flush().expect("flush");
    let table = tables(&world.disk).pop().expect("it was flushed");
    world.disk.corrupt(&table, 100, 3).expect("flip");
    assert_eq!(engine.get_meta(b"key").expect("get"), Some(cell.meta));
    assert_eq!(engine.get(b"key").expect_err("it is damaged").kind(), ErrorKind::Corrupt);
    engine.close().expect("close");
    drop(engine);
    let found = engine::verify(&world.env(), Path::new(support::DIR), None, &mut |_| ());
    assert_eq!(found.expect_err("it is damaged")[0].kind(), ErrorKind::Corrupt);
}

#[test]
fn a_flipped_bit_behind_the_blocks_is_an_error_or_harmless_to_a_version_read() {
    let cells = with_oversized_cells();
    let options = TableOptions { compression: Compression::None, ..TableOptions::default() };
    let fixture = Fixture::new(&cells, options);
    let bytes = fixture.bytes().len();
    let mut errors = 0;
    for at in (bytes - 4_000..bytes).step_by(7) {
        let bit = (at % 8) as u8;
        let damaged = fixture.kill();
        damaged.fs.corrupt(&damaged.path, at as u64, bit).expect("flip");
        let table = damaged.table();
        for (key, cell) in cells.iter().filter(|(_, cell)| cell.value.len() > 1_000) {
            match table.get_meta(key, hash(key), Wait::Allowed) {
                Ok(lookup) => assert_eq!(lookup, Lookup::Found(cell.meta), "byte {at} bit {bit}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at} bit {bit}");
                    errors += 1;
                }
            }
        }
        assert!(check_bytes(&damaged.bytes()).is_err(), "byte {at} bit {bit}");
    }
    assert!(errors > 0, "the index was among them");
}
