//! Options of an engine.

use crate::wal::LogEnd;
use crate::{Error, HorizonSource};
use bytes::Bytes;
use std::time::Duration;

/// The moment at which a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// A write is acknowledged after `fdatasync`: it survives the loss of power.
    #[default]
    Sync,
    /// After the write to the operating system: it survives the death of the process, not the loss
    /// of power.
    Os,
}

/// Compression of the blocks of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Compression {
    /// No compression.
    None,
    /// LZ4: fast in both directions.
    #[default]
    Lz4,
    /// Zstandard at this level, 1 to 19: smaller and slower.
    Zstd(i32),
}

/// Options of an engine. The defaults suit a node that shares its machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The moment at which a write is acknowledged.
    pub durability: Durability,
    /// Budget of memtables, block cache and job buffers together, in bytes. At least 16 MiB.
    pub memory_bytes: u64,
    /// Size at which a memtable is flushed, in bytes. `None`: an eighth of the budget, at most 256
    /// MiB.
    pub memtable_bytes: Option<u64>,
    /// Number of memtables, the active one included, at which writes are refused. At least 2.
    pub memtables_max: usize,
    /// Size of a data block before compression, in bytes.
    pub block_bytes: usize,
    /// Compression of tables.
    pub compression: Compression,
    /// Filter bits per key of a table on the last level; upper levels use more.
    pub filter_bits_per_key: u32,
    /// Size of the tables that compaction writes, in bytes.
    pub table_bytes: u64,
    /// Number of tables in level 0 that triggers a compaction.
    pub level0_tables: usize,
    /// Target size of level 1, in bytes.
    pub level1_bytes: u64,
    /// Ratio of the target sizes of two successive levels, from level 1 down.
    pub level_growth: u64,
    /// Least time for which a tombstone is kept, so that every replica receives it before it is
    /// dropped.
    pub tombstone_grace: Duration,
    /// End of the range of local keys, which no replica has. Their tombstones need no grace period:
    /// they are dropped as soon as no older cell of their key can be left.
    pub local_keys_end: Option<Vec<u8>>,
    /// Source of the time against which expiry and grace periods are compared.
    pub horizon: HorizonSource,
    /// Size of a segment of the write-ahead log, in bytes.
    pub wal_segment_bytes: u64,
    /// Limit of the table files that stay open; others are opened for each read. At least 1.
    pub table_files_max: usize,
    /// Seed of the tower heights in memtables. A host whose clients choose the keys uses a random
    /// seed per process, so that clients cannot predict the heights. Simulations fix it.
    pub tower_seed: u64,
    /// Period in which all tables are read and checked once. `None`: no scrubbing.
    pub scrub_period: Option<Duration>,
    /// A position up to which the log was durable when the directory was last open
    /// ([`Engine::durable_log_end`](crate::Engine::durable_log_end)). A directory whose log ends
    /// before it is not opened. `None`: not known.
    pub known_log_end: Option<LogEnd>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::Sync,
            memory_bytes: 512 << 20,
            memtable_bytes: None,
            memtables_max: 4,
            block_bytes: 16 << 10,
            compression: Compression::Lz4,
            filter_bits_per_key: 13,
            table_bytes: 64 << 20,
            level0_tables: 4,
            level1_bytes: 256 << 20,
            level_growth: 10,
            tombstone_grace: Duration::from_secs(10 * 24 * 3600),
            local_keys_end: None,
            horizon: HorizonSource::Clock,
            wal_segment_bytes: 32 << 20,
            table_files_max: 512,
            tower_seed: 0,
            scrub_period: None,
            known_log_end: None,
        }
    }
}

/// Least memory budget, in bytes.
const MEMORY_BYTES_MIN: u64 = 16 << 20;
/// Valid levels of Zstandard.
const ZSTD_LEVELS: std::ops::RangeInclusive<i32> = 1..=19;
/// Greatest size of a memtable or a segment, in bytes.
const SIZE_MAX: u64 = 64 << 30;
/// Valid sizes of a block, in bytes.
const BLOCK_BYTES: std::ops::RangeInclusive<usize> = 256..=1 << 20;

impl Options {
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let sound = [
            (self.memory_bytes >= MEMORY_BYTES_MIN, "memory_bytes is at least 16 MiB"),
            (self.memtables_max >= 2, "memtables_max is at least 2: one fills while one is flushed"),
            (self.memtable_bytes() > 0, "memtable_bytes is at least 1"),
            (BLOCK_BYTES.contains(&self.block_bytes), "block_bytes is between 256 bytes and 1 MiB"),
            ((1..=64).contains(&self.filter_bits_per_key), "filter_bits_per_key is between 1 and 64"),
            (self.table_bytes > 0 && self.level1_bytes > 0, "table_bytes and level1_bytes are at least 1"),
            (self.level0_tables > 0, "level0_tables is at least 1"),
            (
                !matches!(self.compression, Compression::Zstd(level) if !ZSTD_LEVELS.contains(&level)),
                "the level of Zstandard is between 1 and 19",
            ),
            (self.memtable_bytes() <= SIZE_MAX, "memtable_bytes is at most 64 GiB"),
            (self.wal_segment_bytes <= SIZE_MAX, "wal_segment_bytes is at most 64 GiB"),
            (self.table_files_max > 0, "table_files_max is at least 1"),
            (self.scrub_period != Some(Duration::ZERO), "scrub_period is longer than 0"),
            (self.level_growth >= 2, "level_growth is at least 2"),
        ];
        match sound.iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(Error::Invalid((*rule).to_owned())),
            None => Ok(()),
        }
    }

    /// The size at which a memtable is flushed, in bytes.
    pub fn memtable_bytes(&self) -> u64 {
        self.memtable_bytes.unwrap_or_else(|| (self.memory_bytes / 8).clamp(1 << 20, 256 << 20))
    }

    /// [`Options::local_keys_end`] as shared bytes.
    pub(crate) fn local_end(&self) -> Option<Bytes> {
        self.local_keys_end.as_deref().map(Bytes::copy_from_slice)
    }

    /// Capacity of the block cache in bytes: the budget without the memtables and a sixteenth for
    /// jobs, and at least an eighth of the budget.
    pub fn cache_bytes(&self) -> u64 {
        let memtables = self.memtable_bytes() * self.memtables_max as u64;
        self.memory_bytes.saturating_sub(memtables + self.memory_bytes / 16).max(self.memory_bytes / 8)
    }
}
