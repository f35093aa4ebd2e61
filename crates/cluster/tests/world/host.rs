//! Hosts: a process, its disk, and its clocks.

use super::{Machines, Packet, Store, World};
use cluster::{
    ClusterView, Coordinator, Event, HintLedger, HybridClock, Incarnation, Layout, LinkId, Member, Node,
    NodeIndex, PeerState, PeerView, StoreRequest, SyncState,
};
use std::sync::Arc;
use stdx::{Hlc, Instant, NodeTag};

/// A host. Without a process it keeps its store.
pub(crate) struct Host {
    pub(crate) node: Option<Node>,
    pub(crate) coordinator: Option<Coordinator>,
    pub(crate) store: Store,
    pub(crate) member: Member,
    pub(crate) tag: NodeTag,
    /// Counts the starts of the process.
    pub(crate) generation: u64,
    pub(crate) stopped: bool,
    pub(crate) wall_offset_micros: i64,
    /// The view that the coordinator has, or will have when it is published.
    pub(crate) view: ClusterView,
    pub(crate) events: Vec<Event>,
    /// Requests of the node to the store, oldest first.
    pub(crate) store_requests: Vec<StoreRequest>,
    /// Packets that arrived while the host was stopped.
    pub(crate) held: Vec<Packet>,
    /// Number of absences of the process.
    pub(crate) absences: u64,
    /// Whether the node has published `view`.
    pub(crate) is_published: bool,
    /// Sync state and readiness as a script has shown them.
    pub(super) shown_state: Option<(SyncState, bool)>,
}

impl Host {
    pub(super) fn new(layout: &Arc<Layout>, host: usize) -> Self {
        let tag = NodeTag(host as u64 + 1);
        let member = Member {
            layout: Arc::clone(layout),
            me: NodeIndex(host as u8),
            tag,
            incarnation: Incarnation(0),
            clock: Arc::new(HybridClock::new(Hlc::ZERO)),
            hints: Arc::new(HintLedger::new(1 << 20)),
        };
        Self {
            node: None,
            coordinator: None,
            store: Store::default(),
            view: (*member.first_view()).clone(),
            member,
            tag,
            generation: 0,
            stopped: false,
            wall_offset_micros: 0,
            events: Vec::new(),
            store_requests: Vec::new(),
            held: Vec::new(),
            absences: 0,
            is_published: false,
            shown_state: None,
        }
    }

    /// Whether a peer is up or suspected in the view of the coordinator.
    pub(super) fn is_alive(&self, peer: NodeIndex) -> bool {
        matches!(self.view.peer(peer).state, PeerState::Up | PeerState::Suspected)
    }

    pub(crate) const fn is_running(&self) -> bool {
        self.node.is_some() || self.coordinator.is_some()
    }

    /// Time of the next timeout of a process that is not stopped.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        if self.stopped {
            return None;
        }
        let node = self.node.as_ref().and_then(Node::poll_timeout);
        let coordinator = self.coordinator.as_ref().and_then(Coordinator::poll_timeout);
        node.into_iter().chain(coordinator).min()
    }
}

impl World {
    fn member(&self, host: usize) -> Member {
        let Host { member, tag, generation, store, .. } = &self.hosts[host];
        Member {
            tag: *tag,
            incarnation: Incarnation(host as u64 * 1_000 + generation),
            clock: Arc::new(HybridClock::new(self.clock_start.max(store.bound))),
            hints: Arc::new(HintLedger::new(self.hint_bytes_max)),
            ..member.clone()
        }
    }

    /// Starts the process of a host.
    pub(crate) fn start(&mut self, host: usize) {
        self.hosts[host].generation += 1;
        let member = self.member(host);
        self.hosts[host].member = member.clone();
        self.hosts[host].absences = 0;
        self.hosts[host].is_published = false;
        self.hosts[host].shown_state = None;
        self.hosts[host].store.writes_under_way = 0;
        self.hosts[host].store.ingests.restart();
        let now = self.now_at(host);
        self.hosts[host].view = match self.machines {
            Machines::Coordinators => ClusterView {
                peers: vec![PeerView::UP; member.layout.slot_count()],
                ..ClusterView::default()
            },
            Machines::Nodes | Machines::Both => (*member.first_view()).clone(),
        };
        if self.machines != Machines::Coordinators {
            let record = self.hosts[host].store.record.clone();
            let rng = self.rng.fork();
            self.hosts[host].node = Some(Node::new(now, member.clone(), record, self.limits, rng));
        }
        if self.machines != Machines::Nodes {
            let view = Arc::new(self.hosts[host].view.clone());
            let (limits, rng) = (self.coordinator_limits, self.rng.fork());
            self.hosts[host].coordinator = Some(Coordinator::new(member, 0, limits, view, rng));
        }
        self.carry_out_effects(host);
    }

    /// Kills the process of a host. Its peers see their connections reset.
    pub(crate) fn crash(&mut self, host: usize) {
        self.hosts[host].node = None;
        self.hosts[host].coordinator = None;
        self.hosts[host].stopped = false;
        self.hosts[host].held.clear();
        let ended: Vec<LinkId> = self.links_of(host).collect();
        for link in ended {
            self.close(link, Some(host));
        }
        self.packets.retain(|_, packet| !matches!(packet, Packet::AtStore { node, .. } if *node == host));
    }

    /// Kills the process of a host and starts it again.
    pub(crate) fn restart(&mut self, host: usize) {
        self.crash(host);
        self.start(host);
        if self.machines == Machines::Coordinators {
            self.publish(host);
            self.handle_all_timeouts();
        }
    }
}
