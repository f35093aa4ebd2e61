//! Checks every quorum of up to five nodes with every combination of outcomes at the replicas:
//! there is one reply, it is correct, and it leaves as soon as it is decided.

mod world;

use bytes::Bytes;
use cluster::{
    Acks, Command, CommandFailure, CoordinatorLimits, Lifetime, Message, NodeIndex, PeerRequest, PeerState,
    Quorum, ReplicaRequest, Reply, RequestId, Shortfall, StoreFault, StoreRequest,
};
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::{Cell, Hlc, NodeTag, Version};
use world::{Packet, TIMEOUT, World, key};

const NODES_MAX: u8 = 5;
const KEY: &str = "k";
const TICK: Duration = Duration::from_millis(10);

/// Outcome of a write at a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Stores,
    IsFull,
    /// The replica is overloaded.
    IsBusy,
    /// The disk fails if the replica is the coordinator's own, else the link ends.
    Fails,
    IsSilent,
    /// The replica is known to be unreachable.
    IsDown,
}

const OUTCOMES: [Outcome; 6] =
    [Outcome::Stores, Outcome::IsFull, Outcome::IsBusy, Outcome::Fails, Outcome::IsSilent, Outcome::IsDown];

/// Time after which an overloaded replica wants to be asked again.
const RETRY_AFTER: Duration = Duration::from_secs(7);

#[test]
fn a_write_gets_the_reply_that_follows_from_its_replicas() {
    for nodes in 1..=NODES_MAX {
        let mut cluster = cluster(nodes);
        for from in 1..=nodes {
            for ack in 1..=from {
                let quorum = cluster.quorum(ack, from);
                for choice in 0..OUTCOMES.len().pow(u32::from(from)) {
                    check_write(&mut cluster, quorum, &outcomes(choice, from));
                }
            }
        }
    }
}

fn cluster(nodes: u8) -> World {
    World::of_coordinators(
        nodes,
        CoordinatorLimits { reads_for_one_of_all: 0, ..CoordinatorLimits::default() },
        1,
    )
}

fn put(quorum: Quorum) -> Command {
    Command::Put { key: key(KEY), value: Bytes::from_static(b"v"), lifetime: Lifetime::Forever, quorum }
}

fn outcomes(mut choice: usize, from: u8) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for _ in 0..from {
        outcomes.push(OUTCOMES[choice % OUTCOMES.len()]);
        choice /= OUTCOMES.len();
    }
    outcomes
}

/// The replicas act in the order of the preference list; the first node of all coordinates.
fn check_write(cluster: &mut World, quorum: Quorum, outcomes: &[Outcome]) {
    let replicas = cluster.layout.replicas(&key(KEY), quorum.from()).to_vec();
    let is_down = |place: usize| outcomes[place] == Outcome::IsDown && replicas[place] != NodeIndex(0);
    for (place, node) in replicas.iter().enumerate().filter(|&(place, _)| is_down(place)) {
        cluster.hosts[0].view.peers[node.as_usize()].state = PeerState::Unreachable;
        assert!(is_down(place));
    }
    cluster.publish(0);
    raise_bound(cluster);
    let id = cluster.submit(0, put(quorum));
    let down = (0..replicas.len()).filter(|&place| is_down(place)).count() as u8;
    let asks_peers = (0..replicas.len()).any(|place| !is_down(place) && replicas[place] != NodeIndex(0));
    let mut expected = Expected { asks_peers, ..Expected::new(quorum, down) };
    if let Some(failure) = expected.at_once() {
        assert_eq!(cluster.replies.remove(&id), Some(Reply::Failed(failure)));
        assert!(cluster.in_flight().next().is_none(), "sent or stored although refused");
    } else {
        for (place, node) in replicas.iter().enumerate().filter(|&(place, _)| !is_down(place)) {
            let outcome = outcomes[place];
            act(cluster, node.as_usize(), outcome);
            expected.take(outcome, *node == NodeIndex(0));
            check_reply(cluster, id, &mut expected, outcomes);
        }
        cluster.pass(TIMEOUT);
        expected.is_late = true;
        check_reply(cluster, id, &mut expected, outcomes);
    }
    // Late answers, and the work after the reply, cause no further reply.
    cluster.settle();
    cluster.pass(TIMEOUT);
    cluster.settle();
    assert!(cluster.replies.is_empty() && expected.is_replied, "{quorum:?} {outcomes:?}");
    if expected.stored > 0 {
        check_hints(cluster, &replicas, outcomes);
    }
    cluster.hosts.iter_mut().for_each(|host| host.store.hints.clear());
    for peer in &mut cluster.hosts[0].view.peers {
        peer.state = PeerState::Up;
    }
    cluster.publish(0);
}

/// Makes the coordinator raise its clock's bound by a write, so that the next write need not wait
/// for it.
fn raise_bound(cluster: &mut World) {
    let quorum = cluster.quorum(1, cluster.layout.len());
    cluster.submit(0, put(quorum));
    cluster.settle();
    cluster.replies.clear();
}

/// Checks that, if one replica stored the write in time, each other replica has stored it too, or a
/// hint is kept for it.
fn check_hints(cluster: &mut World, replicas: &[NodeIndex], outcomes: &[Outcome]) {
    let held: Vec<_> = (replicas.iter())
        .map(|node| {
            (*node, cluster.hosts[node.as_usize()].store.cells.get(&key(KEY)).map(|cell| cell.meta.version))
        })
        .collect();
    let newest = held.iter().map(|(_, version)| *version).max();
    for (node, _) in held.iter().filter(|(_, version)| Some(*version) != newest) {
        let is_hinted = cluster.hosts.iter().any(|host| host.store.has_hint(&key(KEY), *node));
        assert!(is_hinted, "no hint for {node:?} after {outcomes:?}");
    }
}

/// Delivers the write at this replica, and its answer.
fn act(cluster: &mut World, node: usize, outcome: Outcome) {
    let fault = match outcome {
        Outcome::Fails if node != 0 => return cluster.cut(0, node),
        Outcome::Stores | Outcome::IsDown => None,
        Outcome::IsFull => Some(StoreFault::Full),
        Outcome::IsBusy => Some(StoreFault::Overloaded { retry_after: RETRY_AFTER }),
        Outcome::Fails => Some(StoreFault::Io { detail: String::new() }),
        Outcome::IsSilent => return,
    };
    if node != 0 {
        deliver(
            cluster,
            |packet| matches!(packet, Packet::Message { acceptor, .. } if *acceptor == node),
            None,
        );
    }
    let is_write = |packet: &Packet| matches!(packet, Packet::AtStore { node: at, request: StoreRequest::Replica(ReplicaRequest::Write { .. }), .. } if *at == node);
    deliver(cluster, is_write, fault);
    if node != 0 {
        deliver(
            cluster,
            |packet| matches!(packet, Packet::Message { acceptor, .. } if *acceptor == node),
            None,
        );
    }
}

fn deliver(cluster: &mut World, is_it: impl Fn(&Packet) -> bool, fault: Option<StoreFault>) {
    let index = cluster.position(is_it).expect("the packet is in flight");
    cluster.deliver(index, fault);
}

/// The expected reply, counted by hand.
#[derive(Debug)]
struct Expected {
    quorum: Quorum,
    stored: u8,
    failed: u8,
    full: u8,
    busy: u8,
    is_own_full: bool,
    /// Whether the only replica is this node, and is overloaded.
    is_alone_and_busy: bool,
    /// Whether the deadline has passed.
    is_late: bool,
    is_replied: bool,
    only_fault: bool,
    /// Whether the write was sent to another node.
    asks_peers: bool,
}

impl Expected {
    fn new(quorum: Quorum, down: u8) -> Self {
        Self {
            quorum,
            stored: 0,
            failed: down,
            full: 0,
            busy: 0,
            is_own_full: false,
            is_alone_and_busy: false,
            is_late: false,
            is_replied: false,
            only_fault: false,
            asks_peers: false,
        }
    }

    fn at_once(&mut self) -> Option<CommandFailure> {
        self.is_replied = self.quorum.from() - self.failed < self.quorum.ack();
        self.is_replied.then(|| self.not_enough(Shortfall::Unreachable))
    }

    fn take(&mut self, outcome: Outcome, is_own: bool) {
        match outcome {
            Outcome::Stores | Outcome::IsDown => self.stored += 1,
            Outcome::IsFull => {
                self.failed += 1;
                self.full += 1;
                self.is_own_full |= is_own;
            }
            Outcome::IsBusy => {
                self.failed += 1;
                self.busy += 1;
                self.is_alone_and_busy = self.quorum.from() == 1 && is_own;
            }
            Outcome::Fails => {
                self.failed += 1;
                self.only_fault = self.quorum.from() == 1 && is_own;
            }
            Outcome::IsSilent => {}
        }
    }

    fn reply(&self, version: Version) -> Option<Reply> {
        if self.stored >= self.quorum.ack() {
            return Some(Reply::Written { version, superseded: false, acks: self.acks() });
        }
        if self.quorum.from() - self.failed < self.quorum.ack() {
            let is_reachable_if_recovered =
                |count: u8| self.quorum.from() - (self.failed - count) >= self.quorum.ack();
            let maybe_stored = self.asks_peers || self.stored > 0;
            return Some(Reply::Failed(if self.only_fault {
                CommandFailure::Storage { detail: String::new() }
            } else if self.is_alone_and_busy {
                CommandFailure::Overloaded { retry_after: RETRY_AFTER }
            } else if is_reachable_if_recovered(self.full) {
                CommandFailure::DiskFull { acks: self.acks(), here: self.is_own_full, maybe_stored }
            } else if is_reachable_if_recovered(self.full + self.busy) {
                CommandFailure::ReplicasOverloaded {
                    acks: self.acks(),
                    retry_after: RETRY_AFTER,
                    maybe_stored,
                }
            } else {
                self.not_enough(Shortfall::MaybeStored)
            }));
        }
        self.is_late.then(|| Reply::Failed(self.not_enough(Shortfall::MaybeStored)))
    }

    fn not_enough(&self, shortfall: Shortfall) -> CommandFailure {
        CommandFailure::NotEnoughReplicas { acks: self.acks(), ack: self.quorum.ack(), shortfall }
    }

    fn acks(&self) -> Acks {
        Acks { got: self.stored, from: self.quorum.from() }
    }
}

fn check_reply(cluster: &mut World, id: RequestId, expected: &mut Expected, outcomes: &[Outcome]) {
    let got = cluster.replies.remove(&id);
    if expected.is_replied {
        assert_eq!(got, None, "a second reply to {outcomes:?}");
        return;
    }
    let version = match &got {
        Some(Reply::Written { version, .. }) => *version,
        _ => Version::MIN,
    };
    assert_eq!(got, expected.reply(version), "{:?} of {outcomes:?}", expected.quorum);
    expected.is_replied = got.is_some();
}

/// Each replica holds nothing, an older or a newer cell, and can be read or not.
#[test]
fn a_read_returns_the_newest_quorum_write_and_spreads_it_to_a_quorum() {
    for from in 1..=NODES_MAX {
        let mut cluster = cluster(NODES_MAX);
        for ack in 1..=from {
            let quorum = cluster.quorum(ack, from);
            for choice in 0..6usize.pow(u32::from(from)) {
                check_read(&mut cluster, quorum, choice);
            }
        }
    }
}

fn check_read(cluster: &mut World, quorum: Quorum, mut choice: usize) {
    let key = key(KEY);
    let replicas = cluster.layout.replicas(&key, quorum.from()).to_vec();
    let mut readable = Vec::new();
    cluster.hosts.iter_mut().for_each(|host| host.store.cells.clear());
    for node in &replicas {
        let age = choice % 3;
        if age > 0 {
            cluster.hosts[node.as_usize()].store.cells.insert(key.clone(), cell(age as u64, quorum.from()));
        }
        let is_readable = choice % 6 < 3;
        cluster.hosts[0].view.peers[node.as_usize()].read_eligible = is_readable;
        if is_readable {
            readable.push(age as u64);
        }
        choice /= 6;
    }
    cluster.publish(0);
    let id = cluster.submit(0, Command::Get { key: key.clone(), quorum });
    while !cluster.replies.contains_key(&id) {
        if cluster.in_flight().next().is_none() {
            // Live replicas that are not read-eligible yet are waited for.
            cluster.pass(TIMEOUT);
        } else {
            cluster.deliver(0, None);
        }
    }
    let reply = cluster.replies.remove(&id).expect("a reply");
    let ack = usize::from(quorum.ack());
    readable.sort_unstable();
    let held = match reply {
        Reply::Failed(failure) => {
            let acks = Acks { got: 0, from: quorum.from() };
            let shortfall = Shortfall::Unreachable;
            assert_eq!(failure, CommandFailure::NotEnoughReplicas { acks, ack: quorum.ack(), shortfall });
            assert!(readable.len() < ack);
            return;
        }
        Reply::Found { cell, .. } => cell.meta.version.hlc.to_bits(),
        Reply::Missing { .. } => 0,
        reply => panic!("not a reply to a read: {reply:?}"),
    };
    assert!(readable.len() >= ack && held >= readable[ack - 1], "{held} of {readable:?} for {quorum:?}");
    let holders = replicas.iter().filter_map(|node| cluster.hosts[node.as_usize()].store.cells.get(&key));
    let holders = holders.filter(|cell| cell.meta.version.hlc.to_bits() >= held).count();
    assert!(held == 0 || holders >= ack, "{holders} hold {held} of {readable:?} for {quorum:?}");
    cluster.settle();
}

/// Behaviour of a replica at a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holding {
    /// Holds nothing, and stores the cell that it is sent.
    Nothing,
    /// Holds nothing, and has a full disk.
    NothingAndFull,
    Newest,
    /// Reports that it holds the newest cell, and cannot send it.
    Withheld,
    /// Reports that it holds the newest cell, and fails to read its value.
    ValueDamaged,
    /// Cannot be read.
    Damaged,
    IsSilent,
    /// It is known to be unreachable.
    IsDown,
}

const HOLDINGS: [Holding; 8] = [
    Holding::Nothing,
    Holding::NothingAndFull,
    Holding::Newest,
    Holding::Withheld,
    Holding::ValueDamaged,
    Holding::Damaged,
    Holding::IsSilent,
    Holding::IsDown,
];

#[test]
fn a_failed_read_reports_the_shortfall_of_its_replicas() {
    let mut seen = BTreeMap::<&str, usize>::new();
    for nodes in 1..=NODES_MAX {
        let mut cluster = cluster(nodes);
        for ack in 1..=nodes {
            let quorum = cluster.quorum(ack, nodes);
            for mut choice in 0..HOLDINGS.len().pow(u32::from(nodes)) {
                let mut holdings = Vec::new();
                for _ in 0..nodes {
                    holdings.push(HOLDINGS[choice % HOLDINGS.len()]);
                    choice /= HOLDINGS.len();
                }
                *seen.entry(check_shortfall(&mut cluster, quorum, &holdings)).or_default() += 1;
            }
        }
    }
    assert_eq!(
        seen.keys().copied().collect::<Vec<_>>(),
        ["failed otherwise", "not fetched", "not spread", "read", "unanswered", "unreachable"]
    );
}

fn check_shortfall(cluster: &mut World, quorum: Quorum, holdings: &[Holding]) -> &'static str {
    let key = key(KEY);
    let replicas = cluster.layout.replicas(&key, quorum.from()).to_vec();
    let mut by_host = vec![Holding::Nothing; cluster.hosts.len()];
    cluster.hosts.iter_mut().for_each(|host| host.store.cells.clear());
    for (node, holding) in replicas.iter().zip(holdings) {
        let host = node.as_usize();
        let is_down = *holding == Holding::IsDown && host != 0;
        by_host[host] = match holding {
            // The coordinator reaches its own store, which withholds nothing.
            Holding::IsDown if host == 0 => Holding::Nothing,
            Holding::Withheld if host == 0 => Holding::Newest,
            holding => *holding,
        };
        if matches!(holding, Holding::Newest | Holding::Withheld | Holding::ValueDamaged) {
            cluster.hosts[host].store.cells.insert(key.clone(), cell(1, quorum.from()));
        }
        if is_down {
            cluster.hosts[0].view.peers[host].state = PeerState::Unreachable;
        }
    }
    cluster.publish(0);
    let holders_before = cluster.hosts.iter().filter(|host| host.store.cells.contains_key(&key)).count();
    let id = cluster.submit(0, Command::Get { key: key.clone(), quorum });
    let was_sent = cluster.in_flight().next().is_some();
    while !cluster.replies.contains_key(&id) {
        let next = cluster.position(|packet| !is_held_back(packet, &by_host));
        match next {
            Some(index) => {
                let fault = fault_of_read(cluster.in_flight().nth(index).expect("it is there"), &by_host);
                cluster.deliver(index, fault);
            }
            None => cluster.pass(TICK),
        }
    }
    let reply = cluster.replies.remove(&id).expect("a reply");
    let answering = by_host.iter().filter(|holding| answers(**holding)).count();
    let holders = cluster.hosts.iter().filter(|host| host.store.cells.contains_key(&key)).count();
    let senders = by_host.iter().filter(|holding| **holding == Holding::Newest).count();
    let ack = usize::from(quorum.ack());
    // Slow replicas may have delayed requests to others until it was too late.
    let is_slow = by_host.iter().any(|it| matches!(it, Holding::IsSilent | Holding::Withheld));
    let case = format!("{reply:?} to {quorum:?} of {by_host:?}");
    cluster.settle();
    for peer in &mut cluster.hosts[0].view.peers {
        peer.state = PeerState::Up;
    }
    cluster.publish(0);
    match reply {
        Reply::Failed(CommandFailure::NotEnoughReplicas { acks, ack: wanted, shortfall }) => {
            assert_eq!((acks.from, wanted), (quorum.from(), quorum.ack()));
            assert_eq!(shortfall == Shortfall::Unreachable, !was_sent, "{case}");
            match shortfall {
                Shortfall::Unreachable => "unreachable",
                Shortfall::Unanswered => {
                    let may_fail = by_host.iter().filter(|it| **it == Holding::ValueDamaged).count();
                    let is_answered = answering - may_fail >= ack && !is_slow;
                    assert!(usize::from(acks.got) < ack && !is_answered, "{case}");
                    "unanswered"
                }
                Shortfall::NotSpread => {
                    assert!(answering >= ack && senders > 0, "{case}");
                    assert!(holders < ack || is_slow, "{case}");
                    "not spread"
                }
                Shortfall::NotFetched => {
                    let has_damaged_value = by_host.contains(&Holding::ValueDamaged) && senders == 0;
                    let has_reason = by_host.contains(&Holding::Withheld) || has_damaged_value;
                    assert!(answering >= ack && has_reason, "{case}");
                    "not fetched"
                }
                Shortfall::Refused | Shortfall::NoVersion | Shortfall::MaybeStored => {
                    panic!("not of a read: {case}")
                }
            }
        }
        Reply::Failed(_) => {
            assert!(quorum.from() == 1 && by_host[0] != Holding::Newest, "{case}");
            "failed otherwise"
        }
        Reply::Missing { .. } => {
            let overlaps = holders_before + ack > usize::from(quorum.from());
            assert!(!overlaps, "a value that every quorum contains is missing: {case}");
            "read"
        }
        _ => "read",
    }
}

/// Whether a replica may answer a read.
fn answers(holding: Holding) -> bool {
    !matches!(holding, Holding::Damaged | Holding::IsSilent | Holding::IsDown)
}

fn is_held_back(packet: &Packet, by_host: &[Holding]) -> bool {
    let is_silent = |host: usize| by_host[host] == Holding::IsSilent && packet.concerns(host);
    let is_withheld = |acceptor: usize, message: &Message| {
        let asks = |body: &PeerRequest| matches!(body, PeerRequest::Replica(ReplicaRequest::Read { .. }));
        by_host[acceptor] == Holding::Withheld
            && matches!(message, Message::Request { request, .. } if asks(request))
    };
    (0..by_host.len()).any(is_silent)
        || matches!(packet, Packet::Message { acceptor, message, .. } if is_withheld(*acceptor, message))
}

fn fault_of_read(packet: &Packet, by_host: &[Holding]) -> Option<StoreFault> {
    let Packet::AtStore { node, request, .. } = packet else { return None };
    let io = || StoreFault::Io { detail: String::new() };
    match (by_host[*node], request) {
        (Holding::NothingAndFull, StoreRequest::Replica(ReplicaRequest::Write { .. })) => {
            Some(StoreFault::Full)
        }
        (Holding::Damaged | Holding::ValueDamaged, StoreRequest::Replica(ReplicaRequest::Read { .. })) => {
            Some(io())
        }
        (Holding::Damaged, StoreRequest::Replica(ReplicaRequest::ReadMeta { .. })) => Some(io()),
        _ => None,
    }
}

/// The way in which replicas are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Unreachable,
    Hangs,
}

#[test]
fn a_quorum_write_is_read_by_every_overlapping_quorum_for_any_loss() {
    let mut cluster = cluster(NODES_MAX);
    for (written, read) in overlapping(&cluster) {
        for holders in places(written.from(), |count| count >= written.ack()) {
            for lost in places(read.from(), |count| count <= read.from() - read.ack()) {
                let check = |cluster: &mut World, loss| {
                    check_read_of_stored(cluster, (written, &holders), read, (loss, &lost));
                };
                check(&mut cluster, Loss::Unreachable);
                if lost.len() == 1 {
                    // In one cluster, only one read in twenty may ask another replica because an
                    // answer is overdue.
                    check(&mut self::cluster(NODES_MAX), Loss::Hangs);
                }
            }
        }
    }
}

fn overlapping(cluster: &World) -> Vec<(Quorum, Quorum)> {
    let quorums = || {
        (1..=NODES_MAX)
            .flat_map(|from| (1..=from).map(move |ack| (ack, from)))
            .map(|(ack, from)| cluster.quorum(ack, from))
    };
    let pairs = quorums().flat_map(|written| quorums().map(move |read| (written, read)));
    pairs.filter(|(written, read)| written.ack() + read.ack() > written.from().max(read.from())).collect()
}

/// All sets of the first `from` indices whose size satisfies `is_count`.
fn places(from: u8, is_count: impl Fn(u8) -> bool) -> Vec<Vec<usize>> {
    let sets = (0u32..1 << from).filter(|set| is_count(set.count_ones() as u8));
    sets.map(|set| (0..usize::from(from)).filter(|place| set & (1 << place) != 0).collect()).collect()
}

fn check_read_of_stored(
    cluster: &mut World,
    (written, holders): (Quorum, &[usize]),
    read: Quorum,
    (loss, lost): (Loss, &[usize]),
) {
    let key = key(KEY);
    let replicas = cluster.layout.replicas(&key, NODES_MAX).to_vec();
    let hosts = |places: &[usize]| places.iter().map(|&place| replicas[place].as_usize()).collect::<Vec<_>>();
    // The coordinator must be available.
    let lost: Vec<_> = hosts(lost).into_iter().filter(|&host| host != 0).collect();
    for host in &mut cluster.hosts {
        host.store.cells.clear();
    }
    for host in hosts(holders) {
        cluster.hosts[host].store.cells.insert(key.clone(), cell(1, written.from()));
    }
    for &host in lost.iter().filter(|_| loss == Loss::Unreachable) {
        cluster.hosts[0].view.peers[host].state = PeerState::Unreachable;
    }
    cluster.publish(0);
    let id = cluster.submit(0, Command::Get { key, quorum: read });
    let case = format!("{written:?} on {holders:?}, {read:?} without {lost:?}, {loss:?}");
    let reply = reply_without(cluster, id, &lost);
    assert!(
        matches!(&reply, Some(Reply::Found { cell: found, .. }) if *found == cell(1, written.from())),
        "{reply:?}: {case}"
    );
    for peer in &mut cluster.hosts[0].view.peers {
        peer.state = PeerState::Up;
    }
    cluster.publish(0);
    cluster.settle();
}

/// The reply that leaves in time although these hosts do nothing.
fn reply_without(cluster: &mut World, id: RequestId, lost: &[usize]) -> Option<Reply> {
    let mut waited = Duration::ZERO;
    while !cluster.replies.contains_key(&id) && waited < TIMEOUT / 2 {
        let is_lost = |packet: &Packet| lost.iter().any(|&host| packet.concerns(host));
        match cluster.position(|packet| !is_lost(packet)) {
            Some(index) => cluster.deliver(index, None),
            None => {
                cluster.pass(TICK);
                waited += TICK;
            }
        }
    }
    cluster.replies.remove(&id)
}

fn cell(age: u64, from: u8) -> Cell {
    Cell::value(Version::new(Hlc::from_bits(age), NodeTag(1)), from, Bytes::from_static(b"v"))
}
