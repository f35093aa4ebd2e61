//! Data sets larger than memory: required disk space, storing, settling, and dropping them from the
//! page cache.

use crate::BenchResult;
use crate::scrape::Scrape;
use bench::keys::KeyNumber;
use bench::units::{bytes, span};
use lab::process::ServerProcess;
use lab::put_batch::PutBatch;
use rustix::fs::{Advice, fadvise, statvfs};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

/// Disk space that stays free for other users, in bytes.
pub(crate) const RESERVE_BYTES: u64 = 3 << 30;
/// Approximate number of entries per batch of the big data set.
const BATCH_ENTRIES: u64 = 50_000;
/// Number of attempts to send a batch.
const TRIES_MAX: u32 = 60;
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Interval of polling whether a node has settled. It must be settled in [`QUIET_POLLS`]
/// consecutive polls.
const SETTLE_POLL: Duration = Duration::from_secs(1);
const QUIET_POLLS: u32 = 3;

/// Free bytes on the file system of `dir`.
pub(crate) fn free_bytes(dir: &Path) -> BenchResult<u64> {
    let disk = statvfs(dir)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Fails unless `needed` bytes and the reserve are free on the file system of `dir`.
pub(crate) fn require_free_space(dir: &Path, needed: u64) -> BenchResult<()> {
    let (free, needed) = (free_bytes(dir)?, needed + RESERVE_BYTES);
    if free >= needed {
        return Ok(());
    }
    let [free, needed] = [free, needed].map(|count| bytes(count as f64));
    Err(format!("{} has {free} free, and this may need {needed}: choose another --dir", dir.display()).into())
}

/// Stores every key once, scattered: the last keys are spread over the whole key range.
pub(crate) fn store_in_batches(server: &ServerProcess, keys: u64, value_bytes: usize) -> BenchResult<()> {
    let parts = keys.div_ceil(BATCH_ENTRIES).max(1);
    for part in 0..parts {
        let numbers = (part..keys).step_by(usize::try_from(parts)?).map(KeyNumber);
        let batch = PutBatch::of_keys(numbers, value_bytes);
        let mut tries = 0;
        // A node that cannot keep up refuses for a while. Writes that were done already are
        // repeated.
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

/// Waits until the node has nothing to flush or compact, at most `patience`. Prints the remaining
/// debt if that passes.
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

/// Drops the files below `dir` from the page cache.
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
