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
/// [`StoreError`] with the first file that is damaged; [`StoreError::Locked`] when a process has the directory.
pub fn verify(
    env: &Env,
    dir: &Path,
    progress: &mut dyn FnMut(VerifyProgress),
) -> Result<(Identity, Verified), StoreError> {
    let _lock = directory::lock(&*env.fs, dir)?;
    let identity = Identity::load(&*env.fs, dir)?;
    let verified = engine::verify(env, &dir.join(SHARD), progress)?;
    Ok((identity, verified))
}
