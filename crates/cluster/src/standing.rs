//! Whether a node's answers to reads count, and what it remembers through restarts.

use crate::{NodeIndex, NodeSet};
use std::collections::BTreeMap;
use stdx::{NodeTag, WallTime};

/// Whether a node's answers to reads count.
///
/// A node that lost its disk has acknowledged writes that it does not hold. It must find that out from its
/// peers, who remember the identity that was lost, before its "I have nothing" counts as an answer. Writes are
/// stored and count in every standing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// The directory is new, and the node does not know yet whether it stands for a lost one. Does not count.
    #[default]
    Unsettled,
    /// It stands for a lost one and is being filled from the other replicas. Does not count.
    Rebuilding,
    /// It holds what it acknowledged. Counts.
    Settled,
}

impl Standing {
    /// Whether answers to reads count.
    pub const fn is_believed(self) -> bool {
        matches!(self, Self::Settled)
    }
}

/// What a node remembers of itself and its peers; stored whole at each change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRecord {
    /// Greater with each change.
    pub revision: u64,
    /// Its standing.
    pub standing: Standing,
    /// The identities of its peers.
    pub peers: BTreeMap<NodeIndex, NodeTag>,
    /// When anti-entropy last went through all keys, by the wall clock.
    pub repaired_at: Option<WallTime>,
    /// Peers that hints were dropped for since: a repair is owed.
    pub repair_owed: NodeSet,
}
