//! Checkpoints of a running node.

use super::NodeAddress;
use crate::error::CtlError;
use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::Empty;
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;

const TARGET: &str = "/v0/checkpoint";
/// Timeout of making a checkpoint, for which the node first flushes its memtables.
const CHECKPOINT_MAX: Duration = Duration::from_secs(600);
const REMOVE_MAX: Duration = Duration::from_secs(60);
/// Maximum length of the response, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// A checkpoint, which the node keeps until its removal is requested or it ends.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct NodeCheckpoint {
    /// Name under which it is removed.
    pub name: String,
    /// Path on the node's machine.
    pub path: PathBuf,
    /// Paths of tables that the node knows to be damaged. A node of an older release does not
    /// report them.
    #[serde(default)]
    pub damaged_tables: Vec<PathBuf>,
}

impl NodeAddress {
    /// Has the node make a checkpoint. The name consists of letters, digits and `-`.
    ///
    /// # Errors
    /// [`CtlError::Unreachable`] or [`CtlError::Refused`] if the checkpoint does not exist.
    /// [`CtlError::BrokenAnswer`] if it may exist now or later.
    pub async fn make_checkpoint(&self, name: &str) -> Result<NodeCheckpoint, CtlError> {
        let request =
            self.request(Method::POST, &target(name)).body(Empty::<Bytes>::new()).expect("a valid request");
        let mut answer = self.send(request, CHECKPOINT_MAX).await?.expect(StatusCode::CREATED).await?;
        let text = answer.text(ANSWER_BYTES_MAX).await?;
        serde_json::from_slice(&text).map_err(|_| CtlError::BrokenAnswer {
            node: self.to_string(),
            detail: "it is not the answer of a veche node".to_owned(),
        })
    }

    /// Has the node keep a checkpoint for longer. A node of an older release refuses: it keeps
    /// checkpoints until it ends.
    ///
    /// # Errors
    /// [`CtlError::Unreachable`], [`CtlError::Refused`], [`CtlError::BrokenAnswer`].
    pub async fn renew_checkpoint(&self, name: &str) -> Result<(), CtlError> {
        let request =
            self.request(Method::PUT, &target(name)).body(Empty::<Bytes>::new()).expect("a valid request");
        self.send(request, REMOVE_MAX).await?.expect(StatusCode::ACCEPTED).await.map(drop)
    }

    /// Has the node remove a checkpoint. Returns whether it existed.
    ///
    /// # Errors
    /// [`CtlError::Unreachable`], [`CtlError::Refused`], [`CtlError::BrokenAnswer`].
    pub async fn remove_checkpoint(&self, name: &str) -> Result<bool, CtlError> {
        let request =
            self.request(Method::DELETE, &target(name)).body(Empty::<Bytes>::new()).expect("a valid request");
        let answer = self.send(request, REMOVE_MAX).await?;
        match answer.status() {
            StatusCode::ACCEPTED => Ok(true),
            StatusCode::NOT_FOUND => Ok(false),
            _ => Err(answer.into_refusal().await),
        }
    }
}

fn target(name: &str) -> String {
    format!("{TARGET}?name={}", crate::percent::encode(name.as_bytes()))
}
