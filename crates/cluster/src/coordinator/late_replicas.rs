//! What remains of a write after its reply: replicas that have not answered.
//!
//! **Promise.** For each replica that did not store a write which another stored, a hint is kept or counted as
//! dropped: when the last answer is in, or at the deadline. Whoever keeps it has stored the write.
//!
//! **Mechanism.** After the reply a write holds key, version and who answered, not the value. Hints that the hint
//! holder took along with the write need nothing more. For the others one replica that stored it is asked to keep
//! them, this node itself where it can; if that fails, another one.
//!
//! **Caveats.** Stragglers are bounded: past the bound the oldest ends early, and whether its hints are kept is not
//! waited for. Those of a process that dies are gone with it, until a read or anti-entropy finds the difference.

use super::context::{Context, RequestTarget};
use super::peers::Availability;
use super::put::Write;
use super::request_number::Step;
use super::table::OperationId;
use crate::replica_set::ReplicaSet;
use crate::{Event, PeerAnswer, PeerRequest};

/// How often hints are asked to be kept.
const ATTEMPTS_MAX: u8 = 2;

/// How far the hints of a write have come that its hint holder did not take along.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DeferredHints {
    /// Attempts that were made.
    attempts: u8,
    /// Who has been asked and has not answered.
    keeper: Option<u8>,
    tried: ReplicaSet,
    is_done: bool,
}

/// What is left of an operation after its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FollowUp {
    /// Nothing.
    Done,
    /// ReadAnswers that are still to come.
    AwaitsReplicas,
    /// A request was made that has all the time of a new one.
    DeadlineExtended,
}

impl Write {
    /// Does what is to be done after the reply.
    pub(super) fn follow_up(&mut self, context: &mut Context, id: OperationId) -> FollowUp {
        if !self.open.is_empty() || self.deferred_hints.keeper.is_some() {
            return FollowUp::AwaitsReplicas;
        }
        if self.request_hints(context, id) { FollowUp::DeadlineExtended } else { FollowUp::Done }
    }

    /// Waits for no answer any more.
    pub(super) fn abandon(&mut self, context: &mut Context) {
        for replica_index in std::mem::take(&mut self.open) {
            context.end_request(context.node(&self.subject, replica_index), self.bytes);
        }
        if let Some(keeper) = self.deferred_hints.keeper.take() {
            context.end_request(context.node(&self.subject, keeper), 0);
        }
    }

    /// Takes the answer of a replica that was asked to keep hints.
    pub(super) fn handle_hints_answer(
        &mut self,
        context: &mut Context,
        replica_index: u8,
        attempt: u8,
        answer: &PeerAnswer,
    ) {
        if self.deferred_hints.keeper == Some(replica_index) && self.deferred_hints.attempts == attempt + 1 {
            self.release_hint_keeper(context, replica_index);
            self.deferred_hints.is_done = *answer == PeerAnswer::HintsKept;
        }
    }

    /// Whether this replica keeps hints, it will not say. Whether it was asked to.
    pub(super) fn release_hint_keeper(&mut self, context: &mut Context, replica_index: u8) -> bool {
        let was_asked = self.deferred_hints.keeper.take_if(|keeper| *keeper == replica_index).is_some();
        if was_asked {
            context.end_request(context.node(&self.subject, replica_index), 0);
        }
        was_asked
    }

    /// Asks a replica to keep what hints are missing; `false`: none are, or nobody can.
    fn request_hints(&mut self, context: &mut Context, id: OperationId) -> bool {
        let missing = self.missing();
        if missing.is_empty() || self.deferred_hints.is_done || self.tally.acked().is_empty() {
            return false;
        }
        let targets = context.nodes(&self.subject, missing);
        if self.deferred_hints.attempts < ATTEMPTS_MAX
            && let Some(replica_index) = self.choose_keeper(context)
        {
            let step = Step::Hints { attempt: self.deferred_hints.attempts };
            self.deferred_hints.attempts += 1;
            self.deferred_hints.tried.insert(replica_index);
            let (key, version) = (self.subject.key.clone(), self.version);
            let node = context.node(&self.subject, replica_index);
            let target = RequestTarget { operation: id, step, node, deadline: None };
            let asked = context.ask(target, PeerRequest::KeepHints { key, version, targets }, 0);
            self.deferred_hints.keeper = asked.then_some(replica_index);
            return asked;
        }
        for target in targets.iter() {
            context.member.hints.count_dropped(target, 1);
            context.emit(Event::HintDropped { target });
        }
        false
    }

    /// The replicas that have not stored it, as far as is known, and for which no hint is kept.
    fn missing(&self) -> ReplicaSet {
        let acked = self.tally.acked();
        let is_hinted = self.holder.is_some_and(|holder| acked.contains(holder));
        let hinted = if is_hinted { self.hinted } else { ReplicaSet::EMPTY };
        ReplicaSet::first(self.tally.quorum().from()).without(acked).without(hinted)
    }

    /// Of those that stored it: this node, else the one that answers fastest.
    fn choose_keeper(&self, context: &Context) -> Option<u8> {
        (self.tally.acked().without(self.deferred_hints.tried))
            .map(|replica_index| (replica_index, context.node(&self.subject, replica_index)))
            .filter(|&(_, node)| context.can_write(node, 0, false) == Availability::Ready)
            .min_by_key(|&(_, node)| context.read_rank(node))
            .map(|(replica_index, _)| replica_index)
    }
}
