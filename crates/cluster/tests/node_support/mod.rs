//! A simulated cluster of nodes: virtual time, links in memory, and stores that are maps.
//!
//! Each host runs one [`Node`] and no coordinators; a test writes to the stores as a coordinator
//! would. A write becomes durable when the store answers: a crash before that loses it. Messages
//! may be lost, duplicated and reordered. Hosts may be stopped, crash, lose their disks, or be cut
//! off.

#![allow(dead_code, reason = "each test file uses its part of the world")]

mod store;

pub(crate) use store::Store;

use bytes::Bytes;
use cluster::{
    ClusterView, Destination, DialFailure, Effect, Event, HintLedger, HybridClock, Incarnation, Key, Layout,
    LinkAction, LinkEvent, LinkId, Member, Message, Node, NodeIndex, NodeLimits, NodeResponse, NodeSet,
    Origin, PeerAnswer, PeerHello, PeerRequest, PeerState, PeerView, RangeAnswer, ReplicaRequest,
    ReplicaResponse, Requester, StoreId, StoreRequest, SyncState, hint_bytes,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use stdx::{Cell, Hlc, Instant, NodeTag, Now, Rng, Version, WallTime};

pub(crate) const MILLISECOND: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
const DIAL_TIMEOUT: Duration = Duration::from_millis(500);
const PARTITIONS: u32 = 64;

/// Properties of the network.
#[derive(Clone, Copy)]
pub(crate) struct Net {
    pub(crate) latency: Duration,
    /// Maximum additional latency of a message. Above 0, messages are reordered.
    pub(crate) jitter: Duration,
    pub(crate) loss: f64,
    pub(crate) doubled: f64,
}

pub(crate) struct Host {
    pub(crate) node: Option<Node>,
    pub(crate) store: Store,
    pub(crate) member: Member,
    pub(crate) tag: NodeTag,
    pub(crate) generation: u64,
    pub(crate) stopped: bool,
    pub(crate) wall_offset_micros: i64,
    pub(crate) view: Option<Arc<ClusterView>>,
    pub(crate) events: Vec<Event>,
    /// Requests to the store, oldest first.
    pub(crate) store_requests: Vec<StoreRequest>,
    /// Events that arrived while the host was stopped.
    held_events: Vec<NetworkEvent>,
}

pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) hosts: Vec<Host>,
    pub(crate) net: Net,
    pub(crate) limits: NodeLimits,
    pub(crate) layout: Arc<Layout>,
    /// Directed pairs of hosts between which messages and dials are lost.
    pub(crate) cut: BTreeSet<(usize, usize)>,
    /// Messages that each host has sent, heartbeats left out.
    pub(crate) sent: Vec<(usize, usize, Message)>,
    /// The end of the versions that the previous generation of a starting process had reserved.
    pub(crate) clock_start: Hlc,
    /// Host that refuses dials.
    pub(crate) refuses_dials: Option<usize>,
    pub(crate) hint_bytes_max: u64,
    /// Cells that reached a node that is not their replica and held no older cell of the key.
    pub(crate) stray_cells: Vec<(usize, Key)>,
    /// Bandwidth of each link in bytes of values for a second. `None`: unlimited. Heartbeats
    /// overtake other messages.
    pub(crate) bytes_per_second: Option<u64>,
    /// Time until which each link is busy.
    busy_until: BTreeMap<(usize, usize), Instant>,
    pending_events: BTreeMap<(Instant, u64), NetworkEvent>,
    event_count: u64,
    connections: BTreeMap<LinkId, Connection>,
    last_link: u64,
    pub(crate) rng: Rng,
}

#[derive(Clone)]
struct Connection {
    dialer: usize,
    dialer_generation: u64,
    acceptor: usize,
    acceptor_generation: u64,
    admitted: bool,
}

#[derive(Clone)]
enum NetworkEvent {
    DialArrives { link: LinkId, connection: Connection },
    Link { host: usize, generation: u64, event: LinkEvent },
    Message { host: usize, generation: u64, link: LinkId, origin: Origin, message: Message },
    Store { host: usize, generation: u64, id: StoreId, request: StoreRequest },
}

impl World {
    /// Creates hosts with empty stores that are not started.
    pub(crate) fn new(hosts: usize, seed: u64) -> Self {
        let names = (0..hosts).map(|i| format!("http://node{i:02}:8080")).collect();
        let layout = Arc::new(Layout::new(names, PARTITIONS).expect("a small cluster"));
        let mut world = Self {
            now: Instant::ZERO + SECOND,
            hosts: Vec::new(),
            net: Net { latency: MILLISECOND, jitter: Duration::ZERO, loss: 0.0, doubled: 0.0 },
            limits: NodeLimits { default_from: hosts.min(3) as u8, ..NodeLimits::default() },
            layout,
            cut: BTreeSet::new(),
            sent: Vec::new(),
            clock_start: Hlc::ZERO,
            refuses_dials: None,
            hint_bytes_max: 1 << 20,
            stray_cells: Vec::new(),
            bytes_per_second: None,
            busy_until: BTreeMap::new(),
            pending_events: BTreeMap::new(),
            event_count: 0,
            connections: BTreeMap::new(),
            last_link: 0,
            rng: Rng::new(seed),
        };
        world.hosts = (0..hosts)
            .map(|host| Host {
                node: None,
                store: Store::default(),
                member: world.member(host, NodeTag(host as u64 + 1), 0),
                tag: NodeTag(host as u64 + 1),
                generation: 0,
                stopped: false,
                wall_offset_micros: 0,
                view: None,
                events: Vec::new(),
                store_requests: Vec::new(),
                held_events: Vec::new(),
            })
            .collect();
        world
    }

    /// Creates hosts that were started together and are settled.
    pub(crate) fn started(hosts: usize, seed: u64) -> Self {
        let mut world = Self::new(hosts, seed);
        (0..hosts).for_each(|host| world.start(host));
        world.run(2 * SECOND);
        for host in 0..hosts {
            assert_eq!(world.sync_state(host), SyncState::Settled);
            assert!(world.node(host).is_ready());
        }
        world
    }

    fn member(&self, host: usize, tag: NodeTag, generation: u64) -> Member {
        let bound = self.hosts.get(host).map_or(Hlc::ZERO, |host| host.store.bound);
        Member {
            layout: Arc::clone(&self.layout),
            me: NodeIndex(host as u8),
            tag,
            incarnation: Incarnation(host as u64 * 1_000 + generation),
            clock: Arc::new(HybridClock::new(self.clock_start.max(bound))),
            hints: Arc::new(HintLedger::new(self.hint_bytes_max)),
        }
    }

    pub(crate) fn start(&mut self, host: usize) {
        let generation = self.hosts[host].generation + 1;
        self.hosts[host].generation = generation;
        self.hosts[host].member = self.member(host, self.hosts[host].tag, generation);
        let now = self.now_at(host);
        let member = self.hosts[host].member.clone();
        let record = self.hosts[host].store.record.clone();
        let rng = self.rng.fork();
        self.hosts[host].view = None;
        self.hosts[host].store.writes_under_way = 0;
        self.hosts[host].node = Some(Node::new(now, member, record, self.limits, rng));
        self.carry_out_effects(host);
    }

    pub(crate) fn crash(&mut self, host: usize) {
        self.hosts[host].node = None;
        self.hosts[host].stopped = false;
        self.hosts[host].held_events.clear();
        let ended: Vec<LinkId> = self.links_of(host).collect();
        for link in ended {
            self.close(link, Some(host));
        }
    }

    pub(crate) fn restart(&mut self, host: usize) {
        self.crash(host);
        self.start(host);
    }

    /// Deletes the directory. The next start has a new identity.
    pub(crate) fn lose_disk(&mut self, host: usize) {
        self.hosts[host].store = Store::default();
        self.hosts[host].tag = NodeTag(self.hosts[host].tag.0 + 100);
    }

    /// Replaces the directory by an older state, such as a snapshot of its volume.
    pub(crate) fn roll_back(&mut self, host: usize, older: &Store) {
        self.hosts[host].store = older.clone();
    }

    /// Stops a host like SIGSTOP: its connections stay open and it does nothing.
    pub(crate) fn stop(&mut self, host: usize) {
        self.hosts[host].stopped = true;
    }

    pub(crate) fn resume(&mut self, host: usize) {
        self.hosts[host].stopped = false;
        for event in std::mem::take(&mut self.hosts[host].held_events) {
            self.at(self.now, event);
        }
    }

    /// Breaks the link that `dialer` has dialed to `acceptor`.
    pub(crate) fn break_dialed(&mut self, dialer: usize, acceptor: usize) {
        let link = self.link_between(dialer, acceptor).expect("there is a link");
        self.close(link, None);
    }

    /// Loses every message between two hosts from now on.
    pub(crate) fn cut_off(&mut self, a: usize, b: usize) {
        self.cut.extend([(a, b), (b, a)]);
    }

    pub(crate) fn heal(&mut self) {
        self.cut.clear();
    }

    /// Advances the time.
    pub(crate) fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(next) = self.next_instant().filter(|&next| next <= end) {
            self.now = self.now.max(next);
            self.step();
        }
        self.now = end;
    }

    /// Advances the time until `is_so` holds. Panics if that takes longer than `at_most`.
    pub(crate) fn run_until(&mut self, at_most: Duration, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let end = self.now + at_most;
        while !is_so(self) {
            let next = self.next_instant().filter(|&next| next <= end);
            let next = next.unwrap_or_else(|| panic!("after {at_most:?} it is not so that {what}"));
            self.now = self.now.max(next);
            self.step();
        }
    }

    pub(crate) fn node(&self, host: usize) -> &Node {
        self.hosts[host].node.as_ref().expect("the host runs")
    }

    pub(crate) fn node_mut(&mut self, host: usize) -> (Now, &mut Node) {
        let now = self.now_at(host);
        (now, self.hosts[host].node.as_mut().expect("the host runs"))
    }

    pub(crate) fn sync_state(&self, host: usize) -> SyncState {
        self.node(host).status().sync_state
    }

    /// The latest view that `host` has of `peer`.
    pub(crate) fn view_of(&self, host: usize, peer: usize) -> PeerView {
        self.node(host).view().peer(NodeIndex(peer as u8))
    }

    pub(crate) fn state(&self, host: usize, peer: usize) -> PeerState {
        self.view_of(host, peer).state
    }

    pub(crate) fn now_at(&self, host: usize) -> Now {
        let offset = self.hosts.get(host).map_or(0, |host| host.wall_offset_micros);
        let micros =
            WallTime::EPOCH_2020.micros_since_unix_epoch() + 1_000_000_000_000 + self.now.as_nanos() / 1_000;
        Now {
            mono: self.now,
            wall: WallTime::from_micros_since_unix_epoch(micros.saturating_add_signed(offset)),
        }
    }

    /// A version issued now.
    pub(crate) fn version(&self, host: usize) -> Version {
        Version::new(Hlc::at(self.now_at(host).wall), self.hosts[host].tag)
    }

    /// Writes a new value with hints to a host's store, as a coordinator does. Returns its version,
    /// which is later than all earlier ones.
    pub(crate) fn write(&mut self, host: usize, name: &str, from: u8, hints: &[usize]) -> Version {
        self.now = self.now + Duration::from_micros(1);
        let version = self.version(host);
        let cell = Cell::value(version, from, Bytes::from(format!("{name} at {version}")));
        self.write_cell(host, &key(name), &cell, hints);
        version
    }

    pub(crate) fn write_cell(&mut self, host: usize, key: &Key, cell: &Cell, hints: &[usize]) {
        let version = cell.meta.version;
        let ledger = Arc::clone(&self.hosts[host].member.hints);
        let kept: NodeSet = (hints.iter().map(|&target| NodeIndex(target as u8)))
            .filter(|&target| ledger.try_keep(target, hint_bytes(key)))
            .collect();
        self.hosts[host].store.put(key, cell);
        self.hosts[host].store.keep_hints(key, version, kept);
    }

    pub(crate) fn version_at(&self, host: usize, name: &str) -> Option<Version> {
        self.hosts[host].store.cells.get(&key(name)).map(|cell| cell.meta.version)
    }

    /// The first of the names `prefix0`, `prefix1`, ... whose first `from` replicas satisfy
    /// `wanted`.
    pub(crate) fn name_where(&self, prefix: &str, from: u8, wanted: impl Fn(&[NodeIndex]) -> bool) -> String {
        (0..10_000)
            .map(|i| format!("{prefix}{i}"))
            .find(|name| wanted(self.layout.replicas(&key(name), from)))
            .expect("some key is placed like this")
    }

    /// Delivers a copy of a message as if it came over the link that `from` dialed to `to`.
    pub(crate) fn inject(&mut self, from: usize, to: usize, message: &Message) {
        let link = self.link_between(from, to).expect("there is a link");
        self.send(link, from, to, message);
    }

    fn next_instant(&self) -> Option<Instant> {
        let timers = self.hosts.iter().filter(|host| !host.stopped);
        let timers = timers.filter_map(|host| host.node.as_ref()?.poll_timeout());
        timers.chain(self.pending_events.keys().map(|key| key.0).take(1)).min()
    }

    fn step(&mut self) {
        while let Some((&key, _)) = self.pending_events.first_key_value().filter(|(key, _)| key.0 <= self.now)
        {
            let event = self.pending_events.remove(&key).expect("it was just seen");
            self.handle_event(event);
        }
        for host in 0..self.hosts.len() {
            let is_due =
                self.hosts[host].node.as_ref().and_then(Node::poll_timeout).is_some_and(|at| at <= self.now);
            if is_due && !self.hosts[host].stopped {
                let damage = self.hosts[host].store.damage.clone();
                let (now, node) = self.node_mut(host);
                node.handle_damage(now, damage);
                node.handle_timeout(now);
                self.carry_out_effects(host);
            }
        }
    }

    fn handle_event(&mut self, event: NetworkEvent) {
        let (host, generation) = match &event {
            NetworkEvent::DialArrives { connection, .. } => {
                (connection.acceptor, self.hosts[connection.acceptor].generation)
            }
            NetworkEvent::Link { host, generation, .. }
            | NetworkEvent::Message { host, generation, .. }
            | NetworkEvent::Store { host, generation, .. } => (*host, *generation),
        };
        if self.hosts[host].stopped {
            return self.hosts[host].held_events.push(event);
        }
        let is_gone = self.hosts[host].node.is_none() || self.hosts[host].generation != generation;
        let now = self.now_at(host);
        match event {
            NetworkEvent::DialArrives { link, connection } => {
                return self.dial_arrives(link, connection, is_gone);
            }
            _ if is_gone => return,
            NetworkEvent::Link { event, .. } => self.node_mut(host).1.handle_link(now, event),
            NetworkEvent::Message { link, origin, message, .. } => {
                if self.connections.contains_key(&link) {
                    self.node_mut(host).1.handle_message(now, origin, message);
                }
            }
            NetworkEvent::Store { id, request, .. } => {
                self.check_for_stray_cells(host, &request);
                let response = self.hosts[host].store.carry_out(request);
                self.node_mut(host).1.handle_stored(now, id, response);
            }
        }
        self.carry_out_effects(host);
    }

    fn check_for_stray_cells(&mut self, host: usize, request: &StoreRequest) {
        if let StoreRequest::Replica(ReplicaRequest::Write { key, cell, .. }) = request
            && !self.layout.is_replica(NodeIndex(host as u8), key, cell.meta.from)
            && !self.hosts[host].store.cells.contains_key(key)
        {
            self.stray_cells.push((host, key.clone()));
        }
    }

    /// Carries out the effects of a host's node.
    pub(crate) fn carry_out_effects(&mut self, host: usize) {
        while let Some(effect) = self.hosts[host].node.as_mut().and_then(Node::poll_effect) {
            match effect {
                Effect::Store { id, request, .. } => self.store(host, id, request),
                Effect::Send { to: Destination::Dialed(node), message } => {
                    let to = node.as_usize();
                    if let Some(link) = self.link_between(host, to) {
                        self.send(link, host, to, &message);
                    }
                }
                Effect::Send { to: Destination::Accepted(link), message } => {
                    if let Some(connection) = self.connections.get(&link) {
                        self.send(link, host, connection.dialer, &message);
                    }
                }
                Effect::Link(action) => self.link(host, action),
                Effect::Publish(view) => {
                    assert_ne!(self.hosts[host].view.as_ref(), Some(&view), "a view was published twice");
                    self.hosts[host].view = Some(view);
                }
                Effect::Event(event) => self.hosts[host].events.push(event),
                Effect::Reply { .. } => unreachable!("a node has no users"),
            }
        }
    }

    fn store(&mut self, host: usize, id: StoreId, request: StoreRequest) {
        self.hosts[host].store_requests.push(request.clone());
        self.hosts[host].store.writes_under_way +=
            usize::from(matches!(request, StoreRequest::Replica(ReplicaRequest::Write { .. })));
        let generation = self.hosts[host].generation;
        let at = self.now + self.hosts[host].store.latency;
        self.at(at, NetworkEvent::Store { host, generation, id, request });
    }

    fn link(&mut self, host: usize, action: LinkAction) {
        match action {
            LinkAction::Dial(node) => {
                assert!(self.link_between(host, node.as_usize()).is_none(), "there is a link already");
                self.last_link += 1;
                let connection = Connection {
                    dialer: host,
                    dialer_generation: self.hosts[host].generation,
                    acceptor: node.as_usize(),
                    acceptor_generation: 0,
                    admitted: false,
                };
                let link = LinkId(self.last_link);
                self.at(self.now + self.net.latency, NetworkEvent::DialArrives { link, connection });
            }
            LinkAction::HangUp(node) => {
                let link = self.link_between(host, node.as_usize()).expect("a closed link is open");
                self.close(link, Some(host));
            }
            LinkAction::Admit(link) => {
                let Some(connection) = self.connections.get_mut(&link) else { return };
                connection.admitted = true;
                let (dialer, generation) = (connection.dialer, connection.dialer_generation);
                let event = LinkEvent::Opened(self.hello(host));
                self.at(self.now + self.net.latency, NetworkEvent::Link { host: dialer, generation, event });
            }
            LinkAction::Refuse(link) | LinkAction::RefuseCopy(link) => self.close(link, Some(host)),
        }
    }

    fn dial_arrives(&mut self, link: LinkId, mut connection: Connection, is_gone: bool) {
        let (dialer, acceptor) = (connection.dialer, connection.acceptor);
        let dialer_generation = connection.dialer_generation;
        let fail = |reason| NetworkEvent::Link {
            host: dialer,
            generation: dialer_generation,
            event: LinkEvent::DialFailed { node: NodeIndex(acceptor as u8), reason },
        };
        if self.is_cut(dialer, acceptor) || self.hosts[acceptor].stopped {
            return self.at(self.now + DIAL_TIMEOUT, fail(DialFailure::TimedOut));
        }
        if is_gone || self.refuses_dials == Some(acceptor) {
            return self.at(self.now + self.net.latency, fail(DialFailure::Refused));
        }
        if self.hosts[dialer].generation != dialer_generation || self.hosts[dialer].node.is_none() {
            return;
        }
        connection.acceptor_generation = self.hosts[acceptor].generation;
        self.connections.insert(link, connection);
        let hello = self.hello(dialer);
        let now = self.now_at(acceptor);
        self.node_mut(acceptor).1.handle_link(now, LinkEvent::AdmissionRequested { link, hello });
        self.carry_out_effects(acceptor);
    }

    /// Closes a connection on behalf of `by`, and tells the other side.
    fn close(&mut self, link: LinkId, by: Option<usize>) {
        let Some(connection) = self.connections.remove(&link) else { return };
        let at = self.now + self.net.latency;
        let Connection { dialer, dialer_generation, acceptor, acceptor_generation, admitted } = connection;
        if by != Some(dialer) {
            let node = NodeIndex(acceptor as u8);
            let event = match admitted {
                true => LinkEvent::Closed { node },
                false => LinkEvent::DialFailed { node, reason: DialFailure::NotAdmitted },
            };
            self.at(at, NetworkEvent::Link { host: dialer, generation: dialer_generation, event });
        }
        if by != Some(acceptor) {
            let event = LinkEvent::AcceptedClosed { link };
            self.at(at, NetworkEvent::Link { host: acceptor, generation: acceptor_generation, event });
        }
    }

    fn send(&mut self, link: LinkId, from: usize, to: usize, message: &Message) {
        self.sent.push((from, to, message.clone()));
        if self.is_cut(from, to) || self.rng.chance(self.net.loss) {
            return;
        }
        let copies = 1 + usize::from(self.rng.chance(self.net.doubled));
        let connection = &self.connections[&link];
        let is_dialer = connection.dialer == from;
        let generation =
            if is_dialer { connection.acceptor_generation } else { connection.dialer_generation };
        let node = NodeIndex(from as u8);
        let destination = if is_dialer { Destination::Accepted(link) } else { Destination::Dialed(node) };
        let origin = Origin { node, link: destination };
        let arrives = self.now.max(self.carry(from, to, message));
        for _ in 0..copies {
            let late = self.net.jitter.mul_f64(self.rng.unit());
            let message = message.clone();
            self.at(
                arrives + self.net.latency + late,
                NetworkEvent::Message { host: to, generation, link, origin, message },
            );
        }
    }

    /// Time at which a link has carried a message, after those before it.
    fn carry(&mut self, from: usize, to: usize, message: &Message) -> Instant {
        let Some(rate) = self.bytes_per_second else { return self.now };
        let bytes = value_bytes(message);
        if bytes == 0 {
            return self.now;
        }
        let begins = self.busy_until.get(&(from, to)).copied().unwrap_or(self.now).max(self.now);
        let ends = begins + Duration::from_millis(bytes * 1_000 / rate);
        self.busy_until.insert((from, to), ends);
        ends
    }

    fn at(&mut self, at: Instant, event: NetworkEvent) {
        self.event_count += 1;
        self.pending_events.insert((at, self.event_count), event);
    }

    fn hello(&self, host: usize) -> PeerHello {
        PeerHello {
            node: NodeIndex(host as u8),
            tag: self.hosts[host].tag,
            requester: Requester::Node,
            incarnation: self.hosts[host].member.incarnation,
            clock: self.hosts[host].member.clock.shown(),
            sync_state: self.sync_state(host).in_hello(),
        }
    }

    fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cut.contains(&(from, to))
    }

    fn link_between(&self, dialer: usize, acceptor: usize) -> Option<LinkId> {
        let mut links = self.connections.iter();
        links
            .find(|(_, connection)| {
                connection.admitted && (connection.dialer, connection.acceptor) == (dialer, acceptor)
            })
            .map(|(&link, _)| link)
    }

    fn links_of(&self, host: usize) -> impl Iterator<Item = LinkId> {
        let links = self.connections.iter();
        links.filter(move |(_, link)| link.dialer == host || link.acceptor == host).map(|(&link, _)| link)
    }
}

fn value_bytes(message: &Message) -> u64 {
    let bytes = match message {
        Message::Request { request: PeerRequest::Replica(ReplicaRequest::Write { cell, .. }), .. } => {
            cell.value.len()
        }
        Message::Answer { answer: PeerAnswer::Replica(ReplicaResponse::Cell(Some(cell))), .. } => {
            cell.value.len()
        }
        Message::Answer {
            answer: PeerAnswer::Node(NodeResponse::Range(RangeAnswer::Cells { entries, .. })),
            ..
        } => entries.iter().map(|(_, cell)| cell.value.len()).sum(),
        _ => 0,
    };
    bytes as u64
}

pub(crate) fn key(name: &str) -> Key {
    Key::new(Bytes::copy_from_slice(name.as_bytes())).expect("a short name")
}
