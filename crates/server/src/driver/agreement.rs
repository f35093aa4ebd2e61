//! Carries out the effects of the agreement on layout records.
//!
//! **Promise.** The state of the node as a voter is stored on a thread that may wait for the disk,
//! one state at a time. The node receives the outcome, a failure included. An adopted record is
//! logged, and published to the threads of the process, which follow its layout. Links of versions
//! of the protocol that the record rules out are closed. A conflict with a peer is logged and
//! counted. The node is told the addresses that peers state for themselves, once they are proved.
//!
//! **Caveats.** If the disk fails, the node repeats the request after a moment. The log reports the
//! first failure and the first success after it.

use super::node_machine::NodeMachine;
use super::{Core, MachineDriver};
use crate::default_from;
use crate::error::ServerError;
use crate::layout_changes;
use crate::links::StatedUrl;
use crate::messages::ThreadMessage;
use cluster::{
    AgreementEffect, LayoutConflict, LayoutConflictReason, LayoutRecord, ProposalOutcome, VoterState,
};
use std::rc::Rc;
use std::sync::Arc;
use stdx::Now;
use store::StoreError;

/// State of the storing of votes.
#[derive(Debug, Default)]
pub(super) struct VotePersistence {
    /// A state is being stored.
    is_in_flight: bool,
    /// The last attempt has failed.
    is_failing: bool,
}

impl VotePersistence {
    pub(super) const fn is_in_flight(&self) -> bool {
        self.is_in_flight
    }
}

impl MachineDriver<NodeMachine> {
    /// Passes the addresses that nodes have stated since the last call to the node, as a further
    /// input.
    pub(super) fn handle_stated_urls(self: &Rc<Self>) {
        let stated = self.local.addresses.take_news();
        if stated.is_empty() {
            return;
        }
        let driver = Rc::clone(self);
        tokio::task::spawn_local(async move {
            stated.into_iter().for_each(|stated| driver.handle_stated_url(stated));
        });
    }

    fn handle_stated_url(self: &Rc<Self>, StatedUrl { node, tag, url }: StatedUrl) {
        let record = Arc::clone(&self.local.layout.get().record);
        let member = record.member(node).filter(|member| member.node_id == Some(tag));
        let Some(member) = member else { return };
        let peer = &member.url;
        if *peer != url {
            tracing::info!(peer, url, "a peer has moved: it was reached at the address that it states");
        }
        let recorded = self.run_machine(|core, now| core.machine.node.record_stated_url(now, node, tag, url));
        if let Err(error) = recorded {
            tracing::warn!(peer, %error, "the address that the node states cannot be in a layout record");
        }
    }

    pub(super) fn carry_out_agreement_effects(self: &Rc<Self>, core: &mut Core<NodeMachine>, now: Now) {
        while let Some(effect) = core.machine.node.poll_agreement_effect() {
            match effect {
                AgreementEffect::Persist { revision, state } => self.persist_voter(core, revision, state),
                AgreementEffect::Adopted(record) => self.adopt_layout(core, now, &record),
                AgreementEffect::ProposalEnded(outcome) => log_end_of_proposal(&outcome),
                AgreementEffect::CommandEnded { id, outcome } => core.machine.commands.end(id, outcome),
                AgreementEffect::Removed { epoch } => {
                    core.machine.fatal_error.set(ServerError::Removed { epoch });
                }
                AgreementEffect::Conflict(conflict) => self.report_conflict(&conflict),
            }
        }
    }

    fn persist_voter(self: &Rc<Self>, core: &mut Core<NodeMachine>, revision: u64, state: VoterState) {
        core.machine.vote_persistence.is_in_flight = true;
        let driver = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let store = driver.local.store.clone();
            let persisted = tokio::task::spawn_blocking(move || store.persist_voter(&state)).await;
            // A panic is reported by the blocking thread. It leaves the state unconfirmed.
            driver.handle_voter_persisted(revision, persisted.ok());
        });
    }

    fn handle_voter_persisted(self: &Rc<Self>, revision: u64, persisted: Option<Result<(), StoreError>>) {
        let is_durable = matches!(persisted, Some(Ok(())));
        self.run_machine(|core, now| {
            let persistence = &mut core.machine.vote_persistence;
            persistence.is_in_flight = false;
            let was_failing = std::mem::replace(&mut persistence.is_failing, !is_durable);
            match persisted {
                Some(Err(error)) if !was_failing => tracing::warn!(
                    %error,
                    "the votes of this node on layout records cannot be stored: it answers no proposal and adopts no \
                     record until that succeeds; it is tried again"
                ),
                Some(Ok(())) if was_failing => {
                    tracing::info!("the votes of this node on layout records are stored again");
                }
                Some(_) | None => {}
            }
            core.machine.node.handle_voter_persisted(now, revision, is_durable);
        });
    }

    /// Takes over a record in the order of `cluster`'s `node/layout_change`.
    fn adopt_layout(self: &Rc<Self>, core: &mut Core<NodeMachine>, now: Now, record: &Arc<LayoutRecord>) {
        let former = self.local.layout.replace(Arc::clone(record));
        self.local.addresses.adopt(record);
        self.local.layout_progress.follow(record, now.mono);
        let moved = former
            .record
            .members
            .iter()
            .filter(|before| record.member(before.slot).is_some_and(|member| member.url != before.url));
        moved.for_each(|before| self.context.peer_links.warnings.forget(&before.url));
        tracing::info!(
            epoch = record.epoch.0,
            hash = %record.hash(),
            changes = layout_changes::describe(&former.record, record).join("; "),
            "a layout record was adopted"
        );
        if !self.follow(core, now) {
            return;
        }
        if let Some(warning) = default_from::of_process(core.machine.default_from, record.default_from) {
            tracing::warn!("{warning}");
        }
        if former.versions.min < self.local.layout.get().versions.min {
            core.machine.threads.iter().for_each(|thread| thread.send(ThreadMessage::CloseOldLinks));
            let driver = Rc::clone(self);
            tokio::task::spawn_local(async move { driver.close_old_links() });
        }
    }

    fn report_conflict(&self, conflict: &LayoutConflict) {
        let LayoutConflict { node, epoch, reason } = *conflict;
        self.context.counters.peer(node).layout_conflicts.count();
        tracing::error!(
            peer = self.local.url_of(node),
            epoch = epoch.map(|epoch| epoch.0),
            own_epoch = self.local.layout.get().record.epoch.0,
            %reason,
            action = action_after(&reason),
            "the layout record of a peer contradicts the one of this node: neither node adopts the other's"
        );
    }
}

/// What an operator does about a conflict.
fn action_after(reason: &LayoutConflictReason) -> &'static str {
    match reason {
        LayoutConflictReason::AnotherRecord | LayoutConflictReason::Refused(_) => {
            "compare veche layout show of all nodes; stop the node that differs from the majority, copy the file layout of \
             another node into its data directory, and start it again"
        }
        LayoutConflictReason::AnotherCluster => {
            "one of the two belongs to another cluster, or to one that was recovered from it: give the node that is to join \
             the other an empty --data, and the file layout of a member if that cluster was recovered"
        }
        LayoutConflictReason::Unreadable(_) => {
            "upgrade this node to the release of the peer; if both have the same release, check the disk of the peer"
        }
    }
}

fn log_end_of_proposal(outcome: &ProposalOutcome) {
    match outcome {
        ProposalOutcome::Decided(record) => {
            tracing::info!(epoch = record.epoch.0, "the layout record that this node proposed is decided");
        }
        ProposalOutcome::OtherDecided(record) | ProposalOutcome::Overtaken(record) => {
            tracing::info!(
                epoch = record.epoch.0,
                "another layout record than the one of this node is decided"
            );
        }
        ProposalOutcome::TimedOut => tracing::info!(
            "too few voters have answered a proposal of this node in time: the layout record stays as it is"
        ),
    }
}
