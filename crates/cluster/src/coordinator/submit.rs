//! The beginning of reads and writes: at once, or later if they have to wait.
//!
//! A write is planned once each time that it can begin: when it is submitted, and when what it
//! waited for has come. The plan is then either carried out or is the reason of its failure.

use super::context::{CoordinatorInput, ReplyTo};
use super::get::{Read, ReadTimes};
use super::link_wait::LinkWaiter;
use super::peers::WritePacing;
use super::put::{self, Write, WriteIntent, WritePlan};
use super::request_number::OperationId;
use super::{Coordinator, Operation, OperationState};
use crate::{Command, CommandFailure, Event, Key, Quorum, Reply, RequestId, TickError, WaitTarget};
use limits::Deadline;
use stdx::{Cell, Hlc, Now, Version};

impl Coordinator {
    pub(super) fn submit_operation(
        &mut self,
        input: CoordinatorInput,
        to: RequestId,
        command: Command,
        pacing: WritePacing,
    ) {
        if self.operations.is_full() {
            self.context.outbox.emit(Event::Refused);
            let retry_after = self.context.peers.retry_after();
            let failure = CommandFailure::Overloaded { retry_after };
            return self.context.reply(input, to, Reply::Failed(failure));
        }
        match command {
            Command::Get { key, quorum } => self.submit_get(input, to.into(), key, quorum),
            Command::Put { key, value, lifetime, quorum } => match put::expiry(input.now.wall, lifetime) {
                Ok(expires_at) => {
                    let subject = self.context.peers.subject(key);
                    let intent = WriteIntent::value(subject, value, expires_at, quorum);
                    self.submit_write(input, to, intent, pacing);
                }
                Err(failure) => self.context.reply(input, to, Reply::Failed(failure)),
            },
            Command::Delete { key, quorum } => {
                let subject = self.context.peers.subject(key);
                self.submit_write(input, to, WriteIntent::tombstone(subject, quorum), pacing);
            }
            Command::Scan { .. } | Command::NextPage { .. } => unreachable!("scans are handled before"),
        }
    }

    pub(super) fn submit_get(&mut self, input: CoordinatorInput, to: ReplyTo, key: Key, quorum: Quorum) {
        let (now, peers) = (input.now, &self.context.peers);
        let deadline = now.mono + peers.limits.request_timeout;
        let times = ReadTimes { started: now.mono, deadline };
        let mut read = Read::new(peers, times, peers.subject(key), quorum);
        if let Some(failure) = read.fail_at_once(peers) {
            let waiter = LinkWaiter::Read { subject: read.subject, quorum };
            return self.fail_or_wait_for_links(input, to, waiter, failure);
        }
        let id = self.operations.insert(deadline, Operation::new(to, OperationState::Read(read)));
        self.begin_read(now, id);
    }

    /// Begins a read that waited for links, or returns its failure.
    pub(super) fn try_begin_read(
        &mut self,
        now: Now,
        id: OperationId,
        mut read: Read,
    ) -> Result<(), CommandFailure> {
        if let Some(failure) = read.fail_at_once(&self.context.peers) {
            return Err(failure);
        }
        self.operations.get_mut(id).expect("the operation is in the table").state =
            OperationState::Read(read);
        self.begin_read(now, id);
        Ok(())
    }

    fn begin_read(&mut self, now: Now, id: OperationId) {
        let operation = self.operations.get_mut(id).expect("it was just inserted");
        let OperationState::Read(read) = &mut operation.state else {
            unreachable!("it is a read");
        };
        read.begin(&mut self.context.of(now, id));
    }

    fn submit_write(
        &mut self,
        input: CoordinatorInput,
        to: RequestId,
        intent: WriteIntent,
        pacing: WritePacing,
    ) {
        let now = input.now;
        let plan = match self.plan(now, &intent, pacing) {
            Ok(plan) => plan,
            Err(failure) => {
                let waiter = LinkWaiter::Write(Box::new(intent));
                return self.fail_or_wait_for_links(input, to.into(), waiter, failure);
            }
        };
        let deadline = now.mono + self.context.peers.limits.request_timeout;
        match self.tick(now) {
            Ok(hlc) if self.context.peers.is_ahead(now, hlc) => {
                self.context.reply(input, to, Reply::Failed(put::clock_ahead_failure(&intent)));
            }
            Ok(hlc) => {
                let (write, cell) = self.planned_write(intent, plan, hlc);
                let operation = Operation::new(to.into(), OperationState::Write(write));
                let id = self.operations.insert(deadline, operation);
                self.send_write(now, id, cell);
                self.report_clock_setback(now, hlc);
            }
            Err(TickError::Unheard) => {
                let failure = put::no_version_failure(&intent);
                let waiter = LinkWaiter::Write(Box::new(intent));
                return self.fail_or_wait_for_links(input, to.into(), waiter, failure);
            }
            Err(TickError::Ahead) => {
                self.context.reply(input, to, Reply::Failed(put::clock_ahead_failure(&intent)));
            }
            Err(TickError::Exhausted) => {
                let state = OperationState::Parked(Box::new(intent));
                let id = self.operations.insert(deadline, Operation::new(to.into(), state));
                self.bound.park(id);
            }
        }
        self.maintain_clock_bound(now);
    }

    /// Begins a write that was parked, now that there is a version for it.
    pub(super) fn resume_write(&mut self, now: Now, id: OperationId, hlc: Hlc) {
        let operation = self.operations.get_mut(id).expect("parked writes are in the table");
        let OperationState::Parked(intent) =
            std::mem::replace(&mut operation.state, OperationState::Starting)
        else {
            unreachable!("only parked writes wait for the clock's bound");
        };
        let planned = match WritePlan::of(&self.context.peers, intent.requirements(WritePacing::Unpaced)) {
            Ok(_) if self.context.peers.is_ahead(now, hlc) => Err(put::clock_ahead_failure(&intent)),
            planned => planned,
        };
        match planned {
            Ok(plan) => {
                operation.wait.end_span(WaitTarget::ClockBound, now.mono);
                self.begin_write(now, id, *intent, plan, hlc);
            }
            Err(failure) => self.fail_operation(id, WaitTarget::ClockBound, failure),
        }
    }

    /// Begins a write that waited, with this version, at the replicas of its plan.
    pub(super) fn begin_write(
        &mut self,
        now: Now,
        id: OperationId,
        intent: WriteIntent,
        plan: WritePlan,
        hlc: Hlc,
    ) {
        let (write, cell) = self.planned_write(intent, plan, hlc);
        self.operations.get_mut(id).expect("the operation is in the table").state =
            OperationState::Write(write);
        self.send_write(now, id, cell);
    }

    fn planned_write(&self, intent: WriteIntent, plan: WritePlan, hlc: Hlc) -> (Write, Cell) {
        let (subject, cell) = intent.into_parts(Version::new(hlc, self.context.peers.member.tag));
        (Write::new(plan, subject, &cell), cell)
    }

    pub(super) fn send_write(&mut self, now: Now, id: OperationId, cell: Cell) {
        let deadline = self.operations.deadline(id).map_or(Deadline::NEVER, Deadline::at);
        let operation = self.operations.get_mut(id).expect("the operation is in the table");
        let OperationState::Write(write) = &mut operation.state else {
            unreachable!("it is a write");
        };
        write.send(&mut self.context.of(now, id), deadline, cell);
    }

    /// Removes an operation that failed after it had waited for this target.
    pub(super) fn fail_operation(
        &mut self,
        id: OperationId,
        waited_for: WaitTarget,
        failure: CommandFailure,
    ) {
        let mut operation = self.operations.remove(id).expect("the operation is in the table");
        let wait = operation.wait.take(waited_for);
        self.context.reply_after(wait, operation.to, Reply::Failed(failure));
    }

    /// The replicas that a write can ask now; the failure if these are too few.
    pub(super) fn plan(
        &self,
        now: Now,
        intent: &WriteIntent,
        pacing: WritePacing,
    ) -> Result<WritePlan, CommandFailure> {
        if self.context.peers.member.clock.check_wall(now) == Err(TickError::Ahead) {
            return Err(put::clock_ahead_failure(intent));
        }
        WritePlan::of(&self.context.peers, intent.requirements(pacing))
    }
}
