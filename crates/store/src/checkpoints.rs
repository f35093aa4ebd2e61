//! Checkpoints: consistent copies of the data, made while the node runs.
//!
//! **Promise.** A checkpoint holds all writes that were acknowledged before it was requested. It is
//! a data directory under `checkpoints/` in the node's own directory. It is complete or not
//! recognized as a checkpoint: its identity is the last file to be written and the first to be
//! removed. It belongs to the process that made it; the next start removes leftover checkpoints.
//! Their number is limited. A checkpoint that is not renewed is kept for [`LEASE`]. If the limit is
//! reached and another one is requested, an unrenewed one is kept only for [`RECLAIM_AFTER`]. A
//! client renews its checkpoint while it copies, so an abandoned one does not occupy disk space or
//! a slot for long. No checkpoint is renewed after [`LIFETIME`], so a client that renews its
//! checkpoints forever does not hold all slots forever. The client may choose the name, and so find
//! the checkpoint again if the response is lost.
//!
//! **Mechanism.** The engine hard-links its tables, so a checkpoint initially takes little time and
//! space. It is meant to be copied elsewhere and then removed. The checkpoint of a node with peers
//! also records up to when the node has heard of all deletes. It carries a mark that prevents a
//! copy from being opened before it is decided how to use it (see `restored`).
//!
//! **Caveats.** A copy that takes longer than the lease without renewing fails, because its files
//! are removed. Disk space that compaction would free stays in use as long as a checkpoint holds
//! the tables.

use crate::alive_mark::AliveMark;
use crate::directory::{self, SHARD};
use crate::error::{HeldCheckpoint, StoreError};
use crate::identity::{self, Identity};
use crate::layout_file;
use crate::node_record;
use crate::restored::{self, CopyState};
use engine::Engine;
use env::{Env, Fs};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use stdx::{Instant, WallTime};

/// Maximum number of checkpoints.
pub const CHECKPOINTS_MAX: usize = 4;

/// Time after which a checkpoint that was not renewed is removed.
const LEASE: Duration = Duration::from_secs(3_600);
/// Time after which a checkpoint that was not renewed is removed in favor of a new one, if the
/// maximum number exists.
const RECLAIM_AFTER: Duration = Duration::from_secs(600);

/// Age from which a checkpoint is not renewed any more. No copy takes that long, so a client can
/// only hold a slot on purpose or by mistake.
const LIFETIME: Duration = Duration::from_secs(24 * 3_600);

const DIR: &str = "checkpoints";
/// Maximum length of a checkpoint's name, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Name, by which it is renewed and removed.
    pub name: String,
    /// Path of the checkpoint: a data directory to be copied, not to be opened.
    pub path: PathBuf,
}

/// Result of a request to renew a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease is extended.
    Renewed,
    /// There is no checkpoint with this name.
    Missing,
    /// The checkpoint is 24 hours old. It is removed when its lease ends.
    TooOld,
}

/// The checkpoints of one data directory.
pub(crate) struct Checkpoints {
    env: Env,
    /// Parent directory of the checkpoints.
    dir: PathBuf,
    identity: Identity,
    /// `None` for a standalone node.
    alive: Arc<AliveMark>,
    /// Held while a checkpoint is made or removed: one at a time.
    leases: Mutex<CheckpointLeases>,
}

/// Leases of the checkpoints that this process has made.
#[derive(Debug, Default)]
struct CheckpointLeases {
    count: u64,
    /// Lease of each checkpoint, by name.
    kept: BTreeMap<String, Lease>,
}

/// Times at which a checkpoint was made and last renewed.
#[derive(Clone, Copy, Debug)]
struct Lease {
    made: Instant,
    renewed: Instant,
}

impl CheckpointLeases {
    /// Name of the checkpoint with the oldest renewal, if that is at least `age` ago.
    fn stale(&self, now: Instant, age: Duration) -> Option<String> {
        let (name, lease) = self.kept.iter().min_by_key(|(_, lease)| lease.renewed)?;
        (now.saturating_since(lease.renewed) >= age).then(|| name.clone())
    }
}

impl Checkpoints {
    /// Returns the checkpoints of the data directory `data`, which has this identity.
    pub(crate) fn new(env: Env, data: &Path, identity: Identity, alive: Arc<AliveMark>) -> Self {
        Self { env, dir: data.join(DIR), identity, alive, leases: Mutex::default() }
    }

    /// Makes a checkpoint of `engine` with the given or a generated name.
    pub(crate) fn make(&self, engine: &Engine, name: Option<&str>) -> Result<Checkpoint, StoreError> {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(name) = name {
            self.check_is_free(name)?;
        }
        self.remove_stale(engine, &mut leases, LEASE)?;
        if self.names()?.len() >= CHECKPOINTS_MAX && !self.remove_stale(engine, &mut leases, RECLAIM_AFTER)? {
            let held = self.held_slots(&leases)?;
            return Err(StoreError::TooManyCheckpoints { path: self.dir.clone(), held });
        }
        leases.count += 1;
        let count = leases.count;
        let drawn = || format!("{}-{count}", self.env.clock.now().wall.micros_since_unix_epoch());
        let name = name.map_or_else(drawn, str::to_owned);
        let path = self.dir.join(&name);
        if let Err(error) = self.write(&path, engine) {
            if let Err(left) = self.discard(&path, engine) {
                tracing::warn!(%left, "an unfinished checkpoint remains until the next start");
            }
            return Err(error);
        }
        let now = self.env.clock.now().mono;
        leases.kept.insert(name.clone(), Lease { made: now, renewed: now });
        Ok(Checkpoint { name, path })
    }

    /// Renews the lease of a checkpoint for [`LEASE`], unless it is older than [`LIFETIME`].
    pub(crate) fn renew(&self, name: &str) -> Renewal {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.env.clock.now().mono;
        match leases.kept.get_mut(name) {
            None => Renewal::Missing,
            Some(lease) if now.saturating_since(lease.made) >= LIFETIME => Renewal::TooOld,
            Some(lease) => {
                lease.renewed = now;
                Renewal::Renewed
            }
        }
    }

    /// The checkpoints that occupy slots, ordered by name.
    fn held_slots(&self, leases: &CheckpointLeases) -> Result<Vec<HeldCheckpoint>, StoreError> {
        let now = self.env.clock.now().mono;
        let ages = |lease: &Lease| (now.saturating_since(lease.made), now.saturating_since(lease.renewed));
        let mut names = self.names()?;
        names.sort_unstable();
        Ok(names
            .into_iter()
            .map(|name| HeldCheckpoint { ages: leases.kept.get(&name).map(ages), name })
            .collect())
    }

    /// Removes checkpoints whose lease has expired.
    pub(crate) fn expire(&self, engine: &Engine) -> Result<(), StoreError> {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        self.remove_stale(engine, &mut leases, LEASE).map(|_| ())
    }

    /// Removes all checkpoints whose lease has expired; otherwise the oldest one, if it was not
    /// renewed for `age`. Returns whether any was removed.
    fn remove_stale(
        &self,
        engine: &Engine,
        leases: &mut CheckpointLeases,
        age: Duration,
    ) -> Result<bool, StoreError> {
        let now = self.env.clock.now().mono;
        let mut removed = false;
        while let Some(name) = leases.stale(now, if removed { LEASE } else { age }) {
            let path = self.dir.join(&name);
            if exists(&*self.env.fs, &path)? {
                self.discard(&path, engine)?;
                tracing::warn!(
                    name,
                    "a checkpoint that was not renewed is removed: its copy has ended or was too slow"
                );
            }
            leases.kept.remove(&name);
            removed = true;
        }
        Ok(removed)
    }

    /// Removes a checkpoint. Returns whether it existed.
    pub(crate) fn remove(&self, engine: &Engine, name: &str) -> Result<bool, StoreError> {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.dir.join(name);
        if !is_name(name) || !exists(&*self.env.fs, &path)? {
            leases.kept.remove(name);
            return Ok(false);
        }
        self.discard(&path, engine)?;
        leases.kept.remove(name);
        Ok(true)
    }

    /// Lists the checkpoints by name, including remains of one that could not be removed.
    pub(crate) fn list(&self) -> Result<Vec<Checkpoint>, StoreError> {
        let _guard = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        let mut names = self.names()?;
        names.sort_unstable();
        Ok(names.into_iter().map(|name| Checkpoint { path: self.dir.join(&name), name }).collect())
    }

    /// Number of checkpoints at present. Does not wait for one that is being made.
    pub(crate) fn count(&self) -> usize {
        self.names().map_or(0, |names| names.len())
    }

    fn check_is_free(&self, name: &str) -> Result<(), StoreError> {
        if !is_name(name) {
            return Err(StoreError::NotACheckpointName { name: name.to_owned() });
        }
        let path = self.dir.join(name);
        if exists(&*self.env.fs, &path)? { Err(StoreError::CheckpointExists { path }) } else { Ok(()) }
    }

    fn write(&self, path: &Path, engine: &Engine) -> Result<(), StoreError> {
        let fs = &*self.env.fs;
        directory::create(fs, path)?;
        if restored::has_peers(fs, self.data(), &self.identity)? {
            restored::mark(fs, path, CopyState::Undecided)?;
            // Recorded before the data is captured, so the data is not older.
            AliveMark::new(Arc::clone(&self.env.fs), path).note(self.heard_to(engine)?)?;
        }
        engine.checkpoint(&path.join(SHARD))?;
        if let Some(record) = layout_file::find(fs, self.data())? {
            layout_file::store(fs, path, &record)?;
        }
        // The log mark refers to the node's own log, which no copy has.
        Identity::without_log_mark(self.identity.tag, self.identity.membership.clone()).store(fs, path)
    }

    /// The data directory.
    fn data(&self) -> &Path {
        self.dir.parent().expect("the directory of checkpoints is in the data directory")
    }

    /// Time up to which the data has heard of all deletes. For a node that is behind, that is
    /// earlier than now.
    fn heard_to(&self, engine: &Engine) -> Result<WallTime, StoreError> {
        let now = self.env.clock.now().wall;
        let record = node_record::find(engine)?.map(|(record, _)| record).unwrap_or_default();
        self.alive.heard_to(now, &record)
    }

    /// Removes the checkpoint at `path`. After the first step it is not recognized as one.
    fn discard(&self, path: &Path, engine: &Engine) -> Result<(), StoreError> {
        let fs = &*self.env.fs;
        if is_symlink(fs, path)? {
            // Created by someone else: the target of the link is not ours.
            fs.remove_file(path).map_err(StoreError::io("remove", path))?;
            return fs.sync_dir(&self.dir).map_err(StoreError::io("sync", &self.dir));
        }
        identity::remove(fs, path)?;
        engine.reclaim_checkpoint(&path.join(SHARD));
        remove_all(fs, path)?;
        fs.sync_dir(&self.dir).map_err(StoreError::io("sync", &self.dir))
    }

    fn names(&self) -> Result<Vec<String>, StoreError> {
        match self.env.fs.read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            names => names.map_err(StoreError::io("list", &self.dir)),
        }
    }
}

/// Removes the checkpoints of an earlier process of the data directory `data`.
pub(crate) fn remove_left(fs: &dyn Fs, data: &Path) -> Result<(), StoreError> {
    // A loss of power may restore them; then the next start removes them.
    remove_all(fs, &data.join(DIR))
}

fn remove_all(fs: &dyn Fs, path: &Path) -> Result<(), StoreError> {
    match fs.remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(StoreError::io("remove", path)),
    }
}

fn is_symlink(fs: &dyn Fs, path: &Path) -> Result<bool, StoreError> {
    match fs.is_symlink(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        is => is.map_err(StoreError::io("look for", path)),
    }
}

fn exists(fs: &dyn Fs, path: &Path) -> Result<bool, StoreError> {
    fs.exists(path).map_err(StoreError::io("look for", path))
}

/// Whether `name`, which may come from a client, is valid for a checkpoint: letters, digits, `-`,
/// `_` and `.`, but no leading dot. Such a name cannot refer to another directory.
fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_names_are_accepted() {
        for name in ["1767225600000000-1", "backup-1767225600000000-00c0ffee", "a.b_c"] {
            assert!(is_name(name), "{name:?}");
        }
        let too_long = "a".repeat(NAME_BYTES_MAX + 1);
        for name in
            ["", ".", "..", ".a", "../1-1", "1-1/..", "1-1/", "/1-1", "a b", "1-1\0", "\u{661}-1", &too_long]
        {
            assert!(!is_name(name), "{name:?}");
        }
    }
}
