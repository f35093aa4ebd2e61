//! Backup of a running node.
//!
//! **Promise.** A backup contains every write that was acknowledged before [`back_up`] was called,
//! and of later writes all up to one point in time. The node keeps serving. Its checkpoint is
//! removed at the end, also if the backup fails or is cancelled. If this process is killed or the
//! node's response is lost, the next backup to the same repository removes the checkpoint.
//!
//! **Mechanism.** This process draws the name of the checkpoint, and records it in the repository
//! before it sends the request to the node. The record is removed once the node has confirmed that
//! the checkpoint does not exist. Only `checkpoints/<name>` is read, and no symbolic link below it
//! is followed: a process that impersonates the node cannot have other directories copied.
//!
//! **Caveats.** A user with write access to the data directory can replace a directory by a link
//! while it is read. A node may handle the request for a checkpoint after the request to remove it,
//! if this process was killed in between and the first request was still unread. Such a checkpoint
//! stays until the node restarts; a node lists its checkpoints.

use crate::error::CtlError;
use crate::files;
use crate::node::{Node, NodeCheckpoint};
use crate::progress::Observer;
use crate::repository::{AddedBackup, Repository, RetentionReport};
use env::Env;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// Interval of renewing a checkpoint while it is copied. A node keeps one for at least 10 minutes.
const RENEW_EVERY: Duration = Duration::from_secs(120);
/// Directory of a node's checkpoints, below its data directory.
const CHECKPOINTS_DIR: &str = "checkpoints";

/// Result of a backup.
#[derive(Debug)]
pub struct BackupReport {
    /// The new backup.
    pub added: AddedBackup,
    /// Older backups that were removed afterwards.
    pub removed: RetentionReport,
    /// Number of backups in the repository.
    pub backups: usize,
    /// Tables that the node knew to be damaged when it made the checkpoint. The backup contains
    /// them as they are.
    pub damaged_tables: Vec<PathBuf>,
    /// Error of removing the node's checkpoint, if that failed.
    pub checkpoint_left: Option<CtlError>,
}

/// Adds a backup of `node` to the repository in `dir`, then removes all but the newest `keep`.
///
/// # Errors
/// [`CtlError`] if there is no such backup. If only removing old backups fails, the new one exists.
pub async fn back_up(
    env: &Env,
    node: &Node,
    dir: &Path,
    keep: Option<usize>,
    observer: &mut dyn Observer,
) -> Result<BackupReport, CtlError> {
    let repository = Repository::open_or_create(env, dir)?;
    if let Some(left) = repository.checkpoint_note()? {
        node.remove_checkpoint(&left).await?;
        repository.remove_checkpoint_note()?;
    }
    let checkpoint = make_checkpoint(env, node, &repository).await?;
    let added = copy_checkpoint(env, node, &repository, &checkpoint, observer);
    let removed = node.remove_checkpoint(&checkpoint.name).await;
    let checkpoint_left = match removed {
        Ok(_) => repository.remove_checkpoint_note().err(),
        Err(error) => Some(error),
    };
    let added = added?;
    let removed = match keep {
        Some(keep) => repository.keep_newest(keep.max(1)),
        // Removes only what interrupted backups left behind.
        None => repository.keep_newest(usize::MAX),
    };
    let removed = match removed {
        // Damaged manifests are listed in `added.unreadable`. A damaged old backup is no reason to
        // fail.
        Err(CtlError::Damaged { .. }) => RetentionReport::default(),
        removed => removed?,
    };
    let backups = repository.backups()?.len();
    Ok(BackupReport { added, removed, backups, damaged_tables: checkpoint.damaged_tables, checkpoint_left })
}

/// Records the name of a checkpoint, then has the node make it.
async fn make_checkpoint(
    env: &Env,
    node: &Node,
    repository: &Repository,
) -> Result<NodeCheckpoint, CtlError> {
    let name = new_checkpoint_name(env);
    repository.store_checkpoint_note(&name)?;
    let error = match node.make_checkpoint(&name).await {
        Ok(checkpoint) => return Ok(NodeCheckpoint { name, ..checkpoint }),
        Err(error) => error,
    };
    let is_none_there = match &error {
        CtlError::Refused { .. } | CtlError::Unreachable { .. } => true,
        // A checkpoint that does not exist now may still be made by the pending request.
        _ => matches!(node.remove_checkpoint(&name).await, Ok(true)),
    };
    if is_none_there {
        repository.remove_checkpoint_note()?;
    }
    Err(error)
}

/// Draws a unique name for a checkpoint.
fn new_checkpoint_name(env: &Env) -> String {
    let micros = env.clock.now().wall.micros_since_unix_epoch();
    format!("backup-{micros}-{:016x}", env::os_process::entropy_u64())
}

/// Refuses a checkpoint whose path is not that of a node's checkpoint with this name.
fn check_path(env: &Env, node: &Node, checkpoint: &NodeCheckpoint) -> Result<(), CtlError> {
    let path = &checkpoint.path;
    let is_expected = path.is_absolute() && path.ends_with(Path::new(CHECKPOINTS_DIR).join(&checkpoint.name));
    if !is_expected {
        return Err(CtlError::UnexpectedCheckpointPath { node: node.to_string(), path: path.clone() });
    }
    let out_of_reach = |error| match error {
        CtlError::Io { source, .. } if source.kind() != io::ErrorKind::InvalidInput => {
            CtlError::CheckpointUnreadable { node: node.to_string(), path: path.clone(), source }
        }
        other => other,
    };
    let parent = path.parent().expect("a path with two names has a parent");
    [parent, path].iter().try_for_each(|dir| files::refuse_symlink(&*env.fs, dir)).map_err(out_of_reach)
}

fn copy_checkpoint(
    env: &Env,
    node: &Node,
    repository: &Repository,
    checkpoint: &NodeCheckpoint,
    observer: &mut dyn Observer,
) -> Result<AddedBackup, CtlError> {
    let path = &checkpoint.path;
    check_path(env, node, checkpoint)?;
    env.fs.read_dir(path).map_err(|source| {
        let (node, path) = (node.to_string(), path.clone());
        CtlError::CheckpointUnreadable { node, path, source }
    })?;
    let (done, is_done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || renew(node, &checkpoint.name, &is_done));
        let added = repository.add_backup(path, env.clock.now().wall, observer);
        drop(done);
        added
    })
}

/// Renews the checkpoint periodically, until `is_done` reports that it is copied. Errors are
/// ignored: if the node removes the checkpoint meanwhile, copying it fails.
fn renew(node: &Node, name: &str, is_done: &mpsc::Receiver<()>) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    while matches!(is_done.recv_timeout(RENEW_EVERY), Err(mpsc::RecvTimeoutError::Timeout)) {
        let _ = runtime.block_on(node.renew_checkpoint(name));
    }
}
