//! The network between hosts: connections, and the delivery of packets.
//!
//! **Mechanism.** A connection has two ends, and each may close without the knowledge of the other.
//! Each direction keeps its order, as TCP does, unless the network is *lossy*. Then single messages
//! are lost, duplicated and delayed, which is worse than TCP and within the requirements of the
//! state machines. Between each ordered pair of nodes the path may be *cut* (packets are lost),
//! *clogged* (packets are held until the clog ends) or *slow*.

use crate::Nanos;
use crate::packet::Packet;
use cluster::{NodeIndex, Requester};
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::Rng;
use wire::PROTOCOL_VERSION;

/// Number of a connection. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// One of the two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectionSide {
    /// The end that dialed. It sends requests.
    Dialer,
    /// The end that was dialed. It sends answers.
    Acceptor,
}

impl ConnectionSide {
    /// The opposite end.
    pub const fn other(self) -> Self {
        match self {
            Self::Dialer => Self::Acceptor,
            Self::Acceptor => Self::Dialer,
        }
    }
}

/// Address of a state machine in one generation of a host's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// Host of the process.
    pub node: NodeIndex,
    /// Generation of the process.
    pub generation: u64,
    /// State machine within the process.
    pub requester: Requester,
}

/// State of one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndState {
    /// The dialer waits for an answer, or the acceptor's node has not admitted the connection yet.
    Pending,
    /// Messages pass.
    Open,
    /// The end is closed: packets that arrive are dropped.
    Gone,
}

/// State of a connection between two nodes.
#[derive(Clone, Debug)]
pub struct ConnectionState {
    /// State machine that dialed.
    pub dialer: Endpoint,
    /// State machine that was dialed. It is known once the connection is admitted.
    pub acceptor: Endpoint,
    /// Slot of the dialer.
    pub dialer_slot: NodeIndex,
    /// Slot that was dialed.
    pub acceptor_slot: NodeIndex,
    /// State of the dialer's end.
    pub dialer_end: EndState,
    /// State of the acceptor's end.
    pub acceptor_end: EndState,
    /// Version of the protocol that both ends speak. It is known once the connection is admitted.
    pub version: u8,
    /// Arrival time of the last message, towards the dialer and towards the acceptor.
    last_arrival: [Nanos; 2],
}

impl ConnectionState {
    /// State machine at this end.
    pub const fn endpoint(&self, side: ConnectionSide) -> Endpoint {
        match side {
            ConnectionSide::Dialer => self.dialer,
            ConnectionSide::Acceptor => self.acceptor,
        }
    }

    /// Slot of the member that this end stands for, as the other end knows it.
    pub const fn slot(&self, side: ConnectionSide) -> NodeIndex {
        match side {
            ConnectionSide::Dialer => self.dialer_slot,
            ConnectionSide::Acceptor => self.acceptor_slot,
        }
    }

    /// State of this end.
    pub const fn end(&self, side: ConnectionSide) -> EndState {
        match side {
            ConnectionSide::Dialer => self.dialer_end,
            ConnectionSide::Acceptor => self.acceptor_end,
        }
    }

    /// Sets the state of this end.
    pub const fn set_end(&mut self, side: ConnectionSide, state: EndState) {
        match side {
            ConnectionSide::Dialer => self.dialer_end = state,
            ConnectionSide::Acceptor => self.acceptor_end = state,
        }
    }
}

/// State of the path from one node to another.
#[derive(Clone, Copy, Debug, Default)]
struct PathState {
    cuts: u8,
    clogs: u8,
    slowness: Duration,
}

/// Delivery of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The packet is lost.
    Lost,
    /// The packet is held until the path is clear.
    Held,
    /// The packet arrives at the first time, and is duplicated at the second time if there is one.
    Arrives(Nanos, Option<Nanos>),
}

/// A held packet, its connection, and the end that it goes to.
pub type HeldPacket = (ConnectionId, ConnectionSide, Packet);

/// All connections, and the states of the paths between nodes.
#[derive(Debug)]
pub struct Network {
    links: BTreeMap<ConnectionId, ConnectionState>,
    next: u64,
    paths: BTreeMap<(NodeIndex, NodeIndex), PathState>,
    held: BTreeMap<(NodeIndex, NodeIndex), Vec<HeldPacket>>,
    /// Nodes that refuse connections, with the number of faults that make them do so.
    refusing: BTreeMap<NodeIndex, u8>,
    delay_max: Duration,
    lossy_share: f64,
    lossy: u8,
    rng: Rng,
}

impl Network {
    /// Creates a network without faults.
    pub const fn new(delay_max: Duration, lossy_share: f64, rng: Rng) -> Self {
        Self {
            links: BTreeMap::new(),
            next: 0,
            paths: BTreeMap::new(),
            held: BTreeMap::new(),
            refusing: BTreeMap::new(),
            delay_max,
            lossy_share,
            lossy: 0,
            rng,
        }
    }

    /// Adds a connection to the host `to` that is not accepted yet. `slots`: those of the dialer
    /// and of the member that it dials.
    pub fn dial(&mut self, dialer: Endpoint, to: NodeIndex, slots: [NodeIndex; 2]) -> ConnectionId {
        let connection = ConnectionId(self.next);
        self.next += 1;
        let acceptor = Endpoint { node: to, generation: 0, requester: Requester::Node };
        let [dialer_slot, acceptor_slot] = slots;
        let link = ConnectionState {
            dialer,
            acceptor,
            dialer_slot,
            acceptor_slot,
            dialer_end: EndState::Pending,
            acceptor_end: EndState::Gone,
            version: PROTOCOL_VERSION,
            last_arrival: [Nanos::ZERO; 2],
        };
        self.links.insert(connection, link);
        connection
    }

    /// State of a connection, unless it was forgotten after both ends closed.
    pub fn link(&self, connection: ConnectionId) -> Option<&ConnectionState> {
        self.links.get(&connection)
    }

    /// Mutable state of a connection. See [`Network::link`].
    pub fn link_mut(&mut self, connection: ConnectionId) -> Option<&mut ConnectionState> {
        self.links.get_mut(&connection)
    }

    /// Forgets a connection if both of its ends are closed.
    pub fn forget_closed(&mut self, connection: ConnectionId) {
        let is_gone = |link: &ConnectionState| [link.dialer_end, link.acceptor_end] == [EndState::Gone; 2];
        if self.links.get(&connection).is_some_and(is_gone) {
            self.links.remove(&connection);
        }
    }

    /// Ends of connections at `node` that are not closed.
    pub fn ends_at(&self, node: NodeIndex) -> Vec<(ConnectionId, ConnectionSide)> {
        let ends = self.links.iter().flat_map(|(connection, link)| {
            [ConnectionSide::Dialer, ConnectionSide::Acceptor]
                .map(|side| (*connection, side, link.endpoint(side), link.end(side)))
        });
        ends.filter(|(_, _, endpoint, end)| endpoint.node == node && *end != EndState::Gone)
            .map(|(connection, side, _, _)| (connection, side))
            .collect()
    }

    /// Connections between two nodes.
    pub fn between(&self, a: NodeIndex, b: NodeIndex) -> Vec<ConnectionId> {
        let is_between = |link: &ConnectionState| {
            let ends = (link.dialer.node, link.acceptor.node);
            ends == (a, b) || ends == (b, a)
        };
        self.links.iter().filter(|(_, link)| is_between(link)).map(|(connection, _)| *connection).collect()
    }

    /// Draws the delivery of a packet that is sent now towards this end.
    pub fn schedule(&mut self, connection: ConnectionId, toward: ConnectionSide, now: Nanos) -> Delivery {
        let Some(link) = self.links.get(&connection) else { return Delivery::Lost };
        let (from, to) = (link.endpoint(toward.other()).node, link.endpoint(toward).node);
        let path = self.path(from, to);
        if path.cuts > 0 {
            return Delivery::Lost;
        }
        if path.clogs > 0 {
            return Delivery::Held;
        }
        let at = now + self.delay() + path.slowness;
        if self.lossy > 0 {
            return self.schedule_lossy(at);
        }
        let link = self.links.get_mut(&connection).expect("the connection was just found");
        let last = &mut link.last_arrival[toward as usize];
        *last = (*last).max(at);
        Delivery::Arrives(*last, None)
    }

    fn schedule_lossy(&mut self, at: Nanos) -> Delivery {
        if self.rng.chance(self.lossy_share) {
            return Delivery::Lost;
        }
        let late = |rng: &mut Rng| Duration::from_micros(rng.below(400_000));
        let first = if self.rng.chance(self.lossy_share) { at + late(&mut self.rng) } else { at };
        let again = self.rng.chance(self.lossy_share).then(|| at + late(&mut self.rng));
        Delivery::Arrives(first, again)
    }

    /// Arrival time of a signal that is not a message (a connection attempt, a close) and leaves
    /// now. `None` if it never arrives.
    pub fn signal(&mut self, from: NodeIndex, to: NodeIndex, now: Nanos) -> Option<Nanos> {
        let path = self.path(from, to);
        let passes = path.cuts == 0 && path.clogs == 0;
        passes.then(|| now + self.delay() + path.slowness)
    }

    /// Delay of the next byte of a stream from one node to another. `None` if nothing arrives for
    /// now and the stream waits.
    pub fn stream_delay(&mut self, from: NodeIndex, to: NodeIndex) -> Option<Duration> {
        let path = self.path(from, to);
        let passes = path.cuts == 0 && path.clogs == 0;
        passes.then(|| self.delay() + path.slowness)
    }

    /// Draws a random number less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    /// Holds a packet until its path is clear.
    pub fn hold(&mut self, connection: ConnectionId, toward: ConnectionSide, packet: Packet) {
        let Some(link) = self.links.get(&connection) else { return };
        let path = (link.endpoint(toward.other()).node, link.endpoint(toward).node);
        self.held.entry(path).or_default().push((connection, toward, packet));
    }

    /// Takes the packets that were held on paths that are clear now.
    pub fn release(&mut self) -> Vec<HeldPacket> {
        let clear = |paths: &BTreeMap<_, PathState>, path| {
            paths.get(path).is_none_or(|path: &PathState| path.clogs == 0)
        };
        let cleared: Vec<_> = self.held.keys().filter(|path| clear(&self.paths, path)).copied().collect();
        cleared.iter().filter_map(|path| self.held.remove(path)).flatten().collect()
    }

    /// Whether a node refuses connections.
    pub fn is_refusing(&self, node: NodeIndex) -> bool {
        self.refusing.get(&node).is_some_and(|times| *times > 0)
    }

    /// Whether two nodes reach each other in both directions without delay, refusal or loss.
    pub fn is_clear(&self, a: NodeIndex, b: NodeIndex) -> bool {
        let is_clear = |path: PathState| path.cuts == 0 && path.clogs == 0 && path.slowness.is_zero();
        let accepts = !self.is_refusing(a) && !self.is_refusing(b);
        self.lossy == 0 && accepts && is_clear(self.path(a, b)) && is_clear(self.path(b, a))
    }

    /// Begins or ends a cut of one direction. Overlapping cuts are counted.
    pub fn cut(&mut self, from: NodeIndex, to: NodeIndex, begins: bool) {
        count(&mut self.paths.entry((from, to)).or_default().cuts, begins);
    }

    /// Begins or ends a clog of one direction. Overlapping clogs are counted.
    pub fn clog(&mut self, from: NodeIndex, to: NodeIndex, begins: bool) {
        count(&mut self.paths.entry((from, to)).or_default().clogs, begins);
    }

    /// Sets the additional delay of one direction; zero ends it.
    pub fn slow(&mut self, from: NodeIndex, to: NodeIndex, slowness: Duration) {
        self.paths.entry((from, to)).or_default().slowness = slowness;
    }

    /// Begins or ends the refusal of connections by a node. Overlapping refusals are counted.
    pub fn refuse(&mut self, node: NodeIndex, begins: bool) {
        count(self.refusing.entry(node).or_default(), begins);
    }

    /// Begins or ends the loss, duplication and delay of single messages.
    pub const fn set_lossy(&mut self, begins: bool) {
        count(&mut self.lossy, begins);
    }

    /// Ends all faults. Connections stay as they are.
    pub fn heal(&mut self) {
        self.paths.clear();
        self.refusing.clear();
        self.lossy = 0;
    }

    fn path(&self, from: NodeIndex, to: NodeIndex) -> PathState {
        self.paths.get(&(from, to)).copied().unwrap_or_default()
    }

    fn delay(&mut self) -> Duration {
        let max = self.delay_max.as_nanos() as u64;
        Duration::from_nanos(max / 8 + self.rng.below(max))
    }
}

const fn count(counter: &mut u8, up: bool) {
    *counter = if up { counter.saturating_add(1) } else { counter.saturating_sub(1) };
}
