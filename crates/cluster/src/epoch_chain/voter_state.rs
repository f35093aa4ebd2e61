//! The durable state of a node as a voter, and its right to vote.

use super::{AcceptorState, ChainNode, ChainRecord};
use crate::LayoutRecord;
use std::sync::Arc;

/// The votes that a data directory knows to have been given.
///
/// A voter that has forgotten a vote could give another one, and a second record could be decided
/// for an epoch. So a node votes only where its directory knows all votes that count as its own, or
/// where every record needs all voters.
///
/// A lesser history is complete in more respects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VoteHistory {
    /// Every vote by the id of the directory and by its slot.
    Complete,
    /// Every vote by the id of the directory. An earlier directory of the same slot may have voted:
    /// its disk was lost.
    OfThisId,
    /// Not even every vote by the id of the directory: the directory is an older state of itself,
    /// or its votes were lost.
    Incomplete,
}

impl VoteHistory {
    /// Whether the node `me` may vote on the record after `decided`. If that needs all voters, each
    /// of them may have lost its votes. Otherwise the node has to know all votes by its id.
    pub fn permits_votes(self, me: ChainNode, decided: &LayoutRecord) -> bool {
        let is_known = match self {
            Self::Complete => true,
            Self::OfThisId => decided.names(me),
            Self::Incomplete => false,
        };
        is_known || decided.needs_all_voters()
    }
}

impl LayoutRecord {
    /// Whether the record names the id of this node in its slot.
    pub(crate) fn names(&self, node: ChainNode) -> bool {
        self.member(node.slot).is_some_and(|member| member.node_id == Some(node.id))
    }
}

/// The durable state of a node in the agreement on layout records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoterState {
    /// The votes that the directory knows.
    pub history: VoteHistory,
    /// The newest decided record of the node, and its votes on the next one.
    pub acceptor: AcceptorState<Arc<LayoutRecord>>,
}
