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

use super::context::{Asking, Context};
use super::number::Step;
use super::peers::Availability;
use super::put::Write;
use super::table::OperationId;
use crate::replica_set::ReplicaSet;
use crate::{Event, PeerAnswer, PeerRequest};

/// How often hints are asked to be kept.
const ATTEMPTS_MAX: u8 = 2;

/// How far the hints of a write have come that its hint holder did not take along.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Keeping {
    /// Attempts that were made.
    attempts: u8,
    /// Who has been asked and has not answered.
    keeper: Option<u8>,
    tried: ReplicaSet,
    is_done: bool,
}

/// What is left of an operation after its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Nothing.
    Done,
    /// Answers that are still to come.
    Waits,
    /// A request was made that has all the time of a new one.
    BeginsAnew,
}

impl Write {
    /// Does what is to be done after the reply.
    pub(super) fn follow_up(&mut self, context: &mut Context, id: OperationId) -> Rest {
        if !self.open.is_empty() || self.keeping.keeper.is_some() {
            return Rest::Waits;
        }
        if self.keep_hints(context, id) { Rest::BeginsAnew } else { Rest::Done }
    }

    /// Waits for no answer any more.
    pub(super) fn give_up(&mut self, context: &mut Context) {
        for place in std::mem::take(&mut self.open) {
            context.end_request(context.node(&self.subject, place), self.bytes);
        }
        if let Some(keeper) = self.keeping.keeper.take() {
            context.end_request(context.node(&self.subject, keeper), 0);
        }
    }

    /// Takes the answer of a replica that was asked to keep hints.
    pub(super) fn take_hints_kept(
        &mut self,
        context: &mut Context,
        place: u8,
        attempt: u8,
        answer: &PeerAnswer,
    ) {
        if self.keeping.keeper == Some(place) && self.keeping.attempts == attempt + 1 {
            self.lose_keeper(context, place);
            self.keeping.is_done = *answer == PeerAnswer::HintsKept;
        }
    }

    /// Whether this replica keeps hints, it will not say. Whether it was asked to.
    pub(super) fn lose_keeper(&mut self, context: &mut Context, place: u8) -> bool {
        let was_asked = self.keeping.keeper.take_if(|keeper| *keeper == place).is_some();
        if was_asked {
            context.end_request(context.node(&self.subject, place), 0);
        }
        was_asked
    }

    /// Asks a replica to keep what hints are missing; `false`: none are, or nobody can.
    fn keep_hints(&mut self, context: &mut Context, id: OperationId) -> bool {
        let missing = self.missing();
        if missing.is_empty() || self.keeping.is_done || self.tally.acked().is_empty() {
            return false;
        }
        let targets = context.nodes(&self.subject, missing);
        if self.keeping.attempts < ATTEMPTS_MAX
            && let Some(place) = self.choose_keeper(context)
        {
            let step = Step::Hints { attempt: self.keeping.attempts };
            self.keeping.attempts += 1;
            self.keeping.tried.insert(place);
            let (key, version) = (self.subject.key.clone(), self.version);
            let node = context.node(&self.subject, place);
            let asking = Asking { operation: id, step, node, deadline: None };
            let asked = context.ask(asking, PeerRequest::KeepHints { key, version, targets }, 0);
            self.keeping.keeper = asked.then_some(place);
            return asked;
        }
        for target in targets.iter() {
            context.member.hints.count_dropped(target, 1);
            context.tell(Event::HintDropped { target });
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
        (self.tally.acked().without(self.keeping.tried))
            .map(|place| (place, context.node(&self.subject, place)))
            .filter(|&(_, node)| context.can_write(node, 0, false) == Availability::Ready)
            .min_by_key(|&(_, node)| context.read_rank(node))
            .map(|(place, _)| place)
    }
}
