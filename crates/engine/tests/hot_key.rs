//! One key takes all the load: the engine stays small, however much was written.

mod support;

use engine::{Batch, Progress};
use stdx::Cell;
use support::{World, small_options};

const WRITES: u64 = 20_000;
const VALUE_BYTES: usize = 200;

#[test]
fn a_key_that_is_overwritten_again_and_again_takes_the_space_of_few_cells() {
    let mut world = World::new(1);
    let engine = world.open(&small_options());
    let mut cells_max = 0;
    for number in 0..WRITES {
        let mut value = vec![0; VALUE_BYTES];
        world.rng.fill(&mut value);
        let cell = Cell::value(world.next_version(), 1, value.into());
        let mut batch = Batch::new();
        batch.put(b"hot", cell.as_ref());
        engine.write(batch).expect("a write");
        if world.rng.chance(0.05) {
            while engine.step_flush(u64::MAX).expect("flush") == Progress::Worked {}
            while engine.step_compaction(0, u64::MAX).expect("compaction") == Progress::Worked {}
        }
        let stats = engine.stats();
        cells_max = cells_max.max(stats.levels.iter().map(|level| level.cells).sum());
        assert_eq!(engine.get(b"hot").expect("get"), Some(cell), "{number}");
    }
    // Each memtable becomes a table of one cell, and few tables wait to be merged.
    assert!((1..=16).contains(&cells_max), "{cells_max} cells in tables");
}
