//! Work of a write after its reply: replicas that have not answered.
//!
//! **Promise.** For each replica that did not store a write which another stored, a hint is kept or
//! counted as dropped when the last answer is in, or at the deadline. The replica that keeps the
//! hint has stored the write.
//!
//! **Mechanism.** After the reply a write retains key, version and answers, not the value. Hints
//! that the hint holder stored with the write need no further work. For the others one replica that
//! stored the write is asked to keep them, preferably this node; if that fails, another one.
//!
//! **Caveats.** Operations that have replied are bounded: beyond the bound the oldest ends early,
//! and does not wait for confirmation of its hints. If the process dies, its pending hints are
//! lost, until a read or anti-entropy finds the difference.

use super::context::{FollowUp, OperationContext, RequestTarget};
use super::peers::{Availability, Peers};
use super::put::Write;
use super::request_number::Step;
use crate::replica_set::ReplicaSet;
use crate::{Event, ReplicaOutcome, ReplicaRequest, ReplicaResponse};
use limits::Deadline;

/// Greatest number of attempts to store hints.
const ATTEMPTS_MAX: u8 = 2;

/// State of the hints of a write that its hint holder did not store.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DeferredHints {
    /// Attempts made.
    attempts: u8,
    /// The replica that has been asked and has not answered.
    keeper: Option<u8>,
    tried: ReplicaSet,
    is_done: bool,
}

impl Write {
    /// Does the work after the reply.
    pub(super) fn follow_up(&mut self, cx: &mut OperationContext<'_>) -> FollowUp {
        if !self.open.is_empty() || self.deferred_hints.keeper.is_some() {
            return FollowUp::AwaitsReplicas;
        }
        if self.request_hints(cx) { FollowUp::DeadlineExtended } else { FollowUp::Done }
    }

    /// Stops waiting for answers.
    pub(super) fn abandon(&mut self, cx: &mut OperationContext<'_>) {
        for replica_index in std::mem::take(&mut self.open) {
            cx.end_request(cx.peers.node(&self.subject, replica_index), self.bytes);
        }
        if let Some(keeper) = self.deferred_hints.keeper.take() {
            cx.end_request(cx.peers.node(&self.subject, keeper), 0);
        }
    }

    /// Handles the outcome of asking a replica to keep hints.
    pub(super) fn handle_hints_outcome(
        &mut self,
        cx: &mut OperationContext<'_>,
        replica_index: u8,
        attempt: u8,
        outcome: &ReplicaOutcome,
    ) {
        if self.deferred_hints.keeper == Some(replica_index) && self.deferred_hints.attempts == attempt + 1 {
            self.release_hint_keeper(cx, replica_index);
            self.deferred_hints.is_done = *outcome == Ok(ReplicaResponse::HintsKept);
        }
    }

    /// Stops waiting for the hint keeper if it is this replica, which will not answer. Returns
    /// whether it was.
    pub(super) fn release_hint_keeper(&mut self, cx: &mut OperationContext<'_>, replica_index: u8) -> bool {
        let was_asked = self.deferred_hints.keeper.take_if(|keeper| *keeper == replica_index).is_some();
        if was_asked {
            cx.end_request(cx.peers.node(&self.subject, replica_index), 0);
        }
        was_asked
    }

    /// Asks a replica to keep the missing hints; returns `false` if none are missing, or no replica
    /// can keep them.
    fn request_hints(&mut self, cx: &mut OperationContext<'_>) -> bool {
        let missing = self.missing();
        if missing.is_empty() || self.deferred_hints.is_done || self.tally.acked().is_empty() {
            return false;
        }
        let targets = cx.peers.nodes(&self.subject, missing);
        if self.deferred_hints.attempts < ATTEMPTS_MAX
            && let Some(replica_index) = self.choose_keeper(cx.peers)
        {
            let step = Step::Hints { attempt: self.deferred_hints.attempts };
            self.deferred_hints.attempts += 1;
            self.deferred_hints.tried.insert(replica_index);
            let (key, version) = (self.subject.key.clone(), self.version);
            let node = cx.peers.node(&self.subject, replica_index);
            let target = RequestTarget { step, node, deadline: Deadline::NEVER, epoch: self.epoch };
            let asked = cx.ask(target, ReplicaRequest::KeepHints { key, version, targets }, 0);
            self.deferred_hints.keeper = asked.then_some(replica_index);
            return asked;
        }
        for target in targets.iter() {
            cx.peers.member.hints.count_dropped(target, 1);
            cx.outbox.emit(Event::HintDropped { target });
        }
        false
    }

    /// The replicas that, as far as known, have not stored the write, and for which no hint is
    /// kept.
    fn missing(&self) -> ReplicaSet {
        let acked = self.tally.acked();
        let is_hinted = self.holder.is_some_and(|holder| acked.contains(holder));
        let hinted = if is_hinted { self.hinted } else { ReplicaSet::EMPTY };
        self.tally.unacked().without(hinted)
    }

    /// Of the replicas that stored the write: this node, else the one with the best read rank.
    fn choose_keeper(&self, peers: &Peers) -> Option<u8> {
        (self.tally.acked().without(self.deferred_hints.tried))
            .map(|replica_index| (replica_index, peers.node(&self.subject, replica_index)))
            .filter(|&(_, node)| peers.can_write(node, 0, false) == Availability::Ready)
            .min_by_key(|&(_, node)| peers.read_rank(node))
            .map(|(replica_index, _)| replica_index)
    }
}
