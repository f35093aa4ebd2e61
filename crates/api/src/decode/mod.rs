//! Decoding of requests to commands.
//!
//! **Promise.** A request is understood in full or refused: an unknown path, method, parameter or
//! precondition is never ignored. If the head alone shows that a request is invalid, the request is
//! refused before its body is read.
//!
//! **Mechanism.** [`decode_head`] checks path, method, headers and query, in that order. A `PUT`
//! gets its value from [`EntityRequest::into_command`] when the body is complete. The entries of a
//! [`BatchRequest`] come from an [`EntryDecoder`](crate::entries::EntryDecoder).
//!
//! **Caveats.** The body of a `GET`, `HEAD` or `DELETE` has no meaning: it must be complete, and is
//! ignored. The same holds for a `POST` that is neither a batch nor a command on the layout. A
//! `Range` header is honoured on a `GET` of a value ([`ByteRange`]) and ignored elsewhere, as HTTP
//! allows.

mod byte_range;
mod checkpoint;
mod entities;
mod fast_path;
mod if_none_match;
mod kind;
mod layout;
mod negotiation;
mod paths;
mod profile;
mod query;

use crate::Problem;
pub use byte_range::ByteRange;
pub(crate) use byte_range::Selection;
use bytes::Bytes;
pub use checkpoint::CheckpointRequest;
use cluster::{Command, Key, Lifetime, Quorum};
pub use entities::{BatchRequest, EntityRangeRequest, RangeContent};
pub use fast_path::decode_fast_path;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, StatusCode, Version, header};
pub use if_none_match::IfNoneMatch;
pub use kind::RequestKind;
pub use layout::{LAYOUT_BODY_BYTES_MAX, LayoutCommandRequest};
pub use paths::ReadyForm;
pub use profile::{ProfileKind, ProfileRequest};
use query::Parameters;
use std::num::NonZeroU8;

const ENTITY_PATH: &str = "/v0/entity";
const ENTITY_METHODS: &str = "GET, HEAD, PUT, DELETE";
const ENTITY_PARAMETERS: &[&str] = &["id", "ack", "from", "replicas", "ttl", "locate"];
const ENTITIES_PATH: &str = "/v0/entities";
const CHECKPOINT_PATH: &str = "/v0/checkpoint";
const STATUS_PATH: &str = "/v0/status";
const LAYOUT_PATH: &str = "/v0/layout";
const READ_METHODS: &str = "GET, HEAD";
const REPAIR_PATH: &str = "/v0/repair";
const REPAIR_METHODS: &str = "POST";
const METRICS_PATH: &str = "/metrics";
const PROFILE_PATH: &str = "/v0/profile";
const SLOW_PATH: &str = "/v0/slow";
const READY_PATH: &str = "/v0/ready";
const ROOT_PATH: &str = "/";

/// Limits and defaults that requests are checked against.
#[derive(Clone, Copy, Debug)]
pub struct RequestRules {
    /// Number of nodes of the cluster.
    pub nodes: NonZeroU8,
    /// `from` of a request that does not choose it.
    pub default_from: u8,
    /// Greatest length of a value, in bytes.
    pub value_bytes_max: usize,
}

/// A decoded request, without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodedRequest {
    /// One entity.
    Entity(EntityRequest),
    /// A range of entities.
    Range(EntityRangeRequest),
    /// Writes of many entities.
    Batch(BatchRequest),
    /// Checkpoints of the node's data.
    Checkpoint(CheckpointRequest),
    /// Status of the node.
    Status {
        /// Whether only the headers are requested.
        is_head: bool,
    },
    /// Layout record of the cluster.
    Layout {
        /// Whether only the headers are requested.
        is_head: bool,
    },
    /// Command on the layout. The body is decoded by [`LayoutCommandRequest::decode`].
    LayoutCommand,
    /// Metrics of the node.
    Metrics {
        /// Whether only the headers are requested.
        is_head: bool,
    },
    /// Profile of the node.
    Profile(ProfileRequest),
    /// Comparison of all data of the node with the other replicas.
    Repair,
    /// List of slow requests.
    Slow {
        /// Whether only the headers are requested.
        is_head: bool,
    },
    /// Readiness: whether operations with the default quorum succeed at this node.
    Ready(ReadyForm),
    /// Methods of a path.
    Options {
        /// Methods, as `Allow` lists them.
        allow: &'static str,
    },
    /// Page with links.
    Root {
        /// Whether only the headers are requested.
        is_head: bool,
    },
}

/// A request for one entity, without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntityRequest {
    /// Operation on the entity.
    pub action: Action,
    /// Key of the entity.
    pub key: Key,
    /// Quorum of the operation.
    pub quorum: Quorum,
    /// Versions of which the value is not sent again.
    pub if_none_match: Option<IfNoneMatch>,
    /// Part of the value to send.
    pub byte_range: Option<ByteRange>,
    /// Whether the response names the nodes that hold the key.
    pub locate: bool,
}

/// Operation on an entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read of the value.
    Get,
    /// Read of the headers only.
    Head,
    /// Write of a value.
    Put {
        /// Lifetime of the value.
        lifetime: Lifetime,
    },
    /// Delete.
    Delete,
}

/// Parts of a request that [`encode`](crate::encode) needs for its response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseContext {
    /// Operation on the entity.
    pub action: Action,
    /// Versions of which the value is not sent again.
    pub if_none_match: Option<IfNoneMatch>,
    /// Part of the value to send.
    pub byte_range: Option<ByteRange>,
    /// URLs of the nodes that hold the key, separated by commas, if the response names them.
    pub located: Option<Box<str>>,
}

impl EntityRequest {
    /// A request without conditions, for the whole value.
    pub const fn new(action: Action, key: Key, quorum: Quorum) -> Self {
        Self { action, key, quorum, if_none_match: None, byte_range: None, locate: false }
    }

    /// Whether the body of the request is the value.
    pub const fn takes_value(&self) -> bool {
        matches!(self.action, Action::Put { .. })
    }

    /// Returns the command, and the context that the encoder needs, without the nodes that hold the
    /// key. `value` is used by a `PUT` only.
    pub fn into_command(self, value: Bytes) -> (Command, ResponseContext) {
        let Self { action, key, quorum, if_none_match, byte_range, locate: _ } = self;
        let command = match action {
            Action::Get | Action::Head => Command::Get { key, quorum },
            Action::Put { lifetime } => Command::Put { key, value, lifetime, quorum },
            Action::Delete => Command::Delete { key, quorum },
        };
        (command, ResponseContext { action, if_none_match, byte_range, located: None })
    }
}

impl ResponseContext {
    /// The context of a request without conditions, for the whole value.
    pub const fn new(action: Action) -> Self {
        Self { action, if_none_match: None, byte_range: None, located: None }
    }
}

/// Method of a request for an entity, before its parameters are known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EntityMethod {
    Get,
    Head,
    Put,
    Delete,
}

/// Decodes the head of a request.
///
/// # Errors
/// The [`Problem`] with which the request is refused.
pub fn decode_head(parts: &Parts, rules: &RequestRules) -> Result<DecodedRequest, Problem> {
    if parts.method == Method::OPTIONS {
        return paths::decode_options(parts);
    }
    match parts.uri.path() {
        ENTITY_PATH => decode_entity(parts, rules).map(DecodedRequest::Entity),
        ENTITIES_PATH => entities::decode(parts, rules),
        CHECKPOINT_PATH => checkpoint::decode(parts).map(DecodedRequest::Checkpoint),
        STATUS_PATH => Ok(DecodedRequest::Status { is_head: decode_node_read(parts)? }),
        LAYOUT_PATH => layout::decode(parts),
        METRICS_PATH => Ok(DecodedRequest::Metrics { is_head: decode_node_read(parts)? }),
        REPAIR_PATH => decode_repair(parts),
        PROFILE_PATH => profile::decode(parts).map(DecodedRequest::Profile),
        SLOW_PATH => Ok(DecodedRequest::Slow { is_head: decode_node_read(parts)? }),
        ROOT_PATH => Ok(DecodedRequest::Root { is_head: decode_node_read(parts)? }),
        READY_PATH => {
            let is_head = decode_node_read(parts)?;
            Ok(DecodedRequest::Ready(if is_head { ReadyForm::Head } else { ReadyForm::Get }))
        }
        _ => Err(paths::unknown()),
    }
}

fn decode_entity(parts: &Parts, rules: &RequestRules) -> Result<EntityRequest, Problem> {
    let method = match parts.method {
        Method::GET => EntityMethod::Get,
        Method::HEAD => EntityMethod::Head,
        Method::PUT => EntityMethod::Put,
        Method::DELETE => EntityMethod::Delete,
        _ => return Err(Problem::method_not_allowed(ENTITY_METHODS)),
    };
    let is_read = matches!(method, EntityMethod::Get | EntityMethod::Head);
    check_headers(parts, is_read)?;
    if method == EntityMethod::Put {
        check_value_headers(parts, rules)?;
    }
    let entity = entity_of(method, parts.uri.query().unwrap_or_default(), rules)?;
    let if_none_match = if is_read { if_none_match(parts)? } else { None };
    let byte_range = if method == EntityMethod::Get { ByteRange::of(parts) } else { None };
    Ok(EntityRequest { if_none_match, byte_range, ..entity })
}

/// Decodes method and query.
fn entity_of(method: EntityMethod, query: &str, rules: &RequestRules) -> Result<EntityRequest, Problem> {
    let parameters = Parameters::parse(query, ENTITY_PARAMETERS)?;
    let action = match method {
        EntityMethod::Put => Action::Put { lifetime: parameters.lifetime()? },
        _ if parameters.has_lifetime() => {
            return Err(Problem::bad_request(
                "Only a PUT takes a ttl. Leave it out, or set it when you write.",
            ));
        }
        EntityMethod::Get => Action::Get,
        EntityMethod::Head => Action::Head,
        EntityMethod::Delete => Action::Delete,
    };
    let locate = parameters.is_set("locate")?;
    if locate && !matches!(action, Action::Get | Action::Head) {
        return Err(Problem::bad_request("Only GET and HEAD take locate. Leave it out."));
    }
    let quorum = parameters.quorum(rules)?;
    let key = parameters.key()?;
    Ok(EntityRequest { locate, ..EntityRequest::new(action, key, quorum) })
}

/// Checks a read of a document about the node. Returns whether only the headers are requested.
fn decode_node_read(parts: &Parts) -> Result<bool, Problem> {
    let is_head = match parts.method {
        Method::GET => false,
        Method::HEAD => true,
        _ => return Err(Problem::method_not_allowed(READ_METHODS)),
    };
    check_headers(parts, false)?;
    check_no_parameters(parts)?;
    Ok(is_head)
}

fn decode_repair(parts: &Parts) -> Result<DecodedRequest, Problem> {
    if parts.method != Method::POST {
        return Err(Problem::method_not_allowed(REPAIR_METHODS));
    }
    check_headers(parts, false)?;
    check_no_parameters(parts)?;
    Ok(DecodedRequest::Repair)
}

fn check_no_parameters(parts: &Parts) -> Result<(), Problem> {
    match parts.uri.query() {
        None | Some("") => Ok(()),
        Some(_) => Err(Problem::bad_request("This path takes no parameters. Leave them out.")),
    }
}

/// Refuses headers that must not be ignored.
fn check_headers(parts: &Parts, is_value_read: bool) -> Result<(), Problem> {
    for (name, value) in &parts.headers {
        match *name {
            // Versions have no dates, so RFC 9110 requires that conditions on dates are ignored
            // (sections 13.1.3 and 13.1.4).
            header::IF_NONE_MATCH
            | header::IF_RANGE
            | header::IF_MODIFIED_SINCE
            | header::IF_UNMODIFIED_SINCE
                if is_value_read => {}
            ref name if is_precondition(name) => {
                let detail = format!(
                    "The precondition {name} is not supported here. Leave it out; \
                     If-None-Match and If-Range work on GET of {ENTITY_PATH}."
                );
                return Err(Problem::new(StatusCode::NOT_IMPLEMENTED, detail));
            }
            header::EXPECT if parts.version >= Version::HTTP_11 => check_expect(value)?,
            _ => {}
        }
    }
    Ok(())
}

/// Whether a header is a precondition. The names of all preconditions of HTTP begin with `if`,
/// including those of its extensions (`If` of RFC 4918, `If-Schedule-Tag-Match` of RFC 6638).
fn is_precondition(name: &HeaderName) -> bool {
    let name = name.as_str();
    name == "if" || name.starts_with("if-")
}

fn check_expect(value: &HeaderValue) -> Result<(), Problem> {
    if value.as_bytes().eq_ignore_ascii_case(b"100-continue") {
        return Ok(());
    }
    let detail = "The only expectation that can be met is 100-continue. Leave the Expect header out.";
    Err(Problem::new(StatusCode::EXPECTATION_FAILED, detail))
}

/// Whether the body of a request has a content coding other than `identity`.
fn is_content_coded(parts: &Parts) -> bool {
    let lines = parts.headers.get_all(header::CONTENT_ENCODING).iter();
    let mut codings =
        lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    codings.any(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity"))
}

fn check_value_headers(parts: &Parts, rules: &RequestRules) -> Result<(), Problem> {
    if is_content_coded(parts) {
        // Reads would return the coded bytes without the header that says so (RFC 9110, section
        // 8.4).
        return Err(Problem::content_coding(
            "A value is stored as it is sent, without its Content-Encoding. Nothing was stored. \
             Send the value uncompressed, or compressed and without Content-Encoding.",
        ));
    }
    if parts.headers.contains_key(header::CONTENT_RANGE) {
        return Err(Problem::bad_request(
            "A PUT replaces the whole value; it cannot write the part that Content-Range names. \
             Send the whole value without Content-Range.",
        ));
    }
    let Some(value) = parts.headers.get(header::CONTENT_LENGTH) else {
        return check_body_has_length(parts);
    };
    let text = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Err(Problem::bad_request("Content-Length is not a number. Send the length of the value."));
    };
    match text.parse::<usize>() {
        Ok(len) if len <= rules.value_bytes_max => Ok(()),
        _ => Err(Problem::value_too_large(rules.value_bytes_max)),
    }
}

/// In HTTP/1.0 only a length distinguishes a body from none (RFC 1945, section 7.2.2). Without one,
/// a value that was sent would be stored as an empty one.
fn check_body_has_length(parts: &Parts) -> Result<(), Problem> {
    if parts.version >= Version::HTTP_11 || parts.headers.contains_key(header::CONTENT_LENGTH) {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::LENGTH_REQUIRED,
        "In HTTP/1.0 a body needs a Content-Length. Nothing was stored. Send the length, 0 if there is no body, or HTTP/1.1.",
    ))
}

fn if_none_match(parts: &Parts) -> Result<Option<IfNoneMatch>, Problem> {
    if !parts.headers.contains_key(header::IF_NONE_MATCH) {
        return Ok(None);
    }
    IfNoneMatch::parse(parts.headers.get_all(header::IF_NONE_MATCH)).map(Some)
}
