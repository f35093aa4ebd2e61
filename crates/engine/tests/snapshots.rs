//! A snapshot shows the model of the moment it was taken, for any start and any sequence of seeks,
//! while writes continue and jobs are stepped at random points.

mod support;

use engine::{Cursor, Engine, Options, SnapshotCursor};
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::{Cell, CellKind, CellRef, Rng, WallTime};
use support::{World, batch_of, key_of, random_options, small_options};

const KEYS: u64 = 120;
/// Maximum number of concurrent cursors.
const WALKS_MAX: usize = 6;

/// A cursor that is moved in steps, with the expected entries.
struct Walk {
    cursor: SnapshotCursor,
    model: BTreeMap<Vec<u8>, Cell>,
    taken_at: WallTime,
    /// All keys before this one were shown since the last seek.
    from: Vec<u8>,
}

impl Walk {
    fn begin(world: &World, engine: &Engine) -> Self {
        let mut cursor = engine.snapshot().cursor();
        cursor.seek_to_first().expect("seek");
        Self { cursor, model: world.model.clone(), taken_at: world.wall(), from: Vec::new() }
    }

    fn seek(&mut self, cut: Vec<u8>) {
        self.cursor.seek(&cut).expect("seek");
        self.from = cut;
    }

    /// Advances by up to `entries` entries and compares them with the model. Returns false at the
    /// end.
    fn go_on(&mut self, entries: u64) -> bool {
        for _ in 0..entries {
            let Some((key, cell)) = self.cursor.entry() else {
                self.check_passed(None);
                return false;
            };
            assert!(*key >= *self.from, "{} comes again", key.escape_ascii());
            let expected = self.model.get(key);
            let expected = expected.unwrap_or_else(|| panic!("{} came later", key.escape_ascii()));
            assert!(self.may_show(expected, &cell), "{}: {cell:?}, not {expected:?}", key.escape_ascii());
            let key = key.to_vec();
            self.check_passed(Some(&key));
            self.from = [&key[..], &[0]].concat();
            self.cursor.advance().expect("advance");
        }
        true
    }

    /// A live cell must be shown unchanged; a dead one unchanged or as a delete.
    fn may_show(&self, expected: &Cell, seen: &CellRef<'_>) -> bool {
        let is_delete = seen.meta.kind == CellKind::Tombstone && seen.meta.version == expected.meta.version;
        seen.to_cell() == *expected || (is_delete && !expected.meta.is_live_at(self.taken_at))
    }

    /// Checks that no live key between the last entry and `key` was skipped.
    fn check_passed(&self, key: Option<&[u8]>) {
        for (passed, cell) in self.model.range(self.from.clone()..) {
            if key.is_some_and(|key| passed.as_slice() >= key) {
                return;
            }
            let passed = passed.escape_ascii();
            assert!(!cell.meta.is_live_at(self.taken_at), "{passed} was passed over: {cell:?}");
        }
    }
}

/// A key between, before, at or behind the keys of the model.
fn random_cut(rng: &mut Rng) -> Vec<u8> {
    let mut cut = key_of(rng.below(KEYS));
    match rng.below(4) {
        0 => cut.push(0),
        1 => cut.truncate(rng.below(cut.len() as u64 + 1) as usize),
        2 => *cut.last_mut().expect("keys have bytes") ^= 1 << rng.below(8),
        _ => {}
    }
    cut
}

fn run(seed: u64, options: &Options) {
    println!("seed {seed}, {options:?}");
    let mut world = World::new(seed);
    let engine = world.open(options);
    let mut walks: Vec<Walk> = Vec::new();
    let mut ended = 0;
    for _ in 0..1_500 {
        match world.rng.below(100) {
            0..50 => {
                let writes: Vec<_> = (0..4).map(|_| world.random_write(KEYS)).collect();
                engine.write(batch_of(&writes)).expect("write");
                writes.iter().for_each(|(key, cell)| world.acknowledge(key, cell));
            }
            50..70 => world.step_something(&engine).expect("step"),
            70..72 => world.clock.advance(Duration::from_secs(world.rng.below(60))),
            72 => engine.flush().and_then(|()| engine.run_jobs()).expect("jobs"),
            73..75 if walks.len() < WALKS_MAX => walks.push(Walk::begin(&world, &engine)),
            75..80 if !walks.is_empty() => {
                let cut = random_cut(&mut world.rng);
                let at = world.rng.below(walks.len() as u64) as usize;
                walks[at].seek(cut);
            }
            _ if !walks.is_empty() => {
                let at = world.rng.below(walks.len() as u64) as usize;
                if !walks[at].go_on(world.rng.below(12)) {
                    ended += 1;
                    if world.rng.chance(0.5) {
                        walks.swap_remove(at);
                    }
                }
            }
            _ => {}
        }
    }
    for mut walk in walks {
        walk.seek(Vec::new());
        while walk.go_on(100) {}
    }
    assert!(ended > 0, "some walk came to its end");
}

#[test]
fn a_cursor_shows_the_model_as_of_its_snapshot() {
    for seed in 0..15 {
        run(seed, &small_options());
    }
}

#[test]
fn engine_options_do_not_change_snapshots() {
    let mut rng = Rng::new(77);
    for seed in 100..115 {
        run(seed, &random_options(&mut rng));
    }
}

#[test]
fn a_memtable_is_accounted_until_its_last_reader_is_gone() {
    let mut world = World::new(1);
    let engine = world.open(&small_options());
    let held = || engine.stats().memory.pinned_memtable_bytes;
    let mut write_and_flush = || {
        engine.write(batch_of(&[world.random_write(KEYS)])).expect("write");
        engine.flush().expect("flush");
    };
    write_and_flush();
    assert_eq!(held(), 0, "nobody holds it");
    let (older, newer) = (engine.snapshot(), engine.snapshot());
    let cursor = older.cursor();
    write_and_flush();
    let one = held();
    assert!(one > 0, "the memtable that was active when they were taken");
    let last = engine.snapshot();
    write_and_flush();
    assert!(held() > one && engine.stats().memory.used_bytes() > held());
    drop((older, last));
    assert_eq!(held(), one, "both of the others hold it");
    drop(newer);
    assert_eq!(held(), one, "a cursor holds what its snapshot did");
    drop(cursor);
    assert_eq!(held(), 0);
}
