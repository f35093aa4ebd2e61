//! The node: what belongs to the process and not to one of its threads.

use crate::{
    ClusterView, Effect, HintCount, LinkEvent, Member, Message, NodeIndex, NodeRecord, Origin, PeerState,
    Standing, StoreId, StoreResponse,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Instant, Now, Rng, WallTime};

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
}

impl Default for NodeLimits {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        Self {
            heartbeat_interval: Duration::from_millis(100),
            suspected_after: Duration::from_millis(300),
            unreachable_after: Duration::from_secs(1),
            hint_age_max: DAY.saturating_mul(3),
            grace: DAY.saturating_mul(10),
            default_from: 3,
        }
    }
}

/// A node's account of itself and its peers, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Its standing.
    pub standing: Standing,
    /// It has what it needs to serve users.
    pub ready: bool,
    /// Its peers and itself, by index.
    pub peers: Vec<PeerStatus>,
    /// The pass of anti-entropy or rebuilding under way.
    pub repair: Option<RepairStatus>,
    /// When the last pass ended.
    pub repaired_at: Option<WallTime>,
}

/// A peer, for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Which.
    pub node: NodeIndex,
    /// How it is.
    pub state: PeerState,
    /// Whether its answers count.
    pub standing: Standing,
    /// Hints kept here for it.
    pub hints: HintCount,
    /// Hints for it that were dropped here.
    pub hints_dropped: u64,
    /// How far its wall clock is ahead of this node's, in microseconds; what the network takes is in it.
    pub clock_ahead_micros: i64,
    /// From a heartbeat to its answer.
    pub round_trip: Option<Duration>,
}

/// A pass over all keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairStatus {
    /// It fills this node, which lost its data.
    pub rebuilding: bool,
    /// The part of the key space passed, in thousandths, by the first bytes of the keys.
    pub permille: u16,
    /// Cells taken from peers or sent to them.
    pub cells: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Node {
    member: Member,
    limits: NodeLimits,
    record: NodeRecord,
    view: Arc<ClusterView>,
    effects: VecDeque<Effect>,
    rng: Rng,
}

impl Node {
    /// A node that has just recovered and remembers `record`.
    pub fn new(now: Now, member: Member, record: NodeRecord, limits: NodeLimits, rng: Rng) -> Self {
        let view = member.first_view();
        Self { member, limits, record, view, effects: VecDeque::new(), rng }
    }

    /// Takes news of a link.
    pub fn handle_link(&mut self, now: Now, event: LinkEvent) {}

    /// Takes a message. Whoever calls has brought the frame's clock to `HybridClock::observe`.
    pub fn handle_message(&mut self, now: Now, origin: Origin, message: Message) {}

    /// Takes the store's answer to the request `id`; each is answered once.
    pub fn handle_stored(&mut self, now: Now, id: StoreId, response: StoreResponse) {}

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Now) {}

    /// Tells the peers that this node is about to end, and hands over hints that reachable peers lack.
    pub fn begin_drain(&mut self, now: Now) {}

    /// Whether there is nothing left to hand over.
    pub fn is_drained(&self) -> bool {
        true
    }

    /// Begins a pass of anti-entropy over all keys, unless one is under way.
    pub fn begin_repair(&mut self, now: Now) {}

    /// Whether users may be served: each peer has been linked with or is unreachable, and the hints that
    /// reachable peers hold for this node are applied. Once true, it stays.
    pub fn is_ready(&self) -> bool {
        true
    }

    /// What the coordinators should know now.
    pub fn view(&self) -> &Arc<ClusterView> {
        &self.view
    }

    /// For operators.
    pub fn status(&self, now: Now) -> NodeStatus {
        unimplemented!()
    }

    /// What the node wants done next.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When to call [`Node::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}
