//! Adapter of veche's engine, with the worker threads that its server starts.

use crate::store::{
    BACKGROUND_THREADS, FILTER_BITS, MEMTABLES, Outcome, Settings, Store, Visit, wait_until_quiet,
};
use engine::workers::{self, WorkerOptions, Workers};
use engine::{Batch, Compression, Cursor, Durability, Engine, Options};
use env::Env;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use stdx::{Cell, CellKind, CellMeta, CellRef, Hlc, NodeTag, Version};

/// An open engine and its workers.
pub(crate) struct Veche {
    // The workers are stopped before the engine is dropped.
    _workers: Workers,
    engine: Engine,
    clock: AtomicU64,
    description: String,
}

impl Veche {
    pub(crate) fn open(dir: &Path, settings: &Settings) -> Outcome<Self> {
        let defaults = Options::default();
        // A budget of which the memtables and a sixteenth for jobs leave the cache size of the
        // other stores.
        let memtables = settings.memtable_bytes * MEMTABLES as u64;
        let options = Options {
            durability: if settings.sync { Durability::Sync } else { Durability::Os },
            memory_bytes: (settings.cache_bytes + memtables) * 16 / 15,
            memtable_bytes: Some(settings.memtable_bytes),
            memtables_max: MEMTABLES,
            block_bytes: settings.block_bytes.map_or(defaults.block_bytes, |bytes| bytes as usize),
            compression: Compression::Lz4,
            filter_bits_per_key: FILTER_BITS,
            ..defaults
        };
        let description = format!("{options:?} cache_bytes={}", options.cache_bytes());
        let (engine, recovery) = Engine::open(Env::os(), dir, options)?;
        let compaction_threads = BACKGROUND_THREADS - 1;
        let workers =
            workers::start(&engine, WorkerOptions { compaction_threads, ..WorkerOptions::default() })?;
        let clock = AtomicU64::new(recovery.version_max.hlc.to_bits());
        Ok(Self { _workers: workers, engine, clock, description })
    }

    fn version(&self) -> Version {
        Version::new(Hlc::from_bits(self.clock.fetch_add(1, Ordering::Relaxed) + 1), NodeTag(1))
    }

    fn cell<'a>(&self, value: &'a [u8]) -> CellRef<'a> {
        CellRef { meta: CellMeta::value(self.version(), 1), value }
    }
}

impl Store for Veche {
    fn put(&self, key: &[u8], value: &[u8]) -> Outcome<()> {
        let mut batch = Batch::new();
        batch.put(key, self.cell(value));
        self.engine.write(batch)?;
        Ok(())
    }

    fn put_batch(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> Outcome<()> {
        let mut batch = Batch::new();
        for (key, value) in entries {
            batch.put(key, self.cell(value));
        }
        self.engine.write(batch)?;
        Ok(())
    }

    fn get(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        match self.engine.get(key)? {
            Some(cell) if cell.meta.kind == CellKind::Value => {
                show(&cell.value);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn delete(&self, key: &[u8]) -> Outcome<()> {
        let mut batch = Batch::new();
        batch.put(key, Cell::tombstone(self.version(), 1).as_ref());
        self.engine.write(batch)?;
        Ok(())
    }

    fn scan(&self, start: &[u8], limit: usize, visit: Visit<'_>) -> Outcome<usize> {
        let mut cursor = self.engine.snapshot().cursor();
        cursor.seek(start)?;
        let mut count = 0;
        while count < limit {
            let Some((key, cell)) = cursor.entry() else { break };
            if cell.meta.kind == CellKind::Value {
                visit(key, cell.value);
                count += 1;
            }
            cursor.advance()?;
        }
        Ok(count)
    }

    fn settle(&self) -> Outcome<()> {
        self.engine.flush()?;
        let mut jobs = self.engine.stats().jobs;
        wait_until_quiet(|| {
            let before = std::mem::replace(&mut jobs, self.engine.stats().jobs);
            before == jobs && self.engine.backlog().debt_bytes == 0
        })
    }

    fn describe(&self) -> String {
        self.description.clone()
    }
}
