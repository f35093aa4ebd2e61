//! Inputs of the state machines, and their effects.

use super::packet::{self, Machine};
use super::{Host, Machines, Occurrence, Packet, World};
use cluster::{
    Destination, Effect, Event, LinkAction, LinkEvent, Message, NodeIndex, PeerHello, PeerRequest, PeerState,
    ReplicaRequest, StoreFault, StoreId, StoreRequest, StoreResponse,
};
use std::collections::VecDeque;
use std::sync::Arc;
use stdx::{Cell, CellKind};

use cluster::{Coordinator, Key, Node};

impl World {
    /// Lets a packet take effect. A request at a store fails with `fault`, if there is one.
    pub(super) fn handle(&mut self, packet: Packet, fault: Option<StoreFault>) {
        let host = packet.receiver();
        if self.hosts[host].stopped {
            return match packet {
                Packet::Dial { connection, .. } => self.dial_times_out(&connection),
                packet => self.hosts[host].held.push(packet),
            };
        }
        match packet {
            Packet::Dial { link, connection } => self.dial_arrives(link, connection),
            Packet::Link { generation, machine, event, .. } if self.is_current(host, generation) => {
                self.handle_link(host, machine, event);
            }
            Packet::Message { dialer, acceptor, link, machine, message, clock }
                if self.connections.contains_key(&link) && self.hosts[host].is_running() =>
            {
                if self.refuses_as_busy(dialer, acceptor, link, &message) {
                    return;
                }
                let now = self.now_at(host);
                self.hosts[host].member.clock.observe(clock, now);
                let origin = packet::origin(dialer, acceptor, link, &message);
                let is_request = matches!(message, Message::Request { .. });
                match self.machine(host, machine) {
                    MachineMut::Node(node) => node.handle_message(now, origin, message),
                    MachineMut::Coordinator(coordinator) => coordinator.handle_message(now, origin, message),
                }
                self.carry_out(host, machine, is_request);
            }
            Packet::AtStore { generation, machine, id, request, .. } if self.is_current(host, generation) => {
                if self.hosts[host].store.is_hung {
                    let packet = Packet::AtStore { node: host, generation, machine, id, request };
                    return self.hosts[host].store.held.push((id, packet));
                }
                self.check_for_stray_cells(host, &request);
                let is_upkeep = machine == Machine::Node && is_raise_of_bound(&request);
                let response = match fault {
                    Some(fault) => StoreResponse::Failed(fault),
                    None => self.hosts[host].store.carry_out(request),
                };
                if let StoreResponse::Failed(fault) = &response
                    && !is_upkeep
                {
                    self.record(|| Occurrence::DiskFailed { host, fault: fault.clone() });
                }
                self.handle_stored(host, machine, id, response);
            }
            // The process or the link has ended.
            Packet::Link { .. } | Packet::Message { .. } | Packet::AtStore { .. } => {}
        }
    }

    fn is_current(&self, host: usize, generation: u64) -> bool {
        self.hosts[host].is_running() && self.hosts[host].generation == generation
    }

    fn machine(&mut self, host: usize, machine: Machine) -> MachineMut<'_> {
        let Host { node, coordinator, .. } = &mut self.hosts[host];
        match machine {
            Machine::Node => MachineMut::Node(node.as_mut().expect("the host runs")),
            Machine::Coordinator => MachineMut::Coordinator(coordinator.as_mut().expect("the host runs")),
        }
    }

    pub(super) fn handle_link(&mut self, host: usize, machine: Machine, event: LinkEvent) {
        let now = self.now_at(host);
        let opened = if let LinkEvent::Opened(hello) = &event { Some(hello.node) } else { None };
        match self.machine(host, machine) {
            MachineMut::Node(node) => node.handle_link(now, event),
            MachineMut::Coordinator(coordinator) => coordinator.handle_link(now, event),
        }
        self.carry_out(host, machine, false);
        if let (Machine::Coordinator, Some(peer)) = (machine, opened) {
            assert!(
                self.hosts[host].view.peer(peer).state != PeerState::Unreachable
                    || self.link_of(host, peer.as_usize(), machine).is_none(),
                "a link to a peer that is unreachable stays open"
            );
        }
    }

    fn handle_stored(&mut self, host: usize, machine: Machine, id: StoreId, response: StoreResponse) {
        let now = self.now_at(host);
        match self.machine(host, machine) {
            MachineMut::Node(node) => node.handle_stored(now, id, response),
            MachineMut::Coordinator(coordinator) => coordinator.handle_stored(now, id, response),
        }
        self.carry_out(host, machine, false);
    }

    /// Handles the timeouts of a host that are due.
    pub(super) fn handle_timeouts(&mut self, host: usize) {
        let (now, mono) = (self.now_at(host), self.now);
        let is_due = |due: Option<stdx::Instant>| due.is_some_and(|at| at <= mono);
        let Host { node, coordinator, stopped, store, absences, .. } = &mut self.hosts[host];
        if *stopped {
            return;
        }
        let node = node.as_mut().filter(|node| is_due(node.poll_timeout()));
        let coordinator = coordinator.as_mut().filter(|coordinator| is_due(coordinator.poll_timeout()));
        let has_coordinator = coordinator.is_some();
        if let Some(coordinator) = coordinator {
            coordinator.handle_timeout(now);
        }
        if let Some(node) = node {
            node.handle_damage(now, store.damage.clone());
            node.handle_absences(now, *absences);
            node.handle_timeout(now);
            self.carry_out(host, Machine::Node, false);
        }
        if has_coordinator {
            self.carry_out(host, Machine::Coordinator, false);
        }
    }

    /// Carries out the effects of a host's state machines.
    pub(crate) fn carry_out_effects(&mut self, host: usize) {
        self.carry_out(host, Machine::Node, false);
        self.carry_out(host, Machine::Coordinator, false);
    }

    /// Carries out the effects of a state machine. `is_replica`: it has just handled a request of a
    /// peer.
    fn carry_out(&mut self, host: usize, machine: Machine, is_replica: bool) {
        let mut opened = VecDeque::new();
        loop {
            while let Some(effect) = self.poll_effect(host, machine) {
                self.carry_out_one(host, machine, is_replica, effect, &mut opened);
            }
            let Some(hello) = opened.pop_front() else { break };
            let (now, coordinator) = self.coordinator_mut(host);
            coordinator.handle_link(now, LinkEvent::Opened(hello));
        }
        self.record_state(host);
    }

    fn poll_effect(&mut self, host: usize, machine: Machine) -> Option<Effect> {
        let Host { node, coordinator, .. } = &mut self.hosts[host];
        match machine {
            Machine::Node => node.as_mut().and_then(Node::poll_effect),
            Machine::Coordinator => coordinator.as_mut().and_then(Coordinator::poll_effect),
        }
    }

    fn carry_out_one(
        &mut self,
        host: usize,
        machine: Machine,
        is_replica: bool,
        effect: Effect,
        opened: &mut VecDeque<PeerHello>,
    ) {
        match effect {
            Effect::Store { id, request, .. } => self.store(host, machine, is_replica, id, request),
            Effect::Send { to: Destination::Dialed(node), message } => {
                let link = self.link_of(host, node.as_usize(), machine);
                match link {
                    Some(link) => self.send(link, host, node.as_usize(), &message),
                    None => assert!(!self.net.is_instant, "only open links are sent over"),
                }
            }
            Effect::Send { to: Destination::Accepted(link), message } => {
                match self.connections.get(&link).map(|connection| connection.dialer) {
                    Some(dialer) => self.send(link, host, dialer, &message),
                    None => assert!(!self.net.is_instant, "no answer is sent over a link that has ended"),
                }
            }
            Effect::Link(LinkAction::Dial(node))
                if machine == Machine::Coordinator && !self.hosts[host].is_alive(node) =>
            {
                panic!("a coordinator dials {node:?}, which is not alive in its view");
            }
            Effect::Link(LinkAction::Dial(node)) if self.net.is_instant => {
                opened.push_back(self.open_at_once(host, node.as_usize()));
            }
            Effect::Link(action) => self.link(host, machine, action),
            Effect::Publish(view) => {
                assert!(
                    !self.hosts[host].is_published || self.hosts[host].view != *view,
                    "a view was published twice"
                );
                self.hosts[host].is_published = true;
                self.record_view(host, &view);
                self.hosts[host].view = (*view).clone();
                self.publish(host);
            }
            Effect::Event(event) => {
                self.record(|| Occurrence::Event { host, event });
                self.note_event(host, event);
            }
            Effect::Reply { to, reply, wait } => {
                self.record(|| Occurrence::Replied { id: to, reply: reply.clone() });
                self.waits.insert(to, (wait, self.now));
                let before = self.replies.insert(to, reply);
                assert_eq!(before, None, "a second reply to {to:?}");
            }
        }
    }

    fn note_event(&mut self, host: usize, event: Event) {
        if self.machines != Machines::Coordinators {
            self.hosts[host].events.push(event);
        }
    }

    /// Passes a host's view to its coordinator.
    pub(crate) fn publish(&mut self, host: usize) {
        let now = self.now_at(host);
        let Host { coordinator, view, .. } = &mut self.hosts[host];
        if let Some(coordinator) = coordinator {
            coordinator.handle_view(now, Arc::new(view.clone()));
            self.carry_out(host, Machine::Coordinator, false);
        }
    }

    fn store(&mut self, host: usize, machine: Machine, is_replica: bool, id: StoreId, request: StoreRequest) {
        self.record(|| Occurrence::Stored { host, machine, is_replica, request: request.clone() });
        let generation = self.hosts[host].generation;
        if !self.store_ids.insert((host, generation, machine, id)) {
            self.repeated_store_ids.push(id);
        }
        if let StoreRequest::Replica(ReplicaRequest::Write { key, cell, .. }) = &request {
            self.hosts[host].store.writes_under_way += 1;
            self.note_issued(machine, key, cell);
        }
        if machine == Machine::Node {
            self.hosts[host].store_requests.push(request.clone());
        }
        let latency =
            if self.net.is_instant { std::time::Duration::ZERO } else { self.hosts[host].store.latency };
        self.at(self.now + latency, Packet::AtStore { node: host, generation, machine, id, request });
    }

    fn check_for_stray_cells(&mut self, host: usize, request: &StoreRequest) {
        if let StoreRequest::Replica(ReplicaRequest::Write { key, cell, .. }) = request
            && !self.layout.is_replica(NodeIndex(host as u8), key, cell.meta.from)
            && !self.hosts[host].store.cells.contains_key(key)
        {
            self.stray_cells.push((host, key.clone()));
        }
    }

    pub(super) fn note_sent(&mut self, machine: Machine, message: &Message) {
        if let Message::Request {
            request: PeerRequest::Replica(ReplicaRequest::Write { key, cell, .. }),
            ..
        } = message
        {
            self.note_issued(machine, key, cell);
        }
    }

    fn note_issued(&mut self, machine: Machine, key: &Key, cell: &Cell) {
        if machine == Machine::Coordinator {
            self.issued.push(cell.clone());
            if cell.meta.kind == CellKind::Tombstone {
                self.deleted.insert((key.clone(), cell.meta.version));
            }
        }
    }
}

fn is_raise_of_bound(request: &StoreRequest) -> bool {
    matches!(request, StoreRequest::RaiseClockBound { .. })
}

enum MachineMut<'a> {
    Node(&'a mut Node),
    Coordinator(&'a mut Coordinator),
}
