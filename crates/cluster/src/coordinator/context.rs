//! State that all operations of a coordinator share: its view of the cluster, and the effects to
//! carry out.

use super::CoordinatorLimits;
use super::hedge::{HedgeBudget, HedgeQueue};
use super::peers::{Availability, CoordinatorPeer};
use super::request_number::{self, Step};
use super::scan::{QueuedRead, RoleAssignmentCache};
use super::table::OperationId;
use crate::local_writes::LocalWrites;
use crate::replica_set::ReplicaSet;
use crate::{
    ClusterView, Destination, Effect, Event, Key, Member, Message, MessageId, NodeIndex, NodeSet,
    PartitionId, PeerRequest, PeerState, ReplicaRequest, Reply, RequestId, Requester, StoreId, StoreRequest,
    WaitTarget, WaitTrace, replica,
};
use std::collections::VecDeque;
use std::sync::Arc;
use stdx::{Instant, Rng};

/// Shared state of the operations and scans of a coordinator.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) member: Member,
    pub(super) limits: CoordinatorLimits,
    pub(super) view: Arc<ClusterView>,
    /// Time of the event being handled.
    pub(super) now: Instant,
    /// Writes in flight at the local store.
    pub(super) writes: LocalWrites,
    /// Whether the client of the command being submitted paces itself.
    pub(super) is_paced: bool,
    /// Peers by node index.
    pub(super) peers: Vec<CoordinatorPeer>,
    pub(super) effects: VecDeque<Effect>,
    pub(super) hedge_queue: HedgeQueue,
    pub(super) hedge_budget: HedgeBudget,
    pub(super) rng: Rng,
    pub(super) requester: Requester,
    pub(super) role_assignments: RoleAssignmentCache,
    /// Reads queued by scans.
    pub(super) queued_reads: VecDeque<QueuedRead>,
    /// Results of reads for scans: slot of the scan, number of the read, reply.
    pub(super) read_results: VecDeque<(u16, u64, Reply)>,
    /// Counts the requests of scans.
    scan_requests: u64,
    /// Source of the event being handled.
    pub(super) event_source: WaitTarget,
    /// Counts the requests of operations.
    requests_sent: u64,
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

/// A key with its partition.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) key: Key,
    pub(super) partition: PartitionId,
}

/// Addresses one request of an operation to one node.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestTarget {
    pub(super) operation: OperationId,
    pub(super) step: Step,
    pub(super) node: NodeIndex,
    /// Time after which the answer is not needed; `None`: no limit.
    pub(super) deadline: Option<Instant>,
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
            peers: member.layout.nodes().map(|_| CoordinatorPeer::new()).collect(),
            member,
            limits,
            view,
            now: Instant::ZERO,
            writes: LocalWrites::new(),
            is_paced: false,
            effects: VecDeque::new(),
            hedge_queue: HedgeQueue::new(limits.operations_max),
            hedge_budget: HedgeBudget::new(),
            rng,
            requester: Requester::Coordinator(number),
            role_assignments: RoleAssignmentCache::default(),
            queued_reads: VecDeque::new(),
            read_results: VecDeque::new(),
            scan_requests: 0,
            event_source: WaitTarget::Nothing,
            requests_sent: 0,
        }
    }

    pub(super) fn subject(&self, key: Key) -> Subject {
        let partition = self.member.layout.partition_of(&key);
        Subject { key, partition }
    }

    /// The node at this index of the preference list.
    #[inline]
    pub(super) fn node(&self, subject: &Subject, replica_index: u8) -> NodeIndex {
        self.member.layout.preference_list(subject.partition)[usize::from(replica_index)]
    }

    /// The index of a node in the preference list.
    #[inline]
    pub(super) fn replica_index(&self, subject: &Subject, node: NodeIndex) -> u8 {
        self.member.layout.replica_index(subject.partition, node)
    }

    /// The replica index of this node, if it has refused the key: its answer does not count.
    #[inline]
    pub(super) fn refused_replica_index(&self, subject: &Subject) -> Option<u8> {
        let is_refused = self.view.refused.contains(&subject.key);
        is_refused.then(|| self.replica_index(subject, self.member.me))
    }

    /// Whether this node is among these replicas.
    pub(super) fn is_own_among(&self, subject: &Subject, replicas: ReplicaSet) -> bool {
        replicas.contains(self.replica_index(subject, self.member.me))
    }

    pub(super) fn nodes(&self, subject: &Subject, replicas: ReplicaSet) -> NodeSet {
        replicas.map(|replica_index| self.node(subject, replica_index)).collect()
    }

    /// Whether an answer belongs to a request of this state machine, in this process.
    pub(super) fn is_own_request(&self, id: MessageId) -> bool {
        id.incarnation == self.member.incarnation && id.requester == self.requester
    }

    /// Whether `node` can be asked to store `bytes`.
    #[inline]
    pub(super) fn can_write(&self, node: NodeIndex, bytes: usize, is_value: bool) -> Availability {
        if node == self.member.me {
            return Availability::Ready;
        }
        let view = self.view.peer(node);
        match self.can_send(node, bytes) {
            Availability::Ready if is_value && view.disk_full => Availability::Full,
            other => other,
        }
    }

    /// Whether `node` can be asked for its cells.
    #[inline]
    pub(super) fn can_read(&self, node: NodeIndex) -> Availability {
        if !self.view.peer(node).read_eligible {
            return Availability::Unavailable;
        }
        if node == self.member.me { Availability::Ready } else { self.can_send(node, 0) }
    }

    /// Whether a node that cannot be asked now is alive, so that a link to it will open soon.
    pub(super) fn can_link_soon(&self, node: NodeIndex) -> bool {
        let view = self.view.peer(node);
        view.linking || matches!(view.state, PeerState::Up | PeerState::Suspected)
    }

    /// Whether a node that cannot be asked for its cells may be soon: a link will open, or it will
    /// become read-eligible. A node that is being filled takes longer than any read waits; so does
    /// a new node while some peers are unheard.
    pub(super) fn can_read_soon(&self, node: NodeIndex) -> bool {
        self.can_link_soon(node) && !self.view.peer(node).rebuilding && self.view.unheard_peers.is_empty()
    }

    /// Rank of a node for reads; lower is better. This node comes first, then peers by health, then
    /// by mean latency. A slow node, even this one, comes behind all healthy ones.
    #[inline]
    pub(super) fn read_rank(&self, node: NodeIndex) -> (u8, u64) {
        let view = self.view.peer(node);
        let is_slow = self.peers[node.as_usize()].latency.is_slow();
        let class = match view.state {
            _ if node == self.member.me && !is_slow => 0,
            PeerState::Up | PeerState::Unknown if !view.draining && !is_slow => 1,
            PeerState::Up | PeerState::Unknown => 2,
            PeerState::Suspected => 3,
            PeerState::Unreachable => 4,
        };
        (class, self.peers[node.as_usize()].latency.mean_nanos())
    }

    /// Sends a request of an operation to a replica, which may be this node. Returns `false` if
    /// there was nothing to do.
    #[inline]
    pub(super) fn ask(&mut self, target: RequestTarget, request: ReplicaRequest, bytes: usize) -> bool {
        let RequestTarget { operation, step, node, deadline } = target;
        self.requests_sent += 1;
        let request = if node == self.member.me {
            let Some(request) = replica::admit_hints(&self.member, request, &mut self.effects) else {
                return false;
            };
            if !request.is_read() {
                self.writes.begin(self.now, request.size());
            }
            request
        } else {
            self.begin_request(node, bytes);
            request
        };
        self.send(node, request_number::number(operation, step), request, deadline);
        true
    }

    /// Number of requests that operations have sent.
    pub(super) const fn requests_made(&self) -> u64 {
        self.requests_sent
    }

    /// The wait target for the first of these replicas; peers come before this node.
    pub(super) fn wait_target(&self, subject: &Subject, replicas: ReplicaSet) -> WaitTarget {
        let mut nodes = replicas.map(|replica_index| self.node(subject, replica_index));
        let other = nodes.find(|node| *node != self.member.me);
        let first =
            other.or_else(|| replicas.first_index().map(|replica_index| self.node(subject, replica_index)));
        first.map_or(self.event_source, |node| self.wait_target_of(node))
    }

    /// The wait target for this node or peer.
    pub(super) fn wait_target_of(&self, node: NodeIndex) -> WaitTarget {
        if node == self.member.me { WaitTarget::Store } else { WaitTarget::Peer(node) }
    }

    /// Sends a request to a replica, which may be this node. The caller counts it as in flight, if
    /// at all.
    #[inline]
    pub(super) fn send(
        &mut self,
        node: NodeIndex,
        number: u64,
        request: ReplicaRequest,
        deadline: Option<Instant>,
    ) {
        if node == self.member.me {
            self.store(StoreId(number), request.into(), deadline);
        } else {
            self.send_to_peer(node, number, request.into(), deadline);
        }
    }

    /// Sends a request to a peer. The caller counts it as in flight, if at all.
    #[inline]
    pub(super) fn send_to_peer(
        &mut self,
        node: NodeIndex,
        number: u64,
        request: PeerRequest,
        deadline: Option<Instant>,
    ) {
        let id = MessageId { incarnation: self.member.incarnation, requester: self.requester, number };
        let within = deadline.map(|deadline| deadline - self.now);
        let message = Message::Request { id, request, within };
        self.effects.push_back(Effect::Send { to: Destination::Dialed(node), message });
    }

    /// A new number for a request of a scan; no other request has it.
    pub(super) const fn next_scan_request(&mut self) -> u64 {
        self.scan_requests += 1;
        self.scan_requests & request_number::USES_MASK
    }

    /// Counts a request that is sent.
    #[inline]
    pub(super) fn begin_request(&mut self, node: NodeIndex, bytes: usize) {
        if node != self.member.me {
            self.peers[node.as_usize()].begin(self.now, bytes);
        }
    }

    /// Counts a request that was answered or abandoned.
    #[inline]
    pub(super) fn end_request(&mut self, node: NodeIndex, bytes: usize) {
        if node != self.member.me {
            self.peers[node.as_usize()].end(self.now, bytes);
        }
    }

    /// Sends a request to the local store; its answer is not needed after the deadline.
    pub(super) fn store(&mut self, id: StoreId, request: StoreRequest, deadline: Option<Instant>) {
        self.effects.push_back(Effect::Store { id, request, deadline });
    }

    /// Replies as a result of the event being handled alone.
    pub(super) fn reply(&mut self, to: impl Into<ReplyTo>, reply: Reply) {
        self.reply_after(WaitTrace::of(self.event_source), to, reply);
    }

    /// Replies after this wait.
    pub(super) fn reply_after(&mut self, wait: WaitTrace, to: impl Into<ReplyTo>, reply: Reply) {
        match to.into() {
            ReplyTo::User(to) => self.effects.push_back(Effect::Reply { to, reply, wait }),
            ReplyTo::Scan { slot, serial } => self.read_results.push_back((slot, serial, reply)),
        }
    }

    pub(super) fn emit(&mut self, event: Event) {
        self.effects.push_back(Effect::Event(event));
    }

    fn can_send(&self, node: NodeIndex, bytes: usize) -> Availability {
        let peer = &self.peers[node.as_usize()];
        if !peer.dialer.is_open() || self.view.peer(node).state == PeerState::Unreachable {
            return Availability::Unavailable;
        }
        let can_fit = peer.can_fit(bytes, self.limits.peer_requests_max, self.limits.peer_bytes_max);
        if can_fit && peer.delay.admits(self.peer_wait_max(false)) {
            Availability::Ready
        } else {
            Availability::Busy
        }
    }
}
