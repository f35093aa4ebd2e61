//! Sentences about an address that a node states for itself and at which it was not reached.
//!
//! The layout record takes the address of a node once a peer has reached the node there. So a wrong
//! `--self-url` has no effect but a warning, of the node and of each peer that has tried it.

/// The sentence of the node that states `stated`, while the layout record has it at `recorded`.
pub(crate) fn of_own(stated: &str, recorded: &str) -> String {
    format!(
        "This node states the address {stated} (--self-url, or --listen if --cluster lists it), and the layout record keeps \
         {recorded}. The record takes an address once a peer has reached the node there and most voters are in reach. veche \
         status of the other nodes says what they find at {stated}. Correct --self-url, or leave it out if the node has not \
         moved."
    )
}

/// The sentence of a peer of the node at `recorded`, which could not open a link at `stated`.
pub(crate) fn of_peer(recorded: &str, stated: &str, reason: &str) -> String {
    format!(
        "{recorded} states that its address is {stated}, and no link to it opens there: {reason}. The layout record keeps \
         {recorded}. Correct --self-url of that node, or leave it out if the node has not moved; if the address is right, \
         open the way to it and restart that node."
    )
}
