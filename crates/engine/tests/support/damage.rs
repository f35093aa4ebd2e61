//! Helpers for tests of damaged tables: a directory to damage, and the progress of healing.

use super::{World, batch_of};
use engine::{DamagedTable, Engine, Error, Options};
use env::MemFs;
use std::path::PathBuf;

const KEYS: u64 = 60;

/// A closed directory with a few tables.
pub fn prepared(seed: u64, options: &Options) -> World {
    let mut world = World::new(seed);
    let engine = world.open(options);
    for round in 0..300 {
        let write = world.random_write(KEYS);
        engine.write(batch_of([&write])).expect("write");
        world.acknowledge(&write.0, &write.1);
        if round % 100 == 99 {
            engine.flush().expect("flush");
            engine.run_jobs().expect("jobs");
        }
    }
    engine.close().expect("close");
    world
}

/// Paths of the table files.
pub fn tables(disk: &MemFs) -> Vec<PathBuf> {
    disk.file_names().into_iter().filter(|path| path.extension().is_some_and(|it| it == "sst")).collect()
}

/// Runs all pending jobs. Jobs that cannot read a table may fail until it is quarantined.
pub fn work(engine: &Engine) {
    let done = (0..20).any(|_| match engine.run_jobs() {
        Ok(()) => true,
        Err(Error::Corrupt { .. } | Error::Io { .. }) => false,
        Err(error) => panic!("jobs: {error}"),
    });
    assert!(done, "the jobs do not come to an end");
}

/// Whether a cell of this key may be lost.
pub fn is_lost(damaged: &[DamagedTable], key: &[u8]) -> bool {
    let mut lost = damaged.iter().flat_map(|table| &table.lost);
    lost.any(|lost| lost.after.as_deref().is_none_or(|after| after < key) && key <= lost.until.as_slice())
}

/// Heals as a host does: recovers lost cells from elsewhere, then allows the replacement of the
/// tables.
pub fn heal(world: &World, engine: &Engine, damaged: &[DamagedTable]) {
    for (key, cell) in world.model.iter().filter(|(key, _)| is_lost(damaged, key)) {
        engine.write(batch_of([&(key.clone(), cell.clone())])).expect("write");
    }
    damaged.iter().for_each(|table| engine.allow_replacement(table.id, &table.lost));
}
