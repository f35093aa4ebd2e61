//! Plain requests to entities, by what their method and query say.

use super::{ENTITY_PATH, Entity, Rules, Verb, entity_of};
use crate::PlainRequest;

/// Understands a plain request. `None`: it is not for an entity, or not good; [`decode_head`](super::decode_head) says
/// what it is.
pub fn decode_plain(request: &PlainRequest<'_>, rules: &Rules) -> Option<Entity> {
    let verb = match request.method {
        "GET" => Verb::Get,
        "HEAD" => Verb::Head,
        "PUT" => Verb::Put,
        "DELETE" => Verb::Delete,
        _ => return None,
    };
    // Only the body of a PUT has a meaning, and who sends another is told by whoever looks closer.
    let body_max = if verb == Verb::Put { rules.value_bytes_max } else { 0 };
    let query = request.target.strip_prefix(ENTITY_PATH)?.strip_prefix('?')?;
    if request.body.len() > body_max { None } else { entity_of(verb, query, rules).ok() }
}
