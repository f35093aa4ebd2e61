//! `GET`, `POST`, `PUT` and `DELETE` of `/v0/checkpoint`, on a thread that may block on the disk,
//! one at a time.
//!
//! A new checkpoint costs a flush of the data written since the last one. Creation is therefore
//! rate limited: see [`CheckpointPace`].

use crate::checkpoint_pace::{CheckpointPace, CheckpointRequester};
use crate::local::Local;
use api::{CheckpointRequest, EncodedResponse, Problem};
use http::StatusCode;
use parking_lot::Mutex;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use stdx::Instant;
use store::{HeldCheckpoint, Renewal, StoreError};

/// `Retry-After` while another checkpoint is being created or removed.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// `Retry-After` while the maximum number of checkpoints exists: a backup copies them, or an
/// operator must remove them.
const TOO_MANY_RETRY_AFTER: Duration = Duration::from_secs(30);

/// State of the creation and removal of checkpoints.
#[derive(Debug)]
pub(crate) struct CheckpointState {
    /// Held while a checkpoint is created or removed.
    changing: Arc<tokio::sync::Mutex<()>>,
    /// Rate limit of creation.
    pace: Mutex<CheckpointPace>,
}

impl CheckpointState {
    /// The state of a process that starts at `now`.
    pub(crate) fn new(now: Instant) -> Self {
        Self { changing: Arc::default(), pace: Mutex::new(CheckpointPace::new(now)) }
    }
}

/// Executes the request of the client at `address`, without a time limit. It goes on if the client
/// disconnects.
pub(crate) async fn answer(
    state: &Arc<CheckpointState>,
    local: &Arc<Local>,
    now: Instant,
    asked: CheckpointRequest,
    address: Option<IpAddr>,
) -> Result<EncodedResponse, Problem> {
    let busy =
        |_| Problem::unavailable(RETRY_AFTER, "Another checkpoint is being created or removed. Try again.");
    let permit = match asked {
        // A renewal only waits for a checkpoint that is being created.
        CheckpointRequest::Renew { .. } => None,
        _ => Some(Arc::clone(&state.changing).try_lock_owned().map_err(busy)?),
    };
    let paced = match &asked {
        CheckpointRequest::Make { name } => Some(CheckpointRequester { address, name: name.clone() }),
        _ => None,
    };
    let is_paced = paced.is_some();
    if let Some(requester) = paced
        && let Err(retry_after) = state.pace.lock().take(now, &requester)
    {
        let detail = "Checkpoints are requested too often: each costs a flush. Try again later.";
        return Err(Problem::unavailable(retry_after, detail));
    }
    let (local, owner) = (Arc::clone(local), Arc::clone(state));
    let done = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let done = carry_out(&local, &asked);
        if is_paced && done.is_err() {
            owner.pace.lock().refund();
        }
        done
    });
    done.await.unwrap_or_else(|_| Err(internal("the thread that does it panicked; this is a bug")))
}

fn carry_out(local: &Local, asked: &CheckpointRequest) -> Result<EncodedResponse, Problem> {
    let done = match asked {
        CheckpointRequest::Renew { name } => match local.store.renew_checkpoint(name) {
            Renewal::TooOld => return Err(too_old(name)),
            renewal => Ok(api::encode_checkpoint_renewed(renewal == Renewal::Renewed)),
        },
        CheckpointRequest::List { is_head } => local.store.list_checkpoints().map(|kept| {
            let kept: Vec<_> = kept.into_iter().map(|kept| (kept.name, absolute(kept.path))).collect();
            api::encode_checkpoints(&kept, *is_head)
        }),
        CheckpointRequest::Make { name } => {
            let made = match name {
                Some(name) => local.store.checkpoint_named(name),
                None => local.store.checkpoint(),
            };
            let damaged = local.store.engine().damaged_tables();
            let damaged: Vec<_> = damaged.into_iter().map(|table| absolute(table.path)).collect();
            made.map(|made| api::encode_checkpoint(&made.name, &absolute(made.path), &damaged))
        }
        CheckpointRequest::Remove { name } => {
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
        StoreError::TooManyCheckpoints { path, held } => {
            let (path, count, list) = (path.display(), held.len(), list(&held));
            let name = held.first().map_or("<name>", |held| held.name.as_str());
            let detail = format!(
                "{count} checkpoints are kept in {path}, the most there may be: {list}. Remove one that no backup copies any \
                 more: DELETE /v0/checkpoint?name={name}. Or wait: one that is not renewed for 10 minutes gives way, and \
                 none is renewed for longer than 24 hours."
            );
            Problem::unavailable(TOO_MANY_RETRY_AFTER, detail)
        }
        StoreError::CheckpointExists { path } => {
            let path = path.display();
            let detail =
                format!("The checkpoint {path} already exists. Use another name, or remove it first.");
            Problem::new(StatusCode::CONFLICT, detail)
        }
        StoreError::Engine(engine::Error::Full { .. }) => Problem::new(
            StatusCode::INSUFFICIENT_STORAGE,
            "The disk has no space for the files of a checkpoint. Free some space, then try again.",
        ),
        error => internal(&error.to_string()),
    }
}

/// Lists the checkpoints by name, with their ages.
fn list(held: &[HeldCheckpoint]) -> String {
    let describe = |held: &HeldCheckpoint| match held.ages {
        Some((age, renewed)) => {
            format!("{} (made {} s ago, renewed {} s ago)", held.name, age.as_secs(), renewed.as_secs())
        }
        None => held.name.clone(),
    };
    held.iter().map(describe).collect::<Vec<_>>().join(", ")
}

fn too_old(name: &str) -> Problem {
    let detail = format!(
        "The checkpoint {name} has been kept for 24 hours and is not renewed any more. It is removed an hour after its last \
         renewal, or earlier if another one needs its place. Make a new checkpoint."
    );
    Problem::new(StatusCode::CONFLICT, detail)
}

fn internal(why: &str) -> Problem {
    tracing::error!(why, "a checkpoint failed");
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        format!("The checkpoint failed: {why}. See the log of the node."),
    )
}
