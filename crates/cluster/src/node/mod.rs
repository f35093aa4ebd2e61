//! The node: the state machine for the duties of a process as a whole, beside its I/O threads.
//!
//! **Promise.** The node tracks the state of each peer and publishes a view to the coordinators at
//! each change, and only then. It detects that it replaces a node which lost its disk, and
//! reports that until it has recovered the lost data. It becomes ready under the conditions of
//! `readiness`, even if one peer misbehaves. All of this holds while messages are lost, duplicated,
//! delayed or reordered, links end at any moment, and any request to the store fails.
//!
//! **Mechanism.** Each input updates the state. Then `advance` runs every follow-up step in a fixed
//! order; a step without work does nothing. So no event is missed because of the order of the
//! inputs. Each duty has a file of its own: links and identities are in `links`, the failure
//! detector in `heartbeat`, the state that survives restarts in `record`, the agreement on layout
//! records in `agreement`, what follows from a new layout in `layout_change`. The replica handles
//! the requests of peers for the store.
//!
//! The driver calls a `handle_` function and then drains [`poll_effect`](Node::poll_effect),
//! carrying the effects out in order. It calls [`handle_timeout`](Node::handle_timeout) when
//! [`poll_timeout`](Node::poll_timeout) has passed. `now.mono` never decreases.
//!
//! **Caveats.** Each of up to 64 nodes sends heartbeats to each other node, so their number grows
//! with the square of the cluster size.

mod absences;
mod agreement;
mod clock_bound;
mod copying;
mod dispatch;
mod drain;
mod handoff;
mod healing;
mod heartbeat;
mod horizon;
mod layout_change;
mod links;
mod outbox;
mod ownership;
mod peer;
mod pull;
mod ranges;
mod readiness;
mod rebuild;
mod record;
mod refused_retries;
mod repair;
mod status;
mod sync_state;
mod undecided_generations;
mod wall_clock;

pub use agreement::{
    AgreementEffect, AgreementStatus, CommandObstacle, LayoutCommand, LayoutCommandId, LayoutCommandOutcome,
    LayoutConflict, LayoutConflictReason, PLAN_STALLED_AFTER, PlanWait, PlannedChange, ProposalOutcome,
    ProposeError, StallReason, SwapWait, VoterStatus,
};
pub use copying::{CopyObstacle, CopyStatus};
pub use status::{NodeStatus, PeerStatus, PurgeStatus, RepairKind, RepairStatus};

use crate::replica::{Replica, RequestHeader};
use crate::{
    ClusterView, Destination, Effect, FEATURE_LEVEL_MAX_DEFAULT, LayoutEpoch, LinkEvent, LinkId, Member,
    Message, NodeIndex, NodeRecord, NodeSet, Origin, ReplicaResponse, StoreId, StoreResponse, TableDamage,
};
use agreement::Agreement;
use clock_bound::ClockBound;
use copying::Copies;
use drain::Drain;
use healing::Healing;
use horizon::ClusterHorizon;
use outbox::NodeEffects;
use ownership::NodeOwnership;
use peer::Peer;
use pull::Pull;
use record::NodeRecordState;
use refused_retries::RefusedRetries;
use repair::Repair;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Instant, Now, Rng};
use wall_clock::ClockComparison;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Default of the grace period: the minimum time for which a tombstone is kept.
pub(crate) const GRACE_DEFAULT: Duration = DAY.saturating_mul(10);

/// Limits and timeouts of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLimits {
    /// Time between two heartbeats to a peer.
    pub heartbeat_interval: Duration,
    /// Silence after which a peer is suspected.
    pub suspected_after: Duration,
    /// Silence after which a peer is unreachable.
    pub unreachable_after: Duration,
    /// Age from which a hint is dropped.
    pub hint_age_max: Duration,
    /// Grace period: a dead cell is exchanged for this long after its expiry or delete. After that
    /// it may be purged.
    pub grace: Duration,
    /// Number of replicas of a key if a request does not state it. Determines how many sources a
    /// rebuild needs.
    pub default_from: u8,
    /// Time for which the requester of a write waits for it.
    pub request_timeout: Duration,
    /// The operator declares the cluster new: a majority of new nodes settles without having heard
    /// the others. It has no effect on a node whose directory has settled. Use it for the first
    /// start only: with it, a directory that was emptied later counts as new.
    pub new_cluster: bool,
    /// Greatest feature level of the layout records that the node carries out. It votes for records
    /// and adopts them up to this level, and the cluster raises its level once all members do.
    pub feature_level_max: u32,
}

impl Default for NodeLimits {
    fn default() -> Self {
        Self {
            heartbeat_interval: Duration::from_millis(100),
            suspected_after: Duration::from_millis(300),
            unreachable_after: Duration::from_secs(1),
            hint_age_max: DAY.saturating_mul(3),
            grace: GRACE_DEFAULT,
            default_from: 3,
            request_timeout: Duration::from_secs(1),
            new_cluster: false,
            feature_level_max: FEATURE_LEVEL_MAX_DEFAULT,
        }
    }
}

/// The state machine of a process's duties to its cluster: failure detection, hinted handoff,
/// rebuild, healing and anti-entropy.
#[derive(Debug)]
pub struct Node {
    member: Member,
    limits: NodeLimits,
    record: NodeRecordState,
    view: Arc<ClusterView>,
    outbox: NodeEffects,
    rng: Rng,
    replica: Replica,
    /// State of each peer, by slot. The entries of this node and of free slots are unused.
    peers: Vec<Peer>,
    /// Slots without a member for which the store may hold hints.
    leftover_hints: NodeSet,
    /// The newest epoch that all coordinators of the process have fenced.
    coordinators_fenced: LayoutEpoch,
    /// Time of the next heartbeats.
    tick_at: Instant,
    clock_comparison: ClockComparison,
    horizon: ClusterHorizon,
    clock_bound: ClockBound,
    disk_full: bool,
    started: Instant,
    /// Every peer that may be reachable has sent its identity report since the process started, or
    /// the time for that has passed.
    has_identity_reports: bool,
    /// Last time at which a peer reported a generation that contradicts the data directory, or
    /// refused this process as a duplicate.
    contradicted_at: Option<Instant>,
    /// Number of pauses of this process that were longer than the time which hints are sure to
    /// cover.
    absences: u64,
    ready: bool,
    drain: Option<Drain>,
    pull: Option<Pull>,
    pulls: u64,
    healing: Healing,
    refused_retries: RefusedRetries,
    repair: Repair,
    copies: Copies,
    ownership: NodeOwnership,
    /// `None` while the node takes no part in the agreement on layout records.
    agreement: Option<Agreement>,
}

impl Node {
    /// Creates a node that has just recovered with `record`.
    pub fn new(now: Now, member: Member, record: NodeRecord, limits: NodeLimits, rng: Rng) -> Self {
        let layout = &member.layout;
        let pending = record.repair_pending.intersection(layout.members());
        let ownership = NodeOwnership::at_start(now.mono, &member, record.disowned_to);
        let peer = |slot| Peer::new(now.mono, pending.contains(NodeIndex(slot as u8)));
        let mut node = Self {
            limits,
            record: NodeRecordState::new(record),
            view: member.first_view(),
            outbox: NodeEffects::new(member.incarnation, layout.newest_change()),
            rng,
            replica: Replica::new(member.clone()),
            peers: (0..layout.slot_count()).map(peer).collect(),
            leftover_hints: NodeSet::EMPTY,
            coordinators_fenced: layout.newest_change(),
            tick_at: now.mono,
            clock_comparison: ClockComparison::NoPeers,
            horizon: ClusterHorizon::default(),
            clock_bound: ClockBound::new(now.mono),
            disk_full: false,
            started: now.mono,
            has_identity_reports: false,
            contradicted_at: None,
            absences: 0,
            ready: false,
            drain: None,
            pull: None,
            pulls: 0,
            healing: Healing::default(),
            refused_retries: RefusedRetries::new(now.mono),
            repair: Repair::new(now.mono, pending),
            copies: Copies::new(now.mono),
            ownership,
            agreement: None,
            member,
        };
        node.forget_absent_nodes();
        node.forget_round_before_changes();
        node.begin_generation();
        node.handle_timeout(now);
        node
    }

    /// Handles an event of a link.
    pub fn handle_link(&mut self, now: Now, event: LinkEvent) {
        self.handle_link_event(now, event);
        self.advance(now);
    }

    /// Handles a message. The caller has passed the clock of the frame to `HybridClock::observe`.
    pub fn handle_message(&mut self, now: Now, origin: Origin, message: Message) {
        if !self.is_peer(origin.node) {
            return;
        }
        match (message, origin.link) {
            (Message::Request { id, request, within, epoch }, Destination::Accepted(link))
                if self.is_admitted(origin.node, link) =>
            {
                self.handle_request(now, link, RequestHeader { origin, id, within, epoch }, request);
            }
            (Message::Answer { id, answer }, Destination::Dialed(node)) if node == origin.node => {
                self.handle_answer(now, node, id, answer);
            }
            // The link has ended, or the message goes against its direction.
            _ => return,
        }
        self.advance(now);
    }

    /// Handles the store's answer to the request `id`. Each request is answered once.
    ///
    /// # Panics
    /// If the answer does not match the request.
    pub fn handle_stored(&mut self, now: Now, id: StoreId, response: StoreResponse) {
        // The node moves cells; it has no use for whether one was superseded.
        let response = match response {
            StoreResponse::WrittenUnchecked { .. } => ReplicaResponse::Written { superseded: false }.into(),
            response => response,
        };
        if Replica::owns(id) {
            self.replica.handle_stored(id, response, &self.view.refused, &mut self.outbox.effects);
            return;
        }
        let purpose = self.outbox.complete_store(id);
        self.complete_store(now, purpose, response);
        self.advance(now);
    }

    /// Runs everything that is due.
    pub fn handle_timeout(&mut self, now: Now) {
        if self.tick_at <= now.mono {
            let late = now.mono - self.tick_at;
            if late > self.limits.heartbeat_interval {
                self.discount_own_pause(now, late);
            }
            self.tick_at = now.mono + self.limits.heartbeat_interval;
            self.send_heartbeats(now);
            self.observe_clocks(now);
            self.note_horizon_tick();
            self.reconcile(now);
            self.follow_plan_progress(now);
        }
        while let Some((node, purpose)) = self.outbox.pop_expired(now.mono) {
            self.complete_request(now, node, purpose, None);
        }
        self.dial_due_peers(now);
        self.detect_failures(now);
        self.advance(now);
    }

    /// Sets whether the disk has no space for values. Peers learn it with the next heartbeat.
    pub fn handle_disk_full(&mut self, now: Now, is_full: bool) {
        self.disk_full = is_full;
        self.advance(now);
    }

    /// Sets the tables that the store cannot read back. The driver calls this repeatedly with the
    /// current list, which no longer contains healed tables.
    pub fn handle_damage(&mut self, now: Now, damage: Vec<TableDamage>) {
        self.set_damage(damage);
        self.advance(now);
    }

    /// Starts the drain: tells the peers that this node is about to end, and delivers pending hints
    /// to reachable peers.
    pub fn begin_drain(&mut self, now: Now) {
        self.start_drain(now);
        self.advance(now);
    }

    /// Whether the drain has finished.
    pub fn is_drained(&self) -> bool {
        self.drain.as_ref().is_some_and(|drain| drain.is_finished)
    }

    /// Requests a round of anti-entropy over all keys. A running pass ends first, and another
    /// follows.
    pub fn begin_repair(&mut self, now: Now) {
        self.request_round(now);
        self.advance(now);
    }

    /// Whether users may be served: each peer is linked or unreachable, and the hints that
    /// reachable peers hold for this node are applied. Once true, it stays true.
    pub const fn is_ready(&self) -> bool {
        self.ready
    }

    /// The current view for the coordinators.
    pub const fn view(&self) -> &Arc<ClusterView> {
        &self.view
    }

    /// Status of the node and its peers for operators.
    pub fn status(&self) -> NodeStatus {
        NodeStatus {
            sync_state: self.record.durable().sync_state,
            ready: self.ready,
            peers: self.member.layout.nodes().map(|node| self.peer_status(node)).collect(),
            repair: self.rebuild_status().or_else(|| self.healing_status()).or_else(|| self.repair_status()),
            repaired_at: self.record.durable().repaired_at,
            refused_keys: self.record.wanted().refused.len(),
            fenced: self.fenced(),
            purge: self.purge_status(),
        }
    }

    /// Takes the next effect that the driver is to carry out.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.outbox.effects.pop_front()
    }

    /// Time at which [`Node::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let of_peers = self.peer_nodes().flat_map(|node| {
            let dial_at = self.peer(node).dialer.due();
            [dial_at, self.detection_due(node), self.source_due(node), self.storing_due(node)]
        });
        let of_hints = self.hint_targets().map(|node| self.handoff_due(node));
        let own = [
            Some(self.tick_at),
            self.record.due().filter(|_| !self.is_vote_history_pending()),
            self.agreement_due(),
            self.outbox.next_deadline(),
            self.repair_due(),
            self.refused_due(),
            self.copies_due(),
            self.ownership_due(),
        ];
        of_peers.chain(of_hints).chain(own).flatten().min()
    }

    /// Runs every step that may follow from a change of state.
    fn advance(&mut self, now: Now) {
        self.update_sync_state(now);
        let pending = self.note_dropped_hints();
        self.mark_repair_pending(pending);
        self.hint_targets().for_each(|node| self.advance_handoff(now, node));
        self.advance_rebuild(now);
        self.advance_healing(now);
        self.advance_refused(now);
        self.hold_deletes_while_swapping(now);
        self.advance_repair(now);
        self.advance_copies(now);
        self.advance_ownership(now);
        self.compare_clocks(now);
        self.raise_clock_bound(now);
        self.advance_agreement(now);
        // A start after this must find the lost votes, or the reason to look for them.
        if !self.is_vote_history_pending() {
            self.record.advance(now.mono, &mut self.outbox);
        }
        self.update_readiness(now);
        self.advance_drain(now);
        self.publish_view(now);
    }

    fn handle_record_stored(&mut self, now: Now, response: StoreResponse) {
        let previous = self.record.durable().sync_state;
        self.record.handle_stored(now.mono, response);
        self.admit_pending_links(now);
        if self.record.durable().sync_state != previous {
            let pending = self.record.durable().repair_pending;
            self.mark_repair_pending(pending);
            self.send_heartbeats(now);
        }
    }

    fn peer(&self, node: NodeIndex) -> &Peer {
        &self.peers[node.as_usize()]
    }

    fn peer_mut(&mut self, node: NodeIndex) -> &mut Peer {
        &mut self.peers[node.as_usize()]
    }

    fn is_peer(&self, node: NodeIndex) -> bool {
        node != self.member.me && self.member.layout.members().contains(node)
    }

    fn is_admitted(&self, node: NodeIndex, link: LinkId) -> bool {
        self.peer(node).accepted.is_some_and(|accepted| accepted.link == link)
    }

    fn peer_nodes(&self) -> impl Iterator<Item = NodeIndex> + use<> {
        let me = self.member.me;
        self.member.layout.nodes().filter(move |&node| node != me)
    }

    fn peers_count(&self) -> usize {
        self.nodes_count() - 1
    }

    /// Number of members, this node included.
    fn nodes_count(&self) -> usize {
        usize::from(self.member.layout.len())
    }
}
