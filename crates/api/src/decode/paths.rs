//! Paths and the methods that each of them knows; `OPTIONS`.

use super::{
    CHECKPOINT_PATH, DecodedRequest, ENTITIES_PATH, ENTITY_METHODS, ENTITY_PATH, METRICS_PATH, PROFILE_PATH,
    READ_METHODS, READY_PATH, REPAIR_METHODS, REPAIR_PATH, ROOT_PATH, SLOW_PATH, STATUS_PATH, check_headers,
    checkpoint, entities, profile,
};
use crate::Problem;
use http::request::Parts;

/// `OPTIONS` of the server as a whole (RFC 9110, section 9.3.7).
const ANY_PATH: &str = "*";

/// How the readiness of the node is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadyForm {
    /// With a body.
    Get,
    /// The headers of that alone.
    Head,
    /// As load balancers probe a server: the status, without a body.
    Options,
}

/// Understands an `OPTIONS` request. Parameters have no meaning in it.
pub(super) fn decode_options(parts: &Parts) -> Result<DecodedRequest, Problem> {
    let path = parts.uri.path();
    if matches!(path, ROOT_PATH | ANY_PATH) {
        check_headers(parts, false)?;
        return Ok(DecodedRequest::Ready(ReadyForm::Options));
    }
    let allow = methods(path).ok_or_else(unknown)?;
    check_headers(parts, false)?;
    Ok(DecodedRequest::Options { allow })
}

/// The methods of a path, as `Allow` lists them. `None`: there is no such path.
fn methods(path: &str) -> Option<&'static str> {
    Some(match path {
        ENTITY_PATH => ENTITY_METHODS,
        ENTITIES_PATH => entities::METHODS,
        CHECKPOINT_PATH => checkpoint::METHODS,
        ROOT_PATH | READY_PATH | STATUS_PATH | METRICS_PATH | SLOW_PATH => READ_METHODS,
        REPAIR_PATH => REPAIR_METHODS,
        PROFILE_PATH => profile::METHODS,
        _ => return None,
    })
}

/// `400`: there is no such path.
pub(super) fn unknown() -> Problem {
    Problem::bad_request(format!(
        "There is no such path. Use {ENTITY_PATH}, {ENTITIES_PATH}, {READY_PATH}, {STATUS_PATH}, {METRICS_PATH}, \
         {SLOW_PATH}, {PROFILE_PATH}, {REPAIR_PATH} or {CHECKPOINT_PATH}."
    ))
}
