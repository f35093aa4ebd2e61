//! A checkpoint opens as an engine with the writes acknowledged before it, under any concurrent
//! events.

mod support;

use engine::{Engine, Error, verify};
use env::{Env, Fault, FaultFs, FaultPlan, Fs, MemFs, OpenMode, OperationKind, OperationMatch, OsFs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stdx::{Cell, Hlc, NodeTag, Rng, Version};
use support::{DIR, World, batch_of, scan, small_options};

const KEYS: u64 = 60;
/// Directory of the checkpoints in these tests.
const CHECKPOINT: &str = "/data/checkpoints/one/shard-000";

/// Writes and steps jobs until there are tables on several levels, and cells in memtables.
fn fill(world: &mut World, engine: &Engine, writes: u64) {
    for _ in 0..writes {
        let write = world.random_write(KEYS);
        engine.write(batch_of([&write])).expect("write");
        world.acknowledge(&write.0, &write.1);
        world.step_something(engine).expect("step");
    }
}

fn open_at(env: Env, dir: &str) -> Result<Engine, Error> {
    Engine::open(env, Path::new(dir), small_options()).map(|(engine, _)| engine)
}

#[test]
fn it_equals_its_source_at_its_moment_and_both_go_on() {
    for seed in 0..10 {
        println!("seed {seed}");
        let mut world = World::new(seed);
        let engine = world.open(&small_options());
        fill(&mut world, &engine, 400);
        let summary = engine.checkpoint(Path::new(CHECKPOINT)).expect("checkpoint");
        let mut of_checkpoint = world.beside(world.disk.clone());

        let verified = verify(&world.env(), Path::new(CHECKPOINT), None, &mut |_| ()).expect("verify");
        assert_eq!((verified.tables, verified.table_bytes), (summary.tables.len(), summary.bytes));
        assert_eq!((verified.cells, verified.wal_records), (summary.cells, 0));
        for table in &summary.tables {
            let path = Path::new(CHECKPOINT).join("tables").join(&table.file_name);
            assert_eq!(world.disk.read_file(path).expect("read").len() as u64, table.file_bytes);
        }

        // The source continues; the checkpoint does not change, even when everything is merged.
        fill(&mut world, &engine, 200);
        engine.flush().expect("flush");
        engine.run_jobs().expect("jobs");
        let restored = open_at(world.env(), CHECKPOINT).expect("open");
        of_checkpoint.check_all(&restored);

        // Nor does the restored engine change the source.
        fill(&mut of_checkpoint, &restored, 200);
        restored.flush().expect("flush");
        restored.run_jobs().expect("jobs");
        of_checkpoint.check_all(&restored);
        drop(restored);
        of_checkpoint.check_all(&open_at(world.env(), CHECKPOINT).expect("open again"));
        world.check_all(&engine);
        drop(engine);
        world.check_all(&world.open(&small_options()));
    }
}

#[test]
fn an_empty_engine_has_an_empty_checkpoint() {
    let world = World::new(1);
    let engine = world.open(&small_options());
    let summary = engine.checkpoint(Path::new(CHECKPOINT)).expect("checkpoint");
    assert_eq!((summary.tables.len(), summary.bytes, summary.cells), (0, 0, 0));
    verify(&world.env(), Path::new(CHECKPOINT), None, &mut |_| ()).expect("verify");
    assert!(scan(&open_at(world.env(), CHECKPOINT).expect("open")).is_empty());
}

#[test]
fn a_real_file_system_has_one_too() {
    let root = tempfile::tempdir().expect("a directory");
    let (source, dir) = (root.path().join("source"), root.path().join("checkpoints/one"));
    let mut world = World::new(9);
    let env = world.env_over(Arc::new(OsFs::new()));
    let (engine, _) = Engine::open(env.clone(), &source, small_options()).expect("open");
    fill(&mut world, &engine, 100);
    engine.checkpoint(&dir).expect("checkpoint");
    verify(&env, &dir, None, &mut |_| ()).expect("verify");
    let (restored, _) = Engine::open(env, &dir, small_options()).expect("open the checkpoint");
    world.check_all(&restored);
    restored.flush().and_then(|()| restored.run_jobs()).expect("jobs");
    world.check_all(&engine);
    let names = std::fs::read_dir(root.path().join("checkpoints")).expect("list").count();
    assert_eq!(names, 1, "nothing unfinished is left");
}

#[test]
fn a_directory_that_is_there_is_refused_and_left_alone() {
    let mut world = World::new(2);
    let engine = world.open(&small_options());
    fill(&mut world, &engine, 50);
    engine.checkpoint(Path::new(CHECKPOINT)).expect("checkpoint");
    fill(&mut world, &engine, 50);
    let before = image(&world.disk);
    let refused = engine.checkpoint(Path::new(CHECKPOINT));
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert!(matches!(engine.checkpoint(Path::new(DIR)), Err(Error::Invalid(_))));
    assert_eq!(image(&world.disk), before);
}

/// All files below the checkpoint.
fn image(disk: &MemFs) -> Vec<(PathBuf, Vec<u8>)> {
    let files = disk.file_names().into_iter().filter(|path| path.starts_with(CHECKPOINT));
    files.map(|path| (path.clone(), disk.read_file(path).expect("read"))).collect()
}

#[test]
fn another_file_system_is_named_as_the_reason() {
    let mut world = World::new(3);
    let plan = FaultPlan::fail(
        OperationMatch::kind(OperationKind::Link),
        Fault::Error(std::io::ErrorKind::CrossesDevices),
    );
    let faults = FaultFs::new(Arc::new(world.disk.clone()), plan);
    let engine = open_at(world.env_over(Arc::new(faults)), DIR).expect("open");
    fill(&mut world, &engine, 20);
    let error = engine.checkpoint(Path::new(CHECKPOINT)).expect_err("links do not cross file systems");
    assert!(matches!(&error, Error::Invalid(reason) if reason.contains("another file system")), "{error}");
    world.check_all(&engine);
}

/// Runs up to the checkpoint, with `faults` from there on.
fn checkpoint_with(seed: u64, faults: impl FnOnce(u64) -> FaultPlan) -> (World, Engine, FaultFs, bool) {
    let mut world = World::new(seed);
    let fs = FaultFs::new(Arc::new(world.disk.clone()), FaultPlan::none());
    let engine = open_at(world.env_over(Arc::new(fs.clone())), DIR).expect("open");
    fill(&mut world, &engine, 60);
    fs.set_plan(faults(fs.operations()));
    let done = engine.checkpoint(Path::new(CHECKPOINT)).is_ok();
    (world, engine, fs, done)
}

/// Checks the checkpoint, if it exists. Returns whether it does.
fn check_if_there(world: &World) -> bool {
    let is_there = world.disk.exists(Path::new(CHECKPOINT)).expect("exists");
    if is_there {
        verify(&world.env(), Path::new(CHECKPOINT), None, &mut |_| ()).expect("what is there is whole");
        world.check_all(&open_at(world.env(), CHECKPOINT).expect("what is there opens"));
    }
    is_there
}

#[test]
fn a_crash_at_any_operation_leaves_the_source_whole_and_the_checkpoint_whole_or_absent() {
    let (mut there, mut absent) = (0, 0);
    for seed in 0..4 {
        for operation in 0.. {
            let (mut world, engine, _, done) =
                checkpoint_with(seed, |begun| FaultPlan::stop_after(begun + operation));
            drop(engine);
            println!("seed {seed}, stopped at operation {operation}, done: {done}");
            let mut rng = Rng::new(seed ^ operation);
            world.disk = if rng.chance(0.3) { world.disk.kill() } else { world.disk.crash(&mut rng) };
            let is_there = check_if_there(&world);
            assert!(is_there || !done, "what was acknowledged is durable");
            (there, absent) = (there + u64::from(is_there), absent + u64::from(!is_there));

            let engine = world.open(&small_options());
            world.check_all(&engine);
            if !is_there {
                engine.checkpoint(Path::new(CHECKPOINT)).expect("it can be made again");
                assert!(check_if_there(&world));
            }
            if done {
                break;
            }
        }
    }
    assert!(there > 4 && absent > 40, "{there} were there, {absent} were not");
}

#[test]
fn a_failed_operation_leaves_no_files_and_the_engine_continues() {
    for fault in [Fault::DeviceError, Fault::Error(std::io::ErrorKind::StorageFull)] {
        for operation in 0.. {
            let below = OperationMatch::any().path("checkpoints").after(operation);
            let (mut world, engine, fs, done) = checkpoint_with(7, |_| FaultPlan::fail(below, fault.clone()));
            println!("{fault:?} at operation {operation}, done: {done}");
            fs.clear();
            if done {
                assert!(operation > 20, "each operation failed once");
                break;
            }
            let left = world.disk.file_names();
            assert!(left.iter().all(|path| !path.starts_with("/data/checkpoints")), "{left:?}");
            assert_eq!(engine.poison(), None);
            engine.step_upkeep(1).expect("upkeep");
            fill(&mut world, &engine, 20);
            engine.checkpoint(Path::new(CHECKPOINT)).expect("it can be made again");
            assert!(check_if_there(&world));
        }
    }
}

#[test]
fn tables_that_are_merged_away_in_the_middle_are_in_it_all_the_same() {
    let mut world = World::new(8);
    let fs = FaultFs::new(Arc::new(world.disk.clone()), FaultPlan::none());
    let engine = open_at(world.env_over(Arc::new(fs.clone())), DIR).expect("open");
    fill(&mut world, &engine, 100);
    // First the greatest possible number of tables, unmerged; then all are merged before the first
    // link.
    for _ in 0..2 {
        fill(&mut world, &engine, 5);
        engine.flush().expect("flush");
    }
    let (merging, links) = (engine.clone(), AtomicU64::new(0));
    fs.set_plan(FaultPlan::on_operation(move |operation| {
        if operation.kind == OperationKind::Link && links.fetch_add(1, Ordering::Relaxed) == 0 {
            merging.run_jobs().expect("jobs");
        }
        None
    }));
    let compactions = engine.stats().jobs.compactions;
    let summary = engine.checkpoint(Path::new(CHECKPOINT)).expect("checkpoint");
    fs.clear();
    assert!(engine.stats().jobs.compactions > compactions, "nothing was merged meanwhile");
    assert!(check_if_there(&world));
    // The tables pinned for the checkpoint are removed now, and only now.
    engine.run_jobs().expect("jobs");
    let live = world.disk.read_dir(&Path::new(DIR).join("tables")).expect("list");
    assert_eq!(live.len(), engine.stats().levels.iter().map(|level| level.tables).sum::<usize>());
    assert!(summary.tables.iter().any(|table| !live.contains(&table.file_name)));
    assert!(check_if_there(&world));
}

#[test]
fn reclaiming_a_checkpoint_takes_only_the_tables_that_no_other_name_has() {
    let mut world = World::new(10);
    let engine = world.open(&small_options());
    fill(&mut world, &engine, 100);
    let other = "/data/checkpoints/other/shard-000";
    for dir in [CHECKPOINT, other] {
        engine.checkpoint(Path::new(dir)).expect("checkpoint");
    }
    let tables_of = |dir: &str| world.disk.read_dir(&Path::new(dir).join("tables")).expect("list");
    let names = tables_of(CHECKPOINT);
    engine.reclaim_checkpoint(Path::new(CHECKPOINT));
    assert_eq!(tables_of(CHECKPOINT), names, "the engine has them all, or the other checkpoint");
    let disk: &dyn Fs = &world.disk;
    disk.remove_dir_all(Path::new(other)).expect("remove");

    fill(&mut world, &engine, 200);
    engine.flush().expect("flush");
    engine.run_jobs().expect("jobs");
    let tables_of = |dir: &str| world.disk.read_dir(&Path::new(dir).join("tables")).expect("list");
    let live = tables_of(DIR);
    let merged_away = names.iter().filter(|name| !live.contains(name)).count();
    assert!(merged_away > 0);
    engine.reclaim_checkpoint(Path::new(CHECKPOINT));
    assert_eq!(tables_of(DIR).len(), live.len() + merged_away);
    assert!(tables_of(CHECKPOINT).iter().all(|name| live.contains(name)), "what is left is the engine's too");
    engine.run_jobs().expect("jobs");
    assert_eq!(tables_of(DIR), live);
    world.check_all(&engine);
    drop(engine);
    world.check_all(&world.open(&small_options()));
}

/// A process that copies a removed checkpoint gets whole files.
#[test]
fn a_file_that_was_in_a_checkpoint_is_never_cut_under_a_reader() {
    for is_taken_back in [true, false] {
        let mut world = World::new(11);
        let engine = world.open(&small_options());
        fill(&mut world, &engine, 100);
        let summary = engine.checkpoint(Path::new(CHECKPOINT)).expect("checkpoint");
        let path = |name: &str| Path::new(CHECKPOINT).join("tables").join(name);
        let open = |name| world.disk.open(&path(name), OpenMode::Read).expect("open");
        let copied: Vec<_> = summary.tables.iter().map(|table| (open(&table.file_name), table)).collect();
        let remove = |world: &World| {
            engine.reclaim_checkpoint(Path::new(CHECKPOINT));
            let disk: &dyn Fs = &world.disk;
            disk.remove_dir_all(Path::new(CHECKPOINT)).expect("remove");
        };
        if !is_taken_back {
            remove(&world);
        }
        fill(&mut world, &engine, 200);
        engine.flush().expect("flush");
        engine.run_jobs().expect("jobs");
        if is_taken_back {
            remove(&world);
            engine.run_jobs().expect("jobs");
        }
        let live = world.disk.read_dir(&Path::new(DIR).join("tables")).expect("list");
        let gone = copied.iter().filter(|(_, table)| !live.contains(&table.file_name));
        assert!(gone.count() > 0, "none was merged away");
        for (file, table) in &copied {
            assert_eq!(file.len().expect("length"), table.file_bytes, "{}", table.file_name);
        }
    }
}

#[test]
fn a_flipped_bit_of_any_file_is_named() {
    let mut world = World::new(5);
    let engine = world.open(&small_options());
    fill(&mut world, &engine, 300);
    engine.checkpoint(Path::new(CHECKPOINT)).expect("checkpoint");
    drop(engine);
    let mut harmless = Vec::new();
    for (path, bytes) in image(&world.disk) {
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        let bits = bytes.len() as u64 * 8;
        let step = (bits / 400).max(1) | 1;
        for bit in (0..bits).step_by(step as usize) {
            let disk = world.disk.kill();
            disk.corrupt(&path, bit / 8, (bit % 8) as u8).expect("flip");
            let flipped = world.beside(disk);
            match verify(&flipped.env(), Path::new(CHECKPOINT), None, &mut |_| ()) {
                Ok(_) => {
                    flipped.check_all(&open_at(flipped.env(), CHECKPOINT).expect("it was verified"));
                    harmless.push(name.clone());
                }
                Err(damage) => {
                    let [error] = &damage[..] else { panic!("bit {bit} of {name}: {damage:?}") };
                    assert!(error.to_string().contains(&name), "bit {bit} of {name}: {error}");
                }
            }
        }
    }
    // The padding of the log's header and the closing mark of the manifest carry no information.
    let counts = |name: &&String| !name.ends_with(".wal") && !name.starts_with("manifest-");
    assert_eq!(harmless.iter().filter(counts).count(), 0, "not found: {harmless:?}");
    let in_manifest = harmless.iter().filter(|name| name.starts_with("manifest-")).count();
    assert!(in_manifest < 40, "{in_manifest} flips of the manifest were not found");
}

#[test]
fn a_checkpoint_during_concurrent_writes_holds_all_earlier_acknowledged_writes() {
    const WRITERS: u64 = 3;
    let world = World::new(6);
    let engine = world.open(&small_options());
    let workers = engine::workers::start(&engine, engine::workers::WorkerOptions::default()).expect("start");
    let acknowledged: [AtomicU64; WRITERS as usize] = Default::default();
    let stopping = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (engine, acknowledged, stopping) = (&engine, &acknowledged, &stopping);
            scope.spawn(move || {
                for number in 1.. {
                    if stopping.load(Ordering::Relaxed) {
                        return;
                    }
                    let version = Version::new(Hlc::from_bits(number), NodeTag(writer));
                    let cell = Cell::value(version, 1, vec![writer as u8; 40].into());
                    engine.write(batch_of(&pair(writer, number, &cell))).expect("write");
                    acknowledged[writer as usize].store(number, Ordering::Release);
                }
            });
        }
        // Also when a check fails: the writers must end before the scope can.
        let _stop = SetOnDrop(&stopping);
        for round in 0..8 {
            let before: Vec<u64> = acknowledged.iter().map(|number| number.load(Ordering::Acquire)).collect();
            let dir = format!("/data/checkpoints/{round}");
            engine.checkpoint(Path::new(&dir)).expect("checkpoint");
            let seen = scan(&open_at(world.env(), &dir).expect("open"));
            for writer in 0..WRITERS {
                let own =
                    |half: &str| seen.keys().filter(|key| key.starts_with(&key_in(half, writer))).count();
                let (a, b) = (own("a"), own("b"));
                assert_eq!(a, b, "half a batch in round {round}");
                assert!(a as u64 >= before[writer as usize], "{a} writes, {before:?} were acknowledged");
                for number in 1..=a as u64 {
                    let key = [key_in("a", writer), number.to_be_bytes().to_vec()].concat();
                    assert!(seen.contains_key(&key), "write {number} of {a} is missing");
                }
            }
        }
    });
    workers.stop();
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn key_in(half: &str, writer: u64) -> Vec<u8> {
    format!("{half}{writer}/").into_bytes()
}

/// The two keys of a batch.
fn pair(writer: u64, number: u64, cell: &Cell) -> [(Vec<u8>, Cell); 2] {
    ["a", "b"].map(|half| ([key_in(half, writer), number.to_be_bytes().to_vec()].concat(), cell.clone()))
}
