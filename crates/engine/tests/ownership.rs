//! Ranges of key hashes that an engine disowns: absent at once, purged by compaction, and owned
//! again only when nothing can return.

mod support;

use engine::{Engine, Error, ErrorKind, HashRange, Options, OwnedRange, Progress, TryGet, verify_showing};
use env::{Fault, FaultFs, FaultPlan, MemFs, OperationKind};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Cell, Rng};
use support::{DIR, LOCAL_END, World, batch_of, key_of, random_options, scan, small_options};
use xxhash_rust::xxh3::xxh3_64;

const KEYS: u64 = 120;

/// A quarter of all hashes.
fn quarter(number: u64) -> HashRange {
    HashRange { first: number << 62, last: number << 62 | ((1 << 62) - 1) }
}

/// No key of a quarter.
fn none_of(number: u64) -> OwnedRange {
    OwnedRange::nothing_of(quarter(number))
}

/// All keys of a quarter.
fn all_of(number: u64) -> OwnedRange {
    OwnedRange::all_of(quarter(number))
}

/// The quarter of a key; `None` for a local key.
fn quarter_of(key: &[u8]) -> Option<u64> {
    (key >= LOCAL_END).then(|| xxh3_64(&key[1..]) >> 62)
}

fn is_in(key: &[u8], quarters: &BTreeSet<u64>) -> bool {
    quarter_of(key).is_some_and(|quarter| quarters.contains(&quarter))
}

/// A random write of a key that is not in these quarters.
fn random_write(world: &mut World, disowned: &BTreeSet<u64>) -> (Vec<u8>, Cell) {
    loop {
        let write = world.random_write(KEYS);
        if !is_in(&write.0, disowned) {
            return write;
        }
    }
}

fn write_some(world: &mut World, engine: &Engine, count: u64, disowned: &BTreeSet<u64>) {
    for _ in 0..count {
        let write = random_write(world, disowned);
        engine.write(batch_of([&write])).expect("write");
        world.acknowledge(&write.0, &write.1);
    }
}

fn forget(world: &mut World, quarters: &BTreeSet<u64>) {
    world.model.retain(|key, _| !is_in(key, quarters));
}

/// Keys of the quarters in all tables and in the log that recovery would replay.
fn keys_on_disk(world: &World, quarters: &BTreeSet<u64>) -> usize {
    let mut count = 0;
    let mut show = |key: &[u8], _: &stdx::CellMeta| count += usize::from(is_in(key, quarters));
    verify_showing(&world.env(), Path::new(DIR), None, &mut |_| (), &mut show).expect("verify");
    count
}

#[test]
fn disowned_keys_are_absent_at_once_and_after_a_crash() {
    for seed in 0..5 {
        let mut world = World::new(seed);
        let mut engine = world.open(&small_options());
        write_some(&mut world, &engine, 400, &BTreeSet::new());
        let (snapshot, before) = (engine.snapshot(), scan(&engine));
        let quarters = BTreeSet::from([1, 3]);
        engine.disown(&[none_of(3), none_of(1)]).expect("disown");
        engine.disown(&[none_of(1)]).expect("once more");
        forget(&mut world, &quarters);
        for _ in 0..2 {
            world.check_all(&engine);
            for number in 0..KEYS {
                let key = key_of(number);
                if is_in(&key, &quarters) {
                    assert_eq!(engine.get(&key).expect("get"), None);
                    assert_eq!(engine.get_meta(&key).expect("get"), None);
                    assert_eq!(engine.try_get(&key).expect("get"), TryGet::Ready(None));
                    assert!(engine.get_readable(&key).expect("get").cell.is_none());
                }
            }
            assert!(scan(&engine).keys().all(|key| !is_in(key, &quarters)));
            let ranges: Vec<_> = engine.disowned().into_iter().map(|progress| progress.range).collect();
            assert_eq!(ranges, [quarter(1), quarter(3)]);
            write_some(&mut world, &engine, 50, &quarters);
            engine.run_jobs().expect("jobs");
            world.check_all(&engine);
            drop(engine);
            world.disk = world.disk.crash(&mut Rng::new(seed));
            engine = world.open(&small_options());
        }
        let mut cursor = snapshot.cursor();
        engine::Cursor::seek_to_first(&mut cursor).expect("seek");
        for (key, cell) in before {
            let seen = engine::Cursor::entry(&cursor).map(|(key, cell)| (key.to_vec(), cell.to_cell()));
            assert_eq!(seen, Some((key, cell)), "the snapshot is older");
            engine::Cursor::advance(&mut cursor).expect("advance");
        }
    }
}

#[test]
fn a_purge_removes_every_cell_and_then_the_range_is_owned_again() {
    for seed in 0..5 {
        let mut world = World::new(seed);
        let engine = world.open(&small_options());
        write_some(&mut world, &engine, 400, &BTreeSet::new());
        engine.flush().expect("flush");
        engine.run_jobs().expect("jobs");
        let quarters = BTreeSet::from([2]);
        engine.disown(&[none_of(2)]).expect("disown");
        forget(&mut world, &quarters);
        let early = engine.own_again(&[all_of(2)]).expect_err("nothing is purged");
        assert_eq!(early.kind(), ErrorKind::Invalid, "{early}");
        let mut left = engine.disowned()[0].bytes_left;
        assert!(left > 0);
        let mut steps = 0;
        while left > 0 {
            engine.step_compaction(0, 2 << 10).expect("step");
            let now = engine.disowned()[0].bytes_left;
            assert!(now <= left || steps < 1, "{now} bytes are left after {left}");
            left = now;
            steps += 1;
            assert!(steps < 10_000, "{left} bytes stay");
        }
        world.check_all(&engine);
        engine.own_again(&[all_of(2)]).expect("all of it is gone");
        engine.own_again(&[all_of(2)]).expect("once more");
        assert_eq!(engine.disowned(), []);
        world.check_all(&engine);
        assert!(scan(&engine).keys().all(|key| !is_in(key, &quarters)), "nothing came back");
        drop(engine);
        assert_eq!(keys_on_disk(&world, &quarters), 0);
        let engine = world.open(&small_options());
        assert!(scan(&engine).keys().all(|key| !is_in(key, &quarters)), "nor from the log");
        write_some(&mut world, &engine, 200, &BTreeSet::new());
        engine.flush().expect("flush");
        engine.run_jobs().expect("jobs");
        world.check_all(&engine);
        assert!(scan(&engine).keys().any(|key| is_in(key, &quarters)), "it takes writes again");
    }
}

#[test]
fn a_purge_continues_after_restarts() {
    let options = Options { table_bytes: 1 << 10, ..small_options() };
    let mut world = World::new(20);
    let engine = world.open(&options);
    write_some(&mut world, &engine, 600, &BTreeSet::new());
    engine.flush().expect("flush");
    engine.run_jobs().expect("jobs");
    let quarters = BTreeSet::from([0]);
    engine.disown(&[none_of(0)]).expect("disown");
    forget(&mut world, &quarters);
    drop(engine);
    let mut left = u64::MAX;
    for round in 0.. {
        let engine = world.open(&options);
        world.check_all(&engine);
        let now = engine.disowned()[0].bytes_left;
        assert!(now < left, "{now} of {left} bytes are left in round {round}");
        left = now;
        if now == 0 {
            assert!(round > 2, "{round} rounds");
            engine.own_again(&[all_of(0)]).expect("purged");
            break;
        }
        // One table is rewritten.
        let before = engine.stats().jobs.compactions;
        while engine.stats().jobs.compactions == before {
            assert_eq!(engine.step_compaction(0, u64::MAX).expect("step"), Progress::Worked);
        }
    }
    assert_eq!(keys_on_disk(&world, &quarters), 0);
    assert!(scan(&world.open(&small_options())).keys().all(|key| !is_in(key, &quarters)));
}

#[test]
fn ranges_are_disjoint() {
    let world = World::new(30);
    let engine = world.open(&small_options());
    let range = |first, last| HashRange { first, last };
    let none = |first, last| OwnedRange::nothing_of(range(first, last));
    let all = |first, last| OwnedRange::all_of(range(first, last));
    engine.disown(&[none(10, 20)]).expect("disown");
    for invalid in [range(20, 30), range(0, 10), range(12, 13), range(0, u64::MAX), range(5, 4)] {
        assert_eq!(
            engine.disown(&[OwnedRange::nothing_of(invalid)]).expect_err("refused").kind(),
            ErrorKind::Invalid
        );
        assert_eq!(
            engine.disown(&[none(50, 60), OwnedRange::nothing_of(invalid)]).expect_err("refused").kind(),
            ErrorKind::Invalid
        );
    }
    assert_eq!(engine.disowned().len(), 1, "a refused call changes nothing");
    engine.disown(&[none(21, 30), none(0, 9), none(10, 20)]).expect("neighbours");
    assert_eq!(engine.disowned().len(), 3);
    engine.own_again(&[all(50, 60)]).expect("it was not disowned");
    engine.own_again(&[all(10, 20), all(0, 9), all(21, 30)]).expect("there are no cells");
    assert_eq!(engine.disowned(), []);
}

#[test]
fn an_ingest_brings_no_cell_of_a_disowned_range() {
    let mut world = World::new(31);
    let engine = world.open(&small_options());
    let value = Cell::value(world.next_version(), 1, "value".into());
    let keys: BTreeSet<Vec<u8>> = (0..KEYS).map(key_of).filter(|key| quarter_of(key).is_some()).collect();
    let mut ingest = engine.ingest(b"one", 0).expect("open");
    keys.iter().try_for_each(|key| ingest.push(key, value.as_ref())).expect("push");
    engine.disown(&[none_of(1)]).expect("disown");
    assert_eq!(ingest.commit(b"p").expect_err("begun before").kind(), ErrorKind::Invalid);
    assert_eq!(ingest.rewind(), None);
    let hidden = keys.iter().find(|key| quarter_of(key) == Some(1)).expect("a key");
    assert_eq!(ingest.push(hidden, value.as_ref()).expect_err("disowned").kind(), ErrorKind::Invalid);
    ingest.rewind();
    for key in keys.iter().filter(|key| quarter_of(key) != Some(1)) {
        ingest.push(key, value.as_ref()).expect("push");
    }
    ingest.commit(b"p").expect("commit");
    drop(ingest);
    engine.run_jobs().expect("jobs");
    engine.own_again(&[all_of(1)]).expect("no cell is left");
    assert_eq!(scan(&engine).len(), keys.iter().filter(|key| quarter_of(key) != Some(1)).count());
}

#[test]
fn a_checkpoint_has_the_disowned_ranges() {
    let mut world = World::new(32);
    let engine = world.open(&small_options());
    write_some(&mut world, &engine, 300, &BTreeSet::new());
    engine.flush().expect("flush");
    engine.disown(&[none_of(1)]).expect("disown");
    let quarters = BTreeSet::from([1]);
    forget(&mut world, &quarters);
    let dir = Path::new("/data/checkpoint");
    engine.checkpoint(dir).expect("checkpoint");
    let (copy, _) = Engine::open(world.env(), dir, small_options()).expect("open");
    world.check_all(&copy);
    copy.run_jobs().expect("jobs");
    copy.own_again(&[all_of(1)]).expect("purged in the copy");
    assert!(scan(&copy).keys().all(|key| !is_in(key, &quarters)));
    assert_eq!(engine.disowned().len(), 1);
}

/// A random run with a model.
struct Run {
    world: World,
    disowned: BTreeSet<u64>,
    /// A quarter whose change is in doubt.
    in_doubt: Option<u64>,
}

impl Run {
    fn operate(&mut self, engine: &Engine) -> Result<(), Error> {
        match self.world.rng.below(20) {
            0..9 => {
                let write = random_write(&mut self.world, &self.disowned);
                let written = engine.write(batch_of([&write]));
                match written {
                    Ok(_) => self.world.acknowledge(&write.0, &write.1),
                    Err(Error::Poisoned { .. }) => self.world.model.retain(|key, _| *key != write.0),
                    Err(_) => {}
                }
                written.map(drop)
            }
            9 => {
                let number = self.world.rng.below(4);
                let disowned = engine.disown(&[none_of(number)]);
                match disowned {
                    Ok(()) => {
                        self.disowned.insert(number);
                        forget(&mut self.world, &BTreeSet::from([number]));
                    }
                    Err(Error::Full { .. } | Error::Exhausted { .. }) => {}
                    Err(_) => self.in_doubt = Some(number),
                }
                disowned
            }
            10..12 => {
                let number = self.world.rng.below(4);
                match engine.own_again(&[all_of(number)]) {
                    Ok(()) => drop(self.disowned.remove(&number)),
                    Err(Error::Invalid(_)) => {}
                    Err(error @ (Error::Full { .. } | Error::Exhausted { .. })) => return Err(error),
                    Err(error) => {
                        self.in_doubt = Some(number);
                        return Err(error);
                    }
                }
                Ok(())
            }
            12 => {
                self.world.clock.advance(Duration::from_secs(self.world.rng.below(10)));
                engine.step_idle()
            }
            13..18 => self.world.step_something(engine),
            18 => engine.flush(),
            _ => engine.run_jobs(),
        }
    }
}

#[test]
fn reads_agree_with_the_model_under_any_options() {
    let mut rng = Rng::new(3);
    for seed in 0..25 {
        let options = if seed < 10 { small_options() } else { random_options(&mut rng) };
        let options = Options { local_keys_end: Some(LOCAL_END.to_vec()), ..options };
        println!("seed {seed}, {options:?}");
        let mut run = Run { world: World::new(seed), disowned: BTreeSet::new(), in_doubt: None };
        let mut engine = run.world.open(&options);
        let mut owned_again = 0;
        for operation in 0..700 {
            let before = run.disowned.len();
            run.operate(&engine).expect("an operation");
            owned_again += usize::from(run.disowned.len() < before);
            if operation % 50 == 49 {
                run.world.check_all(&engine);
            }
            if operation % 120 == 119 {
                drop(engine);
                run.world.disk = run.world.disk.kill();
                engine = run.world.open(&options);
                run.world.check_all(&engine);
            }
        }
        assert!(seed >= 10 || owned_again > 0, "no range was owned again");
    }
}

fn run_with(seed: u64, plan: FaultPlan) -> (Run, u64) {
    let world = World::new(seed);
    let faults = FaultFs::new(Arc::new(world.disk.clone()), plan);
    let env = world.env_over(Arc::new(faults.clone()));
    let mut run = Run { world, disowned: BTreeSet::new(), in_doubt: None };
    let options = Options { memtable_bytes: Some(4 << 10), wal_segment_bytes: 16 << 10, ..small_options() };
    if let Ok((engine, _)) = Engine::open(env, Path::new(DIR), options) {
        for _ in 0..80 {
            match run.operate(&engine) {
                Ok(()) | Err(Error::Full { .. } | Error::Exhausted { .. } | Error::Overloaded { .. }) => {}
                Err(_) => break,
            }
        }
    }
    (run, faults.operations())
}

fn check_recovered(mut run: Run, disk: &MemFs) {
    let mut world = run.world.beside(disk.clone());
    let engine = world.open(&small_options());
    let found: BTreeSet<u64> = engine.disowned().iter().map(|progress| progress.range.first >> 62).collect();
    if let Some(number) = run.in_doubt.take() {
        if found.contains(&number) {
            run.disowned.insert(number);
            forget(&mut world, &BTreeSet::from([number]));
        } else {
            run.disowned.remove(&number);
        }
    }
    assert_eq!(found, run.disowned);
    let seen = scan(&engine);
    assert!(seen.keys().all(|key| !is_in(key, &found)));
    for key in world.model.keys() {
        world.check_key(&engine, key);
    }
    // Everything that is purged stays away.
    engine.flush().expect("flush");
    engine.run_jobs().expect("jobs");
    for number in found {
        engine.own_again(&[all_of(number)]).expect("purged");
        assert!(scan(&engine).keys().all(|key| quarter_of(key) != Some(number)));
    }
    drop(engine);
    world.disk = disk.crash(&mut Rng::new(1));
    let engine = world.open(&small_options());
    assert_eq!(engine.disowned(), []);
    let again: BTreeSet<_> = scan(&engine).into_keys().collect();
    assert!(again.is_subset(&seen.into_keys().collect()), "a key came back");
}

#[test]
fn a_stop_at_any_operation_keeps_disowned_keys_away() {
    for seed in 40..43 {
        let (_, operations) = run_with(seed, FaultPlan::none());
        for operation in 0..operations {
            println!("seed {seed}, stopped at operation {operation}");
            let (run, _) = run_with(seed, FaultPlan::stop_after(operation));
            let disk = match operation % 3 {
                0 => run.world.disk.kill(),
                _ => run.world.disk.crash(&mut Rng::new(operation)),
            };
            check_recovered(run, &disk);
        }
    }
}

#[test]
fn a_full_disk_at_any_operation_keeps_disowned_keys_away() {
    for seed in 50..52 {
        let (_, operations) = run_with(seed, FaultPlan::none());
        for operation in 0..operations {
            println!("seed {seed}, full at operation {operation}");
            let full = Fault::Error(std::io::ErrorKind::StorageFull);
            let plan = FaultPlan::on_operation(move |call| {
                let writes = matches!(
                    call.kind,
                    OperationKind::Write | OperationKind::SetLen | OperationKind::SyncData
                );
                (writes && call.number == operation).then(|| full.clone())
            });
            let (run, _) = run_with(seed, plan);
            let disk = run.world.disk.crash(&mut Rng::new(operation));
            check_recovered(run, &disk);
        }
    }
}
