//! Checking every byte of a data directory that no process has open.
//!
//! **Promise.** When [`verify`] finds nothing wrong, every live table and every record of the log reads back as
//! it was written, no segment of the log is missing, and the log is not shorter than it was known to be. Nothing is changed but the lock, which is held meanwhile and made where it is missing.
//!
//! **Mechanism.** The manifest is read; each table it names is walked, block by block, its order, counts,
//! filters and description checked; each segment of the log that would be replayed is replayed into nothing.
//!
//! Damage to a table that was set aside when a checkpoint was made of it is told as such.
//!
//! **Caveats.** The end of the log may be an interrupted write; that is how a crash leaves it, not damage, and
//! [`VerifyReport::log_tail`] says so.

use crate::cache::BlockCache;
use crate::engine::open_table;
use crate::manifest::Manifest;
use crate::obsolete::ObsoleteFiles;
use crate::open::known_log;
use crate::paths::Paths;
use crate::sstable::{Show, TableFiles};
use crate::wal::{LogEnd, WalRecovery};
use crate::{Error, wal};
use env::{DirLock, Env};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Blocks are not kept: each is looked at once.
const CACHE_BYTES: u64 = 1 << 20;

/// How far [`verify`] is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Bytes of tables that were checked.
    pub bytes_done: u64,
    /// Bytes of tables in all.
    pub bytes_total: u64,
}

/// What [`verify`] has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Live tables.
    pub tables: usize,
    /// Their files together, in bytes.
    pub table_bytes: u64,
    /// Cells in them.
    pub cells: u64,
    /// Records in the log that a start would replay.
    pub wal_records: u64,
    /// Where the log ends; `None` without a segment.
    pub log_end: Option<LogEnd>,
    /// How the log ends.
    pub log_tail: LogTail,
}

/// How a log ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogTail {
    /// With a closing record, or without a record: it was closed, or nothing was written for a while.
    #[default]
    Closed,
    /// With a whole group and no closing record: the process or the machine stopped while it wrote.
    Open,
    /// With an interrupted, never acknowledged write. A start cuts it.
    Torn {
        /// How long that is, in bytes.
        cut_bytes: u64,
    },
}

/// Checks the directory of an engine that is not open. `known_log_end` is what
/// [`Options::known_log_end`](crate::Options::known_log_end) is for opening it.
///
/// # Errors
/// All that is wrong, at least one: [`Error::Corrupt`] of each file that is damaged, and where; [`Error::Lost`] of each
/// that is missing or cut short; [`Error::Io`] of each that cannot be read; [`Error::Locked`] alone when a process has the directory.
pub fn verify(
    env: &Env,
    dir: &Path,
    known_log_end: Option<LogEnd>,
    progress: &mut dyn FnMut(VerifyProgress),
) -> Result<VerifyReport, Vec<Error>> {
    verify_showing(env, dir, known_log_end, progress, &mut |_, _| ())
}

/// As [`verify`]; `show` is called with each key and what its cell is, once for each cell in the tables and the log.
///
/// # Errors
/// As [`verify`].
pub fn verify_showing(
    env: &Env,
    dir: &Path,
    known_log_end: Option<LogEnd>,
    progress: &mut dyn FnMut(VerifyProgress),
    show: Show<'_>,
) -> Result<VerifyReport, Vec<Error>> {
    let paths = Paths::new(dir);
    if !env.fs.exists(dir).map_err(|error| vec![Error::io("look for", dir, error)])? {
        return Err(vec![Error::lost(dir, "is missing")]);
    }
    let _lock = lock(env, dir).map_err(|error| vec![error])?;
    let recovered = Manifest::inspect(&env.fs, dir).map_err(|error| vec![error])?;
    let cache = Arc::new(BlockCache::new(CACHE_BYTES));
    let files = Arc::new(TableFiles::new(Arc::clone(&env.fs), 1));
    // Nothing becomes so here.
    let obsolete = Arc::new(ObsoleteFiles::new(0));
    let bytes_total = recovered.tables.iter().map(|(_, meta)| meta.file_bytes).sum();
    let mut verified =
        VerifyReport { tables: recovered.tables.len(), table_bytes: bytes_total, ..VerifyReport::default() };
    let mut damage = Vec::new();
    let mut bytes_before = 0;
    for (_, meta) in &recovered.tables {
        let mut bytes_done = bytes_before;
        let table = open_table(&files, &paths, meta, &cache, &obsolete);
        let mut tell = |bytes| {
            bytes_done += bytes;
            progress(VerifyProgress { bytes_done, bytes_total });
        };
        let checked = table.verify_showing(&mut tell, show);
        let known = recovered.damaged.contains(&meta.id);
        damage.extend(checked.err().map(|error| if known { known_damage(error) } else { error }));
        bytes_before += meta.file_bytes;
        verified.cells += meta.cells;
    }
    match wal::verify_showing(&env.fs, &paths.wal(), known_log(&recovered, known_log_end), show) {
        Ok(log) => {
            verified.wal_records = log.records;
            verified.log_end = log.end;
            verified.log_tail = match log {
                WalRecovery { cut_bytes: 1.., .. } => LogTail::Torn { cut_bytes: log.cut_bytes },
                WalRecovery { is_closed: false, segments: 1.., .. } => LogTail::Open,
                _ => LogTail::Closed,
            };
        }
        Err(errors) => damage.extend(errors),
    }
    if damage.is_empty() { Ok(verified) } else { Err(damage) }
}

/// The error of a table that was damaged when the checkpoint was made.
fn known_damage(error: Error) -> Error {
    match error {
        Error::Corrupt { path, offset, detail } => {
            let detail = format!("{detail}; it was damaged already when the checkpoint was made");
            Error::Corrupt { path, offset, detail }
        }
        other => other,
    }
}

fn lock(env: &Env, dir: &Path) -> Result<Box<dyn DirLock>, Error> {
    env.fs.lock(&dir.join("LOCK")).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => Error::Locked { path: dir.to_owned() },
        _ => Error::io("lock", dir, error),
    })
}
