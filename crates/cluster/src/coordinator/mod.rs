//! The coordinator: takes a command to its reply.
//!
//! **Promise.** Each [`Coordinator::submit`] gets exactly one [`Reply`], at the deadline at the
//! latest, and it is the last effect for that command. A write is acknowledged only by answers of
//! stores after they made it durable. A read is answered only by replicas that hold all that they
//! acknowledged. It never returns an older version than another read has returned, as far as
//! quorums overlap. Loss, repetition and reordering of messages do not affect these promises. A
//! command that is known not to reach its quorum is refused at once, with nothing sent or stored.
//!
//! **Mechanism.** A table of fixed size holds the operations in progress; a request to the store or
//! to a peer carries the id of its operation. The local replica is treated like any other.
//!
//! | module | is |
//! |---|---|
//! | `put` | writes |
//! | `clock_bound` | the durable bound of the version clock, and the writes that wait for it |
//! | `late_replicas` | the work of a write after its reply |
//! | `get` | reads |
//! | `read_repair` | the repairs of reads |
//! | `hedge` | reads whose answers are overdue |
//! | `links` | links to peers |
//! | `link_wait` | operations that wait for links |
//! | `admission` | admission control of writes |
//! | `scan` | scans |
//!
//! The driver calls one of the functions that take `now`. Then it carries out the effects of
//! [`poll_effect`](Coordinator::poll_effect), in order, until there are none. It calls
//! `handle_timeout` when [`poll_timeout`](Coordinator::poll_timeout) has passed; each of these
//! calls may have made that earlier. `now.mono` never goes back.
//!
//! Each request carries its deadline. Stores and peers drop requests that they have not started by
//! then.
//!
//! Each input first ends the operations whose deadline has passed, then takes effect. A process
//! that was suspended and continues therefore acknowledges nothing by answers that were waiting for
//! it. Replicas that rely on the deadline are not deceived: a node that
//! [rebuilds](crate::SyncState::Rebuilding) reads others only after it.
//!
//! **Caveats.** Nothing is cancelled: work that was started is carried out even if its deadline has
//! passed.

mod admission;
mod clock_bound;
mod context;
mod get;
mod hedge;
mod late_replicas;
mod latency;
mod link_wait;
mod links;
mod peers;
mod put;
mod read_answers;
mod read_repair;
mod request_number;
mod scan;
mod table;

use crate::node::GRACE_DEFAULT;
use crate::replica::{Replica, ReplicaContext, RequestHeader};
use crate::{
    ClusterView, Command, CommandFailure, Destination, Effect, Event, Member, Message, NodeIndex, Origin,
    ReplicaOutcome, ReplicaRequest, ReplicaResponse, Reply, RequestId, StoreFault, StoreId, StoreResponse,
    WaitTarget, WaitTrace,
};
use context::{Context, ReplyTo};
use late_replicas::FollowUp;
use put::WriteIntent;
use request_number::{RequestOwner, Step};
use std::sync::Arc;
use std::time::Duration;
use stdx::{Instant, Now, Rng};
use table::{OperationId, OperationTable};

/// Resource limits of a coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoordinatorLimits {
    /// Maximum number of commands without a reply; further commands are refused.
    pub operations_max: u16,
    /// Greatest number of operations that have replied and still wait for replicas; beyond it the
    /// oldest stops waiting. Together with `operations_max` less than 65,534.
    pub replied_max: u16,
    /// Time from `submit` to the reply, at most.
    pub request_timeout: Duration,
    /// Greatest number of requests in flight at one peer; beyond it the peer counts as unavailable.
    pub peer_requests_max: u32,
    /// Greatest size of keys and values in flight at one peer, in bytes.
    pub peer_bytes_max: usize,
    /// One read in this number, at random, asks all replicas, not only as many as must answer. 0:
    /// no read does.
    pub reads_for_one_of_all: u32,
    /// Minimum retention time of tombstones: scans do not compare cells that have been dead for
    /// longer.
    pub grace: Duration,
}

impl Default for CoordinatorLimits {
    fn default() -> Self {
        Self {
            operations_max: 16_384,
            replied_max: 16_384,
            request_timeout: Duration::from_secs(1),
            peer_requests_max: 16_384,
            peer_bytes_max: 64 << 20,
            reads_for_one_of_all: 10,
            grace: GRACE_DEFAULT,
        }
    }
}

/// Executes commands of clients on the replicas, and replies. Each I/O thread has one coordinator.
#[derive(Debug)]
pub struct Coordinator {
    context: Context,
    operations: OperationTable<Operation>,
    bound: clock_bound::ParkedWrites,
    link_waiters: link_wait::LinkWaitQueue,
    scans: scan::Scans,
    replica: Replica,
    next_dial: Option<Instant>,
}

/// A command until its reply, and its remaining work after that.
#[derive(Debug)]
struct Operation {
    to: ReplyTo,
    replied: bool,
    state: OperationState,
    /// The targets waited for so far.
    wait: WaitTrace,
}

impl Operation {
    fn new(to: ReplyTo, state: OperationState) -> Self {
        Self { to, replied: false, state, wait: WaitTrace::default() }
    }
}

/// State of an operation.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "operations stand in a table; a box each would be an allocation each"
)]
enum OperationState {
    Read(get::Read),
    Write(put::Write),
    /// A write without a version, because the clock has reached its bound. Nothing was sent or
    /// stored.
    Parked(Box<WriteIntent>),
    /// Waits for links. Nothing was sent or stored.
    WaitingForLinks(link_wait::LinkWaiter),
    /// Placeholder while an operation that was parked or waited for links is started.
    Starting,
}

impl Coordinator {
    /// Creates the coordinator of the I/O thread with this number, without operations and links.
    pub fn new(
        member: Member,
        number: u8,
        limits: CoordinatorLimits,
        view: Arc<ClusterView>,
        rng: Rng,
    ) -> Self {
        let mut coordinator = Self {
            replica: Replica::new(member.clone()),
            context: Context::new(member, number, limits, view, rng),
            operations: OperationTable::new(limits.operations_max, limits.replied_max),
            bound: clock_bound::ParkedWrites::default(),
            link_waiters: link_wait::LinkWaitQueue::default(),
            scans: scan::Scans::default(),
            next_dial: None,
        };
        coordinator.next_dial = coordinator.find_next_dial();
        coordinator
    }

    /// Handles a command. Its reply names `to`.
    ///
    /// # Panics
    /// If a scan is begun with the id of an open one, or a scan is continued that is not open.
    pub fn submit(&mut self, now: Now, to: RequestId, command: Command) {
        self.context.event_source = WaitTarget::Nothing;
        self.begin_input(now);
        match command {
            Command::Scan { id, scan } => self.submit_scan(now, to, id, scan),
            Command::NextPage { id } => self.submit_next_page(now, to, id),
            command => self.submit_operation(now, to, command),
        }
        self.run_queued_reads(now);
    }

    fn submit_operation(&mut self, now: Now, to: RequestId, command: Command) {
        if self.operations.is_full() {
            self.context.emit(Event::Refused);
            let retry_after = self.context.retry_after();
            return self.context.reply(to, Reply::Failed(CommandFailure::Overloaded { retry_after }));
        }
        match command {
            Command::Get { key, quorum } => self.submit_get(now, to.into(), key, quorum),
            Command::Put { key, value, lifetime, quorum } => match put::expiry(now.wall, lifetime) {
                Ok(expires_at) => {
                    let subject = self.context.subject(key);
                    self.submit_write(now, to, WriteIntent::value(subject, value, expires_at, quorum));
                }
                Err(failure) => self.context.reply(to, Reply::Failed(failure)),
            },
            Command::Delete { key, quorum } => {
                let subject = self.context.subject(key);
                self.submit_write(now, to, WriteIntent::tombstone(subject, quorum));
            }
            Command::Scan { .. } | Command::NextPage { .. } => unreachable!("scans are handled before"),
        }
    }

    /// Handles the store's answer to the request `id`; each is answered once.
    ///
    /// # Panics
    /// If the answer does not fit the request.
    pub fn handle_stored(&mut self, now: Now, id: StoreId, response: StoreResponse) {
        self.context.event_source = WaitTarget::Store;
        self.begin_input(now);
        if matches!(response, StoreResponse::Failed(StoreFault::Expired)) {
            self.context.emit(Event::Expired);
        }
        if Replica::owns(id) {
            let Context { view, effects, .. } = &mut self.context;
            if self.replica.handle_stored(id, response, &view.refused, effects) {
                self.context.writes.end(now.mono);
            }
            return;
        }
        match request_number::parse(id.0) {
            Some(RequestOwner::Operation(id, step)) => {
                if step.is_write() {
                    self.context.writes.end(now.mono);
                }
                self.handle_local_response(now, id, step, response);
            }
            Some(RequestOwner::Scan { slot, serial }) => {
                self.handle_scan_outcome(now, slot, serial, response.into_outcome());
            }
            None => self.handle_bound_raised(now, response),
        }
        self.finish_input(now);
    }

    /// Handles a message. The caller has passed the frame's clock to `HybridClock::observe`.
    pub fn handle_message(&mut self, now: Now, origin: Origin, message: Message) {
        self.context.event_source = WaitTarget::Peer(origin.node);
        self.begin_input(now);
        match (origin.link, message) {
            (Destination::Accepted(_), Message::Request { id, request, within }) => {
                let read_eligible = self.context.view.peer(self.context.member.me).read_eligible;
                let wait_max = self.context.replica_wait_max();
                let Context { writes, effects, view, .. } = &mut self.context;
                let refused = Some(&view.refused);
                let cx =
                    ReplicaContext { now, read_eligible, refused, writes: Some((writes, wait_max)), effects };
                self.replica.handle_request(cx, RequestHeader { origin, id, within }, request);
            }
            (Destination::Dialed(_), Message::Answer { id, answer }) if self.context.is_own_request(id) => {
                match request_number::parse(id.number) {
                    Some(RequestOwner::Operation(id, step)) => {
                        self.handle_outcome(now, id, step, origin.node, answer.into_outcome());
                    }
                    Some(RequestOwner::Scan { slot, serial }) => {
                        self.handle_scan_outcome(now, slot, serial, answer.into_outcome());
                    }
                    None => {}
                }
                self.finish_input(now);
            }
            _ => {}
        }
    }

    /// Does the work that is due: fails operations at their deadline, hedges overdue reads, dials.
    pub fn handle_timeout(&mut self, now: Now) {
        self.context.event_source = WaitTarget::Nothing;
        self.context.writes.advance(now.mono);
        self.begin_input(now);
        while let Some(id) = self.context.hedge_queue.take_due(now.mono) {
            if let Some(Operation { replied: false, state: OperationState::Read(read), wait, .. }) =
                self.operations.get_mut(id)
            {
                let (late, asked) = (read.wait_target(&self.context), self.context.requests_made());
                read.hedge(now, &mut self.context, id);
                let is_due = read.is_repairing() && read.is_trusted();
                if self.context.requests_made() != asked {
                    wait.end_span(late, now.mono);
                }
                if is_due {
                    self.advance_operation(now, id);
                }
            }
        }
        self.run_due_scans(now);
        self.dial(now);
        self.finish_input(now);
    }

    /// The next effect to carry out.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.context.effects.pop_front()
    }

    /// Time at which to call [`Coordinator::handle_timeout`]; `None` while nothing is in progress.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let deadline = self.operations.oldest().map(|(_, deadline)| deadline);
        let late = self.context.hedge_queue.next_due();
        [deadline, late, self.scans.next_due(), self.next_dial].into_iter().flatten().min()
    }

    /// Number of commands that wait for their reply, and of reads that scans have started.
    pub const fn operations(&self) -> usize {
        self.operations.waiting() + self.scans.waiting()
    }

    /// Handles a response of this node's store. A write of which only a read tells whether it was
    /// superseded counts when that read is answered.
    fn handle_local_response(&mut self, now: Now, id: OperationId, step: Step, response: StoreResponse) {
        let me = self.context.member.me;
        let state = self.operations.get_mut(id).map(|operation| &operation.state);
        let (step, outcome) = match (state, response) {
            (Some(OperationState::Write(_)), StoreResponse::WrittenUnchecked { key, .. }) => {
                let id = StoreId(request_number::number(id, Step::SupersededCheck));
                return self.context.store(id, ReplicaRequest::ReadMeta { key }.into(), None);
            }
            (_, StoreResponse::WrittenUnchecked { .. }) => {
                (step, Ok(ReplicaResponse::Written { superseded: false }))
            }
            (Some(OperationState::Write(write)), response) if step == Step::SupersededCheck => {
                let read = response.into_outcome();
                (Step::Write { round: 0 }, Ok(ReplicaResponse::written(write.version, &read)))
            }
            (_, response) => (step, response.into_outcome()),
        };
        self.handle_outcome(now, id, step, me, outcome);
    }

    /// Handles the outcome of a request to a replica.
    fn handle_outcome(
        &mut self,
        now: Now,
        id: OperationId,
        step: Step,
        node: NodeIndex,
        outcome: ReplicaOutcome,
    ) {
        let Some(operation) = self.operations.get_mut(id) else {
            return;
        };
        let context = &mut self.context;
        match &mut operation.state {
            OperationState::Read(read) => {
                let replica_index = context.replica_index(&read.subject, node);
                read.handle_outcome(now, context, replica_index, step, outcome);
            }
            OperationState::Write(write) => {
                let replica_index = context.replica_index(&write.subject, node);
                write.handle_outcome(context, replica_index, step, outcome);
            }
            OperationState::Parked(_) | OperationState::WaitingForLinks(_) | OperationState::Starting => {
                return;
            }
        }
        self.advance_operation(now, id);
    }

    /// Ends the operations whose deadline has passed, before any other effect of the input.
    #[inline]
    fn begin_input(&mut self, now: Now) {
        self.context.now = now.mono;
        while let Some((id, deadline)) = self.operations.oldest()
            && deadline <= now.mono
        {
            self.expire(now, id);
        }
    }

    /// Replies if the operation is decided, and does its work after the reply.
    fn advance_operation(&mut self, now: Now, id: OperationId) {
        let operation = self.operations.get_mut(id).expect("the operation is in the table");
        let mut replies = false;
        if !operation.replied {
            let (event_source, asked) = (self.context.event_source, self.context.requests_made());
            let Some(reply) = operation.state.advance(now, &mut self.context, id) else {
                if self.context.requests_made() != asked {
                    operation.wait.end_span(event_source, now.mono);
                }
                return;
            };
            self.context.reply_after(operation.wait.take(event_source), operation.to, reply);
            operation.replied = true;
            replies = true;
        }
        let follow_up = operation.state.follow_up(now, &mut self.context, id);
        self.retain_or_remove(now, id, follow_up, replies);
    }

    /// Ends the wait of an operation whose deadline has passed.
    fn expire(&mut self, now: Now, id: OperationId) {
        let operation = self.operations.get_mut(id).expect("it is the oldest in the table");
        let replies = !operation.replied;
        match &mut operation.state {
            OperationState::Parked(_) => {
                assert_eq!(
                    self.bound.unpark(),
                    Some(id),
                    "writes are parked in the order of their deadlines"
                );
            }
            OperationState::WaitingForLinks(_) => {
                assert_eq!(
                    self.link_waiters.pop(),
                    Some(id),
                    "operations wait in the order of their deadlines"
                );
            }
            // The next read then avoids the replicas that this one has waited for.
            OperationState::Read(read) => read.record_overdue_latencies(now, &mut self.context),
            OperationState::Write(_) | OperationState::Starting => {}
        }
        if replies {
            let wait = operation.wait.take(operation.state.wait_target(&self.context));
            let failure = operation.state.failure(&self.context);
            self.context.emit(Event::DeadlinePassed);
            self.context.reply_after(wait, operation.to, Reply::Failed(failure));
            operation.replied = true;
        }
        let follow_up = operation.state.end(&mut self.context, id);
        self.retain_or_remove(now, id, follow_up, replies);
    }

    /// Retains an operation that has replied while it has work left, or removes it.
    fn retain_or_remove(&mut self, now: Now, id: OperationId, follow_up: FollowUp, replies: bool) {
        if follow_up == FollowUp::Done {
            self.operations.remove(id);
            return;
        }
        if follow_up == FollowUp::DeadlineExtended {
            self.operations.postpone(id, now.mono + self.context.limits.request_timeout);
        }
        if replies && let Some(oldest) = self.operations.mark_replied(id) {
            let mut operation = self.operations.remove(oldest).expect("it is the oldest that has replied");
            operation.state.end(&mut self.context, oldest);
            operation.state.abandon(&mut self.context);
        }
    }

    /// Does the work that may follow from any input.
    fn finish_input(&mut self, now: Now) {
        self.run_queued_reads(now);
        self.forget_finished_reads();
    }

    /// Stops watching reads that have replied, so that no timer is set for them.
    fn forget_finished_reads(&mut self) {
        let operations = &self.operations;
        self.context.hedge_queue.forget(|id| operations.is_waiting(id));
    }
}

impl OperationState {
    fn advance(&mut self, now: Now, context: &mut Context, id: OperationId) -> Option<Reply> {
        match self {
            Self::Read(read) => read.advance(now, context, id),
            Self::Write(write) => write.advance(context),
            Self::Parked(_) | Self::WaitingForLinks(_) | Self::Starting => None,
        }
    }

    fn follow_up(&mut self, now: Now, context: &mut Context, id: OperationId) -> FollowUp {
        match self {
            Self::Read(read) => read.follow_up(now, context, id),
            Self::Write(write) => write.follow_up(context, id),
            Self::Parked(_) | Self::WaitingForLinks(_) | Self::Starting => FollowUp::Done,
        }
    }

    /// The target that the operation waits for now.
    fn wait_target(&self, context: &Context) -> WaitTarget {
        match self {
            Self::Read(read) => read.wait_target(context),
            Self::Write(write) => context.wait_target(&write.subject, write.open),
            Self::Parked(_) => WaitTarget::ClockBound,
            Self::WaitingForLinks(_) => WaitTarget::Links,
            Self::Starting => WaitTarget::Nothing,
        }
    }

    /// The failure of the operation at its deadline.
    fn failure(&mut self, context: &Context) -> CommandFailure {
        match self {
            Self::Read(read) => read.failure(context),
            Self::Write(write) => write.failure(context),
            Self::Parked(intent) => put::no_version_failure(intent),
            Self::WaitingForLinks(waiter) => waiter.deadline_failure(context),
            Self::Starting => unreachable!("an operation starts within one call"),
        }
    }

    /// Stops waiting for answers; missing hints are still requested.
    fn end(&mut self, context: &mut Context, id: OperationId) -> FollowUp {
        self.abandon(context);
        match self {
            Self::Write(write) => write.follow_up(context, id),
            Self::Read(_) | Self::Parked(_) | Self::WaitingForLinks(_) | Self::Starting => FollowUp::Done,
        }
    }

    fn abandon(&mut self, context: &mut Context) {
        match self {
            Self::Read(read) => read.abandon(context),
            Self::Write(write) => write.abandon(context),
            Self::Parked(_) | Self::WaitingForLinks(_) | Self::Starting => {}
        }
    }
}
