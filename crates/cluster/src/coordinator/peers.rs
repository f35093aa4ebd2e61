//! The replicas as operations and scans see them: this node and its peers, their availability and
//! the requests in flight.
//!
//! The requests in flight at a peer are bounded in number, in bytes, and by their expected delay
//! (`admission`). A peer at its bound counts as failed for one more operation, so a slow peer costs
//! the others neither memory nor time.

use super::latency::LatencyEstimate;
use super::limits::CoordinatorLimits;
use crate::dial::DialSchedule;
use crate::layout::RunningSwap;
use crate::local_writes::LocalWrites;
use crate::quorum::{ReplicaSets, SwappedReplicas};
use crate::replica_set::ReplicaSet;
use crate::{
    ClusterView, HybridClock, Key, Layout, Member, NodeIndex, NodeSet, PartitionId, PeerState, Quorum,
    SwapPhase, WaitTarget,
};
use limits::Admission;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Hlc, Instant, NodeTag, Now};

/// Divisor of the deadline: the longest wait of a write for the local log.
const LOCAL_WAIT_DIVISOR: u32 = 10;
/// Divisor of the deadline: the longest wait of a request at a peer.
const PEER_WAIT_DIVISOR: u32 = 2;
/// Divisor of the deadline: the longest wait of a request at a peer while this node is busy.
const PEER_WAIT_DIVISOR_WHILE_BUSY: u32 = 40;
/// Factor by which writes requested by peers may wait longer than those of clients, because
/// refusing them costs more.
const REPLICA_WAIT_FACTOR: u32 = 2;
/// Divisor of the operations in flight: the share of paced writes.
const PACED_DIVISOR: u64 = 2;

/// Class of the [rank](Peers::read_rank) from which on a node is asked only if no other can be.
pub(super) const SUSPECTED_CLASS: u8 = 3;

/// Whether the client of a write limits itself to the capacity of the local log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WritePacing {
    /// It does not: a write that would wait for too long is refused.
    Unpaced,
    /// It does: its writes are not refused for the wait.
    Paced,
}

/// The replicas that a coordinator can ask: this node and its peers.
#[derive(Debug)]
pub(super) struct Peers {
    pub(super) member: Member,
    pub(super) limits: CoordinatorLimits,
    pub(super) view: Arc<ClusterView>,
    /// Writes in flight at the local store.
    pub(super) writes: LocalWrites,
    /// State of each node, by slot.
    pub(super) states: Vec<CoordinatorPeer>,
}

/// A key with its partition.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) key: Key,
    pub(super) partition: PartitionId,
}

/// This thread's state of a node. This node has an entry too, of which only the latency is used.
#[derive(Debug)]
pub(super) struct CoordinatorPeer {
    /// The link to it.
    pub(super) dialer: DialSchedule,
    /// Identity of its data directory, as of the last link to it.
    pub(super) tag: Option<NodeTag>,
    /// Its read latency.
    pub(super) latency: LatencyEstimate,
    /// The admission to it, by the requests in flight.
    pub(super) delay: Admission,
    bytes: usize,
}

/// Whether a node can be asked for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Availability {
    /// It can be asked.
    Ready,
    /// Its disk is full.
    Full,
    /// Too many requests are in flight there.
    Busy,
    /// There is no link to it, or it is not read-eligible.
    Unavailable,
}

impl Peers {
    pub(super) fn new(member: Member, limits: CoordinatorLimits, view: Arc<ClusterView>) -> Self {
        let states = (0..member.layout.slot_count()).map(|_| CoordinatorPeer::new()).collect();
        Self { member, limits, view, writes: LocalWrites::new(), states }
    }

    /// Takes a newer layout. The states of nodes that are gone stay until they are forgotten.
    pub(super) fn follow(&mut self, layout: Arc<Layout>) {
        let slots = layout.slot_count().max(self.states.len());
        self.states.resize_with(slots, CoordinatorPeer::new);
        self.member.layout = layout;
    }

    /// The quorum that the cluster can form in place of this one, which may have been chosen when
    /// the cluster had more nodes.
    #[inline]
    pub(super) fn possible(&self, quorum: Quorum) -> Quorum {
        quorum.within(self.member.layout.len())
    }

    /// The replicas that must hold a write of `subject`: one set or two. The quorum is one that the
    /// cluster can form ([`possible`](Self::possible)).
    #[inline]
    pub(super) fn write_sets(&self, subject: &Subject, quorum: Quorum) -> ReplicaSets {
        ReplicaSets::of(quorum.from(), self.swapped_replicas(subject))
    }

    /// The replicas that the running swap of `subject` exchanges.
    #[inline]
    pub(super) fn swapped_replicas(&self, subject: &Subject) -> Option<SwappedReplicas> {
        self.member.layout.swapped_replicas(subject.partition)
    }

    /// The replicas that reads of `subject` with this quorum ask.
    #[inline]
    pub(super) fn readers(&self, subject: &Subject, quorum: Quorum) -> ReplicaSets {
        let sets = self.write_sets(subject, quorum);
        match self.member.layout.running_swap(subject.partition) {
            Some(RunningSwap { phase: SwapPhase::ReadNew, .. }) => ReplicaSets::one(sets.after()),
            _ => ReplicaSets::one(sets.before()),
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

    /// Whether `node` can be asked to store `bytes`.
    #[inline]
    pub(super) fn can_write(&self, node: NodeIndex, bytes: usize, is_value: bool) -> Availability {
        if self.member.layout.is_excluded(node) {
            return Availability::Unavailable;
        }
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
        if !self.view.peer(node).read_eligible || self.member.layout.is_excluded(node) {
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
        let is_slow = self.states[node.as_usize()].latency.is_slow();
        let class = match view.state {
            _ if node == self.member.me && !is_slow => 0,
            PeerState::Up | PeerState::Unknown if !view.draining && !is_slow => 1,
            PeerState::Up | PeerState::Unknown => 2,
            PeerState::Suspected => SUSPECTED_CLASS,
            PeerState::Unreachable => SUSPECTED_CLASS + 1,
        };
        (class, self.states[node.as_usize()].latency.mean_nanos())
    }

    /// The wait target for the first of these replicas, if there is any; peers come before this
    /// node.
    pub(super) fn wait_target(&self, subject: &Subject, replicas: ReplicaSet) -> Option<WaitTarget> {
        let mut nodes = replicas.map(|replica_index| self.node(subject, replica_index));
        let other = nodes.find(|node| *node != self.member.me);
        let first =
            other.or_else(|| replicas.first_index().map(|replica_index| self.node(subject, replica_index)));
        first.map(|node| self.wait_target_of(node))
    }

    /// The wait target for this node or peer.
    pub(super) fn wait_target_of(&self, node: NodeIndex) -> WaitTarget {
        if node == self.member.me { WaitTarget::Store } else { WaitTarget::Peer(node) }
    }

    /// Counts a request that is sent.
    #[inline]
    pub(super) fn begin_request(&mut self, now: Instant, node: NodeIndex, bytes: usize) {
        if node != self.member.me {
            self.states[node.as_usize()].begin(now, bytes);
        }
    }

    /// Counts a request that was answered or abandoned.
    #[inline]
    pub(super) fn end_request(&mut self, now: Instant, node: NodeIndex, bytes: usize) {
        if node != self.member.me {
            self.states[node.as_usize()].end(now, bytes);
        }
    }

    fn can_send(&self, node: NodeIndex, bytes: usize) -> Availability {
        let peer = &self.states[node.as_usize()];
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

    /// Whether this node or a peer may be busy.
    pub(super) fn is_under_pressure(&self) -> bool {
        !self.admits_local_write()
            || self.states.iter().any(|peer| !peer.delay.admits(self.peer_wait_max(false)))
    }

    /// Whether this node is a replica of a key, and too much work waits for its log.
    pub(super) fn is_local_log_busy(&self, subject: &Subject, quorum: Quorum) -> bool {
        let replicas = || self.write_sets(subject, self.possible(quorum)).union();
        !self.admits_local_write() && self.is_own_among(subject, replicas())
    }

    /// Whether `node` can be asked to store `bytes` for a client.
    pub(super) fn admits_write(
        &self,
        node: NodeIndex,
        bytes: usize,
        is_value: bool,
        is_local_log_busy: bool,
    ) -> Availability {
        let is_busy = match node == self.member.me {
            true => is_local_log_busy,
            false => {
                is_local_log_busy && !self.states[node.as_usize()].delay.admits(self.peer_wait_max(true))
            }
        };
        match self.can_write(node, bytes, is_value) {
            Availability::Ready if is_busy => Availability::Busy,
            availability => availability,
        }
    }

    /// Longest wait of a request at a peer.
    pub(super) fn peer_wait_max(&self, is_local_log_busy: bool) -> Duration {
        self.limits.request_timeout
            / if is_local_log_busy { PEER_WAIT_DIVISOR_WHILE_BUSY } else { PEER_WAIT_DIVISOR }
    }

    /// Longest wait of a write requested by a peer.
    pub(super) fn replica_wait_max(&self) -> Duration {
        self.limits.request_timeout / LOCAL_WAIT_DIVISOR * REPLICA_WAIT_FACTOR
    }

    /// Number of further paced writes that the local log can take.
    pub(super) fn paced_write_capacity(&self) -> usize {
        self.writes.capacity(self.limits.request_timeout / LOCAL_WAIT_DIVISOR, PACED_DIVISOR)
    }

    /// Expected time until the work in flight is done, here and at peers.
    pub(super) fn retry_after(&self) -> Duration {
        let peers = self.states.iter().map(|peer| peer.delay.drain_time()).max();
        self.writes.drain_time().max(peers.unwrap_or_default())
    }

    fn admits_local_write(&self) -> bool {
        self.writes.admits(self.limits.request_timeout / LOCAL_WAIT_DIVISOR)
    }

    /// Whether replicas whose clocks agree with this node's wall clock would refuse a version. A
    /// node that is alone has no other clock to be ahead of.
    pub(super) fn is_ahead(&self, now: Now, hlc: Hlc) -> bool {
        self.member.layout.len() > 1 && HybridClock::is_ahead(hlc, now.wall)
    }
}

impl CoordinatorPeer {
    /// Creates a peer without a link.
    pub(super) fn new() -> Self {
        let (dialer, delay) = (DialSchedule::new(), Admission::batched());
        Self { dialer, tag: None, latency: LatencyEstimate::UNKNOWN, delay, bytes: 0 }
    }

    /// Whether one more request fits. A request that would be alone always does, however large.
    pub(super) fn can_fit(&self, bytes: usize, requests_max: u32, bytes_max: usize) -> bool {
        let fits = bytes == 0 || self.bytes == 0 || self.bytes + bytes <= bytes_max;
        fits && self.delay.operations() < requests_max as usize
    }

    /// Counts a request that is sent.
    pub(super) fn begin(&mut self, now: Instant, bytes: usize) {
        self.delay.begin(now, bytes);
        self.bytes += bytes;
    }

    /// Counts a request that was answered or abandoned.
    ///
    /// # Panics
    /// If none was in flight.
    pub(super) fn end(&mut self, now: Instant, bytes: usize) {
        self.delay.end(now, bytes);
        self.bytes -= bytes;
    }
}
