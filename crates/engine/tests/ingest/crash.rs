//! A stop, a loss of power, a full disk and every error at each file operation of ingests between
//! writes, flushes and compactions.
//!
//! Afterwards each cursor is at its last acknowledged position or at the one in doubt, all cells up
//! to it are there, and no cell of a refused part is. The ingest continues.

use super::source::{Cells, acknowledge_all, push_all, random_cells, table_files};
use super::support::{DIR, World, batch_of, small_options};
use engine::{Engine, Error, Options, verify};
use env::{Fault, FaultFs, FaultPlan, MemFs, OperationKind};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stdx::Rng;

const KEYS: u64 = 60;
const OPERATIONS: u64 = 40;
const NAMES: u64 = 2;

/// The number of a part, as a position.
type Position = Option<u64>;

/// The end of a run.
struct Ended {
    world: World,
    positions: BTreeMap<u8, Position>,
    /// A part whose commit failed and may have taken effect, or the removal of a cursor.
    in_doubt: Option<(u8, Position, Cells)>,
    /// Cells of parts that were refused: they must never be visible.
    refused: Vec<Cells>,
    parts: u64,
    operations: u64,
}

fn options() -> Options {
    Options { memtable_bytes: Some(4 << 10), wal_segment_bytes: 16 << 10, ..small_options() }
}

fn run(seed: u64, plan: FaultPlan) -> Ended {
    let world = World::new(seed);
    let faults = FaultFs::new(Arc::new(world.disk.clone()), plan);
    let env = world.env_over(Arc::new(faults.clone()));
    let positions = (0..NAMES as u8).map(|name| (name, None)).collect();
    let mut ended = Ended { world, positions, in_doubt: None, refused: Vec::new(), parts: 0, operations: 0 };
    if let Ok((engine, _)) = Engine::open(env, Path::new(DIR), options()) {
        for _ in 0..OPERATIONS {
            match ended.operate(&engine) {
                Ok(()) | Err(Error::Full { .. } | Error::Exhausted { .. } | Error::Overloaded { .. }) => {}
                Err(_) => break,
            }
        }
        // Not closed: a crash comes without notice.
    }
    ended.operations = faults.operations();
    ended
}

impl Ended {
    fn operate(&mut self, engine: &Engine) -> Result<(), Error> {
        match self.world.rng.below(10) {
            0..2 => self.write(engine),
            2..6 => self.ingest(engine),
            6 => self.finish(engine),
            7 => {
                self.world.clock.advance(Duration::from_secs(self.world.rng.below(10)));
                engine.step_idle()
            }
            8 => self.world.step_something(engine),
            _ => engine.flush().and_then(|()| engine.run_jobs()),
        }
    }

    fn write(&mut self, engine: &Engine) -> Result<(), Error> {
        let write = self.world.random_write(KEYS);
        let written = engine.write(batch_of([&write]));
        match written {
            Ok(_) => self.world.acknowledge(&write.0, &write.1),
            // A write in doubt may be there. Nothing else has its version.
            Err(Error::Poisoned { .. }) => {
                self.in_doubt = Some((u8::MAX, None, Cells::from([write])));
            }
            Err(_) => {}
        }
        written.map(drop)
    }

    /// Ingests one part. Some parts are abandoned.
    fn ingest(&mut self, engine: &Engine) -> Result<(), Error> {
        let name = self.world.rng.below(NAMES) as u8;
        let cells = random_cells(&mut self.world, KEYS, 1 + self.parts % 50);
        let mut ingest = engine.ingest(&[name], 100 << 10)?;
        assert_eq!(position_of(ingest.position()), self.positions[&name]);
        self.parts += 1;
        if let Err(error) = push_all(&mut ingest, &cells) {
            self.refused.push(cells);
            return Err(error);
        }
        if self.world.rng.chance(0.2) {
            self.refused.push(cells);
            return Ok(());
        }
        match ingest.commit(&self.parts.to_be_bytes()) {
            Ok(()) => {
                self.positions.insert(name, Some(self.parts));
                acknowledge_all(&mut self.world, &cells);
                Ok(())
            }
            Err(error) => {
                match error {
                    Error::Full { .. } | Error::Exhausted { .. } => {
                        assert_eq!(position_of(ingest.rewind()), self.positions[&name]);
                        self.refused.push(cells);
                    }
                    _ => self.in_doubt = Some((name, Some(self.parts), cells)),
                }
                Err(error)
            }
        }
    }

    fn finish(&mut self, engine: &Engine) -> Result<(), Error> {
        let name = self.world.rng.below(NAMES) as u8;
        match engine.remove_ingest_cursor(&[name]) {
            Ok(()) => drop(self.positions.insert(name, None)),
            Err(error @ (Error::Full { .. } | Error::Exhausted { .. })) => return Err(error),
            Err(error) => {
                self.in_doubt = Some((name, None, Cells::new()));
                return Err(error);
            }
        }
        Ok(())
    }
}

fn position_of(bytes: Option<&[u8]>) -> Position {
    bytes.map(|bytes| u64::from_be_bytes(bytes.try_into().expect("8 bytes")))
}

fn positions_in(engine: &Engine) -> BTreeMap<u8, Position> {
    let mut positions: BTreeMap<u8, Position> = (0..NAMES as u8).map(|name| (name, None)).collect();
    for cursor in engine.ingest_cursors() {
        positions.insert(cursor.name[0], position_of(Some(&cursor.position)));
    }
    positions
}

/// Number of these cells whose versions the engine has.
fn count_seen(engine: &Engine, cells: &Cells) -> usize {
    let is_seen = |(key, cell): &(&Vec<u8>, &stdx::Cell)| {
        engine.get(key).expect("get").is_some_and(|seen| seen.meta.version == cell.meta.version)
    };
    cells.iter().filter(is_seen).count()
}

fn check_recovered(mut ended: Ended, disk: &MemFs) {
    let mut world = ended.world.beside(disk.clone());
    if disk.file_names().contains(&Path::new(DIR).join("CURRENT")) {
        verify(&world.env(), Path::new(DIR), None, &mut |_| ()).expect("what is left is whole");
    }
    let engine = world.open(&options());
    let found = positions_in(&engine);
    if let Some((name, position, cells)) = ended.in_doubt.take() {
        let has_happened = match name {
            u8::MAX => count_seen(&engine, &cells) > 0,
            _ => found[&name] == position && found != ended.positions,
        };
        if has_happened {
            acknowledge_all(&mut world, &cells);
            if name != u8::MAX {
                ended.positions.insert(name, position);
            }
        } else {
            assert_eq!(count_seen(&engine, &cells), 0, "cells without their position");
        }
    }
    assert_eq!(found, ended.positions);
    for cells in &ended.refused {
        assert_eq!(count_seen(&engine, cells), 0, "cells of a refused part");
    }
    world.check_all(&engine);

    // The ingests continue, and what is visible survives the next crash.
    for name in 0..NAMES as u8 {
        let mut ingest = engine.ingest(&[name], 0).expect("open");
        assert_eq!(position_of(ingest.position()), ended.positions[&name]);
        let cells = random_cells(&mut world, KEYS, 20);
        push_all(&mut ingest, &cells).expect("push");
        ended.parts += 1;
        ingest.commit(&ended.parts.to_be_bytes()).expect("a recovered engine takes cells");
        ended.positions.insert(name, Some(ended.parts));
        acknowledge_all(&mut world, &cells);
    }
    drop(engine);
    world.disk = disk.crash(&mut Rng::new(ended.parts));
    let engine = world.open(&options());
    assert_eq!(positions_in(&engine), ended.positions);
    world.check_all(&engine);
    engine.flush().expect("flush");
    engine.run_jobs().expect("jobs");
    world.check_all(&engine);
}

fn operations_of(seed: u64) -> u64 {
    run(seed, FaultPlan::none()).operations
}

#[test]
fn a_stop_at_any_operation_leaves_cells_and_position_together() {
    for seed in 0..3 {
        for operation in 0..operations_of(seed) {
            let ended = run(seed, FaultPlan::stop_after(operation));
            let how = (seed + operation) % 4;
            println!("seed {seed}, stopped at operation {operation}, end {how}");
            let disk = match how {
                0 => ended.world.disk.kill(),
                1 => ended.world.disk.kill().crash(&mut Rng::new(operation)),
                _ => ended.world.disk.crash(&mut Rng::new(operation)),
            };
            check_recovered(ended, &disk);
        }
    }
}

#[test]
fn a_write_torn_at_any_operation_leaves_cells_and_position_together() {
    for seed in 10..12 {
        for operation in 0..operations_of(seed) {
            let ended = run(seed, FaultPlan::stop_after(operation).tear_last_write());
            println!("seed {seed}, torn at operation {operation}");
            let disk = ended.world.disk.kill();
            let disk = if operation % 2 == 0 { disk } else { disk.crash(&mut Rng::new(operation)) };
            check_recovered(ended, &disk);
        }
    }
}

#[test]
fn a_full_disk_at_any_operation_refuses_the_part_and_leaves_nothing_behind() {
    for seed in 20..22 {
        for operation in 0..operations_of(seed) {
            let full = Fault::Error(std::io::ErrorKind::StorageFull);
            let plan = FaultPlan::on_operation(move |call| {
                let writes = matches!(
                    call.kind,
                    OperationKind::Write | OperationKind::SetLen | OperationKind::SyncData
                );
                (writes && call.number == operation).then(|| full.clone())
            });
            let ended = run(seed, plan);
            println!("seed {seed}, full at operation {operation}");
            assert!(ended.in_doubt.is_none(), "a full disk leaves no part in doubt");
            let disk = ended.world.disk.kill();
            let disk = if operation % 2 == 0 { disk } else { disk.crash(&mut Rng::new(operation)) };
            check_recovered(ended, &disk);
        }
    }
}

#[test]
fn no_error_of_any_operation_separates_cells_and_position() {
    let errnos = [libc::EMFILE, libc::ENOMEM, libc::EIO, libc::ENOSPC, libc::EDQUOT];
    let seed = 30;
    for operation in 0..operations_of(seed) {
        let errno = errnos[operation as usize % errnos.len()];
        for (nth, fault) in [
            Fault::Errno(errno),
            Fault::ErrnoAfterEffect(errno),
            Fault::LoseUnsynced { errno, seed: operation },
        ]
        .into_iter()
        .enumerate()
        {
            let syncs_only = matches!(fault, Fault::LoseUnsynced { .. });
            println!("seed {seed}, {fault:?} at operation {operation}");
            let plan = FaultPlan::on_operation(move |call| {
                let applies = match call.kind {
                    OperationKind::SyncData => true,
                    OperationKind::Open | OperationKind::Write | OperationKind::SetLen => !syncs_only,
                    OperationKind::SyncDir | OperationKind::Rename | OperationKind::Remove => !syncs_only,
                    _ => false,
                };
                (applies && call.number == operation).then(|| fault.clone())
            });
            let ended = run(seed, plan);
            let disk = match (operation + nth as u64) % 3 {
                0 => ended.world.disk.kill(),
                1 => {
                    let disk = ended.world.disk.kill();
                    disk.evict();
                    disk
                }
                _ => ended.world.disk.crash(&mut Rng::new(operation)),
            };
            check_recovered(ended, &disk);
        }
    }
}

/// The files of an interrupted ingest are removed when the engine opens.
#[test]
fn an_interrupted_part_leaves_no_file_after_the_next_open() {
    let mut world = World::new(40);
    let engine = world.open(&options());
    let cells = random_cells(&mut world, KEYS, 500);
    let mut ingest = engine.ingest(b"one", 0).expect("open");
    push_all(&mut ingest, &cells).expect("push");
    world.disk = world.disk.kill();
    assert!(!table_files(&world.disk).is_empty());
    let engine = world.open(&options());
    assert!(table_files(&world.disk).is_empty());
    assert_eq!(engine.ingest_cursors(), []);
    // The process that was killed does not remove files of the new one.
    std::mem::forget(ingest);
}
