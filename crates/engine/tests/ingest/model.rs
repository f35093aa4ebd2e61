//! Random ingests between writes, deletes, snapshots, flushes, compactions and restarts, against a
//! map.

use super::source::{Cells, acknowledge_all, random_cells};
use super::support::{World, batch_of, key_of, random_options, scan, small_options};
use engine::{Engine, Ingest, Options, Snapshot};
use std::time::Duration;
use stdx::Rng;

const KEYS: u64 = 90;
const NAMES: u64 = 4;

/// An ingest with the cells that were pushed since its last commit.
struct Open {
    ingest: Ingest,
    pushed: Cells,
}

struct Run {
    world: World,
    engine: Option<Engine>,
    open: Vec<Option<Open>>,
    /// The position of each name, as committed.
    positions: Vec<Option<u64>>,
    snapshots: Vec<(Snapshot, Cells)>,
    commits: u64,
}

impl Run {
    fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("it is open between operations")
    }

    fn operate(&mut self, options: &Options) {
        match self.world.rng.below(100) {
            0..30 => self.write(),
            30..55 => self.push(),
            55..65 => self.commit(),
            65..68 => self.abandon(),
            68..70 => self.finish(),
            70..85 => {
                let key = key_of(self.world.rng.below(KEYS));
                self.world.check_key(self.engine(), &key);
            }
            85..90 => self.world.clock.advance(Duration::from_millis(self.world.rng.below(3_000))),
            90..94 => self.keep_or_check_snapshot(),
            94..97 => self.world.check_all(self.engine()),
            97..99 => self.reopen(options),
            _ => {
                self.engine().flush().expect("flush");
                self.engine().run_jobs().expect("jobs");
            }
        }
    }

    fn write(&mut self) {
        let count = 1 + self.world.rng.below(4);
        let writes: Vec<_> = (0..count).map(|_| self.world.random_write(KEYS)).collect();
        self.engine().write(batch_of(&writes)).expect("write");
        for (key, cell) in &writes {
            self.world.acknowledge(key, cell);
        }
    }

    fn name(&mut self) -> usize {
        self.world.rng.below(NAMES) as usize
    }

    /// Pushes cells behind the last ones. If there is no key left, commits.
    fn push(&mut self) {
        let name = self.name();
        if self.open[name].is_none() {
            let expected_bytes = self.world.rng.below(200 << 10);
            let ingest = self.engine().ingest(&[name as u8], expected_bytes).expect("open");
            let position =
                ingest.position().map(|bytes| u64::from_be_bytes(bytes.try_into().expect("8 bytes")));
            assert_eq!(position, self.positions[name]);
            self.open[name] = Some(Open { ingest, pushed: Cells::new() });
        }
        let count = 1 + self.world.rng.below(40);
        let cells = random_cells(&mut self.world, KEYS, count);
        let Open { ingest, pushed } = self.open[name].as_mut().expect("it is open");
        for (key, cell) in cells {
            if pushed.last_key_value().is_none_or(|(last, _)| *last < key) {
                ingest.push(&key, cell.as_ref()).expect("push");
                pushed.insert(key, cell);
            }
        }
    }

    fn commit(&mut self) {
        let name = self.name();
        let Some(Open { ingest, pushed }) = &mut self.open[name] else { return };
        self.commits += 1;
        ingest.commit(&self.commits.to_be_bytes()).expect("commit");
        self.positions[name] = Some(self.commits);
        acknowledge_all(&mut self.world, &std::mem::take(pushed));
    }

    fn abandon(&mut self) {
        let name = self.name();
        match &mut self.open[name] {
            Some(Open { ingest, pushed }) if self.world.rng.chance(0.5) => {
                ingest.rewind();
                pushed.clear();
            }
            open => *open = None,
        }
    }

    fn finish(&mut self) {
        let name = self.name();
        match self.open[name].take() {
            Some(open) => open.ingest.finish().expect("finish"),
            None => self.engine().remove_ingest_cursor(&[name as u8]).expect("remove"),
        }
        self.positions[name] = None;
    }

    fn keep_or_check_snapshot(&mut self) {
        if self.snapshots.len() < 4 {
            let entry = (self.engine().snapshot(), scan(self.engine()));
            return self.snapshots.push(entry);
        }
        let (snapshot, expected) = self.snapshots.remove(0);
        let mut cursor = snapshot.cursor();
        engine::Cursor::seek_to_first(&mut cursor).expect("seek");
        let mut seen = Cells::new();
        while let Some((key, cell)) = engine::Cursor::entry(&cursor) {
            seen.insert(key.to_vec(), cell.to_cell());
            engine::Cursor::advance(&mut cursor).expect("advance");
        }
        assert_eq!(seen, expected);
    }

    fn reopen(&mut self, options: &Options) {
        self.snapshots.clear();
        self.open.iter_mut().for_each(|open| *open = None);
        self.engine = None;
        self.engine = Some(self.world.open(options));
        self.world.check_all(self.engine());
    }
}

fn run(seed: u64, operations: u64, options: &Options) {
    println!("seed {seed}, {options:?}");
    let mut world = World::new(seed);
    let mut jobs = Rng::new(seed ^ 1);
    let engine = Some(world.open(options));
    let open = (0..NAMES).map(|_| None).collect();
    let positions = vec![None; NAMES as usize];
    world.rng = Rng::new(seed);
    let mut run = Run { world, engine, open, positions, snapshots: Vec::new(), commits: 0 };
    for _ in 0..operations {
        run.operate(options);
        if jobs.chance(0.5) {
            std::mem::swap(&mut run.world.rng, &mut jobs);
            let engine = run.engine().clone();
            run.world.step_something(&engine).expect("step");
            std::mem::swap(&mut run.world.rng, &mut jobs);
        }
    }
    run.world.check_all(run.engine());
    assert!(run.engine().stats().ingest.cells > 0 || run.commits > 0);
    run.reopen(options);
}

#[test]
fn reads_agree_with_the_model() {
    for seed in 0..15 {
        run(seed, 1_200, &small_options());
    }
}

#[test]
fn the_options_do_not_change_the_results() {
    let mut rng = Rng::new(7);
    for seed in 100..130 {
        run(seed, 600, &random_options(&mut rng));
    }
}
