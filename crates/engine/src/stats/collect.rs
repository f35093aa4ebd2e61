//! Collection of the statistics from the parts of the engine.

use super::{LevelStats, MemoryStats, Stats, WalStats};
use crate::disk::DiskStats;
use crate::engine::Engine;
use crate::manifest::Levels;
use crate::view::View;

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
            ingest: shared.counters.ingest(),
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
    use super::super::StallStats;
    use super::*;
    use crate::{Batch, Options};
    use env::{Env, ManualClock, MemFs};
    use std::path::Path;
    use std::sync::Arc;
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
