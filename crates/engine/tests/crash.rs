//! Process crashes, power loss, full disks and I/O errors at each file operation of a run.
//!
//! Afterwards every acknowledged write is present, a batch is present completely or not at all, no
//! cell that was read is gone, and the engine continues. Each run is determined by one seed; it
//! prints its operations and the point at which it was stopped.
//!
//! The environment variable `SEED` names the first seed: `SEED=7 cargo test -p engine --test
//! crash`.

mod support;

use engine::{Engine, Error, Options};
use env::{Fault, FaultFs, FaultPlan, MemFs, OperationKind, OperationMatch};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Cell, Rng};
use support::{DIR, World, batch_of, key_of, small_options};

const KEYS: u64 = 30;
const OPERATIONS: u64 = 90;

type Writes = Vec<(Vec<u8>, Cell)>;

/// The end of a run.
struct Ended {
    world: World,
    /// Batches whose fate is unknown: neither acknowledged nor refused for lack of space.
    in_doubt: Vec<Writes>,
    /// Batches that were refused for lack of space: they must never be visible.
    refused: Vec<Writes>,
    operations: u64,
}

fn options() -> Options {
    Options { memtable_bytes: Some(4 << 10), wal_segment_bytes: 16 << 10, ..small_options() }
}

/// Runs the operations of `seed` on a disk with the faults of `plan`, until the engine stops or all
/// are done.
fn run(seed: u64, plan: FaultPlan) -> Ended {
    let mut world = World::new(seed);
    let faults = FaultFs::new(Arc::new(world.disk.clone()), plan);
    let mut ended = Ended { in_doubt: Vec::new(), refused: Vec::new(), operations: 0, world: World::new(0) };
    let env = world.env_over(Arc::new(faults.clone()));
    if let Ok((engine, _)) = Engine::open(env, Path::new(DIR), options()) {
        for _ in 0..OPERATIONS {
            if !operate(&engine, &mut world, &mut ended) {
                break;
            }
        }
        // Not closed: a crash comes without notice.
    }
    ended.operations = faults.operations();
    ended.world = world;
    ended
}

/// Makes one random operation. Returns `false` when the engine has stopped.
fn operate(engine: &Engine, world: &mut World, ended: &mut Ended) -> bool {
    let done = match world.rng.below(10) {
        0..6 => write(engine, world, ended),
        6 => check_some_key(engine, world),
        7 => {
            world.clock.advance(Duration::from_secs(world.rng.below(10)));
            engine.step_idle()
        }
        8 => world.step_something(engine),
        _ => engine.flush().and_then(|()| engine.run_jobs()),
    };
    match done {
        Ok(()) => true,
        Err(Error::Full { .. } | Error::Overloaded { .. }) => true,
        Err(_) => false,
    }
}

fn write(engine: &Engine, world: &mut World, ended: &mut Ended) -> Result<(), Error> {
    let count = 1 + world.rng.below(4);
    let mut writes: BTreeMap<Vec<u8>, Cell> = BTreeMap::new();
    let version = world.next_version();
    for _ in 0..count {
        let (key, mut cell) = world.random_write(KEYS);
        cell.meta.version = version;
        writes.insert(key, cell);
    }
    let writes: Writes = writes.into_iter().collect();
    match engine.write(batch_of(&writes)) {
        Ok(_) => {
            for (key, cell) in &writes {
                world.acknowledge(key, cell);
            }
            Ok(())
        }
        Err(error) => {
            match error {
                Error::Full { .. } | Error::Overloaded { .. } => ended.refused.push(writes.clone()),
                _ => {
                    println!("in doubt after: {error}");
                    ended.in_doubt.push(writes.clone());
                }
            }
            for (key, _) in &writes {
                let Ok(seen) = engine.get(key) else { break };
                assert!(
                    world.agrees(world.model.get(key), seen.as_ref()),
                    "a failed write is seen: {seen:?}"
                );
            }
            Err(error)
        }
    }
}

fn check_some_key(engine: &Engine, world: &mut World) -> Result<(), Error> {
    let key = key_of(world.rng.below(KEYS));
    let seen = engine.get(&key)?;
    assert!(world.agrees(world.model.get(&key), seen.as_ref()), "{:?}: {seen:?}", key.escape_ascii());
    Ok(())
}

/// Checks that the disk holds all acknowledged writes, and each batch in doubt completely or not at
/// all.
fn check_recovered(ended: &mut Ended, disk: &MemFs) {
    let mut world = World::on(disk.clone(), 1);
    world.clock = Arc::clone(&ended.world.clock);
    world.model = ended.world.model.clone();
    let engine = world.open(&options());
    for writes in &ended.in_doubt {
        let there = writes.iter().filter(|(key, cell)| {
            let seen = engine.get(key).expect("get");
            seen.is_some_and(|seen| seen == *cell || seen.meta.version == cell.meta.version)
        });
        let count = there.count();
        assert!(count == 0 || count == writes.len(), "half a batch: {count} of {writes:?}");
        if count > 0 {
            for (key, cell) in writes {
                world.acknowledge(key, cell);
            }
        }
    }
    for (key, cell) in ended.refused.iter().flatten() {
        let seen = engine.get(key).expect("get");
        assert!(
            seen.is_none_or(|seen| seen.meta.version != cell.meta.version),
            "a refused write is there: {cell:?}"
        );
    }
    world.check_all(&engine);

    // The engine continues, and its visible state survives the next crash.
    let version = ended.world.next_version();
    let next = (b"key-000".to_vec(), Cell::value(version, 1, "after".into()));
    engine.write(batch_of([&next])).expect("a recovered engine takes writes");
    world.acknowledge(&next.0, &next.1);
    world.disk = disk.crash(&mut Rng::new(version.hlc.to_bits()));
    drop(engine);
    let engine = world.open(&options());
    world.check_all(&engine);
    engine.flush().expect("flush");
    engine.run_jobs().expect("jobs");
    world.check_all(&engine);
}

/// The seeds `from..to`, counted from the first seed, which the environment names. Prints the
/// command that repeats them.
fn seeds(range: Range<u64>) -> Range<u64> {
    let first = std::env::var("SEED").ok().and_then(|seed| seed.parse::<u64>().ok()).unwrap_or(0);
    println!("replay: SEED={first} cargo test -p engine --test crash");
    first + range.start..first + range.end
}

/// Number of file operations in the run of `seed` without faults.
fn operations_of(seed: u64) -> u64 {
    run(seed, FaultPlan::none()).operations
}

#[test]
fn a_stop_at_any_operation_loses_nothing_acknowledged() {
    for seed in seeds(0..3) {
        for operation in 0..operations_of(seed) {
            let mut ended = run(seed, FaultPlan::stop_after(operation));
            let how = (seed + operation) % 4;
            println!("seed {seed}, stopped at operation {operation}, end {how}");
            let mut rng = Rng::new(operation);
            let disk = ended.world.disk.clone();
            let disk = match how {
                0 => disk.kill(),
                1 => disk.kill().crash(&mut rng),
                _ => disk.crash(&mut rng),
            };
            check_recovered(&mut ended, &disk);
        }
    }
}

#[test]
fn a_write_torn_at_any_operation_loses_nothing_acknowledged() {
    for seed in seeds(10..12) {
        for operation in 0..operations_of(seed) {
            let mut ended = run(seed, FaultPlan::stop_after(operation).tear_last_write());
            println!("seed {seed}, torn at operation {operation}");
            let disk = ended.world.disk.kill();
            let disk = if operation % 2 == 0 { disk } else { disk.crash(&mut Rng::new(operation)) };
            check_recovered(&mut ended, &disk);
        }
    }
}

#[test]
fn a_crash_during_recovery_loses_nothing_either() {
    for seed in seeds(20..23) {
        let total = operations_of(seed);
        let ended = run(seed, FaultPlan::stop_after(total * 2 / 3));
        let crashed = ended.world.disk.crash(&mut Rng::new(seed));
        for operation in 0.. {
            let again = crashed.kill();
            let faults = FaultFs::new(Arc::new(again.clone()), FaultPlan::stop_after(operation));
            let env = ended.world.env_over(Arc::new(faults));
            let opened = Engine::open(env, Path::new(DIR), options());
            println!("seed {seed}, recovery stopped at operation {operation}");
            let mut ended = run(seed, FaultPlan::stop_after(total * 2 / 3));
            let all_done = opened.is_ok();
            drop(opened);
            check_recovered(&mut ended, &again.crash(&mut Rng::new(operation)));
            if all_done {
                break;
            }
        }
    }
}

/// Runs `seed` with the disk full for `calls` writing calls, beginning at each operation in turn.
fn fill_disk(seed: u64, calls: u64, check: impl Fn(&Ended)) {
    for operation in 0..operations_of(seed) {
        let full = Fault::Error(std::io::ErrorKind::StorageFull);
        let plan = FaultPlan::on_operation(move |call| {
            let writes =
                matches!(call.kind, OperationKind::Write | OperationKind::SetLen | OperationKind::SyncData);
            (writes && (operation..operation + calls).contains(&call.number)).then(|| full.clone())
        });
        let mut ended = run(seed, plan);
        println!("seed {seed}, full from operation {operation} for {calls}");
        check(&ended);
        let disk = ended.world.disk.kill();
        let disk = if operation % 2 == 0 { disk } else { disk.crash(&mut Rng::new(operation)) };
        check_recovered(&mut ended, &disk);
    }
}

#[test]
fn a_full_disk_at_any_operation_refuses_the_write_and_the_log_continues() {
    for seed in seeds(30..32) {
        fill_disk(seed, 1, |ended| {
            assert!(ended.in_doubt.is_empty(), "a full disk leaves no write in doubt");
        });
    }
}

/// When a group can neither be finished nor removed, the engine stops, and loses no data.
#[test]
fn a_disk_that_stays_full_loses_nothing_acknowledged() {
    for (seed, calls) in seeds(32..34).zip([3, 20]) {
        fill_disk(seed, calls, |_| {});
    }
}

#[test]
fn a_failed_sync_stops_the_engine_and_loses_nothing_acknowledged() {
    let mut stopped = 0;
    for seed in seeds(40..42) {
        for nth in 0..60 {
            let plan =
                FaultPlan::fail(OperationMatch::kind(OperationKind::SyncData).after(nth), Fault::DeviceError);
            let mut ended = run(seed, plan);
            println!("seed {seed}, sync {nth} failed");
            stopped += u64::from(!ended.in_doubt.is_empty());
            let disk = ended.world.disk.crash(&mut Rng::new(nth));
            check_recovered(&mut ended, &disk);
        }
    }
    assert!(stopped > 10, "a failed sync of the log leaves writes in doubt: {stopped}");
}

const ERRNOS: [i32; 6] = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EIO, libc::ENOSPC, libc::EDQUOT];

/// The ways in which a system call can fail.
fn errors(seed: u64) -> impl Iterator<Item = Fault> {
    ERRNOS.into_iter().flat_map(move |errno| {
        let short = Fault::ShortWrite { bytes: Rng::new(seed).below(2_000) as usize, errno };
        let lose = Fault::LoseUnsynced { errno, seed };
        [Fault::Errno(errno), Fault::ErrnoAfterEffect(errno), short, lose]
    })
}

/// Whether a fault affects this kind of call.
fn applies(fault: &Fault, kind: OperationKind) -> bool {
    use OperationKind::{
        FinishWriteback, Link, Open, Remove, Rename, SetLen, StartWriteback, SyncData, SyncDir, Write,
    };
    match fault {
        Fault::ShortWrite { .. } => kind == Write,
        Fault::LoseUnsynced { .. } => matches!(kind, SyncData | StartWriteback | FinishWriteback),
        _ => matches!(kind, Open | Write | SetLen | SyncData | SyncDir | Rename | Link | Remove),
    }
}

/// Each call fails in every way, including failed syncs that drop data. The engine continues or
/// stops; no acknowledged write is lost, however the process ends, and the directory opens.
#[test]
fn no_error_of_any_operation_loses_an_acknowledged_write() {
    for seed in seeds(50..51) {
        for operation in 0..operations_of(seed) {
            // A subset of the faults for each operation: the same calls recur.
            let faults = errors(seed << 32 | operation).enumerate();
            for (nth, fault) in faults.skip(operation as usize % 5).step_by(5) {
                let how = format!("seed {seed}, {fault:?} at operation {operation}");
                let hit = Arc::new(std::sync::atomic::AtomicBool::new(false));
                let hits = Arc::clone(&hit);
                let plan = FaultPlan::on_operation(move |call| {
                    let applies = call.number == operation && applies(&fault, call.kind);
                    hits.fetch_or(applies, std::sync::atomic::Ordering::Relaxed);
                    applies.then(|| fault.clone())
                });
                let mut ended = run(seed, plan);
                if !hit.load(std::sync::atomic::Ordering::Relaxed) {
                    continue;
                }
                println!("{how}");
                let disk = ended.world.disk.kill();
                let disk = match (operation + nth as u64) % 3 {
                    0 => disk,
                    1 => {
                        disk.evict();
                        disk
                    }
                    _ => disk.crash(&mut Rng::new(operation)),
                };
                check_recovered(&mut ended, &disk);
            }
        }
    }
}
