//! Scrubbing finds damage in tables that no client reads, within one round, and they heal. Its rate
//! is bounded, and it runs only while the disk is not needed otherwise. Time is virtual.

mod support;

use engine::{DiskSpace, Engine, Options};
use env::{FaultFs, FaultPlan, Fs, OperationKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stdx::{Cell, Instant, Rng};
use support::damage::{self, tables, work};
use support::{DIR, World, batch_of, key_of, small_options};

const PERIOD: Duration = Duration::from_secs(3600);
/// Size of one read, and the greatest rate.
const PIECE_BYTES: u64 = 256 << 10;
const RATE_MAX: u64 = 4 << 20;

fn options(period: Duration) -> Options {
    Options { level0_tables: 4, scrub_period: Some(period), ..small_options() }
}

/// A closed directory with a few small tables and an empty log.
fn prepared(seed: u64) -> World {
    let world = damage::prepared(seed, &options(PERIOD));
    settle(&world, &options(PERIOD));
    world
}

/// Empties the log: flushes the writes of the previous run.
fn settle(world: &World, options: &Options) {
    let engine = world.open(options);
    engine.flush().expect("flush");
    engine.run_jobs().expect("jobs");
    engine.close().expect("close");
}

/// A closed directory with `mib` MiB of random data in tables.
fn large(mib: u64) -> World {
    let mut world = World::new(7);
    let options = Options { memtable_bytes: Some(4 << 20), table_bytes: 2 << 20, ..options(PERIOD) };
    let engine = world.open(&options);
    let mut value = vec![0; 64 << 10];
    for number in 0..mib * 16 {
        world.rng.fill(&mut value);
        let write = (key_of(number), Cell::value(world.next_version(), 1, value.clone().into()));
        engine.write(batch_of([&write])).expect("write");
        world.acknowledge(&write.0, &write.1);
    }
    engine.flush().expect("flush");
    engine.run_jobs().expect("jobs");
    engine.close().expect("close");
    drop(engine);
    settle(&world, &options);
    world
}

/// The live tables of a closed directory.
fn live_tables(world: &World) -> Vec<PathBuf> {
    let disk = world.disk.kill();
    let engine = open(world, Arc::new(disk.clone()), &options(PERIOD));
    engine.run_jobs().expect("jobs");
    tables(&disk)
}

fn open(world: &World, fs: Arc<dyn Fs>, options: &Options) -> Engine {
    Engine::open(world.env_over(fs), Path::new(DIR), options.clone()).expect("it opens").0
}

fn now(world: &World) -> Instant {
    env::Clock::now(&*world.clock).mono
}

/// Scrubs until the condition holds, or for this time. Returns whether it holds.
fn scrub_until(world: &World, engine: &Engine, time: Duration, holds: impl Fn(&Engine) -> bool) -> bool {
    let end = now(world) + time;
    while now(world) < end && !holds(engine) {
        let pause = engine.step_scrub().min(end.saturating_since(now(world)));
        world.clock.advance(pause.max(Duration::from_millis(1)));
    }
    holds(engine)
}

/// Repairs all damage as the host does.
fn heal(world: &World, engine: &Engine) {
    damage::heal(world, engine, &engine.damaged_tables());
    work(engine);
}

#[test]
fn damage_in_unread_tables_is_found_within_one_round_and_heals() {
    let world = prepared(1);
    let (mut asked, mut alone) = (0, 0);
    for path in live_tables(&world) {
        let bytes = world.disk.read_file(&path).expect("read").len() as u64;
        // Offsets all over the table, and within its ends.
        for at in (0..12).map(|part| bytes * part / 12 + 5).chain([bytes - 1, bytes - 30, bytes - 60]) {
            let disk = world.disk.kill();
            disk.corrupt(&path, at, (at % 8) as u8).expect("flip");
            let engine = open(&world, Arc::new(disk.clone()), &options(PERIOD));
            let is_found = |engine: &Engine| engine.stats().scrub.tables_damaged > 0;
            assert!(scrub_until(&world, &engine, PERIOD, is_found), "byte {at} of {bytes}");
            work(&engine);
            match engine.damaged_tables().is_empty() {
                false => asked += 1,
                true => alone += 1,
            }
            heal(&world, &engine);
            assert_eq!((engine.damaged_tables(), engine.stats().tables_healed), (vec![], 1), "byte {at}");
            assert!(!disk.file_names().contains(&path), "the damaged file is gone");
            world.check_all(&engine);
            let rounds = engine.stats().scrub.rounds;
            let is_past_two = |engine: &Engine| engine.stats().scrub.rounds >= rounds + 2;
            assert!(scrub_until(&world, &engine, 3 * PERIOD, is_past_two));
            assert_eq!(engine.stats().scrub.tables_damaged, 1, "what heals is whole");
        }
    }
    assert!(asked > 20 && alone > 0, "{asked} asked for, {alone} not");
}

#[test]
fn a_round_reads_all_in_its_time_and_no_faster_than_it_has_to() {
    let world = large(12);
    let bytes: u64 =
        tables(&world.disk).iter().map(|path| world.disk.read_file(path).expect("read").len() as u64).sum();
    // A slow round, and one for which the greatest rate does not suffice.
    for (period, takes) in [(100, 75..=100), (1, bytes / RATE_MAX..=bytes / RATE_MAX + 3)] {
        let period = Duration::from_secs(period);
        let engine = open(&world, Arc::new(world.disk.kill()), &options(period));
        let (began, mut steps) = (now(&world), Vec::new());
        while engine.stats().scrub.rounds == 0 {
            let pause = engine.step_scrub();
            steps.push((now(&world) - began, engine.stats().scrub.bytes));
            world.clock.advance(pause);
        }
        let took = (now(&world) - began).min(period.max(steps.last().expect("there are steps").0));
        assert!(takes.contains(&took.as_secs()), "{took:?} of {period:?}");
        let read = engine.stats().scrub.bytes;
        assert!((bytes..bytes + bytes / 50).contains(&read), "{read} of {bytes}");
        let rate = (bytes as f64 / period.as_secs_f64() * 1.5).min(RATE_MAX as f64);
        for (time, read) in &steps {
            let most = rate * time.as_secs_f64() + (2 * PIECE_BYTES) as f64;
            assert!((*read as f64) <= most, "{read} bytes after {time:?}");
        }
        let rounds_end = engine.stats().scrub.last_round.expect("one has ended");
        assert!(rounds_end <= world.wall());
        // Nothing is read before the next round is due.
        let rest = period.saturating_sub(now(&world) - began);
        if !rest.is_zero() {
            scrub_until(&world, &engine, rest / 2, |_| false);
            assert_eq!(engine.stats().scrub.bytes, read);
        }
    }
}

#[test]
fn a_slow_disk_is_left_to_others() {
    let world = large(2);
    let busy = Arc::new(AtomicU64::new(0));
    let (clock, spent) = (Arc::clone(&world.clock), Arc::clone(&busy));
    let slow = FaultPlan::on_operation(move |operation| {
        if operation.kind == OperationKind::Read {
            clock.advance(Duration::from_secs(1));
            spent.fetch_add(1, Ordering::Relaxed);
        }
        None
    });
    let fs = FaultFs::new(Arc::new(world.disk.kill()), FaultPlan::none());
    // A round so short that the rate alone would leave the disk no idle time.
    let engine = open(&world, Arc::new(fs.clone()), &options(Duration::from_secs(1)));
    fs.set_plan(slow);
    let began = now(&world);
    while engine.stats().scrub.rounds == 0 {
        let pause = engine.step_scrub();
        world.clock.advance(pause);
    }
    let took = (now(&world) - began).as_secs();
    let busy = busy.load(Ordering::Relaxed);
    assert!(busy > 8 && took >= busy * 9, "{busy} of {took} seconds");
}

#[test]
fn scrubbing_pauses_on_a_full_disk_and_while_writes_are_slowed() {
    let world = large(2);
    let disk = world.disk.kill();
    let engine = open(&world, Arc::new(disk.clone()), &options(PERIOD));
    let read = |engine: &Engine| engine.stats().scrub.bytes;
    let goes_on = |engine: &Engine| {
        let before = read(engine);
        scrub_until(&world, engine, Duration::from_secs(60), |engine| read(engine) > before)
    };
    assert!(goes_on(&engine));
    disk.set_capacity(1);
    engine.step_upkeep(1 << 20).expect("upkeep");
    assert_eq!(engine.disk_stats().space, DiskSpace::Full);
    assert!(!goes_on(&engine), "the disk is full");
    disk.set_capacity(1 << 40);
    work(&engine);
    assert_eq!(engine.disk_stats().space, DiskSpace::Ample, "{:?}", engine.disk_stats());
    assert!(goes_on(&engine), "there is room again");
    // Memtables fill up and are not flushed.
    let mut rng = Rng::new(1);
    let mut value = vec![0; 2 << 10];
    for number in 0..18 {
        rng.fill(&mut value);
        let cell = Cell::value(
            stdx::Version::new(stdx::Hlc::from_bits(number + 1), stdx::NodeTag(9)),
            1,
            value.clone().into(),
        );
        let batch = batch_of([&(key_of(number), cell)]);
        engine.submit(batch, Box::new(|_| ()));
        engine.step_commit().expect("commit");
    }
    assert!(engine.backlog().buffered_fraction > 0.6, "{:?}", engine.backlog());
    assert!(!goes_on(&engine), "writes are slowed");
    work(&engine);
    // The current table may be replaced by now: then the next round continues.
    let before = read(&engine);
    let goes_on = scrub_until(&world, &engine, 2 * PERIOD, |engine| read(engine) > before);
    assert!(goes_on, "all is worked off");
}

/// Each run has time for one table only.
#[test]
fn frequent_restarts_leave_no_table_unchecked() {
    let world = large(12);
    let all = live_tables(&world);
    assert!(all.len() > 3, "{}", all.len());
    for path in &all {
        let disk = world.disk.kill();
        disk.corrupt(path, 100, 1).expect("flip");
        let found = (0..40 * all.len()).any(|_| {
            world.clock.advance(Duration::from_secs(17));
            let engine = open(&world, Arc::new(disk.clone()), &options(PERIOD));
            engine.step_scrub();
            engine.stats().scrub.tables_damaged > 0
        });
        assert!(found, "{}", path.display());
    }
}

#[test]
fn a_table_that_was_replaced_is_let_go() {
    let world = large(2);
    let disk = world.disk.kill();
    let engine = open(&world, Arc::new(disk.clone()), &options(PERIOD));
    let before = tables(&disk);
    engine.step_scrub();
    assert_eq!(engine.stats().scrub.bytes, PIECE_BYTES, "it is in the middle of a table");
    // Newer cells of all keys, until every table is replaced.
    for round in 0..20 {
        for (key, cell) in &world.model {
            let version = stdx::Version::new(stdx::Hlc::from_bits(u64::MAX / 2 + round), stdx::NodeTag(9));
            let cell = Cell::value(version, 1, cell.value.slice(..10));
            engine.write(batch_of([&(key.clone(), cell)])).expect("write");
        }
        engine.flush().expect("flush");
        work(&engine);
    }
    let live: usize = engine.stats().levels.iter().map(|level| level.tables).sum();
    engine.step_scrub();
    work(&engine);
    let after = tables(&disk);
    assert_eq!(after.len(), live, "no file is kept for whoever scrubs");
    assert!(before.iter().any(|path| !after.contains(path)));
}

#[test]
fn without_a_period_nothing_is_read() {
    let world = prepared(5);
    let engine = world.open(&Options { scrub_period: None, ..options(PERIOD) });
    scrub_until(&world, &engine, 3 * PERIOD, |_| false);
    assert_eq!(engine.stats().scrub, engine::ScrubStats::default());
}
