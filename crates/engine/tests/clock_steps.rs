//! Steps of the wall clock: compaction does not trust a clock that was just set. With
//! [`HorizonSource::Host`], it trusts only the horizon that the host sets.

mod support;

use engine::{Engine, HorizonSource, Options};
use std::time::Duration;
use stdx::{Cell, CellKind, CellMeta, SteadyWall, WallTime};
use support::{GRACE, World, batch_of, small_options};

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// Writes a value of `key` that expires at `expires_at`.
fn write_expiring(world: &mut World, engine: &Engine, key: &str, expires_at: WallTime) -> Cell {
    let version = world.next_version();
    let meta = CellMeta { expires_at: Some(expires_at), ..CellMeta::value(version, 1) };
    let cell = Cell { meta, value: "value".into() };
    engine.write(batch_of([&(key.as_bytes().to_vec(), cell.clone())])).expect("write");
    cell
}

/// Writes a value of `key` and deletes it.
fn write_deleted(world: &mut World, engine: &Engine, key: &str) -> Cell {
    let value = Cell::value(world.next_version(), 1, "value".into());
    let delete = Cell::tombstone(world.next_version(), 1);
    for cell in [value, delete.clone()] {
        engine.write(batch_of([&(key.as_bytes().to_vec(), cell)])).expect("write");
    }
    delete
}

/// Runs all due compactions.
fn compact(world: &mut World, engine: &Engine) {
    // The log must release the segments from which recovery would replay the cells to be dropped.
    for _ in 0..40 {
        let filler = Cell::value(world.next_version(), 1, vec![0; 4 << 10].into());
        engine.write(batch_of([&(b"zzz".to_vec(), filler)])).expect("write");
    }
    engine.flush().expect("flush");
    engine.run_jobs().expect("jobs");
}

fn step(world: &World, forward: Duration) {
    world.clock.set_wall(world.wall().saturating_add(forward));
}

fn options(horizon: HorizonSource) -> Options {
    Options { level0_tables: 1, horizon, ..small_options() }
}

#[test]
fn a_step_forward_buries_no_value_before_the_hold_is_over() {
    let mut world = World::new(1);
    let engine = world.open(&options(HorizonSource::Clock));
    let expires_at = world.wall().saturating_add(HOUR);
    let value = write_expiring(&mut world, &engine, "key", expires_at);
    compact(&mut world, &engine);

    let right = world.wall();
    step(&world, 2 * HOUR);
    compact(&mut world, &engine);
    assert_eq!(engine.get(b"key").expect("get"), Some(value.clone()), "the clock was set a moment ago");
    world.clock.set_wall(right);
    compact(&mut world, &engine);
    assert_eq!(engine.get(b"key").expect("get"), Some(value.clone()), "the step was taken back");

    step(&world, 2 * HOUR);
    compact(&mut world, &engine);
    world.clock.advance(SteadyWall::HOLD);
    compact(&mut world, &engine);
    let held = engine.get(b"key").expect("get");
    assert!(held.is_none_or(|cell| cell.meta == value.meta.buried()), "the clock has kept the step");
}

#[test]
fn a_step_forward_drops_no_tombstone_before_the_hold_is_over() {
    let mut world = World::new(2);
    let engine = world.open(&options(HorizonSource::Clock));
    let delete = write_deleted(&mut world, &engine, "key");
    compact(&mut world, &engine);

    step(&world, 10 * DAY);
    compact(&mut world, &engine);
    assert_eq!(engine.get(b"key").expect("get"), Some(delete), "the clock was set a moment ago");
    world.clock.advance(SteadyWall::HOLD);
    compact(&mut world, &engine);
    assert_eq!(engine.get(b"key").expect("get"), None, "the clock has kept the step");
}

#[test]
fn with_a_host_that_sets_the_horizon_the_clock_of_the_engine_deletes_nothing() {
    let mut world = World::new(3);
    let engine = world.open(&options(HorizonSource::Host));
    let expires_at = world.wall().saturating_add(HOUR);
    let value = write_expiring(&mut world, &engine, "expiring", expires_at);
    let delete = write_deleted(&mut world, &engine, "deleted");
    let deleted_at = world.wall();
    compact(&mut world, &engine);

    world.clock.advance(10 * DAY);
    compact(&mut world, &engine);
    assert_eq!(engine.get(b"expiring").expect("get"), Some(value.clone()), "no horizon was set");
    assert_eq!(engine.get(b"deleted").expect("get"), Some(delete.clone()), "no horizon was set");

    engine.set_horizon(deleted_at.saturating_add(GRACE), deleted_at);
    compact(&mut world, &engine);
    assert_eq!(engine.get(b"expiring").expect("get"), Some(value.clone()));
    assert_eq!(engine.get(b"deleted").expect("get"), None, "its grace has ended before the horizon");

    engine.set_horizon(expires_at, expires_at);
    compact(&mut world, &engine);
    let buried = engine.get(b"expiring").expect("get").expect("its grace has not ended");
    assert_eq!((buried.meta.kind, buried.meta), (CellKind::Tombstone, value.meta.buried()));
    assert_eq!(engine.stats().horizon, expires_at);
}

#[test]
fn a_value_wins_over_its_expiry_tombstone_wherever_the_two_meet() {
    let mut world = World::new(4);
    let engine = world.open(&options(HorizonSource::Host));
    let expires_at = world.wall().saturating_add(HOUR);
    let value = write_expiring(&mut world, &engine, "key", expires_at);
    // The tombstone into which an earlier release, or a node with a wrong clock, turned it.
    let buried = Cell { meta: value.meta.buried(), value: Default::default() };
    let write = |cell: &Cell| engine.write(batch_of([&(b"key".to_vec(), cell.clone())])).expect("write");
    let check = |at: &str| assert_eq!(engine.get(b"key").expect("get"), Some(value.clone()), "{at}");
    write(&buried);
    check("in one memtable");
    engine.flush().expect("flush");
    write(&buried);
    check("a table below a memtable");
    engine.flush().expect("flush");
    check("two tables");
    engine.run_jobs().expect("jobs");
    check("merged");
    write(&buried);
    engine.flush().expect("flush");
    write(&value);
    engine.flush().expect("flush");
    compact(&mut world, &engine);
    check("merged in the other order");
}

#[test]
fn a_tombstone_that_the_replicas_have_not_exchanged_outlives_its_grace_period() {
    let mut world = World::new(5);
    let engine = world.open(&options(HorizonSource::Host));
    let delete = write_deleted(&mut world, &engine, "deleted");
    let deleted_at = world.wall();
    world.clock.advance(GRACE * 3);
    let just_before = WallTime::from_micros_since_unix_epoch(deleted_at.micros_since_unix_epoch() - 1);
    engine.set_horizon(world.wall(), just_before);
    compact(&mut world, &engine);
    assert_eq!(engine.get(b"deleted").expect("get"), Some(delete), "a replica may not have heard of it");
    engine.set_horizon(world.wall(), deleted_at);
    compact(&mut world, &engine);
    assert_eq!(engine.get(b"deleted").expect("get"), None);
}
