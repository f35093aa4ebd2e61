//! Scans of a snapshot: their reads, their effect on the cache, and the bound on the work of a
//! step.

mod support;

use engine::{Cursor, Engine, Options, SnapshotCursor};
use env::{Env, FaultFs, FaultPlan, Fs, IoCounts, MemFs, OperationKind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use stdx::{Cell, Version};
use support::{DIR, World, batch_of, small_options};

/// Reads to open a table and show one of its entries: footer, index of a partition, data block.
const TABLE_READS: u64 = 3;

fn key(number: u64) -> Vec<u8> {
    format!("key-{number:06}").into_bytes()
}

fn write_value(world: &mut World, engine: &Engine, number: u64) {
    let version = world.next_version();
    let mut value = vec![0; 100];
    world.rng.fill(&mut value);
    write(world, engine, number, &Cell::value(version, 1, value.into()));
}

fn write(world: &mut World, engine: &Engine, number: u64, cell: &Cell) {
    engine.write(batch_of([&(key(number), cell.clone())])).expect("write");
    world.acknowledge(&key(number), cell);
}

fn options() -> Options {
    Options { memtable_bytes: Some(64 << 10), ..small_options() }
}

/// `count` keys on several levels, below tables of level 0 with every key of some ranges.
fn filled(count: u64) -> (World, Engine) {
    let mut world = World::new(1);
    let engine = world.open(&options());
    for number in 0..count {
        write_value(&mut world, &engine, number);
        if number % 64 == 0 {
            engine.run_jobs().expect("jobs");
        }
    }
    engine.flush().expect("flush");
    engine.run_jobs().expect("jobs");
    (world, engine)
}

fn reads(disk: &MemFs) -> u64 {
    let IoCounts { reads, .. } = disk.counters().counts();
    reads
}

/// Number of reads until `cursor` has been moved by `step`.
fn reads_of(disk: &MemFs, cursor: &mut SnapshotCursor, step: impl FnOnce(&mut SnapshotCursor)) -> u64 {
    let before = reads(disk);
    step(cursor);
    reads(disk) - before
}

/// Opens the engine again, so that nothing is cached.
fn reopened(world: &World, engine: Engine) -> Engine {
    engine.close().expect("close");
    drop(engine);
    world.open(&options())
}

#[test]
fn the_first_entry_is_read_from_the_tables_around_it_only() {
    let (mut world, engine) = filled(6_000);
    // Tables of level 0 for some ranges: behind the start, before it, and around it.
    let mut around = 0;
    for part in [100..120, 1_000..1_200, 1_500..1_510] {
        let start = 1_100;
        around += u64::from(part.contains(&start));
        part.for_each(|number| write_value(&mut world, &engine, number));
        engine.flush().expect("flush");
    }
    let engine = reopened(&world, engine);
    let stats = engine.stats();
    let deeper = stats.levels.iter().skip(1).filter(|level| level.tables > 0).count() as u64;
    assert!(stats.levels[0].tables >= 3 && deeper >= 1, "{stats:?}");
    // Tables left from before may have any keys.
    around += stats.levels[0].tables as u64 - 3;
    let all = stats.levels.iter().map(|level| level.tables as u64).sum::<u64>();
    assert!(all >= 2 * (around + deeper), "{stats:?}");
    let mut cursor = engine.snapshot().cursor();
    let took = reads_of(&world.disk, &mut cursor, |cursor| cursor.seek(&key(1_100)).expect("seek"));
    assert_eq!(cursor.entry().map(|(found, _)| found.to_vec()), Some(key(1_100)));
    assert!(took <= (around + deeper) * TABLE_READS, "{took} reads for the first entry");

    // On to the beginning of a table of level 0, which is read when it is reached and not before.
    while cursor.entry().is_some_and(|(found, _)| found < key(1_490).as_slice()) {
        cursor.advance().expect("advance");
    }
    let cell = world.model[&key(1_500)].clone();
    while cursor.entry().is_some_and(|(found, _)| found < key(1_500).as_slice()) {
        cursor.advance().expect("advance");
    }
    assert_eq!(cursor.entry(), Some((key(1_500).as_slice(), cell.as_ref())), "the newer one");
}

#[test]
fn few_blocks_are_read_before_the_first_key_and_behind_the_last() {
    let (world, engine) = filled(500);
    let engine = reopened(&world, engine);
    let mut cursor = engine.snapshot().cursor();
    let none = reads_of(&world.disk, &mut cursor, |cursor| cursor.seek(b"z").expect("seek"));
    assert_eq!((none, cursor.entry()), (0, None));
    let first = reads_of(&world.disk, &mut cursor, |cursor| cursor.seek(b"a").expect("seek"));
    assert!(first <= TABLE_READS, "{first} reads to the first key of all");
    assert_eq!(cursor.entry().map(|(found, _)| found.to_vec()), Some(key(0)));
}

#[test]
fn a_scan_does_not_change_the_cached_data_blocks() {
    let (world, engine) = filled(2_000);
    let engine = reopened(&world, engine);
    for number in 0..50 {
        engine.get(&key(number)).expect("get");
    }
    let before = engine.stats().cache.data;
    assert!(before.bytes > 0);
    let walk = || {
        let mut cursor = engine.snapshot().cursor();
        cursor.seek_to_first().expect("seek");
        let mut count = 0;
        while cursor.entry().is_some() {
            count += 1;
            cursor.advance().expect("advance");
        }
        count
    };
    let start = reads(&world.disk);
    assert_eq!(walk(), 2_000);
    assert_eq!(engine.stats().cache.data, before, "nothing came, nothing went, nothing was counted");
    let cold = reads(&world.disk) - start;
    // Indexes were cached, so a second scan reads only data blocks, except those that the gets
    // cached.
    assert_eq!(walk(), 2_000);
    let warm = reads(&world.disk) - start - cold;
    assert!(warm > 0 && warm < cold, "{cold} reads, then {warm}");
    for number in 0..50 {
        engine.get(&key(number)).expect("get");
    }
    assert_eq!(engine.stats().cache.data.misses, before.misses, "the blocks are still there");
    assert_eq!(reads(&world.disk) - start - cold - warm, 0);
}

#[test]
fn cached_blocks_are_not_read_again() {
    let (world, engine) = filled(300);
    for number in 0..300 {
        engine.get(&key(number)).expect("get");
    }
    let start = reads(&world.disk);
    assert_eq!(support::scan(&engine).len(), 300);
    assert_eq!(reads(&world.disk) - start, 0);
}

#[test]
fn each_range_is_read_ahead_once() {
    let mut world = World::new(2);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&asked);
    let plan = FaultPlan::on_operation(move |operation| {
        if operation.kind == OperationKind::Prefetch {
            notes.lock().expect("no test thread panicked").push(operation.len as u64);
        }
        None
    });
    let fs = FaultFs::new(Arc::new(world.disk.clone()), plan);
    // One large table.
    let options = Options {
        memtable_bytes: Some(8 << 20),
        table_bytes: 8 << 20,
        memory_bytes: 256 << 20,
        ..small_options()
    };
    let env = world.env_over(Arc::new(fs));
    let (engine, _) = Engine::open(env, Path::new(DIR), options).expect("open");
    (0..20_000).for_each(|number| write_value(&mut world, &engine, number));
    engine.flush().expect("flush");
    let bytes = engine.stats().levels[0].file_bytes;
    asked.lock().expect("no test thread panicked").clear();
    assert_eq!(support::scan(&engine).len(), 20_000);
    let asked = asked.lock().expect("no test thread panicked");
    let calls = asked.len() as u64;
    assert!(calls > 5 && calls <= bytes / (64 << 10), "{calls} calls for {bytes} bytes");
}

/// Many consecutive dead cells are on several levels and in the memtable. A step moves each source
/// by at most one of its entries and reads at most one block of each.
#[test]
fn each_step_through_consecutive_dead_cells_is_bounded() {
    const DEAD: u64 = 50_000;
    let mut world = World::new(3);
    let options = Options { memtable_bytes: Some(1 << 20), table_bytes: 256 << 10, ..small_options() };
    let engine = world.open(&options);
    write_value(&mut world, &engine, 0);
    for number in 1..=DEAD {
        let version = world.next_version();
        let cell = match number % 2 {
            0 => Cell::tombstone(version, 1),
            _ => expired(&world, version),
        };
        write(&mut world, &engine, number, &cell);
        if number % 5_000 == 0 {
            engine.run_jobs().expect("jobs");
        }
    }
    write_value(&mut world, &engine, DEAD + 1);
    engine.run_jobs().expect("jobs");
    world.clock.advance(Duration::from_secs(2));
    let wall = world.wall();
    let sources = engine.stats().levels.iter().map(|level| level.tables).sum::<usize>() as u64;

    let mut cursor = engine.snapshot().cursor();
    cursor.seek_to_first().expect("seek");
    let (mut steps, mut live) = (0, Vec::new());
    while let Some((found, cell)) = cursor.entry() {
        if cell.meta.is_live_at(wall) {
            live.push(found.to_vec());
        }
        steps += 1;
        let took = reads_of(&world.disk, &mut cursor, |cursor| cursor.advance().expect("advance"));
        assert!(took <= sources.min(3) * TABLE_READS, "a step took {took} reads");
    }
    assert_eq!(steps, DEAD + 2, "each is shown, so that whoever walks can stop");
    assert_eq!(live, [key(0), key(DEAD + 1)]);
}

fn expired(world: &World, version: Version) -> Cell {
    let mut cell = Cell::value(version, 1, "gone".into());
    cell.meta.expires_at = Some(world.wall().saturating_add(Duration::from_secs(1)));
    cell
}

/// A read error in the middle of a scan fails that step, and the next seek succeeds.
#[test]
fn a_failed_scan_continues_with_the_next_seek() {
    let (world, engine) = filled(1_000);
    drop(engine);
    let fails = Arc::new(AtomicU64::new(u64::MAX));
    let left = Arc::clone(&fails);
    let plan = FaultPlan::on_operation(move |operation| {
        let fails = operation.kind == OperationKind::Read && operation.path.extension()? == "sst";
        (fails && left.fetch_sub(1, Ordering::Relaxed) == 0).then_some(env::Fault::DeviceError)
    });
    let fs = FaultFs::new(Arc::new(world.disk.clone()), plan);
    let env = Env { fs: Arc::new(fs), clock: Arc::clone(&world.clock) as _ };
    for nth in (0..60).step_by(7) {
        let (engine, _) = Engine::open(env.clone(), Path::new(DIR), options()).expect("open");
        fails.store(nth, Ordering::Relaxed);
        let mut cursor = engine.snapshot().cursor();
        let mut seen: Vec<Vec<u8>> = Vec::new();
        let mut failures = 0;
        let mut moved = cursor.seek_to_first();
        loop {
            if moved.is_err() {
                assert_eq!(cursor.entry(), None, "after an error it is past the last");
                failures += 1;
                let from = seen.last().map_or(Vec::new(), |last| [last, &[0][..]].concat());
                moved = cursor.seek(&from);
                continue;
            }
            let Some((found, _)) = cursor.entry() else { break };
            seen.push(found.to_vec());
            moved = cursor.advance();
        }
        assert_eq!(failures, 1, "the read number {nth} failed");
        assert!(seen.iter().eq(world.model.keys()));
    }
}
