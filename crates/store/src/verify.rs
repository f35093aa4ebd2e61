//! Checking a data directory that no process has open.

use crate::directory::{self, SHARD};
use crate::error::StoreError;
use crate::identity::Identity;
use engine::{Verified, VerifyProgress};
use env::Env;
use std::path::Path;

/// Checks the identity and every byte of the data in `dir`, changing nothing.
///
/// # Errors
/// All that is wrong, at least one: a [`StoreError`] of each file that is damaged; [`StoreError::Locked`] alone when a
/// process has the directory.
pub fn verify(
    env: &Env,
    dir: &Path,
    progress: &mut dyn FnMut(VerifyProgress),
) -> Result<(Identity, Verified), Vec<StoreError>> {
    let _lock = directory::lock(&*env.fs, dir).map_err(|error| vec![error])?;
    let (identity, mut damage) = match Identity::load(&*env.fs, dir) {
        Ok(identity) => (Some(identity), Vec::new()),
        Err(error @ StoreError::IdentityCorrupt { .. }) => (None, vec![error]),
        // Without one this is no data directory.
        Err(error) => return Err(vec![error]),
    };
    match (identity, engine::verify(env, &dir.join(SHARD), progress)) {
        (Some(identity), Ok(verified)) => Ok((identity, verified)),
        (_, verified) => {
            damage.extend(verified.err().into_iter().flatten().map(StoreError::from));
            Err(damage)
        }
    }
}
