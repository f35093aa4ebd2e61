//! Proposers and acceptors over many epochs, with lost, delayed and repeated messages, restarts,
//! lost disks and changing voters, in virtual time.

use crate::record::NamedRecord;
use cluster::{
    AcceptorState, ChainNode, ChainOutcome, ChainProposer, ChainRecord as _, ChainRequest, ChainResponse,
    EpochAcceptor, Incarnation, LayoutEpoch, NodeIndex, ProposerPace,
};
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::{Instant, NodeTag, Rng};

const NODES: u64 = 5;
const SEEDS: u64 = 300;
/// Time in which a record is decided once messages arrive again.
const HEALED_WITHIN: Duration = Duration::from_secs(2);

struct Host {
    node: ChainNode,
    incarnation: u64,
    /// The durable state. Other state is lost when the process ends.
    acceptor: EpochAcceptor<NamedRecord>,
    proposer: Option<ChainProposer<NamedRecord>>,
    is_down_until: Instant,
}

#[derive(Clone)]
enum Packet {
    Request(ChainRequest<NamedRecord>),
    Response(ChainResponse<NamedRecord>),
}

struct Cluster {
    now: Instant,
    rng: Rng,
    hosts: Vec<Host>,
    /// In order of arrival: sender, receiver, incarnation of the receiver.
    on_the_way: BTreeMap<(Instant, u64), (usize, usize, u64, Packet)>,
    packets: u64,
    is_faulty: bool,
    next_tag: u64,
    next_name: u64,
    /// The decided records by epoch, as any proposer or acceptor saw them.
    decided: BTreeMap<LayoutEpoch, NamedRecord>,
    /// The id of a node that lost its disk, until no record can name it as a voter any more.
    lost: Option<NodeTag>,
    /// Time of the last moment at which a node held or proposed a record that names it.
    named_at: Instant,
}

impl Cluster {
    fn new(seed: u64) -> Self {
        let node = |slot: u64| ChainNode { slot: NodeIndex(slot as u8), id: NodeTag(slot + 1) };
        let first = NamedRecord::first(&[0, 1, 2].map(node));
        let host = |slot| Host {
            node: node(slot),
            incarnation: 0,
            acceptor: EpochAcceptor::new(node(slot), AcceptorState::of(first.clone())),
            proposer: None,
            is_down_until: Instant::ZERO,
        };
        Self {
            now: Instant::ZERO,
            rng: Rng::new(seed),
            hosts: (0..NODES).map(host).collect(),
            on_the_way: BTreeMap::new(),
            packets: 0,
            is_faulty: true,
            next_tag: NODES + 1,
            next_name: 1,
            decided: BTreeMap::from([(LayoutEpoch(1), first)]),
            lost: None,
            named_at: Instant::ZERO,
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = self.now + Duration::from_millis(1);
            while let Some(packet) = self.on_the_way.first_entry().filter(|it| it.key().0 <= self.now) {
                let (from, to, incarnation, packet) = packet.remove();
                if self.hosts[to].incarnation == incarnation && self.hosts[to].is_down_until <= self.now {
                    self.deliver(from, to, packet);
                }
            }
            if self.is_faulty {
                self.break_something();
            }
            for host in 0..self.hosts.len() {
                self.step(host);
            }
        }
    }

    /// Kills a process, or destroys the disk of a voter whose successor is then to be voted in.
    fn break_something(&mut self) {
        self.forget_lost();
        let host = self.rng.below(self.hosts.len() as u64) as usize;
        if self.rng.chance(0.002) {
            self.restart(host);
        }
        if self.rng.chance(0.001) && self.lost.is_none() {
            let tag = NodeTag(self.next_tag);
            self.next_tag += 1;
            self.lost = Some(self.hosts[host].node.id);
            self.named_at = self.now;
            // The new process has heard of a decided record from a peer, as a joining node would.
            let heard = self.hosts[(host + 1) % self.hosts.len()].acceptor.state().decided.clone();
            self.hosts[host].node.id = tag;
            self.hosts[host].acceptor = EpochAcceptor::new(self.hosts[host].node, AcceptorState::of(heard));
            self.restart(host);
        }
    }

    fn restart(&mut self, host: usize) {
        self.hosts[host].incarnation += 1;
        self.hosts[host].proposer = None;
        self.hosts[host].is_down_until = self.now + Duration::from_millis(self.rng.below(500));
    }

    fn step(&mut self, host: usize) {
        if self.hosts[host].is_down_until > self.now {
            return;
        }
        self.begin(host);
        let now = self.now;
        let Some(proposer) = &mut self.hosts[host].proposer else { return };
        if proposer.poll_timeout().is_some_and(|at| at <= now) {
            proposer.handle_timeout(now);
        }
        let mut requests = Vec::new();
        while let Some(request) = proposer.poll_request() {
            requests.push(request);
        }
        let outcome = proposer.outcome().cloned();
        for (slot, request) in requests {
            self.send(host, slot.as_usize(), &Packet::Request(request));
        }
        match outcome {
            Some(ChainOutcome::Decided(record)) => {
                self.decide(&record);
                self.adopt(host, &record);
            }
            Some(ChainOutcome::Overtaken(record)) => self.adopt(host, &record),
            None => {}
        }
    }

    /// Two hosts propose different records at a time.
    fn begin(&mut self, host: usize) {
        let may_propose = host < 2 || !self.is_faulty;
        if self.hosts[host].proposer.is_some() || !may_propose {
            return;
        }
        let parent = self.hosts[host].acceptor.state().decided.clone();
        let name = self.next_name;
        self.next_name += 1;
        let own = self.child(&parent, name);
        let id = (self.hosts[host].node.id, Incarnation(self.hosts[host].incarnation));
        let rng = self.rng.fork();
        let pace = ProposerPace::default();
        self.hosts[host].proposer = Some(ChainProposer::new(self.now, id, (parent, own), 0, pace, rng));
    }

    /// A child that names the successor of a lost voter, or exchanges a random voter.
    fn child(&mut self, parent: &NamedRecord, name: u64) -> NamedRecord {
        let spare: Vec<_> =
            self.hosts.iter().map(|it| it.node).filter(|it| !parent.ids().contains(&it.id)).collect();
        let lost = self.lost.filter(|lost| parent.ids().contains(lost));
        let random = self.rng.chance(0.5).then(|| parent.ids()[self.rng.below(3) as usize]);
        match lost.or(random) {
            Some(old) => {
                let new = spare[self.rng.below(spare.len() as u64) as usize];
                parent.child_with_voter(name, old, new)
            }
            None => parent.child(name),
        }
    }

    fn adopt(&mut self, host: usize, record: &NamedRecord) {
        self.hosts[host].proposer = None;
        // At once: another proposer for the epoch that was decided would use its ballots again.
        self.hosts[host].acceptor.handle(ChainRequest::Learn(record.clone()));
        for to in 0..self.hosts.len() {
            self.send(host, to, &Packet::Request(ChainRequest::Learn(record.clone())));
        }
    }

    fn decide(&mut self, record: &NamedRecord) {
        let known = self.decided.entry(record.epoch()).or_insert_with(|| record.clone());
        assert_eq!(known, record, "two records are decided for epoch {}", record.epoch());
        if let Some(parent) = self.decided.get(&LayoutEpoch(record.epoch().0 - 1)) {
            assert!(record.is_child_of(parent), "{record:?} is no child of {parent:?}");
        }
    }

    fn send(&mut self, from: usize, to: usize, packet: &Packet) {
        let copies = match self.rng.below(20) {
            0..3 if self.is_faulty => 0,
            3 if self.is_faulty => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let delay = if self.is_faulty && self.rng.chance(0.1) { 400 } else { 5 };
            let at = self.now + Duration::from_millis(1 + self.rng.below(delay));
            self.packets += 1;
            let incarnation = self.hosts[to].incarnation;
            self.on_the_way.insert((at, self.packets), (from, to, incarnation, packet.clone()));
        }
    }

    fn deliver(&mut self, from: usize, to: usize, packet: Packet) {
        match packet {
            Packet::Request(request) => {
                let response = self.hosts[to].acceptor.handle(request);
                let decided = self.hosts[to].acceptor.state().decided.clone();
                self.decide(&decided);
                self.send(to, from, &Packet::Response(response));
            }
            Packet::Response(response) => {
                let (node, now) = (self.hosts[from].node, self.now);
                if let Some(proposer) = &mut self.hosts[to].proposer {
                    proposer.handle(now, node, &response);
                }
            }
        }
    }

    /// Forgets the lost node once no acceptor and no proposer has named it for longer than a
    /// proposal and its messages last. So one voter at a time is lost.
    fn forget_lost(&mut self) {
        let Some(lost) = self.lost else { return };
        let names = |record: &NamedRecord| record.ids().contains(&lost);
        let is_named = self.hosts.iter().any(|host| {
            let state = host.acceptor.state();
            names(&state.decided) || state.accepted.as_ref().is_some_and(|vote| names(&vote.record))
        });
        if is_named {
            self.named_at = self.now;
        } else if self.named_at + Duration::from_secs(2) < self.now {
            self.lost = None;
        }
    }

    fn newest(&self) -> LayoutEpoch {
        *self.decided.last_key_value().expect("epoch 1 is decided").0
    }
}

#[test]
fn one_record_is_decided_for_each_epoch_and_soon_after_faults_end() {
    let mut epochs = 0;
    for seed in 0..SEEDS {
        let mut cluster = Cluster::new(seed);
        cluster.run(Duration::from_secs(10));
        cluster.is_faulty = false;
        let before = cluster.newest();
        cluster.run(HEALED_WITHIN);
        assert!(cluster.newest() > before, "seed {seed}: nothing is decided within {HEALED_WITHIN:?}");
        epochs += cluster.newest().0;
    }
    // The runs must have decided something under faults, too.
    assert!(epochs > 10 * SEEDS, "{epochs} epochs in {SEEDS} runs");
}

#[test]
fn a_minority_of_voters_decides_nothing() {
    let mut cluster = Cluster::new(1);
    cluster.is_faulty = false;
    for host in &mut cluster.hosts[1..3] {
        host.is_down_until = Instant::ZERO + Duration::from_secs(3600);
    }
    cluster.run(Duration::from_secs(5));
    assert_eq!(cluster.newest(), LayoutEpoch(1));
}
