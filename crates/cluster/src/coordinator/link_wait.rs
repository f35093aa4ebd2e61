//! Operations that wait for links.
//!
//! **Promise.** An operation fails at once for lack of replicas only if the missing ones are known
//! to be unreachable or, for a read, to be rebuilding. A peer may be alive but not linked yet, or
//! not know yet whether it is read-eligible. An operation that needs it then waits up to its
//! deadline, with nothing sent or stored. So does a write while no peer has reported its time yet.
//!
//! **Mechanism.** Only an operation that would fail is checked, so other operations pay nothing. A
//! waiting operation is retried at each change of the view, of a link, or of the clock's bound.

use super::context::{CoordinatorInput, ReplyTo};
use super::get::{Read, ReadTimes};
use super::peers::{Availability, Peers, Subject, WritePacing};
use super::put::{self, WriteIntent, WritePlan};
use super::request_number::OperationId;
use super::{Coordinator, Operation, OperationState};
use crate::quorum::Tally;
use crate::replica_set::ReplicaSet;
use crate::{CommandFailure, Quorum, Reply, Shortfall, TickError, WaitTarget};
use std::collections::VecDeque;
use stdx::Now;

/// An operation that waits for links.
#[derive(Debug)]
pub(super) enum LinkWaiter {
    Read { subject: Subject, quorum: Quorum },
    Write(Box<WriteIntent>),
}

/// The waiting operations, in the order of submission and of their deadlines; all of them are in
/// the table.
#[derive(Debug, Default)]
pub(super) struct LinkWaitQueue(VecDeque<OperationId>);

impl LinkWaitQueue {
    /// Takes out the operation that has waited longest.
    pub(super) fn pop(&mut self) -> Option<OperationId> {
        self.0.pop_front()
    }
}

impl LinkWaiter {
    /// The failure of the operation at its deadline.
    pub(super) fn deadline_failure(&self, peers: &Peers) -> CommandFailure {
        let shortfall = match self {
            // Its links are open, and the clock has reached its bound.
            Self::Write(intent)
                if WritePlan::of(peers, intent.requirements(WritePacing::Unpaced)).is_ok() =>
            {
                Shortfall::NoVersion
            }
            Self::Read { .. } | Self::Write(_) => Shortfall::Unreachable,
        };
        let (_, quorum) = self.subject_and_quorum();
        Tally::new(quorum).short(shortfall)
    }

    fn subject_and_quorum(&self) -> (&Subject, Quorum) {
        match self {
            Self::Read { subject, quorum } => (subject, *quorum),
            Self::Write(intent) => intent.subject_and_quorum(),
        }
    }
}

impl Coordinator {
    /// Fails an operation that cannot be started now, or makes it wait for links.
    pub(super) fn fail_or_wait_for_links(
        &mut self,
        input: CoordinatorInput,
        to: ReplyTo,
        waiter: LinkWaiter,
        failure: CommandFailure,
    ) {
        if !self.may_wait_for_links(&waiter, &failure) {
            return self.context.reply(input, to, Reply::Failed(failure));
        }
        let deadline = input.now.mono + self.context.peers.limits.request_timeout;
        let state = OperationState::WaitingForLinks(waiter);
        let id = self.operations.insert(deadline, Operation::new(to, state));
        self.link_waiters.0.push_back(id);
    }

    /// Retries the waiting operations.
    pub(super) fn resume_link_waiters(&mut self, now: Now) {
        for id in std::mem::take(&mut self.link_waiters.0) {
            let operation = self.operations.get_mut(id).expect("waiting operations are in the table");
            operation.wait.end_span(WaitTarget::Links, now.mono);
            let OperationState::WaitingForLinks(waiter) =
                std::mem::replace(&mut operation.state, OperationState::Starting)
            else {
                unreachable!("only operations in the queue wait for links");
            };
            match waiter {
                LinkWaiter::Read { subject, quorum } => self.resume_waiting_read(now, id, subject, quorum),
                LinkWaiter::Write(intent) => self.resume_waiting_write(now, id, intent),
            }
        }
    }

    fn resume_waiting_read(&mut self, now: Now, id: OperationId, subject: Subject, quorum: Quorum) {
        let deadline = self.operations.deadline(id).expect("the operation is in the table");
        let times = ReadTimes { started: now.mono, deadline };
        let read = Read::new(&self.context.peers, times, subject.clone(), quorum);
        match self.try_begin_read(now, id, read) {
            Ok(()) => {}
            Err(failure) => self.fail_or_requeue(id, LinkWaiter::Read { subject, quorum }, failure),
        }
    }

    fn resume_waiting_write(&mut self, now: Now, id: OperationId, intent: Box<WriteIntent>) {
        let plan = match self.plan(now, &intent, WritePacing::Unpaced) {
            Ok(plan) => plan,
            Err(failure) => return self.fail_or_requeue(id, LinkWaiter::Write(intent), failure),
        };
        match self.tick(now) {
            Ok(hlc) if self.context.peers.is_ahead(now, hlc) => {
                self.fail_operation(id, WaitTarget::ClockBound, put::clock_ahead_failure(&intent));
            }
            Ok(hlc) => self.begin_write(now, id, *intent, plan, hlc),
            Err(TickError::Ahead) => {
                let failure = put::clock_ahead_failure(&intent);
                self.fail_or_requeue(id, LinkWaiter::Write(intent), failure);
            }
            Err(TickError::Exhausted | TickError::Unheard) => self.requeue(id, LinkWaiter::Write(intent)),
        }
        self.maintain_clock_bound(now);
    }

    fn fail_or_requeue(&mut self, id: OperationId, waiter: LinkWaiter, failure: CommandFailure) {
        if self.may_wait_for_links(&waiter, &failure) {
            self.requeue(id, waiter);
        } else {
            self.fail_operation(id, WaitTarget::Links, failure);
        }
    }

    fn requeue(&mut self, id: OperationId, waiter: LinkWaiter) {
        self.operations.get_mut(id).expect("the operation is in the table").state =
            OperationState::WaitingForLinks(waiter);
        self.link_waiters.0.push_back(id);
    }

    /// Whether an operation failed only because live peers cannot be asked yet.
    fn may_wait_for_links(&self, waiter: &LinkWaiter, failure: &CommandFailure) -> bool {
        let (subject, quorum) = waiter.subject_and_quorum();
        let quorum = self.context.peers.possible(quorum);
        let can_ask = |replica_index: &u8| {
            let node = self.context.peers.node(subject, *replica_index);
            if matches!(waiter, LinkWaiter::Read { .. })
                && self.context.peers.refused_replica_index(subject) == Some(*replica_index)
            {
                return false;
            }
            let (availability, can_link_soon) = match waiter {
                LinkWaiter::Read { .. } => {
                    (self.context.peers.can_read(node), self.context.peers.can_read_soon(node))
                }
                LinkWaiter::Write(_) => {
                    (self.context.peers.can_write(node, 0, false), self.context.peers.can_link_soon(node))
                }
            };
            availability != Availability::Unavailable || can_link_soon
        };
        let sets = match waiter {
            LinkWaiter::Read { .. } => self.context.peers.readers(subject, quorum),
            LinkWaiter::Write(_) => self.context.peers.write_sets(subject, quorum),
        };
        let soon: ReplicaSet = sets.union().filter(can_ask).collect();
        matches!(failure, CommandFailure::NotEnoughReplicas { .. }) && quorum.is_met_by(sets.count(soon))
    }
}
