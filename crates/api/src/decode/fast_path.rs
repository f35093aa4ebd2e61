//! Plain requests to entities, by what their method and query say.

use super::{ENTITY_PATH, EntityMethod, EntityRequest, RequestRules, entity_of};
use crate::FastPathRequest;

/// Understands a plain request. `None`: it is not for an entity, or not good; [`decode_head`](super::decode_head) says
/// what it is.
pub fn decode_fast_path(request: &FastPathRequest<'_>, rules: &RequestRules) -> Option<EntityRequest> {
    let method = match request.method {
        "GET" => EntityMethod::Get,
        "HEAD" => EntityMethod::Head,
        "PUT" => EntityMethod::Put,
        "DELETE" => EntityMethod::Delete,
        _ => return None,
    };
    // Only the body of a PUT has a meaning, and who sends another is told by whoever looks closer.
    let body_max = if method == EntityMethod::Put { rules.value_bytes_max } else { 0 };
    let query = request.target.strip_prefix(ENTITY_PATH)?.strip_prefix('?')?;
    if request.body.len() > body_max { None } else { entity_of(method, query, rules).ok() }
}
