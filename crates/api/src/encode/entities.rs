//! Heads of the responses to ranges and batches, whose bodies are streams, and responses about
//! checkpoints.

use super::{EncodedResponse, FailedOperation, VECHE_ACKS, acks_value, json, problem_of};
use crate::entries::Format;
use crate::{BatchRequest, EntityRangeRequest, Problem, RangeContent};
use bytes::Bytes;
use cluster::{Acks, CommandFailure, ScanScope};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, VARY};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use serde::Serialize;

const VECHE_SCOPE: HeaderName = HeaderName::from_static("veche-scope");
const CONTENT_TYPE_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Encodes the head of the response to a range, once its first page is available. The body is
/// chunked.
///
/// For a range of the cluster, `Veche-Acks` states the least number of replicas that are consulted
/// for each key. If fewer answer, the response breaks off.
pub fn encode_range_head(range: &EntityRangeRequest) -> Response<()> {
    let mut response = match range.content {
        RangeContent::Entries | RangeContent::Keys => head_of(range.format),
        RangeContent::Count => head_with(CONTENT_TYPE_TEXT),
    };
    let scope = match &range.scan.scope {
        ScanScope::Node => "node",
        ScanScope::Cluster(quorum) => {
            let acks = Acks { got: quorum.ack(), from: quorum.from() };
            response.headers_mut().insert(VECHE_ACKS, acks_value(acks));
            "cluster"
        }
    };
    response.headers_mut().insert(VECHE_SCOPE, HeaderValue::from_static(scope));
    response.headers_mut().insert(VARY, HeaderValue::from_static("accept, accept-encoding"));
    if let Some(coding) = range.coding.name() {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static(coding));
    }
    response
}

/// Encodes the head of the response to a batch. The results follow as a chunked body.
pub fn encode_batch_head(batch: &BatchRequest) -> Response<()> {
    let mut response = head_of(batch.results);
    response.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
    response
}

fn head_of(format: Format) -> Response<()> {
    head_with(HeaderValue::from_static(format.media_type()))
}

fn head_with(content_type: HeaderValue) -> Response<()> {
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// Encodes the response to a range that failed before its first page.
pub fn encode_range_failure(failure: CommandFailure) -> EncodedResponse {
    problem_of(failure, FailedOperation::Range).to_response(false)
}

/// Describes the failure of a range in a sentence.
pub fn describe_range_failure(failure: &CommandFailure) -> String {
    problem_of(failure.clone(), FailedOperation::Range).detail().to_owned()
}

/// A checkpoint in the list of checkpoints.
#[derive(Serialize)]
struct CheckpointDocument<'a> {
    name: &'a str,
    path: &'a str,
}

/// A checkpoint that was just made.
#[derive(Serialize)]
struct NewCheckpointDocument<'a> {
    name: &'a str,
    path: &'a str,
    /// Damaged table files. Absent in the document if there are none, which is nearly always so.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    damaged_tables: &'a [String],
}

/// The list of checkpoints of a node.
#[derive(Serialize)]
struct CheckpointListDocument<'a> {
    checkpoints: Vec<CheckpointDocument<'a>>,
}

/// Encodes the response to `GET /v0/checkpoint` from names and paths.
pub fn encode_checkpoints(kept: &[(String, String)], is_head: bool) -> EncodedResponse {
    let checkpoints = kept.iter().map(|(name, path)| CheckpointDocument { name, path }).collect();
    json(&CheckpointListDocument { checkpoints }, is_head).into()
}

/// Encodes the response to `POST /v0/checkpoint`, after a checkpoint with this name and path on the
/// node's machine was made.
///
/// `damaged_tables` are files of the node that are known to be damaged, and that the checkpoint
/// contains unchanged.
pub fn encode_checkpoint(name: &str, path: &str, damaged_tables: &[String]) -> EncodedResponse {
    let mut response = json(&NewCheckpointDocument { name, path, damaged_tables }, false);
    *response.status_mut() = StatusCode::CREATED;
    response.into()
}

/// Encodes the response to `DELETE /v0/checkpoint`. `was_there` states whether there was a
/// checkpoint of that name.
pub fn encode_checkpoint_removed(was_there: bool) -> EncodedResponse {
    if !was_there {
        let detail = "There is no checkpoint of this name: it was removed, or the node was started since.";
        return Problem::new(StatusCode::NOT_FOUND, detail).to_response(false);
    }
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::ACCEPTED;
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(0));
    response.into()
}

/// Encodes the response to `PUT /v0/checkpoint`. `was_there` states whether there was a checkpoint
/// of that name.
pub fn encode_checkpoint_renewed(was_there: bool) -> EncodedResponse {
    encode_checkpoint_removed(was_there)
}
