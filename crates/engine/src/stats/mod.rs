//! Statistics of an engine.
//!
//! **Promise.** [`Engine::stats`](crate::Engine::stats) is cheap: it waits for no disk, and for no
//! lock that is held longer than a few microseconds. Its duration grows only with the number of
//! tables, by some tens of nanoseconds for each. It can be called each second;
//! [`Engine::memory_stats`](crate::Engine::memory_stats), which sums up less, more often.
//!
//! **Mechanism.** Events are counted where they happen: groups by the committing thread
//! ([`WalStats`]), reads per thread ([`CacheStats`], [`FilterStats`]), so that reads on different
//! cores write no common cache line. Sizes are summed up on demand.
//!
//! **Caveats.** Counts begin when the engine is opened, and are relaxed: those of one reading may
//! be from slightly different moments. This affects amplification too: cells that recovery found in
//! the log are flushed, and counted as written, without having been accepted since.

mod collect;
mod counters;

pub(crate) use counters::EngineCounters;

use crate::cache::{CacheStats, FilterStats};
use crate::disk::DiskStats;
use crate::pressure::Backlog;
use crate::sstable::Table;
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
    /// Cells that became tables without the log.
    pub ingest: IngestStats,
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

/// Committed parts of ingests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IngestStats {
    /// Number of tables.
    pub tables: u64,
    /// Number of those tables that joined level 0, because they overlapped tables of every other
    /// level.
    pub level0_tables: u64,
    /// Number of cells.
    pub cells: u64,
    /// Bytes of keys and values.
    pub data_bytes: u64,
    /// Bytes of the table files.
    pub file_bytes: u64,
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

/// Results of scrubbing since the engine was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubStats {
    /// Bytes of tables read.
    pub bytes: u64,
    /// Blocks that were intact.
    pub blocks: u64,
    /// Tables in which scrubbing found damage.
    pub tables_damaged: u64,
    /// Completed rounds.
    pub rounds: u64,
    /// Time at which the last round was completed.
    pub last_round: Option<WallTime>,
}

impl Stats {
    /// Total bytes of tables.
    pub fn table_bytes(&self) -> u64 {
        self.levels.iter().map(|level| level.file_bytes).sum()
    }

    /// Bytes written for writes and ingests: to the log, by flushes, by ingests and by compactions.
    /// Without spare log segments and the manifest.
    pub fn written_bytes(&self) -> u64 {
        let jobs_bytes = self.jobs.flushed_bytes + self.jobs.compacted_bytes;
        self.wal.written_bytes + jobs_bytes + self.ingest.file_bytes
    }

    /// Bytes written per accepted byte of keys and values. `None` before the first write or ingest.
    pub fn write_amplification(&self) -> Option<f64> {
        ratio(self.written_bytes(), self.wal.data_bytes + self.ingest.data_bytes)
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
