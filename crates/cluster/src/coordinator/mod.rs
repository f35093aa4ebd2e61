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
//! Operations share the state in `context`: the replicas with their availability (`peers`), the
//! effects (`outbox`), the hedging of reads (`hedge`) and the reads of scans (`scan_reads`). The
//! time and the source of an input are arguments.
//!
//! | module | is |
//! |---|---|
//! | `submit` | the beginning of reads and writes |
//! | `put` | writes |
//! | `clock_bound` | the durable bound of the version clock, and the writes that wait for it |
//! | `late_replicas` | the work of a write after its reply |
//! | `layout_change` | operations that are planned anew for a new layout |
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
mod layout_change;
mod limits;
mod link_wait;
mod links;
mod outbox;
mod peers;
mod put;
mod read_answers;
mod read_repair;
mod repairs_in_flight;
mod request_number;
mod scan;
mod scan_reads;
mod submit;
mod table;

pub use limits::CoordinatorLimits;

use crate::replica::{Replica, ReplicaContext, RequestHeader};
use crate::{
    ClusterView, Command, CommandFailure, Destination, Effect, Event, Member, Message, NodeIndex, Origin,
    PeerRequest, ReplicaOutcome, ReplicaRequest, ReplicaResponse, Reply, RequestId, StoreFault, StoreId,
    StoreResponse, WaitTarget, WaitTrace,
};
use ::limits::Deadline;
use context::{Context, CoordinatorInput, FollowUp, OperationContext, ReplyTo};
use peers::{Peers, WritePacing};
use put::WriteIntent;
use request_number::{OperationId, RequestOwner, Step};
use std::sync::Arc;
use stdx::{Instant, Now, Rng};
use table::OperationTable;

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
        self.submit_with(now, to, command, WritePacing::Unpaced);
    }

    fn submit_with(&mut self, now: Now, to: RequestId, command: Command, pacing: WritePacing) {
        let input = CoordinatorInput { now, source: WaitTarget::Nothing };
        self.begin_input(input);
        match command {
            Command::Scan { id, scan } => self.submit_scan(input, to, id, scan),
            Command::NextPage { id } => self.submit_next_page(input, to, id),
            command => self.submit_operation(input, to, command, pacing),
        }
        self.run_queued_reads(input);
    }

    /// Handles the store's answer to the request `id`; each is answered once.
    ///
    /// # Panics
    /// If the answer does not fit the request.
    pub fn handle_stored(&mut self, now: Now, id: StoreId, response: StoreResponse) {
        let input = CoordinatorInput { now, source: WaitTarget::Store };
        self.begin_input(input);
        if matches!(response, StoreResponse::Failed(StoreFault::Expired)) {
            self.context.outbox.emit(Event::Expired);
        }
        if Replica::owns(id) {
            let Context { peers, outbox, .. } = &mut self.context;
            if self.replica.handle_stored(id, response, &peers.view.refused, &mut outbox.effects) {
                peers.writes.end(now.mono);
            }
            return;
        }
        match request_number::parse(id.0) {
            Some(RequestOwner::Operation(id, step)) => {
                if step.is_write() {
                    self.context.peers.writes.end(now.mono);
                }
                self.handle_local_response(input, id, step, response);
            }
            Some(RequestOwner::Scan { slot, serial }) => {
                self.handle_scan_outcome(input, slot, serial, response.into_outcome());
            }
            None => self.handle_bound_raised(now, response),
        }
        self.finish_input(input);
    }

    /// Handles a message. The caller has passed the frame's clock to `HybridClock::observe`.
    pub fn handle_message(&mut self, now: Now, origin: Origin, message: Message) {
        let input = CoordinatorInput { now, source: WaitTarget::Peer(origin.node) };
        self.begin_input(input);
        match (origin.link, message) {
            (Destination::Accepted(_), Message::Request { id, request, within, epoch }) => {
                self.handle_replica_request(now, RequestHeader { origin, id, within, epoch }, request);
            }
            (Destination::Dialed(_), Message::Answer { id, answer })
                if self.context.outbox.is_own_request(id) =>
            {
                match request_number::parse(id.number) {
                    Some(RequestOwner::Operation(id, step)) => {
                        self.handle_outcome(input, id, step, origin.node, answer.into_outcome());
                    }
                    Some(RequestOwner::Scan { slot, serial }) => {
                        self.handle_scan_outcome(input, slot, serial, answer.into_outcome());
                    }
                    None => {}
                }
                self.finish_input(input);
            }
            _ => {}
        }
    }

    fn handle_replica_request(&mut self, now: Now, header: RequestHeader, request: PeerRequest) {
        let Context { peers, outbox, .. } = &mut self.context;
        let wait_max = peers.replica_wait_max();
        let cx = ReplicaContext {
            now,
            read_eligible: peers.view.peer(peers.member.me).read_eligible,
            refused: Some(&peers.view.refused),
            writes: Some((&mut peers.writes, wait_max)),
            effects: &mut outbox.effects,
        };
        self.replica.handle_request(cx, header, request);
    }

    /// Does the work that is due: fails operations at their deadline, hedges overdue reads, dials.
    pub fn handle_timeout(&mut self, now: Now) {
        let input = CoordinatorInput { now, source: WaitTarget::Nothing };
        self.context.peers.writes.advance(now.mono);
        self.begin_input(input);
        while let Some(id) = self.context.hedges.queue.take_due(now.mono) {
            if let Some(Operation { replied: false, state: OperationState::Read(read), wait, .. }) =
                self.operations.get_mut(id)
            {
                let late = read.wait_target(&self.context.peers).unwrap_or(input.source);
                let mut cx = self.context.of(now, id);
                read.hedge(&mut cx);
                let is_due = read.is_repairing() && read.is_trusted();
                if cx.has_asked {
                    wait.end_span(late, now.mono);
                }
                if is_due {
                    self.advance_operation(input, id);
                }
            }
        }
        self.run_due_scans(input);
        self.dial(now);
        self.finish_input(input);
    }

    /// The next effect to carry out.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.context.outbox.effects.pop_front()
    }

    /// Time at which to call [`Coordinator::handle_timeout`]; `None` while nothing is in progress.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let deadline = self.operations.oldest().map(|(_, deadline)| deadline);
        let late = self.context.hedges.queue.next_due();
        [deadline, late, self.scans.next_due(), self.next_dial].into_iter().flatten().min()
    }

    /// Number of commands that wait for their reply, and of reads that scans have started.
    pub const fn operations(&self) -> usize {
        self.operations.waiting() + self.scans.waiting()
    }

    /// Handles a response of this node's store. A write of which only a read tells whether it was
    /// superseded counts when that read is answered.
    fn handle_local_response(
        &mut self,
        input: CoordinatorInput,
        id: OperationId,
        step: Step,
        response: StoreResponse,
    ) {
        let me = self.context.peers.member.me;
        let state = self.operations.get_mut(id).map(|operation| &operation.state);
        let (step, outcome) = match (state, response) {
            (Some(OperationState::Write(_)), StoreResponse::WrittenUnchecked { key, .. }) => {
                let id = StoreId(request_number::number(id, Step::SupersededCheck));
                return self.context.outbox.store(
                    id,
                    ReplicaRequest::ReadMeta { key }.into(),
                    Deadline::NEVER,
                );
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
        self.handle_outcome(input, id, step, me, outcome);
    }

    /// Handles the outcome of a request to a replica.
    fn handle_outcome(
        &mut self,
        input: CoordinatorInput,
        id: OperationId,
        step: Step,
        node: NodeIndex,
        outcome: ReplicaOutcome,
    ) {
        let repairs = &mut self.context.repairs;
        if !repairs.is_empty() {
            for (id, step) in repairs.end(node, request_number::number(id, step)) {
                self.deliver_outcome(input, id, step, node, outcome.clone());
            }
        }
        self.deliver_outcome(input, id, step, node, outcome);
    }

    /// Delivers the outcome of a request to one of the operations that wait for it.
    fn deliver_outcome(
        &mut self,
        input: CoordinatorInput,
        id: OperationId,
        step: Step,
        node: NodeIndex,
        outcome: ReplicaOutcome,
    ) {
        let Some(operation) = self.operations.get_mut(id) else {
            return;
        };
        let mut cx = self.context.of(input.now, id);
        match &mut operation.state {
            OperationState::Read(read) => {
                let replica_index = cx.peers.replica_index(&read.subject, node);
                read.handle_outcome(&mut cx, replica_index, step, outcome);
            }
            OperationState::Write(write) => {
                let replica_index = cx.peers.replica_index(&write.subject, node);
                write.handle_outcome(&mut cx, replica_index, step, outcome);
            }
            OperationState::Parked(_) | OperationState::WaitingForLinks(_) | OperationState::Starting => {
                return;
            }
        }
        self.advance_operation(input, id);
    }

    /// Ends the operations whose deadline has passed, before any other effect of the input.
    #[inline]
    fn begin_input(&mut self, input: CoordinatorInput) {
        while let Some((id, deadline)) = self.operations.oldest()
            && deadline <= input.now.mono
        {
            self.expire(input, id);
        }
    }

    /// Replies if the operation is decided, and does its work after the reply.
    fn advance_operation(&mut self, input: CoordinatorInput, id: OperationId) {
        let operation = self.operations.get_mut(id).expect("the operation is in the table");
        let mut cx = self.context.of(input.now, id);
        let mut replies = false;
        if !operation.replied {
            let Some(reply) = operation.state.advance(&mut cx) else {
                if cx.has_asked {
                    operation.wait.end_span(input.source, input.now.mono);
                }
                return;
            };
            self.context.reply_after(operation.wait.take(input.source), operation.to, reply);
            operation.replied = true;
            replies = true;
        }
        let follow_up = operation.state.follow_up(&mut self.context.of(input.now, id));
        self.retain_or_remove(input.now, id, follow_up, replies);
    }

    /// Ends the wait of an operation whose deadline has passed.
    fn expire(&mut self, input: CoordinatorInput, id: OperationId) {
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
            OperationState::Read(read) => read.record_overdue_latencies(&mut self.context.of(input.now, id)),
            OperationState::Write(_) | OperationState::Starting => {}
        }
        if replies {
            let peers = &self.context.peers;
            let wait = operation.wait.take(operation.state.wait_target(peers).unwrap_or(input.source));
            let failure = operation.state.failure(peers);
            self.context.outbox.emit(Event::DeadlinePassed);
            self.context.reply_after(wait, operation.to, Reply::Failed(failure));
            operation.replied = true;
        }
        let follow_up = operation.state.end(&mut self.context.of(input.now, id));
        self.retain_or_remove(input.now, id, follow_up, replies);
    }

    /// Retains an operation that has replied while it has work left, or removes it.
    fn retain_or_remove(&mut self, now: Now, id: OperationId, follow_up: FollowUp, replies: bool) {
        if follow_up == FollowUp::Done {
            self.operations.remove(id);
            return;
        }
        if follow_up == FollowUp::DeadlineExtended {
            self.operations.postpone(id, now.mono + self.context.peers.limits.request_timeout);
        }
        if replies && let Some(oldest) = self.operations.mark_replied(id) {
            let mut operation = self.operations.remove(oldest).expect("it is the oldest that has replied");
            let mut cx = self.context.of(now, oldest);
            operation.state.end(&mut cx);
            operation.state.abandon(&mut cx);
        }
    }

    /// Does the work that may follow from any input.
    fn finish_input(&mut self, input: CoordinatorInput) {
        self.run_queued_reads(input);
        self.forget_finished_reads();
    }

    /// Stops watching reads that have replied, so that no timer is set for them.
    fn forget_finished_reads(&mut self) {
        let operations = &self.operations;
        self.context.hedges.queue.forget(|id| operations.is_waiting(id));
    }
}

impl OperationState {
    fn advance(&mut self, cx: &mut OperationContext<'_>) -> Option<Reply> {
        match self {
            Self::Read(read) => read.advance(cx),
            Self::Write(write) => write.advance(cx),
            Self::Parked(_) | Self::WaitingForLinks(_) | Self::Starting => None,
        }
    }

    fn follow_up(&mut self, cx: &mut OperationContext<'_>) -> FollowUp {
        match self {
            Self::Read(read) => read.follow_up(cx),
            Self::Write(write) => write.follow_up(cx),
            Self::Parked(_) | Self::WaitingForLinks(_) | Self::Starting => FollowUp::Done,
        }
    }

    /// The target that the operation waits for now, if there is any.
    fn wait_target(&self, peers: &Peers) -> Option<WaitTarget> {
        match self {
            Self::Read(read) => read.wait_target(peers),
            Self::Write(write) => peers.wait_target(&write.subject, write.open),
            Self::Parked(_) => Some(WaitTarget::ClockBound),
            Self::WaitingForLinks(_) => Some(WaitTarget::Links),
            Self::Starting => Some(WaitTarget::Nothing),
        }
    }

    /// The failure of the operation at its deadline.
    fn failure(&mut self, peers: &Peers) -> CommandFailure {
        match self {
            Self::Read(read) => read.failure(peers),
            Self::Write(write) => write.failure(peers),
            Self::Parked(intent) => put::no_version_failure(intent),
            Self::WaitingForLinks(waiter) => waiter.deadline_failure(peers),
            Self::Starting => unreachable!("an operation starts within one call"),
        }
    }

    /// Stops waiting for answers; missing hints are still requested.
    fn end(&mut self, cx: &mut OperationContext<'_>) -> FollowUp {
        self.abandon(cx);
        match self {
            Self::Write(write) => write.follow_up(cx),
            Self::Read(_) | Self::Parked(_) | Self::WaitingForLinks(_) | Self::Starting => FollowUp::Done,
        }
    }

    fn abandon(&mut self, cx: &mut OperationContext<'_>) {
        match self {
            Self::Read(read) => read.abandon(cx),
            Self::Write(write) => write.abandon(cx),
            Self::Parked(_) | Self::WaitingForLinks(_) | Self::Starting => {}
        }
    }
}
