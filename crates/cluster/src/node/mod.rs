//! The node: what belongs to the process and not to one of its threads.
//!
//! **Promise.** It knows how each peer is and tells the coordinators at each change, and only then. It finds out
//! whether it stands for a node that lost its disk, and says so until it has what that one had. It is ready when
//! PROTOCOL's conditions hold, whatever one peer does. All of this under messages lost, doubled, late or out of
//! order, links that end at any moment, and a store that fails anything.
//!
//! **Mechanism.** Inputs change what is known; then everything that may follow from it is looked at, always in
//! the same order (`advance`): each step does nothing when there is nothing to do. So no event can be missed by
//! coming in an unforeseen order. Links and identities are in `links`, the failure detector in `heartbeat`, what
//! survives restarts in `record`, each question with a file of its own. Requests of peers for the store are the
//! replica's.
//!
//! The driver calls one of the `handle_` functions, then carries out [`poll_effect`](Node::poll_effect) until it
//! gives nothing, in that order. It calls [`handle_timeout`](Node::handle_timeout) when
//! [`poll_timeout`](Node::poll_timeout) has passed. `now.mono` never goes back.
//!
//! **Caveats.** Up to 64 nodes each look at each other: heartbeats grow with the square of their number.

mod absence;
mod drain;
mod handoff;
mod healing;
mod heartbeat;
mod horizon;
mod links;
mod outbox;
mod peer;
mod pull;
mod purpose;
mod ranges;
mod readiness;
mod rebuild;
mod record;
mod refused;
mod repair;
mod status;
mod sync_state;
mod upkeep;
mod wall_clock;

pub use status::{NodeStatus, PeerStatus, RepairKind, RepairStatus};

use crate::replica::{Replica, ReplicaContext, RequestHeader};
use crate::{
    ClusterView, Damage, Destination, Effect, LinkEvent, LinkId, Member, Message, MessageId, NodeIndex,
    NodeRecord, Origin, PeerAnswer, PeerRequest, StoreId, StoreResponse,
};
use drain::Drain;
use healing::Healing;
use horizon::Horizon;
use outbox::Outbox;
use peer::Peer;
use pull::Pull;
use purpose::{AskPurpose, StorePurpose};
use record::Record;
use refused::RefusedRetries;
use repair::Repair;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Instant, Now, Rng};
use upkeep::ClockBound;
use wall_clock::WallClock;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// For how long a tombstone is kept at least, unless configured otherwise.
pub(crate) const GRACE_DEFAULT: Duration = DAY.saturating_mul(10);

/// What a node may use up, and how long it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLimits {
    /// Between two heartbeats to a peer.
    pub heartbeat_interval: Duration,
    /// A peer silent for so long is suspected, ...
    pub suspected_after: Duration,
    /// ... and for so long, unreachable.
    pub unreachable_after: Duration,
    /// A hint older than this is dropped.
    pub hint_age_max: Duration,
    /// Past this time from its expiry or delete a dead cell is no longer exchanged: it may be purged.
    pub grace: Duration,
    /// How many replicas hold a key when nobody says otherwise; decides how many sources a rebuild needs.
    pub default_from: u8,
    /// For how long a write is waited for by whoever asked for it.
    pub request_timeout: Duration,
    /// The operator says that the cluster is new: a majority of new nodes settles without having heard the others.
    /// Without meaning for a node whose directory has settled. For the first start only: with it, a directory that was
    /// emptied later counts as new.
    pub new_cluster: bool,
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
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Node {
    member: Member,
    limits: NodeLimits,
    record: Record,
    view: Arc<ClusterView>,
    outbox: Outbox,
    rng: Rng,
    replica: Replica,
    /// By node; the entry of this node itself is not used.
    peers: Vec<Peer>,
    /// When heartbeats are sent next.
    tick_at: Instant,
    wall_clock: WallClock,
    horizon: Horizon,
    clock_bound: ClockBound,
    disk_full: bool,
    started: Instant,
    /// Each peer that may be reachable has said what it remembers of this node, once in this life; or is too late.
    words_are_heard: bool,
    /// When a peer last spoke of a life that the data directory does not know.
    contradicted_at: Option<Instant>,
    /// How often this process stood still for longer than hints surely cover.
    absences: u64,
    ready: bool,
    drain: Option<Drain>,
    pull: Option<Pull>,
    pulls: u64,
    healing: Healing,
    refused: RefusedRetries,
    repair: Repair,
}

impl Node {
    /// A node that has just recovered and remembers `record`.
    pub fn new(now: Now, member: Member, record: NodeRecord, limits: NodeLimits, rng: Rng) -> Self {
        let owed = record.repair_pending;
        let mut node = Self {
            limits,
            record: Record::new(record),
            view: member.first_view(),
            outbox: Outbox::new(member.incarnation),
            rng,
            replica: Replica::new(member.clone()),
            peers: member.layout.nodes().map(|node| Peer::new(now.mono, owed.contains(node))).collect(),
            tick_at: now.mono,
            wall_clock: WallClock::Unheard,
            horizon: Horizon::default(),
            clock_bound: ClockBound::new(now.mono),
            disk_full: false,
            started: now.mono,
            words_are_heard: false,
            contradicted_at: None,
            absences: 0,
            ready: false,
            drain: None,
            pull: None,
            pulls: 0,
            healing: Healing::default(),
            refused: RefusedRetries::new(now.mono),
            repair: Repair::new(now.mono, owed),
            member,
        };
        node.begin_generation();
        node.handle_timeout(now);
        node
    }

    /// Takes news of a link.
    pub fn handle_link(&mut self, now: Now, event: LinkEvent) {
        self.link_event(now, event);
        self.advance(now);
    }

    /// Takes a message. Whoever calls has brought the frame's clock to `HybridClock::observe`.
    pub fn handle_message(&mut self, now: Now, origin: Origin, message: Message) {
        if !self.is_peer(origin.node) {
            return;
        }
        match (message, origin.link) {
            (Message::Request { id, request, within }, Destination::Accepted(link))
                if self.is_let_in(origin.node, link) =>
            {
                self.handle_request(now, link, RequestHeader { origin, id, within }, request);
            }
            (Message::Answer { id, answer }, Destination::Dialed(node)) if node == origin.node => {
                self.handle_answer(now, node, id, answer);
            }
            // Over a link that is gone, or against its direction.
            _ => return,
        }
        self.advance(now);
    }

    /// Takes the store's answer to the request `id`; each is answered once.
    ///
    /// # Panics
    /// When the answer is not one to that request.
    pub fn handle_stored(&mut self, now: Now, id: StoreId, response: StoreResponse) {
        // Nodes move cells, and nobody is told whether one was superseded.
        let response = match response {
            StoreResponse::WrittenUnchecked { .. } => StoreResponse::Written { superseded: false },
            response => response,
        };
        if Replica::owns(id) {
            self.replica.handle_stored(id, response, &self.view.refused, &mut self.outbox.effects);
            return;
        }
        match self.outbox.stored(id) {
            StorePurpose::Remember => self.remembered(now, response),
            StorePurpose::RaiseClockBound => self.clock_bound_raised(now, response),
            StorePurpose::ReadHints { target } => self.hints_read(now, target, response),
            StorePurpose::ForgetHints { target, gone } => self.hints_forgotten(target, gone, response),
            StorePurpose::AnswerRange(asked) => self.range_scanned(now, &asked, response),
            StorePurpose::StorePulled { pull, source, key, cell } => {
                self.pulled_stored(now, pull, source, (key, cell), &response);
            }
            StorePurpose::GiveUp => self.gave_up(&response),
            StorePurpose::ReadRefused => self.refused_read(now, &response),
            StorePurpose::StoreRefused { holder } => self.refused_stored(now, holder, &response),
            StorePurpose::ScanChunk { pass } => self.chunk_scanned(now, pass, response),
            StorePurpose::ReadToPush { pass, transfer } => self.read_to_push(now, pass, transfer, response),
            StorePurpose::StoreLearned { pass, transfer } => self.learned(pass, transfer, &response),
        }
        self.advance(now);
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Now) {
        if self.tick_at <= now.mono {
            let late = now.mono - self.tick_at;
            if late > self.limits.heartbeat_interval {
                self.forgive_own_pause(now, late);
            }
            self.tick_at = now.mono + self.limits.heartbeat_interval;
            self.send_heartbeats(now);
            self.observe_clocks(now);
        }
        while let Some((node, purpose)) = self.outbox.pop_late(now.mono) {
            self.answered(now, node, purpose, None);
        }
        self.dial_due(now);
        self.detect(now);
        self.advance(now);
    }

    /// Takes note whether the disk has room for values; peers are told with the next heartbeat.
    pub fn handle_disk_full(&mut self, now: Now, is_full: bool) {
        self.disk_full = is_full;
        self.advance(now);
    }

    /// Takes note of the tables that the store cannot read back. To be called again and again: what is healed is not told
    /// any more.
    pub fn handle_damage(&mut self, now: Now, damage: Vec<Damage>) {
        self.note_damage(damage);
        self.advance(now);
    }

    /// Tells the peers that this node is about to end, and hands over hints that reachable peers lack.
    pub fn begin_drain(&mut self, now: Now) {
        self.start_drain(now);
        self.advance(now);
    }

    /// Whether there is nothing left to hand over.
    pub fn is_drained(&self) -> bool {
        self.drain.as_ref().is_some_and(|drain| drain.is_over)
    }

    /// Begins a pass of anti-entropy over all keys; after one that is under way, another.
    pub fn begin_repair(&mut self, now: Now) {
        self.ask_for_round(now);
        self.advance(now);
    }

    /// Whether users may be served: each peer has been linked with or is unreachable, and the hints that
    /// reachable peers hold for this node are applied. Once true, it stays.
    pub const fn is_ready(&self) -> bool {
        self.ready
    }

    /// What the coordinators should know now.
    pub const fn view(&self) -> &Arc<ClusterView> {
        &self.view
    }

    /// For operators.
    pub fn status(&self) -> NodeStatus {
        NodeStatus {
            sync_state: self.record.durable().sync_state,
            ready: self.ready,
            peers: self.member.layout.nodes().map(|node| self.peer_status(node)).collect(),
            repair: self.rebuild_status().or_else(|| self.healing_status()).or_else(|| self.repair_status()),
            repaired_at: self.record.durable().repaired_at,
            refused_keys: self.record.wanted().refused.len(),
        }
    }

    /// What the node wants done next.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.outbox.effects.pop_front()
    }

    /// When to call [`Node::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let of_peers = self.peer_nodes().flat_map(|node| {
            let dial_at = self.peer(node).dialer.due();
            [
                dial_at,
                self.next_silence(node),
                self.handoff_due(node),
                self.source_due(node),
                self.storing_due(node),
            ]
        });
        let own = [
            Some(self.tick_at),
            self.record.due(),
            self.outbox.next_late(),
            self.repair_due(),
            self.refused_due(),
        ];
        of_peers.chain(own).flatten().min()
    }

    /// Looks at everything that may follow from what has changed.
    fn advance(&mut self, now: Now) {
        self.decide_sync_state(now);
        let owed = self.look_for_dropped_hints();
        self.owe_repair(owed);
        self.peer_nodes().for_each(|node| self.advance_handoff(now, node));
        self.advance_rebuild(now);
        self.advance_healing(now);
        self.advance_refused(now);
        self.advance_repair(now);
        self.compare_clocks(now);
        self.raise_clock_bound(now);
        self.record.advance(now.mono, &mut self.outbox);
        self.look_whether_ready(now);
        self.advance_drain(now);
        self.publish(now);
    }

    fn handle_request(&mut self, now: Now, link: LinkId, demand: RequestHeader, request: PeerRequest) {
        let RequestHeader { origin, id, .. } = demand;
        match request {
            PeerRequest::Heartbeat(heartbeat) => self.heartbeat_came(now, link, id, origin.node, heartbeat),
            PeerRequest::Range(range) => self.range_came(origin.node, link, id, range),
            request => {
                let read_eligible = self.is_read_eligible();
                let effects = &mut self.outbox.effects;
                let tools = ReplicaContext { now, read_eligible, refused: None, writes: None, effects };
                self.replica.handle_request(tools, demand, request);
            }
        }
    }

    fn handle_answer(&mut self, now: Now, node: NodeIndex, id: MessageId, answer: PeerAnswer) {
        let Some(number) = self.outbox.number_of(id) else { return };
        if let PeerAnswer::Heartbeat(heartbeat) = answer {
            self.heartbeat_answered(now, node, number, heartbeat);
        } else if let Some(purpose) = self.outbox.answered(now.mono, node, number) {
            self.answered(now, node, purpose, Some(answer));
        }
    }

    /// A peer has answered what it was asked; `None`: it will not.
    fn answered(&mut self, now: Now, node: NodeIndex, purpose: AskPurpose, answer: Option<PeerAnswer>) {
        match purpose {
            AskPurpose::DeliverHint { key, version } => {
                self.hint_delivered(node, (key, version), answer.as_ref());
            }
            AskPurpose::PullRange { pull } => self.range_pulled(now, pull, node, answer),
            AskPurpose::AskRefused => self.refused_answered(now, node, answer),
            AskPurpose::CompareRange { pass } => self.range_compared(now, pass, node, answer),
            AskPurpose::OfferCell { pass, transfer } => self.cell_offered(pass, transfer, answer.as_ref()),
            AskPurpose::PushCell { pass, transfer } => self.cell_pushed(pass, transfer, answer.as_ref()),
            AskPurpose::PullCell { pass, transfer } => self.cell_pulled(now, pass, transfer, answer),
        }
    }

    fn remembered(&mut self, now: Now, response: StoreResponse) {
        let standing_before = self.record.durable().sync_state;
        self.record.stored(now.mono, response);
        self.admit_remembered();
        if self.record.durable().sync_state != standing_before {
            let owed = self.record.durable().repair_pending;
            self.owe_repair(owed);
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
        node != self.member.me && node.0 < self.member.layout.len()
    }

    fn is_let_in(&self, node: NodeIndex, link: LinkId) -> bool {
        self.peer(node).accepted.is_some_and(|accepted| accepted.link == link)
    }

    fn peer_nodes(&self) -> impl Iterator<Item = NodeIndex> + use<> {
        let me = self.member.me;
        self.member.layout.nodes().filter(move |&node| node != me)
    }

    fn peers_count(&self) -> usize {
        self.peers.len() - 1
    }
}
