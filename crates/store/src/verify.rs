//! Checking a data directory that no process has open.

use crate::directory::{self, SHARD};
use crate::error::StoreError;
use crate::identity::Identity;
use crate::log_mark;
use engine::{LogEnd, Verified, VerifyProgress};
use env::Env;
use std::path::Path;

/// A data directory in which nothing is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedDirectory {
    /// Whose it is.
    pub identity: Identity,
    /// What was checked of its data.
    pub data: Verified,
    /// Up to where its log must reach at least: see [`Store::note_log_end`](crate::Store::note_log_end). `None`: the
    /// directory does not say.
    pub log_mark: Option<LogEnd>,
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
    let marked = log_mark::find(&*env.fs, dir).unwrap_or_else(|error| {
        damage.push(error);
        None
    });
    let is_own = |tag| identity.as_ref().is_some_and(|identity| identity.tag == tag);
    let log_mark = marked.filter(|marked| is_own(marked.tag)).map(|marked| marked.end);
    match (identity, engine::verify(env, &dir.join(SHARD), log_mark, progress)) {
        (Some(identity), Ok(data)) if damage.is_empty() => Ok(VerifiedDirectory { identity, data, log_mark }),
        (_, verified) => {
            damage.extend(verified.err().into_iter().flatten().map(StoreError::from));
            Err(damage)
        }
    }
}
