//! Links: dialed, admitted, used and closed; and the network that carries them.

use super::packet::{self, Machine};
use super::{MILLISECOND, Machines, Occurrence, Packet, PacketKind, World};
use cluster::{
    DialFailure, Incarnation, LinkAction, LinkEvent, LinkId, Message, NodeIndex, PeerAnswer, PeerHello,
    ReplicaFault, Requester, SyncState,
};
use std::time::Duration;
use stdx::{Hlc, Instant};

const DIAL_TIMEOUT: Duration = Duration::from_millis(500);

/// Properties of the network.
#[derive(Clone, Copy)]
pub(crate) struct Net {
    pub(crate) latency: Duration,
    /// Maximum additional latency of a message. Above 0, messages are reordered.
    pub(crate) jitter: Duration,
    pub(crate) loss: f64,
    pub(crate) doubled: f64,
    /// Links open and end at once, and stores take no time.
    pub(crate) is_instant: bool,
}

impl Net {
    /// A network with a latency of a millisecond that loses nothing.
    pub(crate) const fn of_a_rack() -> Self {
        Self { latency: MILLISECOND, jitter: Duration::ZERO, loss: 0.0, doubled: 0.0, is_instant: false }
    }

    /// A network without latency.
    pub(crate) const fn instant() -> Self {
        Self { latency: Duration::ZERO, is_instant: true, ..Self::of_a_rack() }
    }
}

/// Treatment of messages from one host to another.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkRule {
    /// Latency in addition to that of the network.
    pub(crate) delay: Duration,
    /// Kinds of messages that are lost, each with the number of further losses.
    pub(crate) losses: Vec<(PacketKind, u64)>,
    /// Kinds of requests that the receiver answers as busy, each with the number of further ones.
    pub(crate) refusals: Vec<(PacketKind, u64)>,
    /// Number of next messages that arrive twice, heartbeats not counted.
    pub(crate) doubled: u64,
}

impl LinkRule {
    fn loses(&mut self, kind: PacketKind) -> bool {
        use_up(&mut self.losses, kind)
    }

    fn refuses(&mut self, kind: PacketKind) -> bool {
        use_up(&mut self.refusals, kind)
    }

    fn doubles(&mut self, kind: PacketKind) -> bool {
        let doubles = self.doubled > 0 && kind != PacketKind::Heartbeat;
        self.doubled -= u64::from(doubles);
        doubles
    }
}

/// Whether one more message of this kind is left, which is then used up.
fn use_up(counts: &mut [(PacketKind, u64)], kind: PacketKind) -> bool {
    let count = counts.iter_mut().find(|(counted, left)| *counted == kind && *left > 0);
    count.is_some_and(|(_, left)| {
        *left -= 1;
        true
    })
}

/// A connection between two state machines.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) dialer: usize,
    dialer_generation: u64,
    pub(crate) acceptor: usize,
    acceptor_generation: u64,
    machine: Machine,
    admitted: bool,
}

impl World {
    pub(super) fn link(&mut self, host: usize, machine: Machine, action: LinkAction) {
        match action {
            LinkAction::Dial(node) => {
                let acceptor = node.as_usize();
                assert!(self.link_of(host, acceptor, machine).is_none(), "there is a link already");
                self.last_link += 1;
                let connection = Connection {
                    dialer: host,
                    dialer_generation: self.hosts[host].generation,
                    acceptor,
                    acceptor_generation: 0,
                    machine,
                    admitted: false,
                };
                let link = LinkId(self.last_link);
                self.at(self.now + self.net.latency, Packet::Dial { link, connection });
            }
            LinkAction::HangUp(node) => match self.link_of(host, node.as_usize(), machine) {
                Some(link) => self.close(link, Some(host)),
                None if self.forget_dial(host, machine, node) => {}
                None => self.forget_closing(host, machine, node),
            },
            LinkAction::Dismiss(node) => self.dismiss(host, machine, node),
            LinkAction::Admit(link) => self.admit(host, link),
            LinkAction::Refuse(link) | LinkAction::RefuseCopy(link) => self.close(link, Some(host)),
        }
    }

    /// Ends a dial that its dialer gives up, and drops its outcome. Returns whether there was one.
    fn forget_dial(&mut self, dialer: usize, by: Machine, peer: NodeIndex) -> bool {
        let is_meant = |link: &Connection| {
            (link.dialer, link.machine, link.acceptor) == (dialer, by, peer.as_usize()) && !link.admitted
        };
        let waiting = self.connections.iter().find(|(_, link)| is_meant(link)).map(|(link, _)| *link);
        if let Some(link) = waiting {
            self.close(link, Some(dialer));
            return true;
        }
        let count = self.packets.len();
        self.packets.retain(|_, packet| match packet {
            Packet::Dial { connection, .. } => !is_meant(connection),
            Packet::Link { host, machine, event: LinkEvent::DialFailed { node, .. }, .. } => {
                (*host, *machine, *node) != (dialer, by, peer)
            }
            _ => true,
        });
        self.packets.len() < count
    }

    /// Closes the links that a state machine has accepted from a peer, and tells it.
    fn dismiss(&mut self, acceptor: usize, by: Machine, peer: NodeIndex) {
        let is_meant = |link: &Connection| {
            (link.acceptor, link.machine, link.dialer) == (acceptor, by, peer.as_usize()) && link.admitted
        };
        let links: Vec<LinkId> =
            self.connections.iter().filter(|(_, link)| is_meant(link)).map(|(link, _)| *link).collect();
        for link in links {
            self.close(link, Some(acceptor));
            self.handle_link(acceptor, by, LinkEvent::AcceptedClosed { link });
        }
    }

    /// Drops the news that a link has ended, which its dialer has closed meanwhile.
    fn forget_closing(&mut self, dialer: usize, by: Machine, peer: NodeIndex) {
        let count = self.packets.len();
        self.packets.retain(|_, packet| match packet {
            Packet::Link { host, machine, event: LinkEvent::Closed { node }, .. } => {
                (*host, *machine, *node) != (dialer, by, peer)
            }
            _ => true,
        });
        assert!(self.packets.len() < count, "a closed link was open");
    }

    fn admit(&mut self, host: usize, link: LinkId) {
        let Some(connection) = self.connections.get_mut(&link) else { return };
        connection.admitted = true;
        let Connection { dialer, dialer_generation: generation, machine, .. } = *connection;
        let event = LinkEvent::Opened(self.hello(host, Machine::Node));
        self.at(self.now + self.net.latency, Packet::Link { host: dialer, generation, machine, event });
    }

    /// Opens a link of coordinators, which the dialer has yet to be told.
    pub(super) fn open_at_once(&mut self, dialer: usize, acceptor: usize) -> PeerHello {
        assert!(self.link_of(dialer, acceptor, Machine::Coordinator).is_none(), "dialed twice");
        self.last_link += 1;
        let connection = Connection {
            dialer,
            dialer_generation: self.hosts[dialer].generation,
            acceptor,
            acceptor_generation: self.hosts[acceptor].generation,
            machine: Machine::Coordinator,
            admitted: true,
        };
        self.connections.insert(LinkId(self.last_link), connection);
        self.hello(acceptor, Machine::Node)
    }

    pub(super) fn dial_arrives(&mut self, link: LinkId, mut connection: Connection) {
        let (dialer, acceptor) = (connection.dialer, connection.acceptor);
        let (generation, machine) = (connection.dialer_generation, connection.machine);
        let fail = |reason| {
            let event = LinkEvent::DialFailed { node: NodeIndex(acceptor as u8), reason };
            Packet::Link { host: dialer, generation, machine, event }
        };
        if self.cut.contains(&(dialer, acceptor)) {
            return self.at(self.now + DIAL_TIMEOUT, fail(DialFailure::TimedOut));
        }
        let is_down = self.hosts[acceptor].node.is_none().then_some(DialFailure::Refused);
        if let Some(reason) = self.dial_failures.get(&(dialer, acceptor)).copied().or(is_down) {
            return self.at(self.now + self.net.latency, fail(reason));
        }
        if self.hosts[dialer].generation != generation || self.hosts[dialer].node.is_none() {
            return;
        }
        connection.acceptor_generation = self.hosts[acceptor].generation;
        self.connections.insert(link, connection);
        let hello = self.hello(dialer, machine);
        self.handle_link(acceptor, Machine::Node, LinkEvent::AdmissionRequested { link, hello });
    }

    /// Fails a dial of a host that does not answer.
    pub(super) fn dial_times_out(&mut self, connection: &Connection) {
        let node = NodeIndex(connection.acceptor as u8);
        let event = LinkEvent::DialFailed { node, reason: DialFailure::TimedOut };
        let Connection { dialer: host, dialer_generation: generation, machine, .. } = *connection;
        self.at(self.now + DIAL_TIMEOUT, Packet::Link { host, generation, machine, event });
    }

    /// Closes a connection on behalf of `by`, and tells the other side. Its messages are lost.
    pub(super) fn close(&mut self, link: LinkId, by: Option<usize>) {
        let Some(connection) = self.connections.remove(&link) else { return };
        let is_on_link = |packet: &Packet| matches!(packet, Packet::Message { link: on, .. } if *on == link);
        self.packets.retain(|_, packet| !is_on_link(packet));
        let Connection { dialer, acceptor, machine, admitted, .. } = connection;
        if by != Some(dialer) {
            let node = NodeIndex(acceptor as u8);
            let event = match admitted {
                true => LinkEvent::Closed { node },
                false => LinkEvent::DialFailed { node, reason: DialFailure::NotAdmitted },
            };
            self.tell(Packet::Link {
                host: dialer,
                generation: connection.dialer_generation,
                machine,
                event,
            });
        }
        if by != Some(acceptor) {
            let event = LinkEvent::AcceptedClosed { link };
            let machine = if admitted { machine } else { Machine::Node };
            let generation = connection.acceptor_generation;
            self.tell(Packet::Link { host: acceptor, generation, machine, event });
        }
    }

    fn tell(&mut self, packet: Packet) {
        match self.net.is_instant {
            true => self.handle(packet, None),
            false => self.at(self.now + self.net.latency, packet),
        }
    }

    pub(super) fn send(&mut self, link: LinkId, from: usize, to: usize, message: &Message) {
        let Connection { dialer, acceptor, machine, .. } = self.connections[&link];
        if self.machines != Machines::Coordinators {
            self.sent.push((from, to, message.clone()));
        }
        self.note_sent(machine, message);
        let kind = PacketKind::of(message);
        let rule = self.rules.entry((from, to)).or_default();
        let (is_taken, is_doubled, delay) = (rule.loses(kind), rule.doubles(kind), rule.delay);
        let is_lost = is_taken || self.cut.contains(&(from, to)) || self.rng.chance(self.net.loss);
        if kind != PacketKind::Heartbeat {
            self.record(|| Occurrence::Sent { from, to, message: message.clone(), is_lost });
        }
        if is_lost {
            return;
        }
        let copies = 1 + usize::from(is_doubled || self.rng.chance(self.net.doubled));
        let arrives = self.now.max(self.carry(from, to, message)) + self.net.latency + delay;
        let clock = self.hosts[from].member.clock.shown();
        for _ in 0..copies {
            let late = self.net.jitter.mul_f64(self.rng.unit());
            let message = message.clone();
            self.at(arrives + late, Packet::Message { dialer, acceptor, link, machine, message, clock });
        }
    }

    /// Answers a request as busy on behalf of its receiver, if a rule says so.
    pub(super) fn refuses_as_busy(
        &mut self,
        dialer: usize,
        acceptor: usize,
        link: LinkId,
        message: &Message,
    ) -> bool {
        let Message::Request { id, .. } = message else { return false };
        let rule = self.rules.get_mut(&(dialer, acceptor));
        let is_refused = rule.is_some_and(|rule| rule.refuses(PacketKind::of(message)));
        if is_refused {
            let answer = PeerAnswer::Failed(ReplicaFault::Busy);
            self.send(link, acceptor, dialer, &Message::Answer { id: *id, answer });
        }
        is_refused
    }

    /// Time at which a link has carried a message, after those before it.
    fn carry(&mut self, from: usize, to: usize, message: &Message) -> Instant {
        let Some(rate) = self.bytes_per_second else { return self.now };
        let bytes = packet::value_bytes(message);
        if bytes == 0 {
            return self.now;
        }
        let begins = self.busy_until.get(&(from, to)).copied().unwrap_or(self.now).max(self.now);
        let ends = begins + Duration::from_millis(bytes * 1_000 / rate);
        self.busy_until.insert((from, to), ends);
        ends
    }

    pub(super) fn at(&mut self, at: Instant, packet: Packet) {
        self.packet_count += 1;
        self.packets.insert((at, self.packet_count), packet);
    }

    fn hello(&self, host: usize, machine: Machine) -> PeerHello {
        let sync_state = self.hosts[host].node.as_ref().map(|node| node.status().sync_state.in_hello());
        PeerHello {
            node: NodeIndex(host as u8),
            tag: self.hosts[host].tag,
            requester: match machine {
                Machine::Node => Requester::Node,
                Machine::Coordinator => Requester::Coordinator(0),
            },
            incarnation: self.hosts[host].member.incarnation,
            clock: self.hosts[host].member.clock.shown(),
            sync_state: sync_state.unwrap_or(SyncState::Settled),
        }
    }

    /// The admitted link that a state machine of `dialer` has dialed to `acceptor`.
    pub(super) fn link_of(&self, dialer: usize, acceptor: usize, machine: Machine) -> Option<LinkId> {
        let mut links = self.connections.iter();
        links
            .find(|(_, link)| {
                link.admitted && (link.dialer, link.acceptor, link.machine) == (dialer, acceptor, machine)
            })
            .map(|(&link, _)| link)
    }

    pub(super) fn links_of(&self, host: usize) -> impl Iterator<Item = LinkId> {
        let links = self.connections.iter();
        links.filter(move |(_, link)| link.dialer == host || link.acceptor == host).map(|(&link, _)| link)
    }

    /// Breaks the links that the state machines of `dialer` have dialed to `acceptor`.
    pub(crate) fn break_dialed(&mut self, dialer: usize, acceptor: usize) {
        self.break_link(dialer, acceptor, Machine::Node);
        self.break_link(dialer, acceptor, Machine::Coordinator);
    }

    /// Breaks the link that a state machine of `dialer` has dialed to `acceptor`, if there is one.
    pub(crate) fn break_link(&mut self, dialer: usize, acceptor: usize, machine: Machine) {
        if let Some(link) = self.link_of(dialer, acceptor, machine) {
            self.close(link, None);
        }
    }

    /// Delivers a copy of a message as if it came over the link that `from` dialed to `to`.
    pub(crate) fn inject(&mut self, from: usize, to: usize, message: &Message) {
        let link = self.link_of(from, to, Machine::Node).expect("there is a link");
        self.send(link, from, to, message);
    }
}
