//! One attempt to decide a record, with one ballot.

use super::{ChainNode, ChainRecord, ChainRequest, ChainResponse, ChainVote, ProposalBallot};
use crate::quorum::is_majority;
use crate::{LayoutEpoch, NodeIndex};
use std::collections::BTreeSet;

/// The phase of a proposal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase<R> {
    /// Promises are collected, and the vote of the greatest ballot among them.
    Prepares {
        /// The last vote of the greatest ballot.
        greatest: Option<ChainVote<R>>,
    },
    /// Votes are collected.
    Accepts(ChainVote<R>),
    /// The voters have decided this record.
    Decided(R),
}

/// One attempt to decide the child of a decided record, with one ballot.
///
/// A record is taken as decided only through [`decided`](Self::decided). Responses of other ballots
/// and epochs, of nodes that are no voters, and repeated ones are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChainProposal<R> {
    parent: R,
    own: R,
    epoch: LayoutEpoch,
    ballot: ProposalBallot,
    phase: Phase<R>,
    /// Voters that have promised or accepted, as the phase says.
    answered: BTreeSet<NodeIndex>,
}

impl<R: ChainRecord> ChainProposal<R> {
    /// Begins an attempt to decide `own` as the child of `parent`. The ballot has not been used
    /// for this epoch before.
    ///
    /// # Panics
    /// If `own` is no child of `parent`.
    pub fn new(parent: R, own: R, ballot: ProposalBallot) -> Self {
        assert!(own.is_child_of(&parent), "only a child of the parent is proposed");
        let phase = Phase::Prepares { greatest: None };
        let epoch = own.epoch();
        Self { parent, own, epoch, ballot, phase, answered: BTreeSet::new() }
    }

    /// The epoch to be decided.
    pub const fn epoch(&self) -> LayoutEpoch {
        self.epoch
    }

    /// The ballot.
    pub const fn ballot(&self) -> ProposalBallot {
        self.ballot
    }

    /// The voters.
    pub fn voters(&self) -> &[NodeIndex] {
        self.parent.voters()
    }

    /// The decided record of the epoch before.
    pub const fn parent(&self) -> &R {
        &self.parent
    }

    /// The request of the present phase, for each voter that has not answered it. `None` once a
    /// record is decided.
    pub fn request(&self) -> Option<ChainRequest<R>> {
        match &self.phase {
            Phase::Prepares { .. } => Some(ChainRequest::Prepare { epoch: self.epoch, ballot: self.ballot }),
            Phase::Accepts(vote) => Some(ChainRequest::Accept(vote.clone())),
            Phase::Decided(_) => None,
        }
    }

    /// The voters that have not answered the request of the present phase.
    pub fn unanswered(&self) -> impl Iterator<Item = NodeIndex> {
        self.voters().iter().copied().filter(|voter| !self.answered.contains(voter))
    }

    /// The record that the voters have decided.
    pub const fn decided(&self) -> Option<&R> {
        match &self.phase {
            Phase::Decided(record) => Some(record),
            Phase::Prepares { .. } | Phase::Accepts(_) => None,
        }
    }

    /// Handles a response of a voter. Returns whether the phase has changed.
    pub fn handle(&mut self, from: ChainNode, response: &ChainResponse<R>) -> bool {
        let is_of_this =
            |epoch: &LayoutEpoch, ballot: &ProposalBallot| (*epoch, *ballot) == (self.epoch, self.ballot);
        match response {
            ChainResponse::Promised { epoch, ballot, accepted } if is_of_this(epoch, ballot) => {
                self.handle_promise(from, accepted.as_ref())
            }
            ChainResponse::Accepted { epoch, ballot } if is_of_this(epoch, ballot) => self.handle_vote(from),
            _ => false,
        }
    }

    fn handle_promise(&mut self, from: ChainNode, accepted: Option<&ChainVote<R>>) -> bool {
        let is_voter = self.parent.is_voter(from);
        let Phase::Prepares { greatest } = &mut self.phase else { return false };
        if !is_voter || !self.answered.insert(from.slot) {
            return false;
        }
        if accepted.map(|vote| vote.ballot) > greatest.as_ref().map(|vote| vote.ballot) {
            *greatest = accepted.cloned();
        }
        if !self.has_quorum() {
            return false;
        }
        self.answered.clear();
        let Phase::Prepares { greatest } = &mut self.phase else { return false };
        let record = greatest.take().map_or_else(|| self.own.clone(), |vote| vote.record);
        self.phase = Phase::Accepts(ChainVote { ballot: self.ballot, record });
        true
    }

    fn handle_vote(&mut self, from: ChainNode) -> bool {
        let is_voter = self.parent.is_voter(from);
        let Phase::Accepts(vote) = &self.phase else { return false };
        if !is_voter || !self.answered.insert(from.slot) || !self.has_quorum() {
            return false;
        }
        self.phase = Phase::Decided(vote.record.clone());
        true
    }

    /// Whether enough voters have answered for the next phase.
    fn has_quorum(&self) -> bool {
        let (answered, voters) = (self.answered.len(), self.parent.voters().len());
        if self.parent.needs_all_voters() { answered == voters } else { is_majority(answered, voters) }
    }
}
