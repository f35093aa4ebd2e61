//! The world of a run: hosts, network, clients and nemesis on one queue of events.
//!
//! **Promise.** A run is a function of its seed: the same seed gives the same events at the same times.
//!
//! **Mechanism.** One queue of events in virtual time; idle time costs nothing. Each concern draws from a
//! generator of its own, forked from the seed, so that a draw more in one does not move the others. What a
//! machine is given and what it wants done is in `turn`, the disk in `disk`, connections in `links`, the lives
//! of processes in `lives`.

mod copies;
mod disk;
mod event;
mod links;
mod lives;
mod pipes;
mod resume;
mod turn;

pub(crate) use event::Event;

use crate::history::{ScanEnd, Scans, Told};
use crate::host::Host;
use crate::host::process::Process;
use crate::host::shake::Shaken;
use crate::judge::Judge;
use crate::nemesis::Nemesis;
use crate::network::{Connection, Network, Place, Side};
use crate::trace::Trace;
use crate::workload::Workload;
use crate::{Nanos, Scenario};
use cluster::{Layout, NodeIndex, RequestId, Requester};
use event::EventQueue;
use pipes::Pipe;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Now, Rng};

/// Partitions of the layout: few, for a layout is computed in every run.
const PARTITIONS: u32 = 64;

/// From a command for a page to its reply, at most.
const PAGE_WITHIN: Duration = Duration::from_secs(10);

/// See the module.
pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) now: Nanos,
    pub(crate) queue: EventQueue,
    /// One for each node, and one for a copy of a node.
    pub(crate) hosts: Vec<Host>,
    /// A copy of a node answers at its address.
    copy_has_address: bool,
    pub(crate) network: Network,
    pub(crate) workload: Workload,
    pub(crate) nemesis: Nemesis,
    pub(crate) judge: Judge,
    pub(crate) trace: Trace,
    layout: Arc<Layout>,
    names: Vec<String>,
    /// Handshakes that wait for the acceptor's node.
    shaken: BTreeMap<Connection, Shaken>,
    /// In a run with narrow links: the directions of connections, by the end that they go towards.
    pipes: BTreeMap<(Connection, Side), Pipe>,
    rngs: Rngs,
}

/// A generator for each concern that has none of its own.
struct Rngs {
    disk: Rng,
    machines: Rng,
    lives: Rng,
}

impl World {
    /// The world of a scenario, with all hosts about to start.
    pub(crate) fn new(scenario: Scenario, trace: Trace) -> Self {
        // Another than the scenario was drawn from, or the first draws would repeat its.
        let mut rng = Rng::new(!scenario.seed);
        let names: Vec<String> = (0..scenario.nodes).map(|node| format!("http://node-{node}:8080")).collect();
        let layout =
            Arc::new(Layout::new(names.clone(), PARTITIONS).expect("names and partitions are right"));
        let mut world = Self {
            now: Nanos::ZERO,
            queue: EventQueue::default(),
            hosts: Vec::new(),
            copy_has_address: false,
            network: Network::new(scenario.delay_max, scenario.lossy_share, rng.fork()),
            workload: Workload::new(rng.fork()),
            nemesis: Nemesis::new(rng.fork()),
            judge: Judge::new(&scenario, Arc::clone(&layout)),
            trace,
            layout,
            names,
            shaken: BTreeMap::new(),
            pipes: BTreeMap::new(),
            rngs: Rngs { disk: rng.fork(), machines: rng.fork(), lives: rng.fork() },
            scenario,
        };
        for node in 0..world.scenario.nodes {
            let host = world.new_host(NodeIndex(node), &mut rng);
            world.hosts.push(host);
            let after = Duration::from_micros(rng.below(50_000));
            world.at(world.now + after, Event::Start(NodeIndex(node)));
        }
        let host_of_copies = world.new_host(NodeIndex(0), &mut rng);
        world.hosts.push(host_of_copies);
        world
    }

    /// All nodes.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeIndex> + use<> {
        (0..self.scenario.nodes).map(NodeIndex)
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn host(&mut self, node: NodeIndex) -> &mut Host {
        &mut self.hosts[node.as_usize()]
    }

    /// The process of a host in this life, if it lives.
    pub(crate) fn process(&mut self, place: Place) -> Option<&mut Process> {
        self.host(place.node).process.as_mut().filter(|process| process.life == place.life)
    }

    pub(crate) fn at(&mut self, at: Nanos, event: Event) {
        self.queue.put(at.max(self.now), event);
    }

    pub(crate) fn after(&mut self, delay: Duration, event: Event) {
        self.at(self.now + delay, event);
    }

    /// Lets the world go on until `end`, or until something does not hold.
    pub(crate) fn run_until(&mut self, end: Nanos) {
        while self.judge.violation.is_none() {
            let Some((at, event)) = self.queue.take_before(end) else {
                self.now = self.now.max(end);
                return;
            };
            self.now = at;
            self.happen(event);
        }
    }

    fn happen(&mut self, event: Event) {
        let node = event.process(&self.network);
        if let Some(node) = node
            && let Some(unseen) = &mut self.host(node).paused
        {
            unseen.push(event);
            return;
        }
        let node_part = node.map_or(u64::MAX, |node| u64::from(node.0));
        self.trace.event(self.now, &[event.kind(), node_part], || format!("{event:?}"));
        match event {
            Event::Wake(place) => self.wake(place),
            Event::Command(place, id, command) => self.command(place, id, command),
            Event::ReplyDue(place, id) => self.reply_due(place, id),
            Event::Stored(place, id, response) => self.stored(place, id, response),
            Event::Read(place, id, request, deadline) => self.read(place, id, &request, deadline),
            Event::View(place) => self.view(place),
            Event::Commit(place) => self.commit(place),
            Event::Durable(place, answers) => self.durable(place, answers),
            Event::Jobs(place, chain) => self.jobs(place, chain),
            Event::Scrub(place) => self.scrub(place),
            Event::Drained(place) => self.drained(place),
            Event::Start(node) => self.start(node),
            Event::DialArrives(connection) => self.dial_arrives(connection),
            Event::DialAnswered(connection, hello) => self.dial_answered(connection, hello),
            Event::DialFailed(connection, reason) => self.dial_failed(connection, reason),
            Event::EndLost(connection, side) => self.end_lost(connection, side),
            Event::Packet(connection, side, packet) => self.packet(connection, side, &packet),
            Event::Expire(place) => self.expire(place),
            Event::Client(chain) => self.client(chain),
            Event::ScanBegins => self.scan_begins(),
            Event::PullPage(place, id) => self.pull_page(place, id),
            Event::ScanLeft(place, id) => self.leave_scan(place, id),
            Event::Fault => self.strike(),
            Event::Mend(mend) => {
                self.mend(mend);
                self.pump_all();
            }
            Event::Bytes(connection, side, bytes) => self.bytes(connection, side, &bytes),
            Event::PipeHasRoom(connection, toward) => self.pipe_has_room(connection, toward),
            Event::Submit(place, group, deadline) => self.submit_late(place, group, deadline),
            Event::RoomDue(node, life) => self.room_due(node, life),
        }
    }

    /// Sets the clocks of a host, and reads them.
    pub(crate) fn show_clocks(&mut self, node: NodeIndex) -> Now {
        let at = self.now;
        let clock = &mut self.host(node).clock;
        let (now, is_wrong) = (clock.show(at), clock.is_wrong());
        self.judge.saw_wall(node, now.wall, is_wrong);
        now
    }

    fn reply_due(&mut self, place: Place, id: RequestId) {
        if self.process(place).is_none() {
            return;
        }
        let due = self.host(place.node).resumed + PAGE_WITHIN;
        match Scans::asked(id) {
            false => self.judge.reply_due(id, self.now),
            // What it waits for was waited for anew when the process went on.
            true if due > self.now => self.at(due, Event::ReplyDue(place, id)),
            true => self.judge.page_due(id, self.now),
        }
    }

    /// Ends the commands and scans that only the process of `node` could have answered.
    pub(crate) fn lose_commands(&mut self, node: NodeIndex) {
        for id in self.judge.scans.open_at(node) {
            self.judge.end_scan(id, self.now, ScanEnd::Lost);
        }
        for id in self.judge.under_way_at(node) {
            self.judge.end(id, self.now, Told::Nothing, None);
        }
    }

    /// The place of a machine of the process that lives on a host now.
    pub(crate) fn place(&self, node: NodeIndex, requester: Requester) -> Option<Place> {
        let process = self.hosts[node.as_usize()].process.as_ref()?;
        Some(Place { node, life: process.life, requester })
    }
}
