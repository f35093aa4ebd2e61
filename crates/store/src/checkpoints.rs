//! Checkpoints: the data as it was at one moment, beside the data, while the node runs.
//!
//! **Promise.** A checkpoint holds all that was acknowledged before it was asked for. It is laid
//! out as a data directory, under `checkpoints/` in the node's own, and is there whole or is not
//! taken for one: its identity is the last file to come and the first to go. It belongs to the
//! process that made it: when the directory is opened again, those that were left behind are
//! removed. There is a limit to how many are kept. One that is not renewed is kept for [`LEASE`],
//! and, where all places are taken and another one is asked for, for [`RECLAIM_AFTER`]: whoever
//! copies one renews it meanwhile, and one whose copy died keeps neither space nor a place for
//! long. No checkpoint is renewed after [`LIFETIME`], so that a client that renews checkpoints for
//! ever does not hold all places for ever. Whoever asks for one may give it its name, and so find
//! it again when the answer is lost.
//!
//! **Mechanism.** The engine links its tables, so a checkpoint takes neither time nor space at first. It is meant to be
//! copied elsewhere and then removed. The checkpoint of a node with peers also says up to when it
//! has heard of all deletes, and carries a
//! mark that keeps a copy of it from being opened before it was decided what it is to be (see `restored`).
//!
//! **Caveats.** A copy that does not renew its checkpoint and takes longer than that fails: files go under it. What
//! compaction would free stays on the disk for as long as a checkpoint holds it.

use crate::alive::Alive;
use crate::directory::{self, SHARD};
use crate::error::StoreError;
use crate::identity::{self, Identity};
use crate::node_record;
use crate::restored::{self, Copied};
use engine::Engine;
use env::{Env, Fs};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use stdx::{Instant, WallTime};

/// So many checkpoints are kept at most.
pub const CHECKPOINTS_MAX: usize = 4;

/// A checkpoint that was not renewed for this time is removed.
const LEASE: Duration = Duration::from_secs(3_600);
/// Where all places are taken, one that was not renewed for this time gives way to another.
const RECLAIM_AFTER: Duration = Duration::from_secs(600);

/// A checkpoint of this age is not renewed any more. No copy takes so long; a client may only hold
/// a place on purpose, or by mistake.
const LIFETIME: Duration = Duration::from_secs(24 * 3_600);

const DIR: &str = "checkpoints";
/// The longest name of a checkpoint, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// A checkpoint that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// By which it is removed.
    pub name: String,
    /// Where it is: a data directory, to be copied and not to be opened.
    pub path: PathBuf,
}

/// The outcome of a request to renew a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The checkpoint is kept for longer.
    Renewed,
    /// There is no checkpoint of this name.
    Missing,
    /// The checkpoint has been kept for 24 hours. It is removed when its lease ends.
    TooOld,
}

/// A checkpoint that holds a place, as a refusal names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldPlace {
    /// The name by which it is removed.
    pub name: String,
    /// Its age and the time since it was renewed. `None`: this process has not made it.
    pub ages: Option<(Duration, Duration)>,
}

/// The checkpoints of one data directory.
pub(crate) struct Checkpoints {
    env: Env,
    /// Where they are.
    dir: PathBuf,
    identity: Identity,
    /// Of a node with peers.
    alive: Option<Arc<Alive>>,
    /// One is made or removed at a time.
    made: Mutex<Made>,
}

/// What this process has made.
#[derive(Debug, Default)]
struct Made {
    count: u64,
    /// The checkpoints that are kept.
    kept: BTreeMap<String, Lease>,
}

/// When a checkpoint was made and when it was last renewed.
#[derive(Clone, Copy, Debug)]
struct Lease {
    made: Instant,
    renewed: Instant,
}

impl Made {
    /// The one that was renewed longest ago, if that is `age` or longer ago.
    fn stale(&self, now: Instant, age: Duration) -> Option<String> {
        let (name, lease) = self.kept.iter().min_by_key(|(_, lease)| lease.renewed)?;
        (now.saturating_since(lease.renewed) >= age).then(|| name.clone())
    }
}

impl Checkpoints {
    /// Those of the data directory `data`, which has this identity.
    pub(crate) fn new(env: Env, data: &Path, identity: Identity, alive: Option<Arc<Alive>>) -> Self {
        Self { env, dir: data.join(DIR), identity, alive, made: Mutex::default() }
    }

    /// Makes one of what `engine` holds, of this name or of one that is drawn.
    pub(crate) fn make(&self, engine: &Engine, name: Option<&str>) -> Result<Checkpoint, StoreError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(name) = name {
            self.check_is_free(name)?;
        }
        self.remove_stale(engine, &mut made, LEASE)?;
        if self.names()?.len() >= CHECKPOINTS_MAX && !self.remove_stale(engine, &mut made, RECLAIM_AFTER)? {
            let held = self.held_places(&made)?;
            return Err(StoreError::TooManyCheckpoints { path: self.dir.clone(), held });
        }
        made.count += 1;
        let count = made.count;
        let drawn = || format!("{}-{count}", self.env.clock.now().wall.micros_since_unix_epoch());
        let name = name.map_or_else(drawn, str::to_owned);
        let path = self.dir.join(&name);
        if let Err(error) = self.fill(&path, engine) {
            if let Err(left) = self.discard(&path, engine) {
                tracing::warn!(%left, "what was made of a checkpoint is left until the next start");
            }
            return Err(error);
        }
        let now = self.env.clock.now().mono;
        made.kept.insert(name.clone(), Lease { made: now, renewed: now });
        Ok(Checkpoint { name, path })
    }

    /// Keeps the one of this name for [`LEASE`] from now on, unless it is older than [`LIFETIME`].
    pub(crate) fn renew(&self, name: &str) -> Renewal {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.env.clock.now().mono;
        match made.kept.get_mut(name) {
            None => Renewal::Missing,
            Some(lease) if now.saturating_since(lease.made) >= LIFETIME => Renewal::TooOld,
            Some(lease) => {
                lease.renewed = now;
                Renewal::Renewed
            }
        }
    }

    /// The checkpoints that hold a place, by their names.
    fn held_places(&self, made: &Made) -> Result<Vec<HeldPlace>, StoreError> {
        let now = self.env.clock.now().mono;
        let ages = |lease: &Lease| (now.saturating_since(lease.made), now.saturating_since(lease.renewed));
        let mut names = self.names()?;
        names.sort_unstable();
        Ok(names.into_iter().map(|name| HeldPlace { ages: made.kept.get(&name).map(ages), name }).collect())
    }

    /// Removes those that were not renewed in time.
    pub(crate) fn expire(&self, engine: &Engine) -> Result<(), StoreError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        self.remove_stale(engine, &mut made, LEASE).map(|_| ())
    }

    /// Removes those that were not renewed for `age`; of a lease that has not ended only the oldest one. Returns whether there
    /// was one.
    fn remove_stale(&self, engine: &Engine, made: &mut Made, age: Duration) -> Result<bool, StoreError> {
        let now = self.env.clock.now().mono;
        let mut removed = false;
        while let Some(name) = made.stale(now, if removed { LEASE } else { age }) {
            let path = self.dir.join(&name);
            if exists(&*self.env.fs, &path)? {
                self.discard(&path, engine)?;
                tracing::warn!(
                    name,
                    "a checkpoint that was not renewed is removed: its copy has ended or was too slow"
                );
            }
            made.kept.remove(&name);
            removed = true;
        }
        Ok(removed)
    }

    /// Removes the one of this name. Returns whether it was there.
    pub(crate) fn remove(&self, engine: &Engine, name: &str) -> Result<bool, StoreError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.dir.join(name);
        if !is_name(name) || !exists(&*self.env.fs, &path)? {
            made.kept.remove(name);
            return Ok(false);
        }
        self.discard(&path, engine)?;
        made.kept.remove(name);
        Ok(true)
    }

    /// Those that are kept, by their names; also what is left of one that could not be removed.
    pub(crate) fn list(&self) -> Result<Vec<Checkpoint>, StoreError> {
        let _turn = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let mut names = self.names()?;
        names.sort_unstable();
        Ok(names.into_iter().map(|name| Checkpoint { path: self.dir.join(&name), name }).collect())
    }

    /// How many are kept, as far as can be seen now. Waits for none that is being made.
    pub(crate) fn kept(&self) -> usize {
        self.names().map_or(0, |names| names.len())
    }

    fn check_is_free(&self, name: &str) -> Result<(), StoreError> {
        if !is_name(name) {
            return Err(StoreError::NotACheckpointName { name: name.to_owned() });
        }
        let path = self.dir.join(name);
        if exists(&*self.env.fs, &path)? { Err(StoreError::CheckpointExists { path }) } else { Ok(()) }
    }

    fn fill(&self, path: &Path, engine: &Engine) -> Result<(), StoreError> {
        let fs = &*self.env.fs;
        directory::create(fs, path)?;
        if self.identity.membership.has_peers() {
            restored::mark(fs, path, Copied::Undecided)?;
            // Before the data is taken: what is in it is not older.
            Alive::new(Arc::clone(&self.env.fs), path).note(self.heard_to(engine)?)?;
        }
        engine.checkpoint(&path.join(SHARD))?;
        // The mark is about the log of the node, which no copy has.
        Identity::without_log_mark(self.identity.tag, self.identity.membership.clone()).store(fs, path)
    }

    /// The data of a node that is behind has not heard of all deletes before this moment.
    fn heard_to(&self, engine: &Engine) -> Result<WallTime, StoreError> {
        let now = self.env.clock.now().wall;
        let record = node_record::find(engine)?.map(|(record, _)| record).unwrap_or_default();
        self.alive.as_ref().map_or(Ok(now), |alive| alive.heard_to(now, &record))
    }

    /// Removes what is at `path`; from the first step on it is no checkpoint any more.
    fn discard(&self, path: &Path, engine: &Engine) -> Result<(), StoreError> {
        let fs = &*self.env.fs;
        if is_symlink(fs, path)? {
            // Made by somebody else: what it leads to is not ours.
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

/// Removes the checkpoints of a process that had the data directory `data` before.
pub(crate) fn remove_left(fs: &dyn Fs, data: &Path) -> Result<(), StoreError> {
    // A loss of power may bring them back, and then the next opening removes them.
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

/// Whether a checkpoint can have this name, which may come from outside: letters, digits, `-`, `_` and `.`, which is not
/// the first. It leads nowhere else then.
fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_checkpoints_are_names() {
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
