//! A simulated cluster: the shipped `Node` and [`Coordinator`] of each host over a store that is a
//! map, links in memory, and virtual time.
//!
//! **Promise.** The same calls have the same outcome: events are delivered in the order of their
//! time, and events of one time in the order in which they were caused.
//!
//! **Mechanism.** [`Machines`] selects the state machines of the hosts. With [`Machines::Both`] a
//! host is a whole process: its node publishes views to its coordinator and admits the links of
//! both. With [`Machines::Nodes`] a test writes to the stores as a coordinator would. With
//! [`Machines::Coordinators`] the views are set by the test, links open at once, and nothing is
//! delivered unless the test says so: `in_flight` has the functions that deliver packets in any
//! order.
//!
//! **Caveats.** A host has one coordinator. A write is durable when the store answers: a crash
//! before that loses it. A store answers in the order of its requests.

#![allow(dead_code, unused_imports, reason = "each test file uses its part of the world")]

mod commands;
mod effects;
mod faults;
mod host;
mod in_flight;
mod ingests;
mod layouts;
mod links;
mod log;
mod packet;
mod snapshots;
mod store;
mod views;

pub(crate) use host::Host;
pub(crate) use links::{LinkRule, Net};
pub(crate) use log::Occurrence;
pub(crate) use packet::{Machine, Packet, PacketKind};
pub(crate) use store::{DiskState, Store};

use bytes::Bytes;
use cluster::{
    Coordinator, CoordinatorLimits, DialFailure, FEATURE_LEVEL_NAMED, Key, Layout, LayoutRecord, LinkId,
    Message, NodeIndex, NodeLimits, Reply, RequestId, StoreId, SyncState, WaitTrace,
};
use links::Connection;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use stdx::{Cell, Hlc, Instant, Now, Rng, Version, WallTime};

pub(crate) const MILLISECOND: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// Time from the submission of a command to its reply, at most.
pub(crate) const TIMEOUT: Duration = SECOND;
/// Number of partitions of the layout.
pub(crate) const PARTITIONS: u32 = 64;

/// The state machines of each host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machines {
    Nodes,
    Coordinators,
    Both,
}

/// Hosts, the network between them, and the replies to clients.
pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) hosts: Vec<Host>,
    pub(crate) machines: Machines,
    /// The layout with which the hosts were made.
    pub(crate) layout: Arc<Layout>,
    /// The newest decided layout record; `None`: the first one.
    pub(crate) record: Option<LayoutRecord>,
    pub(crate) net: Net,
    pub(crate) limits: NodeLimits,
    pub(crate) coordinator_limits: CoordinatorLimits,
    /// The end of the versions that the previous generation of a starting process had reserved.
    pub(crate) clock_start: Hlc,
    pub(crate) hint_bytes_max: u64,
    /// Directed pairs of hosts between which messages and dials are lost.
    pub(crate) cut: BTreeSet<(usize, usize)>,
    /// Treatment of the messages of directed pairs of hosts.
    pub(crate) rules: BTreeMap<(usize, usize), LinkRule>,
    /// Failure of the dials of directed pairs of hosts.
    pub(crate) dial_failures: BTreeMap<(usize, usize), DialFailure>,
    /// Bandwidth of each link in bytes of values for a second. `None`: unlimited. Heartbeats
    /// overtake other messages.
    pub(crate) bytes_per_second: Option<u64>,
    /// All messages that were sent, with sender and receiver. Empty with
    /// [`Machines::Coordinators`], whose tests send millions.
    pub(crate) sent: Vec<(usize, usize, Message)>,
    /// Replies to commands.
    pub(crate) replies: BTreeMap<RequestId, Reply>,
    /// Wait trace and time of each reply.
    pub(crate) waits: BTreeMap<RequestId, (WaitTrace, Instant)>,
    /// Cells that coordinators sent to any store or link.
    pub(crate) issued: Vec<Cell>,
    /// The tombstones among them, by key.
    pub(crate) deleted: BTreeSet<(Key, Version)>,
    /// Cells that reached a node that is not their replica and held no older cell of the key.
    pub(crate) stray_cells: Vec<(usize, Key)>,
    /// Ids of store requests that a process used again, as a read does that starts again.
    pub(crate) repeated_store_ids: Vec<StoreId>,
    /// Occurrences for a script; `None`: they are not recorded.
    pub(crate) log: Option<Vec<Occurrence>>,
    pub(crate) rng: Rng,
    /// Host and time of each submitted command.
    submitted: Vec<(usize, Instant)>,
    /// Time until which each link is busy.
    busy_until: BTreeMap<(usize, usize), Instant>,
    packets: BTreeMap<(Instant, u64), Packet>,
    packet_count: u64,
    connections: BTreeMap<LinkId, Connection>,
    last_link: u64,
    /// Ids of store requests that each state machine of each process has used.
    store_ids: BTreeSet<(usize, u64, Machine, StoreId)>,
}

impl World {
    /// Creates hosts of nodes, with empty stores, that are not started.
    pub(crate) fn new(hosts: usize, seed: u64) -> Self {
        Self::with_machines(Machines::Nodes, hosts, Net::of_a_rack(), seed)
    }

    /// Creates hosts of nodes that were started together and are settled.
    pub(crate) fn started(hosts: usize, seed: u64) -> Self {
        let mut world = Self::new(hosts, seed);
        world.start_all();
        world
    }

    /// Creates hosts of coordinators, which are linked and see each other as up and read-eligible.
    pub(crate) fn of_coordinators(hosts: u8, limits: CoordinatorLimits, seed: u64) -> Self {
        let hosts = usize::from(hosts);
        let mut world = Self::with_machines(Machines::Coordinators, hosts, Net::instant(), seed);
        world.coordinator_limits = limits;
        world.hint_bytes_max = 1 << 40;
        (0..hosts).for_each(|host| world.start(host));
        (0..hosts).for_each(|host| world.publish(host));
        world
    }

    /// Creates hosts of whole processes, with empty stores, that are not started.
    pub(crate) fn of_processes(hosts: usize, seed: u64) -> Self {
        Self::with_machines(Machines::Both, hosts, Net::of_a_rack(), seed)
    }

    fn with_machines(machines: Machines, hosts: usize, net: Net, seed: u64) -> Self {
        let names = (0..hosts).map(|host| format!("http://node{host:02}:8080")).collect();
        let layout = Arc::new(Layout::new(names, PARTITIONS).expect("a small cluster"));
        Self {
            now: Instant::ZERO + SECOND,
            hosts: (0..hosts).map(|host| Host::new(&layout, host)).collect(),
            machines,
            layout,
            record: None,
            net,
            limits: NodeLimits {
                default_from: hosts.min(3) as u8,
                // A test of plans sets the level that has them.
                feature_level_max: FEATURE_LEVEL_NAMED,
                ..NodeLimits::default()
            },
            coordinator_limits: CoordinatorLimits { reads_for_one_of_all: 0, ..CoordinatorLimits::default() },
            clock_start: Hlc::ZERO,
            hint_bytes_max: 1 << 20,
            cut: BTreeSet::new(),
            rules: BTreeMap::new(),
            dial_failures: BTreeMap::new(),
            bytes_per_second: None,
            sent: Vec::new(),
            replies: BTreeMap::new(),
            waits: BTreeMap::new(),
            issued: Vec::new(),
            deleted: BTreeSet::new(),
            stray_cells: Vec::new(),
            repeated_store_ids: Vec::new(),
            log: None,
            rng: Rng::new(seed),
            submitted: Vec::new(),
            busy_until: BTreeMap::new(),
            packets: BTreeMap::new(),
            packet_count: 0,
            connections: BTreeMap::new(),
            last_link: 0,
            store_ids: BTreeSet::new(),
        }
    }

    /// Starts all hosts and waits until they are settled.
    pub(crate) fn start_all(&mut self) {
        (0..self.hosts.len()).for_each(|host| self.start(host));
        self.run(2 * SECOND);
        for host in 0..self.hosts.len() {
            assert_eq!(self.sync_state(host), SyncState::Settled);
            assert!(self.node(host).is_ready());
        }
    }

    /// Advances the time.
    pub(crate) fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.step_before(end) {}
        self.now = end;
    }

    /// Advances the time until `is_so` holds. Panics if that takes longer than `at_most`.
    pub(crate) fn run_until(&mut self, at_most: Duration, what: &str, is_so: impl FnMut(&Self) -> bool) {
        assert!(self.try_run_until(at_most, is_so), "after {at_most:?} it is not so that {what}");
    }

    /// Advances the time until `is_so` holds, for no longer than `at_most`, and returns whether it
    /// holds.
    pub(crate) fn try_run_until(&mut self, at_most: Duration, mut is_so: impl FnMut(&Self) -> bool) -> bool {
        let end = self.now + at_most;
        while !is_so(self) {
            if !self.step_before(end) {
                return false;
            }
        }
        true
    }

    /// Advances the time to the next event, unless that is later than `end`.
    fn step_before(&mut self, end: Instant) -> bool {
        let Some(next) = self.next_instant().filter(|&next| next <= end) else { return false };
        self.now = self.now.max(next);
        self.step();
        true
    }

    fn next_instant(&self) -> Option<Instant> {
        let timers = self.hosts.iter().filter_map(Host::poll_timeout);
        timers.chain(self.packets.keys().map(|key| key.0).take(1)).min()
    }

    fn step(&mut self) {
        while let Some((&key, _)) = self.packets.first_key_value().filter(|(key, _)| key.0 <= self.now) {
            let packet = self.packets.remove(&key).expect("it was just seen");
            self.handle(packet, None);
        }
        for host in 0..self.hosts.len() {
            self.handle_timeouts(host);
        }
    }

    /// Wall clock of a host, and the time of the world.
    pub(crate) fn now_at(&self, host: usize) -> Now {
        let offset = self.hosts.get(host).map_or(0, |host| host.wall_offset_micros);
        let micros =
            WallTime::EPOCH_2020.micros_since_unix_epoch() + 1_000_000_000_000 + self.now.as_nanos() / 1_000;
        Now {
            mono: self.now,
            wall: WallTime::from_micros_since_unix_epoch(micros.saturating_add_signed(offset)),
        }
    }

    /// The coordinator of a host.
    pub(crate) fn coordinator_mut(&mut self, host: usize) -> (Now, &mut Coordinator) {
        let now = self.now_at(host);
        (now, self.hosts[host].coordinator.as_mut().expect("the host runs"))
    }

    /// The first of the names `prefix0`, `prefix1`, ... whose first `from` replicas satisfy
    /// `wanted`.
    pub(crate) fn name_where(&self, prefix: &str, from: u8, wanted: impl Fn(&[NodeIndex]) -> bool) -> String {
        (0..10_000)
            .map(|i| format!("{prefix}{i}"))
            .find(|name| wanted(self.layout.replicas(&key(name), from)))
            .expect("some key is placed like this")
    }
}

/// The key with this name.
pub(crate) fn key(name: &str) -> Key {
    Key::new(Bytes::copy_from_slice(name.as_bytes())).expect("a short name")
}
