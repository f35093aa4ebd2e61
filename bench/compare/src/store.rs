//! What every store under comparison can do, and what all of them are given.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A store's own error, whatever it is.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Calls a scan makes for each entry, in order of keys.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]);

/// A store that is open.
pub trait Store: Send + Sync {
    /// Writes one entry; returns when it is as durable as [`Settings::sync`] says.
    fn put(&self, key: &[u8], value: &[u8]) -> Outcome<()>;

    /// Writes all entries at once.
    fn put_batch(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> Outcome<()>;

    /// Reads one entry, and shows its value if it is there.
    fn get(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Outcome<bool>;

    /// Deletes one entry.
    fn delete(&self, key: &[u8]) -> Outcome<()>;

    /// Visits at most `limit` entries from `start` on. Returns how many.
    fn scan(&self, start: &[u8], limit: usize, visit: Visit<'_>) -> Outcome<usize>;

    /// Writes the memtables to tables and waits until nothing is left to do in the background.
    fn settle(&self) -> Outcome<()>;

    /// The options it runs with, for the report.
    fn describe(&self) -> String;
}

/// The stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The engine of this repository.
    Veche,
    /// RocksDB, the system's library.
    Rocksdb,
    /// fjall 3.
    Fjall,
}

impl Kind {
    /// Opens the store in `dir`, which is made if it is not there.
    pub fn open(self, dir: &Path, settings: &Settings) -> Outcome<Arc<dyn Store>> {
        std::fs::create_dir_all(dir)?;
        Ok(match self {
            Self::Veche => Arc::new(crate::veche::Veche::open(dir, settings)?),
            Self::Rocksdb => Arc::new(crate::rocks::Rocks::open(dir, settings)?),
            Self::Fjall => Arc::new(crate::fjall_store::Fjall::open(dir, settings)?),
        })
    }

    /// Its name in the report.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Veche => "veche",
            Self::Rocksdb => "rocksdb",
            Self::Fjall => "fjall",
        }
    }
}

/// What all stores are given alike.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// A write returns after `fdatasync`; else when the operating system has it.
    pub sync: bool,
    /// Of one memtable; there may be [`MEMTABLES`].
    pub memtable_bytes: u64,
    /// Of the cache for data, index and filter blocks.
    pub cache_bytes: u64,
    /// Of a data block before compression. `None`: each store's own default.
    pub block_bytes: Option<u32>,
}

/// Memtables that may exist at a time.
pub const MEMTABLES: usize = 4;
/// Bits of filter for each key.
pub const FILTER_BITS: u32 = 10;
/// Threads that flush and compact.
pub const BACKGROUND_THREADS: usize = 2;

const POLL: Duration = Duration::from_millis(5);
/// Background work may rest for a moment between two jobs.
const QUIET_POLLS: u32 = 20;
const SETTLE_MAX: Duration = Duration::from_secs(600);

/// Waits until `is_idle` has held for [`QUIET_POLLS`] in a row.
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
