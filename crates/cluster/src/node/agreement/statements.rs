//! The statements of nodes about the running plan, for its drivers.
//!
//! **Promise.** A statement is made only after its fact. It is sent to all peers at once, and
//! repeated in each heartbeat until the record has changed. A driver that hears news looks for the
//! next step at once.
//!
//! **Mechanism.** The fence that a node states is that of its process ([`Node::fenced`]). A copy is
//! stated once it is durable (`copying`). See [`PlanStatements`] for the form in which they are
//! sent.
//!
//! **Caveats.** Nothing is durable here: after a restart the copies are found complete again. A
//! copy of an attempt that the adopted record does not have is forgotten.

use super::super::Node;
use crate::{
    HeartbeatPayload, LayoutEpoch, LayoutRecord, LayoutStamp, NodeIndex, PlanStatements, SwapAttempt,
};
use std::collections::BTreeSet;
use stdx::{NodeTag, Now};

/// The statements of this node.
#[derive(Debug, Default)]
pub(super) struct OwnStatements {
    /// The fence that peers were last told at once.
    told_fence: Option<LayoutEpoch>,
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

    /// The statements that a step of the plan may depend on.
    fn without_progress(self) -> Self {
        Self { statements: PlanStatements { copying: None, ..self.statements }, ..self }
    }
}

impl OwnStatements {
    /// Forgets the copies that the record `adopted` does not wait for.
    pub(super) fn record_adopted(&mut self, adopted: &LayoutRecord) {
        let attempts: BTreeSet<_> =
            adopted.swaps().iter().filter_map(|swap| adopted.attempt_of(swap)).collect();
        self.complete.retain(|attempt| attempts.contains(attempt));
    }
}

impl Node {
    /// Tells the peers at once that this process has fenced a later epoch.
    pub(super) fn tell_fence(&mut self, now: Now) {
        let fenced = self.stated_fence();
        let Some(agreement) = &mut self.agreement else { return };
        if std::mem::replace(&mut agreement.statements.told_fence, fenced) < fenced {
            self.send_statements(now);
        }
    }

    /// The fence of this process. `None`: no partition has changed in an epoch that it has fenced.
    fn stated_fence(&self) -> Option<LayoutEpoch> {
        Some(self.fenced()).filter(|epoch| *epoch > LayoutEpoch::FIRST)
    }

    /// Records that this node durably holds all that it copies in `attempt`. Its copy began after
    /// the loser had fenced the PREPARE of the attempt, or, if the loser is dead, after enough of
    /// the other replicas had. Has no effect if the adopted record does not have the attempt.
    pub(in crate::node) fn state_copied(&mut self, now: Now, attempt: SwapAttempt) {
        let own_id = self.member.tag;
        let Some(agreement) = &mut self.agreement else { return };
        let adopted = &agreement.adopted.record;
        let mut attempts = adopted.swaps().iter().filter_map(|swap| adopted.attempt_of(swap));
        let is_awaited = attempt.gainer == own_id && attempts.any(|other| other == attempt);
        if is_awaited && agreement.statements.complete.insert(attempt) {
            self.send_statements(now);
        }
    }

    /// States no copy any more, because data was lost.
    pub(in crate::node) fn retract_copies(&mut self) {
        if let Some(agreement) = &mut self.agreement {
            agreement.statements.complete.clear();
        }
    }

    /// The statements of this node about the plan of the record that it has adopted.
    pub(in crate::node) fn plan_statements(&self) -> PlanStatements {
        let Some(agreement) = &self.agreement else { return PlanStatements::default() };
        let complete = agreement.adopted.record.swaps_with_copies(&agreement.statements.complete);
        let (is_purging, copying) = (self.is_purging(), self.copies_progress());
        PlanStatements { fenced: self.stated_fence(), complete, is_purging, copying }
    }

    /// Records the statements of the node with this id about a running plan.
    pub(in crate::node) fn record_stated_plan(
        &mut self,
        now: Now,
        node: NodeIndex,
        id: NodeTag,
        its: &HeartbeatPayload,
    ) {
        let Some(stamp) = its.layout else { return };
        let stated = StatedPlan { id, stamp, statements: its.plan };
        let before = self.peer_mut(node).stated_plan.replace(stated);
        let is_news = before.is_none_or(|before| before.without_progress() != stated.without_progress());
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
    }
}
