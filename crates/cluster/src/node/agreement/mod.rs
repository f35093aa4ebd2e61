//! The node in the agreement on layout records: it votes, proposes, learns and passes on.
//!
//! **Promise.**
//!
//! 1. An answer of this node as a voter leaves only after everything that it reports is durable.
//! 2. A node votes only while its directory knows all votes that count as its own.
//! 3. A record is adopted only if it follows the record that this node holds, and it is durable
//!    before the node or a peer acts on it. The adopted epoch never decreases.
//! 4. Of two nodes that can exchange heartbeats, the one with the older record adopts the newer
//!    one, unless the two conflict. A conflict is reported once for each record of a peer.
//! 5. A running proposal of the host ends with exactly one [`ProposalOutcome`], and a command with
//!    exactly one [`LayoutCommandOutcome`].
//!
//! **Mechanism.** The [epoch chain](crate::EpochAcceptor) decides. This module connects its state
//! machines with the node:
//!
//! * `voter` holds the answers of the acceptor until the host has reported the state durable.
//! * `proposal` runs at most one proposer.
//! * `command` carries out commands of the host: it proposes the record in which a command takes
//!   effect until one is decided.
//! * `fetch` compares the [`LayoutStamp`]s of heartbeats and reads newer records from peers.
//! * `reconcile` proposes records by itself: for node ids, lost disks, moved nodes, voters and the
//!   steps of a running plan. The rules are in `next_record`, and for plans in `plan_step`.
//! * `statements` has the statements of this node about the running plan, and `plan_progress`
//!   notices a plan that has stalled.
//!
//! The host drains [`poll_agreement_effect`](Node::poll_agreement_effect). It stores each
//! [`AgreementEffect::Persist`] and reports that with
//! [`handle_voter_persisted`](Node::handle_voter_persisted). These effects are apart from
//! [`Effect`](crate::Effect), because their order relative to others has no meaning.
//!
//! **The right to vote.** A voter that has forgotten its votes could decide a second record for an
//! epoch. Three conditions must hold:
//!
//! * [`VoteHistory::permits_votes`]: the directory knows its votes, or the next record needs all
//!   voters, because the ids are not named yet.
//! * A majority of the nodes was heard since the start of this process, and no peer refuses it as a
//!   copy. A peer that was up when this node voted can then tell that the directory is an older
//!   state of itself. Members that the decided record calls dead do not count here and below.
//! * Before a record names the node's id, the node is settled, it has heard all peers since its
//!   start, and all have admitted its link. So a node that lost its disk is rebuilt before it votes
//!   in the slot of the lost one. From then on, its peers handle no messages of the lost one.
//!
//! A node is settled again when it was rebuilt, but its votes are not. So the vote history becomes
//! [`OfThisId`](VoteHistory::OfThisId) when the node begins to rebuild, and
//! [`Incomplete`](VoteHistory::Incomplete) if a peer has shown that the directory is an older state
//! or a copy. The node record is not stored before that is durable: a crash in between leaves the
//! reason for the rebuild in the record, which is found again.
//!
//! A node whose votes are `Incomplete` says so in its heartbeats. It is not made a voter, it does
//! not count as one that votes, and another member replaces it as a voter.
//!
//! **Old peers.** A peer of a release without the epoch chain sends heartbeats without a stamp. It
//! is asked nothing, so it does not vote, and it does not learn records. While it is linked, a
//! majority of the voters has to be found among the other nodes.
//!
//! **Caveats.** An older state of a directory is found out only if a peer that is heard has durably
//! recorded a later generation or a later clock of the node. Of three nodes, A and B may decide a
//! record while C is down. If B then stops, C starts and the volume of A is put back, neither A nor
//! C can know of the record, and the two may decide another one. No majority of voters protects
//! from this, because one of it has forgotten its vote. So put a volume back only while all peers
//! are up, or replace the node. Likewise, the loss is not noticed if the snapshot is of the same
//! generation and the clock has not moved since. While
//! the host cannot store the votes of a node that begins to rebuild, the node record cannot change
//! either. A proposal needs a majority of voters that answer within
//! [`ProposerPace::response_timeout_max`] plus the time of the record on a slow link. An adopted
//! record is reported to the host, which has the node follow it: see `layout_change`.

mod command;
mod fetch;
mod next_record;
mod plan_progress;
mod plan_step;
mod proposal;
mod reconcile;
mod statements;
mod status;
mod voter;

pub use command::{CommandObstacle, LayoutCommand, LayoutCommandId, LayoutCommandOutcome, PlannedChange};
pub use fetch::{LayoutConflict, LayoutConflictReason};
pub use plan_progress::{PLAN_STALLED_AFTER, StallReason};
pub use plan_step::{PlanWait, SwapWait};
pub(in crate::node) use plan_step::{has_enough_others, is_dead};
pub use proposal::{ProposalOutcome, ProposeError};
pub(in crate::node) use statements::StatedPlan;
pub use status::{AgreementStatus, VoterStatus};

use super::Node;
use super::dispatch::RequestPurpose;
use crate::{
    ChainNode, ChainRecord, ChainRequest, ChainResponse, EncodedRecord, LayoutEpoch, LayoutRecord,
    LayoutStamp, LinkId, MemberState, MessageId, NodeIndex, NodeRequest, NodeResponse, NodeSet, PeerAnswer,
    RecordHash, ReplicaFault, SyncState, VoteHistory, VoterState,
};
use command::Commands;
use fetch::Fetch;
use plan_progress::PlanProgress;
use proposal::Proposals;
use reconcile::Reconciliation;
use statements::OwnStatements;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use stdx::{Instant, Now};
use voter::{ChainRequester, DurableVoter};

/// An action that the agreement requests from the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgreementEffect {
    /// Make this state durable, and report the outcome with
    /// [`handle_voter_persisted`](Node::handle_voter_persisted). There is no other such effect
    /// before that.
    Persist {
        /// Identifies the state in the report.
        revision: u64,
        /// The state.
        state: VoterState,
    },
    /// This decided record is durable and adopted.
    Adopted(Arc<LayoutRecord>),
    /// The running proposal of the host has ended.
    ProposalEnded(ProposalOutcome),
    /// A command of the host has ended.
    CommandEnded {
        /// The number that the host has given it.
        id: LayoutCommandId,
        /// The end.
        outcome: LayoutCommandOutcome,
    },
    /// A peer refuses this node for ever, because its record of this epoch has removed or replaced
    /// it, or declares it dead. The host ends the process. This node need not hold that record.
    Removed {
        /// Epoch of the peer's record.
        epoch: LayoutEpoch,
    },
    /// A peer holds a record that contradicts the one of this node. Neither node adopts the other's
    /// record.
    Conflict(LayoutConflict),
}

/// The newest adopted record.
#[derive(Debug)]
struct AdoptedRecord {
    record: Arc<LayoutRecord>,
    hash: RecordHash,
    stamp: LayoutStamp,
    /// The record for peers, which may read it all at once.
    encoded: EncodedRecord,
}

impl AdoptedRecord {
    fn new(record: Arc<LayoutRecord>) -> Self {
        let encoded = EncodedRecord::of(&record);
        let hash = encoded.hash();
        Self { stamp: LayoutStamp::new(record.epoch, hash), hash, record, encoded }
    }
}

/// The state of a node in the agreement.
#[derive(Debug)]
pub(super) struct Agreement {
    me: ChainNode,
    voter: DurableVoter,
    adopted: AdoptedRecord,
    proposals: Proposals,
    commands: Commands,
    fetch: Fetch,
    reconciliation: Reconciliation,
    statements: OwnStatements,
    progress: PlanProgress,
    effects: VecDeque<AgreementEffect>,
}

impl Node {
    /// Begins to take part in the agreement on layout records, with the state that the data
    /// directory holds. Called once, before the first input.
    pub fn join_agreement(&mut self, now: Now, state: VoterState) {
        assert!(self.agreement.is_none(), "a node joins the agreement once");
        let me = ChainNode { slot: self.member.me, id: self.member.tag };
        let adopted = AdoptedRecord::new(Arc::clone(&state.acceptor.decided));
        self.agreement = Some(Agreement {
            me,
            voter: DurableVoter::new(me, state, self.limits.feature_level_max, now.mono),
            adopted,
            proposals: Proposals::default(),
            commands: Commands::default(),
            fetch: Fetch::new(now.mono),
            reconciliation: Reconciliation::default(),
            statements: OwnStatements::default(),
            progress: PlanProgress::default(),
            effects: VecDeque::new(),
        });
        self.advance(now);
    }

    /// Takes the next effect of the agreement that the host is to carry out.
    pub fn poll_agreement_effect(&mut self) -> Option<AgreementEffect> {
        self.agreement.as_mut()?.effects.pop_front()
    }

    /// Handles the outcome of an [`AgreementEffect::Persist`]. A state that is not durable is
    /// requested again after a moment.
    pub fn handle_voter_persisted(&mut self, now: Now, revision: u64, is_durable: bool) {
        if let Some(agreement) = &mut self.agreement {
            agreement.voter.handle_persisted(now.mono, revision, is_durable);
            self.advance(now);
        }
    }

    /// The newest layout record that this node has adopted. `None` while it takes no part in the
    /// agreement.
    pub fn adopted_layout(&self) -> Option<&Arc<LayoutRecord>> {
        self.agreement.as_ref().map(|agreement| &agreement.adopted.record)
    }

    /// Hash of the adopted record.
    pub(super) fn adopted_hash(&self) -> Option<RecordHash> {
        self.agreement.as_ref().map(|agreement| agreement.adopted.hash)
    }

    /// Notes that a process was linked in the slot of a peer. The answers of an earlier one to the
    /// running proposal may be those of a lost disk.
    pub(super) fn handle_new_voter_process(&mut self, now: Now) {
        if let Some(agreement) = &mut self.agreement {
            agreement.proposals.handle_new_process(now.mono);
        }
    }

    /// Tells the host that a peer refuses this node for ever.
    pub(super) fn report_removal(&mut self, epoch: LayoutEpoch) {
        if let Some(agreement) = &mut self.agreement {
            agreement.effects.push_back(AgreementEffect::Removed { epoch });
        }
    }

    /// The stamp of the adopted record, for heartbeats.
    pub(super) fn layout_stamp(&self) -> Option<LayoutStamp> {
        self.agreement.as_ref().map(|agreement| agreement.adopted.stamp)
    }

    pub(super) fn record_layout_stamp(&mut self, node: NodeIndex, stamp: Option<LayoutStamp>) {
        if let (Some(agreement), Some(stamp)) = (&mut self.agreement, stamp) {
            agreement.fetch.hear(node, stamp);
        }
    }

    /// Forgets the records of a node that is a member no more.
    pub(super) fn forget_in_agreement(&mut self, node: NodeIndex) {
        if let Some(agreement) = &mut self.agreement {
            agreement.fetch.forget(node);
        }
    }

    /// Has the node vote under a condition, or no more, because it may have forgotten votes.
    pub(super) fn restrict_votes(&mut self, history: VoteHistory) {
        if let Some(agreement) = &mut self.agreement {
            agreement.voter.restrict(history);
        }
    }

    /// The peers that are dead by the newest decided record of this node.
    pub(super) fn dead_peers(&self) -> NodeSet {
        let Some(agreement) = &self.agreement else { return NodeSet::EMPTY };
        let is_dead = |node: NodeIndex| {
            let member = agreement.voter.decided().member(node);
            member.is_some_and(|member| member.state == MemberState::Dead)
        };
        self.peer_nodes().filter(|&node| is_dead(node)).collect()
    }

    /// Whether the directory of this node has forgotten votes by the node's own id.
    pub(super) fn has_forgotten_votes(&self) -> bool {
        let history = self.agreement.as_ref().map(|agreement| agreement.voter.history());
        history == Some(VoteHistory::Incomplete)
    }

    /// Whether a restriction of this node's votes is not durable yet.
    pub(super) fn is_vote_history_pending(&self) -> bool {
        self.agreement.as_ref().is_some_and(|agreement| agreement.voter.is_history_pending())
    }

    /// Handles a request of a peer to this node as a voter or learner.
    pub(super) fn handle_chain_request(
        &mut self,
        node: NodeIndex,
        link: LinkId,
        id: MessageId,
        request: ChainRequest<EncodedRecord>,
    ) {
        let can_vote = self.can_vote();
        let is_linked = self.peer(node).accepted.is_some_and(|accepted| accepted.link == link);
        let Some(agreement) = self.agreement.as_mut().filter(|_| is_linked) else {
            return self.outbox.answer(link, id, PeerAnswer::Failed(ReplicaFault::NotServing));
        };
        let record = request.record().map(EncodedRecord::hash);
        let answer = match request.try_map(|encoded| encoded.decode().map(Arc::new)) {
            Ok(request) => {
                agreement.report_unless_learnable(node, &request);
                let from = ChainRequester::Peer { link, id };
                match agreement.voter.handle(from, request, can_vote) {
                    Ok(()) => return,
                    Err(voter::TooManyWaiting) => PeerAnswer::Failed(ReplicaFault::Busy),
                }
            }
            Err(error) => {
                agreement.report_unreadable(node, record, error);
                let epoch = agreement.voter.decided().epoch;
                NodeResponse::Chain(ChainResponse::Refused { epoch }).into()
            }
        };
        self.outbox.answer(link, id, answer);
    }

    /// Handles the answer of a voter to the running proposal.
    pub(super) fn handle_chain_answer(&mut self, now: Now, node: NodeIndex, answer: Option<PeerAnswer>) {
        let Some(PeerAnswer::Node(NodeResponse::Chain(response))) = answer else { return };
        let peer = self.peer(node);
        let dialed = peer.dialed.as_ref().filter(|_| !peer.is_dialed_replaced());
        let Some(hello) = dialed.map(|dialed| dialed.hello) else { return };
        let from = ChainNode { slot: node, id: hello.tag };
        let Some(agreement) = &mut self.agreement else { return };
        let record = response.record().map(EncodedRecord::hash);
        match response.try_map(|encoded| encoded.decode().map(Arc::new)) {
            Ok(response) => agreement.proposals.handle(now.mono, from, &response),
            Err(error) => agreement.report_unreadable(node, record, error),
        }
    }

    /// Runs the steps of the agreement that may follow from a change of state.
    pub(super) fn advance_agreement(&mut self, now: Now) {
        let sync_states = [self.record.durable().sync_state, self.record.wanted().sync_state];
        if sync_states.contains(&SyncState::Rebuilding) {
            self.restrict_votes(VoteHistory::OfThisId);
        }
        self.tell_fence(now);
        self.advance_fetch(now);
        if let Some(agreement) = &mut self.agreement {
            agreement.proposals.handle_timeout(now.mono);
        }
        let mut is_adopted = false;
        loop {
            while self.send_chain_requests(now) | self.send_chain_responses(now) {}
            let Some(agreement) = &mut self.agreement else { return };
            is_adopted |= agreement.adopt_durable_record();
            agreement.end_proposal(now.mono);
            if !self.advance_commands(now) {
                break;
            }
        }
        let Some(agreement) = &mut self.agreement else { return };
        if let Some((revision, state)) = agreement.voter.poll_persist(now.mono) {
            agreement.effects.push_back(AgreementEffect::Persist { revision, state });
        }
        if is_adopted {
            self.send_heartbeats(now);
        }
    }

    /// Time at which [`Node::advance_agreement`] is due.
    pub(super) fn agreement_due(&self) -> Option<Instant> {
        let agreement = self.agreement.as_ref()?;
        let due = [agreement.voter.due(), agreement.commands.due()].into_iter().flatten();
        due.chain(agreement.proposals.due()).min()
    }

    /// Whether this node may vote: see the conditions in the description of this module.
    fn can_vote(&self) -> bool {
        let Some(agreement) = &self.agreement else { return false };
        let decided = agreement.voter.decided();
        self.is_confirmed_by_majority()
            && agreement.voter.history().permits_votes(agreement.me, decided)
            && (decided.names(agreement.me) || self.is_read_eligible() && self.is_known_to_all())
    }

    /// Whether all peers have heard this process, and none of them knows another node in its place.
    fn is_known_to_all(&self) -> bool {
        let knows = |node| self.peer(node).has_admitted && self.peer(node).identity_report.is_some();
        let dead = self.dead_peers();
        self.is_in_place() && self.peer_nodes().all(|node| dead.contains(node) || knows(node))
    }

    /// Whether all peers were heard that were not heard when this node settled: none of them knows
    /// another node in its place.
    fn is_in_place(&self) -> bool {
        self.record.durable().unheard.without(self.dead_peers()).is_empty()
    }

    /// Whether a peer can be asked as a voter: the link to it carries such requests.
    fn speaks_chain(&self, node: NodeIndex) -> bool {
        self.is_usable(node)
            && self.peer(node).heartbeat().is_some_and(|heartbeat| heartbeat.layout.is_some())
    }

    /// Sends the requests of the running proposal, those to this node itself included. Returns
    /// whether there were any.
    fn send_chain_requests(&mut self, now: Now) -> bool {
        let mut has_sent = false;
        while let Some(agreement) = &mut self.agreement
            && let Some((slot, request)) = agreement.proposals.poll_request()
        {
            has_sent = true;
            if slot == self.member.me {
                let can_vote = self.can_vote();
                let agreement = self.agreement.as_mut().expect("it was just used");
                // A request that is not handled is repeated with the next proposal.
                let _ = agreement.voter.handle(ChainRequester::Own, request, can_vote);
            } else if self.is_peer(slot) && self.speaks_chain(slot) {
                let encode = |record: Arc<LayoutRecord>| Ok::<_, Infallible>(EncodedRecord::of(&record));
                let Ok(request) = request.try_map(encode);
                self.outbox.request_peer(now.mono, slot, RequestPurpose::Chain, NodeRequest::Chain(request));
            }
        }
        has_sent
    }

    /// Sends the responses of this node as a voter whose state is durable. Returns whether there
    /// were any.
    fn send_chain_responses(&mut self, now: Now) -> bool {
        let mut has_sent = false;
        while let Some(agreement) = &mut self.agreement
            && let Some((to, response)) = agreement.voter.poll_response()
        {
            has_sent = true;
            match to {
                ChainRequester::Own => agreement.proposals.handle(now.mono, agreement.me, &response),
                ChainRequester::Peer { link, id } => {
                    let encode = |record: Arc<LayoutRecord>| Ok::<_, Infallible>(EncodedRecord::of(&record));
                    let Ok(response) = response.try_map(encode);
                    self.outbox.answer(link, id, NodeResponse::Chain(response));
                }
            }
        }
        has_sent
    }
}

impl Agreement {
    /// Whether this node is a voter of the newest decided record.
    fn is_voter(&self) -> bool {
        self.voter.decided().is_voter(self.me)
    }

    /// Adopts the decided record of the voter once it is durable. Returns whether there was one.
    fn adopt_durable_record(&mut self) -> bool {
        let durable = Arc::clone(self.voter.durable_decided());
        let is_newer = durable.epoch > self.adopted.record.epoch;
        if is_newer {
            self.reconciliation.record_adopted(self.me.slot, &self.adopted.record, &durable);
            self.statements.record_adopted(&durable);
            self.adopted = AdoptedRecord::new(Arc::clone(&durable));
            self.effects.push_back(AgreementEffect::Adopted(durable));
        }
        is_newer
    }
}
