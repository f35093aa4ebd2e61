//! Reasons of a refusal that a dialer interprets.
//!
//! They are part of the wire format: a dialer compares the whole text, and nodes of different
//! releases exchange them. All other reasons are text for the operator.

/// The acceptor refuses the dialer for the moment: it has a newer link from this peer, or has not
/// registered it yet. The dialer dials again.
pub const NOT_NOW: &str = "not now; it dials again";

/// The dialer identifies as a node, but another process answers at that node's address.
pub const COPY: &str = "another process answers at the address of this node, and only that one is admitted: stop one of the \
                    two; if this one runs on a copy of a data directory, give it an empty --data and an own --self-url";

/// The dialer holds a newer layout record than the acceptor, in whose own one the dialer is no
/// member. The dialer dials again.
pub const NOT_YET: &str = "the layout record of the dialer is not known here yet; it dials again";

/// The layout record of the acceptor refuses the dialer for ever. The reason goes on with a proof,
/// see [`RemovalProof`](super::RemovalProof). The dialer ends.
pub const REMOVED: &str =
    "the dialer was removed from the cluster, replaced or declared dead, and is refused for ever; proof ";

/// Begin of the reason for which a member refuses a joining node for the moment. The node asks
/// again.
pub const JOIN_LATER: &str = "not now: ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_the_wire_format_has_the_same_texts() {
        let page = include_str!("../../../../docs/wire-format.md");
        for reason in [NOT_NOW, COPY, NOT_YET, REMOVED.trim_end()] {
            assert!(page.contains(&format!("`{reason}`")), "{reason}");
        }
    }
}
