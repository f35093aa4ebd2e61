//! No cell is seen because a compaction dropped a tombstone while an ingest brought a cell that the
//! tombstone hides.

use super::source::{Cells, ingest_as};
use super::support::{GRACE, World, batch_of, small_options};
use engine::{Engine, Options, Progress};
use stdx::{Cell, Version};

struct Scene {
    world: World,
    engine: Engine,
    /// Older than all other versions.
    old: Version,
}

/// An engine in which the next compaction drops the tombstones of `keys`: they are past their grace
/// period, and nothing else is as old.
fn scene(keys: &[&[u8]]) -> Scene {
    let mut world = World::new(1);
    let options = Options { level0_tables: 1, memtable_bytes: Some(1 << 20), ..small_options() };
    let engine = world.open(&options);
    let old = world.next_version();
    let deletes: Vec<_> =
        keys.iter().map(|key| (key.to_vec(), Cell::tombstone(world.next_version(), 1))).collect();
    engine.write(batch_of(&deletes)).expect("write");
    engine.flush().expect("flush");
    world.clock.advance(GRACE * 3);
    // The log releases the segment with the deletes.
    for _ in 0..40 {
        let filler = (b"zzz".to_vec(), Cell::value(world.next_version(), 1, vec![0; 4 << 10].into()));
        engine.write(batch_of([&filler])).expect("write");
    }
    engine.flush().expect("flush");
    Scene { world, engine, old }
}

fn tombstones(engine: &Engine) -> u64 {
    engine.stats().levels.iter().map(|level| level.tombstones).sum()
}

/// Steps a compaction that has read everything and not ended.
fn step_to(engine: &Engine, steps: usize) {
    for _ in 0..steps {
        assert_eq!(engine.step_compaction(0, 1).expect("step"), Progress::Worked);
    }
}

/// The number of steps of the compactions of a scene.
fn steps_of(keys: &[&[u8]]) -> usize {
    let scene = scene(keys);
    let steps = (0..).take_while(|_| scene.engine.step_compaction(0, 1).expect("step") == Progress::Worked);
    let steps = steps.count();
    assert_eq!(tombstones(&scene.engine), 0, "the scene drops its tombstones");
    steps
}

#[test]
fn a_cell_that_arrives_during_a_compaction_stays_hidden() {
    let keys: [&[u8]; 3] = [b"a", b"k", b"z"];
    for steps in 0..steps_of(&keys) {
        let Scene { world, engine, old } = scene(&keys);
        step_to(&engine, steps);
        let was_deleted = engine.get(b"k").expect("get").is_some_and(|seen| seen.value.is_empty());
        ingest_as(&engine, b"one", &Cells::from([(b"k".to_vec(), Cell::value(old, 1, "old".into()))]), b"p");
        engine.run_jobs().expect("jobs");
        let seen = engine.get(b"k").expect("get");
        if was_deleted {
            // If the compaction has seen both, neither is left.
            assert!(seen.is_none_or(|seen| !seen.meta.is_live_at(world.wall())), "after {steps} steps");
        } else {
            assert_eq!(seen.expect("the tombstone was gone before it came").value, "old");
        }
    }
}

#[test]
fn a_cell_outside_of_the_key_range_of_a_compaction_does_not_disturb_it() {
    let keys: [&[u8]; 3] = [b"a", b"k", b"m"];
    for steps in 0..steps_of(&keys) {
        let Scene { engine, old, .. } = scene(&keys);
        step_to(&engine, steps);
        let outside = Cells::from([(b"zzzz".to_vec(), Cell::value(old, 1, "old".into()))]);
        ingest_as(&engine, b"one", &outside, b"p");
        let before = engine.stats().jobs.compactions;
        engine.run_jobs().expect("jobs");
        assert_eq!(tombstones(&engine), 0, "after {steps} steps");
        assert!(engine.stats().jobs.compactions - before <= 2);
    }
}

#[test]
fn a_cell_as_new_as_no_dropped_tombstone_does_not_disturb_it() {
    let keys: [&[u8]; 3] = [b"a", b"k", b"z"];
    for steps in 0..steps_of(&keys) {
        let Scene { mut world, engine, .. } = scene(&keys);
        step_to(&engine, steps);
        let new = Cell::value(world.next_version(), 1, "new".into());
        ingest_as(&engine, b"one", &Cells::from([(b"k".to_vec(), new.clone())]), b"p");
        assert_eq!(engine.get(b"k").expect("get"), Some(new.clone()));
        engine.run_jobs().expect("jobs");
        assert_eq!(engine.get(b"k").expect("get"), Some(new));
        assert_eq!(tombstones(&engine), 0, "after {steps} steps");
    }
}
