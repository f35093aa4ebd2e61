//! What an operator may choose.

use crate::wal::LogEnd;
use crate::{Error, HorizonSource};
use bytes::Bytes;
use std::time::Duration;

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// After `fdatasync`: it survives the loss of power.
    #[default]
    Sync,
    /// After the operating system has it: it survives the death of the process, not the loss of power.
    Os,
}

/// How blocks of tables are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Compression {
    /// Not at all.
    None,
    /// LZ4: fast both ways.
    #[default]
    Lz4,
    /// Zstandard at this level (1 to 19): smaller, slower.
    Zstd(i32),
}

/// Options of an engine. The defaults suit a node that shares its machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// When a write is acknowledged.
    pub durability: Durability,
    /// What memtables, the block cache and the buffers of jobs may take together, in bytes. At least 16 MiB.
    pub memory_bytes: u64,
    /// A memtable of this size is flushed, in bytes. `None`: an eighth of the budget, 256 MiB at most.
    pub memtable_bytes: Option<u64>,
    /// How many memtables, the active one included, may exist before writes are refused.
    pub memtables_max: usize,
    /// Data blocks are cut at this size before compression, in bytes.
    pub block_bytes: usize,
    /// Compression of tables.
    pub compression: Compression,
    /// Bits of filter for each key of a table on the last level; upper levels spend more.
    pub filter_bits_per_key: u32,
    /// Compaction cuts tables at this size, in bytes.
    pub table_bytes: u64,
    /// So many tables in level 0 start a compaction.
    pub level0_tables: usize,
    /// Level 1 may hold so many bytes; each level below it `level_growth` times the one above.
    pub level1_bytes: u64,
    /// See `level1_bytes`.
    pub level_growth: u64,
    /// How long a tombstone is kept at least, so that every replica sees it before it goes.
    pub tombstone_grace: Duration,
    /// Keys below this one are this engine's own: no replica has them, so their tombstones need no grace period
    /// and go as soon as nothing older can be left of their key.
    pub local_keys_end: Option<Vec<u8>>,
    /// Who says by which time expiry and grace periods are judged.
    pub horizon: HorizonSource,
    /// Size of a segment of the write-ahead log, in bytes.
    pub wal_segment_bytes: u64,
    /// So many files of tables are kept open at most; others are opened when they are read. At least 1.
    pub table_files_max: usize,
    /// Seed of the tower heights in memtables. A host whose clients choose the keys draws it anew for each process,
    /// so that no client can guess the heights. Simulations fix it.
    pub tower_seed: u64,
    /// All tables are read and checked once in this time. `None`: they are not.
    pub scrub_period: Option<Duration>,
    /// An end of the log that the host has seen while the directory was last open: see
    /// [`Engine::durable_log_end`](crate::Engine::durable_log_end). A directory whose log ends before it is not opened.
    /// `None`: the host knows of none.
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

/// The least memory budget, in bytes.
const MEMORY_BYTES_MIN: u64 = 16 << 20;
/// Levels of Zstandard.
const ZSTD_LEVELS: std::ops::RangeInclusive<i32> = 1..=19;
/// The greatest size of a memtable or a segment, in bytes.
const SIZE_MAX: u64 = 64 << 30;
/// The least and the greatest size of a block, in bytes.
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
                "a level of Zstandard is between 1 and 19",
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

    /// See [`Options::local_keys_end`].
    pub(crate) fn local_end(&self) -> Option<Bytes> {
        self.local_keys_end.as_deref().map(Bytes::copy_from_slice)
    }

    /// What the block cache may hold, in bytes: the budget less the memtables and a sixteenth for jobs, but an
    /// eighth of the budget at least.
    pub fn cache_bytes(&self) -> u64 {
        let memtables = self.memtable_bytes() * self.memtables_max as u64;
        self.memory_bytes.saturating_sub(memtables + self.memory_bytes / 16).max(self.memory_bytes / 8)
    }
}
