//! Compactions complete under any writes.

mod support;

use engine::Engine;
use stdx::Cell;
use support::{LOCAL_END, World, batch_of, small_options};

/// At more tables in level 0, as a multiple of the number that triggers a compaction, writes are
/// refused.
const LEVEL0_MAX: f64 = 12.0;

fn write(world: &mut World, engine: &Engine, writes: &[(Vec<u8>, Cell)]) {
    engine.write(batch_of(writes)).expect("write");
    for (key, cell) in writes {
        world.acknowledge(key, cell);
    }
}

/// During each compaction a value arrives that is older than the deletes that the compaction drops.
/// Before the next one begins, the value has left memory, so that this one drops deletes too.
#[test]
fn local_cells_that_come_late_do_not_hold_up_compactions() {
    let mut world = World::new(1);
    let options = small_options();
    let engine = world.open(&options);
    let late = world.late_version();
    let local = |name: String| [&[0], name.as_bytes()].concat();
    assert!(local(String::new()).as_slice() < LOCAL_END);
    for round in 0..100 {
        let value = Cell::value(late, 1, vec![b'v'; 10].into());
        write(&mut world, &engine, &[(local(format!("late-{round}")), value)]);
        engine.flush().expect("flush");
        // The running compaction ends.
        engine.step_compaction(0, u64::MAX).expect("step");
        // The log moves on: the value would not be replayed any more.
        let filler =
            Cell::value(world.next_version(), 1, vec![b'f'; options.wal_segment_bytes as usize].into());
        write(&mut world, &engine, &[(b"filler".to_vec(), filler)]);
        engine.flush().expect("flush");
        let deletes: Vec<_> = (0..20)
            .map(|number| (local(format!("{number:02}-{round}")), Cell::tombstone(world.next_version(), 1)))
            .collect();
        write(&mut world, &engine, &deletes);
        engine.flush().expect("flush");
        // The next compaction begins.
        engine.step_compaction(0, 1).expect("step");
        let backlog = engine.backlog();
        assert!(backlog.level0_fraction < LEVEL0_MAX, "round {round}: {backlog:?}");
    }
    world.check_all(&engine);
}
