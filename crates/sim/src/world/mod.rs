//! The world of a run: hosts, network, clients and nemesis on one event queue.
//!
//! **Promise.** A run is a function of its seed: the same seed gives the same events at the same
//! times.
//!
//! **Mechanism.** One event queue in virtual time; idle time costs nothing. Each concern draws from
//! a generator of its own, forked from the seed. So an additional draw of one concern does not
//! change the others. The inputs and effects of state machines are in `step`, disks in `disk`,
//! connections in `links`, processes in `processes`. Hosts with their slots are in `members`, and
//! nodes that join in `joins`.

mod agreement;
mod copies;
mod disk;
pub(crate) mod event;
mod joins;
mod links;
pub(crate) mod members;
mod pipes;
mod processes;
mod resume;
mod step;

pub(crate) use event::WorldEvent;

use crate::history::{ClientOutcome, ScanEnd, ScanHistory};
use crate::host::Host;
use crate::host::handshake::PendingHandshake;
use crate::host::process::HostProcess;
use crate::judge::Judge;
use crate::nemesis::Nemesis;
use crate::network::{ConnectionId, ConnectionSide, Endpoint, Network};
use crate::trace::Trace;
use crate::workload::{ClientWorkload, DeadMember};
use crate::{Nanos, Scenario};
use cluster::{Layout, LayoutCommandId, LayoutRecord, NodeIndex, RequestId, Requester};
use event::EventQueue;
use joins::{JoinCommand, JoiningHost};
use pipes::Pipe;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use stdx::{NodeTag, Now, Rng};

/// Number of partitions of the layout. It is small, since a layout is computed in every run.
const PARTITIONS: u32 = 64;

/// Greatest latency of a page command.
const PAGE_WITHIN: Duration = Duration::from_secs(10);

/// State of a run.
pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) now: Nanos,
    pub(crate) queue: EventQueue,
    /// One host for each node that is or may become a member, and one for a copy of a node.
    pub(crate) hosts: Vec<Host>,
    /// Whether the copy of a node answers at the node's address.
    copy_has_address: bool,
    pub(crate) network: Network,
    pub(crate) workload: ClientWorkload,
    pub(crate) nemesis: Nemesis,
    pub(crate) judge: Judge,
    pub(crate) trace: Trace,
    layout: Arc<Layout>,
    names: Vec<String>,
    /// The newest record that a node has adopted, in a run whose members change.
    newest_record: Option<Arc<LayoutRecord>>,
    /// Nodes that join, by host.
    joins: BTreeMap<NodeIndex, JoiningHost>,
    /// Commands that make nodes members, each with the id of the node.
    join_commands: BTreeMap<(Endpoint, LayoutCommandId), (JoinCommand, NodeTag)>,
    /// Hosts that are cut off from all others.
    pub(crate) isolated: BTreeSet<NodeIndex>,
    /// The member that is off or cut off, and declared dead. It is one at a time.
    pub(crate) dead_member: Option<DeadMember>,
    /// Number of commands on the layout that were given.
    layout_commands: u64,
    /// Handshakes that wait for the acceptor's node.
    pending_handshakes: BTreeMap<ConnectionId, PendingHandshake>,
    /// Directions of connections, by the end that they go towards, in a run with narrow links.
    pipes: BTreeMap<(ConnectionId, ConnectionSide), Pipe>,
    rngs: Rngs,
}

/// Generators of the concerns that have none of their own.
struct Rngs {
    disk: Rng,
    machines: Rng,
    processes: Rng,
    agreement: Rng,
}

impl World {
    /// Creates the world of a scenario, with the starts of all hosts scheduled.
    pub(crate) fn new(scenario: Scenario, trace: Trace) -> Self {
        // The scenario was drawn from the seed itself, whose draws must not repeat here.
        let mut rng = Rng::new(!scenario.seed);
        // Not forked: the other generators keep their draws.
        let agreement = Rng::new(!scenario.seed ^ 0x6c61_796f_7574);
        let names: Vec<String> = (0..scenario.nodes).map(|node| members::url_of(NodeIndex(node))).collect();
        let layout =
            Arc::new(Layout::new(names.clone(), PARTITIONS).expect("names and partitions are valid"));
        let mut world = Self {
            now: Nanos::ZERO,
            queue: EventQueue::default(),
            hosts: Vec::new(),
            copy_has_address: false,
            network: Network::new(scenario.delay_max, scenario.lossy_share, rng.fork()),
            workload: ClientWorkload::new(rng.fork()),
            nemesis: Nemesis::new(rng.fork()),
            judge: Judge::new(&scenario, Arc::clone(&layout)),
            trace,
            layout,
            names,
            newest_record: None,
            joins: BTreeMap::new(),
            join_commands: BTreeMap::new(),
            isolated: BTreeSet::new(),
            dead_member: None,
            layout_commands: 0,
            pending_handshakes: BTreeMap::new(),
            pipes: BTreeMap::new(),
            rngs: Rngs { disk: rng.fork(), machines: rng.fork(), processes: rng.fork(), agreement },
            scenario,
        };
        for node in 0..world.scenario.nodes {
            let host = world.new_host(NodeIndex(node), &mut rng);
            world.hosts.push(host);
            let after = Duration::from_micros(rng.below(50_000));
            if world.scenario.dimensions.late_node() != Some(node) {
                world.at(world.now + after, WorldEvent::Start(NodeIndex(node)));
            }
        }
        if let Some(old) = world.scenario.dimensions.old_node() {
            world.hosts[usize::from(old)].is_old = true;
        }
        let host_of_copies = world.new_host(NodeIndex(0), &mut rng);
        for joiner in world.scenario.nodes..world.scenario.hosts() {
            let mut host = world.new_host(NodeIndex(joiner), &mut rng);
            host.joins = true;
            world.hosts.push(host);
        }
        world.hosts.push(host_of_copies);
        world
    }

    pub(crate) fn host(&mut self, node: NodeIndex) -> &mut Host {
        &mut self.hosts[node.as_usize()]
    }

    /// Process of this generation on a host, if it runs.
    pub(crate) fn process(&mut self, endpoint: Endpoint) -> Option<&mut HostProcess> {
        self.host(endpoint.node).process.as_mut().filter(|process| process.generation == endpoint.generation)
    }

    pub(crate) fn at(&mut self, at: Nanos, event: WorldEvent) {
        self.queue.put(at.max(self.now), event);
    }

    pub(crate) fn after(&mut self, delay: Duration, event: WorldEvent) {
        self.at(self.now + delay, event);
    }

    /// Executes events until `end`, or until the first violation.
    pub(crate) fn run_until(&mut self, end: Nanos) {
        while self.judge.violation.is_none() {
            let Some((at, event)) = self.queue.take_before(end) else {
                self.now = self.now.max(end);
                return;
            };
            self.now = at;
            self.dispatch(event);
        }
    }

    fn dispatch(&mut self, event: WorldEvent) {
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
            WorldEvent::Timer(endpoint) => self.fire_timer(endpoint),
            WorldEvent::Command(endpoint, id, command) => self.command(endpoint, id, command),
            WorldEvent::ReplyDue(endpoint, id) => self.reply_due(endpoint, id),
            WorldEvent::Stored(endpoint, id, response) => self.stored(endpoint, id, response),
            WorldEvent::Read(endpoint, id, request, deadline) => self.read(endpoint, id, &request, deadline),
            WorldEvent::View(endpoint) => self.view(endpoint),
            WorldEvent::Commit(endpoint) => self.commit(endpoint),
            WorldEvent::Durable(endpoint, answers) => self.durable(endpoint, answers),
            WorldEvent::Jobs(endpoint, chain) => self.jobs(endpoint, chain),
            WorldEvent::Scrub(endpoint) => self.scrub(endpoint),
            WorldEvent::CheckDrained(endpoint) => self.check_drained(endpoint),
            WorldEvent::Start(node) => self.start(node),
            WorldEvent::DialArrives(connection) => self.dial_arrives(connection),
            WorldEvent::DialAnswered(connection, hello) => self.dial_answered(connection, hello),
            WorldEvent::DialFailed(connection, reason) => self.dial_failed(connection, reason),
            WorldEvent::EndLost(connection, side) => self.end_lost(connection, side),
            WorldEvent::Packet(connection, side, packet) => self.packet(connection, side, &packet),
            WorldEvent::Expire(endpoint) => self.expire(endpoint),
            WorldEvent::NextCommand(chain) => self.submit_next(chain),
            WorldEvent::StartScan => self.start_scan(),
            WorldEvent::PullPage(endpoint, id) => self.pull_page(endpoint, id),
            WorldEvent::CloseScan(endpoint, id) => self.close_scan(endpoint, id),
            WorldEvent::Fault => self.inject_fault(),
            WorldEvent::FaultEnd(fault_end) => {
                self.end_fault(fault_end);
                self.pump_all();
            }
            WorldEvent::Bytes(connection, side, bytes) => self.bytes(connection, side, &bytes),
            WorldEvent::PipeHasRoom(connection, toward) => self.pipe_has_room(connection, toward),
            WorldEvent::Submit(endpoint, group, deadline) => self.submit_late(endpoint, group, deadline),
            WorldEvent::DiskSpaceDue(node, generation) => self.check_disk_space(node, generation),
            WorldEvent::PersistVoter(endpoint, revision, state) => {
                self.persist_voter(endpoint, revision, *state);
            }
            WorldEvent::VoterPersisted(endpoint, revision, is_durable) => {
                self.voter_persisted(endpoint, revision, is_durable);
            }
            WorldEvent::ChangeLayout => self.change_layout(),
            WorldEvent::CommandLayout => self.command_layout(),
            WorldEvent::BeginJoin(host) if self.nemesis.is_over() => {
                self.trace.note(self.now, || format!("{host:?} does not join any more"));
            }
            WorldEvent::BeginJoin(host) => self.begin_join_again(host),
            WorldEvent::Join(host) => self.try_to_join(host),
            WorldEvent::JoinAsked(host, attempt, member, node) => {
                self.join_asked(host, attempt, member, *node);
            }
            WorldEvent::JoinEnded(host, attempt, end) => self.end_join_attempt(host, attempt, *end),
            WorldEvent::Return(host) => self.return_host(host),
        }
    }

    /// Sets the clocks of a host to the present time. Returns their times.
    pub(crate) fn show_clocks(&mut self, node: NodeIndex) -> Now {
        let at = self.now;
        let clock = &mut self.host(node).clock;
        let (now, is_wrong) = (clock.show(at), clock.is_wrong());
        self.judge.observe_wall(node, now.wall, is_wrong);
        now
    }

    fn reply_due(&mut self, endpoint: Endpoint, id: RequestId) {
        if self.process(endpoint).is_none() {
            return;
        }
        let due = self.host(endpoint.node).resumed + PAGE_WITHIN;
        match ScanHistory::is_page_id(id) {
            false => self.judge.reply_due(id, self.now),
            // The page waits for requests that began anew when the process resumed.
            true if due > self.now => self.at(due, WorldEvent::ReplyDue(endpoint, id)),
            true => self.judge.page_due(id, self.now),
        }
    }

    /// Ends the commands and scans of a process that has ended.
    pub(crate) fn abort_commands(&mut self, node: NodeIndex) {
        for id in self.judge.scans.open_at(node) {
            self.judge.end_scan(id, self.now, ScanEnd::ProcessEnded);
        }
        for id in self.judge.in_flight_at(node) {
            self.judge.end(id, self.now, ClientOutcome::NoReply, None);
        }
    }

    /// Endpoint of a state machine of the process that runs on a host.
    pub(crate) fn endpoint(&self, node: NodeIndex, requester: Requester) -> Option<Endpoint> {
        let process = self.hosts[node.as_usize()].process.as_ref()?;
        Some(Endpoint { node, generation: process.generation, requester })
    }
}
