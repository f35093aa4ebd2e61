//! What the engine did and holds, in numbers.

use crate::cache::CacheStats;
use crate::commit::GroupSize;
use crate::engine::Engine;
use crate::pressure::Backlog;
use env::IoCounts;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A reading of an engine's numbers. Counts are since it was opened; sizes are in bytes.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Memory by part, against the budget.
    pub memory: MemoryStats,
    /// The block cache.
    pub cache: CacheStats,
    /// Memtables, the active one included.
    pub memtables: usize,
    /// Tables and their sizes, by level.
    pub levels: Vec<LevelStats>,
    /// The write-ahead log.
    pub wal: WalStats,
    /// Background work.
    pub jobs: JobStats,
    /// What flush and compaction owe.
    pub backlog: Backlog,
    /// What was asked of the file system.
    pub io: IoCounts,
    /// Whether values are refused for lack of space.
    pub disk_full: bool,
}

/// Memory by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// What all parts may take together.
    pub budget_bytes: u64,
    /// Memtables, the one that is ready to be the next included.
    pub memtable_bytes: u64,
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
        self.memtable_bytes + self.cache_bytes + self.table_bytes + self.queue_bytes
    }
}

/// One level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelStats {
    /// Tables in it.
    pub tables: usize,
    /// Their files together.
    pub file_bytes: u64,
    /// Their cells together.
    pub cells: u64,
}

/// The write-ahead log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalStats {
    /// Groups committed.
    pub groups: u64,
    /// Batches in them.
    pub batches: u64,
    /// Cells in them.
    pub cells: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Time spent appending and syncing groups, in nanoseconds; 0 where nothing is synced.
    pub append_nanos: u64,
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
    /// Bytes of tables they wrote or moved.
    pub compacted_bytes: u64,
}

/// Counts kept while running. Relaxed: a reader may see them a little apart.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    groups: AtomicU64,
    batches: AtomicU64,
    cells: AtomicU64,
    bytes: AtomicU64,
    append_nanos: AtomicU64,
    flushes: AtomicU64,
    flushed_bytes: AtomicU64,
    compactions: AtomicU64,
    compacted_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn group(&self, size: &GroupSize, took: Duration) {
        add(&self.groups, 1);
        add(&self.batches, size.batches);
        add(&self.cells, size.cells);
        add(&self.bytes, size.bytes);
        add(&self.append_nanos, took.as_nanos() as u64);
    }

    pub(crate) fn flushed(&self, bytes: u64) {
        add(&self.flushes, 1);
        add(&self.flushed_bytes, bytes);
    }

    pub(crate) fn compacted(&self, bytes: u64) {
        add(&self.compactions, 1);
        add(&self.compacted_bytes, bytes);
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Engine {
    /// Whether values are refused for lack of room on the disk. Costs one atomic load.
    pub fn is_disk_full(&self) -> bool {
        self.shared.disk.is_full()
    }

    /// The numbers now.
    pub fn stats(&self) -> Stats {
        let shared = &self.shared;
        let view = shared.view.load();
        let levels = (0..view.levels.depth()).map(|level| {
            let tables = view.levels.level(level);
            LevelStats {
                tables: tables.len(),
                file_bytes: tables.iter().map(|table| table.meta().file_bytes).sum(),
                cells: tables.iter().map(|table| table.meta().cells).sum(),
            }
        });
        let tables = view.levels.iter().map(|(_, table)| table);
        let counters = &shared.counters;
        let spare_bytes = shared.spare_memtable.lock().as_ref().map_or(0, |spare| spare.memtable.bytes());
        let cache = shared.cache.stats();
        Stats {
            memory: MemoryStats {
                budget_bytes: shared.options.memory_bytes,
                memtable_bytes: view.memtable_bytes() + spare_bytes,
                cache_bytes: shared.cache.bytes(),
                table_bytes: tables.map(|table| table.pinned_bytes() as u64).sum(),
                queue_bytes: shared.commit_queue.lock().waiting_bytes() as u64,
            },
            cache,
            memtables: view.memtables().count(),
            levels: levels.collect(),
            wal: WalStats {
                groups: get(&counters.groups),
                batches: get(&counters.batches),
                cells: get(&counters.cells),
                bytes: get(&counters.bytes),
                append_nanos: get(&counters.append_nanos),
            },
            jobs: JobStats {
                flushes: get(&counters.flushes),
                flushed_bytes: get(&counters.flushed_bytes),
                compactions: get(&counters.compactions),
                compacted_bytes: get(&counters.compacted_bytes),
            },
            backlog: shared.backlog(),
            io: shared.env.fs.counters().counts(),
            disk_full: self.is_disk_full(),
        }
    }
}
