//! Adapter of fjall 3.
//!
//! It has no group commit: a durable write syncs the journal while it holds its lock, so writers
//! wait in line.

use crate::store::{BACKGROUND_THREADS, FILTER_BITS, Outcome, Settings, Store, Visit, wait_until_quiet};
use fjall::config::{
    BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry,
};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use std::path::Path;

const OWN_BLOCK_BYTES: u32 = 4096;

/// An open fjall database with one keyspace.
pub(crate) struct Fjall {
    db: Database,
    keyspace: Keyspace,
    sync: bool,
    description: String,
}

impl Fjall {
    pub(crate) fn open(dir: &Path, settings: &Settings) -> Outcome<Self> {
        let block_bytes = settings.block_bytes.unwrap_or(OWN_BLOCK_BYTES);
        let db = Database::builder(dir)
            .cache_size(settings.cache_bytes)
            .worker_threads(BACKGROUND_THREADS)
            .open()?;
        let bloom = BloomConstructionPolicy::BitsPerKey(FILTER_BITS as f32);
        let keyspace = db.keyspace("compare", || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(settings.memtable_bytes)
                .data_block_size_policy(BlockSizePolicy::all(block_bytes))
                .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
                .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(bloom)))
        })?;
        let description = format!(
            "sync={} max_memtable_size={} worker_threads={BACKGROUND_THREADS} compression=lz4 on all levels \
             block_size={block_bytes} bloom_bits={FILTER_BITS} cache_size={}, all else default",
            settings.sync, settings.memtable_bytes, settings.cache_bytes
        );
        Ok(Self { db, keyspace, sync: settings.sync, description })
    }
}

impl Store for Fjall {
    fn put(&self, key: &[u8], value: &[u8]) -> Outcome<()> {
        if !self.sync {
            return Ok(self.keyspace.insert(key, value)?);
        }
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncData));
        batch.insert(&self.keyspace, key, value);
        Ok(batch.commit()?)
    }

    fn put_batch(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> Outcome<()> {
        let mode = if self.sync { PersistMode::SyncData } else { PersistMode::Buffer };
        let mut batch = self.db.batch().durability(Some(mode));
        for (key, value) in entries {
            batch.insert(&self.keyspace, key.as_slice(), value.as_slice());
        }
        Ok(batch.commit()?)
    }

    fn get(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        let value = self.keyspace.get(key)?;
        if let Some(value) = &value {
            show(value);
        }
        Ok(value.is_some())
    }

    fn delete(&self, key: &[u8]) -> Outcome<()> {
        let mode = if self.sync { PersistMode::SyncData } else { PersistMode::Buffer };
        let mut batch = self.db.batch().durability(Some(mode));
        batch.remove(&self.keyspace, key);
        Ok(batch.commit()?)
    }

    fn scan(&self, start: &[u8], limit: usize, visit: Visit<'_>) -> Outcome<usize> {
        let mut count = 0;
        for guard in self.keyspace.range(start..).take(limit) {
            let (key, value) = guard.into_inner()?;
            visit(&key, &value);
            count += 1;
        }
        Ok(count)
    }

    fn settle(&self) -> Outcome<()> {
        self.keyspace.rotate_memtable_and_wait()?;
        let mut compactions = self.db.compactions_completed();
        wait_until_quiet(|| {
            let before = std::mem::replace(&mut compactions, self.db.compactions_completed());
            before == compactions && self.db.outstanding_flushes() == 0 && self.db.active_compactions() == 0
        })
    }

    fn describe(&self) -> String {
        self.description.clone()
    }
}
