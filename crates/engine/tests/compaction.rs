//! Flush and compaction against a model: any merges in any order and pace change no read result and
//! restore no deleted value.

use engine::internals::Sequence;
use engine::internals::cache::BlockCache;
use engine::internals::compaction::{CompactionStep, FlushJob, Input, Job, JobContext, Plan, Reason, pick};
use engine::internals::manifest::{LEVELS, Levels, VersionEdit};
use engine::internals::memtable::Memtable;
use engine::internals::ownership::{JobFilter, OtherSources};
use engine::internals::sstable::{ReadMode, Table, TableFiles, TableId, TableOptions, file_name};
use engine::{Compression, Cursor, Error, ErrorKind, Options};
use env::{Env, Fault, FaultFs, FaultPlan, Fs, ManualClock, MemFs, OperationKind, OperationMatch};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use stdx::{Cell, CellKind, CellMeta, Hlc, NodeTag, Rng, Version, WallTime};

const DIR: &str = "/tables";
const GRACE: u64 = 100;
const KEYS: u64 = 40;

fn at(second: u64) -> WallTime {
    WallTime::EPOCH_2020.saturating_add(Duration::from_secs(second))
}

struct Store {
    disk: MemFs,
    fs: FaultFs,
    options: Options,
    cache: Arc<BlockCache>,
    next_table_id: Arc<AtomicU64>,
    levels: Arc<Levels>,
    /// Memtables with the cells in each, for the model.
    memtables: Vec<Arc<Memtable>>,
    /// For each key, the cell that supersedes all others ever written.
    model: BTreeMap<Vec<u8>, Cell>,
    now: u64,
    written: u64,
}

impl Store {
    fn new() -> Self {
        let disk = MemFs::new();
        disk.create_dir_all(Path::new(DIR)).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        Self {
            fs: FaultFs::new(Arc::new(disk.clone()), FaultPlan::none()),
            disk,
            options: Options {
                level0_tables: 2,
                level1_bytes: 6 << 10,
                level_growth: 2,
                table_bytes: 2 << 10,
                block_bytes: 256,
                compression: Compression::None,
                tombstone_grace: Duration::from_secs(GRACE),
                ..Options::default()
            },
            cache: Arc::new(BlockCache::new(1 << 20)),
            next_table_id: Arc::new(AtomicU64::new(1)),
            levels: Arc::new(Levels::default()),
            memtables: Vec::new(),
            model: BTreeMap::new(),
            now: 1_000,
            written: 0,
        }
    }

    fn context(&self) -> JobContext {
        JobContext {
            env: Env { fs: Arc::new(self.fs.clone()), clock: Arc::new(ManualClock::new(at(self.now))) },
            tables_dir: DIR.into(),
            next_table_id: Arc::clone(&self.next_table_id),
            table_options: TableOptions {
                block_bytes: self.options.block_bytes,
                compression: self.options.compression,
                filter_bits_per_key: 10,
            },
            options: self.options.clone(),
            memtable_version_min: self.memtables.iter().map(|memtable| memtable.version_min()).min(),
            memtable_local_version_min: None,
            levels: Arc::clone(&self.levels),
            wall: at(self.now),
            exchanged_to: at(self.now),
            filter: JobFilter::default(),
            sources: OtherSources::default(),
        }
    }

    /// A memtable of random cells, none of them written before the grace period: older cells may
    /// not reappear.
    fn write(&mut self, rng: &mut Rng) {
        let memtable = Arc::new(Memtable::new(self.written, 1 << 16));
        for _ in 0..1 + rng.below(30) {
            self.written += 1;
            let written = self.now - rng.below(GRACE);
            let version = Version::new(Hlc::at(at(written)), NodeTag(self.written));
            let cell = match rng.below(10) {
                0..3 => Cell::tombstone(version, 1),
                3..5 => {
                    let expires_at = Some(at(written + rng.below(GRACE * 2) - rng.below(written.min(50))));
                    let meta = CellMeta { expires_at, ..CellMeta::value(version, 1) };
                    Cell { meta, value: vec![b'e'; rng.below(100) as usize].into() }
                }
                _ => Cell::value(version, 1, vec![b'v'; rng.below(300) as usize].into()),
            };
            let key = format!("{:03}", rng.below(KEYS)).into_bytes();
            memtable.insert(Sequence(self.written), &key, cell.as_ref());
            supersede(&mut self.model, &key, cell);
        }
        self.memtables.push(memtable);
    }

    fn flush(&mut self, which: usize, rng: &mut Rng) {
        let memtable = self.memtables[which].clone();
        let mut job = FlushJob::new(memtable.cursor(Sequence::MAX), self.context());
        let edit = finish(|| job.step(1 + rng.below(500))).unwrap();
        assert_eq!(edit.added.len(), 1);
        self.install(&edit);
        self.memtables.remove(which);
    }

    fn install(&mut self, edit: &VersionEdit) {
        let (fs, cache): (Arc<dyn Fs>, _) = (Arc::new(self.fs.clone()), &self.cache);
        let levels = self.levels.apply(edit, &mut |meta| {
            let path = Path::new(DIR).join(file_name(meta.id));
            let (fs, meta) = (Arc::clone(&fs), Arc::new(meta.clone()));
            Arc::new(Table::open(
                &Arc::new(TableFiles::new(fs, 1)),
                path,
                meta,
                Arc::clone(cache),
                Arc::new(|_| {}),
            ))
        });
        self.levels = Arc::new(levels.expect("an edit fits"));
    }

    fn plan(&self) -> Option<Plan> {
        pick(&self.levels, &Default::default(), &self.options, &self.context().horizon())
    }

    /// The cell that a reader finds for each key.
    fn cells(&self) -> BTreeMap<Vec<u8>, Cell> {
        let mut cells = BTreeMap::new();
        for (_, table) in self.levels.iter() {
            collect(&mut table.cursor(ReadMode::Scan), &mut cells);
        }
        for memtable in &self.memtables {
            collect(&mut memtable.cursor(Sequence::MAX), &mut cells);
        }
        cells
    }

    /// Checks that every key holds the cell of the model, or none if that is dead.
    fn check(&self, context: &str) {
        let found = self.cells();
        for (key, expected) in &self.model {
            let key_text = String::from_utf8_lossy(key);
            let live = expected.meta.is_live_at(at(self.now));
            match found.get(key) {
                Some(cell) if live => assert_eq!(cell, expected, "{context}: key {key_text}"),
                Some(cell) => {
                    assert_eq!(cell.meta.version, expected.meta.version, "{context}: key {key_text} is back");
                    assert!(!cell.meta.is_live_at(at(self.now)), "{context}: key {key_text} lives again");
                }
                None => assert!(!live, "{context}: key {key_text} is lost"),
            }
        }
    }
}

fn supersede(cells: &mut BTreeMap<Vec<u8>, Cell>, key: &[u8], cell: Cell) {
    if cells.get(key).is_none_or(|held| cell.as_ref().supersedes(&held.as_ref())) {
        cells.insert(key.to_vec(), cell);
    }
}

fn collect(cursor: &mut dyn Cursor, cells: &mut BTreeMap<Vec<u8>, Cell>) {
    cursor.seek_to_first().unwrap();
    while let Some((key, cell)) = cursor.entry() {
        supersede(cells, key, cell.to_cell());
        cursor.advance().unwrap();
    }
}

fn finish(mut step: impl FnMut() -> Result<CompactionStep, Error>) -> Result<VersionEdit, Error> {
    loop {
        if let CompactionStep::Done(edit) = step()? {
            return Ok(*edit);
        }
    }
}

#[test]
fn compactions_change_no_read_and_restore_no_deleted_value() {
    let (mut dropped, mut buried) = (0, 0);
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let mut store = Store::new();
        for round in 0..40 {
            store.now += rng.below(GRACE / 3);
            if rng.chance(0.6) {
                store.write(&mut rng);
            }
            // Any memtable, not only the oldest, so that old versions come to lie above newer ones.
            while store.memtables.len() > 3 || (!store.memtables.is_empty() && rng.chance(0.3)) {
                let which = rng.below(store.memtables.len() as u64) as usize;
                store.flush(which, &mut rng);
            }
            let Some(plan) = store.plan() else { continue };
            let mut job = Job::new(plan, store.context());
            let budget = 1 + rng.below(2_000);
            let edit = loop {
                match job.step(budget).unwrap() {
                    CompactionStep::Done(edit) => break edit,
                    CompactionStep::More if !store.memtables.is_empty() && rng.chance(0.1) => {
                        store.flush(0, &mut rng);
                    }
                    CompactionStep::More => {}
                }
            };
            dropped += u64::from(job.dropped().version_max.is_some());
            store.install(&edit);
            store.check(&format!("seed {seed} round {round}"));
        }
        let tombstones = store.cells().into_values().filter(|cell| cell.meta.kind == CellKind::Tombstone);
        buried += tombstones.filter(|cell| cell.meta.expires_at.is_some()).count();
    }
    assert!(dropped > 100, "only {dropped} compactions dropped a tombstone: the test shows little");
    assert!(buried > 20, "only {buried} expired values were buried: the test shows little");
}

/// Dead cells are eventually dropped when writes stop and time passes.
#[test]
fn eventually_only_live_cells_are_left() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mut store = Store::new();
        for _ in 0..10 {
            store.write(&mut rng);
            store.flush(0, &mut rng);
        }
        store.now += GRACE * 10;
        for turn in 0.. {
            let Some(plan) = store.plan() else { break };
            assert!(turn < 200, "seed {seed}: choosing does not come to an end");
            let mut job = Job::new(plan, store.context());
            let edit = finish(|| job.step(u64::MAX)).unwrap();
            store.install(&edit);
        }
        store.check(&format!("seed {seed}"));
        let dead: Vec<_> =
            store.cells().into_values().filter(|cell| !cell.meta.is_live_at(at(store.now))).collect();
        assert!(dead.len() <= 5, "seed {seed}: {dead:?} in {:?}", store.levels);
    }
}

fn all_of(store: &Store) -> Plan {
    let inputs = (0..LEVELS)
        .map(|level| Input { level, tables: store.levels.level(level).to_vec() })
        .filter(|input| !input.tables.is_empty())
        .collect();
    Plan { inputs, output_level: 1, is_move: false, reason: Reason::Level0 }
}

fn store_with_tables(seed: u64) -> (Store, Rng) {
    let (mut store, mut rng) = (Store::new(), Rng::new(seed));
    for _ in 0..6 {
        store.write(&mut rng);
        store.flush(0, &mut rng);
    }
    (store, rng)
}

#[test]
fn a_failed_job_leaves_no_file() {
    let before = store_with_tables(1).0.disk.file_names();
    for kind in [OperationKind::Open, OperationKind::Write, OperationKind::SyncData, OperationKind::SyncDir] {
        for after in 0..3 {
            let (store, _) = store_with_tables(1);
            let matching = OperationMatch::kind(kind).after(after);
            store.fs.set_plan(FaultPlan::fail(matching, Fault::Error(std::io::ErrorKind::StorageFull)));
            let mut job = Job::new(all_of(&store), store.context());
            if let Err(error) = finish(|| job.step(500)) {
                assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                assert_eq!(store.disk.file_names(), before, "{kind:?} {after}");
            }
            store.check("a failed job changes nothing");
        }
    }
}

#[test]
fn outputs_are_cut_and_durable() {
    let (mut store, mut rng) = store_with_tables(2);
    let mut job = Job::new(all_of(&store), store.context());
    let edit = finish(|| job.step(100)).unwrap();
    assert!(edit.added.len() > 1);
    for (level, meta) in &edit.added {
        assert_eq!(*level, 1);
        assert!(meta.file_bytes < 2 * store.options.table_bytes + 1_000, "{meta:?}");
    }
    for _ in 0..50 {
        let crashed = store.disk.crash(&mut rng);
        assert_eq!(
            crashed.file_names(),
            store.disk.file_names(),
            "names are durable before the edit is told"
        );
        for (_, meta) in &edit.added {
            let path = Path::new(DIR).join(file_name(meta.id));
            assert_eq!(crashed.read_file(&path).unwrap(), store.disk.read_file(&path).unwrap());
        }
    }
    store.install(&edit);
    store.check("merged");
}

#[test]
fn a_move_reads_and_writes_nothing() {
    let (mut store, _) = store_with_tables(3);
    let table = store.levels.level(0)[0].clone();
    let inputs = vec![Input { level: 0, tables: vec![table] }];
    let plan = Plan { inputs, output_level: 1, is_move: true, reason: Reason::Level0 };
    let before = store.fs.operations();
    let mut job = Job::new(plan, store.context());
    let edit = finish(|| job.step(1)).unwrap();
    assert_eq!(store.fs.operations(), before);
    store.install(&edit);
    store.check("moved");
    let ids = |level: usize| store.levels.level(level).len();
    assert_eq!((ids(0), ids(1)), (5, 1));
}

#[test]
fn a_memtable_without_visible_cells_creates_no_table() {
    let store = Store::new();
    let memtable = Arc::new(Memtable::new(1, 1 << 12));
    let mut job = FlushJob::new(memtable.cursor(Sequence::MAX), store.context());
    let edit = finish(|| job.step(1)).unwrap();
    assert_eq!((edit.added.len(), edit.next_table_id), (0, Some(TableId(1))));
    assert!(store.disk.file_names().is_empty());
}
