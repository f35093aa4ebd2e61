//! A small simulator: coordinators on several nodes over model stores. Messages, answers of stores
//! and the passing of time occur in any order; messages are lost with their link, or duplicated.

#![allow(dead_code, reason = "each test uses a part of it")]

mod snapshots;

pub(crate) use snapshots::Snapshots;

use bytes::Bytes;
use cluster::{
    ClusterView, Command, Coordinator, CoordinatorLimits, Destination, Effect, HintLedger, HybridClock,
    Incarnation, Key, Layout, LinkAction, LinkEvent, LinkId, Member, Message, NodeIndex, Origin, PeerHello,
    PeerRequest, PeerView, Quorum, QuorumChoice, ReplicaRequest, ReplicaResponse, Reply, RequestId,
    Requester, ScanId, StoreFault, StoreId, StoreRequest, StoreResponse, SyncState, WaitTrace,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU8;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Cell, CellKind, Hlc, Instant, NodeTag, Now, Rng, Version, WallTime};

/// Time from `submit` to the reply.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(1);
/// Number of partitions of the layout.
pub(crate) const PARTITIONS: u32 = 64;

/// Nodes, packets in flight between them, and their replies.
pub(crate) struct Cluster {
    pub(crate) now: Now,
    pub(crate) layout: Arc<Layout>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) on_the_way: Vec<Packet>,
    /// Replies, by request.
    pub(crate) replies: BTreeMap<RequestId, Reply>,
    /// Wait trace and time of each reply.
    pub(crate) waits: BTreeMap<RequestId, (WaitTrace, Instant)>,
    /// Values and versions that were sent to any store or link.
    pub(crate) issued: Vec<Cell>,
    /// The tombstones among them, by key.
    pub(crate) deleted: BTreeSet<(Key, Version)>,
    pub(crate) limits: CoordinatorLimits,
    /// The node at which each command was submitted.
    submitted: Vec<usize>,
    generations: u64,
    seed: u64,
}

/// A node.
pub(crate) struct Host {
    pub(crate) coordinator: Coordinator,
    pub(crate) view: ClusterView,
    /// The cells of its store, all durable.
    pub(crate) cells: BTreeMap<Key, Cell>,
    /// Keys and nodes that it keeps hints for.
    pub(crate) hints: BTreeSet<(Key, NodeIndex)>,
    /// The snapshots that its store keeps for scans.
    pub(crate) snapshots: Snapshots,
    /// Whether only a read tells if a write was superseded, as in a store whose tables hold greater
    /// versions.
    pub(crate) is_unsure: bool,
    bound: Hlc,
    /// The link that it has dialed to each node.
    links: Vec<Option<LinkId>>,
}

/// A packet in flight.
#[derive(Clone, Debug)]
pub(crate) enum Packet {
    /// A request that a store will carry out.
    AtStore { node: usize, id: StoreId, request: StoreRequest },
    /// A message over the link that `dialer` dialed.
    Message { dialer: usize, acceptor: usize, link: LinkId, message: Message },
}

impl Packet {
    /// Whether the packet is at a host's store, or on a link that the host accepted.
    pub(crate) fn concerns(&self, host: usize) -> bool {
        match self {
            Self::AtStore { node, .. } => *node == host,
            Self::Message { acceptor, .. } => *acceptor == host,
        }
    }
}

impl Cluster {
    /// A cluster of `nodes` nodes whose views show all nodes as up and read-eligible, and which are
    /// linked.
    pub(crate) fn new(nodes: u8, limits: CoordinatorLimits, seed: u64) -> Self {
        let names = (0..nodes).map(|node| format!("http://node-{node:02}:1")).collect();
        let layout = Arc::new(Layout::new(names, PARTITIONS).expect("a layout"));
        let now =
            Now { mono: Instant::ZERO + TIMEOUT, wall: WallTime::EPOCH_2020.saturating_add(TIMEOUT * 60) };
        let mut cluster = Self {
            now,
            layout,
            hosts: Vec::new(),
            on_the_way: Vec::new(),
            replies: BTreeMap::new(),
            waits: BTreeMap::new(),
            issued: Vec::new(),
            deleted: BTreeSet::new(),
            limits,
            submitted: Vec::new(),
            generations: 0,
            seed,
        };
        for node in 0..usize::from(nodes) {
            let host = cluster.host(node, BTreeMap::new(), BTreeSet::new(), Hlc::ZERO);
            cluster.hosts.push(host);
        }
        (0..usize::from(nodes)).for_each(|node| cluster.publish(node));
        cluster
    }

    fn host(
        &mut self,
        node: usize,
        cells: BTreeMap<Key, Cell>,
        hints: BTreeSet<(Key, NodeIndex)>,
        bound: Hlc,
    ) -> Host {
        self.generations += 1;
        let member = Member {
            layout: Arc::clone(&self.layout),
            me: NodeIndex(node as u8),
            tag: NodeTag(100 + node as u64),
            incarnation: Incarnation(self.generations),
            clock: Arc::new(HybridClock::new(bound)),
            hints: Arc::new(HintLedger::new(1 << 40)),
        };
        let up = PeerView::UP;
        let view = ClusterView { peers: vec![up; usize::from(self.layout.len())], ..ClusterView::default() };
        let rng = Rng::new(self.seed ^ self.generations);
        let coordinator = Coordinator::new(member, 0, self.limits, Arc::new(view.clone()), rng);
        let links = vec![None; usize::from(self.layout.len())];
        Host {
            coordinator,
            view,
            cells,
            hints,
            snapshots: Snapshots::default(),
            is_unsure: false,
            bound,
            links,
        }
    }

    /// Passes a node's view to its coordinator.
    pub(crate) fn publish(&mut self, node: usize) {
        let view = Arc::new(self.hosts[node].view.clone());
        self.hosts[node].coordinator.handle_view(self.now, view);
        self.carry_out(node);
    }

    /// Submits a command at a node.
    pub(crate) fn submit(&mut self, node: usize, command: Command) -> RequestId {
        let id = RequestId(self.submitted.len() as u64);
        self.submitted.push(node);
        self.hosts[node].coordinator.submit(self.now, id, command);
        self.carry_out(node);
        id
    }

    /// Closes a scan at a node.
    pub(crate) fn close_scan(&mut self, node: usize, id: ScanId) {
        self.hosts[node].coordinator.close_scan(self.now, id);
        self.carry_out(node);
    }

    /// Advances both clocks by `duration`, and handles the timeouts that are due.
    pub(crate) fn pass(&mut self, duration: Duration) {
        self.now = Now { mono: self.now.mono + duration, wall: self.now.wall.saturating_add(duration) };
        for node in 0..self.hosts.len() {
            while self.hosts[node].coordinator.poll_timeout().is_some_and(|at| at <= self.now.mono) {
                self.hosts[node].coordinator.handle_timeout(self.now);
                self.carry_out(node);
            }
        }
    }

    /// Handles the packet at `index`; if it is at a store, the store fails with `fault`.
    pub(crate) fn deliver(&mut self, index: usize, fault: Option<StoreFault>) {
        let packet = self.on_the_way.swap_remove(index);
        self.handle(packet, fault);
    }

    /// Handles the first packet that satisfies `is_meant`, and returns whether there was one.
    pub(crate) fn deliver_first(&mut self, is_meant: impl Fn(&Packet) -> bool) -> bool {
        let Some(at) = self.on_the_way.iter().position(is_meant) else { return false };
        let packet = self.on_the_way.remove(at);
        self.handle(packet, None);
        true
    }

    /// Handles a copy of the message at `index`, which stays in flight.
    pub(crate) fn deliver_copy(&mut self, index: usize) {
        let packet = self.on_the_way[index].clone();
        if let Packet::Message { .. } = packet {
            self.handle(packet, None);
        }
    }

    /// Loses a message.
    pub(crate) fn lose(&mut self, index: usize) {
        if let Packet::Message { .. } = self.on_the_way[index] {
            self.on_the_way.swap_remove(index);
        }
    }

    /// Whether the packet at `index` is a write at a store.
    pub(crate) fn is_write_at_store(&self, index: usize) -> bool {
        matches!(
            &self.on_the_way[index],
            Packet::AtStore { request: StoreRequest::Replica(ReplicaRequest::Write { .. }), .. }
        )
    }

    /// The commands that were submitted at a node, with or without a reply.
    pub(crate) fn submitted_at(&self, node: usize) -> impl Iterator<Item = RequestId> {
        let all = self.submitted.iter().enumerate();
        all.filter(move |&(_, at)| *at == node).map(|(id, _)| RequestId(id as u64))
    }

    /// Handles all packets in order, until none is in flight.
    pub(crate) fn settle(&mut self) {
        while !self.on_the_way.is_empty() {
            let packet = self.on_the_way.remove(0);
            self.handle(packet, None);
        }
    }

    /// Cuts the link that `dialer` has dialed to `acceptor`. It is dialed again at once if the view
    /// wants it.
    pub(crate) fn cut(&mut self, dialer: usize, acceptor: usize) {
        let Some(link) = self.drop_link(dialer, acceptor) else {
            return;
        };
        let node = NodeIndex(acceptor as u8);
        self.hosts[dialer].coordinator.handle_link(self.now, LinkEvent::Closed { node });
        self.hosts[acceptor].coordinator.handle_link(self.now, LinkEvent::AcceptedClosed { link });
        self.carry_out(dialer);
        self.carry_out(acceptor);
    }

    /// Ends a node's process and starts it again; its store keeps its cells.
    pub(crate) fn restart(&mut self, node: usize) {
        for other in (0..self.hosts.len()).filter(|other| *other != node) {
            self.cut(other, node);
            if let Some(link) = self.drop_link(node, other) {
                self.hosts[other].coordinator.handle_link(self.now, LinkEvent::AcceptedClosed { link });
            }
        }
        self.on_the_way.retain(|packet| !matches!(packet, Packet::AtStore { node: at, .. } if *at == node));
        let host = &mut self.hosts[node];
        let (cells, hints) = (std::mem::take(&mut host.cells), std::mem::take(&mut host.hints));
        let bound = host.bound;
        self.hosts[node] = self.host(node, cells, hints, bound);
        self.publish(node);
        self.pass(Duration::ZERO);
    }

    /// The quorum of `ack` out of `from`.
    pub(crate) fn quorum(&self, ack: u8, from: u8) -> Quorum {
        let nodes = NonZeroU8::new(self.layout.len()).expect("there are nodes");
        QuorumChoice { ack: Some(u32::from(ack)), from: Some(u32::from(from)) }
            .resolve(nodes, from)
            .expect("a quorum")
    }

    fn drop_link(&mut self, dialer: usize, acceptor: usize) -> Option<LinkId> {
        let link = self.hosts[dialer].links[acceptor].take()?;
        self.on_the_way.retain(|packet| !matches!(packet, Packet::Message { link: on, .. } if *on == link));
        Some(link)
    }

    fn handle(&mut self, packet: Packet, fault: Option<StoreFault>) {
        match packet {
            Packet::AtStore { node, id, request } => {
                let response = match fault {
                    Some(fault) => StoreResponse::Failed(fault),
                    None => self.hosts[node].store(request),
                };
                self.hosts[node].coordinator.handle_stored(self.now, id, response);
                self.carry_out(node);
            }
            Packet::Message { dialer, acceptor, link, message } => {
                let is_request = matches!(message, Message::Request { .. });
                let (to, from) = if is_request { (acceptor, dialer) } else { (dialer, acceptor) };
                let over = if is_request {
                    Destination::Accepted(link)
                } else {
                    Destination::Dialed(NodeIndex(acceptor as u8))
                };
                let origin = Origin { node: NodeIndex(from as u8), link: over };
                self.hosts[to].coordinator.handle_message(self.now, origin, message);
                self.carry_out(to);
            }
        }
    }

    fn carry_out(&mut self, node: usize) {
        let mut opened = VecDeque::new();
        loop {
            while let Some(effect) = self.hosts[node].coordinator.poll_effect() {
                self.carry_out_one(node, effect, &mut opened);
            }
            let Some(hello) = opened.pop_front() else {
                return;
            };
            self.hosts[node].coordinator.handle_link(self.now, LinkEvent::Opened(hello));
        }
    }

    fn carry_out_one(&mut self, node: usize, effect: Effect, opened: &mut VecDeque<PeerHello>) {
        match effect {
            Effect::Store { id, request, .. } => {
                if let StoreRequest::Replica(ReplicaRequest::Write { key, cell, .. }) = &request {
                    self.note_issued(key, cell);
                }
                self.on_the_way.push(Packet::AtStore { node, id, request });
            }
            Effect::Send { to: Destination::Dialed(peer), message } => {
                let acceptor = peer.as_usize();
                let link = self.hosts[node].links[acceptor].expect("only open links are sent over");
                if let Message::Request {
                    request: PeerRequest::Replica(ReplicaRequest::Write { key, cell, .. }),
                    ..
                } = &message
                {
                    self.note_issued(key, cell);
                }
                self.on_the_way.push(Packet::Message { dialer: node, acceptor, link, message });
            }
            Effect::Send { to: Destination::Accepted(link), message } => {
                let dialer = self.hosts.iter().position(|host| host.links[node] == Some(link));
                if let Some(dialer) = dialer {
                    self.on_the_way.push(Packet::Message { dialer, acceptor: node, link, message });
                }
            }
            Effect::Reply { to, reply, wait } => {
                self.waits.insert(to, (wait, self.now.mono));
                let before = self.replies.insert(to, reply);
                assert_eq!(before, None, "a second reply to {to:?}, seed {}", self.seed);
            }
            Effect::Link(LinkAction::Dial(peer)) => {
                self.generations += 1;
                assert_eq!(self.hosts[node].links[peer.as_usize()], None, "dialed twice");
                self.hosts[node].links[peer.as_usize()] = Some(LinkId(self.generations));
                opened.push_back(hello(peer));
            }
            Effect::Link(LinkAction::HangUp(peer)) => {
                let link = self.drop_link(node, peer.as_usize()).expect("only open links are hung up");
                self.hosts[peer.as_usize()]
                    .coordinator
                    .handle_link(self.now, LinkEvent::AcceptedClosed { link });
            }
            Effect::Event(_) => {}
            effect => panic!("a coordinator does not request {effect:?}"),
        }
    }

    fn note_issued(&mut self, key: &Key, cell: &Cell) {
        self.issued.push(cell.clone());
        if cell.meta.kind == CellKind::Tombstone {
            self.deleted.insert((key.clone(), cell.meta.version));
        }
    }
}

impl Host {
    /// Carries out a request as a store does.
    fn store(&mut self, request: StoreRequest) -> StoreResponse {
        match request {
            StoreRequest::Replica(ReplicaRequest::Read { key }) => {
                StoreResponse::Replica(ReplicaResponse::Cell(self.cells.get(&key).cloned()))
            }
            StoreRequest::Replica(ReplicaRequest::ReadMeta { key }) => {
                StoreResponse::Replica(ReplicaResponse::Meta(self.cells.get(&key).map(|cell| cell.meta)))
            }
            StoreRequest::Replica(ReplicaRequest::Write { key, cell, hints }) => {
                self.hints.extend(hints.iter().map(|target| (key.clone(), target)));
                let wins = self.cells.get(&key).is_none_or(|held| cell.as_ref().supersedes(&held.as_ref()));
                let superseded =
                    self.cells.get(&key).is_some_and(|held| held.meta.version > cell.meta.version);
                let version = cell.meta.version;
                if wins {
                    self.cells.insert(key.clone(), cell);
                }
                match self.is_unsure {
                    true => StoreResponse::WrittenUnchecked { key, version },
                    false => StoreResponse::Replica(ReplicaResponse::Written { superseded }),
                }
            }
            StoreRequest::Replica(ReplicaRequest::KeepHints { key, targets, version }) => {
                assert!(
                    self.cells.get(&key).is_some_and(|cell| cell.meta.version >= version),
                    "the keeper of a hint holds the cell"
                );
                self.hints.extend(targets.iter().map(|target| (key.clone(), target)));
                StoreResponse::Replica(ReplicaResponse::HintsKept)
            }
            StoreRequest::ReadPage(request) => self.snapshots.read(&self.cells, &request),
            StoreRequest::Replica(ReplicaRequest::EndSnapshot { id }) => {
                self.snapshots.end(id);
                StoreResponse::Replica(ReplicaResponse::SnapshotEnded)
            }
            StoreRequest::RaiseClockBound { bound } => {
                self.bound = self.bound.max(bound);
                StoreResponse::ClockBoundRaised { bound }
            }
            request => panic!("a coordinator does not ask for {request:?}"),
        }
    }
}

/// The hello message of a peer whose link opens.
pub(crate) fn hello(node: NodeIndex) -> PeerHello {
    PeerHello {
        node,
        tag: NodeTag(100 + u64::from(node.0)),
        requester: Requester::Node,
        incarnation: Incarnation(1),
        clock: Hlc::ZERO,
        sync_state: SyncState::Settled,
    }
}

/// The key with this name.
pub(crate) fn key(name: &str) -> Key {
    Key::new(Bytes::copy_from_slice(name.as_bytes())).expect("a key")
}
