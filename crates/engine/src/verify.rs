//! Offline verification: checks every byte of a data directory that no process has open.
//!
//! **Promise.** If [`verify`] succeeds, every live table and every record of the log reads back as
//! written, no log segment is missing, and the log is not shorter than its known end. It changes
//! nothing but the lock file, which it creates if needed and holds meanwhile.
//!
//! **Mechanism.** The manifest is read. Each table that it names is read block by block, with its
//! order, counts, filters and description. Each log segment that recovery would replay is decoded.
//!
//! Damage to a table that was quarantined when its checkpoint was made is reported as such.
//!
//! **Caveats.** The log may end with an interrupted write. That is the normal state after a crash,
//! not damage; [`VerifyReport::log_tail`] reports it.

use crate::cache::BlockCache;
use crate::engine::open_table;
use crate::manifest::Manifest;
use crate::obsolete::ObsoleteFiles;
use crate::open::known_log;
use crate::paths::Paths;
use crate::sstable::{TableFiles, VisitCell};
use crate::wal::{LogEnd, WalRecovery};
use crate::{Error, wal};
use env::{DirLock, Env};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Capacity of the block cache. Blocks are not reused: each is read once.
const CACHE_BYTES: u64 = 1 << 20;

/// Progress of [`verify`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Bytes of tables that were checked.
    pub bytes_done: u64,
    /// Total bytes of tables.
    pub bytes_total: u64,
}

/// Results of a successful [`verify`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Live tables.
    pub tables: usize,
    /// Total length of the table files, in bytes.
    pub table_bytes: u64,
    /// Cells in the tables.
    pub cells: u64,
    /// Records in the log that recovery would replay.
    pub wal_records: u64,
    /// End of the log; `None` without a segment.
    pub log_end: Option<LogEnd>,
    /// State of the end of the log.
    pub log_tail: LogTail,
}

/// State of the end of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogTail {
    /// The log ends with a closing record, or has no record: it was closed, or was idle for a
    /// while.
    #[default]
    Closed,
    /// The log ends with a whole group and no closing record: the process or the machine stopped
    /// during writes.
    Open,
    /// The log ends with an interrupted write that was never acknowledged. Recovery cuts it.
    Torn {
        /// Length of the interrupted write, in bytes.
        cut_bytes: u64,
    },
}

/// Verifies the directory of an engine that is not open. `known_log_end` has the meaning of
/// [`Options::known_log_end`](crate::Options::known_log_end).
///
/// # Errors
/// All damage found, at least one entry: [`Error::Corrupt`] for each damaged file, with the offset;
/// [`Error::Lost`] for each file that is missing or cut short; [`Error::Io`] for each that cannot
/// be read. [`Error::Locked`] alone when a process has the directory open.
pub fn verify(
    env: &Env,
    dir: &Path,
    known_log_end: Option<LogEnd>,
    progress: &mut dyn FnMut(VerifyProgress),
) -> Result<VerifyReport, Vec<Error>> {
    verify_showing(env, dir, known_log_end, progress, &mut |_, _| ())
}

/// As [`verify`]; also calls `show` with the key and metadata of each cell in the tables and the
/// log.
///
/// # Errors
/// As [`verify`].
pub fn verify_showing(
    env: &Env,
    dir: &Path,
    known_log_end: Option<LogEnd>,
    progress: &mut dyn FnMut(VerifyProgress),
    show: VisitCell<'_>,
) -> Result<VerifyReport, Vec<Error>> {
    let paths = Paths::new(dir);
    if !env.fs.exists(dir).map_err(|error| vec![Error::io("look for", dir, error)])? {
        return Err(vec![Error::lost(dir, "is missing")]);
    }
    let _lock = lock(env, dir).map_err(|error| vec![error])?;
    let recovered = Manifest::inspect(&env.fs, dir).map_err(|error| vec![error])?;
    let cache = Arc::new(BlockCache::new(CACHE_BYTES));
    let files = Arc::new(TableFiles::new(Arc::clone(&env.fs), 1));
    // No file becomes obsolete here.
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
        let checked = table.verify_visiting(&mut tell, show);
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

/// Adds to an error that the table was damaged when the checkpoint was made.
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
