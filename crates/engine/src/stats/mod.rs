//! What the engine did and holds, in numbers.
//!
//! **Promise.** [`Engine::stats`] disturbs nobody: it waits for no disk and for no lock that is held longer than
//! a few microseconds, and takes a time that grows with the number of tables alone, some tens of nanoseconds for
//! each. It can be called each second; [`Engine::memory_stats`], which adds up less, more often.
//!
//! **Mechanism.** What is counted while running is counted where it happens: of a group by whoever commits it
//! ([`WalStats`]), of reads by thread ([`CacheStats`], [`FilterStats`]), so that reads on different cores write
//! no common cache line. Sizes are added up when asked for.
//!
//! **Caveats.** Counts are since the engine was opened, and relaxed: those of one reading may be a little apart.
//! Amplification is of counts since then, too: what recovery found in the log is flushed, and counted as written,
//! without having been accepted since.

mod counters;

pub(crate) use counters::Counters;

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

/// A reading of an engine's numbers. Counts are since it was opened; sizes are in bytes.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Memory by part, against the budget.
    pub memory: MemoryStats,
    /// The block cache.
    pub cache: CacheStats,
    /// What filters answered.
    pub filters: FilterStats,
    /// Batches that wait for the log; their bytes are [`MemoryStats::queue_bytes`].
    pub queued_batches: usize,
    /// Memtables, the active one included; their bytes are [`MemoryStats::memtable_bytes`].
    pub memtables: usize,
    /// Tables and their sizes, by level, down to the deepest that has any.
    pub levels: Vec<LevelStats>,
    /// Of the bytes of all tables, those that are surely live: see [`Stats::space_amplification`].
    pub live_bytes: u64,
    /// The write-ahead log.
    pub wal: WalStats,
    /// Background work.
    pub jobs: JobStats,
    /// What flush and compaction owe.
    pub backlog: Backlog,
    /// Writes that were slowed down or refused.
    pub stalls: StallStats,
    /// What was asked of the file system, by whoever uses it.
    pub io: IoCounts,
    /// The room on the disk.
    pub disk: DiskStats,
    /// Tables that cannot be read back, and that no compaction takes any more.
    pub tables_quarantined: u64,
    /// Of such, those that were replaced since the engine was opened.
    pub tables_healed: u64,
    /// What was read in the background, to see whether it can be.
    pub scrub: ScrubStats,
    /// The time by which compaction judges expiry and grace periods; 0 before the host has set it.
    pub horizon: WallTime,
}

/// Memory by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// What all parts may take together.
    pub budget_bytes: u64,
    /// Memtables, with the one that is ready to be the next, and what is kept for those behind it.
    pub memtable_bytes: u64,
    /// Memtables that were flushed and that snapshots hold.
    pub pinned_memtable_bytes: u64,
    /// Blocks in the cache: data, indexes, filters.
    pub cache_bytes: u64,
    /// What is kept for each table outside the cache.
    pub table_bytes: u64,
    /// Batches that wait for the log.
    pub queue_bytes: u64,
}

impl MemoryStats {
    /// All parts together.
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
    /// Tables in it.
    pub tables: usize,
    /// Their files together.
    pub file_bytes: u64,
    /// Their keys and values together, before compression and prefix sharing.
    pub data_bytes: u64,
    /// Their cells together.
    pub cells: u64,
    /// Of these, tombstones.
    pub tombstones: u64,
}

/// The write-ahead log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WalStats {
    /// Groups committed.
    pub groups: u64,
    /// Batches in them.
    pub batches: u64,
    /// Cells in them: writes.
    pub cells: u64,
    /// Keys and values of these cells: the bytes that were accepted.
    pub data_bytes: u64,
    /// Bytes of the batches as the log has them.
    pub bytes: u64,
    /// Bytes written to the log: the batches, the headers of groups, closing records.
    pub written_bytes: u64,
    /// Cells in each group.
    pub group_cells: histogram::Snapshot,
    /// Bytes of the batches in each group.
    pub group_bytes: histogram::Snapshot,
    /// How long each `fdatasync` of the log took, in nanoseconds: one for each group where writes are
    /// acknowledged when they are durable, else only those at the end of a segment and before a pause.
    pub sync_nanos: histogram::Snapshot,
}

/// Background work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobStats {
    /// Memtables flushed.
    pub flushes: u64,
    /// Bytes of tables they became.
    pub flushed_bytes: u64,
    /// Compactions finished.
    pub compactions: u64,
    /// Of these, those that gave tables another level and wrote nothing.
    pub moves: u64,
    /// Bytes of tables that compactions merged.
    pub merged_bytes: u64,
    /// Bytes of tables that compactions wrote, whether they became live or not.
    pub compacted_bytes: u64,
}

/// Writes that were slowed down or refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StallStats {
    /// How often writes had to wait so that the backlog does not outgrow its bounds.
    pub pauses: u64,
    /// How long these pauses were together, in nanoseconds. A pause holds up all that wait for the same group.
    pub paused_nanos: u64,
    /// Batches refused because the backlog, or what waits for the log, was too great.
    pub refused_overloaded: u64,
    /// Batches refused before they were logged because the disk is nearly full.
    pub refused_full: u64,
}

impl Stats {
    /// Bytes of all tables.
    pub fn table_bytes(&self) -> u64 {
        self.levels.iter().map(|level| level.file_bytes).sum()
    }

    /// Bytes written to the disk for the sake of writes: to the log, by flushes and by compactions. Spare segments
    /// of the log and the manifest are not among them.
    pub fn written_bytes(&self) -> u64 {
        self.wal.written_bytes + self.jobs.flushed_bytes + self.jobs.compacted_bytes
    }

    /// Bytes written for each byte of keys and values that was accepted. `None` before anything was.
    pub fn write_amplification(&self) -> Option<f64> {
        ratio(self.written_bytes(), self.wal.data_bytes)
    }

    /// Bytes of tables for each of their live bytes, at most. `None` when there are none.
    ///
    /// A level below the first has each key once, and so has each table of the first: what is live is at least
    /// the largest of these. In a tree at rest it is the deepest level and has nearly all, so that the estimate is
    /// close; with a few tables of level 0 alone it can be their number. Tombstones above that level, and expired
    /// values in it, make true amplification greater than this.
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

/// Bytes of the tables that together have the most and no key twice.
fn live_bytes(levels: &Levels, sums: &[LevelStats]) -> u64 {
    let alone = levels.level(0).iter().map(|table| table.meta().file_bytes);
    let together = sums.iter().skip(1).map(|level| level.file_bytes);
    alone.chain(together).max().unwrap_or(0)
}

impl Engine {
    /// Whether values are refused for lack of room on the disk. Costs one atomic load.
    pub fn is_disk_full(&self) -> bool {
        self.shared.disk.is_full()
    }

    /// The room on the disk, as it was last seen. Costs a few atomic loads.
    pub fn disk_stats(&self) -> DiskStats {
        self.shared.disk.stats()
    }

    /// The log alone.
    pub fn wal_stats(&self) -> WalStats {
        self.shared.counters.wal(&self.shared.wal_status)
    }

    /// The memory alone. Costs a look at each table, and allocates nothing.
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
            table_bytes: tables.map(|table| table.pinned_bytes() as u64).sum(),
            queue_bytes: shared.commit_queue.lock().queued_bytes() as u64,
        }
    }

    /// The numbers now.
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
        assert!(pauses.len() > 2, "what is in memory slows writes down: {pauses:?}");
        let stalls = engine.stats().stalls;
        let together: Duration = pauses.iter().sum();
        assert_eq!((stalls.pauses, stalls.paused_nanos), (pauses.len() as u64, together.as_nanos() as u64));
    }

    /// Memtables are shuttle's in tests of this crate.
    #[test]
    fn pauses_are_counted_as_long_as_they_were_asked_for() {
        shuttle::check_random(pauses_are_counted, 1);
    }
}
