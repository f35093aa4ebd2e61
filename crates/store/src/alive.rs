//! When the node was last alive, and what becomes of its data when that is too long ago.
//!
//! **Promise.** A node of several that was away longer than its tombstones are kept does not simply come back with
//! its data: its peers may have dropped deletes that it never heard of, and it would bring the deleted back. It
//! refuses to start until an operator says what happened meanwhile ([`AfterAbsence`](crate::AfterAbsence)).
//!
//! **Mechanism.** The file `alive` holds the time of the last start or of the last [`Alive::note`], which the host
//! calls about hourly. Where data is to be set aside, the shard is renamed to `stale-...`, durably, before anything
//! else is changed. What is left is an identity without data, in whose place another is drawn, so that peers
//! notice. And as long as there is a `stale-...` and nothing was remembered since, the node is one that is being
//! rebuilt, not one of a new cluster: nodes that were all told to set their data aside must not agree to be empty.
//!
//! **Caveats.** What was set aside is kept until the operator removes it; it can be renamed back to `shard-000`. A
//! wall clock that is far ahead makes a node refuse to start for nothing.

use crate::directory::SHARD;
use crate::error::StoreError;
use crate::sealed::{self, number};
use cluster::{NodeRecord, Standing};
use env::Fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use stdx::{NodeTag, WallTime};

/// A node may have been away for so long and still come back with its data: the grace period of tombstones less a
/// day, in which it hears of what it missed.
pub const AWAY_MAX_DEFAULT: Duration = Duration::from_secs(9 * 24 * 3600);

const FILE: &str = "alive";
const HEADER: &str = "veche-alive 1";
const STALE: &str = "stale-";

/// Keeps the file of one directory.
pub(crate) struct Alive {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    /// One writer at a time: the name it writes under is always the same.
    writing: Mutex<()>,
}

impl Alive {
    pub(crate) fn new(fs: Arc<dyn Fs>, dir: &Path) -> Self {
        Self { fs, dir: dir.to_owned(), writing: Mutex::default() }
    }

    /// Makes durable that the node is alive at `wall`.
    pub(crate) fn note(&self, wall: WallTime) -> Result<(), StoreError> {
        let _turn = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        sealed::replace(&*self.fs, &self.dir, FILE, &text(wall))
    }

    /// How long the node was away at `now`; `None` if it was never noted to be alive.
    pub(crate) fn away_for(&self, now: WallTime) -> Result<Option<Duration>, StoreError> {
        let path = self.dir.join(FILE);
        if !self.fs.exists(&path).map_err(StoreError::io("look for", &path))? {
            return Ok(None);
        }
        let bytes = sealed::read(&*self.fs, &path)?;
        let alive = decode(&bytes).map_err(|detail| StoreError::AliveCorrupt { path, detail })?;
        let away = now.micros_since_unix_epoch().saturating_sub(alive.micros_since_unix_epoch());
        Ok(Some(Duration::from_micros(away)))
    }

    /// Renames the shard of the node of this tag, durably. Returns where it is kept.
    pub(crate) fn set_aside(&self, tag: NodeTag, now: WallTime) -> Result<PathBuf, StoreError> {
        let shard = self.dir.join(SHARD);
        let name = format!("{STALE}{:016x}-{}", tag.0, now.micros_since_unix_epoch());
        let stale = self.dir.join(name);
        self.fs.rename(&shard, &stale).map_err(StoreError::io("rename", &shard))?;
        self.fs.sync_dir(&self.dir).map_err(StoreError::io("sync", &self.dir))?;
        Ok(stale)
    }

    /// What a node remembers that has stored nothing of it yet.
    pub(crate) fn first_record(&self) -> Result<NodeRecord, StoreError> {
        let names = self.fs.read_dir(&self.dir).map_err(StoreError::io("list", &self.dir))?;
        let was_set_aside = names.iter().any(|name| name.starts_with(STALE));
        let standing = if was_set_aside { Standing::Rebuilding } else { Standing::Unsettled };
        Ok(NodeRecord { standing, ..NodeRecord::default() })
    }
}

fn text(wall: WallTime) -> String {
    format!("{HEADER}\nmicros {}\n", wall.micros_since_unix_epoch())
}

fn decode(bytes: &[u8]) -> Result<WallTime, String> {
    let body = sealed::unseal(bytes, HEADER)?;
    number(body.lines().next(), "micros").map(WallTime::from_micros_since_unix_epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes of the first release wrote these bytes; they must be read for ever.
    #[test]
    fn the_file_is_what_it_was() {
        let wall = WallTime::from_micros_since_unix_epoch(1_767_225_600_000_000);
        let bytes = "veche-alive 1\nmicros 1767225600000000\ncrc32c 1f4f6c6f\n";
        assert_eq!(String::from_utf8_lossy(&sealed::seal(&text(wall))), bytes);
        assert_eq!(decode(bytes.as_bytes()), Ok(wall));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let bytes = sealed::seal(&text(WallTime::EPOCH_2020));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&flipped).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).is_err(), "{len} bytes");
        }
    }
}
