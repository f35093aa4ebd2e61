//! Repeated proposals, until a record is decided.

use super::{ChainNode, ChainProposal, ChainRecord, ChainRequest, ChainResponse, ProposalBallot};
use crate::{Incarnation, NodeIndex};
use std::collections::VecDeque;
use std::time::Duration;
use stdx::{Instant, NodeTag, Rng};

/// Times of a proposer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProposerPace {
    /// Time that voters have to answer in each phase of the first proposal, after which it is given
    /// up. It doubles with each further proposal. Requests without an answer are repeated at this
    /// interval.
    pub response_timeout: Duration,
    /// Upper bound of the time that voters have to answer, without its random part of at most a
    /// quarter.
    pub response_timeout_max: Duration,
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
            response_timeout_max: Duration::from_millis(4_800),
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
    /// Time that voters have to answer in each phase of the present proposal.
    response_timeout: Duration,
    /// End of the present phase if the proposal is active.
    phase_end_at: Instant,
    /// The next repetition of requests or the end of the phase if the proposal is active, else the
    /// start of the next proposal.
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
            response_timeout: pace.response_timeout,
            phase_end_at: now,
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
                    self.advance(now);
                }
            }
            ChainResponse::IsBehind { .. }
            | ChainResponse::Rejected { .. }
            | ChainResponse::Refused { .. } => {}
        }
    }

    /// Notes that a new process answers in the slot of a voter, whose earlier answers may be those
    /// of a lost disk. Where all voters are needed, the present proposal is given up.
    pub fn handle_new_process(&mut self, now: Instant) {
        if self.outcome.is_none() && self.is_active && self.proposal.parent().needs_all_voters() {
            self.give_up(now);
        }
    }

    /// Repeats requests that were not answered, gives up a proposal whose phase was not answered in
    /// time, or begins the next proposal.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.outcome.is_some() || now < self.wake_at {
            return;
        }
        if !self.is_active {
            self.propose(now);
        } else if now < self.phase_end_at {
            self.request_all(now);
        } else {
            self.give_up(now);
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
        self.response_timeout = self.next_response_timeout();
        self.begin_phase(now);
    }

    /// The time for responses of the proposal that begins. A slow majority of voters answers a
    /// later one in time. The random part keeps two proposers from giving up together.
    fn next_response_timeout(&mut self) -> Duration {
        let ProposerPace { response_timeout, response_timeout_max, .. } = self.pace;
        if self.proposals == 1 {
            return response_timeout;
        }
        let doubled = response_timeout.saturating_mul(1 << (self.proposals - 1).min(16));
        let grown = doubled.min(response_timeout_max.max(response_timeout));
        let random_max = (grown / 4).max(Duration::from_micros(1));
        grown + Duration::from_micros(self.rng.below(random_max.as_micros() as u64))
    }

    fn begin_phase(&mut self, now: Instant) {
        self.phase_end_at = now + self.response_timeout;
        self.request_all(now);
    }

    /// Ends a proposal that cannot succeed. The next one begins after a random delay.
    fn give_up(&mut self, now: Instant) {
        self.is_active = false;
        self.requests.clear();
        let doubled = self.pace.delay_first.saturating_mul(1 << (self.proposals - 1).min(16));
        let delay_max = doubled.min(self.pace.delay_max).max(Duration::from_micros(1));
        self.wake_at = now + Duration::from_micros(self.rng.below(delay_max.as_micros() as u64));
    }

    fn advance(&mut self, now: Instant) {
        if let Some(record) = self.proposal.decided() {
            self.end(ChainOutcome::Decided(record.clone()));
        } else {
            self.begin_phase(now);
        }
    }

    /// Sends the request of the present phase to each voter that has not answered it.
    fn request_all(&mut self, now: Instant) {
        self.wake_at = self.phase_end_at.min(now + self.pace.response_timeout);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch_chain::ChainVote;
    use crate::{ClusterOrigin, LayoutRecord};
    use std::sync::Arc;

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn first() -> LayoutRecord {
        let nodes = ["http://a:1", "http://b:1", "http://c:1"].map(String::from).to_vec();
        let origin =
            ClusterOrigin { nodes, partitions: 4, hash_version: 1, default_from: 3, tag: NodeTag(7) };
        LayoutRecord::first(origin).expect("three nodes are a cluster")
    }

    fn named() -> LayoutRecord {
        let mut record = first();
        for (member, tag) in record.members.iter_mut().zip(1..) {
            member.node_id = Some(NodeTag(tag));
        }
        record
    }

    fn proposer(seed: u64) -> ChainProposer<Arc<LayoutRecord>> {
        proposer_of(first(), seed)
    }

    fn proposer_of(parent: LayoutRecord, seed: u64) -> ChainProposer<Arc<LayoutRecord>> {
        let own = LayoutRecord {
            epoch: parent.epoch.next().expect("small"),
            parent: parent.hash(),
            ..parent.clone()
        };
        let me = (NodeTag(1), Incarnation(1));
        let records = (Arc::new(parent), Arc::new(own));
        ChainProposer::new(Instant::ZERO, me, records, 0, ProposerPace::default(), Rng::new(seed))
    }

    fn answer(request: &ChainRequest<Arc<LayoutRecord>>) -> ChainResponse<Arc<LayoutRecord>> {
        match request {
            ChainRequest::Prepare { epoch, ballot } => {
                ChainResponse::Promised { epoch: *epoch, ballot: *ballot, accepted: None }
            }
            ChainRequest::Accept(ChainVote { ballot, record }) => {
                ChainResponse::Accepted { epoch: record.epoch, ballot: *ballot }
            }
            ChainRequest::Learn(record) => ChainResponse::Holds(Arc::clone(record)),
        }
    }

    /// Number of proposals until a record is decided by voters that answer after `latency`.
    fn proposals_until_decided(seed: u64, latency: Duration) -> Option<u32> {
        let mut proposer = proposer(seed);
        let mut in_flight: VecDeque<(Instant, NodeIndex, _)> = VecDeque::new();
        for millisecond in 0..60_000 {
            let now = Instant::ZERO + millisecond * MILLISECOND;
            while in_flight.front().is_some_and(|(at, ..)| *at <= now) {
                let (_, slot, response) = in_flight.pop_front().expect("it was just seen");
                proposer.handle(now, ChainNode { slot, id: NodeTag(u64::from(slot.0)) }, &response);
            }
            proposer.handle_timeout(now);
            while let Some((slot, request)) = proposer.poll_request() {
                in_flight.push_back((now + latency, slot, answer(&request)));
            }
            if proposer.outcome().is_some() {
                return Some(proposer.proposals());
            }
        }
        None
    }

    #[test]
    fn a_new_process_ends_a_proposal_where_all_voters_are_needed() {
        for needs_all in [true, false] {
            let mut proposer = proposer_of(if needs_all { first() } else { named() }, 1);
            let slots: Vec<_> = std::iter::from_fn(|| proposer.poll_request()).collect();
            let (slot, request) = &slots[0];
            let from = ChainNode { slot: *slot, id: NodeTag(u64::from(slot.0) + 1) };
            proposer.handle(Instant::ZERO, from, &answer(request));
            proposer.handle_new_process(Instant::ZERO);
            assert_eq!(proposer.is_active, !needs_all);
            let later = Instant::ZERO + Duration::from_secs(1);
            proposer.handle_timeout(later);
            let repeated = std::iter::from_fn(|| proposer.poll_request()).count();
            assert_eq!(
                repeated,
                if needs_all { 3 } else { 0 },
                "the answer does not count for the next ballot"
            );
        }
    }

    #[test]
    fn each_phase_has_the_whole_time_for_responses() {
        let latency = ProposerPace::default().response_timeout - 20 * MILLISECOND;
        assert_eq!(proposals_until_decided(1, latency), Some(1));
    }

    #[test]
    fn the_time_for_responses_grows_with_each_proposal_that_was_given_up() {
        for seed in 0..20 {
            for latency in [400, 1_000, 4_000] {
                let proposals = proposals_until_decided(seed, latency * MILLISECOND);
                assert!(proposals.is_some_and(|count| count > 1), "{latency} ms: {proposals:?}");
            }
        }
    }
}
