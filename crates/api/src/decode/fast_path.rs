//! Decoding of fast-path requests for entities, from method and query alone.

use super::{ENTITY_PATH, EntityMethod, EntityRequest, RequestRules, entity_of};
use crate::FastPathRequest;

/// Decodes a fast-path request. Returns `None` if it is not a valid request for an entity.
/// [`decode_head`](super::decode_head) decodes or refuses it then.
pub fn decode_fast_path(request: &FastPathRequest<'_>, rules: &RequestRules) -> Option<EntityRequest> {
    let method = match request.method {
        "GET" => EntityMethod::Get,
        "HEAD" => EntityMethod::Head,
        "PUT" => EntityMethod::Put,
        "DELETE" => EntityMethod::Delete,
        _ => return None,
    };
    // Only the body of a `PUT` has a meaning. A client that sends another body gets its answer from
    // the slow path.
    let body_max = if method == EntityMethod::Put { rules.value_bytes_max } else { 0 };
    let query = request.target.strip_prefix(ENTITY_PATH)?.strip_prefix('?')?;
    if request.body.len() > body_max {
        return None;
    }
    // Few requests ask for the nodes of a key: the slow path names them.
    entity_of(method, query, rules).ok().filter(|entity| !entity.locate)
}
