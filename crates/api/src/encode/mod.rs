//! Encoding of replies to responses.
//!
//! `ETag` carries the version that was found or written, `Veche-Acks` the number of replicas that
//! answered, and `Veche-Superseded: 1` that a write met a greater version. `Veche-Expires-At` is
//! the time at which a value expires, in milliseconds of Unix time. `Veche-Nodes` names the nodes
//! that hold the key. The response to a `HEAD` has the headers of the response to the `GET`.

mod entities;
mod http1;
mod node;
mod shortfall;

use crate::decode::Selection;
use crate::{
    Action, LayoutDocument, PlanDocument, Problem, ResponseContext, ServingState, SlowRequests, Status,
};
use bytes::Bytes;
use cluster::{Acks, CommandFailure, LayoutEpoch, Reply};
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use serde::Serialize;
use std::fmt;
use std::time::Duration;
use stdx::{Cell, Version, WallTime};

pub use entities::{
    describe_range_failure, encode_batch_head, encode_checkpoint, encode_checkpoint_removed,
    encode_checkpoint_renewed, encode_checkpoints, encode_range_failure, encode_range_head,
};
pub use http1::{HttpDate, encode_http1};
pub use node::{encode_options, encode_ready, encode_root};

use shortfall::{not_enough_heard, not_enough_replicas};

pub(crate) const VECHE_ACKS: HeaderName = HeaderName::from_static("veche-acks");
const VECHE_SUPERSEDED: HeaderName = HeaderName::from_static("veche-superseded");
const VECHE_NODES: HeaderName = HeaderName::from_static("veche-nodes");
const VECHE_EXPIRES_AT: HeaderName = HeaderName::from_static("veche-expires-at");
const CONTENT_TYPE_VALUE: HeaderValue = HeaderValue::from_static("application/octet-stream");
const CONTENT_TYPE_JSON: HeaderValue = HeaderValue::from_static("application/json");
const CONTENT_TYPE_METRICS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4");

/// Length of an entity tag: a version in double quotes.
const ETAG_LEN: usize = 2 * Version::ENCODED_LEN + 2;

/// Time after which a client should try a node again that starts or stops.
const NOT_SERVING_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Time after which a client should try a node again whose clock is wrong: an operator must set it.
const CLOCK_AHEAD_RETRY_AFTER: Duration = Duration::from_secs(10);

/// A response, with its reason phrase if that differs from the one of the status.
#[derive(Debug)]
pub struct EncodedResponse {
    /// Status, headers and body.
    pub response: Response<Bytes>,
    /// Reason phrase, if it is not the one of the status.
    pub reason: Option<&'static str>,
}

impl From<Response<Bytes>> for EncodedResponse {
    fn from(response: Response<Bytes>) -> Self {
        Self { response, reason: None }
    }
}

/// Encodes the response to a request for an entity.
pub fn encode(reply: Reply, asked: &ResponseContext) -> EncodedResponse {
    let mut encoded = match outcome(reply, asked) {
        Ok((head, body)) => head.into_response(body).into(),
        Err(problem) => problem.to_response(asked.action == Action::Head),
    };
    // A layout record may contain any text as a URL.
    let nodes = asked.located.as_deref().and_then(|urls| HeaderValue::from_str(urls).ok());
    if let Some(nodes) = nodes {
        encoded.response.headers_mut().insert(VECHE_NODES, nodes);
    }
    encoded
}

/// Head of a successful response about an entity.
#[derive(Clone, Copy, Debug)]
struct EntityHead {
    status: StatusCode,
    version: Version,
    acks: Acks,
    superseded: bool,
    /// Time at which the value expires.
    expires_at: Option<WallTime>,
    /// Number of bytes of the value that are sent; `None` if there is no value.
    value_len: Option<usize>,
    /// The part of the value that is sent, if it is not the whole value.
    part: Option<ValuePart>,
}

/// A part of a value. `last` is inclusive.
#[derive(Clone, Copy, Debug)]
struct ValuePart {
    first: usize,
    last: usize,
    value_len: usize,
}

impl fmt::Display for ValuePart {
    /// Formats the part as `Content-Range` does (RFC 9110, section 14.4).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {}-{}/{}", self.first, self.last, self.value_len)
    }
}

impl EntityHead {
    const fn new(status: StatusCode, version: Version, acks: Acks) -> Self {
        Self { status, version, acks, superseded: false, expires_at: None, value_len: None, part: None }
    }
}

/// Encodes head and body of a successful response.
fn outcome(reply: Reply, asked: &ResponseContext) -> Result<(EntityHead, Bytes), Problem> {
    match reply {
        Reply::Found { cell, acks } => found(cell, acks, asked),
        Reply::Missing { acks } => {
            let detail = "There is no such key: it was never written, was deleted, or has expired.";
            Err(Problem::new(StatusCode::NOT_FOUND, detail).with_acks(acks))
        }
        Reply::Written { version, superseded, acks } => {
            let is_delete = asked.action == Action::Delete;
            let status = if is_delete { StatusCode::ACCEPTED } else { StatusCode::CREATED };
            Ok((EntityHead { superseded, ..EntityHead::new(status, version, acks) }, Bytes::new()))
        }
        Reply::Page { .. } => unreachable!("pages are replies to scans: see encode_range_head"),
        Reply::Failed(failure) => Err(problem_of(failure, asked.operation())),
    }
}

fn found(cell: Cell, acks: Acks, asked: &ResponseContext) -> Result<(EntityHead, Bytes), Problem> {
    let Cell { meta, value } = cell;
    let head =
        EntityHead { expires_at: meta.expires_at, ..EntityHead::new(StatusCode::OK, meta.version, acks) };
    if asked.if_none_match.as_ref().is_some_and(|condition| condition.matches(meta.version)) {
        return Ok((EntityHead { status: StatusCode::NOT_MODIFIED, ..head }, Bytes::new()));
    }
    let selection = asked.byte_range.map(|range| range.select(meta.version, value.len()));
    match selection {
        None | Some(Selection::Whole) => {
            let head = EntityHead { value_len: Some(value.len()), ..head };
            Ok((head, if asked.action == Action::Head { Bytes::new() } else { value }))
        }
        Some(Selection::Bytes(bytes)) => {
            let part = ValuePart { first: bytes.start, last: bytes.end - 1, value_len: value.len() };
            let (status, value_len) = (StatusCode::PARTIAL_CONTENT, Some(bytes.len()));
            Ok((EntityHead { status, value_len, part: Some(part), ..head }, value.slice(bytes)))
        }
        Some(Selection::Unsatisfiable) => Err(Problem::range_not_satisfiable(value.len()).with_acks(acks)),
    }
}

/// Expiry in milliseconds of Unix time, rounded down, so that a copy made with it does not outlive
/// the original.
pub(crate) const fn expiry_ms(expires_at: WallTime) -> u64 {
    expires_at.millis_since_unix_epoch()
}

impl EntityHead {
    /// Builds the response. It has the same fields as `append_http1` writes.
    fn into_response(self, body: Bytes) -> Response<Bytes> {
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(ETAG, etag(self.version));
        headers.insert(VECHE_ACKS, acks_value(self.acks));
        if self.superseded {
            headers.insert(VECHE_SUPERSEDED, HeaderValue::from_static("1"));
        }
        if let Some(expires_at) = self.expires_at {
            headers.insert(VECHE_EXPIRES_AT, HeaderValue::from(expiry_ms(expires_at)));
        }
        if let Some(part) = self.part {
            let range =
                HeaderValue::try_from(part.to_string()).expect("digits and punctuation are a header value");
            headers.insert(CONTENT_RANGE, range);
        }
        if let Some(len) = self.value_len {
            headers.insert(CONTENT_TYPE, CONTENT_TYPE_VALUE);
            headers.insert(CONTENT_LENGTH, HeaderValue::from(len));
        }
        response
    }
}

/// Encodes the response to `GET /v0/status`: `503` unless the node serves.
pub fn encode_status(status: &Status, is_head: bool) -> EncodedResponse {
    let mut response = json(status, is_head);
    if status.state != ServingState::Serving {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        let secs = NOT_SERVING_RETRY_AFTER.as_secs();
        response.headers_mut().insert(http::header::RETRY_AFTER, HeaderValue::from(secs));
    }
    response.into()
}

/// Encodes the response to `GET /v0/layout`.
pub fn encode_layout(layout: &LayoutDocument, is_head: bool) -> EncodedResponse {
    json(layout, is_head).into()
}

/// Encodes the response to a command on the layout that has planned a change.
pub fn encode_layout_plan(plan: &PlanDocument) -> EncodedResponse {
    json(plan, false).into()
}

/// Encodes the response to a command on the layout that has taken effect in the record of this
/// epoch.
pub fn encode_layout_changed(epoch: LayoutEpoch) -> EncodedResponse {
    #[derive(Serialize)]
    struct Changed {
        epoch: u64,
    }
    json(&Changed { epoch: epoch.0 }, false).into()
}

/// Encodes the response to `GET /v0/slow`.
pub fn encode_slow(slow: &SlowRequests, is_head: bool) -> EncodedResponse {
    json(slow, is_head).into()
}

/// Encodes the response to `GET /v0/profile` from a profile in JSON.
pub fn encode_profile(json: Vec<u8>) -> EncodedResponse {
    document_response(CONTENT_TYPE_JSON, json.into(), false).into()
}

/// Encodes the response to `GET /metrics`, in the text format of Prometheus.
pub fn encode_metrics(text: String, is_head: bool) -> EncodedResponse {
    document_response(CONTENT_TYPE_METRICS, text.into(), is_head).into()
}

/// Encodes the response to `GET /metrics` of a node without metrics.
pub fn encode_no_metrics(is_head: bool) -> EncodedResponse {
    let detail = "This node keeps no metrics. Start it with --metrics on.";
    Problem::new(StatusCode::NOT_FOUND, detail).to_response(is_head)
}

/// Encodes the response to `POST /v0/repair`.
pub fn encode_repair_begun() -> EncodedResponse {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::ACCEPTED;
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(0));
    response.into()
}

/// Builds a response with a JSON document.
fn json(document: &impl Serialize, is_head: bool) -> Response<Bytes> {
    let text = serde_json::to_vec(document).expect("strings and numbers are JSON");
    document_response(CONTENT_TYPE_JSON, text.into(), is_head)
}

/// Builds a response with a document. For a `HEAD` it has no body, but the headers of the `GET`.
fn document_response(content_type: HeaderValue, body: Bytes, is_head: bool) -> Response<Bytes> {
    let body_len = body.len();
    let mut response = Response::new(if is_head { Bytes::new() } else { body });
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(body_len));
    response
}

pub(crate) fn acks_value(acks: Acks) -> HeaderValue {
    match acks {
        Acks { got: 1, from: 1 } => HeaderValue::from_static("1/1"),
        Acks { got, from } => {
            HeaderValue::try_from(format!("{got}/{from}")).expect("digits and a slash are a header value")
        }
    }
}

/// A version as 32 hexadecimal digits in lower case.
pub(crate) fn version_digits(version: Version) -> [u8; 2 * Version::ENCODED_LEN] {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut digits = [0; 2 * Version::ENCODED_LEN];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(version.to_bytes()) {
        pair[0] = HEX[usize::from(byte >> 4)];
        pair[1] = HEX[usize::from(byte & 0xf)];
    }
    digits
}

fn etag(version: Version) -> HeaderValue {
    HeaderValue::from_bytes(&etag_text(version)).expect("hexadecimal digits in quotes are a header value")
}

fn etag_text(version: Version) -> [u8; ETAG_LEN] {
    let mut text = [b'"'; ETAG_LEN];
    text[1..ETAG_LEN - 1].copy_from_slice(&version_digits(version));
    text
}

/// Kind of the operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailedOperation {
    Read,
    Write,
    Range,
}

impl ResponseContext {
    const fn operation(&self) -> FailedOperation {
        match self.action {
            Action::Get | Action::Head => FailedOperation::Read,
            Action::Put { .. } | Action::Delete => FailedOperation::Write,
        }
    }
}

pub(crate) fn problem_of(failure: CommandFailure, operation: FailedOperation) -> Problem {
    match failure {
        CommandFailure::NotEnoughReplicas { acks, ack, shortfall } => {
            Problem::not_enough_replicas(acks, not_enough_replicas(acks, ack, operation, shortfall))
        }
        CommandFailure::NotEnoughHeard { acks, ack, shortfall, missing } => {
            let text = match operation {
                FailedOperation::Write => not_enough_replicas(acks, ack, operation, shortfall),
                FailedOperation::Read | FailedOperation::Range => not_enough_heard(&missing),
            };
            Problem::not_enough_replicas(acks, text)
        }
        CommandFailure::Closed => internal("The reader of the range has left.".to_owned()),
        CommandFailure::Overloaded { retry_after } | CommandFailure::NoMemory { retry_after } => {
            match operation {
                FailedOperation::Read => Problem::read_overloaded(retry_after),
                FailedOperation::Write | FailedOperation::Range => Problem::overloaded(retry_after),
            }
        }
        CommandFailure::ReplicasOverloaded { acks, retry_after, maybe_stored } => {
            let outcome = if maybe_stored {
                "The write may have been stored on another replica: repeat it after the time in Retry-After, or read the key \
                 to find out."
            } else {
                "Nothing was stored. Try again after the time in Retry-After."
            };
            let detail = format!(
                "Too many of the key's replicas have more to do than they can take in, and refused the write. {outcome}"
            );
            Problem::unavailable(retry_after, detail).with_acks(acks)
        }
        CommandFailure::ExpiryTooLate { .. } => Problem::bad_request(
            "The value would expire after the year 2100, which is the latest that ttl and expires_at can say. \
             Nothing was stored. Use a smaller one, or none for a value that never expires.",
        ),
        CommandFailure::ClockAhead { acks, maybe_stored } => {
            let outcome = if maybe_stored { MAYBE_STORED } else { "Nothing was stored." };
            let detail = format!(
                "The clocks of this node and of others are too far apart, or its own was set back: the versions that it \
                 gives out are refused. {outcome} GET /v0/status names the clocks: set the one that is wrong, and \
                 meanwhile write through another node."
            );
            Problem::unavailable(CLOCK_AHEAD_RETRY_AFTER, detail).with_acks(acks)
        }
        CommandFailure::DiskFull { acks, maybe_stored, .. } => {
            let outcome = stored_where_room_is(maybe_stored);
            let detail = format!(
                "Too many of the key's replicas have a full disk. {outcome} \
                 Make room; reads and deletes go on meanwhile."
            );
            Problem::new(StatusCode::INSUFFICIENT_STORAGE, detail).with_acks(acks)
        }
        CommandFailure::DiskFullHere { acks, maybe_stored, available_bytes, reserve_bytes, reopen_bytes } => {
            let outcome = stored_where_room_is(maybe_stored);
            // A job that failed for lack of space may have released what it took. Or a quota
            // applies, which the figures do not show.
            let advice = match available_bytes >= reopen_bytes {
                true => "There was no room a moment ago: try again, and look at quotas if this goes on",
                false => "Delete something, or make room otherwise",
            };
            let [available, reserve, reopen] = [available_bytes, reserve_bytes, reopen_bytes].map(Mib);
            let detail = format!(
                "Too many of the key's replicas have a full disk. {outcome} This node's is one: \
                 {available} are free, and {reserve} are kept for deletes and for making room. {advice}: \
                 from {reopen} on values are taken again; reads and deletes go on meanwhile."
            );
            Problem::new(StatusCode::INSUFFICIENT_STORAGE, detail).with_acks(acks)
        }
        CommandFailure::Corrupt { detail } => {
            let detail = format!(
                "The only copy cannot be read back as it was written: {detail}. \
                 Restore the file from a backup, or run `veche verify` to see what else is damaged."
            );
            of_only_replica(internal(detail), operation)
        }
        CommandFailure::Storage { detail } => {
            let is_write = operation == FailedOperation::Write;
            let outcome = if is_write { " The write may have been stored." } else { "" };
            let detail = format!("The store failed: {detail}.{outcome} See the log of the node.");
            of_only_replica(internal(detail), operation)
        }
    }
}

/// Displays bytes as MiB.
struct Mib(u64);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MiB", self.0 as f64 / f64::from(1 << 20))
    }
}

const MAYBE_STORED: &str =
    "The write may have been stored on some replicas: repeat it, or read the key to find out.";

/// Outcome of a write for which too few replicas had disk space.
const fn stored_where_room_is(maybe_stored: bool) -> &'static str {
    if maybe_stored {
        "Nothing was stored on those, but the write may have been stored on another replica: repeat it, or read the key \
         to find out."
    } else {
        "Nothing was stored."
    }
}

/// Adds `Veche-Acks` to a failure of the local store, which is the reply only if this node is the
/// key's only replica. A range may be of one node alone, so it gets no count.
fn of_only_replica(problem: Problem, operation: FailedOperation) -> Problem {
    match operation {
        FailedOperation::Read | FailedOperation::Write => problem.with_acks(Acks { got: 0, from: 1 }),
        FailedOperation::Range => problem,
    }
}

fn internal(detail: String) -> Problem {
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IfNoneMatch;
    use cluster::Shortfall;
    use stdx::{Hlc, NodeTag};

    const VERSION: Version = Version::new(Hlc::from_bits(0x0123_4567_89ab_cdef), NodeTag(0xf));
    const VERSION_ETAG: &str = "\"0123456789abcdef000000000000000f\"";
    const ACKS: Acks = Acks { got: 1, from: 1 };

    fn asked(action: Action) -> ResponseContext {
        ResponseContext::new(action)
    }

    fn put() -> ResponseContext {
        asked(Action::Put { lifetime: cluster::Lifetime::Forever })
    }

    fn found() -> Reply {
        Reply::Found { cell: Cell::value(VERSION, 1, Bytes::from_static(b"value")), acks: ACKS }
    }

    fn header<'a>(answer: &'a EncodedResponse, name: &str) -> Option<&'a str> {
        answer.response.headers().get(name).map(|value| value.to_str().expect("text"))
    }

    #[test]
    fn a_value_is_answered_with_its_version() {
        let answer = encode(found(), &asked(Action::Get));
        assert_eq!(answer.response.status(), 200);
        assert_eq!(answer.response.body(), "value");
        assert_eq!(header(&answer, "etag"), Some(VERSION_ETAG));
        assert_eq!(header(&answer, "veche-acks"), Some("1/1"));
        assert_eq!(header(&answer, "content-type"), Some("application/octet-stream"));
        assert_eq!(header(&answer, "content-length"), Some("5"));
    }

    #[test]
    fn the_nodes_of_a_key_are_named_with_every_answer() {
        let urls = "http://a:1, http://b:2";
        for reply in [found(), Reply::Missing { acks: ACKS }, Reply::Failed(CommandFailure::Closed)] {
            for located in [None, Some(urls)] {
                let asked = ResponseContext { located: located.map(Into::into), ..asked(Action::Get) };
                assert_eq!(header(&encode(reply.clone(), &asked), "veche-nodes"), located);
            }
        }
        let asked = ResponseContext { located: Some("no\nheader".into()), ..asked(Action::Get) };
        assert_eq!(header(&encode(found(), &asked), "veche-nodes"), None);
    }

    #[test]
    fn head_is_get_without_the_body() {
        for reply in [
            found(),
            Reply::Missing { acks: ACKS },
            Reply::Failed(CommandFailure::DiskFull { acks: ACKS, here: false, maybe_stored: false }),
        ] {
            let get = encode(reply.clone(), &asked(Action::Get)).response;
            let head = encode(reply, &asked(Action::Head)).response;
            assert_eq!(get.status(), head.status());
            assert_eq!(get.headers(), head.headers());
            assert!(head.body().is_empty());
        }
    }

    #[test]
    fn a_matching_version_is_not_sent_again() {
        for (condition, status) in [("*", 304), (VERSION_ETAG, 304), ("\"0\"", 200)] {
            let value = HeaderValue::from_str(condition).expect("a header value");
            let if_none_match = IfNoneMatch::parse([&value]).expect("a list of entity tags");
            let asked = ResponseContext { if_none_match: Some(if_none_match), ..asked(Action::Get) };
            let answer = encode(found(), &asked);
            assert_eq!(answer.response.status(), status, "{condition}");
            assert_eq!(answer.response.body().is_empty(), status == 304);
            assert_eq!(header(&answer, "etag"), Some(VERSION_ETAG));
            assert_eq!(header(&answer, "veche-acks"), Some("1/1"));
        }
    }

    #[test]
    fn writes_are_answered_with_their_version() {
        for (asked, status) in [(put(), 201), (asked(Action::Delete), 202)] {
            for superseded in [false, true] {
                let acks = Acks { got: 2, from: 3 };
                let answer = encode(Reply::Written { version: VERSION, superseded, acks }, &asked);
                assert_eq!(answer.response.status(), status);
                assert_eq!(header(&answer, "etag"), Some(VERSION_ETAG));
                assert_eq!(header(&answer, "veche-acks"), Some("2/3"));
                assert_eq!(header(&answer, "veche-superseded"), superseded.then_some("1"));
                assert!(answer.response.body().is_empty());
            }
        }
    }

    #[test]
    fn a_missing_key_has_a_count_of_answers() {
        let answer = encode(Reply::Missing { acks: ACKS }, &asked(Action::Get));
        assert_eq!(answer.response.status(), 404);
        assert_eq!(header(&answer, "veche-acks"), Some("1/1"));
        assert_eq!(header(&answer, "content-type"), Some("application/problem+json"));
    }

    #[test]
    fn a_read_without_capacity_names_memory() {
        let retry_after = Duration::from_secs(1);
        for failure in [CommandFailure::Overloaded { retry_after }, CommandFailure::NoMemory { retry_after }]
        {
            let answer = encode(Reply::Failed(failure), &asked(Action::Get));
            let text = String::from_utf8_lossy(answer.response.body()).into_owned();
            assert!(text.contains("memory") && text.contains("Retry-After"), "{text}");
            assert_eq!(answer.response.status(), 503);
        }
    }

    #[test]
    fn each_failure_has_its_status_text_and_headers() {
        let detail = || "000007.sst at 4096".to_owned();
        let acks = Acks { got: 0, from: 1 };
        let not_enough = |shortfall| CommandFailure::NotEnoughReplicas { acks, ack: 1, shortfall };
        let cases = [
            (not_enough(Shortfall::MaybeStored), 504, "may have been stored"),
            (not_enough(Shortfall::Unreachable), 504, "Nothing was sent and nothing was stored"),
            (
                CommandFailure::NotEnoughHeard {
                    acks,
                    ack: 1,
                    shortfall: Shortfall::MaybeStored,
                    missing: "http://c:1".to_owned(),
                },
                504,
                "may have been stored",
            ),
            (not_enough(Shortfall::NoVersion), 504, "Nothing was sent and nothing was stored"),
            (CommandFailure::Overloaded { retry_after: Duration::from_secs(2) }, 503, "Nothing was done"),
            (
                CommandFailure::ReplicasOverloaded { acks, retry_after: Duration::ZERO, maybe_stored: true },
                503,
                "may have been stored on another replica",
            ),
            (
                CommandFailure::ReplicasOverloaded { acks, retry_after: Duration::ZERO, maybe_stored: false },
                503,
                "refused the write. Nothing was stored",
            ),
            (CommandFailure::ExpiryTooLate { expires_at: WallTime::EXPIRY_END }, 400, "2100"),
            (CommandFailure::ClockAhead { acks, maybe_stored: true }, 503, "may have been stored"),
            (
                CommandFailure::ClockAhead { acks, maybe_stored: false },
                503,
                "are refused. Nothing was stored",
            ),
            (
                CommandFailure::DiskFull { acks, here: false, maybe_stored: false },
                507,
                "disk. Nothing was stored. Make",
            ),
            (
                CommandFailure::DiskFull { acks, here: false, maybe_stored: true },
                507,
                "may have been stored on another replica",
            ),
            (
                CommandFailure::DiskFullHere {
                    acks,
                    maybe_stored: true,
                    available_bytes: 3 << 19,
                    reserve_bytes: 2 << 20,
                    reopen_bytes: 5 << 19,
                },
                507,
                "1.5 MiB are free, and 2.0 MiB are kept",
            ),
            (CommandFailure::Corrupt { detail: detail() }, 500, "000007.sst"),
            (CommandFailure::Storage { detail: detail() }, 500, "may have been stored"),
        ];
        for (failure, status, says) in cases {
            let answer = encode(Reply::Failed(failure.clone()), &put());
            let body = std::str::from_utf8(answer.response.body()).expect("JSON").to_owned();
            assert_eq!(answer.response.status(), status, "{failure:?}");
            assert!(body.contains(says), "{failure:?}: {body}");
            assert_eq!(answer.reason, (status == 504).then_some("Not Enough Replicas"));
            assert_eq!(header(&answer, "retry-after").is_some(), status == 503);
            let is_of_replicas =
                !matches!(failure, CommandFailure::Overloaded { .. } | CommandFailure::ExpiryTooLate { .. });
            assert_eq!(header(&answer, "veche-acks"), is_of_replicas.then_some("0/1"), "{failure:?}");
        }
    }
}
