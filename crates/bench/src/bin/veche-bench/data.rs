//! Data sets larger than memory: room for them, storing them, letting them settle, forgetting them.

use crate::BenchResult;
use crate::scrape::Scrape;
use bench::batch::PutBatch;
use bench::keys::KeyNumber;
use bench::process::ServerProcess;
use bench::units::{bytes, span};
use rustix::fs::{Advice, fadvise, statvfs};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

/// What stays free for whoever else uses the disk, in bytes.
pub(crate) const RESERVE_BYTES: u64 = 3 << 30;
/// The big data set is stored in batches of about so many entries.
const BATCH_ENTRIES: u64 = 50_000;
/// A batch is sent so often before that is given up.
const TRIES_MAX: u32 = 60;
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How often a node is asked whether it has settled, and how often in a row it must say so.
const SETTLE_POLL: Duration = Duration::from_secs(1);
const QUIET_POLLS: u32 = 3;

/// Bytes that are free where `dir` is.
pub(crate) fn free_bytes(dir: &Path) -> BenchResult<u64> {
    let disk = statvfs(dir)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Fails unless `needed` bytes and the reserve are free where `dir` is.
pub(crate) fn require_free_space(dir: &Path, needed: u64) -> BenchResult<()> {
    let (free, needed) = (free_bytes(dir)?, needed + RESERVE_BYTES);
    if free >= needed {
        return Ok(());
    }
    let [free, needed] = [free, needed].map(|count| bytes(count as f64));
    Err(format!("{} has {free} free, and this may need {needed}: choose another --dir", dir.display()).into())
}

/// Stores every key once, scattered: so the last of them are in every part of the range.
pub(crate) fn store_in_batches(server: &ServerProcess, keys: u64, value_bytes: usize) -> BenchResult<()> {
    let parts = keys.div_ceil(BATCH_ENTRIES).max(1);
    for part in 0..parts {
        let numbers = (part..keys).step_by(usize::try_from(parts)?).map(KeyNumber);
        let batch = PutBatch::of_keys(numbers, value_bytes);
        let mut tries = 0;
        // A node that cannot keep up refuses for a while; what was done already is done again.
        while let Err(error) = batch.send(server.address()) {
            tries += 1;
            let is_gone = error.kind() == ErrorKind::ConnectionRefused;
            if is_gone || tries == TRIES_MAX {
                return Err(error.into());
            }
            std::thread::sleep(RETRY_PAUSE);
        }
    }
    Ok(())
}

/// Waits until the node has nothing left to flush or compact, but no longer than `patience`; says what is left then.
pub(crate) fn wait_until_settled(server: &ServerProcess, patience: Duration) -> BenchResult<()> {
    let begun = Instant::now();
    let (mut quiet, mut jobs) = (0, None);
    while quiet < QUIET_POLLS {
        let scrape = Scrape::of(server)?;
        if begun.elapsed() > patience {
            println!("  not settled after {}: debt {}", span(patience), bytes(scrape.debt_bytes()));
            return Ok(());
        }
        let is_quiet = jobs.replace(scrape.jobs()) == Some(scrape.jobs()) && scrape.debt_bytes() == 0.0;
        quiet = if is_quiet { quiet + 1 } else { 0 };
        std::thread::sleep(SETTLE_POLL);
    }
    println!("  settled within {}", span(begun.elapsed()));
    Ok(())
}

/// Has the system forget what it keeps in memory of the files below `dir`.
pub(crate) fn drop_page_cache(dir: &Path) -> BenchResult<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            drop_page_cache(&path)?;
        } else if let Ok(file) = File::open(&path) {
            file.sync_all()?;
            fadvise(&file, 0, None, Advice::DontNeed)?;
        }
    }
    Ok(())
}
