//! Random operations against a `BTreeMap`: reads, scans and snapshots match the model, for any
//! options and any interleaving of the jobs.

mod support;

use engine::Cursor;
use engine::Options;
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::Cell;
use support::{World, batch_of, key_of, random_options, scan, small_options};

const KEYS: u64 = 90;

/// Runs `operations` random operations of `seed`, and returns the result of a final scan.
fn run(seed: u64, operations: u64, options: &Options, step: bool) -> BTreeMap<Vec<u8>, Cell> {
    println!("seed {seed}, {options:?}");
    let mut world = World::new(seed);
    let mut jobs = stdx::Rng::new(seed ^ 1);
    let mut engine = world.open(options);
    for _ in 0..operations {
        match world.rng.below(100) {
            0..70 => {
                let count = 1 + world.rng.below(4);
                let writes: Vec<_> = (0..count).map(|_| world.random_write(KEYS)).collect();
                engine.write(batch_of(&writes)).expect("write");
                for (key, cell) in &writes {
                    world.acknowledge(key, cell);
                }
            }
            70..95 => {
                let key = key_of(world.rng.below(KEYS));
                world.check_key(&engine, &key);
            }
            95..98 => world.clock.advance(Duration::from_millis(world.rng.below(3_000))),
            98 => world.check_all(&engine),
            _ => {
                drop(engine);
                engine = world.open(options);
            }
        }
        if step && jobs.chance(0.5) {
            std::mem::swap(&mut world.rng, &mut jobs);
            world.step_something(&engine).expect("step");
            std::mem::swap(&mut world.rng, &mut jobs);
        }
    }
    world.check_all(&engine);
    live(&world, scan(&engine))
}

/// The part of a scan that is visible to users.
fn live(world: &World, mut seen: BTreeMap<Vec<u8>, Cell>) -> BTreeMap<Vec<u8>, Cell> {
    seen.retain(|_, cell| cell.meta.is_live_at(world.wall()));
    seen
}

#[test]
fn reads_and_scans_agree_with_the_model() {
    for seed in 0..20 {
        run(seed, 1_500, &small_options(), true);
    }
}

#[test]
fn the_options_and_the_steps_do_not_change_the_answers() {
    let mut rng = stdx::Rng::new(99);
    for seed in 100..110 {
        let plain = run(seed, 800, &small_options(), false);
        for _ in 0..4 {
            let options = random_options(&mut rng);
            assert_eq!(run(seed, 800, &options, true), plain, "seed {seed}, {options:?}");
        }
    }
}

#[test]
fn a_snapshot_does_not_change() {
    let mut world = World::new(5);
    let engine = world.open(&small_options());
    let mut taken = Vec::new();
    for round in 0..300 {
        let write = world.random_write(KEYS);
        engine.write(batch_of([&write])).expect("write");
        world.acknowledge(&write.0, &write.1);
        world.step_something(&engine).expect("step");
        if round % 30 == 0 {
            taken.push((engine.snapshot(), scan(&engine)));
        }
    }
    engine.flush().expect("flush");
    engine.run_jobs().expect("jobs");
    for (snapshot, expected) in taken {
        let mut cursor = snapshot.cursor();
        cursor.seek_to_first().expect("seek");
        let mut seen = BTreeMap::new();
        while let Some((key, cell)) = cursor.entry() {
            seen.insert(key.to_vec(), cell.to_cell());
            cursor.advance().expect("advance");
        }
        assert_eq!(seen, expected);
    }
}

#[test]
fn a_scan_begins_at_the_first_key_not_below_its_start() {
    let mut world = World::new(6);
    let engine = world.open(&small_options());
    for _ in 0..600 {
        let write = world.random_write(KEYS);
        engine.write(batch_of([&write])).expect("write");
        world.acknowledge(&write.0, &write.1);
        world.step_something(&engine).expect("step");
    }
    let all = scan(&engine);
    let snapshot = engine.snapshot();
    let mut cursor = snapshot.cursor();
    for number in 0..KEYS {
        for start in [key_of(number), [key_of(number), vec![0]].concat()] {
            cursor.seek(&start).expect("seek");
            let expected = all.range(start.clone()..).next().map(|(key, _)| key.as_slice());
            assert_eq!(cursor.entry().map(|(key, _)| key), expected, "from {}", start.escape_ascii());
        }
    }
}

#[test]
fn deleted_and_expired_data_leaves_the_disk_after_its_grace() {
    let mut world = World::new(7);
    let engine = world.open(&small_options());
    for number in 0..KEYS {
        let write = world.random_write(KEYS);
        engine.write(batch_of([&write])).expect("write");
        let version = world.next_version();
        let delete = (write.0.clone(), Cell::tombstone(version, 1));
        engine.write(batch_of([&delete])).expect("delete");
        world.acknowledge(&delete.0, &delete.1);
        if number % 10 == 0 {
            engine.flush().expect("flush");
        }
    }
    world.clock.advance(support::GRACE * 3);
    // The log must release the segments from which recovery would replay the cells to be dropped.
    fill_log(&mut world, &engine);
    engine.run_jobs().expect("jobs");
    world.check_all(&engine);
    let cells: u64 = engine.stats().levels.iter().map(|level| level.cells).sum();
    assert_eq!(cells, 1, "tombstones past their grace are dropped with what they hide");
}

#[test]
fn a_late_write_does_not_bury_a_newer_one() {
    let mut world = World::new(8);
    let engine = world.open(&small_options());
    let (old, new) = (world.next_version(), world.next_version());
    let newer = (b"k".to_vec(), Cell::tombstone(new, 1));
    engine.write(batch_of([&newer])).expect("write");
    engine.flush().expect("flush");
    engine.run_jobs().expect("jobs");
    let late = (b"k".to_vec(), Cell::value(old, 1, "late".into()));
    engine.write(batch_of([&late])).expect("write");
    assert_eq!(engine.get(b"k").expect("get"), Some(newer.1.clone()));
    engine.flush().expect("flush");
    assert_eq!(engine.get(b"k").expect("get"), Some(newer.1.clone()));
    engine.run_jobs().expect("jobs");
    assert_eq!(engine.get(b"k").expect("get"), Some(newer.1));
}

#[test]
fn a_late_write_that_the_log_still_holds_does_not_come_back_from_behind_a_dropped_tombstone() {
    let mut world = World::new(12);
    let engine = world.open(&small_options());
    let (late, delete) = (world.next_version(), world.next_version());
    let delete = (b"k".to_vec(), Cell::tombstone(delete, 1));
    engine.write(batch_of([&delete])).expect("delete");
    // The log moves on to other segments, and the one with the delete is released.
    for _ in 0..60 {
        let filler = (b"filler".to_vec(), Cell::value(world.next_version(), 1, vec![0; 4 << 10].into()));
        engine.write(batch_of([&filler])).expect("write");
    }
    engine.flush().expect("flush");
    engine.run_jobs().expect("jobs");
    let late = (b"k".to_vec(), Cell::value(late, 1, "late".into()));
    engine.write(batch_of([&late])).expect("write");
    engine.flush().expect("flush");
    world.clock.advance(support::GRACE * 3);
    // One more table in level 0, around the key, so that all of it is merged with the level below.
    let around = Cell::value(world.next_version(), 1, "around".into());
    engine.write(batch_of([&(b"a".to_vec(), around.clone()), &(b"z".to_vec(), around)])).expect("write");
    engine.flush().expect("flush");
    engine.run_jobs().expect("jobs");

    world.disk = world.disk.kill();
    let engine = world.open(&small_options());
    engine.flush().expect("flush");
    engine.run_jobs().expect("jobs");
    let seen = engine.get(b"k").expect("get");
    assert!(seen.is_none_or(|seen| !seen.meta.is_live_at(world.wall())), "a deleted value came back");
}

/// Late writes of local keys: a tombstone that shadows one stays while the write is in memory or in
/// the log.
#[test]
fn a_local_tombstone_stays_while_a_memtable_or_the_log_holds_a_cell_that_it_shadows() {
    let mut world = World::new(13);
    // The memtables fit everything: compaction runs only on request.
    let options = Options { level0_tables: 1, memtable_bytes: Some(1 << 20), ..small_options() };
    let engine = world.open(&options);
    let (late, delete) = (world.next_version(), world.next_version());
    world.clock.advance(Duration::from_secs(1));
    let delete = (b"\0k".to_vec(), Cell::tombstone(delete, 1));
    engine.write(batch_of([&delete])).expect("delete");
    fill_log(&mut world, &engine);
    let late = (b"\0k".to_vec(), Cell::value(late, 1, "late".into()));
    engine.write(batch_of([&late])).expect("write");
    engine.run_jobs().expect("jobs");
    assert_eq!(engine.get(b"\0k").expect("get"), Some(delete.1.clone()), "a memtable holds it");

    engine.flush().expect("flush");
    engine.run_jobs().expect("jobs");
    let is_hidden = |engine: &engine::Engine| {
        engine.get(b"\0k").expect("get").is_none_or(|seen| seen.meta == delete.1.meta)
    };
    assert!(is_hidden(&engine), "a table holds it");
    drop(engine);
    world.disk = world.disk.kill();
    let engine = world.open(&options);
    engine.flush().expect("flush");
    engine.run_jobs().expect("jobs");
    assert!(is_hidden(&engine), "the log held it");
}

#[test]
fn a_compaction_is_discarded_when_a_late_write_of_a_local_key_arrived_during_it() {
    let mut world = World::new(14);
    let options = Options { level0_tables: 1, ..small_options() };
    let engine = world.open(&options);
    let (late, delete) = (world.next_version(), world.next_version());
    world.clock.advance(Duration::from_secs(1));
    let delete = (b"\0k".to_vec(), Cell::tombstone(delete, 1));
    let other = (b"\0z".to_vec(), Cell::value(world.next_version(), 1, "other".into()));
    engine.write(batch_of([&delete, &other])).expect("write");
    engine.flush().expect("flush");
    // The table moves down; then it is rewritten, up to the first cell.
    engine.step_compaction(0, 1).expect("move");
    engine.step_compaction(0, 1).expect("begin");
    let late = (b"\0k".to_vec(), Cell::value(late, 1, "late".into()));
    engine.write(batch_of([&late])).expect("write");
    engine.run_jobs().expect("jobs");
    assert_eq!(engine.get(b"\0k").expect("get"), Some(delete.1));
}

/// Makes the log leave its segments.
fn fill_log(world: &mut World, engine: &engine::Engine) {
    for _ in 0..40 {
        let live = (b"zzz".to_vec(), Cell::value(world.next_version(), 1, vec![0; 4 << 10].into()));
        engine.write(batch_of([&live])).expect("write");
        world.acknowledge(&live.0, &live.1);
    }
    engine.flush().expect("flush");
}

#[test]
fn deleted_local_data_leaves_the_disk_without_a_grace() {
    let mut world = World::new(15);
    let engine = world.open(&small_options());
    let mut versions = Vec::new();
    for number in 0..200u32 {
        let key = [b"\0h", &number.to_be_bytes()[..]].concat();
        let version = world.next_version();
        engine.write(batch_of([&(key.clone(), Cell::value(version, 1, "".into()))])).expect("write");
        versions.push((key, version));
    }
    fill_log(&mut world, &engine);
    engine.run_jobs().expect("jobs");
    for (key, version) in &versions {
        engine.write(batch_of([&(key.clone(), Cell::tombstone(*version, 1))])).expect("delete");
    }
    engine.flush().expect("flush");
    assert!(support::GRACE > Duration::from_secs(1));
    world.clock.advance(Duration::from_secs(1));
    fill_log(&mut world, &engine);
    engine.run_jobs().expect("jobs");
    world.check_key(&engine, b"zzz");
    let cells: u64 = engine.stats().levels.iter().map(|level| level.cells).sum();
    assert_eq!(cells, 1, "of what was deleted nothing is left");
}

#[test]
fn the_largest_values_and_keys_are_kept() {
    let mut world = World::new(9);
    let options = Options { memory_bytes: 256 << 20, memtable_bytes: Some(8 << 20), ..Options::default() };
    let engine = world.open(&options);
    let key = vec![0xfe; 8_300];
    let mut value = vec![0; 16 << 20];
    world.rng.fill(&mut value);
    let write = (key.clone(), Cell::value(world.next_version(), 1, value.into()));
    engine.write(batch_of([&write])).expect("write");
    assert!(engine.get(&key).expect("get").as_ref() == Some(&write.1), "from the memtable");
    drop(engine);
    let engine = world.open(&options);
    assert!(engine.get(&key).expect("get").as_ref() == Some(&write.1), "from the log");
    engine.flush().expect("flush");
    assert!(engine.get(&key).expect("get").as_ref() == Some(&write.1), "from a table");
}
