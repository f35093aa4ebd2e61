//! The coordinator: takes a command to its reply.
//!
//! **Promise.** Exactly one [`Reply`] for each [`Coordinator::submit`], at the deadline at the latest, and it
//! is the last thing that is said of that command: answers that come later are dropped. A write is acknowledged
//! only by what the store says after it made the write durable. A value is handed on once and not kept.
//!
//! **Mechanism.** Operations under way stand in a table of fixed size; a request to the store carries the id of
//! its operation. Reads are in `get`, writes and the durable bound of their clock in `put`.
//!
//! The driver calls one of [`submit`](Coordinator::submit), [`handle_stored`](Coordinator::handle_stored),
//! [`handle_timeout`](Coordinator::handle_timeout), then carries out [`poll_effect`](Coordinator::poll_effect)
//! until it gives nothing, in that order. It calls `handle_timeout` when
//! [`poll_timeout`](Coordinator::poll_timeout) has passed. `now.mono` never goes back.
//!
//! **Caveats.** One replica, the local store: `from` is 1. Nothing is cancelled: a read that reached its
//! deadline is still carried out by the store.

mod get;
mod put;
mod table;

use crate::{
    ClusterView, Command, Effect, Event, Failure, HybridClock, LinkEvent, Member, Message, Origin, Quorum, Reply, RequestId, StoreFault, StoreId,
    StoreRequest, StoreResponse, Tally,
};
use put::WriteIntent;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Instant, NodeTag, Now, Rng, Version};
use table::{Operation, OperationId, OperationTable};

/// The place of the local store among the replicas of every key.
const LOCAL_REPLICA: u8 = 0;

/// What a coordinator may use up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Commands under way; one more is refused.
    pub operations_max: u16,
    /// From `submit` to the reply.
    pub request_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { operations_max: 16_384, request_timeout: Duration::from_secs(1) }
    }
}

/// Takes commands to their replies. One for each I/O thread; see the module.
#[derive(Debug)]
pub struct Coordinator {
    clock: Arc<HybridClock>,
    tag: NodeTag,
    limits: Limits,
    operations: OperationTable<Work>,
    effects: VecDeque<Effect>,
    /// Writes that wait for the clock's bound, oldest first; all of them are in `operations`.
    parked: VecDeque<OperationId>,
    bound_raise: put::BoundRaise,
    clock_is_behind: bool,
}

/// What an operation is doing.
#[derive(Debug)]
enum Work {
    /// The store reads.
    Read,
    /// The store writes a cell of this version.
    Write(Version),
    /// A write without a version: the clock has reached its bound. Nothing was handed to the store.
    Parked(Box<WriteIntent>),
}

impl Coordinator {
    /// The coordinator of the I/O thread of this number, with nothing under way and no links.
    pub fn new(member: Member, number: u8, limits: Limits, view: Arc<ClusterView>, rng: Rng) -> Self {
        Self {
            clock: Arc::clone(&member.clock),
            tag: member.tag,
            limits,
            operations: OperationTable::new(limits.operations_max),
            effects: VecDeque::new(),
            parked: VecDeque::new(),
            bound_raise: put::BoundRaise::default(),
            clock_is_behind: false,
        }
    }

    /// Takes a command. Its reply names `to`.
    pub fn submit(&mut self, now: Now, to: RequestId, command: Command) {
        if self.operations.is_full() {
            self.effects.push_back(Effect::Event(Event::Refused));
            let retry_after = self.limits.request_timeout;
            return self.reply(to, Reply::Failed(Failure::Overloaded { retry_after }));
        }
        match command {
            Command::Get { key, quorum } => self.submit_get(now, to, key, quorum),
            Command::Put { key, value, lifetime, quorum } => match put::expiry(now.wall, lifetime) {
                Ok(expires_at) => {
                    let intent = WriteIntent::value(key, value, expires_at, quorum);
                    self.submit_write(now, to, intent, quorum);
                }
                Err(failure) => self.reply(to, Reply::Failed(failure)),
            },
            Command::Delete { key, quorum } => {
                self.submit_write(now, to, WriteIntent::tombstone(key, quorum), quorum);
            }
        }
    }

    /// Takes the store's answer to the request `id`; each is answered once.
    ///
    /// # Panics
    /// When the answer is not one to that request.
    pub fn handle_stored(&mut self, now: Now, id: StoreId, response: StoreResponse) {
        let Some(id) = OperationId::of(id) else {
            return self.handle_bound_raised(now, response);
        };
        let Some(operation) = self.operations.get_mut(id) else {
            return;
        };
        let reply = match (&operation.work, response) {
            (Work::Read, StoreResponse::Cell(cell)) => {
                operation.tally.ack(LOCAL_REPLICA);
                get::reply(cell, now.wall, operation.tally.acks())
            }
            (&Work::Write(version), StoreResponse::Written { superseded }) => {
                operation.tally.ack(LOCAL_REPLICA);
                if superseded {
                    self.effects.push_back(Effect::Event(Event::WriteSuperseded));
                }
                Reply::Written { version, superseded, acks: operation.tally.acks() }
            }
            (Work::Read | Work::Write(_), StoreResponse::Failed(fault)) => {
                operation.tally.fail(LOCAL_REPLICA);
                Reply::Failed(fault.into())
            }
            (work, response) => unreachable!("the store answered {work:?} with {response:?}"),
        };
        assert!(operation.tally.is_reached() || operation.tally.is_impossible(), "the only replica answered");
        let to = operation.to;
        self.operations.remove(id);
        self.reply(to, reply);
    }

    /// Takes what the node of this process says of the cluster.
    pub fn handle_view(&mut self, now: Now, view: Arc<ClusterView>) {}

    /// Takes news of a link of this thread.
    pub fn handle_link(&mut self, now: Now, event: LinkEvent) {}

    /// Takes a message. Whoever calls has brought the frame's clock to `HybridClock::observe`.
    pub fn handle_message(&mut self, now: Now, origin: Origin, message: Message) {}

    /// Fails what has reached its deadline.
    pub fn handle_timeout(&mut self, now: Now) {
        while let Some((id, operation)) = self.operations.oldest()
            && operation.deadline <= now.mono
        {
            self.fail_late(id);
        }
    }

    /// What the coordinator wants done next.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When to call [`Coordinator::handle_timeout`]; `None` while nothing is under way.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.operations.oldest().map(|(_, operation)| operation.deadline)
    }

    /// How many commands wait for their reply.
    pub const fn operations(&self) -> usize {
        self.operations.len()
    }

    fn fail_late(&mut self, id: OperationId) {
        let operation = self.operations.remove(id).expect("it is the oldest under way");
        if let Work::Parked(_) = operation.work {
            let oldest_parked = self.parked.pop_front();
            assert_eq!(oldest_parked, Some(id), "writes are parked in the order of their deadlines");
        }
        self.effects.push_back(Effect::Event(Event::DeadlinePassed));
        let failure = Failure::NotEnoughReplicas {
            acks: operation.tally.acks(),
            ack: operation.tally.quorum().ack(),
            maybe_stored: matches!(operation.work, Work::Write(_)),
        };
        self.reply(operation.to, Reply::Failed(failure));
    }

    fn operation(&self, now: Now, to: RequestId, quorum: Quorum, work: Work) -> Operation<Work> {
        assert_eq!(quorum.from(), 1, "the layout holds one node");
        let deadline = now.mono + self.limits.request_timeout;
        Operation { to, deadline, tally: Tally::new(quorum), work }
    }

    fn store(&mut self, id: StoreId, request: StoreRequest) {
        self.effects.push_back(Effect::Store { id, request });
    }

    fn reply(&mut self, to: RequestId, reply: Reply) {
        self.effects.push_back(Effect::Reply { to, reply });
    }
}

impl From<StoreFault> for Failure {
    /// The failure of a command whose only replica failed like this.
    fn from(fault: StoreFault) -> Self {
        match fault {
            StoreFault::Full => Self::DiskFull,
            StoreFault::Overloaded { retry_after } => Self::Overloaded { retry_after },
            StoreFault::Corrupt { detail } => Self::Corrupt { detail },
            StoreFault::Io { detail } => Self::Storage { detail },
        }
    }
}
