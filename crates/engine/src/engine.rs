//! The engine itself: what its components share, and how their states change.

use crate::cache::BlockCache;
use crate::commit::CommitQueue;
use crate::compaction::Debt;
use crate::disk::DiskGuard;
use crate::horizon::HorizonClock;
use crate::jobs::Jobs;
use crate::manifest::{Levels, Manifest, VersionEdit};
use crate::memtable::ChunkPool;
use crate::obsolete::ObsoleteFiles;
use crate::paths::Paths;
use crate::pinned_memtables::PinnedMemtables;
use crate::pressure::{Backlog, Pacer, Pressure};
use crate::signals::Signals;
use crate::sstable::{Table, TableFiles, TableId, TableMeta};
use crate::stats::Counters;
use crate::throughput::BackgroundThroughput;
use crate::view::{LoggedMemtable, ReplayableMemtables, View};
use crate::wal::{DeferredSync, LogEnd, SegmentId, Spares, Wal, WalStatus};
use crate::{Error, Options, urgency};
use arc_swap::ArcSwap;
use env::{DirLock, Env};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use stdx::{Instant, Version, WallTime};

/// The rate at which the room on the disk lets writes come is asked for so many bytes.
const RATE_UNIT: u64 = 1 << 20;

/// A handle on an open engine; clones share it. The directory is released when the last one is dropped.
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("dir", &self.shared.paths.root()).finish_non_exhaustive()
    }
}

/// What the components of one engine share.
pub(crate) struct Shared {
    pub(crate) env: Env,
    pub(crate) paths: Paths,
    pub(crate) options: Options,
    /// The size at which a memtable is sealed, in bytes.
    pub(crate) memtable_bytes: u64,
    /// What memtables are made of.
    pub(crate) chunk_pool: Arc<ChunkPool>,
    pub(crate) cache: Arc<BlockCache>,
    /// What readers look at. Changed only by [`Shared::install_view`].
    pub(crate) view: ArcSwap<View>,
    view_change: Mutex<()>,
    /// Readers see sequences up to this one: all of them are durable, or aborted.
    pub(crate) watermark: AtomicU64,
    /// Locked before `wal` is never held: take `wal` first, then `commit_queue`.
    pub(crate) commit_queue: Mutex<CommitQueue>,
    /// Whoever holds it commits.
    pub(crate) wal: Mutex<Wal>,
    /// The segment that the last group went to.
    pub(crate) log_segment: AtomicU64,
    pub(crate) spares: Arc<Spares>,
    pub(crate) deferred_sync: Arc<DeferredSync>,
    pub(crate) wal_status: Arc<WalStatus>,
    /// The next active memtable, made ahead: making a large one takes milliseconds.
    pub(crate) spare_memtable: Mutex<Option<Arc<LoggedMemtable>>>,
    next_memtable_id: AtomicU64,
    /// What left the view and is not freed.
    pub(crate) pinned_memtables: PinnedMemtables,
    pub(crate) pacer: Pacer,
    pub(crate) background: BackgroundThroughput,
    pub(crate) manifest: Mutex<Manifest>,
    pub(crate) jobs: Jobs,
    pub(crate) horizon: HorizonClock,
    /// PinnedMemtables while a checkpoint is made.
    pub(crate) checkpointing: Mutex<()>,
    pub(crate) replayable: Mutex<ReplayableMemtables>,
    pub(crate) next_table_id: Arc<AtomicU64>,
    pub(crate) table_files: Arc<TableFiles>,
    /// Of tables that no manifest names and no reader holds any more.
    pub(crate) obsolete: Arc<ObsoleteFiles>,
    pub(crate) disk: DiskGuard,
    /// What compaction owes, in bytes, as of the present levels.
    pub(crate) debt_bytes: AtomicU64,
    pub(crate) signals: Signals,
    pub(crate) counters: Counters,
    poison: OnceLock<String>,
    _lock: Box<dyn DirLock>,
}

/// The components that recovery found or made.
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
    pub(crate) disk: DiskGuard,
    pub(crate) lock: Box<dyn DirLock>,
}

impl Engine {
    pub(crate) fn assemble(components: Components) -> Self {
        let debt = Debt::of(&components.view.levels, &components.options);
        let shared = Shared {
            memtable_bytes: components.memtable_bytes,
            chunk_pool: components.chunk_pool,
            view: ArcSwap::from_pointee(components.view),
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
            counters: Counters::default(),
            poison: OnceLock::new(),
            env: components.env,
            paths: components.paths,
            options: components.options,
            cache: components.cache,
            next_table_id: components.next_table_id,
            table_files: components.table_files,
            obsolete: components.obsolete,
            disk: components.disk,
            _lock: components.lock,
        };
        Self { shared: Arc::new(shared) }
    }

    /// The options it was opened with.
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    /// What waits for flush and compaction now.
    pub fn backlog(&self) -> Backlog {
        self.shared.backlog()
    }

    /// Which part of the time compaction should have a processor whatever else wants it, from 0 to 1: it grows with what
    /// compaction owes. For hosts that step the jobs themselves.
    pub fn compaction_share(&self) -> f64 {
        self.shared.compaction_share()
    }

    /// The greatest version of any cell in the memtables and tables.
    pub fn version_max(&self) -> Version {
        let view = self.shared.view.load();
        let buffered = view.memtables().map(|logged| logged.memtable.version_max()).max();
        buffered.unwrap_or(Version::MIN).max(view.levels.version_max_from(0))
    }

    /// Sets the horizon: cells that expired, or whose grace period ended, before it may be deleted by compactions that
    /// begin from now on. A tombstone stays all the same when it is newer than `exchanged_to`, the time up to which
    /// the replicas have exchanged all deletes. Both may go back.
    ///
    /// # Panics
    /// When the engine was not opened with [`HorizonSource::Host`](crate::HorizonSource::Host).
    pub fn set_horizon(&self, wall: WallTime, exchanged_to: WallTime) {
        self.shared.horizon.set(wall, exchanged_to);
    }

    /// Where the durable part of the log ends; `None` while a full disk keeps the log from having a segment. Takes no lock
    /// that is held through I/O. A host that keeps it outside of the directory passes it to the next
    /// opening as [`Options::known_log_end`], so that a log that was cut is found.
    pub fn durable_log_end(&self) -> Option<LogEnd> {
        self.shared.wal_status.durable_end()
    }

    /// Why the engine stopped taking writes for good, if it did. The process should end and recover.
    pub fn poison(&self) -> Option<&str> {
        self.shared.poison.get().map(String::as_str)
    }

    /// Marks the log as complete up to here, so that damage to any of it is found at the next open. Called
    /// when nothing was written for a while, and before the process ends.
    ///
    /// # Errors
    /// [`Error::Poisoned`] when the log failed now or earlier.
    pub fn close(&self) -> Result<(), Error> {
        while self.step_commit()? {}
        self.refuse_stalled(&self.overloaded());
        self.step_idle()
    }

    /// Writes the closing record of the log if groups came since the last one.
    ///
    /// # Errors
    /// [`Error::Poisoned`] when the log failed now or earlier.
    pub fn step_idle(&self) -> Result<(), Error> {
        self.check_poison()?;
        match self.shared.lock_wal().idle() {
            Ok(()) => Ok(()),
            // The record only helps to tell damage from an interrupted write; there will be another.
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

    /// Stops the engine: what is durable is no longer known.
    pub(crate) fn poison_with(&self, error: &Error) -> Error {
        let reason = self.shared.poison.get_or_init(|| error.to_string()).clone();
        self.shared.signals.notify_all();
        Error::Poisoned { reason }
    }
}

impl Shared {
    /// Replaces the view by what `change` makes of it.
    pub(crate) fn install_view(&self, change: impl FnOnce(&View) -> View) {
        let _changing = self.view_change.lock();
        let next = change(&self.view.load());
        self.view.store(Arc::new(next));
    }

    /// The view and a watermark that belong together: no table of the view holds a cell past the watermark.
    pub(crate) fn consistent_view(&self) -> (Arc<View>, crate::Sequence) {
        let _no_change = self.view_change.lock();
        (self.view.load_full(), crate::Sequence(self.watermark.load(Ordering::Acquire)))
    }

    pub(crate) fn backlog(&self) -> Backlog {
        self.backlog_of(&self.view.load())
    }

    /// Which part of the time compaction claims a processor, from 0 to 1.
    pub(crate) fn compaction_share(&self) -> f64 {
        let backlog = self.net_of_running(self.backlog());
        urgency::share(&backlog, self.background.compaction.bytes_per_second())
    }

    /// A backlog less what the compactions under way have merged of it.
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

    /// What all memtables may hold.
    fn memtables_bytes(&self) -> u64 {
        self.memtable_bytes * self.options.memtables_max as u64
    }

    /// What memtables of these sizes take of that. A single value may be larger than all of it, and whoever writes
    /// small ones behind it is not to be refused for that: what a memtable takes beyond its size does not count, of one.
    fn buffered_bytes(&self, memtables: impl Iterator<Item = u64>) -> u64 {
        let (sum, beyond) = memtables.fold((0, 0), |(sum, beyond), bytes| {
            (sum + bytes, bytes.saturating_sub(self.memtable_bytes).max(beyond))
        });
        sum - beyond
    }

    /// Whether memtables may take a write of so many bytes, but for the rate. Of those that are larger than a memtable one
    /// comes behind the other: for them all of it counts. Where none waits to be flushed any is taken, whatever its size.
    pub(crate) fn has_memtable_space(&self, view: &View, bytes: u64) -> bool {
        if view.sealed.is_empty() {
            return true;
        }
        let used = view.memtables().map(|logged| logged.memtable.bytes_used());
        let used_bytes = if bytes > self.memtable_bytes { used.sum() } else { self.buffered_bytes(used) };
        used_bytes < self.memtables_bytes()
    }

    /// What memtables have left for small writes.
    pub(crate) fn memtable_space(&self, view: &View) -> u64 {
        let used = view.memtables().map(|logged| logged.memtable.bytes_used());
        self.memtables_bytes().saturating_sub(self.buffered_bytes(used))
    }

    /// What decides how fast writes may come.
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

    /// Bytes per second that may be written now; `None`: as many as come.
    pub(crate) fn permitted_rate(&self, view: &View) -> Option<f64> {
        let disk = self.disk.time_for(RATE_UNIT);
        let of_disk = (!disk.is_zero()).then(|| RATE_UNIT as f64 / disk.as_secs_f64());
        self.sustainable_rate(view).into_iter().chain(of_disk).reduce(f64::min)
    }

    /// What flush and compaction bear of that. The room on the disk slows writes, and refuses none before it is gone.
    pub(crate) fn sustainable_rate(&self, view: &View) -> Option<f64> {
        let backlog = self.backlog_of(view);
        let slows = backlog.slows(self.background.compaction.bytes_per_second());
        slows.then(|| self.pressure_by(view, backlog).rate()).flatten()
    }

    /// The first segment of the log that some memtable of `view` other than `flushed` needs.
    pub(crate) fn log_floor(&self, flushed: &LoggedMemtable) -> SegmentId {
        // Read before the memtables: a group that comes later goes to this segment or a later one.
        let current = SegmentId(self.log_segment.load(Ordering::Acquire));
        let view = self.view.load();
        let others = view.memtables().filter(|logged| !std::ptr::eq(&***logged, flushed));
        others.filter_map(|logged| logged.log_from()).min().map_or(current, |floor| floor.min(current))
    }

    /// Makes an edit of the table set durable and shows it to readers.
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
        self.debt_bytes.store(Debt::of(&levels, &self.options).bytes, Ordering::Relaxed);
        self.install_view(|view| change(view, Arc::clone(&levels)));
        drop(manifest);
        let dropped: BTreeSet<TableId> = edit.dropped().collect();
        for (_, table) in old.iter().filter(|(_, table)| dropped.contains(&table.meta().id)) {
            table.mark_obsolete();
        }
        self.signals.compact.notify();
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

/// A table whose file becomes one of the `obsolete` when it is so itself and nobody holds it any more.
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
