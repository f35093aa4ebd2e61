//! Checking a data directory that no process has open.

use crate::directory::{self, SHARD};
use crate::error::StoreError;
use crate::identity::Identity;
use crate::keyspace::ENTITIES;
use crate::log_mark::{self, Found};
use crate::lost::Missing;
use bytes::Bytes;
use cluster::{HybridClock, Key};
use engine::{LogEnd, VerifyProgress, VerifyReport};
use env::Env;
use std::collections::BTreeMap;
use std::path::Path;
use stdx::{CellMeta, Version, WallTime};

/// A data directory in which nothing is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedDirectory {
    /// Whose it is.
    pub identity: Identity,
    /// What was checked of its data.
    pub data: VerifyReport,
    /// Up to where its log must reach at least: see [`Store::note_log_end`](crate::Store::note_log_end). `None`: the
    /// directory does not say.
    pub log_mark: Option<LogEnd>,
    /// Cells of users' keys whose versions lie in the future.
    pub future: FutureCells,
}

/// Cells of users' keys whose versions are further ahead of the clock of this machine than a node accepts from a peer.
/// They are no damage: a wrong clock issued them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FutureCells {
    /// Cells in tables and the log, older ones of the same key included.
    pub cells: u64,
    /// The clock time of the greatest of their versions.
    pub latest: Option<WallTime>,
    /// Keys of them, each with its greatest version: at most [`FutureCells::LISTED_MAX`].
    pub listed: BTreeMap<Key, Version>,
}

impl FutureCells {
    /// Keys that are listed at most.
    pub const LISTED_MAX: usize = 100;

    fn add(&mut self, key: &[u8], version: Version) {
        let Some(Ok(key)) = key.strip_prefix(&[ENTITIES]).map(|key| Key::new(Bytes::copy_from_slice(key)))
        else {
            return;
        };
        self.cells += 1;
        self.latest = self.latest.max(Some(version.hlc.wall()));
        if self.listed.len() < Self::LISTED_MAX || self.listed.contains_key(&key) {
            let greatest = self.listed.entry(key).or_insert(version);
            *greatest = version.max(*greatest);
        }
    }
}

/// Checks the identity and every byte of the data in `dir`, and that nothing of it is missing; changes nothing.
///
/// # Errors
/// All that is wrong, at least one: a [`StoreError`] of each file that is damaged, missing or cut short;
/// [`StoreError::Locked`] alone when a process has the directory.
pub fn verify(
    env: &Env,
    dir: &Path,
    progress: &mut dyn FnMut(VerifyProgress),
) -> Result<VerifiedDirectory, Vec<StoreError>> {
    let _lock = directory::lock(&*env.fs, dir).map_err(|error| vec![error])?;
    let mut damage = Vec::new();
    let identity = match Identity::load(&*env.fs, dir) {
        Ok(identity) => Some(identity),
        Err(error @ StoreError::IdentityCorrupt { .. }) => {
            damage.push(error);
            None
        }
        // Without one this is no data directory.
        Err(error) => return Err(vec![error]),
    };
    let found = log_mark::find(&*env.fs, dir).unwrap_or_else(|error| {
        damage.push(error);
        Found::Unknown
    });
    // That the shard lacks its data the engine says, with the files that it misses.
    if let Some(missing @ Missing::Mark) = identity.as_ref().and_then(|it| Missing::of(it, true, found)) {
        damage.push(missing.refuse(dir));
    }
    let is_own = |tag| identity.as_ref().is_some_and(|identity| identity.tag == tag);
    let log_mark = found.marked().filter(|marked| is_own(marked.tag)).map(|marked| marked.end);
    let (mut future, wall) = (FutureCells::default(), env.clock.now().wall);
    let mut show = |key: &[u8], meta: &CellMeta| {
        if HybridClock::is_ahead(meta.version.hlc, wall) {
            future.add(key, meta.version);
        }
    };
    match (identity, engine::verify_showing(env, &dir.join(SHARD), log_mark, progress, &mut show)) {
        (Some(identity), Ok(data)) if damage.is_empty() => {
            Ok(VerifiedDirectory { identity, data, log_mark, future })
        }
        (_, verified) => {
            damage.extend(verified.err().into_iter().flatten().map(StoreError::from));
            Err(damage)
        }
    }
}
