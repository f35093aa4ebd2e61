//! Sequences of operations on an engine, compared with a map.
//!
//! The input is a script: two bytes for the options, then operations of one to four bytes. The run
//! is deterministic: the file system is in memory, and the script advances the clock and steps the
//! jobs. A crash is that of the process or, if writes are synced, that of the machine. Acknowledged
//! writes survive both.

use bytes::Bytes;
use engine::{Batch, Compression, Cursor, Durability, Engine, Error, Options, Progress, Snapshot};
use env::{Clock, Env, ManualClock, MemFs};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use stdx::{Cell, CellKind, CellMeta, Hlc, NodeTag, Rng, Version, WallTime};

const DIR: &str = "/engine";
/// Number of keys of a script.
const KEYS: u8 = 40;
/// End of the range of local keys.
const LOCAL_END: &[u8] = b"c";
/// Grace period of tombstones.
const GRACE: Duration = Duration::from_secs(100);
/// 2026-01-01T00:00:00Z.
const START: WallTime = WallTime::from_micros_since_unix_epoch(1_767_225_600_000_000);
/// Maximum number of operations of a script. Later bytes are ignored.
const OPERATIONS_MAX: usize = 600;
/// Maximum number of snapshots that are kept.
const SNAPSHOTS_MAX: usize = 4;

type Cells = BTreeMap<Vec<u8>, Cell>;

/// Runs a script.
///
/// # Panics
/// If an answer of the engine differs from the map's, or the engine fails.
pub fn run(bytes: &[u8]) {
    let mut script = Script(bytes);
    let mut world = World::new(&mut script);
    for _ in 0..OPERATIONS_MAX {
        let Some(operation) = script.next() else { break };
        world.operate(operation, &mut script);
    }
    world.check_all();
    world.engine().flush().expect("flush");
    world.engine().run_jobs().expect("jobs");
    world.check_all();
    while let Some((snapshot, then)) = world.snapshots.pop() {
        assert_eq!(walk(&snapshot), then, "a snapshot has changed");
    }
}

/// The remaining bytes of an input.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// The next byte; 0 after the end.
    fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }
}

struct World {
    disk: MemFs,
    clock: Arc<ManualClock>,
    options: Options,
    engine: Option<Engine>,
    model: Cells,
    issued: Hlc,
    snapshots: Vec<(Snapshot, Cells)>,
    /// Positions of ingests, by name.
    positions: BTreeMap<[u8; 1], Vec<u8>>,
    checkpoints: u32,
}

impl World {
    fn new(script: &mut Script<'_>) -> Self {
        let mut world = Self {
            disk: MemFs::new(),
            clock: Arc::new(ManualClock::new(START)),
            options: options(script),
            engine: None,
            model: Cells::new(),
            issued: Hlc::ZERO,
            snapshots: Vec::new(),
            positions: BTreeMap::new(),
            checkpoints: 0,
        };
        world.open();
        world
    }

    fn env(&self) -> Env {
        Env { fs: Arc::new(self.disk.clone()), clock: Arc::clone(&self.clock) as Arc<dyn Clock> }
    }

    fn open(&mut self) {
        let opened = Engine::open(self.env(), Path::new(DIR), self.options.clone());
        self.engine = Some(opened.expect("open").0);
    }

    fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("it is open between operations")
    }

    fn wall(&self) -> WallTime {
        self.clock.now().wall
    }

    fn operate(&mut self, operation: u8, script: &mut Script<'_>) {
        let budget = 1 + u64::from(operation) * 64;
        match operation % 25 {
            0..8 => self.write(1, script),
            8 => self.write(2 + usize::from(operation / 24), script),
            9..12 => self.check_key(&key_of(script.byte())),
            12 | 13 => self.step(Engine::step_flush, budget),
            14 => self.step(|engine, bytes| engine.step_compaction(0, bytes), budget),
            15 => self.step(|engine, bytes| engine.step_compaction(1, bytes), budget),
            16 => self.step(Engine::step_upkeep, budget),
            17 => self.engine().flush().expect("flush"),
            18 => self.clock.advance(Duration::from_millis(u64::from(script.byte()) * 300)),
            19 => self.check_all(),
            20 => self.keep_or_check_snapshot(),
            21 => self.checkpoint(),
            22 => self.check_from(&key_of(script.byte())),
            23 => self.ingest(usize::from(operation / 25) * 4, script),
            _ => self.reopen(script),
        }
    }

    fn step(&self, job: fn(&Engine, u64) -> Result<Progress, Error>, budget: u64) {
        let _whether_it_worked = job(self.engine(), budget).expect("a job");
    }

    fn write(&mut self, count: usize, script: &mut Script<'_>) {
        let mut batch = Batch::new();
        for _ in 0..count {
            let key = key_of(script.byte());
            let cell = self.cell(&key, script);
            batch.put(&key, cell.as_ref());
            self.acknowledge(Cells::from([(key, cell)]));
        }
        // The limits in `options` are large enough that this write waits for no job: only this
        // thread runs jobs.
        self.engine().write(batch).expect("write");
    }

    /// Ingests up to `count` cells, in one to three commits. Some are not committed.
    fn ingest(&mut self, count: usize, script: &mut Script<'_>) {
        let mut cells = Cells::new();
        for _ in 0..count {
            let key = key_of(script.byte());
            if key.as_slice() >= LOCAL_END {
                let cell = self.cell(&key, script);
                cells.insert(key, cell);
            }
        }
        let name = [script.byte() % 3];
        let commits = script.byte();
        let mut ingest = self.engine().ingest(&name, u64::from(commits) << 10).expect("the name is not open");
        assert_eq!(ingest.position().map(<[u8]>::to_vec), self.positions.get(&name).cloned());
        let mut pushed = Cells::new();
        for (number, (key, cell)) in cells.into_iter().enumerate() {
            ingest.push(&key, cell.as_ref()).expect("push");
            pushed.insert(key, cell);
            if number % 4 == usize::from(commits % 8) {
                let position = vec![commits; number];
                ingest.commit(&position).expect("commit");
                self.positions.insert(name, position);
                self.acknowledge(std::mem::take(&mut pushed));
            }
        }
        if commits >= 200 {
            ingest.finish().expect("finish");
            self.positions.remove(&name);
        }
    }

    fn acknowledge(&mut self, cells: Cells) {
        for (key, cell) in cells {
            match self.model.get_mut(&key) {
                Some(held) if !cell.as_ref().supersedes(&held.as_ref()) => {}
                Some(held) => *held = cell,
                None => drop(self.model.insert(key, cell)),
            }
        }
    }

    fn cell(&mut self, key: &[u8], script: &mut Script<'_>) -> Cell {
        let kind = script.byte();
        // A write is late by up to half of the grace period. Writes to local keys are never late.
        let is_late = kind % 16 == 15 && key >= LOCAL_END;
        let version = if is_late { self.late_version(script) } else { self.next_version() };
        let len = match kind {
            0..200 => usize::from(kind % 64),
            200..250 => usize::from(kind) * 8,
            _ => usize::from(kind) * 80,
        };
        let value = Bytes::from(vec![kind; len]);
        match kind % 8 {
            0 | 1 => Cell::tombstone(version, 1),
            2 => {
                let expires_at = self.wall().saturating_add(GRACE / 256 * u32::from(script.byte()));
                let meta = CellMeta { expires_at: Some(expires_at), ..CellMeta::value(version, 1) };
                Cell { meta, value }
            }
            _ => Cell::value(version, 1, value),
        }
    }

    fn next_version(&mut self) -> Version {
        self.issued = Hlc::at(self.wall()).max(self.issued.next());
        Version::new(self.issued, NodeTag(7))
    }

    fn late_version(&mut self, script: &mut Script<'_>) -> Version {
        let ago = GRACE / 512 * u32::from(script.byte());
        Version::new(Hlc::at(self.wall().saturating_sub(ago)), NodeTag(6))
    }

    fn reopen(&mut self, script: &mut Script<'_>) {
        let kind = script.byte();
        if kind.is_multiple_of(4) {
            self.engine().close().expect("close");
        }
        let is_synced = self.options.durability == Durability::Sync;
        // Snapshots hold files of the previous disk.
        self.snapshots.clear();
        self.engine = None;
        match kind % 4 {
            2 => self.disk = self.disk.kill(),
            3 if is_synced => self.disk = self.disk.crash(&mut Rng::new(u64::from(kind))),
            _ => {}
        }
        if kind & 64 != 0 {
            self.options = options(script);
        }
        self.open();
        self.check_all();
    }

    fn keep_or_check_snapshot(&mut self) {
        if self.snapshots.len() < SNAPSHOTS_MAX {
            let snapshot = self.engine().snapshot();
            let cells = walk(&snapshot);
            return self.snapshots.push((snapshot, cells));
        }
        let (snapshot, then) = self.snapshots.remove(0);
        assert_eq!(walk(&snapshot), then, "a snapshot has changed");
    }

    fn checkpoint(&mut self) {
        self.checkpoints += 1;
        let dir = PathBuf::from(format!("/checkpoint-{}", self.checkpoints));
        self.engine().checkpoint(&dir).expect("checkpoint");
        let (engine, _) = Engine::open(self.env(), &dir, self.options.clone()).expect("the checkpoint opens");
        self.check_walk(&walk(&engine.snapshot()), &[]);
        drop(engine);
        self.engine().reclaim_checkpoint(&dir);
        self.env().fs.remove_dir_all(&dir).expect("memory does not fail");
    }

    /// Whether `seen` is a correct answer for `expected`: the same live value. For a key that is
    /// deleted or expired, the answer is none or a delete of that version.
    fn agrees(&self, expected: Option<&Cell>, seen: Option<&Cell>) -> bool {
        match (expected, seen) {
            (None, seen) => seen.is_none(),
            (Some(expected), _) if expected.meta.is_live_at(self.wall()) => seen == Some(expected),
            (Some(_), None) => true,
            (Some(expected), Some(seen)) => {
                let is_buried = seen.meta.kind == CellKind::Tombstone;
                seen == expected || is_buried && seen.meta.version == expected.meta.version
            }
        }
    }

    fn check_key(&self, key: &[u8]) {
        let seen = self.engine().get(key).expect("get");
        let expected = self.model.get(key);
        assert!(self.agrees(expected, seen.as_ref()), "{}: {expected:?}, {seen:?}", key.escape_ascii());
    }

    fn check_all(&self) {
        self.model.keys().for_each(|key| self.check_key(key));
        self.check_walk(&walk(&self.engine().snapshot()), &[]);
    }

    fn check_from(&self, start: &[u8]) {
        self.check_walk(&walk_from(&self.engine().snapshot(), start), start);
    }

    fn check_walk(&self, seen: &Cells, start: &[u8]) {
        for key in self.model.range(start.to_vec()..).map(|(key, _)| key).chain(seen.keys()) {
            let (expected, seen) = (self.model.get(key), seen.get(key));
            assert!(self.agrees(expected, seen), "a scan at {}: {expected:?}, {seen:?}", key.escape_ascii());
        }
    }
}

fn options(script: &mut Script<'_>) -> Options {
    let compression = script.choose(&[Compression::None, Compression::Lz4, Compression::Zstd(1)]);
    Options {
        durability: script.choose(&[Durability::Sync, Durability::Os]),
        memory_bytes: 16 << 20,
        memtable_bytes: Some(script.choose(&[1, 4 << 10, 64 << 10])),
        // Large enough that no write waits for a job, since only the script steps jobs.
        memtables_max: 1_000_000,
        block_bytes: script.choose(&[256, 1 << 10, 16 << 10]),
        compression,
        filter_bits_per_key: script.choose(&[1, 10]),
        table_bytes: script.choose(&[1 << 10, 8 << 10, 1 << 20]),
        level0_tables: script.choose(&[1, 2, 4]),
        level1_bytes: script.choose(&[4 << 10, 64 << 10]),
        level_growth: script.choose(&[2, 10]),
        tombstone_grace: GRACE,
        local_keys_end: script.choose(&[true, false]).then(|| LOCAL_END.to_vec()),
        wal_segment_bytes: 64 << 10,
        table_files_max: script.choose(&[1, 512]),
        ..Options::default()
    }
}

fn key_of(number: u8) -> Vec<u8> {
    let number = number % KEYS;
    let mut key = vec![b'a' + number % 8; 1 + usize::from(number % 3) * 4];
    key.push(number);
    key
}

fn walk(snapshot: &Snapshot) -> Cells {
    walk_from(snapshot, &[])
}

fn walk_from(snapshot: &Snapshot, start: &[u8]) -> Cells {
    let mut cells = Cells::new();
    let mut cursor = snapshot.cursor();
    cursor.seek(start).expect("seek");
    while let Some((key, cell)) = cursor.entry() {
        assert!(key >= start && cells.last_key_value().is_none_or(|(last, _)| last.as_slice() < key));
        cells.insert(key.to_vec(), cell.to_cell());
        cursor.advance().expect("advance");
    }
    cells
}

/// Random scripts: each byte is an operation or a part of one.
pub fn seeds() -> Vec<Vec<u8>> {
    let script = |seed: u64| {
        let mut script = vec![0; 60 + 60 * seed as usize];
        Rng::new(seed).fill(&mut script);
        script
    };
    (0..12).map(script).collect()
}
