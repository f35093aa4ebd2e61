//! The engine handle, the state that its components share, and the transitions of that state.

use crate::cache::BlockCache;
use crate::commit::queue::CommitQueue;
use crate::compaction::CompactionDebt;
use crate::disk::DiskGuard;
use crate::horizon::HorizonClock;
use crate::jobs::running::Jobs;
use crate::manifest::{Levels, Manifest, VersionEdit};
use crate::memtable::ChunkPool;
use crate::obsolete::ObsoleteFiles;
use crate::ownership::Ownership;
use crate::paths::Paths;
use crate::pinned_memtables::PinnedMemtables;
use crate::pressure::{Backlog, Pacer, Pressure};
use crate::signals::Signals;
use crate::sstable::{Table, TableFiles, TableId, TableMeta};
use crate::stats::EngineCounters;
use crate::throughput::BackgroundThroughput;
use crate::urgency::StepTime;
use crate::view::{LoggedMemtable, ReplayableMemtables, View};
use crate::wal::{DeferredSync, LogEnd, SegmentId, Spares, Wal, WalStatus};
use crate::{Error, Options, urgency};
use arc_swap::ArcSwap;
use env::{DirLock, Env};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use stdx::{Instant, Version, WallTime};

/// Sample size for the write rate that the free disk space permits, in bytes.
const RATE_UNIT: u64 = 1 << 20;
/// Time after a sync of the log for which a compaction that begins expects the next one.
const LOG_IS_BUSY_FOR: Duration = Duration::from_millis(10);

/// A handle on an open engine. Clones share the engine; the directory is unlocked when the last one
/// is dropped.
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("dir", &self.shared.paths.root()).finish_non_exhaustive()
    }
}

/// State shared by the components of one engine.
pub(crate) struct Shared {
    pub(crate) env: Env,
    pub(crate) paths: Paths,
    pub(crate) options: Options,
    /// The size at which a memtable is sealed, in bytes.
    pub(crate) memtable_bytes: u64,
    /// Source of the memory of all memtables.
    pub(crate) chunk_pool: Arc<ChunkPool>,
    pub(crate) cache: Arc<BlockCache>,
    /// The view that readers load. Changed only by [`Shared::install_view`].
    pub(crate) view: Arc<ArcSwap<View>>,
    view_change: Mutex<()>,
    /// The durable watermark: readers see sequences up to this one. All of them are durable or
    /// aborted.
    pub(crate) watermark: AtomicU64,
    /// Lock order: `wal`, then `commit_queue`.
    pub(crate) commit_queue: Mutex<CommitQueue>,
    /// The write-ahead log. The thread that holds the lock is the one that commits.
    pub(crate) wal: Mutex<Wal>,
    /// The segment that received the last group.
    pub(crate) log_segment: AtomicU64,
    pub(crate) spares: Arc<Spares>,
    pub(crate) deferred_sync: Arc<DeferredSync>,
    pub(crate) wal_status: Arc<WalStatus>,
    /// The next active memtable, allocated ahead: allocating a large one takes milliseconds.
    pub(crate) spare_memtable: Mutex<Option<Arc<LoggedMemtable>>>,
    next_memtable_id: AtomicU64,
    /// Memtables that have left the view and are still referenced.
    pub(crate) pinned_memtables: PinnedMemtables,
    pub(crate) pacer: Pacer,
    pub(crate) background: BackgroundThroughput,
    pub(crate) manifest: Mutex<Manifest>,
    pub(crate) jobs: Jobs,
    pub(crate) ownership: Ownership,
    pub(crate) horizon: HorizonClock,
    /// Held while a checkpoint is made.
    pub(crate) checkpointing: Mutex<()>,
    pub(crate) replayable: Mutex<ReplayableMemtables>,
    pub(crate) next_table_id: Arc<AtomicU64>,
    pub(crate) table_files: Arc<TableFiles>,
    /// Files of tables that no manifest names and no reader references.
    pub(crate) obsolete: Arc<ObsoleteFiles>,
    pub(crate) disk: DiskGuard,
    /// Compaction debt of the present levels, in bytes.
    pub(crate) debt_bytes: AtomicU64,
    pub(crate) signals: Signals,
    pub(crate) counters: EngineCounters,
    poison: OnceLock<String>,
    _lock: Box<dyn DirLock>,
}

/// Components that recovery read or created.
pub(crate) struct Components {
    pub(crate) env: Env,
    pub(crate) paths: Paths,
    pub(crate) options: Options,
    pub(crate) memtable_bytes: u64,
    pub(crate) chunk_pool: Arc<ChunkPool>,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) view: View,
    pub(crate) watermark: crate::Sequence,
    pub(crate) queue: CommitQueue,
    pub(crate) next_memtable_id: u64,
    pub(crate) wal: Wal,
    pub(crate) manifest: Manifest,
    pub(crate) next_table_id: Arc<AtomicU64>,
    pub(crate) table_files: Arc<TableFiles>,
    pub(crate) obsolete: Arc<ObsoleteFiles>,
    pub(crate) ownership: Ownership,
    pub(crate) disk: DiskGuard,
    pub(crate) lock: Box<dyn DirLock>,
}

impl Engine {
    pub(crate) fn assemble(components: Components) -> Self {
        let debt = CompactionDebt::of(&components.view.levels, &components.options);
        let shared = Shared {
            memtable_bytes: components.memtable_bytes,
            chunk_pool: components.chunk_pool,
            view: Arc::new(ArcSwap::from_pointee(components.view)),
            view_change: Mutex::new(()),
            watermark: AtomicU64::new(components.watermark.0),
            commit_queue: Mutex::new(components.queue),
            log_segment: AtomicU64::new(components.wal.segment().0),
            spares: components.wal.spares(),
            deferred_sync: components.wal.deferred_sync(),
            wal_status: components.wal.status(),
            spare_memtable: Mutex::new(None),
            pinned_memtables: PinnedMemtables::default(),
            next_memtable_id: AtomicU64::new(components.next_memtable_id),
            wal: Mutex::new(components.wal),
            pacer: Pacer::default(),
            background: BackgroundThroughput::default(),
            manifest: Mutex::new(components.manifest),
            jobs: Jobs::default(),
            horizon: HorizonClock::new(components.options.horizon, &*components.env.clock),
            checkpointing: Mutex::new(()),
            replayable: Mutex::new(ReplayableMemtables::default()),
            debt_bytes: AtomicU64::new(debt.bytes),
            signals: Signals::default(),
            counters: EngineCounters::default(),
            poison: OnceLock::new(),
            env: components.env,
            paths: components.paths,
            options: components.options,
            cache: components.cache,
            next_table_id: components.next_table_id,
            table_files: components.table_files,
            obsolete: components.obsolete,
            ownership: components.ownership,
            disk: components.disk,
            _lock: components.lock,
        };
        Self { shared: Arc::new(shared) }
    }

    /// The options that the engine was opened with.
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    /// The present backlog of flush and compaction.
    pub fn backlog(&self) -> Backlog {
        self.shared.backlog()
    }

    /// The fraction of a processor that compaction should get at the priority of serving threads,
    /// from 0 to 1. It grows with the compaction debt. For hosts that step the jobs themselves.
    pub fn compaction_share(&self) -> f64 {
        self.shared.compaction_share()
    }

    /// The pause to make after a step of a compaction. It is zero unless the log is being synced,
    /// and falls to zero as the compaction debt grows. For hosts that step the jobs themselves, and
    /// have other threads that write.
    pub fn pause_after_compaction_step(&self, step: StepTime) -> Duration {
        match self.shared.wal_status.has_synced_within(step.elapsed + LOG_IS_BUSY_FOR) {
            true => urgency::pause_after(step, urgency::disk_share(self.shared.compaction_share())),
            false => Duration::ZERO,
        }
    }

    /// The greatest version of any cell in the memtables and tables.
    pub fn version_max(&self) -> Version {
        let view = self.shared.view.load();
        let buffered = view.memtables().map(|logged| logged.memtable.version_max()).max();
        buffered.unwrap_or(Version::MIN).max(view.levels.version_max_from(0))
    }

    /// Sets the horizon. Compactions that begin from now on may delete cells that expired, or whose
    /// grace period ended, before it. They keep a tombstone that is newer than `exchanged_to`, the
    /// time up to which the replicas have exchanged all deletes. Both times may go back. The clock
    /// of an engine that was opened with [`HorizonSource::Clock`](crate::HorizonSource::Clock) does
    /// not count from then on.
    pub fn set_horizon(&self, wall: WallTime, exchanged_to: WallTime) {
        self.shared.horizon.set(wall, exchanged_to);
    }

    /// The end of the durable part of the log; `None` while a full disk keeps the log from having a
    /// segment. Takes no lock that is held through I/O.
    ///
    /// A host that stores this position outside of the directory passes it to the next opening as
    /// [`Options::known_log_end`], so that a truncated log is detected.
    pub fn durable_log_end(&self) -> Option<LogEnd> {
        self.shared.wal_status.durable_end()
    }

    /// The reason for which the engine stopped taking writes for good; `None` while it works. The
    /// process should end and recover.
    pub fn poison(&self) -> Option<&str> {
        self.shared.poison.get().map(String::as_str)
    }

    /// Commits the queued batches and marks the log as complete, so that the next open detects
    /// damage to any part of it. To be called before the process ends.
    ///
    /// # Errors
    /// [`Error::Poisoned`] when the log failed now or earlier.
    pub fn close(&self) -> Result<(), Error> {
        while self.step_commit()? {}
        self.refuse_stalled(&self.overloaded());
        self.step_idle()
    }

    /// Writes the closing record of the log if groups followed the last one. To be called after a
    /// while without writes.
    ///
    /// # Errors
    /// [`Error::Poisoned`] when the log failed now or earlier.
    pub fn step_idle(&self) -> Result<(), Error> {
        self.check_poison()?;
        match self.shared.lock_wal().idle() {
            Ok(()) => Ok(()),
            // The record only helps to tell damage from an interrupted write. The next idle period
            // retries.
            Err(error) if error.is_shortage() => Ok(()),
            Err(error) => Err(self.poison_with(&error)),
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.shared.env.clock.now().mono
    }

    pub(crate) fn check_poison(&self) -> Result<(), Error> {
        match self.shared.poison.get() {
            None => Ok(()),
            Some(reason) => Err(Error::Poisoned { reason: reason.clone() }),
        }
    }

    /// Stops the engine: the durability of recent writes is unknown.
    pub(crate) fn poison_with(&self, error: &Error) -> Error {
        let reason = self.shared.poison.get_or_init(|| error.to_string()).clone();
        self.shared.signals.notify_all();
        Error::Poisoned { reason }
    }
}

impl Shared {
    /// Replaces the view by the result of `change`.
    pub(crate) fn install_view(&self, change: impl FnOnce(&View) -> View) {
        let _changing = self.view_change.lock();
        let next = change(&self.view.load());
        self.view.store(Arc::new(next));
    }

    /// A view and a watermark that match: no table of the view holds a cell past the watermark.
    pub(crate) fn consistent_view(&self) -> (Arc<View>, crate::Sequence) {
        let _no_change = self.view_change.lock();
        (self.view.load_full(), crate::Sequence(self.watermark.load(Ordering::Acquire)))
    }

    pub(crate) fn backlog(&self) -> Backlog {
        self.backlog_of(&self.view.load())
    }

    /// The fraction of a processor that compaction claims, from 0 to 1.
    pub(crate) fn compaction_share(&self) -> f64 {
        let backlog = self.net_of_running(self.backlog());
        urgency::share(&backlog, self.background.compaction.bytes_per_second())
    }

    /// The backlog without the work that running compactions have completed.
    fn net_of_running(&self, backlog: Backlog) -> Backlog {
        let level0_merged = self.background.level0_merged() / self.options.level0_tables as f64;
        Backlog {
            level0_fraction: (backlog.level0_fraction - level0_merged).max(0.0),
            debt_bytes: backlog.debt_bytes.saturating_sub(self.background.merged_bytes()),
            ..backlog
        }
    }

    pub(crate) fn backlog_of(&self, view: &View) -> Backlog {
        let buffered_bytes = self.buffered_bytes(view.memtables().map(|logged| logged.memtable.bytes()));
        Backlog {
            buffered_fraction: buffered_bytes as f64 / self.memtables_bytes() as f64,
            level0_fraction: view.levels.level(0).len() as f64 / self.options.level0_tables as f64,
            debt_bytes: self.debt_bytes.load(Ordering::Relaxed),
        }
    }

    /// The memory limit of all memtables together, in bytes.
    fn memtables_bytes(&self) -> u64 {
        self.memtable_bytes * self.options.memtables_max as u64
    }

    /// The part of that limit that memtables of these sizes use, in bytes.
    ///
    /// A single value may be larger than the whole limit, and small writes behind it must not be
    /// refused for that. So the bytes by which the most oversized memtable exceeds its target size
    /// do not count.
    fn buffered_bytes(&self, memtables: impl Iterator<Item = u64>) -> u64 {
        let (sum, beyond) = memtables.fold((0, 0), |(sum, beyond), bytes| {
            (sum + bytes, bytes.saturating_sub(self.memtable_bytes).max(beyond))
        });
        sum - beyond
    }

    /// Whether the memtables have space for a write of `bytes`; the permitted rate is checked
    /// elsewhere.
    ///
    /// Writes larger than a memtable are admitted one after the other: for them all bytes count.
    /// While no memtable waits to be flushed, a write of any size is admitted.
    pub(crate) fn has_memtable_space(&self, view: &View, bytes: u64) -> bool {
        if view.sealed.is_empty() {
            return true;
        }
        let used = view.memtables().map(|logged| logged.memtable.bytes_used());
        let used_bytes = if bytes > self.memtable_bytes { used.sum() } else { self.buffered_bytes(used) };
        used_bytes < self.memtables_bytes()
    }

    /// The space that memtables have left for small writes, in bytes.
    pub(crate) fn memtable_space(&self, view: &View) -> u64 {
        let used = view.memtables().map(|logged| logged.memtable.bytes_used());
        self.memtables_bytes().saturating_sub(self.buffered_bytes(used))
    }

    /// The inputs of the permitted write rate.
    pub(crate) fn pressure_of(&self, view: &View) -> Pressure {
        self.pressure_by(view, self.backlog_of(view))
    }

    fn pressure_by(&self, view: &View, backlog: Backlog) -> Pressure {
        let backlog = self.net_of_running(backlog);
        let level0_over = Pressure::level0_over(backlog.level0_fraction, self.options.level0_tables);
        Pressure {
            backlog,
            memtables_bytes: self.memtables_bytes(),
            memtable_space_bytes: self.memtable_space(view),
            overhead: view.sealed.last().map_or(1.0, |oldest| oldest.overhead()),
            flush_seconds_left: view.sealed.last().map(|oldest| {
                self.background.flush_seconds_left(oldest.memtable.bytes_used(), self.env.clock.now().mono)
            }),
            level0_over_bytes: (level0_over * self.memtable_bytes as f64) as u64,
            flush_throughput: self.background.flush.bytes_per_second(),
            level0_throughput: self.background.level0_throughput(),
            compaction_throughput: self.background.compaction.bytes_per_second(),
        }
    }

    /// The permitted write rate in bytes per second; `None` when it is unlimited.
    pub(crate) fn permitted_rate(&self, view: &View) -> Option<f64> {
        let disk = self.disk.time_for(RATE_UNIT);
        let of_disk = (!disk.is_zero()).then(|| RATE_UNIT as f64 / disk.as_secs_f64());
        self.sustainable_rate(view).into_iter().chain(of_disk).reduce(f64::min)
    }

    /// The write rate that flush and compaction sustain, in bytes per second; `None` when it is
    /// unlimited. Low disk space is not part of it: it slows writes, but refuses none before the
    /// reserve is reached.
    pub(crate) fn sustainable_rate(&self, view: &View) -> Option<f64> {
        let backlog = self.backlog_of(view);
        let slows = backlog.slows(self.background.compaction.bytes_per_second());
        slows.then(|| self.pressure_by(view, backlog).rate()).flatten()
    }

    /// The first segment of the log that any memtable other than `flushed` needs.
    pub(crate) fn log_floor(&self, flushed: Option<&LoggedMemtable>) -> SegmentId {
        // Read before the memtables: later groups go to this segment or a later one.
        let current = SegmentId(self.log_segment.load(Ordering::Acquire));
        let view = self.view.load();
        let is_flushed = |logged: &LoggedMemtable| flushed.is_some_and(|it| std::ptr::eq(it, logged));
        let others = view.memtables().filter(|logged| !is_flushed(logged));
        others.filter_map(|logged| logged.log_from()).min().map_or(current, |floor| floor.min(current))
    }

    /// Makes an edit of the table set durable, then publishes it to readers.
    pub(crate) fn install_edit(
        &self,
        edit: &VersionEdit,
        change: impl FnOnce(&View, Arc<Levels>) -> View,
    ) -> Result<(), Error> {
        let mut manifest = self.manifest.lock();
        let old = Arc::clone(&self.view.load().levels);
        let levels = old.apply(edit, &mut |meta| self.open_table(meta));
        let levels = Arc::new(levels.unwrap_or_else(|broken| panic!("an edit breaks the levels: {broken}")));
        manifest.append(edit)?;
        self.debt_bytes.store(CompactionDebt::of(&levels, &self.options).bytes, Ordering::Relaxed);
        self.install_view(|view| {
            let filter = view.filter.after(edit);
            let view = change(view, Arc::clone(&levels));
            match filter {
                Some(filter) => view.with_filter(Arc::new(filter)),
                None => view,
            }
        });
        drop(manifest);
        let dropped: BTreeSet<TableId> = edit.dropped().collect();
        for (_, table) in old.iter().filter(|(_, table)| dropped.contains(&table.meta().id)) {
            table.mark_obsolete();
        }
        self.signals.compact.notify();
        self.signals.debt.notify();
        self.signals.capacity.notify();
        Ok(())
    }

    pub(crate) fn new_memtable(&self) -> Arc<LoggedMemtable> {
        let id = self.next_memtable_id.fetch_add(1, Ordering::Relaxed);
        Arc::new(LoggedMemtable::new(id, &self.chunk_pool, self.options.local_end(), self.options.tower_seed))
    }

    pub(crate) fn open_table(&self, meta: &TableMeta) -> Arc<Table> {
        open_table(&self.table_files, &self.paths, meta, &self.cache, &self.obsolete)
    }
}

/// Opens a table. When it is obsolete and its last reference is dropped, its file is added to
/// `obsolete`.
pub(crate) fn open_table(
    files: &Arc<TableFiles>,
    paths: &Paths,
    meta: &TableMeta,
    cache: &Arc<BlockCache>,
    obsolete: &Arc<ObsoleteFiles>,
) -> Arc<Table> {
    let obsolete = Arc::clone(obsolete);
    let dropped = Arc::new(move |id| obsolete.add(id));
    Arc::new(Table::open(files, paths.table(meta.id), Arc::new(meta.clone()), Arc::clone(cache), dropped))
}
