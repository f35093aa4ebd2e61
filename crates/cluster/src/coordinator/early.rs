//! Operations that come before the links they need.
//!
//! **Promise.** An operation fails at once for want of replicas when those that miss are known to be unreachable or, if
//! it is a read, to be filled from others; and only then. While a peer lives, and there is no link to it yet, or it does not
//! know yet whether its answers count, an operation that needs it waits, with nothing sent or stored, up to its deadline.
//! So does a write while no peer has told its time yet.
//!
//! **Mechanism.** Only an operation that would fail is looked at, so this costs the others nothing. It is tried
//! again at each change of the view, of a link, or of the clock's bound.

use super::context::{Context, ReplyTo, Subject};
use super::get::{Read, Term};
use super::peers::Availability;
use super::put::{self, Plan, WriteIntent};
use super::table::OperationId;
use super::{Coordinator, Operation, Work};
use crate::quorum::Tally;
use crate::replica_set::ReplicaSet;
use crate::{Failure, Quorum, Reply, Shortfall, TickError, WaitTarget};
use std::collections::VecDeque;
use stdx::Now;

/// An operation that waits for links.
#[derive(Debug)]
pub(super) enum Early {
    Read { subject: Subject, quorum: Quorum },
    Write(Box<WriteIntent>),
}

/// Those that wait, in the order in which they came and reach their deadlines; all of them are in the table.
#[derive(Debug, Default)]
pub(super) struct EarlyQueue(VecDeque<OperationId>);

impl EarlyQueue {
    /// Takes out the one that has waited longest.
    pub(super) fn pop(&mut self) -> Option<OperationId> {
        self.0.pop_front()
    }
}

impl Early {
    /// Why it has failed at its deadline.
    pub(super) fn unsent(&self, context: &Context) -> Failure {
        let shortfall = match self {
            // Its links have come, and the clock has reached its bound.
            Self::Write(intent) if Plan::of(context, intent.demand()).is_ok() => Shortfall::NoVersion,
            Self::Read { .. } | Self::Write(_) => Shortfall::Unreachable,
        };
        let (_, quorum) = self.parts();
        Tally::new(quorum).short(shortfall)
    }

    fn parts(&self) -> (&Subject, Quorum) {
        match self {
            Self::Read { subject, quorum } => (subject, *quorum),
            Self::Write(intent) => intent.subject_and_quorum(),
        }
    }
}

impl Coordinator {
    /// Fails an operation that cannot be begun now, or lets it wait.
    pub(super) fn fail_or_wait(&mut self, now: Now, to: ReplyTo, early: Early, failure: Failure) {
        if !self.is_early(&early, &failure) {
            return self.context.reply(to, Reply::Failed(failure));
        }
        let deadline = now.mono + self.context.limits.request_timeout;
        let work = Work::Early(early);
        let id = self.operations.insert(deadline, Operation::new(to, work));
        self.early.0.push_back(id);
    }

    /// Tries again what waits.
    pub(super) fn resume_early(&mut self, now: Now) {
        for id in std::mem::take(&mut self.early.0) {
            let operation = self.operations.get_mut(id).expect("what waits is under way");
            operation.wait.end_span(WaitTarget::Links, now.mono);
            let Work::Early(early) = std::mem::replace(&mut operation.work, Work::Nothing) else {
                unreachable!("only what is early waits for links");
            };
            match early {
                Early::Read { subject, quorum } => self.resume_early_read(now, id, subject, quorum),
                Early::Write(intent) => self.resume_early_write(now, id, intent),
            }
        }
    }

    fn resume_early_read(&mut self, now: Now, id: OperationId, subject: Subject, quorum: Quorum) {
        let deadline = self.operations.deadline(id).expect("it is under way");
        let read = Read::new(Term { started: now.mono, deadline }, subject.clone(), quorum);
        match self.try_begin_read(now, id, read) {
            Ok(()) => {}
            Err(failure) => self.fail_or_wait_on(id, Early::Read { subject, quorum }, failure),
        }
    }

    fn resume_early_write(&mut self, now: Now, id: OperationId, intent: Box<WriteIntent>) {
        if let Err(failure) = self.plan(now, &intent) {
            return self.fail_or_wait_on(id, Early::Write(intent), failure);
        }
        self.tend_bound(now);
        let work = |operations: &mut super::OperationTable<Operation>, work| {
            operations.get_mut(id).expect("it is under way").work = work;
        };
        match self.tick(now) {
            Ok(hlc) => {
                work(&mut self.operations, Work::Parked(intent));
                self.resume_write(now, id, hlc);
            }
            Err(TickError::Ahead) => {
                let failure = put::clock_ahead(&intent);
                self.fail_or_wait_on(id, Early::Write(intent), failure);
            }
            Err(TickError::Exhausted | TickError::Unheard) => {
                work(&mut self.operations, Work::Early(Early::Write(intent)));
                self.early.0.push_back(id);
            }
        }
    }

    fn fail_or_wait_on(&mut self, id: OperationId, early: Early, failure: Failure) {
        if self.is_early(&early, &failure) {
            self.operations.get_mut(id).expect("it is under way").work = Work::Early(early);
            self.early.0.push_back(id);
        } else {
            let mut operation = self.operations.remove(id).expect("it is under way");
            let wait = operation.wait.take(WaitTarget::Links);
            self.context.reply_after(wait, operation.to, Reply::Failed(failure));
        }
    }

    /// Whether an operation failed only because peers that live cannot be asked yet.
    fn is_early(&self, early: &Early, failure: &Failure) -> bool {
        let (subject, quorum) = early.parts();
        let can_ask = |place: &u8| {
            let node = self.context.node(subject, *place);
            if matches!(early, Early::Read { .. }) && self.context.refused_place(subject) == Some(*place) {
                return false;
            }
            let (availability, is_expected) = match early {
                Early::Read { .. } => (self.context.can_read(node), self.context.is_expected_to_answer(node)),
                Early::Write(_) => (self.context.can_write(node, 0, false), self.context.is_expected(node)),
            };
            availability != Availability::Gone || is_expected
        };
        let soon = ReplicaSet::first(quorum.from()).filter(can_ask).count();
        matches!(failure, Failure::NotEnoughReplicas { .. }) && soon >= usize::from(quorum.ack())
    }
}
