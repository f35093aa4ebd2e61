//! Repeated proposals, until a record is decided.

use super::{ChainNode, ChainProposal, ChainRecord, ChainRequest, ChainResponse, ProposalBallot};
use crate::{Incarnation, NodeIndex};
use std::collections::VecDeque;
use std::time::Duration;
use stdx::{Instant, NodeTag, Rng};

/// Times of a proposer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProposerPace {
    /// Time that voters have to answer, after which a proposal is given up.
    pub response_timeout: Duration,
    /// Upper bound of the random delay before the second proposal. It doubles with each further
    /// one.
    pub delay_first: Duration,
    /// Upper bound of the random delay before any proposal.
    pub delay_max: Duration,
}

impl Default for ProposerPace {
    fn default() -> Self {
        Self {
            response_timeout: Duration::from_millis(300),
            delay_first: Duration::from_millis(25),
            delay_max: Duration::from_millis(400),
        }
    }
}

/// The end of a proposer's work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainOutcome<R> {
    /// This record is decided. It is the proposer's own, or that of another proposer.
    Decided(R),
    /// A node holds this decided record, which is later than the one to be decided here.
    Overtaken(R),
}

/// Proposes a record until one is decided for its epoch.
///
/// The caller sends each [`poll_request`](Self::poll_request), passes each response to
/// [`handle`](Self::handle), and calls [`handle_timeout`](Self::handle_timeout) when
/// [`poll_timeout`](Self::poll_timeout) has passed. Requests to the node itself are requests like
/// any other. After an [outcome](Self::outcome) the proposer does nothing more; the caller
/// adopts and spreads the record.
#[derive(Debug)]
pub struct ChainProposer<R> {
    me: NodeTag,
    incarnation: Incarnation,
    own: R,
    pace: ProposerPace,
    rng: Rng,
    proposal: ChainProposal<R>,
    /// The greatest round that was used or heard of.
    round_max: u64,
    /// Number of proposals begun.
    proposals: u32,
    /// Whether the present proposal can still succeed.
    is_active: bool,
    /// End of the present proposal if it is active, else the start of the next one.
    wake_at: Instant,
    requests: VecDeque<(NodeIndex, ChainRequest<R>)>,
    outcome: Option<ChainOutcome<R>>,
}

impl<R: ChainRecord> ChainProposer<R> {
    /// Begins to propose `own` as the child of the decided record `parent`. Its ballots have rounds
    /// greater than `after_round`: 0, or the [`round_max`](Self::round_max) of the proposer of this
    /// epoch that this process has ended before.
    ///
    /// # Panics
    /// If `own` is no child of `parent`.
    pub fn new(
        now: Instant,
        (me, incarnation): (NodeTag, Incarnation),
        (parent, own): (R, R),
        after_round: u64,
        pace: ProposerPace,
        rng: Rng,
    ) -> Self {
        let ballot = ProposalBallot { round: after_round + 1, proposer: me, incarnation };
        let proposal = ChainProposal::new(parent, own.clone(), ballot);
        let mut proposer = Self {
            me,
            incarnation,
            own,
            pace,
            rng,
            proposal,
            round_max: after_round,
            proposals: 0,
            is_active: false,
            wake_at: now,
            requests: VecDeque::new(),
            outcome: None,
        };
        proposer.propose(now);
        proposer
    }

    /// The end of the work, if it is reached.
    pub const fn outcome(&self) -> Option<&ChainOutcome<R>> {
        self.outcome.as_ref()
    }

    /// The greatest round that was used or heard of for this epoch.
    pub const fn round_max(&self) -> u64 {
        self.round_max
    }

    /// Number of proposals begun, for logs.
    pub const fn proposals(&self) -> u32 {
        self.proposals
    }

    /// The next request to be sent, and its receiver.
    pub fn poll_request(&mut self) -> Option<(NodeIndex, ChainRequest<R>)> {
        self.requests.pop_front()
    }

    /// The time of the next [`handle_timeout`](Self::handle_timeout).
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.outcome.is_none().then_some(self.wake_at)
    }

    /// Handles a response of the node `from`.
    pub fn handle(&mut self, now: Instant, from: ChainNode, response: &ChainResponse<R>) {
        if self.outcome.is_some() {
            return;
        }
        match response {
            ChainResponse::Holds(record) => self.handle_record(from, record),
            ChainResponse::IsBehind { epoch } if *epoch < self.proposal.parent().epoch() => {
                self.requests.push_back((from.slot, ChainRequest::Learn(self.proposal.parent().clone())));
            }
            ChainResponse::Rejected { epoch, ballot, promised } if *epoch == self.proposal.epoch() => {
                self.round_max = self.round_max.max(promised.round);
                if self.is_active && *ballot == self.proposal.ballot() {
                    self.give_up(now);
                }
            }
            ChainResponse::Promised { .. } | ChainResponse::Accepted { .. } => {
                if self.is_active && self.proposal.handle(from, response) {
                    self.advance();
                }
            }
            ChainResponse::IsBehind { .. }
            | ChainResponse::Rejected { .. }
            | ChainResponse::Refused { .. } => {}
        }
    }

    /// Gives up a proposal that was not answered in time, or begins the next one.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.outcome.is_some() || now < self.wake_at {
            return;
        }
        if self.is_active {
            self.give_up(now);
        } else {
            self.propose(now);
        }
    }

    /// Begins a proposal with a ballot greater than all that were heard of.
    fn propose(&mut self, now: Instant) {
        self.round_max += 1;
        self.proposals += 1;
        let ballot =
            ProposalBallot { round: self.round_max, proposer: self.me, incarnation: self.incarnation };
        self.proposal = ChainProposal::new(self.proposal.parent().clone(), self.own.clone(), ballot);
        self.is_active = true;
        self.wake_at = now + self.pace.response_timeout;
        self.request_all();
    }

    /// Ends a proposal that cannot succeed. The next one begins after a random delay.
    fn give_up(&mut self, now: Instant) {
        self.is_active = false;
        self.requests.clear();
        let doubled = self.pace.delay_first.saturating_mul(1 << (self.proposals - 1).min(16));
        let delay_max = doubled.min(self.pace.delay_max).max(Duration::from_micros(1));
        self.wake_at = now + Duration::from_micros(self.rng.below(delay_max.as_micros() as u64));
    }

    fn advance(&mut self) {
        if let Some(record) = self.proposal.decided() {
            self.end(ChainOutcome::Decided(record.clone()));
        } else {
            self.request_all();
        }
    }

    fn request_all(&mut self) {
        if let Some(request) = self.proposal.request() {
            self.requests.extend(self.proposal.unanswered().map(|voter| (voter, request.clone())));
        }
    }

    /// A node holds this decided record: it is newer than the parent, or the node has just learned
    /// the parent and can vote.
    fn handle_record(&mut self, from: ChainNode, record: &R) {
        let parent = self.proposal.parent();
        if record.is_later_than(parent) {
            let is_next = record.epoch() == self.proposal.epoch();
            let outcome = if is_next { ChainOutcome::Decided } else { ChainOutcome::Overtaken };
            self.end(outcome(record.clone()));
        } else if record == parent && self.is_active && self.proposal.unanswered().any(|it| it == from.slot) {
            self.requests.extend(self.proposal.request().map(|request| (from.slot, request)));
        }
    }

    fn end(&mut self, outcome: ChainOutcome<R>) {
        self.requests.clear();
        self.outcome = Some(outcome);
    }
}
