//! Interface of the stores under comparison, and their common settings.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Error of a store, of any type.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Callback of a scan for each entry, in order of keys.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]);

/// An open store.
pub trait Store: Send + Sync {
    /// Writes one entry. Returns when it is as durable as [`Settings::sync`] requires.
    fn put(&self, key: &[u8], value: &[u8]) -> Outcome<()>;

    /// Writes all entries in one batch.
    fn put_batch(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> Outcome<()>;

    /// Reads one entry, and passes its value to the callback if it exists.
    fn get(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Outcome<bool>;

    /// Deletes one entry.
    fn delete(&self, key: &[u8]) -> Outcome<()>;

    /// Visits at most `limit` entries from `start` on. Returns their number.
    fn scan(&self, start: &[u8], limit: usize, visit: Visit<'_>) -> Outcome<usize>;

    /// Flushes the memtables and waits until no background work is left.
    fn settle(&self) -> Outcome<()>;

    /// Options of the store, for the report.
    fn describe(&self) -> String;
}

/// Kind of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The engine of this repository.
    Veche,
    /// RocksDB, as installed on the system.
    Rocksdb,
    /// fjall 3.
    Fjall,
}

impl Kind {
    /// Opens the store in `dir`, which is created if it is missing.
    pub fn open(self, dir: &Path, settings: &Settings) -> Outcome<Arc<dyn Store>> {
        std::fs::create_dir_all(dir)?;
        Ok(match self {
            Self::Veche => Arc::new(crate::veche::Veche::open(dir, settings)?),
            Self::Rocksdb => Arc::new(crate::rocks::Rocks::open(dir, settings)?),
            Self::Fjall => Arc::new(crate::fjall_store::Fjall::open(dir, settings)?),
        })
    }

    /// Name in the report.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Veche => "veche",
            Self::Rocksdb => "rocksdb",
            Self::Fjall => "fjall",
        }
    }
}

/// Settings that all stores share.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// Whether a write returns after `fdatasync`; otherwise it returns when the operating system
    /// has it.
    pub sync: bool,
    /// Size of one memtable, in bytes; there may be [`MEMTABLES`].
    pub memtable_bytes: u64,
    /// Size of the cache for data, index and filter blocks, in bytes.
    pub cache_bytes: u64,
    /// Size of a data block before compression, in bytes. `None`: each store's own default.
    pub block_bytes: Option<u32>,
}

/// Maximum number of memtables.
pub const MEMTABLES: usize = 4;
/// Filter bits per key.
pub const FILTER_BITS: u32 = 10;
/// Number of threads that flush and compact.
pub const BACKGROUND_THREADS: usize = 2;

const POLL: Duration = Duration::from_millis(5);
/// Number of consecutive polls without background work: there may be a short pause between two
/// jobs.
const QUIET_POLLS: u32 = 20;
const SETTLE_MAX: Duration = Duration::from_secs(600);

/// Waits until `is_idle` has held for [`QUIET_POLLS`] consecutive polls.
pub fn wait_until_quiet(mut is_idle: impl FnMut() -> bool) -> Outcome<()> {
    let begun = Instant::now();
    let mut quiet = 0;
    while quiet < QUIET_POLLS {
        if begun.elapsed() > SETTLE_MAX {
            return Err(format!("background work does not end within {SETTLE_MAX:?}").into());
        }
        std::thread::sleep(POLL);
        quiet = if is_idle() { quiet + 1 } else { 0 };
    }
    Ok(())
}
