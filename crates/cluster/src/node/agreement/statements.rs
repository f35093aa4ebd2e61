//! What nodes state about the running plan, for its drivers.
//!
//! **Promise.** A statement is made only after the host has reported the fact. It is sent to all
//! peers at once, and repeated in each heartbeat until the record has changed. A driver that hears
//! news looks for the next step at once.
//!
//! **Mechanism.** The host reports an epoch once all its threads have fenced it, and a copy once it
//! is durable. See [`PlanStatements`] for the form in which they are sent.
//!
//! **Caveats.** Nothing is durable here: after a restart the host reports again. A copy of an
//! attempt that the adopted record does not have is forgotten.

use super::super::Node;
use crate::{
    HeartbeatPayload, LayoutEpoch, LayoutRecord, LayoutStamp, NodeIndex, PlanStatements, SwapAttempt,
};
use std::collections::BTreeSet;
use stdx::{NodeTag, Now};

/// The statements of this node.
#[derive(Debug, Default)]
pub(super) struct OwnStatements {
    fenced: Option<LayoutEpoch>,
    /// The complete copies of the adopted record: at most as many as a plan has swaps.
    complete: BTreeSet<SwapAttempt>,
}

/// The last statements of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::node) struct StatedPlan {
    /// Id of the node that states them.
    id: NodeTag,
    /// The record that they are about.
    stamp: LayoutStamp,
    statements: PlanStatements,
}

impl StatedPlan {
    /// The statements of the node with this id about the record with this stamp.
    pub(super) fn of(&self, id: NodeTag, stamp: Option<LayoutStamp>) -> Option<PlanStatements> {
        (self.id == id && stamp == Some(self.stamp)).then_some(self.statements)
    }
}

impl OwnStatements {
    /// The statements about the plan of `adopted`.
    fn about(&self, adopted: &LayoutRecord) -> PlanStatements {
        PlanStatements { fenced: self.fenced, complete: adopted.swaps_with_copies(&self.complete) }
    }

    /// Forgets the copies that the record `adopted` does not wait for.
    pub(super) fn record_adopted(&mut self, adopted: &LayoutRecord) {
        let attempts: BTreeSet<_> =
            adopted.swaps().iter().filter_map(|swap| adopted.attempt_of(swap)).collect();
        self.complete.retain(|attempt| attempts.contains(attempt));
    }
}

impl Node {
    /// Records that this process has fenced `epoch`: it holds a record of this epoch or a later one
    /// durably, all its threads use it, and all requests that were planned before the epoch have
    /// ended. Has no effect while this node takes no part in the agreement.
    ///
    /// # Panics
    /// If this node has not adopted a record of the epoch.
    pub fn handle_fenced(&mut self, now: Now, epoch: LayoutEpoch) {
        let Some(agreement) = &mut self.agreement else { return };
        assert!(epoch <= agreement.adopted.record.epoch, "a node fences what it has adopted");
        let is_news = agreement.statements.fenced.is_none_or(|fenced| fenced < epoch);
        if is_news {
            agreement.statements.fenced = Some(epoch);
            self.send_statements(now);
        }
    }

    /// Records that this node durably holds all that it copies in `attempt`. Its copy began after
    /// the loser had fenced the PREPARE of the attempt, or, if the loser is dead, after enough of
    /// the other replicas had. Has no effect if the adopted record does not have the attempt.
    pub fn handle_copied(&mut self, now: Now, attempt: SwapAttempt) {
        let own_id = self.member.tag;
        let Some(agreement) = &mut self.agreement else { return };
        let adopted = &agreement.adopted.record;
        let mut attempts = adopted.swaps().iter().filter_map(|swap| adopted.attempt_of(swap));
        let is_awaited = attempt.gainer == own_id && attempts.any(|other| other == attempt);
        if is_awaited && agreement.statements.complete.insert(attempt) {
            self.send_statements(now);
        }
    }

    /// The statements of this node about the plan of the record that it has adopted.
    pub(in crate::node) fn plan_statements(&self) -> PlanStatements {
        let agreement = self.agreement.as_ref();
        agreement.map_or_else(PlanStatements::default, |agreement| {
            agreement.statements.about(&agreement.adopted.record)
        })
    }

    /// Records what the node with this id has stated about a running plan.
    pub(in crate::node) fn record_stated_plan(
        &mut self,
        now: Now,
        node: NodeIndex,
        id: NodeTag,
        its: &HeartbeatPayload,
    ) {
        let Some(stamp) = its.layout else { return };
        let stated = StatedPlan { id, stamp, statements: its.plan };
        let is_news = self.peer_mut(node).stated_plan.replace(stated) != Some(stated);
        if is_news && self.has_running_plan() {
            self.reconcile(now);
        }
    }

    pub(super) fn has_running_plan(&self) -> bool {
        self.adopted_layout().is_some_and(|record| record.plan.is_some())
    }

    fn send_statements(&mut self, now: Now) {
        if self.has_running_plan() {
            self.send_heartbeats(now);
            self.reconcile(now);
        }
        self.advance(now);
    }
}
