//! Exhausted file descriptors: reads, writes and jobs fail for a moment, and nothing is lost or
//! stopped. Table files use no more descriptors than their limit.

mod support;

use engine::{Engine, Error, ErrorKind, Options};
use env::{Fault, FaultFs, FaultPlan, OperationKind, OsFs};
use std::path::Path;
use std::sync::Arc;
use stdx::Rng;
use support::{DIR, World, batch_of, key_of, small_options};

const KEYS: u64 = 200;

/// More tables than may be open, and a log that needs a new segment every few writes.
fn options() -> Options {
    Options {
        table_files_max: 3,
        table_bytes: 2 << 10,
        memtable_bytes: Some(4 << 10),
        wal_segment_bytes: 4 << 10,
        ..small_options()
    }
}

/// Makes a fraction of the calls that open a file fail.
fn without_descriptors(seed: u64, errno: i32, part: f64) -> FaultPlan {
    FaultPlan::on_operation(move |operation| {
        let opens =
            matches!(operation.kind, OperationKind::Open | OperationKind::SyncDir | OperationKind::ReadDir);
        let fails = opens && Rng::new(seed ^ operation.number).chance(part);
        // The system opens a directory to sync it. Lack of memory for that is reported like any
        // error of the sync.
        let errno = if operation.kind == OperationKind::SyncDir { libc::EMFILE } else { errno };
        fails.then(|| Fault::Errno(errno))
    })
}

fn is_a_moment(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Retry | ErrorKind::Full)
}

fn write(engine: &Engine, world: &mut World) -> Result<(), Error> {
    let (key, cell) = world.random_write(KEYS);
    engine.write(batch_of([&(key.clone(), cell.clone())]))?;
    world.acknowledge(&key, &cell);
    Ok(())
}

#[test]
fn an_engine_without_descriptors_continues_and_loses_no_write() {
    let (mut refused_reads, mut refused_writes, mut refused_jobs) = (0, 0, 0);
    for (seed, errno) in [libc::EMFILE, libc::ENFILE, libc::ENOMEM].into_iter().enumerate() {
        let mut world = World::new(seed as u64);
        let faults = FaultFs::new(Arc::new(world.disk.clone()), FaultPlan::none());
        let env = world.env_over(Arc::new(faults.clone()));
        let (engine, _) = Engine::open(env, Path::new(DIR), options()).expect("it opens");
        for round in 0..20 {
            faults.clear();
            for _ in 0..20 {
                write(&engine, &mut world).expect("there are descriptors");
            }
            engine.flush().expect("there are descriptors");
            let part = if round % 4 == 3 { 1.0 } else { 0.5 };
            faults.set_plan(without_descriptors(round, errno, part));
            for number in 0..60 {
                let key = key_of(number * KEYS / 60);
                match engine.get(&key) {
                    Ok(seen) => assert!(world.agrees(world.model.get(&key), seen.as_ref()), "{seen:?}"),
                    Err(error) => {
                        assert!(is_a_moment(&error), "{error}");
                        refused_reads += 1;
                    }
                }
                if let Err(error) = write(&engine, &mut world) {
                    assert!(is_a_moment(&error), "{error}");
                    refused_writes += 1;
                }
                if let Err(error) = world.step_something(&engine) {
                    assert!(is_a_moment(&error), "{error}");
                    refused_jobs += 1;
                }
            }
        }
        assert_eq!(engine.poison(), None);
        faults.clear();
        engine.flush().expect("flush");
        engine.run_jobs().expect("jobs");
        world.check_all(&engine);
        assert!(engine.stats().levels.iter().map(|level| level.tables).sum::<usize>() > 3);
        drop(engine);
        world.check_all(&world.open(&options()));
    }
    assert!(
        refused_reads > 20 && refused_writes > 20 && refused_jobs > 20,
        "{refused_reads} reads, {refused_writes} writes, {refused_jobs} jobs were refused"
    );
}

/// Number of tables below `dir` that this process has open.
fn open_tables(dir: &Path) -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("list");
    let targets = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let is_table = |path: &Path| path.starts_with(dir) && path.extension().is_some_and(|it| it == "sst");
    targets.filter(|path| is_table(path)).count()
}

#[test]
fn a_bounded_number_of_table_files_is_open_however_many_are_read() {
    let root = tempfile::tempdir().expect("a directory");
    let dir = root.path().canonicalize().expect("a path").join("data");
    let mut world = World::new(4);
    let options = options();
    let (engine, _) =
        Engine::open(world.env_over(Arc::new(OsFs::new())), &dir, options.clone()).expect("open");
    for _ in 0..20 {
        for _ in 0..20 {
            write(&engine, &mut world).expect("write");
        }
        engine.flush().expect("flush");
        engine.run_jobs().expect("jobs");
        world.check_all(&engine);
        assert!(open_tables(&dir) <= options.table_files_max, "{} are open", open_tables(&dir));
    }
    let tables: usize = engine.stats().levels.iter().map(|level| level.tables).sum();
    assert!(tables > 2 * options.table_files_max, "{tables} tables are few");
    assert!(open_tables(&dir) > 0, "some stay open");
}
