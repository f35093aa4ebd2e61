//! Connections: dialed, let in, used and lost.

use super::{Event, World, turn};
use crate::host::Ending;
use crate::host::process::{Input, Process};
use crate::host::shake::{self, Shaken};
use crate::network::{Connection, Course, EndState, Place, Side};
use crate::packet::Packet;
use cluster::{Destination, DialFailure, LinkEvent, LinkId, Message, NodeIndex, PeerHello, Requester};
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::Hlc;
use wire::handshake::Local;

/// How long a dialer waits for everything up to the end of the handshake.
const DIAL_TIMEOUT: Duration = Duration::from_millis(500);

impl World {
    pub(super) fn dial(&mut self, place: Place, node: NodeIndex) {
        let host = self.host_at(place, node);
        let connection = self.network.dial(place, host);
        let Some(process) = self.process(place) else { return };
        let dialed = process.dialed.insert((place.requester, node), connection);
        assert_eq!(dialed, None, "{place:?} dials {node:?} although it has");
        self.after(DIAL_TIMEOUT, Event::DialFailed(connection, DialFailure::TimedOut));
        if let Some(at) = self.network.signal(place.node, host, self.now) {
            self.at(at, Event::DialArrives(connection));
        }
    }

    pub(super) fn dial_arrives(&mut self, connection: Connection) {
        let Some(link) = self.network.link(connection) else { return };
        let (dialer, node) = (link.dialer, link.acceptor.node);
        if link.dialer_end == EndState::Gone {
            return;
        }
        let has_power = self.host(node).process.is_some() || self.host(node).ending == Ending::Kill;
        let place = self.place(node, Requester::Node).filter(|_| !self.network.is_refusing(node));
        let (Some(place), Some(local)) = (place, self.local(dialer)) else {
            if has_power {
                self.fail_dial(connection, DialFailure::Refused);
            }
            return;
        };
        let accepting = self.local(place).expect("it was just found");
        let expected = self.member_of(node);
        match Shaken::new(local, accepting, expected, &mut self.rngs.machines) {
            Ok((shaken, hello)) => {
                self.shaken.insert(connection, shaken);
                let link = self.network.link_mut(connection).expect("it was there");
                link.acceptor = place;
                link.acceptor_end = EndState::Pending;
                self.turn(
                    place,
                    Input::Link(LinkEvent::AdmissionRequested { link: Process::link_of(connection), hello }),
                );
            }
            Err(error) => {
                self.trace.note(self.now, || format!("{dialer:?} and {place:?} do not shake hands: {error}"));
                self.fail_dial(connection, DialFailure::Rejected);
            }
        }
    }

    /// Tells the dialer that it is not let in, if anything gets there.
    fn fail_dial(&mut self, connection: Connection, reason: DialFailure) {
        let Some(link) = self.network.link(connection) else { return };
        let (from, to) = (link.acceptor.node, link.dialer.node);
        if let Some(at) = self.network.signal(from, to, self.now) {
            self.at(at, Event::DialFailed(connection, reason));
        }
    }

    /// What a machine says of itself in a handshake.
    fn local(&self, place: Place) -> Option<Local> {
        let process = self.hosts[place.node.as_usize()].process.as_ref()?;
        (process.life == place.life)
            .then(|| shake::local(process, place.requester, &self.names, self.layout.partitions()))
    }

    pub(super) fn admit(&mut self, place: Place, link: LinkId) {
        let connection = Connection(link.0);
        let Some(link) = self.network.link(connection) else { return };
        if link.acceptor_end != EndState::Pending || link.acceptor != place {
            return;
        }
        let dialer = link.dialer;
        let requester = match dialer.requester {
            Requester::Node => Requester::Node,
            Requester::Coordinator(_) => {
                Requester::Coordinator(self.rngs.machines.below(u64::from(self.scenario.coordinators)) as u8)
            }
        };
        let Some(Ok(hello)) = self.shaken.remove(&connection).map(Shaken::admit) else {
            unreachable!("what was shown to the node has shaken hands");
        };
        let link = self.network.link_mut(connection).expect("it was there");
        link.acceptor.requester = requester;
        link.acceptor_end = EndState::Open;
        if let Some(at) = self.network.signal(place.node, dialer.node, self.now) {
            self.at(at, Event::DialAnswered(connection, hello));
        }
    }

    pub(super) fn refuse(&mut self, place: Place, link: LinkId, reason: DialFailure) {
        let connection = Connection(link.0);
        let Some(link) = self.network.link_mut(connection) else { return };
        let (end, acceptor) = (link.acceptor_end, link.acceptor);
        if (acceptor.node, acceptor.life) != (place.node, place.life) {
            return;
        }
        match end {
            EndState::Gone => {}
            EndState::Pending => {
                link.acceptor_end = EndState::Gone;
                self.shaken.remove(&connection);
                self.fail_dial(connection, reason);
            }
            EndState::Open => {
                self.at(self.now, Event::EndLost(connection, Side::Acceptor));
                self.tell_other_end(connection, Side::Acceptor);
            }
        }
    }

    pub(super) fn dial_answered(&mut self, connection: Connection, hello: PeerHello) {
        let Some(link) = self.network.link_mut(connection) else { return };
        if link.dialer_end == EndState::Pending {
            link.dialer_end = EndState::Open;
            let dialer = link.dialer;
            self.turn(dialer, Input::Link(LinkEvent::Opened(hello)));
        }
    }

    pub(super) fn dial_failed(&mut self, connection: Connection, reason: DialFailure) {
        let Some(link) = self.network.link_mut(connection) else { return };
        if link.dialer_end != EndState::Pending {
            return;
        }
        link.dialer_end = EndState::Gone;
        let (dialer, host) = (link.dialer, link.acceptor.node);
        self.tell_other_end(connection, Side::Dialer);
        self.network.sweep(connection);
        let node = self.member_of(host);
        self.forget_dialed(dialer, node);
        self.turn(dialer, Input::Link(LinkEvent::DialFailed { node, reason }));
    }

    pub(super) fn hang_up(&mut self, place: Place, node: NodeIndex) {
        let Some(process) = self.process(place) else { return };
        let Some(connection) = process.dialed.remove(&(place.requester, node)) else { return };
        if let Some(link) = self.network.link_mut(connection) {
            link.dialer_end = EndState::Gone;
        }
        self.tell_other_end(connection, Side::Dialer);
        self.network.sweep(connection);
    }

    pub(super) fn end_lost(&mut self, connection: Connection, side: Side) {
        let Some(link) = self.network.link_mut(connection) else { return };
        let (end, place, host) = (link.end(side), link.place(side), link.place(side.other()).node);
        link.set_end(side, EndState::Gone);
        let peer = self.member_of(host);
        self.network.sweep(connection);
        match (end, side) {
            (EndState::Gone, _) => {}
            (EndState::Pending, Side::Acceptor) => {
                self.shaken.remove(&connection);
            }
            (EndState::Pending, Side::Dialer) => {
                self.forget_dialed(place, peer);
                let reason = DialFailure::Refused;
                self.turn(place, Input::Link(LinkEvent::DialFailed { node: peer, reason }));
            }
            (EndState::Open, Side::Dialer) => {
                self.forget_dialed(place, peer);
                self.turn(place, Input::Link(LinkEvent::Closed { node: peer }));
            }
            (EndState::Open, Side::Acceptor) => {
                self.turn(
                    place,
                    Input::Link(LinkEvent::AcceptedClosed { link: Process::link_of(connection) }),
                );
            }
        }
    }

    fn forget_dialed(&mut self, place: Place, node: NodeIndex) {
        if let Some(process) = self.process(place) {
            process.dialed.remove(&(place.requester, node));
        }
    }

    /// The end at `side` is gone: the other end hears of it, if anything gets there.
    fn tell_other_end(&mut self, connection: Connection, side: Side) {
        let Some(link) = self.network.link(connection) else { return };
        let (from, to) = (link.place(side).node, link.place(side.other()).node);
        if let Some(at) = self.network.signal(from, to, self.now) {
            self.at(at, Event::EndLost(connection, side.other()));
        }
    }

    /// Closes both ends of a connection, as a router that resets it does.
    pub(crate) fn reset(&mut self, connection: Connection) {
        self.at(self.now, Event::EndLost(connection, Side::Dialer));
        self.at(self.now, Event::EndLost(connection, Side::Acceptor));
    }

    /// The process of a host has ended: its ends of connections are gone.
    pub(super) fn lose_ends(&mut self, node: NodeIndex, ending: Ending) {
        for (connection, side) in self.network.ends_at(node) {
            if side == Side::Acceptor {
                self.shaken.remove(&connection);
            }
            if let Some(link) = self.network.link_mut(connection) {
                link.set_end(side, EndState::Gone);
            }
            if ending == Ending::Kill {
                self.tell_other_end(connection, side);
            }
            self.network.sweep(connection);
        }
    }

    /// Sends what a turn of a machine wants sent, if the connections are still open.
    pub(super) fn send_packets(&mut self, place: Place, sent: BTreeMap<Destination, Vec<Message>>) {
        for (to, messages) in sent {
            let Some(process) = self.process(place) else { return };
            let (connection, side) = match to {
                Destination::Dialed(node) => match process.dialed.get(&(place.requester, node)) {
                    Some(connection) => (*connection, Side::Dialer),
                    None => continue,
                },
                Destination::Accepted(link) => (Connection(link.0), Side::Acceptor),
            };
            let clock = process.member.clock.shown();
            if self.network.link(connection).is_none_or(|link| link.end(side) != EndState::Open) {
                continue;
            }
            if let Some(limits) = self.scenario.dimensions.narrow_links() {
                self.push_messages(connection, side.other(), &messages, limits);
            } else {
                self.deliver(connection, side.other(), Packet::of(clock, &messages));
            }
        }
    }

    /// Sends a packet on its way towards this end.
    pub(crate) fn deliver(&mut self, connection: Connection, toward: Side, packet: Packet) {
        match self.network.course(connection, toward, self.now) {
            Course::Lost => {}
            Course::Held => self.network.hold(connection, toward, packet),
            Course::Arrives(at, again) => {
                if let Some(again) = again {
                    self.at(again, Event::Packet(connection, toward, packet.clone()));
                }
                self.at(at, Event::Packet(connection, toward, packet));
            }
        }
    }

    pub(super) fn packet(&mut self, connection: Connection, side: Side, packet: &Packet) {
        let messages = packet.open().expect("frames arrive as they were sent, or not at all");
        self.take_messages(connection, side, messages);
    }

    /// Gives messages that have arrived to the machine at this end, each with the sender's clock.
    pub(super) fn take_messages(
        &mut self,
        connection: Connection,
        side: Side,
        messages: Vec<(Hlc, Message)>,
    ) {
        for (clock, message) in messages {
            let Some(link) = self.network.link(connection) else { return };
            let place = link.place(side);
            match link.end(side) {
                EndState::Open => {
                    let from = self.member_of(link.place(side.other()).node);
                    let origin = turn::origin(from, connection, side);
                    let wall = self.show_clocks(place.node).wall;
                    self.judge.heard.note(place.node, clock, wall);
                    self.turn(place, Input::Message(origin, message, clock));
                }
                // The machine that got this knows nothing of the connection, and says so.
                EndState::Gone if self.host(place.node).process.is_some() => {
                    return self.tell_other_end(connection, side);
                }
                EndState::Gone | EndState::Pending => return,
            }
        }
    }
}
