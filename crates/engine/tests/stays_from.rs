//! A disowned range hides the keys of which all cells have a smaller `from` than the range says,
//! and keeps the others whole.

mod support;

use bytes::Bytes;
use engine::{Cursor, Engine, Error, ErrorKind, HashRange, Options, OwnedRange, Progress, verify_showing};
use env::{FaultFs, FaultPlan, MemFs};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use stdx::{Cell, CellKind, CellMeta, Rng};
use support::{DIR, GRACE, LOCAL_END, World, batch_of, key_of, random_options, scan, small_options};
use xxhash_rust::xxh3::xxh3_64;

const KEYS: u64 = 120;
const FROM_MAX: u8 = 5;

/// A part of a quarter of all hashes.
fn part(quarter: u64, stays_from: u8) -> OwnedRange {
    let first = quarter << 62;
    OwnedRange { range: HashRange { first, last: first | ((1 << 62) - 1) }, stays_from }
}

fn quarter_of(key: &[u8]) -> Option<u64> {
    (key >= LOCAL_END).then(|| xxh3_64(&key[1..]) >> 62)
}

/// Everything that an engine was given and has not hidden since.
struct Run {
    world: World,
    /// The cells of each key. Those of hidden keys are forgotten: they may be purged.
    cells: BTreeMap<Vec<u8>, Vec<Cell>>,
    stays_from: BTreeMap<u64, u8>,
    /// Keys whose last write is in doubt.
    in_doubt: BTreeSet<Vec<u8>>,
    owned_again: usize,
}

impl Run {
    fn new(world: World) -> Self {
        let (cells, stays_from, in_doubt) = Default::default();
        Self { world, cells, stays_from, in_doubt, owned_again: 0 }
    }

    fn stays_from(&self, key: &[u8]) -> u8 {
        quarter_of(key).and_then(|quarter| self.stays_from.get(&quarter).copied()).unwrap_or(1)
    }

    fn forget_hidden(&mut self) {
        let mut cells = std::mem::take(&mut self.cells);
        cells.retain(|key, cells| greatest_from(cells) >= self.stays_from(key));
        self.cells = cells;
    }

    fn random_write(&mut self) -> (Vec<u8>, Cell) {
        let key = key_of(self.world.rng.below(KEYS));
        let least = self.stays_from(&key);
        let from = least + self.world.rng.below(u64::from(FROM_MAX - least) + 1) as u8;
        let is_late =
            self.world.rng.chance(0.3) && self.cells.contains_key(&key) && key.as_slice() >= LOCAL_END;
        let version = if is_late { self.world.late_version() } else { self.world.next_version() };
        let cell = match self.world.rng.below(5) {
            0 => Cell::tombstone(version, from),
            _ => {
                let len = if self.world.rng.chance(0.02) { 9_000 } else { self.world.rng.below(120) };
                Cell::value(version, from, Bytes::from(vec![from; len as usize]))
            }
        };
        (key, cell)
    }

    fn operate(&mut self, engine: &Engine) -> Result<(), Error> {
        match self.world.rng.below(20) {
            0..10 => {
                let (key, cell) = self.random_write();
                match engine.write(batch_of([&(key.clone(), cell.clone())])) {
                    Ok(_) => self.cells.entry(key).or_default().push(cell),
                    Err(error) => {
                        self.in_doubt.insert(key);
                        return Err(error);
                    }
                }
            }
            10 => {
                let quarter = self.world.rng.below(4);
                let held = self.stays_from.get(&quarter).copied().unwrap_or(1);
                let stays_from = 2 + self.world.rng.below(u64::from(FROM_MAX) - 1) as u8;
                let disowned = engine.disown(&[part(quarter, stays_from)]);
                if stays_from < held {
                    assert_eq!(disowned.expect_err("owned again").kind(), ErrorKind::Invalid);
                    return Ok(());
                }
                self.settle(engine, quarter, stays_from, disowned)?;
            }
            11..13 => {
                let quarter = self.world.rng.below(4);
                let held = self.stays_from.get(&quarter).copied().unwrap_or(1);
                let stays_from = 1 + self.world.rng.below(u64::from(held)) as u8;
                match engine.own_again(&[part(quarter, stays_from)]) {
                    Err(Error::Invalid(_)) => {}
                    done => {
                        self.settle(engine, quarter, stays_from, done)?;
                        self.owned_again += usize::from(stays_from < held);
                    }
                }
            }
            13..18 => self.world.step_something(engine)?,
            18 => engine.flush()?,
            _ => engine.run_jobs()?,
        }
        Ok(())
    }

    /// Records the outcome of a change of what is owned.
    fn settle(
        &mut self,
        engine: &Engine,
        quarter: u64,
        stays_from: u8,
        done: Result<(), Error>,
    ) -> Result<(), Error> {
        if done.is_ok() {
            self.stays_from.insert(quarter, stays_from);
            assert_eq!(found(engine).get(&quarter).copied().unwrap_or(1), stays_from);
        } else {
            self.in_doubt.extend((0..KEYS).map(key_of).filter(|key| quarter_of(key) == Some(quarter)));
        }
        self.forget_hidden();
        done
    }

    fn expected(&self, key: &[u8]) -> Option<(CellMeta, Bytes)> {
        let cells = self.cells.get(key)?;
        let newest = cells.iter().reduce(|held, cell| if supersedes(cell, held) { cell } else { held })?;
        Some((CellMeta { from: greatest_from(cells), ..newest.meta }, newest.value.clone()))
    }

    fn check(&self, engine: &Engine) {
        let scanned = scan(engine);
        for key in (0..KEYS).map(key_of).filter(|key| !self.in_doubt.contains(key)) {
            let expected = self.expected(&key);
            let seen = scanned.get(&key).map(|cell| (cell.meta, cell.value.clone()));
            let without_from = |(meta, value): (CellMeta, Bytes)| (CellMeta { from: 1, ..meta }, value);
            // A tombstone of a local key is collected at once, with its `from`.
            let is_local = quarter_of(&key).is_none();
            if is_local && expected.as_ref().is_some_and(|(meta, _)| meta.kind == CellKind::Tombstone) {
                continue;
            }
            match is_local {
                true => assert_eq!(seen.map(without_from), expected.clone().map(without_from)),
                false => assert_eq!(seen, expected, "a scan at {}", key.escape_ascii()),
            }
            let expected = expected.map(without_from);
            let read = engine.get(&key).expect("get").map(|cell| (cell.meta, cell.value));
            assert_eq!(read.map(without_from), expected, "a read of {}", key.escape_ascii());
            let meta = engine.get_meta(&key).expect("get").map(|meta| CellMeta { from: 1, ..meta });
            assert_eq!(meta, expected.map(|(meta, _)| meta), "the metadata of {}", key.escape_ascii());
        }
        let mut cursor = engine.snapshot().version_cursor();
        cursor.seek_to_first().expect("seek");
        let mut versions = 0;
        while cursor.key_and_meta().is_some() {
            versions += 1;
            cursor.advance().expect("advance");
        }
        assert_eq!(versions, scanned.len());
    }

    /// Checks that nothing on disk is hidden in the ranges that are purged.
    fn check_purged(&self, engine: Engine) {
        let purged: BTreeMap<u64, u8> = engine
            .disowned()
            .into_iter()
            .filter(|progress| progress.is_purged)
            .map(|progress| (progress.range.first >> 62, progress.stays_from))
            .collect();
        engine.close().expect("close");
        drop(engine);
        let mut left = Vec::new();
        let mut show = |key: &[u8], meta: &CellMeta| {
            let stays_from = quarter_of(key).and_then(|quarter| purged.get(&quarter));
            if stays_from.is_some_and(|stays_from| meta.from < *stays_from) {
                left.push(key.to_vec());
            }
        };
        verify_showing(&self.world.env(), Path::new(DIR), None, &mut |_| (), &mut show).expect("verify");
        assert!(left.is_empty(), "{left:?} of {purged:?}");
    }
}

fn found(engine: &Engine) -> BTreeMap<u64, u8> {
    engine.disowned().iter().map(|progress| (progress.range.first >> 62, progress.stays_from)).collect()
}

fn greatest_from(cells: &[Cell]) -> u8 {
    cells.iter().map(|cell| cell.meta.from).max().unwrap_or(0)
}

fn supersedes(cell: &Cell, other: &Cell) -> bool {
    cell.as_ref().supersedes(&other.as_ref())
}

#[test]
fn reads_agree_with_the_model_under_any_options() {
    let mut rng = Rng::new(5);
    let mut owned_again = 0;
    for seed in 0..25 {
        let options = if seed < 10 { small_options() } else { random_options(&mut rng) };
        let options = Options { local_keys_end: Some(LOCAL_END.to_vec()), ..options };
        println!("seed {seed}, {options:?}");
        let mut run = Run::new(World::new(seed));
        let mut engine = run.world.open(&options);
        for operation in 0..700 {
            run.operate(&engine).expect("an operation");
            if operation % 25 == 24 {
                run.check(&engine);
            }
            if operation % 120 == 119 {
                engine.run_jobs().expect("jobs");
                engine.close().expect("close");
                let disowned = engine.disowned();
                drop(engine);
                run.world.disk = run.world.disk.kill();
                engine = run.world.open(&options);
                assert_eq!(disowned.len(), engine.disowned().len());
                run.check(&engine);
            }
        }
        owned_again += run.owned_again;
        // The second compaction may be under way.
        while engine.step_compaction(1, 1 << 20).expect("a step") != Progress::Idle {}
        engine.run_jobs().expect("jobs");
        engine.flush().expect("flush");
        run.check(&engine);
        let purged = engine.disowned().iter().filter(|progress| progress.bytes_left == 0).count();
        assert_eq!(purged, engine.disowned().len(), "the purge ends");
        run.check_purged(engine);
    }
    assert!(owned_again > 100, "{owned_again} ranges were owned again");
}

fn with_local_keys() -> Options {
    Options { local_keys_end: Some(LOCAL_END.to_vec()), ..small_options() }
}

#[test]
fn a_stop_at_any_operation_hides_the_same_keys() {
    let run_with = |seed: u64, plan: FaultPlan| {
        let world = World::new(seed);
        let faults = FaultFs::new(Arc::new(world.disk.clone()), plan);
        let env = world.env_over(Arc::new(faults.clone()));
        let mut run = Run::new(world);
        let options =
            Options { memtable_bytes: Some(4 << 10), wal_segment_bytes: 16 << 10, ..with_local_keys() };
        if let Ok((engine, _)) = Engine::open(env, Path::new(DIR), options) {
            for _ in 0..80 {
                if run.operate(&engine).is_err() {
                    break;
                }
            }
        }
        (run, faults.operations())
    };
    for seed in 60..63 {
        let (_, operations) = run_with(seed, FaultPlan::none());
        for operation in 0..operations {
            println!("seed {seed}, stopped at operation {operation}");
            let (mut run, _) = run_with(seed, FaultPlan::stop_after(operation));
            run.world.disk = match operation % 3 {
                0 => run.world.disk.kill(),
                _ => run.world.disk.crash(&mut Rng::new(operation)),
            };
            let engine = run.world.open(&with_local_keys());
            run.check(&engine);
            engine.flush().expect("flush");
            engine.run_jobs().expect("jobs");
            run.check(&engine);
            let parts: Vec<_> = found(&engine).into_keys().map(|quarter| part(quarter, 1)).collect();
            let before = scan(&engine);
            engine.own_again(&parts).expect("purged");
            assert_eq!(scan(&engine), before, "a key came back");
        }
    }
}

/// A key of the first quarter.
fn some_key() -> Vec<u8> {
    (0..).map(key_of).find(|key| quarter_of(key) == Some(0)).expect("a key")
}

/// An engine with the key in two tables: an older cell from 3, and a newer one from 1.
fn engine_with_both(world: &mut World) -> (Engine, Cell) {
    let engine = world.open(&small_options());
    let older = Cell::value(world.next_version(), 3, "older".into());
    let newer = Cell::value(world.next_version(), 1, "newer".into());
    for cell in [older, newer.clone()] {
        engine.write(batch_of([&(some_key(), cell)])).expect("write");
        engine.flush().expect("flush");
    }
    (engine, newer)
}

#[test]
fn a_newer_cell_with_a_smaller_from_stays() {
    let mut world = World::new(1);
    let (engine, newer) = engine_with_both(&mut world);
    engine.disown(&[part(0, 3)]).expect("disown");
    assert_eq!(engine.get(&some_key()).expect("get"), Some(newer.clone()));
    engine.run_jobs().expect("jobs");
    let kept = engine.get(&some_key()).expect("get").map(|cell| cell.value);
    assert_eq!(kept, Some(newer.value), "the purge leaves it");
    assert!(engine.disowned()[0].bytes_left == 0);
    engine.disown(&[part(0, 4)]).expect("further back");
    assert_eq!(engine.get(&some_key()).expect("get"), None);
    let early = engine.own_again(&[part(0, 3)]).expect_err("not purged");
    assert_eq!(early.kind(), ErrorKind::Invalid);
    engine.run_jobs().expect("jobs");
    engine.own_again(&[part(0, 3)]).expect("purged");
    assert_eq!(engine.disowned()[0].stays_from, 3);
    assert_eq!(engine.get(&some_key()).expect("get"), None, "it does not come back");
}

#[test]
fn a_rewritten_cell_stays_after_the_one_that_kept_it_was_collected() {
    let mut world = World::new(2);
    let options = Options { level0_tables: 100, ..small_options() };
    let engine = world.open(&options);
    let older = Cell::tombstone(world.next_version(), 3);
    engine.write(batch_of([&(some_key(), older)])).expect("write");
    engine.flush().expect("flush");
    let newer = Cell::value(world.next_version(), 1, "newer".into());
    engine.write(batch_of([&(some_key(), newer.clone())])).expect("write");
    engine.disown(&[part(0, 3)]).expect("disown");
    engine.flush().expect("flush");
    world.clock.advance(GRACE * 3);
    engine.run_jobs().expect("jobs");
    assert!(engine.disowned()[0].bytes_left == 0);
    assert_eq!(engine.get(&some_key()).expect("get"), Some(newer.with_from_of_at_least(3)));
    let run = Run::new(world);
    run.check_purged(engine);
}

#[test]
fn an_ingest_takes_the_cells_that_stay() {
    let mut world = World::new(3);
    let engine = world.open(&small_options());
    engine.disown(&[part(0, 3)]).expect("disown");
    let mut ingest = engine.ingest(b"one", 0).expect("open");
    let stays = Cell::value(world.next_version(), 3, "stays".into());
    let hidden = Cell::value(world.next_version(), 2, "hidden".into());
    let refused = ingest.push(&some_key(), hidden.as_ref()).expect_err("hidden");
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    ingest.rewind();
    ingest.push(&some_key(), stays.as_ref()).expect("push");
    ingest.commit(b"p").expect("commit");
    assert_eq!(engine.get(&some_key()).expect("get"), Some(stays));
}

#[test]
fn a_part_that_is_disowned_already_is_not_disowned_again() {
    let world = World::new(4);
    let engine = world.open(&small_options());
    engine.disown(&[part(0, 3)]).expect("disown");
    engine.disown(&[part(0, 3)]).expect("once more");
    assert_eq!(engine.disown(&[part(0, 2)]).expect_err("a regain").kind(), ErrorKind::Invalid);
    assert_eq!(engine.disown(&[part(1, 1)]).expect_err("nothing").kind(), ErrorKind::Invalid);
    engine.own_again(&[part(0, 3), part(0, 4), part(1, 1)]).expect("all of it is owned");
    assert_eq!(found(&engine), BTreeMap::from([(0, 3)]));
}

#[test]
fn a_disowned_part_survives_a_crash() {
    let mut world = World::new(5);
    let (engine, newer) = engine_with_both(&mut world);
    engine.disown(&[part(0, 3)]).expect("disown");
    drop(engine);
    let crashed: MemFs = world.disk.crash(&mut Rng::new(1));
    let engine = world.beside(crashed).open(&small_options());
    assert_eq!(found(&engine), BTreeMap::from([(0, 3)]));
    assert_eq!(engine.get(&some_key()).expect("get"), Some(newer));
}
