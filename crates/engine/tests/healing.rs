//! Tables that cannot be read back are replaced by their readable part, once the host has recovered
//! the rest.
//!
//! The lost ranges are reported, no other key is missing, and no result is wrong at any time.

mod support;

use engine::{DamagedTable, Engine, Options, verify};
use env::{Env, Fault, FaultFs, FaultPlan, OperationKind, OperationMatch};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stdx::{Cell, Rng};
use support::damage::{heal, is_lost, prepared, tables, work};
use support::{DIR, World, batch_of, small_options};

/// Bits flipped in a table, evenly distributed.
const FLIPS_PER_TABLE: u64 = 60;

fn options() -> Options {
    // An automatic compaction would replace the tables that are to be damaged.
    Options { level0_tables: 4, ..small_options() }
}

/// A directory with a damaged table that holds the newest cells of some keys.
fn damaged(seed: u64) -> (World, PathBuf) {
    let world = prepared(seed, &options());
    let damaged = tables(&world.disk).into_iter().find_map(|path| {
        let damaged = world.beside(world.disk.kill());
        damaged.disk.corrupt(&path, 100, 1).expect("flip");
        let engine = open(&damaged, Arc::new(damaged.disk.kill()));
        (!unreadable(&damaged, &engine).is_empty()).then_some((damaged, path))
    });
    damaged.expect("some table has what no other has")
}

/// Keys that cannot be read. All others must be right.
fn unreadable(world: &World, engine: &Engine) -> Vec<Vec<u8>> {
    let keys = world.model.keys().filter(|key| match engine.get(key) {
        Ok(seen) => {
            assert!(world.agrees(world.model.get(*key), seen.as_ref()), "{}", key.escape_ascii());
            false
        }
        Err(_) => true,
    });
    keys.cloned().collect()
}

fn open(world: &World, fs: Arc<dyn env::Fs>) -> Engine {
    let env: Env = world.env_over(fs);
    Engine::open(env, Path::new(DIR), options()).expect("a damaged table does not keep it from opening").0
}

#[test]
fn a_table_with_any_flipped_bit_is_healed() {
    let world = prepared(1, &options());
    let (mut healed, mut asked, mut harmless) = (0, 0, 0);
    for path in tables(&world.disk) {
        let bits = world.disk.read_file(&path).expect("read").len() as u64 * 8;
        for flip in 0..FLIPS_PER_TABLE {
            let bit = flip * bits / FLIPS_PER_TABLE + flip % 8;
            let disk = world.disk.kill();
            disk.corrupt(&path, bit / 8, (bit % 8) as u8).expect("flip");
            let engine = open(&world, Arc::new(disk.clone()));
            let failed = unreadable(&world, &engine);
            work(&engine);
            let damaged = engine.damaged_tables();
            assert!(unreadable(&world, &engine).iter().all(|key| is_lost(&damaged, key)), "bit {bit}");
            heal(&world, &engine, &damaged);
            work(&engine);
            assert_eq!(engine.damaged_tables(), [], "bit {bit} of {}", path.display());
            world.check_all(&engine);
            match (failed.is_empty(), damaged.is_empty()) {
                (_, false) => {
                    assert!(!disk.file_names().contains(&path), "the damaged file is gone");
                    asked += 1;
                }
                (false, true) => healed += 1,
                (true, true) => harmless += 1,
            }
            assert_eq!(engine.stats().tables_healed > 0, !failed.is_empty() || !damaged.is_empty());
        }
    }
    assert!(asked > 20 && healed > 0, "{asked} asked for, {healed} not, {harmless} harmless");
}

#[test]
fn a_table_without_permission_to_replace_it_stays_unchanged() {
    let (world, path) = damaged(2);
    let engine = open(&world, Arc::new(world.disk.clone()));
    let failed = unreadable(&world, &engine);
    assert!(!failed.is_empty());
    work(&engine);
    let damaged = engine.damaged_tables();
    let [table] = damaged.as_slice() else { panic!("{damaged:?}") };
    assert_eq!((&table.path, table.lost.len()), (&path, 1));
    let mut other = table.lost.clone();
    other[0].until.push(0);
    engine.allow_replacement(table.id, &other);
    work(&engine);
    assert_eq!(engine.damaged_tables(), damaged);
    assert_eq!(unreadable(&world, &engine), failed);
    assert!(world.disk.file_names().contains(&path));
}

#[test]
fn a_checkpoint_says_which_of_its_tables_are_damaged() {
    const CHECKPOINT: &str = "/data/checkpoints/one";
    let (world, path) = damaged(3);
    let engine = open(&world, Arc::new(world.disk.clone()));
    assert!(!unreadable(&world, &engine).is_empty());
    work(&engine);
    let damaged = engine.damaged_tables();
    let summary = engine.checkpoint(Path::new(CHECKPOINT)).expect("checkpoint");
    let named: Vec<_> =
        summary.tables.iter().filter(|table| table.is_damaged).map(|table| &table.file_name).collect();
    assert_eq!(named, [path.file_name().and_then(|name| name.to_str()).expect("a name")]);
    let says_so = || {
        let errors = verify(&world.env(), Path::new(CHECKPOINT), None, &mut |_| ()).expect_err("damage");
        let [error] = errors.as_slice() else { panic!("{errors:?}") };
        assert!(error.to_string().ends_with("damaged already when the checkpoint was made"), "{error}");
    };
    says_so();

    // An engine that opens it scans the table before any read, at each start.
    for _ in 0..2 {
        let (restored, _) = Engine::open(world.env(), Path::new(CHECKPOINT), options()).expect("it opens");
        work(&restored);
        let found = restored.damaged_tables();
        let of = |tables: &[DamagedTable]| {
            tables.iter().map(|table| (table.id, table.lost.clone())).collect::<Vec<_>>()
        };
        assert_eq!(of(&found), of(&damaged));
        drop(restored);
        says_so();
    }
    let (restored, _) = Engine::open(world.env(), Path::new(CHECKPOINT), options()).expect("it opens");
    work(&restored);
    heal(&world, &restored, &restored.damaged_tables());
    work(&restored);
    assert_eq!(restored.damaged_tables(), []);
    drop(restored);
    verify(&world.env(), Path::new(CHECKPOINT), None, &mut |_| ()).expect("healed");
}

/// As on a standalone node, without replicas.
#[test]
fn newer_cells_are_read_from_below_a_quarantined_table() {
    let (mut world, _) = damaged(6);
    let engine = open(&world, Arc::new(world.disk.clone()));
    let failed = unreadable(&world, &engine);
    work(&engine);
    let damaged = engine.damaged_tables();
    // Often enough for level 0 to be merged.
    for _ in 0..2 * options().level0_tables {
        for key in &failed {
            let write = (key.clone(), Cell::value(world.next_version(), 1, vec![7; 100].into()));
            engine.write(batch_of([&write])).expect("write");
            world.acknowledge(&write.0, &write.1);
        }
        engine.flush().expect("flush");
        work(&engine);
    }
    assert_eq!(engine.damaged_tables(), damaged, "it is there still");
    assert!(engine.stats().levels.iter().skip(1).any(|level| level.tables > 0));
    assert!(unreadable(&world, &engine).is_empty());
}

#[test]
fn blocks_that_fail_to_read_temporarily_are_not_lost() {
    let world = prepared(3, &options());
    let all_reads = || {
        FaultPlan::fail(OperationMatch::kind(OperationKind::Read).path(".sst").sticky(), Fault::DeviceError)
    };
    let faults = FaultFs::new(Arc::new(world.disk.clone()), all_reads());
    let engine = open(&world, Arc::new(faults.clone()));
    let before = tables(&world.disk);
    assert_eq!(unreadable(&world, &engine).len(), world.model.len());
    // The fault ends before the table is scanned.
    faults.clear();
    work(&engine);
    assert_eq!((engine.damaged_tables(), engine.stats().tables_healed), (vec![], 0));
    assert!(before.iter().all(|path| tables(&world.disk).contains(path)), "each is as it was");
    world.check_all(&engine);
    drop(engine);
    // The fault ends when all tables are quarantined and replaceable, although nothing was
    // recovered from elsewhere.
    faults.set_plan(all_reads());
    let engine = open(&world, Arc::new(faults.clone()));
    assert_eq!(unreadable(&world, &engine).len(), world.model.len());
    work(&engine);
    let damaged = engine.damaged_tables();
    assert!(!damaged.is_empty());
    faults.clear();
    damaged.iter().for_each(|table| engine.allow_replacement(table.id, &table.lost));
    work(&engine);
    assert_eq!(engine.damaged_tables(), []);
    world.check_all(&engine);
}

#[test]
fn damage_beyond_the_confirmed_ranges_needs_another_confirmation() {
    let (world, path) = damaged(4);
    let len = world.disk.read_file(&path).expect("read").len() as u64;
    let engine = open(&world, Arc::new(world.disk.clone()));
    let failed = unreadable(&world, &engine);
    work(&engine);
    let before = engine.damaged_tables();
    let fails_more = |at: &u64| {
        let disk = world.disk.kill();
        disk.corrupt(&path, *at, 1).expect("flip");
        unreadable(&world, &open(&world, Arc::new(disk))).len() > failed.len()
    };
    let at =
        (1..20).map(|part| len * part / 20).find(fails_more).expect("a block with what no other table has");
    world.disk.corrupt(&path, at, 1).expect("flip");
    heal(&world, &engine, &before);
    work(&engine);
    let after = engine.damaged_tables();
    assert!(!after.is_empty() && before != after, "more is lost by now: {after:?}");
    heal(&world, &engine, &after);
    work(&engine);
    assert_eq!(engine.damaged_tables(), []);
    world.check_all(&engine);
}

#[test]
fn a_stop_at_any_file_operation_leaves_the_old_table_or_the_new() {
    let (world, _) = damaged(5);
    let (mut stopped, mut stop_at) = (0, 0);
    loop {
        let disk = world.disk.kill();
        let faults = FaultFs::new(Arc::new(disk.clone()), FaultPlan::stop_after(stop_at));
        let env = world.env_over(Arc::new(faults.clone()));
        let healed = Engine::open(env, Path::new(DIR), options()).is_ok_and(|(engine, _)| {
            world.model.keys().for_each(|key| drop(engine.get(key)));
            (0..20).for_each(|_| drop(engine.run_jobs()));
            let damaged = engine.damaged_tables();
            let lost = world.model.iter().filter(|(key, _)| is_lost(&damaged, key));
            let written = lost.map(|(key, cell)| engine.write(batch_of([&(key.clone(), cell.clone())])));
            let is_had = written.filter(Result::is_err).count() == 0;
            if is_had {
                damaged.iter().for_each(|table| engine.allow_replacement(table.id, &table.lost));
            }
            (0..20).for_each(|_| drop(engine.run_jobs()));
            engine.stats().tables_healed > 0 && engine.poison().is_none()
        });
        let engine = open(&world, Arc::new(disk.crash(&mut Rng::new(stop_at))));
        unreadable(&world, &engine);
        work(&engine);
        heal(&world, &engine, &engine.damaged_tables());
        work(&engine);
        assert_eq!(engine.damaged_tables(), [], "stopped at {stop_at}");
        world.check_all(&engine);
        if healed && faults.operations() < stop_at {
            break;
        }
        stopped += 1;
        stop_at += 1;
    }
    assert!(stopped > 30, "{stopped}");
}
