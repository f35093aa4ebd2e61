//! The network between hosts: connections, and what becomes of what is sent on them.
//!
//! **Mechanism.** A connection has two ends; each may be gone without the other's knowing. Each direction keeps
//! its order, as TCP does, unless the network is *lossy*: then messages are lost, doubled and late one by one,
//! which is worse than TCP is, and no worse than machines must stand. Between each ordered pair of nodes the
//! network may be *cut* (what is sent is lost), *clogged* (held until the end of the clog) or *slow*.

use crate::Nanos;
use crate::packet::Packet;
use cluster::{NodeIndex, Requester};
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::Rng;

/// A connection, by a number that is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// One of the two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// Who dialed: asks.
    Dialer,
    /// Who was dialed: answers.
    Acceptor,
}

impl Side {
    /// The one across.
    pub const fn other(self) -> Self {
        match self {
            Self::Dialer => Self::Acceptor,
            Self::Acceptor => Self::Dialer,
        }
    }
}

/// A machine in one generation of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// Which host.
    pub node: NodeIndex,
    /// Which generation of it.
    pub generation: u64,
    /// Which of its machines.
    pub requester: Requester,
}

/// How far an end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndState {
    /// The dialer waits for an answer, the acceptor's node has not let it in yet.
    Pending,
    /// Messages pass.
    Open,
    /// Gone: what comes here is dropped.
    Gone,
}

/// A connection between two nodes.
#[derive(Clone, Debug)]
pub struct ConnectionState {
    /// Who dialed.
    pub dialer: Endpoint,
    /// Who was dialed; the machine is known once it was let in.
    pub acceptor: Endpoint,
    /// How far the dialer's end has come.
    pub dialer_end: EndState,
    /// How far the acceptor's end has come.
    pub acceptor_end: EndState,
    /// When the last message arrives, towards the dialer and towards the acceptor.
    last_arrival: [Nanos; 2],
}

impl ConnectionState {
    /// Who is at this end.
    pub const fn endpoint(&self, side: Side) -> Endpoint {
        match side {
            Side::Dialer => self.dialer,
            Side::Acceptor => self.acceptor,
        }
    }

    /// How far this end has come.
    pub const fn end(&self, side: Side) -> EndState {
        match side {
            Side::Dialer => self.dialer_end,
            Side::Acceptor => self.acceptor_end,
        }
    }

    /// Sets how far this end has come.
    pub const fn set_end(&mut self, side: Side, state: EndState) {
        match side {
            Side::Dialer => self.dialer_end = state,
            Side::Acceptor => self.acceptor_end = state,
        }
    }
}

/// How it is from one node to another.
#[derive(Clone, Copy, Debug, Default)]
struct PathState {
    cuts: u8,
    clogs: u8,
    slowness: Duration,
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Nowhere.
    Lost,
    /// It is held until the path is clear.
    Held,
    /// It arrives then, and perhaps once more.
    Arrives(Nanos, Option<Nanos>),
}

/// A packet that is held, where it goes, and on what.
pub type HeldPacket = (ConnectionId, Side, Packet);

/// All connections, and how the paths between nodes are.
#[derive(Debug)]
pub struct Network {
    links: BTreeMap<ConnectionId, ConnectionState>,
    next: u64,
    paths: BTreeMap<(NodeIndex, NodeIndex), PathState>,
    held: BTreeMap<(NodeIndex, NodeIndex), Vec<HeldPacket>>,
    /// Nodes that refuse connections, and how often they were outcome to.
    refusing: BTreeMap<NodeIndex, u8>,
    delay_max: Duration,
    lossy_share: f64,
    lossy: u8,
    rng: Rng,
}

impl Network {
    /// A network in which all is well.
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

    /// A new connection that nobody has accepted yet.
    pub fn dial(&mut self, dialer: Endpoint, to: NodeIndex) -> ConnectionId {
        let connection = ConnectionId(self.next);
        self.next += 1;
        let acceptor = Endpoint { node: to, generation: 0, requester: Requester::Node };
        let link = ConnectionState {
            dialer,
            acceptor,
            dialer_end: EndState::Pending,
            acceptor_end: EndState::Gone,
            last_arrival: [Nanos::ZERO; 2],
        };
        self.links.insert(connection, link);
        connection
    }

    /// A connection, unless both of its ends are gone and it was swept.
    pub fn link(&self, connection: ConnectionId) -> Option<&ConnectionState> {
        self.links.get(&connection)
    }

    /// As [`Network::link`].
    pub fn link_mut(&mut self, connection: ConnectionId) -> Option<&mut ConnectionState> {
        self.links.get_mut(&connection)
    }

    /// Forgets a connection if both of its ends are gone.
    pub fn forget_closed(&mut self, connection: ConnectionId) {
        let is_gone = |link: &ConnectionState| [link.dialer_end, link.acceptor_end] == [EndState::Gone; 2];
        if self.links.get(&connection).is_some_and(is_gone) {
            self.links.remove(&connection);
        }
    }

    /// The connections that have an end at `node` which is not gone, with that end.
    pub fn ends_at(&self, node: NodeIndex) -> Vec<(ConnectionId, Side)> {
        let ends = self.links.iter().flat_map(|(connection, link)| {
            [Side::Dialer, Side::Acceptor]
                .map(|side| (*connection, side, link.endpoint(side), link.end(side)))
        });
        ends.filter(|(_, _, endpoint, end)| endpoint.node == node && *end != EndState::Gone)
            .map(|(connection, side, _, _)| (connection, side))
            .collect()
    }

    /// The connections between two nodes.
    pub fn between(&self, a: NodeIndex, b: NodeIndex) -> Vec<ConnectionId> {
        let is_between = |link: &ConnectionState| {
            let ends = (link.dialer.node, link.acceptor.node);
            ends == (a, b) || ends == (b, a)
        };
        self.links.iter().filter(|(_, link)| is_between(link)).map(|(connection, _)| *connection).collect()
    }

    /// What becomes of a packet sent now towards this end.
    pub fn schedule(&mut self, connection: ConnectionId, toward: Side, now: Nanos) -> Delivery {
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
        let link = self.links.get_mut(&connection).expect("it was there");
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

    /// When something that is no message (a connection, its end) arrives that leaves now; `None`: never.
    pub fn signal(&mut self, from: NodeIndex, to: NodeIndex, now: Nanos) -> Option<Nanos> {
        let path = self.path(from, to);
        let passes = path.cuts == 0 && path.clogs == 0;
        passes.then(|| now + self.delay() + path.slowness)
    }

    /// How long the next byte of a stream takes from one node to another; `None`: nothing gets there for now, and
    /// the stream waits.
    pub fn stream_delay(&mut self, from: NodeIndex, to: NodeIndex) -> Option<Duration> {
        let path = self.path(from, to);
        let passes = path.cuts == 0 && path.clogs == 0;
        passes.then(|| self.delay() + path.slowness)
    }

    /// A random number less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    /// Keeps a packet until the path is clear.
    pub fn hold(&mut self, connection: ConnectionId, toward: Side, packet: Packet) {
        let Some(link) = self.links.get(&connection) else { return };
        let path = (link.endpoint(toward.other()).node, link.endpoint(toward).node);
        self.held.entry(path).or_default().push((connection, toward, packet));
    }

    /// What was held on a path that is clear now.
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

    /// Whether two nodes reach each other in time, each dialed by the other, and no message is lost.
    pub fn is_clear(&self, a: NodeIndex, b: NodeIndex) -> bool {
        let is_clear = |path: PathState| path.cuts == 0 && path.clogs == 0 && path.slowness.is_zero();
        let accepts = !self.is_refusing(a) && !self.is_refusing(b);
        self.lossy == 0 && accepts && is_clear(self.path(a, b)) && is_clear(self.path(b, a))
    }

    /// Cuts or mends one direction; cuts are counted.
    pub fn cut(&mut self, from: NodeIndex, to: NodeIndex, begins: bool) {
        count(&mut self.paths.entry((from, to)).or_default().cuts, begins);
    }

    /// Clogs or clears one direction; clogs are counted.
    pub fn clog(&mut self, from: NodeIndex, to: NodeIndex, begins: bool) {
        count(&mut self.paths.entry((from, to)).or_default().clogs, begins);
    }

    /// Makes one direction slow by so much; zero: as it should be.
    pub fn slow(&mut self, from: NodeIndex, to: NodeIndex, slowness: Duration) {
        self.paths.entry((from, to)).or_default().slowness = slowness;
    }

    /// Has a node refuse connections, or not any more.
    pub fn refuse(&mut self, node: NodeIndex, begins: bool) {
        count(self.refusing.entry(node).or_default(), begins);
    }

    /// Begins or ends the loss, doubling and disorder of single messages.
    pub const fn set_lossy(&mut self, begins: bool) {
        count(&mut self.lossy, begins);
    }

    /// Mends everything; connections stay as they are.
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
