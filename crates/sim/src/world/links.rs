//! Connections: dialed, admitted, used and closed.

use super::{World, WorldEvent, step};
use crate::Plant;
use crate::host::EndCause;
use crate::host::handshake::{self, PendingHandshake};
use crate::host::process::{HostProcess, ProcessInput};
use crate::network::{ConnectionId, ConnectionSide, Delivery, EndState, Endpoint};
use crate::packet::Packet;
use cluster::{Destination, DialFailure, LinkEvent, LinkId, Message, NodeIndex, PeerHello, Requester};
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::Hlc;
use wire::handshake::HandshakeConfig;

/// Time that a dialer waits for the end of the handshake.
const DIAL_TIMEOUT: Duration = Duration::from_millis(500);

impl World {
    pub(super) fn dial(&mut self, endpoint: Endpoint, node: NodeIndex) {
        let host = self.host_at(endpoint, node);
        let slots = [self.member_of(endpoint.node), node];
        let connection = self.network.dial(endpoint, host, slots);
        let Some(process) = self.process(endpoint) else { return };
        let dialed = process.dialed.insert((endpoint.requester, node), connection);
        assert_eq!(dialed, None, "{endpoint:?} dials {node:?} twice");
        self.after(DIAL_TIMEOUT, WorldEvent::DialFailed(connection, DialFailure::TimedOut));
        if let Some(at) = self.network.signal(endpoint.node, host, self.now) {
            self.at(at, WorldEvent::DialArrives(connection));
        }
    }

    pub(super) fn dial_arrives(&mut self, connection: ConnectionId) {
        let Some(link) = self.network.link(connection) else { return };
        let (dialer, node, expected) = (link.dialer, link.acceptor.node, link.acceptor_slot);
        if link.dialer_end == EndState::Gone {
            return;
        }
        let has_power = self.host(node).process.is_some() || self.host(node).end_cause == EndCause::Kill;
        let endpoint = self.endpoint(node, Requester::Node).filter(|_| !self.network.is_refusing(node));
        let (Some(endpoint), Some(local)) = (endpoint, self.local(dialer)) else {
            if has_power {
                self.fail_dial(connection, DialFailure::Refused);
            }
            return;
        };
        let accepting = self.local(endpoint).expect("the process was just found");
        match PendingHandshake::new(local, accepting, expected, &mut self.rngs.machines) {
            Ok((handshake, hello)) => {
                self.pending_handshakes.insert(connection, handshake);
                let link = self.network.link_mut(connection).expect("the connection was just found");
                link.acceptor = endpoint;
                link.acceptor_end = EndState::Pending;
                self.step(
                    endpoint,
                    ProcessInput::Link(LinkEvent::AdmissionRequested {
                        link: HostProcess::link_of(connection),
                        hello,
                    }),
                );
            }
            Err(error) => {
                self.trace.note(self.now, || {
                    format!("the handshake of {dialer:?} and {endpoint:?} fails: {error}")
                });
                let reason = match self.scenario.plant {
                    Some(Plant::RemovalHidden) => DialFailure::Rejected,
                    _ => handshake::failure_of(&error),
                };
                self.fail_dial(connection, reason);
            }
        }
    }

    /// Notifies the dialer of a refusal, if the path allows it.
    fn fail_dial(&mut self, connection: ConnectionId, reason: DialFailure) {
        let Some(link) = self.network.link(connection) else { return };
        let (from, to) = (link.acceptor.node, link.dialer.node);
        if let Some(at) = self.network.signal(from, to, self.now) {
            self.at(at, WorldEvent::DialFailed(connection, reason));
        }
    }

    /// Local side of the handshake of a state machine.
    pub(super) fn local(&self, endpoint: Endpoint) -> Option<HandshakeConfig> {
        let process = self.hosts[endpoint.node.as_usize()].process.as_ref()?;
        (process.generation == endpoint.generation)
            .then(|| handshake::local(process, endpoint.requester, &self.names, self.layout.partitions()))
    }

    pub(super) fn admit(&mut self, endpoint: Endpoint, link: LinkId) {
        let connection = ConnectionId(link.0);
        let Some(link) = self.network.link(connection) else { return };
        if link.acceptor_end != EndState::Pending || link.acceptor != endpoint {
            return;
        }
        let dialer = link.dialer;
        let requester = match dialer.requester {
            Requester::Node => Requester::Node,
            Requester::Coordinator(_) => {
                Requester::Coordinator(self.rngs.machines.below(u64::from(self.scenario.coordinators)) as u8)
            }
        };
        let Some(Ok((hello, version))) =
            self.pending_handshakes.remove(&connection).map(PendingHandshake::admit)
        else {
            unreachable!("the node admits connections after their handshake");
        };
        let link = self.network.link_mut(connection).expect("the connection was just found");
        link.acceptor.requester = requester;
        link.version = version;
        link.acceptor_end = EndState::Open;
        if let Some(at) = self.network.signal(endpoint.node, dialer.node, self.now) {
            self.at(at, WorldEvent::DialAnswered(connection, hello));
        }
    }

    pub(super) fn refuse(&mut self, endpoint: Endpoint, link: LinkId, reason: DialFailure) {
        let connection = ConnectionId(link.0);
        let Some(link) = self.network.link_mut(connection) else { return };
        let (end, acceptor) = (link.acceptor_end, link.acceptor);
        if (acceptor.node, acceptor.generation) != (endpoint.node, endpoint.generation) {
            return;
        }
        match end {
            EndState::Gone => {}
            EndState::Pending => {
                link.acceptor_end = EndState::Gone;
                self.pending_handshakes.remove(&connection);
                self.fail_dial(connection, reason);
            }
            EndState::Open => {
                self.at(self.now, WorldEvent::EndLost(connection, ConnectionSide::Acceptor));
                self.notify_other_end(connection, ConnectionSide::Acceptor);
            }
        }
    }

    pub(super) fn dial_answered(&mut self, connection: ConnectionId, hello: PeerHello) {
        let Some(link) = self.network.link_mut(connection) else { return };
        if link.dialer_end == EndState::Pending {
            link.dialer_end = EndState::Open;
            let dialer = link.dialer;
            self.step(dialer, ProcessInput::Link(LinkEvent::Opened(hello)));
        }
    }

    pub(super) fn dial_failed(&mut self, connection: ConnectionId, reason: DialFailure) {
        let Some(link) = self.network.link_mut(connection) else { return };
        if link.dialer_end != EndState::Pending {
            return;
        }
        link.dialer_end = EndState::Gone;
        let (dialer, node) = (link.dialer, link.acceptor_slot);
        self.notify_other_end(connection, ConnectionSide::Dialer);
        self.network.forget_closed(connection);
        self.forget_dialed(dialer, node);
        self.step(dialer, ProcessInput::Link(LinkEvent::DialFailed { node, reason }));
    }

    pub(super) fn hang_up(&mut self, endpoint: Endpoint, node: NodeIndex) {
        let Some(process) = self.process(endpoint) else { return };
        let Some(connection) = process.dialed.remove(&(endpoint.requester, node)) else { return };
        if let Some(link) = self.network.link_mut(connection) {
            link.dialer_end = EndState::Gone;
        }
        self.notify_other_end(connection, ConnectionSide::Dialer);
        self.network.forget_closed(connection);
    }

    /// Closes the connections that a state machine has accepted from a node.
    pub(super) fn dismiss(&mut self, endpoint: Endpoint, node: NodeIndex) {
        for (connection, side) in self.network.ends_at(endpoint.node) {
            let Some(link) = self.network.link(connection) else { continue };
            let is_accepted = side == ConnectionSide::Acceptor && link.acceptor == endpoint;
            if is_accepted && link.dialer_slot == node {
                self.at(self.now, WorldEvent::EndLost(connection, side));
                self.notify_other_end(connection, side);
            }
        }
    }

    pub(super) fn end_lost(&mut self, connection: ConnectionId, side: ConnectionSide) {
        let Some(link) = self.network.link_mut(connection) else { return };
        let (end, endpoint, peer) = (link.end(side), link.endpoint(side), link.slot(side.other()));
        link.set_end(side, EndState::Gone);
        self.network.forget_closed(connection);
        match (end, side) {
            (EndState::Gone, _) => {}
            (EndState::Pending, ConnectionSide::Acceptor) => {
                self.pending_handshakes.remove(&connection);
            }
            (EndState::Pending, ConnectionSide::Dialer) => {
                self.forget_dialed(endpoint, peer);
                let reason = DialFailure::Refused;
                self.step(endpoint, ProcessInput::Link(LinkEvent::DialFailed { node: peer, reason }));
            }
            (EndState::Open, ConnectionSide::Dialer) => {
                self.forget_dialed(endpoint, peer);
                self.step(endpoint, ProcessInput::Link(LinkEvent::Closed { node: peer }));
            }
            (EndState::Open, ConnectionSide::Acceptor) => {
                self.step(
                    endpoint,
                    ProcessInput::Link(LinkEvent::AcceptedClosed { link: HostProcess::link_of(connection) }),
                );
            }
        }
    }

    fn forget_dialed(&mut self, endpoint: Endpoint, node: NodeIndex) {
        if let Some(process) = self.process(endpoint) {
            process.dialed.remove(&(endpoint.requester, node));
        }
    }

    /// Notifies the other end that the end at `side` is closed, if the path allows it.
    fn notify_other_end(&mut self, connection: ConnectionId, side: ConnectionSide) {
        let Some(link) = self.network.link(connection) else { return };
        let (from, to) = (link.endpoint(side).node, link.endpoint(side.other()).node);
        if let Some(at) = self.network.signal(from, to, self.now) {
            self.at(at, WorldEvent::EndLost(connection, side.other()));
        }
    }

    /// Closes both ends of a connection, as a router that resets it does.
    pub(crate) fn reset(&mut self, connection: ConnectionId) {
        self.at(self.now, WorldEvent::EndLost(connection, ConnectionSide::Dialer));
        self.at(self.now, WorldEvent::EndLost(connection, ConnectionSide::Acceptor));
    }

    /// Closes the ends of connections of a host whose process has ended.
    pub(super) fn close_ends(&mut self, node: NodeIndex, end_cause: EndCause) {
        for (connection, side) in self.network.ends_at(node) {
            if side == ConnectionSide::Acceptor {
                self.pending_handshakes.remove(&connection);
            }
            if let Some(link) = self.network.link_mut(connection) {
                link.set_end(side, EndState::Gone);
            }
            if end_cause == EndCause::Kill {
                self.notify_other_end(connection, side);
            }
            self.network.forget_closed(connection);
        }
    }

    /// Sends the messages of a step, over the connections that are still open.
    pub(super) fn send_packets(&mut self, endpoint: Endpoint, sent: BTreeMap<Destination, Vec<Message>>) {
        for (to, messages) in sent {
            let Some(process) = self.process(endpoint) else { return };
            let (connection, side) = match to {
                Destination::Dialed(node) => match process.dialed.get(&(endpoint.requester, node)) {
                    Some(connection) => (*connection, ConnectionSide::Dialer),
                    None => continue,
                },
                Destination::Accepted(link) => (ConnectionId(link.0), ConnectionSide::Acceptor),
            };
            let clock = process.member.clock.shown();
            let Some(link) = self.network.link(connection).filter(|link| link.end(side) == EndState::Open)
            else {
                continue;
            };
            let version = link.version;
            if let Some(limits) = self.scenario.dimensions.narrow_links() {
                self.push_messages(connection, side.other(), &messages, limits);
            } else {
                self.deliver(connection, side.other(), Packet::of(version, clock, &messages));
            }
        }
    }

    /// Sends a packet towards this end.
    pub(crate) fn deliver(&mut self, connection: ConnectionId, toward: ConnectionSide, packet: Packet) {
        match self.network.schedule(connection, toward, self.now) {
            Delivery::Lost => {}
            Delivery::Held => self.network.hold(connection, toward, packet),
            Delivery::Arrives(at, again) => {
                if let Some(again) = again {
                    self.at(again, WorldEvent::Packet(connection, toward, packet.clone()));
                }
                self.at(at, WorldEvent::Packet(connection, toward, packet));
            }
        }
    }

    pub(super) fn packet(&mut self, connection: ConnectionId, side: ConnectionSide, packet: &Packet) {
        let messages = packet.open().expect("frames arrive as they were sent, or not at all");
        self.take_messages(connection, side, messages);
    }

    /// Gives the messages that have arrived to the state machine at this end, each with the
    /// sender's clock.
    pub(super) fn take_messages(
        &mut self,
        connection: ConnectionId,
        side: ConnectionSide,
        messages: Vec<(Hlc, Message)>,
    ) {
        for (clock, message) in messages {
            let Some(link) = self.network.link(connection) else { return };
            let endpoint = link.endpoint(side);
            match link.end(side) {
                EndState::Open => {
                    let origin = step::origin(link.slot(side.other()), connection, side);
                    let wall = self.show_clocks(endpoint.node).wall;
                    self.judge.observed_clocks.note(endpoint.node, clock, wall);
                    self.step(endpoint, ProcessInput::Message(origin, message, clock));
                }
                // The receiver does not know the connection, and resets it.
                EndState::Gone if self.host(endpoint.node).process.is_some() => {
                    return self.notify_other_end(connection, side);
                }
                EndState::Gone | EndState::Pending => return,
            }
        }
    }
}
