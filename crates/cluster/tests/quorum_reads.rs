//! Messages, answers of stores and time reach the coordinators of a cluster in any order; messages
//! are lost or duplicated, and nodes restart. The tests check these claims:
//!
//! * A read returns each write that a quorum overlapping with its own acknowledged before it, or
//!   something newer.
//! * A read of a majority returns the result of each earlier one, or something newer.
//! * Each command has exactly one reply.
//! * Each copy is on a replica of its key.

mod world;

use bytes::Bytes;
use cluster::{
    Command, CommandFailure, CoordinatorLimits, Lifetime, NodeIndex, PeerState, Quorum, Reply, RequestId,
    Shortfall, StoreFault,
};
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::{CellKind, Rng, Version};
use world::{Packet, TIMEOUT, World, key};

const SEEDS: u64 = 6_000;
const STEPS: u32 = 400;
const KEYS: [&str; 2] = ["a", "b"];

/// The state for checking a command when its reply comes.
struct Asked {
    key: usize,
    /// The version known at the start of a read, which returns it or something newer. `None` for
    /// writes.
    floor: Option<Version>,
    value: Option<Bytes>,
}

struct Run {
    seed: u64,
    rng: Rng,
    cluster: World,
    asked: BTreeMap<RequestId, Asked>,
    /// By key: the greatest version that was acknowledged to a write or returned by a read.
    known: [Version; KEYS.len()],
    read: Quorum,
    write: Quorum,
    puts: u32,
    /// Fraction of messages that are lost.
    loss: f64,
    /// Fraction of steps at which a store does other work before a requested write.
    slowness: f64,
}

#[test]
fn quorum_reads_return_acknowledged_writes_and_never_go_back() {
    (0..SEEDS).for_each(|seed| Run::new(seed).run());
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let nodes = 1 + rng.below(12).min(4) as u8;
        let limits = CoordinatorLimits {
            operations_max: 8,
            replied_max: if rng.chance(0.5) { 2 } else { 100 },
            request_timeout: TIMEOUT,
            peer_requests_max: if rng.chance(0.2) { 3 } else { 1_000 },
            reads_for_one_of_all: rng.below(4) as u32,
            ..CoordinatorLimits::default()
        };
        let cluster = World::of_coordinators(nodes, limits, seed);
        let from = 1 + rng.below(2 * u64::from(nodes)).min(u64::from(nodes) - 1) as u8;
        let ack_write = 1 + rng.below(u64::from(from)) as u8;
        let least = from + 1 - ack_write;
        let ack_read = least + rng.below(u64::from(from + 1 - least)) as u8;
        let (read, write) = (cluster.quorum(ack_read, from), cluster.quorum(ack_write, from));
        let known = [Version::MIN; KEYS.len()];
        let loss = if rng.chance(0.5) { 0.0 } else { rng.unit() * 0.4 };
        let slowness = if rng.chance(0.3) { 0.0 } else { 0.7 + rng.unit() * 0.3 };
        Self { seed, rng, cluster, asked: BTreeMap::new(), known, read, write, puts: 0, loss, slowness }
    }

    fn run(mut self) {
        for _ in 0..STEPS {
            self.step();
            self.check();
        }
        self.cluster.pass(TIMEOUT);
        self.check();
        assert!(self.asked.is_empty(), "{} have no reply, seed {}", self.asked.len(), self.seed);
        self.settle();
        for host in &self.cluster.hosts {
            assert_eq!(host.coordinator.as_ref().expect("it runs").operations(), 0, "seed {}", self.seed);
        }
    }

    /// Handles all remaining packets and timeouts.
    fn settle(&mut self) {
        for _ in 0..4 {
            self.cluster.settle();
            self.cluster.pass(TIMEOUT);
        }
        self.check();
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..9 => self.submit_read(),
            9..13 => self.submit_write(),
            13..79 => self.deliver(),
            79..83 => self.duplicate(),
            83..93 => {
                let millis = if self.rng.chance(0.02) { 1_100 } else { self.rng.below(60) };
                self.cluster.pass(Duration::from_millis(millis));
            }
            93..96 => self.cluster.cut_any(&mut self.rng),
            96..98 => self.change_view(),
            98 if self.rng.chance(0.2) => self.settle(),
            98 => {}
            _ => self.restart(),
        }
    }

    fn node(&mut self) -> usize {
        self.cluster.any_host(&mut self.rng)
    }

    fn submit_read(&mut self) {
        let (node, key_index) = (self.node(), self.rng.below(KEYS.len() as u64) as usize);
        let command = Command::Get { key: key(KEYS[key_index]), quorum: self.read };
        let floor = Some(self.known[key_index]);
        let id = self.cluster.submit(node, command);
        self.asked.insert(id, Asked { key: key_index, floor, value: None });
    }

    fn submit_write(&mut self) {
        let (node, key_index) = (self.node(), self.rng.below(KEYS.len() as u64) as usize);
        let (key, quorum) = (key(KEYS[key_index]), self.write);
        self.puts += 1;
        let value = Bytes::from(self.puts.to_string());
        let (command, value) = if self.rng.chance(0.2) {
            (Command::Delete { key, quorum }, None)
        } else {
            (Command::Put { key, value: value.clone(), lifetime: Lifetime::Forever, quorum }, Some(value))
        };
        let id = self.cluster.submit(node, command);
        self.asked.insert(id, Asked { key: key_index, floor: None, value });
    }

    fn deliver(&mut self) {
        let fault = self.rng.chance(0.03).then(|| match self.rng.below(4) {
            0 => StoreFault::Full,
            1 => StoreFault::Overloaded { retry_after: TIMEOUT },
            2 => StoreFault::Corrupt { detail: String::new() },
            _ => StoreFault::Io { detail: String::new() },
        });
        let Some(index) = self.cluster.any_in_flight(&mut self.rng) else {
            return;
        };
        if self.rng.chance(self.loss) {
            self.cluster.lose(index);
        } else if !(self.cluster.in_flight().nth(index).is_some_and(Packet::is_write_at_store)
            && self.rng.chance(self.slowness))
        {
            self.cluster.deliver(index, fault);
        }
    }

    fn duplicate(&mut self) {
        if let Some(index) = self.cluster.any_in_flight(&mut self.rng) {
            self.cluster.deliver_copy(index);
        }
    }

    fn change_view(&mut self) {
        let (node, peer) = (self.node(), self.node());
        let view = &mut self.cluster.hosts[node].view.peers[peer];
        if node != peer {
            view.state =
                [PeerState::Up, PeerState::Suspected, PeerState::Unreachable][self.rng.below(3) as usize];
            view.disk_full = self.rng.chance(0.1);
            view.draining = self.rng.chance(0.1);
        }
        view.read_eligible = self.rng.chance(0.9);
        self.cluster.publish(node);
    }

    /// Restarts a process; its clients stop waiting.
    fn restart(&mut self) {
        let node = self.node();
        self.cluster.submitted_at(node).for_each(|id| drop(self.asked.remove(&id)));
        self.cluster.restart(node);
    }

    fn check(&mut self) {
        for (id, reply) in std::mem::take(&mut self.cluster.replies) {
            let asked = self.asked.remove(&id).expect("a reply to a command that waits for one");
            self.check_reply(&asked, &reply);
        }
        let from = self.read.from();
        for (node, host) in self.cluster.hosts.iter().enumerate() {
            for key in host.store.cells.keys() {
                let node = NodeIndex(node as u8);
                assert!(
                    self.cluster.layout.is_replica(node, key, from),
                    "a copy too many, seed {}",
                    self.seed
                );
            }
        }
    }

    fn check_reply(&mut self, asked: &Asked, reply: &Reply) {
        let seed = self.seed;
        match (asked.floor, reply) {
            (Some(floor), Reply::Found { cell, acks }) => {
                let version = cell.meta.version;
                assert!(acks.got >= self.read.ack());
                assert!(version >= floor, "read {version:?} after {floor:?}, seed {seed}");
                if 2 * self.read.ack() > self.read.from() {
                    self.known[asked.key] = self.known[asked.key].max(version);
                }
            }
            (Some(floor), Reply::Missing { acks }) => {
                assert!(acks.got >= self.read.ack());
                let is_delete = |version: Version| {
                    let issued = &self.cluster.issued;
                    issued
                        .iter()
                        .any(|cell| cell.meta.kind == CellKind::Tombstone && cell.meta.version >= version)
                };
                assert!(
                    floor == Version::MIN || is_delete(floor),
                    "nothing read after {floor:?}, seed {seed}"
                );
            }
            (None, Reply::Written { version, acks, .. }) => {
                assert!(acks.got >= self.write.ack());
                self.known[asked.key] = self.known[asked.key].max(*version);
            }
            (floor, Reply::Failed(failure)) => self.check_failure(floor.is_some(), asked, failure),
            (_, reply) => panic!("{reply:?} does not fit, seed {seed}"),
        }
    }

    fn check_failure(&self, is_read: bool, asked: &Asked, failure: &CommandFailure) {
        let is_surely_not_stored = match failure {
            CommandFailure::NotEnoughReplicas { shortfall, acks, ack } => {
                use Shortfall::{
                    MaybeStored, NoVersion, NotFetched, NotSpread, Refused, Unanswered, Unreachable,
                };
                let is_its_own = match shortfall {
                    Unreachable => acks.got == 0 || !is_read,
                    NoVersion | MaybeStored => !is_read && acks.got < *ack,
                    Unanswered => is_read && acks.got < *ack,
                    NotSpread | NotFetched => is_read,
                    Refused => false,
                };
                assert!(is_its_own, "{failure:?}, seed {}", self.seed);
                *shortfall != MaybeStored
            }
            CommandFailure::Overloaded { .. } => true,
            _ => false,
        };
        if is_surely_not_stored && let Some(value) = &asked.value {
            let is_held = self.cluster.hosts.iter().flat_map(|host| host.store.cells.values());
            let is_held = is_held.into_iter().any(|cell| cell.value == *value);
            assert!(!is_held, "{failure:?} but stored, seed {}", self.seed);
        }
    }
}
