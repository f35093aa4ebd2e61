//! `GET`, `POST` and `DELETE` of `/v0/checkpoint`: on a thread that may wait for the disk, one at a time.

use crate::local::Local;
use crate::process::Process;
use api::{Answer, Checkpoint, Problem};
use http::StatusCode;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use store::StoreError;

/// When to try again while another is being made.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// When to try again while too many are kept: somebody copies them, or must remove them.
const TOO_MANY_RETRY_AFTER: Duration = Duration::from_secs(30);

/// Does what is asked, however long it takes. A client that leaves does not stop it.
pub(crate) async fn answer(process: &Arc<Process>, asked: Checkpoint) -> Result<Answer, Problem> {
    let turn = Turn::take(process).ok_or_else(|| {
        Problem::unavailable(RETRY_AFTER, "Another checkpoint is made or removed. Try again.")
    })?;
    let local = Arc::clone(process.local.get().expect("a node that takes requests is open"));
    let done = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        carry_out(&local, &asked)
    });
    done.await.unwrap_or_else(|_| Err(internal("the thread that does it panicked; this is a bug")))
}

fn carry_out(local: &Local, asked: &Checkpoint) -> Result<Answer, Problem> {
    let done = match asked {
        Checkpoint::List { is_head } => local.store.list_checkpoints().map(|kept| {
            let kept: Vec<_> = kept.into_iter().map(|kept| (kept.name, absolute(kept.path))).collect();
            api::encode_checkpoints(&kept, *is_head)
        }),
        Checkpoint::Make { name } => {
            let made = match name {
                Some(name) => local.store.checkpoint_named(name),
                None => local.store.checkpoint(),
            };
            let damaged = local.store.engine().damaged_tables();
            let damaged: Vec<_> = damaged.into_iter().map(|table| absolute(table.path)).collect();
            made.map(|made| api::encode_checkpoint(&made.name, &absolute(made.path), &damaged))
        }
        Checkpoint::Remove { name } => {
            local.store.remove_checkpoint(name).map(api::encode_checkpoint_removed)
        }
    };
    done.map_err(problem_of)
}

fn absolute(path: PathBuf) -> String {
    std::path::absolute(&path).unwrap_or(path).to_string_lossy().into_owned()
}

fn problem_of(error: StoreError) -> Problem {
    match error {
        StoreError::TooManyCheckpoints { path, max } => {
            let path = path.display();
            let detail = format!("{max} checkpoints are kept in {path}, the most there may be. Remove one.");
            Problem::unavailable(TOO_MANY_RETRY_AFTER, detail)
        }
        StoreError::CheckpointExists { path } => {
            let path = path.display();
            let detail =
                format!("There is a checkpoint {path} already. Give another name, or remove it first.");
            Problem::new(StatusCode::CONFLICT, detail)
        }
        StoreError::Engine(engine::Error::Full { .. }) => Problem::new(
            StatusCode::INSUFFICIENT_STORAGE,
            "The disk has no room for what a checkpoint writes. Make room, then try again.",
        ),
        error => internal(&error.to_string()),
    }
}

fn internal(why: &str) -> Problem {
    tracing::error!(why, "a checkpoint failed");
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        format!("The checkpoint failed: {why}. See the log of the node."),
    )
}

/// The right to make or remove a checkpoint, until it is dropped.
struct Turn(Arc<Process>);

impl Turn {
    fn take(process: &Arc<Process>) -> Option<Self> {
        let is_free = !process.checkpointing.swap(true, Ordering::Acquire);
        is_free.then(|| Self(Arc::clone(process)))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.checkpointing.store(false, Ordering::Release);
    }
}
