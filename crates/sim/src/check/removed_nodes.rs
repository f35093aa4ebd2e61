//! Invariant: a node that has learned that it was removed, replaced or declared dead replies to no
//! client any more. Once there is no fault, it has learned it if a member answers where it expects
//! one.

use super::InvariantViolation;
use crate::network::Endpoint;

/// Checks a process that replies to a client. `has_learned`: it knows that its node was removed.
pub fn check(endpoint: Endpoint, has_learned: bool) -> Result<(), InvariantViolation> {
    match has_learned {
        false => Ok(()),
        true => {
            let detail = format!("{endpoint:?} replies to a client, and its node was removed");
            Err(InvariantViolation::new("removed_nodes", detail))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::{NodeIndex, Requester};

    #[test]
    fn a_reply_of_a_removed_node_is_caught() {
        let endpoint = Endpoint { node: NodeIndex(1), generation: 2, requester: Requester::Node };
        assert!(check(endpoint, false).is_ok());
        assert!(check(endpoint, true).is_err());
    }
}
