//! Checkpoints: `GET`, `POST`, `PUT` and `DELETE` on `/v0/checkpoint`.

use super::query::Parameters;
use super::{check_headers, check_no_parameters};
use crate::Problem;
use http::Method;
use http::request::Parts;

pub(super) const METHODS: &str = "GET, HEAD, POST, PUT, DELETE";
const PARAMETERS: &[&str] = &["name"];

/// Greatest length of the name of a checkpoint, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// A request about checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckpointRequest {
    /// Lists the checkpoints.
    List {
        /// Whether only the headers are requested.
        is_head: bool,
    },
    /// Makes a checkpoint.
    Make {
        /// Name of letters, digits, `-`, `_` and `.`, not beginning with `.`. With `None` the node
        /// draws a name.
        name: Option<String>,
    },
    /// Extends the lifetime of a checkpoint.
    Renew {
        /// Name of the checkpoint.
        name: String,
    },
    /// Removes a checkpoint.
    Remove {
        /// Name of the checkpoint.
        name: String,
    },
}

pub(super) fn decode(parts: &Parts) -> Result<CheckpointRequest, Problem> {
    match parts.method {
        Method::GET | Method::HEAD => {
            check_headers(parts, false)?;
            check_no_parameters(parts)?;
            Ok(CheckpointRequest::List { is_head: parts.method == Method::HEAD })
        }
        Method::POST => Ok(CheckpointRequest::Make { name: given_name(parts)? }),
        Method::PUT => Ok(CheckpointRequest::Renew { name: required_name(parts)? }),
        Method::DELETE => Ok(CheckpointRequest::Remove { name: required_name(parts)? }),
        _ => Err(Problem::method_not_allowed(METHODS)),
    }
}

/// Name in the query, which the request must have.
fn required_name(parts: &Parts) -> Result<String, Problem> {
    given_name(parts)?
        .ok_or_else(|| Problem::bad_request("The parameter name is missing. Say which one: ?name=<name>."))
}

/// Name in the query, if there is one.
fn given_name(parts: &Parts) -> Result<Option<String>, Problem> {
    check_headers(parts, false)?;
    let parameters = Parameters::parse(parts.uri.query().unwrap_or_default(), PARAMETERS)?;
    let Some(name) = parameters.text("name")? else { return Ok(None) };
    name_of(&name).map(Some).ok_or_else(|| {
        Problem::bad_request(format!(
            "The parameter name is not that of a checkpoint. Use 1 to {NAME_BYTES_MAX} letters, digits, -, _ and ., \
             which is not the first."
        ))
    })
}

/// Checks that a name is one file name, and not a path.
fn name_of(name: &[u8]) -> Option<String> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_name = (1..=NAME_BYTES_MAX).contains(&name.len()) && name[0] != b'.' && name.iter().all(is_part);
    if is_name { String::from_utf8(name.to_vec()).ok() } else { None }
}
