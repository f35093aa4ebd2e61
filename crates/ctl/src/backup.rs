//! Backing up a node that runs.
//!
//! **Promise.** All that was acknowledged before [`back_up`] was called is in the backup; of what was written later, all up
//! to one moment. The node goes on meanwhile. Its checkpoint is removed in the end, also when the backup fails or is ended; where
//! this process is killed, by the next backup to the same repository.

use crate::error::CtlError;
use crate::node::Node;
use crate::progress::Observer;
use crate::repository::{Removed, Repository, Taken};
use env::Env;
use std::path::Path;

/// What came of a backup.
#[derive(Debug)]
pub struct BackedUp {
    /// The backup.
    pub taken: Taken,
    /// The older ones that were removed after it.
    pub removed: Removed,
    /// How many backups there are now.
    pub backups: usize,
    /// The node could not be told that its checkpoint is not needed any more.
    pub checkpoint_left: Option<CtlError>,
}

/// Adds a backup of `node` to the repository in `dir`, then removes all but the newest `keep`.
///
/// # Errors
/// [`CtlError`]; then there is no such backup. But when it is old ones that cannot be removed, the new one is there.
pub async fn back_up(
    env: &Env,
    node: &Node,
    dir: &Path,
    keep: Option<usize>,
    observer: &mut dyn Observer,
) -> Result<BackedUp, CtlError> {
    let repository = Repository::open_or_create(env, dir)?;
    if let Some(left) = repository.held()? {
        node.remove_checkpoint(&left.name).await?;
        repository.forget_held()?;
    }
    let checkpoint = node.make_checkpoint().await?;
    let taken = take(env, node, &repository, &checkpoint, observer);
    let removed = node.remove_checkpoint(&checkpoint.name).await;
    let checkpoint_left = match removed {
        Ok(_) => repository.forget_held().err(),
        Err(error) => Some(error),
    };
    let taken = taken?;
    let removed = match keep {
        Some(keep) => repository.keep_newest(keep.max(1))?,
        // What interrupted backups left; but that an old one is damaged is no reason to fail.
        None => match repository.keep_newest(usize::MAX) {
            Err(CtlError::Damaged { .. }) => Removed::default(),
            removed => removed?,
        },
    };
    Ok(BackedUp { taken, removed, backups: repository.backups()?.len(), checkpoint_left })
}

fn take(
    env: &Env,
    node: &Node,
    repository: &Repository,
    checkpoint: &crate::NodeCheckpoint,
    observer: &mut dyn Observer,
) -> Result<Taken, CtlError> {
    repository.note_held(checkpoint)?;
    let path = &checkpoint.path;
    env.fs.read_dir(path).map_err(|source| {
        let (node, path) = (node.to_string(), path.clone());
        CtlError::OutOfReach { node, path, source }
    })?;
    repository.take(path, env.clock.now().wall, observer)
}
