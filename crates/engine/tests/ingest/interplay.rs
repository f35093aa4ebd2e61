//! Ingests beside checkpoints, damage, full disks, backpressure and power loss.

use super::source::{
    Cells, acknowledge_all, ingest_as, number_key, push_all, table_files, used_levels, values,
};
use super::support::damage::{heal, work};
use super::support::{DIR, World, batch_of, scan, small_options};
use engine::{DiskSpace, Durability, Engine, Error, ErrorKind, Options, verify};
use env::{Fault, FaultFs, FaultPlan, MemFs, OperationKind, OperationMatch};
use std::path::Path;
use std::sync::Arc;
use stdx::{Cell, Rng};

#[test]
fn a_checkpoint_has_the_tables_and_no_cursor() {
    let mut world = World::new(1);
    let engine = world.open(&small_options());
    let cells = values(&mut world, 0..300, 60);
    ingest_as(&engine, b"one", &cells, b"p");
    acknowledge_all(&mut world, &cells);
    let mut ingest = engine.ingest(b"one", 0).expect("open");
    let unfinished = values(&mut world, 300..400, 60);
    push_all(&mut ingest, &unfinished).expect("push");
    let dir = Path::new("/data/checkpoint");
    let summary = engine.checkpoint(dir).expect("checkpoint");
    assert_eq!(summary.cells, 300, "without the cells that are not committed");
    verify(&world.env(), dir, None, &mut |_| ()).expect("verify");
    let (copy, _) = Engine::open(world.env(), dir, small_options()).expect("open");
    assert_eq!(copy.ingest_cursors(), []);
    assert_eq!(scan(&copy), cells);
    // The ingest into the copy begins anew, and changes nothing.
    ingest_as(&copy, b"one", &cells, b"p");
    copy.run_jobs().expect("jobs");
    assert_eq!(scan(&copy), cells);
    drop(copy);

    ingest.commit(b"q").expect("the checkpoint does not disturb the ingest");
    acknowledge_all(&mut world, &unfinished);
    drop(ingest);
    engine.close().expect("close");
    drop(engine);
    verify(&world.env(), Path::new(DIR), None, &mut |_| ()).expect("verify");
    world.check_all(&world.open(&small_options()));
}

#[test]
fn a_damaged_ingested_table_is_healed_like_any_other() {
    let mut world = World::new(2);
    let engine = world.open(&small_options());
    let cells = values(&mut world, 0..60, 60);
    ingest_as(&engine, b"one", &cells, b"p");
    acknowledge_all(&mut world, &cells);
    drop(engine);
    let table = table_files(&world.disk).remove(0);
    world.disk.corrupt(&table, 100, 1).expect("flip");
    let engine = world.open(&small_options());
    assert_eq!(engine.get(&number_key(0)).expect_err("damaged").kind(), ErrorKind::Corrupt);
    work(&engine);
    let damaged = engine.damaged_tables();
    assert_eq!(damaged.len(), 1);
    // The ingest continues beside a quarantined table.
    let more = values(&mut world, (0..60).map(|number| number * 2), 60);
    let mut ingest = engine.ingest(b"one", 0).expect("open");
    assert_eq!(ingest.position(), Some(&b"p"[..]));
    push_all(&mut ingest, &more).expect("push");
    ingest.commit(b"q").expect("commit");
    acknowledge_all(&mut world, &more);
    heal(&world, &engine, &damaged);
    work(&engine);
    assert_eq!(engine.damaged_tables(), []);
    world.check_all(&engine);
}

#[test]
fn a_full_disk_ends_a_part_and_leaves_nothing_behind() {
    const CAPACITY: u64 = 32 << 20;
    let mut world = World::new(3);
    world.disk = MemFs::with_capacity(CAPACITY);
    let options = Options { memtable_bytes: Some(64 << 10), table_bytes: 1 << 20, ..small_options() };
    let engine = world.open(&options);
    let mut ingest = engine.ingest(b"one", 0).expect("open");
    let (mut part, mut was_stalled) = (0u64, false);
    loop {
        let cells = values(&mut world, part * 256..(part + 1) * 256, 4_000);
        let files_before = table_files(&world.disk);
        was_stalled |= ingest.is_stalled();
        match push_all(&mut ingest, &cells).and_then(|()| ingest.commit(&part.to_be_bytes())) {
            Ok(()) => acknowledge_all(&mut world, &cells),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                engine.run_jobs().expect("jobs");
                assert_eq!(table_files(&world.disk), files_before);
                break;
            }
        }
        part += 1;
        assert!(part < 100, "the disk does not become full");
    }
    assert!(was_stalled, "the host is told before the disk is full");
    assert!(part > 5, "{part} parts");
    let last = (part - 1).to_be_bytes();
    assert_eq!(ingest.rewind(), Some(&last[..]));
    world.check_all(&engine);
    // The reserve is left for the jobs, and for deletes.
    let delete = (number_key(0), Cell::tombstone(world.next_version(), 1));
    engine.write(batch_of([&delete])).expect("a delete");
    world.acknowledge(&delete.0, &delete.1);

    world.disk.set_capacity(CAPACITY * 2);
    engine.step_upkeep(1 << 20).expect("upkeep");
    assert_eq!(engine.disk_stats().space, DiskSpace::Ample);
    assert!(!ingest.is_stalled());
    let cells = values(&mut world, part * 256..(part + 1) * 256, 4_000);
    push_all(&mut ingest, &cells).expect("there is space");
    ingest.commit(&part.to_be_bytes()).expect("commit");
    acknowledge_all(&mut world, &cells);
    world.check_all(&engine);
}

#[test]
fn the_host_is_told_to_pause_while_level_0_is_behind() {
    let mut world = World::new(4);
    let engine = world.open(&small_options());
    let mut ingest = engine.ingest(b"one", 0).expect("open");
    let mut parts = 0u64;
    while !ingest.is_stalled() {
        // Each table overlaps all others, so that the seventh and later ones join level 0.
        let cells = values(&mut world, [0, 1_000], 10);
        push_all(&mut ingest, &cells).expect("push");
        ingest.commit(b"p").expect("commit");
        acknowledge_all(&mut world, &cells);
        parts += 1;
        assert!(parts < 50, "it is never told");
    }
    assert_eq!(used_levels(&engine).len(), 7);
    engine.run_jobs().expect("jobs");
    assert!(!ingest.is_stalled());
    world.check_all(&engine);
}

/// A directory with tables whose log has no segment counts as one that lost its log. So no table
/// joins before there is a segment.
#[test]
fn no_table_joins_while_the_log_has_no_segment() {
    let mut world = World::new(5);
    let faults = FaultFs::new(Arc::new(world.disk.clone()), FaultPlan::none());
    let full = Fault::Error(std::io::ErrorKind::StorageFull);
    faults.set_plan(FaultPlan::fail(OperationMatch::kind(OperationKind::Open).path(".wal").sticky(), full));
    let env = world.env_over(Arc::new(faults.clone()));
    let (engine, _) = Engine::open(env, Path::new(DIR), small_options()).expect("open");
    let cells = values(&mut world, 0..10, 10);
    let mut ingest = engine.ingest(b"one", 0).expect("open");
    push_all(&mut ingest, &cells).expect("push");
    let refused = ingest.commit(b"p").expect_err("there is no segment");
    assert!(matches!(&refused, Error::Full { path } if path.ends_with("wal")), "{refused}");
    assert!(table_files(&world.disk).is_empty());
    faults.clear();
    let write = (b"key".to_vec(), Cell::value(world.next_version(), 1, "value".into()));
    engine.write(batch_of([&write])).expect("write");
    world.acknowledge(&write.0, &write.1);
    ingest.rewind();
    push_all(&mut ingest, &cells).expect("push");
    ingest.commit(b"p").expect("commit");
    acknowledge_all(&mut world, &cells);
    drop(ingest);
    drop(engine);
    for seed in 0..10 {
        let after = world.beside(world.disk.crash(&mut Rng::new(seed)));
        after.check_all(&after.open(&small_options()));
    }
}

#[test]
fn with_durability_os_a_commit_survives_the_loss_of_power() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        let options = Options { durability: Durability::Os, ..small_options() };
        let engine = world.open(&options);
        for number in 0..seed * 20 {
            let write = (
                format!("written-{number}").into_bytes(),
                Cell::value(world.next_version(), 1, vec![1; 500].into()),
            );
            engine.write(batch_of([&write])).expect("write");
            world.step_something(&engine).expect("step");
        }
        let cells = values(&mut world, 0..100, 60);
        ingest_as(&engine, b"one", &cells, b"p");
        drop(engine);
        world.disk = world.disk.crash(&mut Rng::new(seed));
        let engine = world.open(&options);
        let seen: Cells = scan(&engine).into_iter().filter(|(key, _)| key.starts_with(b"number")).collect();
        assert_eq!(seen, cells);
        assert_eq!(engine.ingest_cursors().len(), 1);
    }
}

#[test]
fn a_table_does_not_join_the_key_range_that_a_compaction_writes_to() {
    for steps in 1..20 {
        let mut world = World::new(6);
        let engine = world.open(&small_options());
        for _ in 0..2 {
            let cells = values(&mut world, 0..20, 20);
            engine.write(batch_of(&cells.clone().into_iter().collect::<Vec<_>>())).expect("write");
            acknowledge_all(&mut world, &cells);
            engine.flush().expect("flush");
        }
        for _ in 0..steps {
            engine.step_compaction(0, 1).expect("step");
        }
        // Level 1 is the natural one, and has no table before the compaction ends.
        let cells = values(&mut world, 5..15, 20);
        ingest_as(&engine, b"one", &cells, b"p");
        acknowledge_all(&mut world, &cells);
        engine.run_jobs().expect("jobs");
        world.check_all(&engine);
    }
}
