//! Oversized values survive flush and compaction unchanged and with as few copies as possible:
//! their blocks are copied in stored form, and their values are released while others are before
//! them in the merge.

mod support;

use engine::{Compression, Engine, ErrorKind, Options, Progress, verify};
use std::path::Path;
use std::time::Duration;
use stdx::{Cell, CellKind, CellMeta};
use support::damage::tables;
use support::{DIR, GRACE, LOCAL_END, World, batch_of, small_options};

const KEYS: u64 = 12;
const COMPRESSIONS: [Compression; 3] = [Compression::None, Compression::Lz4, Compression::Zstd(1)];
/// Lengths around the thresholds of oversized and large values, and between them.
const LENGTHS: [usize; 8] = [0, 100, (64 << 10) - 1, 64 << 10, 100 << 10, 300 << 10, (1 << 20) - 60, 2 << 20];

fn options(compression: Compression) -> Options {
    Options {
        memtable_bytes: Some(256 << 10),
        memtables_max: 8,
        block_bytes: 4 << 10,
        table_bytes: 1 << 20,
        level1_bytes: 2 << 20,
        compression,
        ..small_options()
    }
}

/// A value that compresses, one that does not, or a mixture.
fn value(world: &mut World, len: usize) -> Vec<u8> {
    let mut value = vec![b'v'; len];
    let noisy = [0, len / 2, len][world.rng.below(3) as usize];
    world.rng.fill(&mut value[..noisy]);
    value
}

fn key(number: u64) -> Vec<u8> {
    let space = if number.is_multiple_of(4) { "\0" } else { "" };
    format!("{space}key-{number}").into_bytes()
}

fn random_write(world: &mut World, again: &[(Vec<u8>, Cell)]) -> (Vec<u8>, Cell) {
    if world.rng.chance(0.1) && !again.is_empty() {
        // The same write again, as from another node, or with another value, as after a broken
        // clock.
        let (key, mut cell) = again[world.rng.below(again.len() as u64) as usize].clone();
        if world.rng.chance(0.5) && cell.meta.kind == CellKind::Value {
            cell.value = value(world, cell.value.len()).into();
        }
        return (key, cell);
    }
    let key = key(world.rng.below(KEYS));
    let late = world.rng.chance(0.2) && key.as_slice() >= LOCAL_END;
    let version = if late { world.late_version() } else { world.next_version() };
    let expires_at =
        world.rng.chance(0.3).then(|| world.wall().saturating_add(GRACE.mul_f64(world.rng.unit())));
    let cell = match world.rng.below(5) {
        0 => Cell::tombstone(version, 1),
        _ => {
            let len = LENGTHS[world.rng.below(LENGTHS.len() as u64) as usize];
            Cell {
                meta: CellMeta { expires_at, ..CellMeta::value(version, 1) },
                value: value(world, len).into(),
            }
        }
    };
    (key, cell)
}

/// All combinations of neighbors, of superseded and repeated cells, and of the compression at the
/// first write.
#[test]
fn oversized_cells_survive_flush_and_compaction() {
    for seed in 0..4 {
        println!("seed {seed}");
        let mut world = World::new(seed);
        let mut written = Vec::new();
        for round in 0..3 {
            let options = options(COMPRESSIONS[(seed + round) as usize % 3]);
            let engine = world.open(&options);
            for _ in 0..40 {
                let write = random_write(&mut world, &written);
                engine.write(batch_of([&write])).expect("write");
                world.acknowledge(&write.0, &write.1);
                written.push(write);
                // Only writes within the grace period may be repeated.
                written.drain(..written.len().saturating_sub(10));
                world.clock.advance(Duration::from_millis(world.rng.below(3_000)));
                for _ in 0..world.rng.below(4) {
                    world.step_something(&engine).expect("step");
                }
            }
            world.check_all(&engine);
            engine.flush().expect("flush");
            engine.run_jobs().expect("jobs");
            world.check_all(&engine);
            engine.close().expect("close");
            drop(engine);
            verify(&world.env(), Path::new(DIR), None, &mut |_| ()).expect("every table is whole");
        }
    }
}

fn write(world: &mut World, engine: &Engine, key: &[u8], cell: Cell) {
    write_all(world, engine, &[(key.to_vec(), cell)]);
}

/// Writes a table of these cells.
fn write_all(world: &mut World, engine: &Engine, writes: &[(Vec<u8>, Cell)]) {
    engine.write(batch_of(writes)).expect("write");
    engine.flush().expect("flush");
    writes.iter().for_each(|(key, cell)| world.acknowledge(key, cell));
}

/// Tombstones of these keys.
fn tombstones(world: &mut World, keys: &[&[u8]]) -> Vec<(Vec<u8>, Cell)> {
    keys.iter().map(|key| (key.to_vec(), Cell::tombstone(world.next_version(), 1))).collect()
}

fn compact(engine: &Engine) {
    while engine.step_compaction(0, u64::MAX).expect("compaction") == Progress::Worked {}
    while engine.step_upkeep(u64::MAX).expect("upkeep") == Progress::Worked {}
}

/// A merge by an engine without compression keeps compressed blocks compressed, because it does not
/// decode them.
#[test]
fn the_block_of_an_oversized_cell_is_copied_in_its_stored_form() {
    let mut world = World::new(1);
    let engine = world.open(&options(Compression::Lz4));
    for number in 0..2 {
        let version = world.next_version();
        let cell = Cell::value(version, 1, vec![number; 3 << 20].into());
        write(&mut world, &engine, &[b'k', number], cell);
    }
    engine.close().expect("close");
    drop(engine);
    let engine = world.open(&options(Compression::None));
    let version = world.next_version();
    write(&mut world, &engine, b"k\x00", Cell::value(version, 1, vec![7; 100 << 10].into()));
    let before = tables(&world.disk);
    compact(&engine);
    let after = tables(&world.disk);
    assert!(after.iter().all(|table| !before.contains(table)), "all of them were merged");
    let bytes: usize = after.iter().map(|path| world.disk.read_file(path).expect("a table").len()).sum();
    assert!(((100 << 10)..(140 << 10)).contains(&bytes), "{bytes}");
    world.check_all(&engine);
}

/// The value is verified although the merge does not use it, because its version could be damaged
/// as well.
#[test]
fn damage_to_an_oversized_cell_is_reported_for_its_original_file() {
    for (compression, len) in
        [(Compression::None, 2 << 20), (Compression::Lz4, 2 << 20), (Compression::Lz4, 70 << 10)]
    {
        for hidden in [false, true] {
            let mut world = World::new(2);
            let engine = world.open(&options(compression));
            let version = world.next_version();
            let cell = Cell::value(version, 1, value_of_both_sorts(&mut world, len));
            write(&mut world, &engine, b"key", cell);
            let table = tables(&world.disk).pop().expect("it was flushed");
            // Keys around it, so that the table cannot move past the other one.
            let keys: &[&[u8]] = if hidden { &[b"a", b"key", b"z"] } else { &[b"a", b"z"] };
            let around = tombstones(&mut world, keys);
            write_all(&mut world, &engine, &around);
            let middle = world.disk.read_file(&table).expect("a table").len() / 2;
            world.disk.corrupt(&table, middle as u64, 3).expect("flip");
            let error = engine.step_compaction(0, u64::MAX).expect_err("damage is found");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            let name = table.file_name().expect("a file").to_string_lossy().into_owned();
            assert!(error.to_string().contains(&name), "{error}");
            assert_eq!(engine.get(b"key").is_ok(), hidden, "what hides it is read");
        }
    }
}

fn value_of_both_sorts(world: &mut World, len: usize) -> bytes::Bytes {
    let mut value = vec![b'v'; len];
    world.rng.fill(&mut value[..len / 2]);
    value.into()
}

/// An expired value is replaced by a tombstone and a deleted one is dropped, like small values.
#[test]
fn a_dead_oversized_cell_leaves_nothing() {
    let mut world = World::new(3);
    let engine = world.open(&options(Compression::None));
    let version = world.next_version();
    let expires_at = world.wall().saturating_add(Duration::from_secs(1));
    let meta = CellMeta { expires_at: Some(expires_at), ..CellMeta::value(version, 1) };
    write(&mut world, &engine, b"expires", Cell { meta, value: vec![1; 2 << 20].into() });
    let version = world.next_version();
    write(&mut world, &engine, b"deleted", Cell::value(version, 1, vec![2; 2 << 20].into()));
    let version = world.next_version();
    write(&mut world, &engine, b"deleted", Cell::tombstone(version, 1));
    world.clock.advance(Duration::from_secs(2));
    compact(&engine);
    world.check_all(&engine);
    let bytes = |world: &World| -> usize {
        tables(&world.disk).iter().map(|path| world.disk.read_file(path).expect("a table").len()).sum()
    };
    assert!((1..1_000).contains(&bytes(&world)), "two tombstones: {}", bytes(&world));
}
