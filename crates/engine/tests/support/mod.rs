//! A world for tests of the whole engine: an in-memory disk, a manual clock, an engine whose jobs
//! are stepped at random points, and a model that predicts all reads.
#![allow(dead_code, unreachable_pub)]

pub mod damage;

use bytes::Bytes;
use engine::{Batch, Compression, Cursor, Durability, Engine, Error, Options, TryGet};
use env::{Env, Fs, ManualClock, MemFs};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Cell, CellKind, CellMeta, Hlc, NodeTag, Rng, Version, WallTime};

/// Directory of the engine in every test.
pub const DIR: &str = "/data/shard-000";
/// Keys below this one are local: their tombstones need no grace period.
pub const LOCAL_END: &[u8] = &[1];
/// Grace period of tombstones of other keys in these tests.
pub const GRACE: Duration = Duration::from_secs(100);
/// 2026-01-01T00:00:00Z.
const START: WallTime = WallTime::from_micros_since_unix_epoch(1_767_225_600_000_000);

/// Options under which flushes and compactions need little data.
pub fn small_options() -> Options {
    Options {
        memory_bytes: 16 << 20,
        memtable_bytes: Some(16 << 10),
        memtables_max: 3,
        block_bytes: 512,
        table_bytes: 8 << 10,
        level0_tables: 2,
        level1_bytes: 32 << 10,
        level_growth: 4,
        tombstone_grace: GRACE,
        local_keys_end: Some(LOCAL_END.to_vec()),
        wal_segment_bytes: 64 << 10,
        ..Options::default()
    }
}

/// Random options, all of which must give the same results.
pub fn random_options(rng: &mut Rng) -> Options {
    let pick = |rng: &mut Rng, choices: &[u64]| choices[rng.below(choices.len() as u64) as usize];
    Options {
        durability: if rng.chance(0.5) { Durability::Sync } else { Durability::Os },
        memtable_bytes: Some(pick(rng, &[1, 4 << 10, 16 << 10, 1 << 20])),
        memtables_max: pick(rng, &[2, 3, 8]) as usize,
        block_bytes: pick(rng, &[256, 1_024, 16 << 10]) as usize,
        compression: [Compression::None, Compression::Lz4, Compression::Zstd(1)][rng.below(3) as usize],
        filter_bits_per_key: pick(rng, &[1, 10, 20]) as u32,
        table_bytes: pick(rng, &[1 << 10, 8 << 10, 1 << 20]),
        level0_tables: pick(rng, &[1, 2, 4]) as usize,
        level1_bytes: pick(rng, &[4 << 10, 64 << 10]),
        level_growth: pick(rng, &[2, 10]),
        local_keys_end: rng.chance(0.5).then(|| LOCAL_END.to_vec()),
        ..small_options()
    }
}

/// The model and the clock.
pub struct World {
    pub disk: MemFs,
    pub clock: Arc<ManualClock>,
    pub model: BTreeMap<Vec<u8>, Cell>,
    pub rng: Rng,
    issued: Hlc,
}

impl World {
    pub fn new(seed: u64) -> Self {
        Self::on(MemFs::new(), seed)
    }

    pub fn on(disk: MemFs, seed: u64) -> Self {
        let clock = Arc::new(ManualClock::new(START));
        Self { disk, clock, model: BTreeMap::new(), rng: Rng::new(seed), issued: Hlc::ZERO }
    }

    /// A world with the same history on `disk`.
    pub fn beside(&self, disk: MemFs) -> Self {
        Self {
            disk,
            clock: Arc::clone(&self.clock),
            model: self.model.clone(),
            rng: self.rng.clone(),
            issued: self.issued,
        }
    }

    pub fn env(&self) -> Env {
        self.env_over(Arc::new(self.disk.clone()))
    }

    pub fn env_over(&self, fs: Arc<dyn Fs>) -> Env {
        Env { fs, clock: Arc::clone(&self.clock) as _ }
    }

    pub fn open(&self, options: &Options) -> Engine {
        self.try_open(options).unwrap_or_else(|error| panic!("cannot open: {error}"))
    }

    pub fn try_open(&self, options: &Options) -> Result<Engine, Error> {
        Engine::open(self.env(), Path::new(DIR), options.clone()).map(|(engine, _)| engine)
    }

    pub fn wall(&self) -> WallTime {
        env::Clock::now(&*self.clock).wall
    }

    /// A version newer than all before.
    pub fn next_version(&mut self) -> Version {
        self.issued = Hlc::at(self.wall()).max(self.issued.next());
        Version::new(self.issued, NodeTag(7))
    }

    /// A version of up to half a grace period ago: a late write, as hints and repairs make.
    pub fn late_version(&mut self) -> Version {
        let ago = GRACE.mul_f64(self.rng.unit() * 0.5);
        let counter = self.rng.below(0xfff);
        Version::new(Hlc::from_bits(Hlc::at(self.wall().saturating_sub(ago)).to_bits() + counter), NodeTag(7))
    }

    /// A random cell for a random one of `keys` keys.
    pub fn random_write(&mut self, keys: u64) -> (Vec<u8>, Cell) {
        let key = key_of(self.rng.below(keys));
        // A late write of a local key may reappear: nothing waits for it.
        let late = self.rng.chance(0.2) && key.as_slice() >= LOCAL_END;
        let version = if late { self.late_version() } else { self.next_version() };
        let cell = match self.rng.below(10) {
            0..2 => Cell::tombstone(version, 1),
            2..4 => {
                let expires_at = self.wall().saturating_add(GRACE.mul_f64(self.rng.unit()));
                Cell {
                    meta: CellMeta { expires_at: Some(expires_at), ..CellMeta::value(version, 1) },
                    ..self.value(version)
                }
            }
            _ => self.value(version),
        };
        (key, cell)
    }

    fn value(&mut self, version: Version) -> Cell {
        let len = if self.rng.chance(0.02) { self.rng.below(9_000) } else { self.rng.below(120) };
        let mut value = vec![0; len as usize];
        self.rng.fill(&mut value);
        Cell::value(version, 1, Bytes::from(value))
    }

    /// Records that `cell` was acknowledged.
    pub fn acknowledge(&mut self, key: &[u8], cell: &Cell) {
        match self.model.get_mut(key) {
            Some(held) if cell.as_ref().supersedes(&held.as_ref()) => *held = cell.clone(),
            Some(_) => {}
            None => drop(self.model.insert(key.to_vec(), cell.clone())),
        }
    }

    /// Whether a reader may see `seen` where the model holds `expected`: the same live value; or,
    /// for a deleted or expired key, nothing or a delete of that version.
    pub fn agrees(&self, expected: Option<&Cell>, seen: Option<&Cell>) -> bool {
        let wall = self.wall();
        match (expected, seen) {
            (None, None) => true,
            (None, Some(_)) => false,
            (Some(expected), _) if expected.meta.is_live_at(wall) => seen == Some(expected),
            (Some(_), None) => true,
            (Some(expected), Some(seen)) => {
                seen == expected
                    || (seen.meta.kind == CellKind::Tombstone && seen.meta.version == expected.meta.version)
            }
        }
    }

    /// Compares a point read with the model.
    pub fn check_key(&self, engine: &Engine, key: &[u8]) {
        let seen = engine.get(key).unwrap_or_else(|error| panic!("get {}: {error}", key.escape_ascii()));
        let expected = self.model.get(key);
        assert!(
            self.agrees(expected, seen.as_ref()),
            "key {}: expected {expected:?}, saw {seen:?}",
            key.escape_ascii()
        );
        let meta = engine.get_meta(key).unwrap_or_else(|error| panic!("get {}: {error}", key.escape_ascii()));
        assert_eq!(meta, seen.map(|cell| cell.meta), "key {}", key.escape_ascii());
        if let TryGet::Ready(read) = engine.try_get_meta(key).expect("it was just read") {
            assert_eq!(read, meta, "key {}", key.escape_ascii());
        }
    }

    /// Compares the whole engine with the model, by point reads and by a scan.
    pub fn check_all(&self, engine: &Engine) {
        for key in self.model.keys() {
            self.check_key(engine, key);
        }
        let seen = scan(engine);
        let versions: BTreeMap<_, _> = seen.iter().map(|(key, cell)| (key.clone(), cell.meta)).collect();
        assert_eq!(scan_versions(engine), versions);
        for (key, cell) in &seen {
            let expected = self.model.get(key);
            assert!(
                self.agrees(expected, Some(cell)),
                "scan at {}: {expected:?} and {cell:?}",
                key.escape_ascii()
            );
        }
        for (key, cell) in &self.model {
            if cell.meta.is_live_at(self.wall()) {
                assert!(seen.contains_key(key), "the scan misses {}", key.escape_ascii());
            }
        }
    }

    /// Steps a random job.
    pub fn step_something(&mut self, engine: &Engine) -> Result<(), Error> {
        let budget = 1 + self.rng.below(16 << 10);
        match self.rng.below(4) {
            0 => engine.step_flush(budget).map(drop),
            1 => engine.step_compaction(0, budget).map(drop),
            2 => engine.step_compaction(1, budget).map(drop),
            _ => engine.step_upkeep(budget).map(drop),
        }
    }
}

/// The key with this number. Lengths differ, some keys are prefixes of others, and every third is
/// local.
pub fn key_of(number: u64) -> Vec<u8> {
    let space = if (number / 3).is_multiple_of(3) { "\0" } else { "" };
    let mut key = format!("{space}key-{:03}", number / 3).into_bytes();
    key.extend_from_slice(&b"/\0\xff"[..(number % 3) as usize]);
    key
}

/// The result of a scan of everything, in key order.
pub fn scan(engine: &Engine) -> BTreeMap<Vec<u8>, Cell> {
    let mut seen = BTreeMap::new();
    let mut cursor = engine.snapshot().cursor();
    cursor.seek_to_first().expect("seek");
    let mut last: Option<Vec<u8>> = None;
    while let Some((key, cell)) = cursor.entry() {
        assert!(last.as_deref().is_none_or(|last| last < key), "a scan ascends");
        last = Some(key.to_vec());
        seen.insert(key.to_vec(), cell.to_cell());
        cursor.advance().expect("advance");
    }
    seen
}

/// The result of a scan for versions, in key order.
pub fn scan_versions(engine: &Engine) -> BTreeMap<Vec<u8>, CellMeta> {
    let mut seen = BTreeMap::new();
    let mut cursor = engine.snapshot().version_cursor();
    cursor.seek_to_first().expect("seek");
    while let Some((key, meta)) = cursor.key_and_meta() {
        seen.insert(key.to_vec(), meta);
        cursor.advance().expect("advance");
    }
    seen
}

/// A batch of these writes.
pub fn batch_of<'a>(writes: impl IntoIterator<Item = &'a (Vec<u8>, Cell)>) -> Batch {
    let mut batch = Batch::new();
    for (key, cell) in writes {
        batch.put(key, cell.as_ref());
    }
    batch
}
