//! The agreement on layout records: the durable state of voters, and the effects of nodes.
//!
//! A state of a voter is durable after the time that its disk takes. The store may fail to store
//! it, and the process may end before, or after that and before the node has learned it.

use super::{World, WorldEvent};
use crate::Plant;
use crate::check::layout_conflicts;
use crate::host::EndCause;
use crate::host::layout_plants;
use crate::host::process::{HostProcess, ProcessInput};
use crate::network::Endpoint;
use crate::scenario::FaultKind;
use cluster::{
    AgreementEffect, ChainNode, Layout, LayoutCommand, LayoutRecord, Message, NodeIndex, NodeResponse,
    PeerAnswer, Requester, VoterState,
};
use std::sync::Arc;
use std::time::Duration;
use stdx::Rng;
use wire::handshake::{LayoutStatement, NamedMember, ProtocolVersions};

/// Fraction of removed nodes that are started again with their directory, and the longest time
/// until then.
const RETURNS_SHARE: f64 = 0.5;
const RETURNS_WITHIN: Duration = Duration::from_secs(5);

impl World {
    /// Generator of the agreement: times of disks, and changes that operators propose.
    pub(crate) const fn layout_rng(&mut self) -> &mut Rng {
        &mut self.rngs.agreement
    }

    /// Carries out the effects of the agreement that a node requests.
    pub(super) fn carry_out_agreement(&mut self, endpoint: Endpoint) {
        if endpoint.requester != Requester::Node {
            return;
        }
        while let Some(effect) = self.process(endpoint).and_then(HostProcess::poll_agreement_effect) {
            self.trace.note(self.now, || format!("  {endpoint:?} -> {effect:?}"));
            match effect {
                AgreementEffect::Persist { revision, state } => {
                    let delay = self.voter_disk_time(endpoint);
                    self.after(delay, WorldEvent::PersistVoter(endpoint, revision, Box::new(state)));
                }
                AgreementEffect::Adopted(record) => {
                    let checked = self.judge.agreement.note_adopted(endpoint.node, &record);
                    self.judge.note(checked);
                    self.note_newest_record(&record);
                    self.follow(endpoint, &record);
                }
                AgreementEffect::ProposalEnded(outcome) => {
                    if let Some(process) = self.process(endpoint) {
                        process.proposal_end = Some(outcome);
                    }
                }
                // Operators look at the record instead.
                AgreementEffect::CommandEnded { id, outcome } => {
                    self.layout_command_ended(endpoint, id, outcome);
                }
                AgreementEffect::Removed { .. } => self.end_removed(endpoint),
                AgreementEffect::Conflict(conflict) => {
                    let has_cause = self.may_have_conflicts();
                    self.judge.note(layout_conflicts::check(endpoint.node, &conflict, has_cause));
                }
            }
        }
    }

    /// Has the state machines of a process follow an adopted record, the coordinators first.
    fn follow(&mut self, endpoint: Endpoint, record: &LayoutRecord) {
        let layout = Arc::new(Layout::of_record(record));
        self.judge.note_layout(&layout);
        let Some(process) = self.process(endpoint) else { return };
        if !layout.members().contains(process.member.me) || record.has_removed(process.member.tag) {
            // As in the server: the record is not passed on.
            return self.end_removed(endpoint);
        }
        process.statement = LayoutStatement::of(record);
        process.named = NamedMember::all_of(record).into();
        process.removed = record.removed_ids().collect();
        process.versions = ProtocolVersions::with_record(record);
        process.member.layout = Arc::clone(&layout);
        let requesters: Vec<Requester> = process.requesters().collect();
        for requester in requesters.into_iter().rev() {
            self.step(Endpoint { requester, ..endpoint }, ProcessInput::Layout(Arc::clone(&layout)));
        }
    }

    /// Ends the process of a node that has learned that it was removed, replaced or declared dead.
    /// Some operators start it again.
    fn end_removed(&mut self, endpoint: Endpoint) {
        let host = endpoint.node;
        self.judge.note_removed(endpoint);
        if self.scenario.plant == Some(Plant::RemovedNodeServes) {
            return;
        }
        self.trace.note(self.now, || format!("{endpoint:?} was removed, and ends"));
        self.end_process(host, EndCause::Kill, None);
        if self.rngs.agreement.chance(RETURNS_SHARE) && !self.nemesis.is_over() {
            let after = Duration::from_nanos(self.rngs.agreement.below(RETURNS_WITHIN.as_nanos() as u64));
            self.after(after, WorldEvent::Return(host));
        }
    }

    /// Lets the store of a host make a state of the voter durable.
    pub(super) fn persist_voter(&mut self, endpoint: Endpoint, revision: u64, mut state: VoterState) {
        self.show_clocks(endpoint.node);
        let plant = self.scenario.plant;
        let is_skipped = layout_plants::skips_persist(plant, &state);
        let Some(process) = self.process(endpoint) else { return };
        layout_plants::alter_stored(plant, process.member.tag, &mut state);
        let is_durable = is_skipped || process.store.persist_voter(&state).is_ok();
        if self.end_if_stopped(endpoint) {
            return;
        }
        if is_durable && !is_skipped {
            self.note_durable_votes(endpoint.node, &state);
        }
        let delay = Duration::from_nanos(self.rngs.agreement.below(super::step::THREAD_DELAY_MAX_NANOS));
        self.after(delay, WorldEvent::VoterPersisted(endpoint, revision, is_durable));
    }

    /// Lets a node learn whether a state of its voter is durable.
    pub(super) fn voter_persisted(&mut self, endpoint: Endpoint, revision: u64, is_durable: bool) {
        self.step(endpoint, ProcessInput::VoterPersisted(revision, is_durable));
        // The step has sent the answers that the voter made before its own vote.
        let incarnation = self.process(endpoint).map(|process| process.member.incarnation);
        if let Some(incarnation) = incarnation.filter(|_| is_durable) {
            let checked = self.judge.agreement.note_own_vote(endpoint.node, incarnation);
            self.judge.note(checked);
        }
    }

    fn note_durable_votes(&mut self, host: NodeIndex, state: &VoterState) {
        let Some(node) = self.chain_node(host) else { return };
        let checked = self.judge.agreement.note_durable(host, node, state);
        self.judge.note(checked);
    }

    /// Records the votes with which the process of a host has started.
    pub(super) fn note_voter_start(&mut self, host: NodeIndex) {
        let Some(node) = self.chain_node(host) else { return };
        let process = self.hosts[host.as_usize()].process.as_ref().filter(|process| process.is_voter);
        let Some(state) = process.map(|process| process.first_votes.clone()) else { return };
        let checked = self.judge.agreement.note_start(host, node, &state);
        self.judge.note(checked);
    }

    /// Records an answer to a proposer that a node sends.
    pub(super) fn note_vote(&mut self, endpoint: Endpoint, message: &Message) {
        if let Message::Answer { answer: PeerAnswer::Node(NodeResponse::Chain(response)), .. } = message {
            let checked = self.judge.agreement.note_told(endpoint.node, response);
            self.judge.note(checked);
        }
    }

    /// The process of a host as a voter.
    fn chain_node(&self, host: NodeIndex) -> Option<ChainNode> {
        let process = self.hosts[host.as_usize()].process.as_ref()?;
        Some(ChainNode { slot: process.member.me, id: process.member.tag })
    }

    /// Whether a run has a cause of conflicts between layout records.
    fn may_have_conflicts(&self) -> bool {
        self.judge.agreement.first_records() > 1
            || self.scenario.fault_kinds.contains(&FaultKind::RestoreCluster)
    }

    /// Draws the time in which a disk stores the state of a voter.
    fn voter_disk_time(&mut self, endpoint: Endpoint) -> Duration {
        let max = self.host(endpoint.node).sync_max.as_nanos() as u64;
        Duration::from_nanos(max / 8 + self.rngs.agreement.below(max))
    }

    /// Requests a change of the layout from a node.
    pub(crate) fn propose(&mut self, endpoint: Endpoint, record: LayoutRecord, within: Duration) {
        self.step(endpoint, ProcessInput::ProposeLayout(Box::new(record), within));
    }

    /// Gives a node a command on the layout.
    pub(crate) fn give_layout_command(
        &mut self,
        endpoint: Endpoint,
        command: LayoutCommand,
        within: Duration,
    ) {
        let number = self.next_command_id();
        self.step(endpoint, ProcessInput::CommandLayout(number, command, within));
    }

    /// Ends the process of an older release on this node, if there is one. The next process is of
    /// this release.
    pub(crate) fn upgrade(&mut self, node: NodeIndex) {
        if std::mem::take(&mut self.host(node).is_old) {
            self.end_process(node, EndCause::Kill, None);
        }
    }
}
