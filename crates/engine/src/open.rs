//! Opening an engine: recovery from the state that a crash left on disk.
//!
//! **Promise.** Every acknowledged write is recovered, and no read returns a write that a second
//! crash could undo: the log is replayed and synced before the first read.
//!
//! **Mechanism.** The manifest lists the live tables; none of them is read. Table files that no
//! manifest names are leftovers of interrupted jobs, and are removed. The log is replayed into
//! memtables from the floor that the manifest records. So the time to open depends on the length of
//! that part of the log, which the memtable budget bounds, and not on the amount of data.
//!
//! A directory that has lost files is refused with [`Error::Lost`]. This covers a missing manifest,
//! live table or log segment, and a segment that is shorter than its successor says. If the host
//! knows an earlier end of the log ([`Options::known_log_end`]), it also covers a log that ends
//! before that, and an emptied directory.
//!
//! **Caveats.** A log written under a larger memory budget is replayed completely: memtables may
//! exceed their budget until they are flushed.

use crate::cache::BlockCache;
use crate::commit::queue::CommitQueue;
use crate::disk::DiskGuard;
use crate::engine::{Components, Engine, open_table};
use crate::manifest::{Levels, Manifest, RecoveredState, VersionEdit};
use crate::memtable::ChunkPool;
use crate::obsolete::ObsoleteFiles;
use crate::ownership::{Ownership, OwnershipFilter};
use crate::paths::Paths;
use crate::sstable::{TableFiles, TableId, TableMeta};
use crate::view::{LoggedMemtable, View};
use crate::wal::record::RecordCells;
use crate::wal::{KnownLog, LogEnd, SEGMENT_LEN_MIN, SegmentId, Wal, WalOptions};
use crate::{Error, Options, Sequence};
use bytes::Bytes;
use env::Env;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use stdx::Version;

/// A log segment may take at most 1/64 of the disk space that the engine could use.
const SEGMENT_SHARE: u64 = 64;
/// A memtable may take at most 1/32 of it: on a small disk, the log and the flushed table must both
/// fit.
const MEMTABLE_SHARE: u64 = 32;
/// A table may take at most 1/128 of it.
const TABLE_SHARE: u64 = 128;
/// Level 1 may take at most 1/16 of it, so that a merge fits into the reserve.
const LEVEL1_SHARE: u64 = 16;
/// Least limit of the table size on a small disk, in bytes.
const TABLE_BYTES_MIN: u64 = 256 << 10;
/// Least limit of the size of level 1 on a small disk, in bytes.
const LEVEL1_BYTES_MIN: u64 = 1 << 20;
/// Least limit of the memtable size on a small disk, in bytes.
const MEMTABLE_BYTES_MIN: u64 = 1 << 20;
/// Least size of a log segment, in bytes.
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// Log segments kept for reuse, besides those of one memtable.
const SPARE_SEGMENTS: u64 = 2;

/// Results of recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Live tables.
    pub tables: usize,
    /// Records replayed from the log.
    pub records: u64,
    /// Cells in these records.
    pub cells: u64,
    /// Bytes of the log that were replayed.
    pub wal_bytes: u64,
    /// Bytes of an interrupted write that were cut from the end of the log. It was never
    /// acknowledged.
    pub cut_bytes: u64,
    /// Files of interrupted jobs that were removed.
    pub orphans: usize,
    /// Greatest version of any recovered cell.
    pub version_max: Version,
}

impl Engine {
    /// Opens the engine in `dir`, which is created if it does not exist.
    ///
    /// # Errors
    /// [`Error::Locked`] when another process has it open; [`Error::Corrupt`] when manifest or log
    /// are damaged; [`Error::Lost`] when the directory has lost files; [`Error::Full`] when there
    /// is no space to begin a log; [`Error::Invalid`] for invalid options.
    pub fn open(env: Env, dir: &Path, options: Options) -> Result<(Self, Recovery), Error> {
        options.validate()?;
        let paths = Paths::new(dir);
        make_dirs(&env, &paths)?;
        let lock = lock(&env, &paths)?;
        if options.known_log_end.is_some() {
            // The directory held data: a missing manifest must not be replaced by a new one.
            Manifest::inspect(&env.fs, paths.root())?;
        }
        let (manifest, recovered) = Manifest::recover(&env.fs, paths.root())?;
        let known_log = known_log(&recovered, options.known_log_end);
        let orphans = remove_orphans(&env, &paths, &recovered.orphans)?;

        let cache = Arc::new(BlockCache::new(options.cache_bytes()));
        let obsolete = Arc::new(ObsoleteFiles::new(options.table_bytes));
        let live = VersionEdit { added: recovered.tables, ..VersionEdit::default() };
        let table_files = Arc::new(TableFiles::new(Arc::clone(&env.fs), options.table_files_max));
        let mut open = |meta: &TableMeta| open_table(&table_files, &paths, meta, &cache, &obsolete);
        let levels = Levels::default().apply(&live, &mut open).map_err(|broken| {
            Error::corrupt(paths.root(), 0, format!("the manifest contradicts itself: {broken}"))
        })?;

        let available_bytes = available_bytes(&env, &paths)?;
        let engine_bytes = live.added.iter().map(|(_, meta)| meta.file_bytes).sum();
        let usable_bytes = available_bytes.saturating_add(engine_bytes);
        let options = sized_for(options, usable_bytes);
        let memtable_bytes =
            options.memtable_bytes().min((usable_bytes / MEMTABLE_SHARE).max(MEMTABLE_BYTES_MIN));
        let segment_bytes =
            options.wal_segment_bytes.min(usable_bytes / SEGMENT_SHARE).max(SEGMENT_BYTES_MIN);
        let wal_options = WalOptions {
            segment_bytes,
            durability: options.durability,
            spares_max: (memtable_bytes / segment_bytes + SPARE_SEGMENTS) as usize,
        };
        let mut replay = MemtableReplay::new(memtable_bytes, options.local_end(), options.tower_seed);
        let (wal, found) = Wal::open(&env, &paths.wal(), &wal_options, known_log, &mut |segment, cells| {
            replay.record(segment, cells);
            Ok(())
        })?;

        let recovery = Recovery {
            tables: live.added.len(),
            records: found.records,
            cells: found.cells,
            wal_bytes: found.bytes,
            cut_bytes: found.cut_bytes,
            orphans,
            version_max: Version::MIN,
        };
        let local_end = options.local_end().unwrap_or_default();
        let filter = Arc::new(OwnershipFilter::new(recovered.disowned, local_end));
        let engine = Self::assemble(Components {
            memtable_bytes,
            chunk_pool: Arc::clone(&replay.chunk_pool),
            disk: DiskGuard::new(
                reserve_bytes(&options, memtable_bytes, wal_options.segment_bytes),
                available_bytes,
                engine_bytes,
            ),
            watermark: replay.last,
            queue: CommitQueue::new(replay.last),
            next_memtable_id: replay.memtables.len() as u64,
            ownership: Ownership::recovered(&filter, &replay.ids()),
            view: replay.into_view(Arc::new(levels), filter),
            next_table_id: Arc::new(AtomicU64::new(recovered.next_table_id.0)),
            env,
            paths,
            options,
            cache,
            wal,
            manifest,
            table_files,
            obsolete,
            lock,
        });
        // Damaged tables are scanned now, and not only after a failed read.
        engine.shared.jobs.damaged.suspected.lock().extend(&recovered.damaged);
        let version_max = engine.version_max();
        Ok((engine, Recovery { version_max, ..recovery }))
    }
}

/// The properties of the log that the manifest and the host know.
pub(crate) fn known_log(manifest: &RecoveredState, known_end: Option<LogEnd>) -> KnownLog {
    let floor = manifest.wal_floor;
    // The floor segment existed when the floor was recorded, and is never removed alone.
    let was_there = floor > SegmentId(0) || !manifest.tables.is_empty();
    let by_manifest = was_there.then_some(LogEnd { segment: floor, len: SEGMENT_LEN_MIN });
    KnownLog { floor, known_end: known_end.max(by_manifest) }
}

/// Memtables under construction during replay.
struct MemtableReplay {
    memtable_bytes: u64,
    chunk_pool: Arc<ChunkPool>,
    local_end: Option<Bytes>,
    tower_seed: u64,
    /// In the order of the log: the newest is last.
    memtables: Vec<Arc<LoggedMemtable>>,
    last: Sequence,
}

impl MemtableReplay {
    fn new(memtable_bytes: u64, local_end: Option<Bytes>, tower_seed: u64) -> Self {
        let chunk_pool = Arc::new(ChunkPool::new(memtable_bytes));
        let first = Arc::new(LoggedMemtable::new(0, &chunk_pool, local_end.clone(), tower_seed));
        let (memtables, last) = (vec![first], Sequence::ZERO);
        Self { memtable_bytes, chunk_pool, local_end, tower_seed, memtables, last }
    }

    fn record(&mut self, segment: SegmentId, cells: RecordCells<'_>) {
        let logged = Arc::clone(self.unfilled_memtable());
        let first = self.last.plus(1);
        self.last = self.last.plus(cells.len() as u64);
        logged.insert_all(first, cells);
        logged.logged_in(segment);
        logged.extend_to(self.last);
    }

    fn unfilled_memtable(&mut self) -> &Arc<LoggedMemtable> {
        let newest = self.memtables.last().expect("there is at least one memtable");
        if newest.memtable.bytes_used() >= self.memtable_bytes {
            let id = self.memtables.len() as u64;
            let next = LoggedMemtable::new(id, &self.chunk_pool, self.local_end.clone(), self.tower_seed);
            self.memtables.push(Arc::new(next));
        }
        self.memtables.last().expect("there is at least one memtable")
    }

    /// Ids of the memtables that have cells.
    fn ids(&self) -> BTreeSet<u64> {
        let filled = self.memtables.iter().filter(|logged| !logged.memtable.is_empty());
        filled.map(|logged| logged.memtable.id()).collect()
    }

    fn into_view(mut self, levels: Arc<Levels>, filter: Arc<OwnershipFilter>) -> View {
        let active = self.memtables.pop().expect("there is at least one memtable");
        self.memtables.reverse();
        View { active, sealed: self.memtables, levels, filter }
    }
}

fn make_dirs(env: &Env, paths: &Paths) -> Result<(), Error> {
    for dir in [paths.wal(), paths.tables()] {
        env.fs.create_dir_all_durably(&dir).map_err(|error| Error::io("make", &dir, error))?;
    }
    Ok(())
}

fn lock(env: &Env, paths: &Paths) -> Result<Box<dyn env::DirLock>, Error> {
    let path = paths.root().join("LOCK");
    env.fs.lock(&path).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => Error::Locked { path: paths.root().to_owned() },
        _ => Error::io("lock", &path, error),
    })
}

fn remove_orphans(env: &Env, paths: &Paths, orphans: &[TableId]) -> Result<usize, Error> {
    for &id in orphans {
        let path = paths.table(id);
        env.fs.remove_file(&path).map_err(|error| Error::io("remove", &path, error))?;
    }
    Ok(orphans.len())
}

fn available_bytes(env: &Env, paths: &Paths) -> Result<u64, Error> {
    let root = paths.root();
    env.fs.available_bytes(root).map_err(|error| Error::io("read the free disk space of", root, error))
}

/// The options, with level and table sizes reduced so that a compaction fits into the reserve of a
/// disk of which the engine uses or can use `usable_bytes`.
fn sized_for(options: Options, usable_bytes: u64) -> Options {
    let at_most = |share: u64, least: u64| (usable_bytes / share).max(least);
    Options {
        table_bytes: options.table_bytes.min(at_most(TABLE_SHARE, TABLE_BYTES_MIN)),
        level1_bytes: options.level1_bytes.min(at_most(LEVEL1_SHARE, LEVEL1_BYTES_MIN)),
        ..options
    }
}

/// The reserve in bytes: the disk space that the engine needs in order to free any. It covers
/// flushing two memtables, one log segment, and the larger of two merges that bring deletes down: a
/// memtable into level 1, or a table with those that it overlaps one level below.
fn reserve_bytes(options: &Options, memtable_bytes: u64, segment_bytes: u64) -> u64 {
    let into_level1 = memtable_bytes.saturating_add(options.level1_bytes);
    let below = options.table_bytes.saturating_mul(options.level_growth + 1);
    memtable_bytes.saturating_mul(2).saturating_add(segment_bytes).saturating_add(into_level1.max(below))
}
