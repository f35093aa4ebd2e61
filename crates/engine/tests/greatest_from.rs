//! The newest cell of a key inherits the greatest `from` of the cells that it replaces, wherever
//! those are dropped: the replicas that received them must receive the newest one too.

mod support;

use engine::{Compression, Cursor, Engine, Options};
use stdx::Cell;
use support::{World, batch_of, small_options};

const KEY: &[u8] = b"key";

/// Below and above the length from which a compaction copies a value as it is stored.
const VALUE_BYTES: [usize; 2] = [10, 300 << 10];

fn options() -> Options {
    Options {
        memory_bytes: 64 << 20,
        memtable_bytes: Some(4 << 20),
        compression: Compression::None,
        ..small_options()
    }
}

/// Writes the key with this `from`, and returns the cell.
fn write(world: &mut World, engine: &Engine, from: u8, bytes: usize) -> Cell {
    let cell = Cell::value(world.next_version(), from, vec![from; bytes].into());
    engine.write(batch_of([&(KEY.to_vec(), cell.clone())])).expect("write");
    cell
}

/// The cell that a range read of the engine returns.
fn in_range(engine: &Engine) -> Option<Cell> {
    let mut cursor = engine.snapshot().cursor();
    cursor.seek_to_first().expect("a seek");
    cursor.entry().map(|(_, cell)| cell.to_cell())
}

#[test]
fn a_range_shows_it_while_both_are_in_one_memtable() {
    let mut world = World::new(1);
    let engine = world.open(&options());
    write(&mut world, &engine, 3, 10);
    let newest = write(&mut world, &engine, 1, 10);
    assert_eq!(in_range(&engine), Some(newest.with_from_of_at_least(3)));
}

#[test]
fn it_stays_when_they_are_flushed_together() {
    for bytes in VALUE_BYTES {
        let mut world = World::new(2);
        let engine = world.open(&options());
        write(&mut world, &engine, 2, bytes);
        let newest = write(&mut world, &engine, 1, bytes).with_from_of_at_least(2);
        engine.flush().expect("flush");
        assert_eq!(in_range(&engine).as_ref(), Some(&newest));
        assert_eq!(engine.get(KEY).expect("get"), Some(newest));
    }
}

#[test]
fn it_stays_when_a_compaction_drops_the_older_cells() {
    for bytes in VALUE_BYTES {
        let mut world = World::new(3);
        let engine = world.open(&options());
        let mut newest = None;
        for from in [1, 3, 2, 1] {
            newest = Some(write(&mut world, &engine, from, bytes).with_from_of_at_least(3));
            engine.flush().expect("flush");
        }
        assert_eq!(in_range(&engine), newest, "a range merges the tables");
        engine.run_jobs().expect("jobs");
        assert_eq!(in_range(&engine), newest);
        assert_eq!(engine.get(KEY).expect("get"), newest, "there is one cell now");
        drop(engine);
        let engine = world.open(&options());
        assert_eq!(engine.get(KEY).expect("get"), newest);
    }
}

#[test]
fn an_older_late_write_counts_too() {
    let mut world = World::new(4);
    let engine = world.open(&options());
    let late = world.next_version();
    let newest = write(&mut world, &engine, 1, 10);
    let older = Cell::value(late, 3, b"older".as_slice().into());
    engine.write(batch_of([&(KEY.to_vec(), older)])).expect("write");
    assert_eq!(in_range(&engine), Some(newest.with_from_of_at_least(3)));
}
