//! Paths and their methods; `OPTIONS`.

use super::{
    CHECKPOINT_PATH, DecodedRequest, ENTITIES_PATH, ENTITY_METHODS, ENTITY_PATH, LAYOUT_PATH, METRICS_PATH,
    PROFILE_PATH, READ_METHODS, READY_PATH, REPAIR_METHODS, REPAIR_PATH, ROOT_PATH, SLOW_PATH, STATUS_PATH,
    check_headers, checkpoint, entities, layout, profile,
};
use crate::Problem;
use http::request::Parts;

/// Target of an `OPTIONS` request about the server as a whole (RFC 9110, section 9.3.7).
const ANY_PATH: &str = "*";

/// Form of a readiness request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadyForm {
    /// `GET`: the response has a body.
    Get,
    /// `HEAD`: the response has the headers of `GET` only.
    Head,
    /// `OPTIONS`, with which load balancers probe a server: the response has the status of `GET`,
    /// and no body.
    Options,
}

/// Decodes an `OPTIONS` request. Its parameters have no meaning.
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

/// Methods of a path, as `Allow` lists them. `None` if the path is unknown.
fn methods(path: &str) -> Option<&'static str> {
    Some(match path {
        ENTITY_PATH => ENTITY_METHODS,
        ENTITIES_PATH => entities::METHODS,
        CHECKPOINT_PATH => checkpoint::METHODS,
        ROOT_PATH | READY_PATH | STATUS_PATH | METRICS_PATH | SLOW_PATH => READ_METHODS,
        LAYOUT_PATH => layout::METHODS,
        REPAIR_PATH => REPAIR_METHODS,
        PROFILE_PATH => profile::METHODS,
        _ => return None,
    })
}

/// `400`: the path is unknown.
pub(super) fn unknown() -> Problem {
    Problem::bad_request(format!(
        "There is no such path. Use {ENTITY_PATH}, {ENTITIES_PATH}, {READY_PATH}, {STATUS_PATH}, {LAYOUT_PATH}, \
         {METRICS_PATH}, {SLOW_PATH}, {PROFILE_PATH}, {REPAIR_PATH} or {CHECKPOINT_PATH}."
    ))
}
