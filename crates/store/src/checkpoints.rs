//! Checkpoints: the data as it was at one moment, beside the data, while the node runs.
//!
//! **Promise.** A checkpoint holds all that was acknowledged before it was asked for. It is laid out as a data directory,
//! under `checkpoints/` in the node's own, and is there whole or is not taken for one: its identity is the last file to
//! come and the first to go. It belongs to the process that made it: when the directory is opened again, those that
//! were left behind are removed. There is a limit to how many are kept.
//!
//! **Mechanism.** The engine links its tables, so a checkpoint takes neither time nor space at first. It is meant to be
//! copied elsewhere and then removed. The checkpoint of a node with peers also says when it was made, and carries a
//! mark that keeps a copy of it from being opened before it was decided what it is to be (see `restored`).
//!
//! **Caveats.** What compaction would free stays on the disk for as long as a checkpoint holds it.

use crate::alive::Alive;
use crate::directory::{self, SHARD};
use crate::error::StoreError;
use crate::identity::{self, Identity};
use crate::restored::{self, Copied};
use engine::Engine;
use env::{Env, Fs};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// So many checkpoints are kept at most.
pub const CHECKPOINTS_MAX: usize = 4;

const DIR: &str = "checkpoints";

/// A checkpoint that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// By which it is removed.
    pub name: String,
    /// Where it is: a data directory, to be copied and not to be opened.
    pub path: PathBuf,
}

/// The checkpoints of one data directory.
pub(crate) struct Checkpoints {
    env: Env,
    /// Where they are.
    dir: PathBuf,
    identity: Identity,
    /// How many this process has made. One is made or removed at a time.
    made: Mutex<u64>,
}

impl Checkpoints {
    /// Those of the data directory `data`, which has this identity.
    pub(crate) fn new(env: Env, data: &Path, identity: Identity) -> Self {
        Self { env, dir: data.join(DIR), identity, made: Mutex::default() }
    }

    /// Makes one of what `engine` holds.
    pub(crate) fn make(&self, engine: &Engine) -> Result<Checkpoint, StoreError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if self.count()? >= CHECKPOINTS_MAX {
            return Err(StoreError::TooManyCheckpoints { path: self.dir.clone(), max: CHECKPOINTS_MAX });
        }
        *made += 1;
        let name = format!("{}-{made}", self.env.clock.now().wall.micros_since_unix_epoch());
        let path = self.dir.join(&name);
        if let Err(error) = self.fill(&path, engine) {
            if let Err(left) = self.discard(&path) {
                tracing::warn!(%left, "what was made of a checkpoint is left until the next start");
            }
            return Err(error);
        }
        Ok(Checkpoint { name, path })
    }

    /// Removes the one of this name. Returns whether it was there.
    pub(crate) fn remove(&self, name: &str) -> Result<bool, StoreError> {
        let _turn = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.dir.join(name);
        if !is_name(name) || !exists(&*self.env.fs, &path)? {
            return Ok(false);
        }
        self.discard(&path)?;
        Ok(true)
    }

    fn fill(&self, path: &Path, engine: &Engine) -> Result<(), StoreError> {
        let fs = &*self.env.fs;
        directory::create(fs, path)?;
        if self.identity.membership.has_peers() {
            restored::mark(fs, path, Copied::Undecided)?;
            // Before the data is taken: what is in it is not older.
            Alive::new(Arc::clone(&self.env.fs), path).note(self.env.clock.now().wall)?;
        }
        engine.checkpoint(&path.join(SHARD))?;
        self.identity.store(fs, path)
    }

    /// Removes what is at `path`; from the first step on it is no checkpoint any more.
    fn discard(&self, path: &Path) -> Result<(), StoreError> {
        let fs = &*self.env.fs;
        identity::remove(fs, path)?;
        remove_all(fs, path)?;
        fs.sync_dir(&self.dir).map_err(StoreError::io("sync", &self.dir))
    }

    fn count(&self) -> Result<usize, StoreError> {
        match self.env.fs.read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            names => names.map(|names| names.len()).map_err(StoreError::io("list", &self.dir)),
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

fn exists(fs: &dyn Fs, path: &Path) -> Result<bool, StoreError> {
    fs.exists(path).map_err(StoreError::io("look for", path))
}

/// Whether a checkpoint can have this name, which may come from outside: two numbers. It leads nowhere else then.
fn is_name(name: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    name.split_once('-').is_some_and(|(micros, number)| is_number(micros) && is_number(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_checkpoints_are_names() {
        assert!(is_name("1767225600000000-1"));
        for name in
            ["", "-", "1-", "-1", "..", "../1-1", "1-1/..", "1-1/", "/1-1", "1-1-1", "1-1\0", "\u{661}-1"]
        {
            assert!(!is_name(name), "{name:?}");
        }
    }
}
