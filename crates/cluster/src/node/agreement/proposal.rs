//! Proposals of this node, one at a time: on request of the host, for a command, or by
//! reconciliation.

use super::command::CommandProposalEnd;
use super::{Agreement, AgreementEffect};
use crate::epoch_chain::{
    ChainNode, ChainOutcome, ChainProposer, ChainRecord, ChainRequest, ChainResponse, ProposerPace,
};
use crate::{
    LayoutEpoch, LayoutMember, LayoutRecord, LayoutRecordError, MemberState, Node, NodeIndex, PeerState,
};
use std::sync::Arc;
use std::time::Duration;
use stdx::{Instant, NodeTag, Now};

/// Bandwidth of the slowest link over which a record arrives within the time that voters have to
/// answer, in bytes for a second.
const BYTES_PER_SECOND_MIN: u64 = 1 << 20;

/// The end of a proposal. The record in it is adopted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProposalOutcome {
    /// The proposed record is decided.
    Decided(Arc<LayoutRecord>),
    /// Another record is decided for its epoch. The change may be proposed again as its child.
    OtherDecided(Arc<LayoutRecord>),
    /// This record of a later epoch is decided. Whether the proposed one was decided for its epoch
    /// is not known.
    Overtaken(Arc<LayoutRecord>),
    /// No record of the epoch was adopted here in time: no majority of the voters has answered,
    /// other proposers had greater ballots, or the decided record is not durable yet. If a voter
    /// has accepted the proposed record, a later proposer may find it and decide it.
    TimedOut,
}

/// The reason why a proposal was not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// The node takes no part in the agreement on layout records.
    #[error("the node takes no part in the agreement on layout records")]
    NoPart,
    /// An earlier proposal has not ended.
    #[error("another change is being decided")]
    Busy,
    /// A decided record is not adopted yet.
    #[error("a record of epoch {epoch} is decided and not adopted yet: propose its child")]
    NotAdopted {
        /// Epoch of the record.
        epoch: LayoutEpoch,
    },
    /// The record does not follow the adopted one.
    #[error("the record is refused: {0}")]
    Refused(#[from] LayoutRecordError),
    /// The record names a voter, or the id of a voter, that this node does not hear.
    #[error("slot {} is to vote, and this node does not hear it with the named id", slot.0)]
    VoterNotHeard {
        /// Slot of the voter.
        slot: NodeIndex,
    },
    /// The next record needs all voters, and only a voter that hears all members may propose it.
    #[error("the ids of the voters are not named yet: a voter that hears all members proposes them")]
    IdsNotNamed,
}

/// The running proposal, and the rounds of the last one.
#[derive(Debug, Default)]
pub(super) struct Proposals {
    running: Option<RunningProposal>,
    /// Epoch of the last proposal, and its greatest round: no ballot is used twice.
    last_rounds: Option<(LayoutEpoch, u64)>,
}

/// The part of the process that has requested a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProposalRequester {
    /// The host, which is told of the end.
    Host,
    /// The first command.
    Command,
    /// The reconciliation of this node.
    Reconciliation,
}

#[derive(Debug)]
pub(super) struct RunningProposal {
    requester: ProposalRequester,
    proposer: ChainProposer<Arc<LayoutRecord>>,
    own: Arc<LayoutRecord>,
    /// Whether the own record was sent to voters in an accept request. Before that it cannot be
    /// decided.
    is_offered: bool,
    end_at: Instant,
}

impl Node {
    /// Proposes `record` as the child of the adopted one, for at most `within`. The end is reported
    /// with [`AgreementEffect::ProposalEnded`]. A proposal of this node's reconciliation is given
    /// up for it.
    ///
    /// # Errors
    /// [`ProposeError`]: nothing was sent.
    pub fn propose_layout(
        &mut self,
        now: Now,
        record: LayoutRecord,
        within: Duration,
    ) -> Result<(), ProposeError> {
        let agreement = self.agreement.as_ref().ok_or(ProposeError::NoPart)?;
        if agreement.proposals.is_for_host() || agreement.proposals.is_for_command() {
            return Err(ProposeError::Busy);
        }
        let (parent, epoch) = (Arc::clone(&agreement.adopted.record), agreement.voter.decided().epoch);
        if parent.epoch < epoch {
            return Err(ProposeError::NotAdopted { epoch });
        }
        agreement.voter.check_supported(&record)?;
        record.verify(&parent)?;
        if parent.needs_all_voters() && !self.may_name_ids(&parent) {
            return Err(ProposeError::IdsNotNamed);
        }
        if let Some(slot) = newly_named_voters(&record, &parent).find(|&slot| !self.hears(&record, slot)) {
            return Err(ProposeError::VoterNotHeard { slot });
        }
        if let Some(agreement) = &mut self.agreement {
            agreement.proposals.end();
        }
        self.begin_proposal(now, (parent, Arc::new(record)), within, ProposalRequester::Host);
        self.advance(now);
        Ok(())
    }

    /// Whether this node may propose the child of a record without the ids of its voters: it votes
    /// itself, and all members hold the record. A member that held another one would not be asked
    /// if it does not vote.
    fn may_name_ids(&self, parent: &LayoutRecord) -> bool {
        let heard = self.heard_cluster();
        let holds = |member: &LayoutMember| {
            let heard = heard.members.get(&member.slot);
            member.state == MemberState::Dead || heard.is_some_and(|heard| heard.holds_adopted)
        };
        parent.voters.contains(&self.member.me) && parent.members.iter().all(holds)
    }

    /// Begins to propose the second of these records as the child of the first. No other proposal
    /// runs.
    pub(super) fn begin_proposal(
        &mut self,
        now: Now,
        (parent, own): (Arc<LayoutRecord>, Arc<LayoutRecord>),
        within: Duration,
        requester: ProposalRequester,
    ) {
        let (me, rng) = ((self.member.tag, self.member.incarnation), self.rng.fork());
        let Some(agreement) = &mut self.agreement else { return };
        let last = agreement.proposals.last_rounds.filter(|(epoch, _)| *epoch == own.epoch);
        let after_round = last.map_or(0, |(_, round)| round);
        let bytes = agreement.adopted.encoded.0.len() as u64;
        let mut pace = ProposerPace::default();
        let on_the_way = Duration::from_millis(bytes * 1_000 / BYTES_PER_SECOND_MIN);
        pace.response_timeout += on_the_way;
        pace.response_timeout_max += on_the_way;
        let records = (parent, Arc::clone(&own));
        let proposer = ChainProposer::new(now.mono, me, records, after_round, pace, rng);
        let end_at = now.mono + within;
        agreement.proposals.running =
            Some(RunningProposal { requester, proposer, own, is_offered: false, end_at });
    }

    /// Whether this node hears the voter in this slot, with the id that `record` names.
    pub(super) fn hears(&self, record: &LayoutRecord, slot: NodeIndex) -> bool {
        let named = record.member(slot).and_then(|member| member.node_id);
        let is_named = |tag: NodeTag| named.is_none_or(|named| named == tag);
        if slot == self.member.me {
            return is_named(self.member.tag);
        }
        let is_heard = |node| self.speaks_chain(node) && self.peer(node).state == PeerState::Up;
        self.is_peer(slot)
            && is_heard(slot)
            && self.peer(slot).dialed.as_ref().is_some_and(|dialed| is_named(dialed.hello.tag))
    }
}

/// The voters of `record` that do not vote by the same id in `parent`.
fn newly_named_voters<'a>(
    record: &'a LayoutRecord,
    parent: &'a LayoutRecord,
) -> impl Iterator<Item = NodeIndex> + 'a {
    let id_in = |record: &LayoutRecord, slot| record.member(slot).and_then(|member| member.node_id);
    let votes_on = move |slot| parent.voters.contains(&slot) && id_in(parent, slot) == id_in(record, slot);
    record.voters.iter().copied().filter(move |&slot| !votes_on(slot))
}

impl Proposals {
    pub(super) const fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Whether the running proposal was requested by the host.
    pub(super) fn is_for_host(&self) -> bool {
        self.requester() == Some(ProposalRequester::Host)
    }

    /// Whether the running proposal is that of a command.
    pub(super) fn is_for_command(&self) -> bool {
        self.requester() == Some(ProposalRequester::Command)
    }

    fn requester(&self) -> Option<ProposalRequester> {
        self.running.as_ref().map(|running| running.requester)
    }

    /// Ends the running proposal, and returns it. Its rounds are not used again.
    pub(super) fn end(&mut self) -> Option<RunningProposal> {
        let ended = self.running.take()?;
        self.last_rounds = Some((ended.own.epoch, ended.proposer.round_max()));
        Some(ended)
    }

    /// Handles the response of a voter.
    pub(super) fn handle(
        &mut self,
        now: Instant,
        from: ChainNode,
        response: &ChainResponse<Arc<LayoutRecord>>,
    ) {
        if let Some(running) = &mut self.running {
            running.proposer.handle(now, from, response);
        }
    }

    /// Notes that a new process was linked in the slot of a peer.
    pub(super) fn handle_new_process(&mut self, now: Instant) {
        if let Some(running) = &mut self.running {
            running.proposer.handle_new_process(now);
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if let Some(running) = &mut self.running {
            running.proposer.handle_timeout(now);
        }
    }

    /// The next request, and its receiver.
    pub(super) fn poll_request(&mut self) -> Option<(NodeIndex, ChainRequest<Arc<LayoutRecord>>)> {
        let running = self.running.as_mut()?;
        let (receiver, request) = running.proposer.poll_request()?;
        if let ChainRequest::Accept(vote) = &request {
            running.is_offered |= Arc::ptr_eq(&vote.record, &running.own) || vote.record == running.own;
        }
        Some((receiver, request))
    }

    /// Times at which the running proposal has something to do.
    pub(super) fn due(&self) -> impl Iterator<Item = Instant> {
        let running = self.running.as_ref();
        let wake_at = running.and_then(|running| running.proposer.poll_timeout());
        wake_at.into_iter().chain(running.map(|running| running.end_at))
    }

    /// The decided record that the proposer has found.
    fn found(&self) -> Option<Arc<LayoutRecord>> {
        match self.running.as_ref()?.proposer.outcome()? {
            ChainOutcome::Decided(record) | ChainOutcome::Overtaken(record) => Some(Arc::clone(record)),
        }
    }
}

impl Agreement {
    /// Learns the record that the running proposal has found decided, and ends the proposal once a
    /// record of its epoch or a later one is adopted.
    pub(super) fn end_proposal(&mut self, now: Instant) {
        let Some(own) = self.proposals.running.as_ref().map(|running| Arc::clone(&running.own)) else {
            return;
        };
        if let Some(record) = self.proposals.found()
            && self.voter.decided().epoch < own.epoch
        {
            self.voter.learn(record);
        }
        let adopted = &self.adopted.record;
        let outcome = match adopted.epoch.cmp(&own.epoch) {
            std::cmp::Ordering::Less => ProposalOutcome::TimedOut,
            std::cmp::Ordering::Equal if *adopted == own => ProposalOutcome::Decided(Arc::clone(adopted)),
            std::cmp::Ordering::Equal => ProposalOutcome::OtherDecided(Arc::clone(adopted)),
            std::cmp::Ordering::Greater => ProposalOutcome::Overtaken(Arc::clone(adopted)),
        };
        let is_late = self.proposals.running.as_ref().is_some_and(|running| now >= running.end_at);
        let has_failed = outcome == ProposalOutcome::TimedOut;
        if has_failed && !is_late {
            return;
        }
        let Some(RunningProposal { requester, own, is_offered, .. }) = self.proposals.end() else { return };
        match requester {
            ProposalRequester::Host => self.effects.push_back(AgreementEffect::ProposalEnded(outcome)),
            ProposalRequester::Command => {
                self.end_command_proposal(CommandProposalEnd { own, outcome, is_offered });
            }
            ProposalRequester::Reconciliation if has_failed => self.reconciliation.record_failure(),
            ProposalRequester::Reconciliation => {}
        }
    }
}
