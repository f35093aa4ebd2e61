//! Verification of a data directory that no process uses.

use crate::data_loss::MissingPart;
use crate::directory::{self, SHARD};
use crate::error::StoreError;
use crate::identity::Identity;
use crate::keyspace::ENTITIES;
use crate::layout_file;
use crate::log_mark::{self, MarkState};
use crate::votes_file;
use bytes::Bytes;
use cluster::{HybridClock, Key};
use engine::{LogEnd, VerifyProgress, VerifyReport};
use env::Env;
use std::collections::BTreeMap;
use std::path::Path;
use stdx::{CellMeta, Version, WallTime};

/// Report on a data directory without defects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedDirectory {
    /// Owner of the directory.
    pub identity: Identity,
    /// Report on its data.
    pub data: VerifyReport,
    /// Position that its log must reach: see [`Store::note_log_end`](crate::Store::note_log_end).
    /// `None` if the directory does not record it.
    pub log_mark: Option<LogEnd>,
    /// Cells of users' keys whose versions are in the future.
    pub future: FutureCells,
}

/// Cells of users' keys whose versions are further ahead of this machine's clock than a node
/// accepts from a peer. They are not damage: a wrong clock issued them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FutureCells {
    /// Number of such cells in tables and the log, including older ones of the same key.
    pub cells: u64,
    /// Clock time of the greatest of their versions.
    pub latest: Option<WallTime>,
    /// Some of their keys with the greatest version of each: at most [`FutureCells::LISTED_MAX`].
    pub listed: BTreeMap<Key, Version>,
}

impl FutureCells {
    /// Maximum number of listed keys.
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

/// Checks the identity, the layout record, the votes and every byte of the data in `dir`, and that
/// no file is missing. Changes nothing.
///
/// # Errors
/// All defects, at least one: a [`StoreError`] per file that is damaged, missing or truncated; only
/// [`StoreError::Locked`] if a process uses the directory.
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
        // A directory without an identity is not a data directory.
        Err(error) => return Err(vec![error]),
    };
    if let Err(error) = layout_file::find(&*env.fs, dir) {
        damage.push(error);
    }
    if let Err(error) = votes_file::find(&*env.fs, dir) {
        damage.push(error);
    }
    let found = log_mark::find(&*env.fs, dir).unwrap_or_else(|error| {
        damage.push(error);
        MarkState::Unknown
    });
    // The engine reports missing data of the shard, with the names of the missing files.
    if let Some(missing @ MissingPart::Mark) =
        identity.as_ref().and_then(|it| MissingPart::of(it, true, found))
    {
        damage.push(missing.refusal(dir));
    }
    let is_own = |tag| identity.as_ref().is_some_and(|identity| identity.tag == tag);
    let log_mark = found.mark().filter(|marked| is_own(marked.tag)).map(|marked| marked.end);
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
