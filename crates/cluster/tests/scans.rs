//! Messages, answers of stores and time reach the coordinators of a cluster in any order; messages
//! are lost or duplicated, and nodes restart. The tests check these claims of scans:
//!
//! * A scan returns each key once and in order. None is older than a write that an overlapping
//!   quorum acknowledged before the scan began, and only deleted keys are missing.
//! * A scan of a majority shows the entries of each earlier one, or something newer.
//! * Each command has exactly one reply, and a finished scan leaves no snapshot or operation.

mod world;

use bytes::Bytes;
use cluster::{
    Command, CommandFailure, CoordinatorLimits, Cut, Key, KeyRange, Lifetime, Page, PeerState, Quorum, Reply,
    RequestId, Scan, ScanId, ScanScope, StoreFault,
};
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::{Rng, Version};
use world::{TIMEOUT, World, key};

const SEEDS: u64 = 3_000;
const STEPS: u32 = 500;
const KEYS: u64 = 14;

/// A command that waits for its reply.
enum Asked {
    Write { key: Key, quorum: Quorum },
    Page(ScanId),
}

/// An open scan.
struct Reading {
    node: usize,
    /// Whether the scan is of this node alone.
    is_local: bool,
    range: KeyRange,
    limit: Option<u64>,
    /// Keys that the scan must return, with the least version of each.
    floors: BTreeMap<Key, Version>,
    seen: Vec<(Key, Version)>,
    waits: bool,
}

struct Run {
    seed: u64,
    rng: Rng,
    cluster: World,
    asked: BTreeMap<RequestId, Asked>,
    scans: BTreeMap<ScanId, Reading>,
    quorum: Quorum,
    /// Acknowledged writes, and entries shown by scans of a majority.
    acknowledged: Vec<(Key, Version, Quorum)>,
    /// The key of each value.
    values: BTreeMap<Bytes, Key>,
    begun: u64,
    /// Whether nothing is lost, slow or broken.
    is_calm: bool,
    loss: f64,
    ended: usize,
}

#[test]
fn scans_are_complete_in_order_and_leave_nothing_behind() {
    let ended: usize = (0..SEEDS).map(|seed| Run::new(seed).run()).sum();
    assert!(ended > SEEDS as usize, "only {ended} scans came to their end");
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let nodes = 1 + rng.below(12).min(4) as u8;
        let limits = CoordinatorLimits {
            operations_max: if rng.chance(0.3) { 4 } else { 100 },
            request_timeout: TIMEOUT,
            peer_requests_max: if rng.chance(0.2) { 3 } else { 1_000 },
            reads_for_one_of_all: rng.below(4) as u32,
            ..CoordinatorLimits::default()
        };
        let cluster = World::of_coordinators(nodes, limits, seed);
        let quorum = any_quorum(&cluster, &mut rng);
        let is_calm = rng.chance(0.3);
        let loss = if is_calm || rng.chance(0.5) { 0.0 } else { rng.unit() * 0.2 };
        Self {
            seed,
            rng,
            cluster,
            asked: BTreeMap::new(),
            scans: BTreeMap::new(),
            quorum,
            acknowledged: Vec::new(),
            values: BTreeMap::new(),
            begun: 0,
            is_calm,
            loss,
            ended: 0,
        }
    }

    fn run(mut self) -> usize {
        for _ in 0..STEPS {
            self.step();
            self.check();
        }
        self.settle();
        assert!(self.asked.is_empty(), "{} have no reply, seed {}", self.asked.len(), self.seed);
        for (id, reading) in std::mem::take(&mut self.scans) {
            self.cluster.close_scan(reading.node, id);
        }
        self.settle();
        for host in &self.cluster.hosts {
            assert_eq!(host.coordinator.as_ref().expect("it runs").operations(), 0, "seed {}", self.seed);
            assert!(
                host.coordinator
                    .as_ref()
                    .expect("it runs")
                    .poll_timeout()
                    .is_none_or(|at| at > self.cluster.now)
            );
            assert!(
                !self.is_calm || host.store.snapshots.len() == 0,
                "a snapshot was left, seed {}",
                self.seed
            );
        }
        self.ended
    }

    /// Handles all remaining packets and timeouts.
    fn settle(&mut self) {
        for _ in 0..6 {
            self.cluster.settle();
            self.check();
            self.cluster.pass(TIMEOUT);
        }
        self.check();
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..10 => self.submit_write(),
            10..13 => self.submit_scan(),
            13..22 => self.submit_next_page(),
            22 if self.rng.chance(0.3) => self.close(),
            22 => {}
            23..86 => self.deliver(),
            86 if self.rng.chance(0.2) => self.cluster.settle(),
            86 => {}
            _ if self.is_calm => self.deliver(),
            87..90 => {
                if let Some(index) = self.cluster.any_in_flight(&mut self.rng) {
                    self.cluster.deliver_copy(index);
                }
            }
            90..96 => {
                let millis = if self.rng.chance(0.05) { 300 } else { self.rng.below(30) };
                self.cluster.pass(Duration::from_millis(millis));
            }
            96 => self.cluster.cut_any(&mut self.rng),
            97 => self.change_view(),
            98 if self.rng.chance(0.3) => self.restart(),
            _ => {}
        }
    }

    fn node(&mut self) -> usize {
        self.cluster.any_host(&mut self.rng)
    }

    fn any_key(&mut self) -> Key {
        let index = self.rng.below(KEYS);
        key(&format!("{index:x}"))
    }

    fn submit_write(&mut self) {
        let (node, key) = (self.node(), self.any_key());
        let quorum =
            if self.rng.chance(0.7) { self.quorum } else { any_quorum(&self.cluster, &mut self.rng) };
        let command = if self.rng.chance(0.3) {
            Command::Delete { key: key.clone(), quorum }
        } else {
            let value = Bytes::from(self.values.len().to_string());
            self.values.insert(value.clone(), key.clone());
            Command::Put { key: key.clone(), value, lifetime: Lifetime::Forever, quorum }
        };
        let id = self.cluster.submit(node, command);
        self.asked.insert(id, Asked::Write { key, quorum });
    }

    fn submit_scan(&mut self) {
        if self.scans.len() > 3 {
            return;
        }
        let node = self.node();
        let id = ScanId(self.begun);
        self.begun += 1;
        let range = KeyRange {
            from: self.rng.chance(0.7).then(|| Cut::Before(self.any_key())),
            to: self.rng.chance(0.3).then(|| Cut::Before(self.any_key())),
        };
        let limit = self.rng.chance(0.2).then(|| self.rng.below(8));
        let (scope, floors) = if self.rng.chance(0.2) {
            (ScanScope::Node, self.held(node, &range))
        } else {
            (ScanScope::Cluster(self.quorum), self.acknowledged_in(&range))
        };
        let scan = Scan { range: range.clone(), limit, scope };
        let is_local = scope == ScanScope::Node;
        self.scans
            .insert(id, Reading { node, is_local, range, limit, floors, seen: Vec::new(), waits: true });
        let request = self.cluster.submit(node, Command::Scan { id, scan });
        self.asked.insert(request, Asked::Page(id));
    }

    /// The keys and versions that a node holds.
    fn held(&self, node: usize, range: &KeyRange) -> BTreeMap<Key, Version> {
        let cells = self.cluster.hosts[node].store.cells.iter();
        let held = cells.filter(|(key, _)| range.contains(key.as_bytes()));
        held.map(|(key, cell)| (key.clone(), cell.meta.version)).collect()
    }

    /// The writes that were acknowledged with a quorum that overlaps with that of scans.
    fn acknowledged_in(&self, range: &KeyRange) -> BTreeMap<Key, Version> {
        let mut floors = BTreeMap::new();
        for (key, version, quorum) in &self.acknowledged {
            let overlaps = self.quorum.ack() + quorum.ack() > self.quorum.from().max(quorum.from());
            if overlaps && range.contains(key.as_bytes()) {
                let floor = floors.entry(key.clone()).or_insert(*version);
                *floor = (*floor).max(*version);
            }
        }
        floors
    }

    fn any_scan(&mut self) -> Option<ScanId> {
        let len = self.scans.len() as u64;
        (len > 0).then(|| *self.scans.keys().nth(self.rng.below(len) as usize).expect("one of them"))
    }

    fn submit_next_page(&mut self) {
        let Some(id) = self.any_scan() else {
            return;
        };
        let reading = self.scans.get_mut(&id).expect("it is open");
        if !reading.waits {
            reading.waits = true;
            let request = self.cluster.submit(reading.node, Command::NextPage { id });
            self.asked.insert(request, Asked::Page(id));
        }
    }

    fn close(&mut self) {
        if let Some(id) = self.any_scan() {
            self.cluster.close_scan(self.scans[&id].node, id);
            self.check();
            self.scans.remove(&id);
        }
    }

    fn deliver(&mut self) {
        let Some(index) = self.cluster.any_in_flight(&mut self.rng) else {
            return;
        };
        let fault = (!self.is_calm && self.rng.chance(0.02)).then(|| match self.rng.below(3) {
            0 => StoreFault::Overloaded { retry_after: TIMEOUT },
            1 => StoreFault::Corrupt { detail: String::new() },
            _ => StoreFault::Io { detail: String::new() },
        });
        if self.rng.chance(self.loss) {
            self.cluster.lose(index);
        } else {
            self.cluster.deliver(index, fault);
        }
    }

    fn change_view(&mut self) {
        let (node, peer) = (self.node(), self.node());
        let view = &mut self.cluster.hosts[node].view.peers[peer];
        if node != peer {
            view.state =
                [PeerState::Up, PeerState::Suspected, PeerState::Unreachable][self.rng.below(3) as usize];
        }
        view.read_eligible = self.rng.chance(0.8);
        self.cluster.publish(node);
    }

    /// Restarts a process; its clients stop waiting.
    fn restart(&mut self) {
        let node = self.node();
        self.cluster.submitted_at(node).for_each(|id| drop(self.asked.remove(&id)));
        self.scans.retain(|_, reading| reading.node != node);
        self.cluster.restart(node);
    }

    fn check(&mut self) {
        for (id, reply) in std::mem::take(&mut self.cluster.replies) {
            match (self.asked.remove(&id).expect("a reply to a command that waits for one"), reply) {
                (Asked::Write { key, quorum }, Reply::Written { version, .. }) => {
                    self.acknowledged.push((key, version, quorum));
                }
                (Asked::Write { .. }, Reply::Failed(_)) => {}
                (Asked::Page(id), Reply::Page { page, is_last }) => self.take_page(id, &page, is_last),
                (Asked::Page(id), Reply::Failed(failure)) => {
                    assert!(!matches!(
                        failure,
                        CommandFailure::ExpiryTooLate { .. } | CommandFailure::DiskFull { .. }
                    ));
                    self.scans.remove(&id).expect("it was open");
                }
                (_, reply) => panic!("{reply:?} does not fit, seed {}", self.seed),
            }
        }
    }

    fn take_page(&mut self, id: ScanId, page: &Page, is_last: bool) {
        let seed = self.seed;
        assert!(is_last || !page.is_empty(), "an empty page that is not the last, seed {seed}");
        let reading = self.scans.get_mut(&id).expect("it is open");
        reading.waits = false;
        for at in 0..page.len() {
            let (key, cell) = (page.key(at), page.cell(at));
            assert!(reading.range.contains(key.as_bytes()));
            assert!(reading.seen.last().is_none_or(|(last, _)| *last < key), "out of order, seed {seed}");
            assert_eq!(self.values.get(&cell.value), Some(&key), "never written, seed {seed}");
            assert!(self.cluster.issued.contains(&cell), "never written so, seed {seed}");
            reading.seen.push((key.clone(), cell.meta.version));
            // This number of the replicas that the next scan reads hold the cell.
            let holders = self.quorum.ack().min(cell.meta.from);
            if !reading.is_local && self.quorum.ack() + holders > self.quorum.from() {
                self.acknowledged.push((key, cell.meta.version, self.quorum));
            }
        }
        let is_short = reading.limit.is_some_and(|limit| reading.seen.len() as u64 == limit);
        assert!(reading.limit.is_none_or(|limit| reading.seen.len() as u64 <= limit));
        assert!(!is_short || is_last, "a limit that is reached ends a scan, seed {seed}");
        let end = reading.seen.last().map(|(key, _)| key.clone());
        for (key, floor) in &reading.floors {
            let is_passed = (is_last && !is_short) || end.as_ref().is_some_and(|end| key <= end);
            if !is_passed {
                continue;
            }
            let seen = reading.seen.iter().find(|(seen, _)| seen == key).map(|(_, version)| *version);
            let deleted = &self.cluster.deleted;
            match seen {
                Some(version) => assert!(version >= *floor, "an older {key:?}, seed {seed}"),
                None => assert!(
                    deleted.range((key.clone(), *floor)..).next().is_some_and(|(deleted, _)| deleted == key),
                    "{key:?} is missing, seed {seed}"
                ),
            }
        }
        if is_last {
            self.scans.remove(&id);
            self.ended += 1;
        }
    }
}

fn any_quorum(cluster: &World, rng: &mut Rng) -> Quorum {
    let nodes = u64::from(cluster.layout.len());
    let from = 1 + rng.below(2 * nodes).min(nodes - 1) as u8;
    let ack = if rng.chance(0.6) { from / 2 + 1 } else { 1 + rng.below(u64::from(from)) as u8 };
    cluster.quorum(ack, from)
}
