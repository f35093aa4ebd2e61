//! The node as a voter: its answers wait until its state is durable.
//!
//! **Invariant.** A response leaves when the state with which it was made, or a later one, is
//! durable. This includes responses that did not change the state: a repeated request is answered
//! like the first one, whose change may not be durable yet.
//!
//! A record of a feature level that the node does not carry out is neither accepted nor learned.

use crate::{
    ChainNode, ChainRequest, ChainResponse, EpochAcceptor, LayoutRecord, LayoutRecordError, LinkId,
    MessageId, VoteHistory, VoterState,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use stdx::Instant;

/// Most responses that wait until the state is durable. A peer has one or two requests in flight.
const WAITING_MAX: usize = 256;
/// Time between a failure to store the state and the next attempt.
const RETRY_AFTER: Duration = Duration::from_millis(250);

/// Too many responses wait: the request was not handled.
#[derive(Debug)]
pub(super) struct TooManyWaiting;

/// The sender of a request to the voter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChainRequester {
    /// The proposer of this node.
    Own,
    /// A peer, which is answered over this link.
    Peer { link: LinkId, id: MessageId },
}

/// The acceptor of the node, with its durable state.
#[derive(Debug)]
pub(super) struct DurableVoter {
    acceptor: EpochAcceptor<Arc<LayoutRecord>>,
    history: VoteHistory,
    /// Greatest feature level of the records that the node carries out.
    level_max: u32,
    /// Number of the present state; it grows with each change.
    revision: u64,
    /// Number of the last durable state, and the decided record in it.
    durable: (u64, Arc<LayoutRecord>),
    /// The state that is being stored.
    in_flight: Option<(u64, Arc<LayoutRecord>)>,
    retry_at: Instant,
    /// Number of the first state with the present history.
    history_revision: u64,
    /// Responses, each with the number of the state that must be durable.
    waiting: VecDeque<(u64, ChainRequester, ChainResponse<Arc<LayoutRecord>>)>,
}

impl DurableVoter {
    pub(super) fn new(me: ChainNode, state: VoterState, level_max: u32, now: Instant) -> Self {
        let decided = Arc::clone(&state.acceptor.decided);
        Self {
            acceptor: EpochAcceptor::new(me, state.acceptor),
            history: state.history,
            level_max,
            revision: 0,
            durable: (0, decided),
            in_flight: None,
            retry_at: now,
            history_revision: 0,
            waiting: VecDeque::new(),
        }
    }

    /// The newest decided record, which need not be durable.
    pub(super) const fn decided(&self) -> &Arc<LayoutRecord> {
        &self.acceptor.state().decided
    }

    /// Checks that the node carries out the records of this feature level.
    ///
    /// # Errors
    /// [`LayoutRecordError::FeatureLevel`].
    pub(super) fn check_supported(&self, record: &LayoutRecord) -> Result<(), LayoutRecordError> {
        record.check_supported(self.level_max)
    }

    /// Whether the node adopts this decided record although it holds another epoch 1 than the
    /// parent.
    pub(super) fn adopts_child_of_other_first(&self, record: &Arc<LayoutRecord>) -> bool {
        self.acceptor.state().adopts_child_of_other_first(record)
    }

    /// The newest decided record that is durable.
    pub(super) const fn durable_decided(&self) -> &Arc<LayoutRecord> {
        &self.durable.1
    }

    pub(super) const fn history(&self) -> VoteHistory {
        self.history
    }

    /// Lowers the history to `history`, if that is less complete.
    pub(super) fn restrict(&mut self, history: VoteHistory) {
        if history > self.history {
            self.history = history;
            self.revision += 1;
            self.history_revision = self.revision;
        }
    }

    /// Whether the present history is not durable yet.
    pub(super) const fn is_history_pending(&self) -> bool {
        self.history_revision > self.durable.0
    }

    /// Handles a request, whose response leaves once the state is durable.
    pub(super) fn handle(
        &mut self,
        from: ChainRequester,
        request: ChainRequest<Arc<LayoutRecord>>,
        can_vote: bool,
    ) -> Result<(), TooManyWaiting> {
        if self.waiting.len() >= WAITING_MAX {
            return Err(TooManyWaiting);
        }
        let response = self.apply(request, can_vote);
        self.waiting.push_back((self.revision, from, response));
        Ok(())
    }

    /// Learns that a record is decided, unless it does not follow the one that the node holds.
    pub(super) fn learn(&mut self, record: Arc<LayoutRecord>) {
        self.apply(ChainRequest::Learn(record), false);
    }

    fn apply(
        &mut self,
        request: ChainRequest<Arc<LayoutRecord>>,
        can_vote: bool,
    ) -> ChainResponse<Arc<LayoutRecord>> {
        let held = self.decided().epoch;
        let is_supported = |record: &Arc<LayoutRecord>| self.check_supported(record).is_ok();
        if request.record().is_some_and(|record| record.epoch > held && !is_supported(record)) {
            return ChainResponse::Refused { epoch: held };
        }
        let before = self.acceptor.state().clone();
        let response = match can_vote {
            true => self.acceptor.handle(request),
            false => self.acceptor.handle_without_vote(request),
        };
        self.revision += u64::from(*self.acceptor.state() != before);
        response
    }

    /// The next state to be stored, with its number.
    pub(super) fn poll_persist(&mut self, now: Instant) -> Option<(u64, VoterState)> {
        if self.due().is_none_or(|due| due > now) {
            return None;
        }
        self.in_flight = Some((self.revision, Arc::clone(self.decided())));
        let state = VoterState { history: self.history, acceptor: self.acceptor.state().clone() };
        Some((self.revision, state))
    }

    pub(super) fn handle_persisted(&mut self, now: Instant, revision: u64, is_durable: bool) {
        let Some(stored) = self.in_flight.take_if(|(stored, _)| *stored == revision) else { return };
        match is_durable {
            true => self.durable = stored,
            false => self.retry_at = now + RETRY_AFTER,
        }
    }

    /// The next response that may leave.
    pub(super) fn poll_response(&mut self) -> Option<(ChainRequester, ChainResponse<Arc<LayoutRecord>>)> {
        let (revision, ..) = self.waiting.front()?;
        if *revision > self.durable.0 {
            return None;
        }
        self.waiting.pop_front().map(|(_, to, response)| (to, response))
    }

    /// Time at which [`DurableVoter::poll_persist`] is due.
    pub(super) fn due(&self) -> Option<Instant> {
        (self.in_flight.is_none() && self.revision > self.durable.0).then_some(self.retry_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        AcceptorState, ChainVote, ClusterOrigin, FEATURE_LEVEL_NAMED, FEATURE_LEVEL_PLANS, Incarnation,
        NodeIndex, ProposalBallot,
    };
    use stdx::NodeTag;

    fn voter() -> DurableVoter {
        let nodes = ["http://a:1", "http://b:1", "http://c:1"].map(String::from).to_vec();
        let origin =
            ClusterOrigin { nodes, partitions: 4, hash_version: 1, default_from: 3, tag: NodeTag(7) };
        let record = LayoutRecord::first(origin).expect("three nodes are a cluster");
        let acceptor = AcceptorState::of(Arc::new(record));
        let state = VoterState { history: VoteHistory::Complete, acceptor };
        let me = ChainNode { slot: NodeIndex(0), id: NodeTag(7) };
        DurableVoter::new(me, state, FEATURE_LEVEL_NAMED, Instant::ZERO)
    }

    #[test]
    fn a_record_of_a_level_that_the_node_does_not_carry_out_is_neither_accepted_nor_learned() {
        for (level, is_taken) in [(FEATURE_LEVEL_NAMED, true), (FEATURE_LEVEL_PLANS, false)] {
            let ballot = ProposalBallot { round: 1, proposer: NodeTag(8), incarnation: Incarnation(9) };
            let mut voter = voter();
            let mut record = voter.decided().next().expect("a small epoch");
            record.feature_level = level;
            let record = Arc::new(record);
            let vote = ChainVote { ballot, record: Arc::clone(&record) };
            let answer = voter.apply(ChainRequest::Accept(vote), true);
            assert_eq!(matches!(answer, ChainResponse::Accepted { .. }), is_taken, "level {level}");
            voter.learn(Arc::clone(&record));
            assert_eq!(*voter.decided() == record, is_taken, "level {level}");
        }
    }

    fn prepare(voter: &mut DurableVoter, round: u64) -> Result<(), TooManyWaiting> {
        let ballot = ProposalBallot { round, proposer: NodeTag(8), incarnation: Incarnation(9) };
        let epoch = voter.decided().epoch.next().expect("small");
        voter.handle(ChainRequester::Own, ChainRequest::Prepare { epoch, ballot }, true)
    }

    #[test]
    fn a_repeated_request_waits_like_the_first_one() {
        let mut voter = voter();
        for round in [5, 5, 4] {
            prepare(&mut voter, round).expect("few wait");
            assert!(voter.poll_response().is_none(), "round {round}");
        }
        let (revision, state) = voter.poll_persist(Instant::ZERO).expect("the state has changed");
        assert_eq!(state.acceptor.promised.map(|ballot| ballot.round), Some(5));
        assert!(voter.poll_persist(Instant::ZERO).is_none(), "one state is stored at a time");
        voter.handle_persisted(Instant::ZERO, revision, true);
        let answers: Vec<_> = std::iter::from_fn(|| voter.poll_response()).collect();
        let is_promise = |response: &ChainResponse<_>| matches!(response, ChainResponse::Promised { .. });
        assert_eq!(answers.iter().map(|(_, it)| is_promise(it)).collect::<Vec<_>>(), [true, true, false]);
    }

    #[test]
    fn a_state_that_changed_while_it_was_stored_is_stored_again() {
        let mut voter = voter();
        prepare(&mut voter, 1).expect("few wait");
        let (first, _) = voter.poll_persist(Instant::ZERO).expect("a promise");
        prepare(&mut voter, 2).expect("few wait");
        voter.handle_persisted(Instant::ZERO, first, true);
        assert!(voter.poll_response().is_some() && voter.poll_response().is_none());
        let (second, state) = voter.poll_persist(Instant::ZERO).expect("another promise");
        assert_eq!(state.acceptor.promised.map(|ballot| ballot.round), Some(2));
        voter.handle_persisted(Instant::ZERO, second, true);
        assert!(voter.poll_response().is_some());
    }

    #[test]
    fn waiting_responses_are_bounded() {
        let mut voter = voter();
        let handled = (1..).take_while(|&round| prepare(&mut voter, round).is_ok()).count();
        assert_eq!(handled, WAITING_MAX);
        let (_, state) = voter.poll_persist(Instant::ZERO).expect("promises");
        assert_eq!(state.acceptor.promised.map(|ballot| ballot.round), Some(WAITING_MAX as u64));
    }
}
