//! The voter of a node.

use super::{ChainNode, ChainRecord, ChainRequest, ChainResponse, ChainVote, ProposalBallot};
use crate::LayoutEpoch;

/// The durable state of an acceptor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AcceptorState<R> {
    /// The newest decided record that the node holds.
    pub decided: R,
    /// The greatest ballot that was promised for the next epoch.
    pub promised: Option<ProposalBallot>,
    /// The last record that was accepted for the next epoch. It is not a decision.
    pub accepted: Option<ChainVote<R>>,
}

impl<R> AcceptorState<R> {
    /// The state of a node that has just adopted this decided record.
    pub const fn of(decided: R) -> Self {
        Self { decided, promised: None, accepted: None }
    }
}

/// Votes on the record after the newest decided record that the node holds.
///
/// Invariant: the host stores a changed state durably before the response leaves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EpochAcceptor<R> {
    me: ChainNode,
    state: AcceptorState<R>,
}

impl<R: ChainRecord> AcceptorState<R> {
    /// Whether the node adopts `record`, which is decided and the child of another epoch 1 than its
    /// own.
    pub(crate) fn adopts_child_of_other_first(&self, record: &R) -> bool {
        let has_voted = self.promised.is_some() || self.accepted.is_some();
        !has_voted && record.follows_other_first(&self.decided)
    }
}

impl<R: ChainRecord> EpochAcceptor<R> {
    /// Creates the acceptor of the node `me` with its durable state.
    pub const fn new(me: ChainNode, state: AcceptorState<R>) -> Self {
        Self { me, state }
    }

    /// The state, as it has to be durable before the last response leaves.
    pub const fn state(&self) -> &AcceptorState<R> {
        &self.state
    }

    /// Handles a request. If the state has changed, the caller stores it durably before it sends
    /// the response. If it cannot, the process must end, or must not send this and any later
    /// response before it could.
    pub fn handle(&mut self, request: ChainRequest<R>) -> ChainResponse<R> {
        match request {
            ChainRequest::Prepare { epoch, ballot } => {
                self.no_vote_for(epoch).unwrap_or_else(|| self.promise(epoch, ballot))
            }
            ChainRequest::Accept(vote) => {
                let epoch = vote.record.epoch();
                self.no_vote_for(epoch).unwrap_or_else(|| self.accept(epoch, vote))
            }
            ChainRequest::Learn(record) => self.learn(record),
        }
    }

    /// Handles a request of which the node may take note, but on which it must not vote: it does
    /// not know all of its earlier votes. A vote is refused; otherwise as
    /// [`handle`](Self::handle).
    pub fn handle_without_vote(&mut self, request: ChainRequest<R>) -> ChainResponse<R> {
        let epoch = match request {
            ChainRequest::Prepare { epoch, .. } => epoch,
            ChainRequest::Accept(vote) => vote.record.epoch(),
            ChainRequest::Learn(record) => return self.learn(record),
        };
        let refused = ChainResponse::Refused { epoch: self.state.decided.epoch() };
        self.no_vote_for(epoch).unwrap_or(refused)
    }

    /// The response of an acceptor that does not vote for this epoch.
    fn no_vote_for(&self, epoch: LayoutEpoch) -> Option<ChainResponse<R>> {
        let held = self.state.decided.epoch();
        if epoch <= held {
            Some(ChainResponse::Holds(self.state.decided.clone()))
        } else if Some(epoch) != held.next() {
            Some(ChainResponse::IsBehind { epoch: held })
        } else if !self.state.decided.is_voter(self.me) {
            Some(ChainResponse::Refused { epoch: held })
        } else {
            None
        }
    }

    fn promise(&mut self, epoch: LayoutEpoch, ballot: ProposalBallot) -> ChainResponse<R> {
        if let Some(promised) = self.state.promised.filter(|promised| *promised > ballot) {
            return ChainResponse::Rejected { epoch, ballot, promised };
        }
        self.state.promised = Some(ballot);
        ChainResponse::Promised { epoch, ballot, accepted: self.state.accepted.clone() }
    }

    fn accept(&mut self, epoch: LayoutEpoch, vote: ChainVote<R>) -> ChainResponse<R> {
        let ballot = vote.ballot;
        if let Some(promised) = self.state.promised.filter(|promised| *promised > ballot) {
            return ChainResponse::Rejected { epoch, ballot, promised };
        }
        if !vote.record.is_child_of(&self.state.decided) {
            return ChainResponse::Refused { epoch: self.state.decided.epoch() };
        }
        self.state.promised = Some(ballot);
        self.state.accepted = Some(vote);
        ChainResponse::Accepted { epoch, ballot }
    }

    /// Adopts a decided record. A record of the next epoch has to be a child of the one held.
    /// Records between the two may be missing, because a decided record is complete by itself. The
    /// child of another epoch 1 is adopted if the node has given no vote.
    fn learn(&mut self, record: R) -> ChainResponse<R> {
        let decided = &self.state.decided;
        let (held, epoch) = (decided.epoch(), record.epoch());
        if epoch > held {
            let follows =
                record.is_later_than(decided) && (Some(epoch) != held.next() || record.is_child_of(decided));
            if !follows && !self.state.adopts_child_of_other_first(&record) {
                return ChainResponse::Refused { epoch: held };
            }
            self.state = AcceptorState::of(record);
        }
        ChainResponse::Holds(self.state.decided.clone())
    }
}
