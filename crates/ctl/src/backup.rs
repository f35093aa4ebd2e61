//! Backup of a running node.
//!
//! **Promise.** A backup contains every write that was acknowledged before [`back_up`] was called,
//! and of later writes all up to one point in time. The node keeps serving. Its checkpoint is
//! removed at the end, also if the backup fails or is cancelled. If this process is killed or the
//! node's response is lost, the next backup to the same repository removes the checkpoint. No
//! repository is created before the node has answered. A cancelled backup ends within a few
//! seconds, also if the node does not answer.
//!
//! **Mechanism.** This process draws the name of the checkpoint, and records it in the repository
//! before it sends the request to the node. The record is removed once the node has confirmed that
//! the checkpoint does not exist. Only `checkpoints/<name>` is read, and no symbolic link below it
//! is followed: a process that impersonates the node cannot have other directories copied.
//!
//! While the node refuses a checkpoint for now (`503` with `Retry-After`), the request is repeated
//! at the time that the node says, under the same name: the node keeps a place for it. If the
//! checkpoint is removed while it is copied, the backup begins once more with another one.
//!
//! **Caveats.** A user with write access to the data directory can replace a directory by a link
//! while it is read. A node may handle the request for a checkpoint after the request to remove it,
//! if this process was killed in between and the first request was still unread. Such a checkpoint
//! stays until the node restarts; a node lists its checkpoints.

use crate::error::CtlError;
use crate::files;
use crate::node::{NodeAddress, NodeCheckpoint};
use crate::progress::ProgressObserver;
use crate::repository::{AddedBackup, Repository, RetentionReport};
use env::Env;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::oneshot;

/// Interval of renewing a checkpoint while it is copied. A node keeps one for at least 10 minutes.
const RENEW_EVERY: Duration = Duration::from_secs(120);
/// Longest wait for the removal of a checkpoint that was copied. The next backup removes one that
/// is left.
const REMOVE_WAIT_MAX: Duration = Duration::from_secs(10);
/// Longest time to remove a checkpoint once the backup is cancelled.
const CLEAN_UP_MAX: Duration = Duration::from_secs(3);
/// Shortest wait before a request is repeated.
const WAIT_MIN: Duration = Duration::from_millis(100);
/// Interval of polling for cancellation.
const POLL_EVERY: Duration = Duration::from_millis(100);
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

/// Options of a backup.
#[derive(Clone, Copy, Debug)]
pub struct BackupOptions {
    /// Number of backups to keep; `None` for all.
    pub keep: Option<usize>,
    /// Longest time, in total, to wait for a node that refuses a checkpoint for now.
    pub wait_max: Duration,
}

/// Adds a backup of `node` to the repository in `dir`, then removes all but the newest
/// [`BackupOptions::keep`].
///
/// # Errors
/// [`CtlError`] if there is no such backup. If only removing old backups fails, the new one exists.
pub async fn back_up(
    env: &Env,
    node: &NodeAddress,
    dir: &Path,
    options: BackupOptions,
    observer: &mut dyn ProgressObserver,
) -> Result<BackupReport, CtlError> {
    let mut patience = Patience::new(node, options.wait_max);
    patience.repeat(observer, async || node.expect_status().await).await?;
    let repository = Repository::open_or_create(env, dir)?;
    if let Some(left) = repository.checkpoint_note()? {
        patience.repeat(observer, async || node.remove_checkpoint(&left).await).await?;
        repository.remove_checkpoint_note()?;
    }
    let mut copied = copy_new_checkpoint(env, node, &repository, &mut patience, observer).await?;
    if copied.is_lost() {
        copied = copy_new_checkpoint(env, node, &repository, &mut patience, observer).await?;
    }
    let is_lost = copied.is_lost();
    let CopiedCheckpoint { checkpoint, added, removed } = copied;
    let added = added.map_err(|error| match is_lost {
        true => CtlError::CheckpointRemoved { node: node.to_string(), error: Box::new(error) },
        false => error,
    })?;
    let checkpoint_left = removed.err();
    let removed = match options.keep {
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

/// Outcome of copying a checkpoint and removing it.
struct CopiedCheckpoint {
    checkpoint: NodeCheckpoint,
    added: Result<AddedBackup, CtlError>,
    /// Whether the checkpoint still existed when its removal was requested.
    removed: Result<bool, CtlError>,
}

impl CopiedCheckpoint {
    /// Whether copying failed because the checkpoint was removed meanwhile.
    fn is_lost(&self) -> bool {
        let is_missing = matches!(
            &self.added,
            Err(CtlError::Io { source, .. } | CtlError::CheckpointUnreadable { source, .. })
                if source.kind() == io::ErrorKind::NotFound
        );
        is_missing && matches!(self.removed, Ok(false))
    }
}

async fn copy_new_checkpoint(
    env: &Env,
    node: &NodeAddress,
    repository: &Repository,
    patience: &mut Patience<'_>,
    observer: &mut dyn ProgressObserver,
) -> Result<CopiedCheckpoint, CtlError> {
    let checkpoint = make_checkpoint(env, node, repository, patience, observer).await?;
    let added = copy_checkpoint(env, node, repository, &checkpoint, observer);
    // A cancelled backup also removes its checkpoint.
    let removed = clean_up(node, &checkpoint.name, observer).await;
    let removed = removed.and_then(|existed| repository.remove_checkpoint_note().map(|()| existed));
    Ok(CopiedCheckpoint { checkpoint, added, removed })
}

/// Records the name of a checkpoint, then has the node make it.
async fn make_checkpoint(
    env: &Env,
    node: &NodeAddress,
    repository: &Repository,
    patience: &mut Patience<'_>,
    observer: &mut dyn ProgressObserver,
) -> Result<NodeCheckpoint, CtlError> {
    let name = new_checkpoint_name(env);
    repository.store_checkpoint_note(&name)?;
    let error = match patience.repeat(observer, async || node.make_checkpoint(&name).await).await {
        Ok(checkpoint) => return Ok(NodeCheckpoint { name, ..checkpoint }),
        Err(error) => error,
    };
    let is_none_there = match &error {
        CtlError::Refused { .. } | CtlError::StillRefused { .. } | CtlError::Unreachable { .. } => true,
        CtlError::Cancelled if !patience.is_unanswered => true,
        // A checkpoint that does not exist now may still be made by the pending request.
        _ => matches!(clean_up(node, &name, observer).await, Ok(true)),
    };
    if is_none_there {
        repository.remove_checkpoint_note()?;
    }
    Err(error)
}

/// Removes a checkpoint. Once the observer has cancelled, this takes at most [`CLEAN_UP_MAX`].
async fn clean_up(node: &NodeAddress, name: &str, observer: &dyn ProgressObserver) -> Result<bool, CtlError> {
    let mut patience = Patience::new(node, REMOVE_WAIT_MAX);
    let mut unobserved = ();
    let removal = patience.repeat(&mut unobserved, async || node.remove_checkpoint(name).await);
    let is_given_up = async {
        cancellation(observer).await;
        tokio::time::sleep(CLEAN_UP_MAX).await;
    };
    tokio::select! {
        biased;
        removed = removal => removed,
        () = is_given_up => {
            let detail = format!("it sent nothing for {} s", CLEAN_UP_MAX.as_secs());
            Err(CtlError::BrokenAnswer { node: node.to_string(), detail })
        }
    }
}

/// Waits until the observer cancels.
async fn cancellation(observer: &dyn ProgressObserver) {
    while !observer.is_cancelled() {
        tokio::time::sleep(POLL_EVERY).await;
    }
}

/// Waits for a node that refuses a request for now. The waits are bounded in total.
struct Patience<'a> {
    node: &'a NodeAddress,
    left: Duration,
    waited: Duration,
    /// The last request was cancelled before its response.
    is_unanswered: bool,
}

impl<'a> Patience<'a> {
    fn new(node: &'a NodeAddress, left: Duration) -> Self {
        Self { node, left, waited: Duration::ZERO, is_unanswered: false }
    }

    /// Repeats a request until the node does not refuse it with `Retry-After`.
    ///
    /// # Errors
    /// That of the request. [`CtlError::StillRefused`] if the node says a time beyond the bound.
    /// [`CtlError::Cancelled`].
    async fn repeat<T>(
        &mut self,
        observer: &mut dyn ProgressObserver,
        request: impl AsyncFn() -> Result<T, CtlError>,
    ) -> Result<T, CtlError> {
        loop {
            let answered = tokio::select! {
                biased;
                answered = request() => answered,
                () = cancellation(observer) => {
                    self.is_unanswered = true;
                    return Err(CtlError::Cancelled);
                }
            };
            let refused = match answered {
                Err(error) if error.retry_after().is_some() => error,
                answered => return answered,
            };
            let time = refused.retry_after().unwrap_or_default().max(WAIT_MIN);
            if time > self.left {
                let (node, waited) = (self.node.to_string(), self.waited);
                return Err(CtlError::StillRefused { node, waited, refused: Box::new(refused) });
            }
            observer.on_wait(&refused, time);
            self.left -= time;
            self.waited += time;
            tokio::select! {
                () = tokio::time::sleep(time) => {}
                () = cancellation(observer) => return Err(CtlError::Cancelled),
            }
        }
    }
}

/// Draws a unique name for a checkpoint.
fn new_checkpoint_name(env: &Env) -> String {
    let micros = env.clock.now().wall.micros_since_unix_epoch();
    format!("backup-{micros}-{:016x}", env::os_process::entropy_u64())
}

/// Refuses a checkpoint whose path is not that of a node's checkpoint with this name.
fn check_path(env: &Env, node: &NodeAddress, checkpoint: &NodeCheckpoint) -> Result<(), CtlError> {
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
    node: &NodeAddress,
    repository: &Repository,
    checkpoint: &NodeCheckpoint,
    observer: &mut dyn ProgressObserver,
) -> Result<AddedBackup, CtlError> {
    let path = &checkpoint.path;
    check_path(env, node, checkpoint)?;
    env.fs.read_dir(path).map_err(|source| {
        let (node, path) = (node.to_string(), path.clone());
        CtlError::CheckpointUnreadable { node, path, source }
    })?;
    let (done, is_done) = oneshot::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || renew(node, &checkpoint.name, is_done));
        let added = repository.add_backup(path, env.clock.now().wall, observer);
        drop(done);
        added
    })
}

/// Renews the checkpoint periodically, until `is_done` reports that it is copied. Errors are
/// ignored: if the node removes the checkpoint meanwhile, copying it fails.
fn renew(node: &NodeAddress, name: &str, is_done: oneshot::Receiver<()>) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    let renewals = async {
        loop {
            tokio::time::sleep(RENEW_EVERY).await;
            let _ = node.renew_checkpoint(name).await;
        }
    };
    runtime.block_on(async {
        tokio::select! {
            _ = is_done => {}
            () = renewals => {}
        }
    });
}
