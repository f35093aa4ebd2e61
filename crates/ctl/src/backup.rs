//! Backing up a node that runs.
//!
//! **Promise.** All that was acknowledged before [`back_up`] was called is in the backup; of what was written later, all up
//! to one moment. The node goes on meanwhile. Its checkpoint is removed in the end, also when the backup fails or is ended;
//! where this process is killed or the node's answer is lost, by the next backup to the same repository.
//!
//! **Mechanism.** The name of the checkpoint is drawn here, and noted in the repository before the node is asked for it. The
//! note goes when the node has said that there is no such checkpoint. What is read is `checkpoints/<name>` alone, and no
//! symbolic link on the way below it is followed: a process that poses as the node cannot have other directories copied.
//!
//! **Caveats.** A user who may write to the data directory can exchange a directory for a link while it is read. A node may take up the request for a checkpoint only after it was told to remove it: when this process was
//! killed in between, and the request lay unread. Such a checkpoint stays until the node is started anew; a node lists what it
//! keeps.

use crate::error::CtlError;
use crate::files;
use crate::node::{Node, NodeCheckpoint};
use crate::progress::Observer;
use crate::repository::{Removed, Repository, Taken};
use env::Env;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// How often a checkpoint is renewed while it is copied. A node keeps one for 10 minutes at least.
const RENEW_EVERY: Duration = Duration::from_secs(120);
/// Where a node keeps its checkpoints, in its data directory.
const CHECKPOINTS_DIR: &str = "checkpoints";

/// What came of a backup.
#[derive(Debug)]
pub struct BackedUp {
    /// The backup.
    pub taken: Taken,
    /// The older ones that were removed after it.
    pub removed: Removed,
    /// How many backups there are now.
    pub backups: usize,
    /// Tables of the node that it knew to be damaged when it made the checkpoint: the backup holds them as they are.
    pub damaged_tables: Vec<PathBuf>,
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
        node.remove_checkpoint(&left).await?;
        repository.forget_held()?;
    }
    let checkpoint = hold(env, node, &repository).await?;
    let taken = take(env, node, &repository, &checkpoint, observer);
    let removed = node.remove_checkpoint(&checkpoint.name).await;
    let checkpoint_left = match removed {
        Ok(_) => repository.forget_held().err(),
        Err(error) => Some(error),
    };
    let taken = taken?;
    let removed = match keep {
        Some(keep) => repository.keep_newest(keep.max(1)),
        // What interrupted backups left.
        None => repository.keep_newest(usize::MAX),
    };
    let removed = match removed {
        // Which are in `taken.unreadable`: that an old one is damaged is no reason to fail.
        Err(CtlError::Damaged { .. }) => Removed::default(),
        removed => removed?,
    };
    let backups = repository.backups()?.len();
    Ok(BackedUp { taken, removed, backups, damaged_tables: checkpoint.damaged_tables, checkpoint_left })
}

/// Has the node make a checkpoint, which is noted before.
async fn hold(env: &Env, node: &Node, repository: &Repository) -> Result<NodeCheckpoint, CtlError> {
    let name = draw_name(env);
    repository.note_held(&name)?;
    let error = match node.make_checkpoint(&name).await {
        Ok(checkpoint) => return Ok(NodeCheckpoint { name, ..checkpoint }),
        Err(error) => error,
    };
    let is_none_there = match &error {
        CtlError::Refused { .. } | CtlError::Unreachable { .. } => true,
        // That it is not there now does not say that it will not be.
        _ => matches!(node.remove_checkpoint(&name).await, Ok(true)),
    };
    if is_none_there {
        repository.forget_held()?;
    }
    Err(error)
}

/// A name that no other checkpoint has.
fn draw_name(env: &Env) -> String {
    let micros = env.clock.now().wall.micros_since_unix_epoch();
    format!("backup-{micros}-{:016x}", env::os_process::entropy_u64())
}

/// Refuses a checkpoint that is not where a node makes those of this name.
fn check_place(env: &Env, node: &Node, checkpoint: &NodeCheckpoint) -> Result<(), CtlError> {
    let path = &checkpoint.path;
    let is_expected = path.is_absolute() && path.ends_with(Path::new(CHECKPOINTS_DIR).join(&checkpoint.name));
    if !is_expected {
        return Err(CtlError::NotTheCheckpoint { node: node.to_string(), path: path.clone() });
    }
    let out_of_reach = |error| match error {
        CtlError::Io { source, .. } if source.kind() != io::ErrorKind::InvalidInput => {
            CtlError::OutOfReach { node: node.to_string(), path: path.clone(), source }
        }
        other => other,
    };
    let parent = path.parent().expect("a path with two names has a parent");
    [parent, path].iter().try_for_each(|dir| files::refuse_symlink(&*env.fs, dir)).map_err(out_of_reach)
}

fn take(
    env: &Env,
    node: &Node,
    repository: &Repository,
    checkpoint: &NodeCheckpoint,
    observer: &mut dyn Observer,
) -> Result<Taken, CtlError> {
    let path = &checkpoint.path;
    check_place(env, node, checkpoint)?;
    env.fs.read_dir(path).map_err(|source| {
        let (node, path) = (node.to_string(), path.clone());
        CtlError::OutOfReach { node, path, source }
    })?;
    let (done, is_done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || renew(node, &checkpoint.name, &is_done));
        let taken = repository.take(path, env.clock.now().wall, observer);
        drop(done);
        taken
    })
}

/// Renews the checkpoint now and then, until `is_done` says that it is copied. One that cannot be renewed shows in the
/// copy, if it is removed meanwhile.
fn renew(node: &Node, name: &str, is_done: &mpsc::Receiver<()>) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    while matches!(is_done.recv_timeout(RENEW_EVERY), Err(mpsc::RecvTimeoutError::Timeout)) {
        let _ = runtime.block_on(node.renew_checkpoint(name));
    }
}
