//! State that the operations of a coordinator share, and the context of one while it handles an
//! input.
//!
//! The state consists of the replicas with their availability ([`Peers`]), the effects to carry out
//! ([`CoordinatorEffects`]), the hedging of reads ([`Hedges`]), the cells that reads send to
//! replicas ([`RepairsInFlight`]), and the reads of scans ([`ScanReads`]). The input is an
//! argument: its time, and its source, to which the waits that it ends are attributed.

use super::hedge::Hedges;
use super::limits::CoordinatorLimits;
use super::outbox::{CoordinatorEffects, RequestTerms};
use super::peers::Peers;
use super::repairs_in_flight::RepairsInFlight;
use super::request_number::{self, OperationId, Step};
use super::scan_reads::{ScanReadResult, ScanReads};
use crate::{
    ClusterView, LayoutEpoch, Member, NodeIndex, ReplicaRequest, Reply, RequestId, WaitTarget, WaitTrace,
    replica,
};
use limits::Deadline;
use std::sync::Arc;
use stdx::{Now, Rng};

/// Shared state of the operations and scans of a coordinator.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) peers: Peers,
    pub(super) outbox: CoordinatorEffects,
    pub(super) hedges: Hedges,
    pub(super) repairs: RepairsInFlight,
    pub(super) rng: Rng,
    pub(super) scan_reads: ScanReads,
}

/// The event that a coordinator handles.
#[derive(Clone, Copy, Debug)]
pub(super) struct CoordinatorInput {
    pub(super) now: Now,
    /// Source of the event.
    pub(super) source: WaitTarget,
}

/// The context of an operation while it handles an input.
#[derive(Debug)]
pub(super) struct OperationContext<'a> {
    pub(super) now: Now,
    pub(super) id: OperationId,
    pub(super) peers: &'a mut Peers,
    pub(super) outbox: &'a mut CoordinatorEffects,
    pub(super) hedges: &'a mut Hedges,
    pub(super) repairs: &'a mut RepairsInFlight,
    pub(super) rng: &'a mut Rng,
    /// Whether the operation has sent a request.
    pub(super) has_asked: bool,
}

/// Recipient of the reply to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyTo {
    User(RequestId),
    /// The scan in this slot, which identifies the read by this number.
    Scan {
        slot: u16,
        serial: u64,
    },
}

impl From<RequestId> for ReplyTo {
    fn from(id: RequestId) -> Self {
        Self::User(id)
    }
}

/// Remaining work of an operation after its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FollowUp {
    /// There is none.
    Done,
    /// Answers are outstanding.
    AwaitsReplicas,
    /// A new request was sent, which has the whole time of a new operation.
    DeadlineExtended,
}

/// Addresses one request of an operation to one node.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestTarget {
    pub(super) step: Step,
    pub(super) node: NodeIndex,
    pub(super) deadline: Deadline,
    /// Epoch of the operation's plan.
    pub(super) epoch: LayoutEpoch,
}

impl Context {
    pub(super) fn new(
        member: Member,
        number: u8,
        limits: CoordinatorLimits,
        view: Arc<ClusterView>,
        rng: Rng,
    ) -> Self {
        Self {
            outbox: CoordinatorEffects::new(&member, number),
            peers: Peers::new(member, limits, view),
            hedges: Hedges::new(limits.operations_max, limits.reads_for_one_of_all),
            repairs: RepairsInFlight::new(limits.request_timeout),
            rng,
            scan_reads: ScanReads::default(),
        }
    }

    /// The context of an operation.
    #[inline]
    pub(super) const fn of(&mut self, now: Now, id: OperationId) -> OperationContext<'_> {
        let Self { peers, outbox, hedges, repairs, rng, .. } = self;
        OperationContext { now, id, peers, outbox, hedges, repairs, rng, has_asked: false }
    }

    /// Replies as a result of the input alone.
    pub(super) fn reply(&mut self, input: CoordinatorInput, to: impl Into<ReplyTo>, reply: Reply) {
        self.reply_after(WaitTrace::of(input.source), to, reply);
    }

    /// Replies after this wait.
    pub(super) fn reply_after(&mut self, wait: WaitTrace, to: impl Into<ReplyTo>, reply: Reply) {
        match to.into() {
            ReplyTo::User(to) => self.outbox.reply(wait, to, reply),
            ReplyTo::Scan { slot, serial } => {
                self.scan_reads.results.push_back(ScanReadResult { slot, serial, reply });
            }
        }
    }
}

impl OperationContext<'_> {
    /// Sends a request to a replica, which may be this node. Returns `false` if there was nothing
    /// to do.
    #[inline]
    pub(super) fn ask(&mut self, target: RequestTarget, request: ReplicaRequest, bytes: usize) -> bool {
        let RequestTarget { step, node, deadline, epoch } = target;
        let now = self.now.mono;
        self.has_asked = true;
        let request = if node == self.peers.member.me {
            let effects = &mut self.outbox.effects;
            let Some(request) = replica::admit_hints(&self.peers.member, request, effects) else {
                return false;
            };
            if !request.is_read() {
                self.peers.writes.begin(now, request.size());
            }
            request
        } else {
            self.peers.begin_request(now, node, bytes);
            request
        };
        let number = request_number::number(self.id, step);
        self.outbox.send(node, number, request, RequestTerms { now, deadline, epoch });
        true
    }

    /// Counts a request that was answered or abandoned.
    #[inline]
    pub(super) fn end_request(&mut self, node: NodeIndex, bytes: usize) {
        self.peers.end_request(self.now.mono, node, bytes);
    }
}
