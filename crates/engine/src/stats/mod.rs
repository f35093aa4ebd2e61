//! Statistics of an engine.
//!
//! **Promise.** [`Engine::stats`] is cheap: it waits for no disk, and for no lock that is held
//! longer than a few microseconds. Its duration grows only with the number of tables, by some tens
//! of nanoseconds for each. It can be called each second; [`Engine::memory_stats`], which sums up
//! less, more often.
//!
//! **Mechanism.** Events are counted where they happen: groups by the committing thread
//! ([`WalStats`]), reads per thread ([`CacheStats`], [`FilterStats`]), so that reads on different
//! cores write no common cache line. Sizes are summed up on demand.
//!
//! **Caveats.** Counts begin when the engine is opened, and are relaxed: those of one reading may
//! be from slightly different moments. This affects amplification too: cells that recovery found in
//! the log are flushed, and counted as written, without having been accepted since.

mod counters;

pub(crate) use counters::EngineCounters;

use crate::cache::{CacheStats, FilterStats};
use crate::disk::DiskStats;
use crate::engine::Engine;
use crate::manifest::Levels;
use crate::pressure::Backlog;
use crate::scrub::ScrubStats;
use crate::sstable::Table;
use crate::view::View;
use env::IoCounts;
use std::sync::Arc;
use stdx::{WallTime, histogram};

/// A reading of all statistics. Counts begin when the engine is opened; sizes are in bytes.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Memory by use, and the budget.
    pub memory: MemoryStats,
    /// The block cache.
    pub cache: CacheStats,
    /// Results of filter lookups.
    pub filters: FilterStats,
    /// Batches that wait for the log; their bytes are [`MemoryStats::queue_bytes`].
    pub queued_batches: usize,
    /// Memtables, the active one included; their bytes are [`MemoryStats::memtable_bytes`].
    pub memtables: usize,
    /// Number and size of the tables, by level, down to the deepest level with a table.
    pub levels: Vec<LevelStats>,
    /// Lower bound of the live bytes in tables; see [`Stats::space_amplification`].
    pub live_bytes: u64,
    /// The write-ahead log.
    pub wal: WalStats,
    /// Background jobs.
    pub jobs: JobStats,
    /// Backlog of flush and compaction.
    pub backlog: Backlog,
    /// Writes that were slowed down or refused.
    pub stalls: StallStats,
    /// Operations on the file system, by all its users.
    pub io: IoCounts,
    /// Disk space.
    pub disk: DiskStats,
    /// Quarantined tables: they cannot be read back, and compaction does not pick them.
    pub tables_quarantined: u64,
    /// Quarantined tables that were replaced since the engine was opened.
    pub tables_healed: u64,
    /// Background checks of tables.
    pub scrub: ScrubStats,
    /// The horizon: the time against which compaction compares expiry and grace periods; 0 before
    /// the host has set it.
    pub horizon: WallTime,
}

/// Memory by use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Budget of all uses together, in bytes.
    pub budget_bytes: u64,
    /// Bytes of memtables, including the prepared next one and the free chunks for later ones.
    pub memtable_bytes: u64,
    /// Bytes of flushed memtables that snapshots reference.
    pub pinned_memtable_bytes: u64,
    /// Bytes of blocks in the cache: data, indexes, filters.
    pub cache_bytes: u64,
    /// Bytes of memory that tables use outside of the cache.
    pub table_bytes: u64,
    /// Bytes of batches that wait for the log.
    pub queue_bytes: u64,
}

impl MemoryStats {
    /// Memory of all uses, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.memtable_bytes
            + self.pinned_memtable_bytes
            + self.cache_bytes
            + self.table_bytes
            + self.queue_bytes
    }
}

/// One level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelStats {
    /// Number of tables.
    pub tables: usize,
    /// Total length of the table files, in bytes.
    pub file_bytes: u64,
    /// Total length of keys and values in bytes, before compression and prefix sharing.
    pub data_bytes: u64,
    /// Number of cells.
    pub cells: u64,
    /// Number of tombstones among the cells.
    pub tombstones: u64,
}

/// The write-ahead log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WalStats {
    /// Groups committed.
    pub groups: u64,
    /// Batches in these groups.
    pub batches: u64,
    /// Cells in these groups: writes.
    pub cells: u64,
    /// Keys and values of these cells: the accepted bytes.
    pub data_bytes: u64,
    /// Encoded bytes of the batches.
    pub bytes: u64,
    /// Bytes written to the log: batches, group headers and closing records.
    pub written_bytes: u64,
    /// Distribution of cells per group.
    pub group_cells: histogram::HistogramSnapshot,
    /// Distribution of the encoded bytes per group.
    pub group_bytes: histogram::HistogramSnapshot,
    /// Durations of `fdatasync` on the log, in nanoseconds. Under
    /// [`Durability::Sync`](crate::Durability::Sync) one per group; otherwise only those at the end
    /// of a segment and before an idle period.
    pub sync_nanos: histogram::HistogramSnapshot,
}

/// Background jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobStats {
    /// Memtables flushed.
    pub flushes: u64,
    /// Bytes of the tables that flushes wrote.
    pub flushed_bytes: u64,
    /// Completed compactions.
    pub compactions: u64,
    /// Compactions that only moved tables to another level and wrote nothing.
    pub moves: u64,
    /// Bytes of tables that compactions read.
    pub merged_bytes: u64,
    /// Bytes of tables that compactions wrote, including those that did not become live.
    pub compacted_bytes: u64,
}

/// Writes that were slowed down or refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StallStats {
    /// Number of pauses that limited the backlog.
    pub pauses: u64,
    /// Total duration of these pauses, in nanoseconds. A pause delays all batches of the next
    /// group.
    pub paused_nanos: u64,
    /// Batches refused because the backlog or the commit queue was at its bound.
    pub refused_overloaded: u64,
    /// Batches refused before they were logged because the disk is nearly full.
    pub refused_full: u64,
}

impl Stats {
    /// Total bytes of tables.
    pub fn table_bytes(&self) -> u64 {
        self.levels.iter().map(|level| level.file_bytes).sum()
    }

    /// Bytes written for writes: to the log, by flushes and by compactions. Without spare log
    /// segments and the manifest.
    pub fn written_bytes(&self) -> u64 {
        self.wal.written_bytes + self.jobs.flushed_bytes + self.jobs.compacted_bytes
    }

    /// Bytes written per accepted byte of keys and values. `None` before the first write.
    pub fn write_amplification(&self) -> Option<f64> {
        ratio(self.written_bytes(), self.wal.data_bytes)
    }

    /// Upper estimate of the bytes of tables per live byte. `None` without tables.
    ///
    /// Each level below level 0 has each key once, and so has each table of level 0. So the live
    /// bytes are at least the largest of these. In a tree at rest that is the deepest level, which
    /// has nearly all data, and the estimate is close. With only a few tables in level 0, the
    /// estimate can be their number. Tombstones above that level, and expired values in it, make
    /// the true amplification greater than the estimate.
    pub fn space_amplification(&self) -> Option<f64> {
        ratio(self.table_bytes(), self.live_bytes)
    }
}

fn ratio(of: u64, to: u64) -> Option<f64> {
    (to > 0).then(|| of as f64 / to as f64)
}

impl LevelStats {
    fn of(tables: &[Arc<Table>]) -> Self {
        let mut level = Self { tables: tables.len(), ..Self::default() };
        for table in tables {
            let meta = table.meta();
            level.file_bytes += meta.file_bytes;
            level.data_bytes += meta.data_bytes;
            level.cells += meta.cells;
            level.tombstones += meta.tombstones;
        }
        level
    }
}

/// Size of the largest set of tables that has no key twice.
fn live_bytes(levels: &Levels, sums: &[LevelStats]) -> u64 {
    let alone = levels.level(0).iter().map(|table| table.meta().file_bytes);
    let together = sums.iter().skip(1).map(|level| level.file_bytes);
    alone.chain(together).max().unwrap_or(0)
}

impl Engine {
    /// Whether values are refused for lack of disk space. Costs one atomic load.
    pub fn is_disk_full(&self) -> bool {
        self.shared.disk.is_full()
    }

    /// The disk space at the last measurement. Costs a few atomic loads.
    pub fn disk_stats(&self) -> DiskStats {
        self.shared.disk.stats()
    }

    /// Statistics of the log.
    pub fn wal_stats(&self) -> WalStats {
        self.shared.counters.wal(&self.shared.wal_status)
    }

    /// Statistics of memory. Visits each table, and allocates nothing.
    pub fn memory_stats(&self) -> MemoryStats {
        self.memory_of(&self.shared.view.load())
    }

    fn memory_of(&self, view: &View) -> MemoryStats {
        let shared = &self.shared;
        let spare_bytes = shared.spare_memtable.lock().as_ref().map_or(0, |spare| spare.memtable.bytes());
        let tables = view.levels.iter().map(|(_, table)| table);
        MemoryStats {
            budget_bytes: shared.options.memory_bytes,
            memtable_bytes: view.memtable_bytes() + spare_bytes + shared.chunk_pool.bytes(),
            pinned_memtable_bytes: self.pinned_memtable_bytes(),
            cache_bytes: shared.cache.bytes(),
            table_bytes: tables.map(|table| table.overhead_bytes() as u64).sum(),
            queue_bytes: shared.commit_queue.lock().queued_bytes() as u64,
        }
    }

    /// All statistics.
    pub fn stats(&self) -> Stats {
        let shared = &self.shared;
        let view = shared.view.load();
        let levels: Vec<_> =
            (0..view.levels.depth()).map(|level| LevelStats::of(view.levels.level(level))).collect();
        Stats {
            memory: self.memory_of(&view),
            cache: shared.cache.stats(),
            filters: shared.cache.filter_stats(),
            queued_batches: shared.commit_queue.lock().waiting(),
            memtables: view.memtables().count(),
            live_bytes: live_bytes(&view.levels, &levels),
            levels,
            wal: self.wal_stats(),
            jobs: shared.counters.jobs(),
            backlog: shared.backlog_of(&view),
            stalls: shared.counters.stalls(),
            io: shared.env.fs.counters().counts(),
            disk: shared.disk.stats(),
            tables_quarantined: shared.jobs.damaged.quarantined.lock().len() as u64,
            tables_healed: shared.counters.tables_healed(),
            scrub: self.scrub_stats(),
            horizon: self.shared.horizon.wall(&*self.shared.env.clock),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batch, Options};
    use env::{Env, ManualClock, MemFs};
    use std::path::Path;
    use std::time::Duration;
    use stdx::{CellMeta, CellRef, Hlc, NodeTag, Version, WallTime};

    fn submit(engine: &Engine, number: u64) {
        let mut batch = Batch::new();
        let version = Version::new(Hlc::from_bits(number), NodeTag(1));
        batch.put(&number.to_be_bytes(), CellRef { meta: CellMeta::value(version, 1), value: &[7; 10_000] });
        engine.submit(batch, Box::new(|_| ()));
    }

    fn pauses_are_counted() {
        let clock = Arc::new(ManualClock::new(WallTime::EPOCH_2020));
        let env = Env { fs: Arc::new(MemFs::new()), clock };
        let options = Options { memtable_bytes: Some(64 << 10), memtables_max: 2, ..Options::default() };
        let (engine, _) = Engine::open(env, Path::new("/data"), options).expect("opened");
        assert!(engine.pause_before_group().is_zero(), "nothing waits");
        assert_eq!(engine.stats().stalls, StallStats::default());
        let mut pauses = Vec::new();
        for number in 1..20 {
            submit(&engine, number);
            pauses.push(engine.pause_before_group());
            engine.step_commit().expect("committed");
        }
        pauses.retain(|pause| !pause.is_zero());
        assert!(pauses.len() > 2, "full memtables slow writes: {pauses:?}");
        let stalls = engine.stats().stalls;
        let together: Duration = pauses.iter().sum();
        assert_eq!((stalls.pauses, stalls.paused_nanos), (pauses.len() as u64, together.as_nanos() as u64));
    }

    /// Runs under shuttle, as memtables use shuttle's atomics in tests of this crate.
    #[test]
    fn pauses_are_counted_with_their_durations() {
        shuttle::check_random(pauses_are_counted, 1);
    }
}
