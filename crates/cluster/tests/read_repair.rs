//! Reads whose replicas differ, in corner cases: values that have expired, replicas that hang, and
//! results that cannot spread.

mod world;

use bytes::Bytes;
use cluster::{
    Command, CoordinatorLimits, Key, PeerRequest, PeerState, ReplicaRequest, Reply, RequestId, StoreRequest,
};
use std::time::Duration;
use stdx::{Cell, CellKind, CellMeta, Hlc, NodeTag, Version, WallTime};
use world::{Packet, TIMEOUT, World, key};

/// More steps than any of these exchanges takes.
const STEPS_MAX: usize = 100;

fn cluster(nodes: u8, reads_for_one_of_all: u32) -> World {
    World::of_coordinators(
        nodes,
        CoordinatorLimits { reads_for_one_of_all, ..CoordinatorLimits::default() },
        1,
    )
}

fn version(hlc: u64) -> Version {
    Version::new(Hlc::from_bits(hlc), NodeTag(1))
}

/// The host at index `place` of the key's preference list.
fn at(cluster: &World, key: &Key, place: usize) -> usize {
    cluster.layout.replicas(key, cluster.layout.len())[place].as_usize()
}

fn get(cluster: &mut World, node: usize, key: &Key, ack: u8, from: u8) -> RequestId {
    let quorum = cluster.quorum(ack, from);
    cluster.submit(node, Command::Get { key: key.clone(), quorum })
}

/// Handles the packets that satisfy `is_wanted`, and those that they cause, until none is left.
/// Returns their number.
fn deliver(cluster: &mut World, is_wanted: impl Fn(&Packet) -> bool) -> usize {
    for steps in 0..STEPS_MAX {
        let Some(index) = cluster.position(&is_wanted) else {
            return steps;
        };
        cluster.deliver(index, None);
    }
    panic!("there is no end to it: {:?}", cluster.in_flight().collect::<Vec<_>>());
}

#[test]
fn an_expired_value_and_its_tombstone_are_repaired_as_either() {
    let key = key("k");
    let expired = CellMeta { expires_at: Some(WallTime::EPOCH_2020), ..CellMeta::value(version(2), 3) };
    let purged = CellMeta { kind: CellKind::Tombstone, ..expired };
    for (second, third, answers_first) in
        [(expired, purged, 1), (purged, expired, 1), (expired, purged, 2), (purged, expired, 2)]
    {
        let mut cluster = cluster(3, 1);
        let hosts = [0, 1, 2].map(|place| at(&cluster, &key, place));
        let cell = |meta: CellMeta| {
            let value = if meta.kind == CellKind::Value { Bytes::from_static(b"v") } else { Bytes::new() };
            Cell { meta, value }
        };
        cluster.hosts[hosts[0]].store.cells.insert(key.clone(), Cell::value(version(1), 3, Bytes::new()));
        cluster.hosts[hosts[1]].store.cells.insert(key.clone(), cell(second));
        cluster.hosts[hosts[2]].store.cells.insert(key.clone(), cell(third));
        let id = get(&mut cluster, hosts[0], &key, 2, 3);
        // Both are known to hold the newest version before any replica has sent the value.
        for place in [answers_first, 3 - answers_first] {
            deliver(&mut cluster, |packet| packet.concerns(hosts[place]));
        }
        deliver(&mut cluster, |_| true);
        assert!(matches!(cluster.replies[&id], Reply::Missing { .. }));
        assert_eq!(cluster.hosts[hosts[0]].store.cells[&key].meta.version, version(2));
    }
}

#[test]
fn the_newest_cell_is_fetched_while_another_replica_hangs() {
    let mut cluster = cluster(4, 0);
    let key = key("k");
    // The coordinator is no replica of the key.
    let coordinator = at(&cluster, &key, 3);
    let replicas = [0, 1, 2].map(|place| at(&cluster, &key, place));
    let id = get(&mut cluster, coordinator, &key, 2, 3);
    let is_request_for_cell = |packet: &Packet| {
        matches!(
            packet,
            Packet::Message {
                message: cluster::Message::Request {
                    request: PeerRequest::Replica(ReplicaRequest::Read { .. }),
                    ..
                },
                ..
            }
        )
    };
    let hung = replicas
        .into_iter()
        .find(|&host| cluster.in_flight().any(|packet| is_request_for_cell(packet) && packet.concerns(host)));
    let hung = hung.expect("one is asked for its cell");
    let others: Vec<usize> = replicas.into_iter().filter(|&host| host != hung).collect();
    // The replica whose version arrives first has a newer cell than the one that is asked next.
    for &host in &others {
        let is_asked = cluster.in_flight().any(|packet| packet.concerns(host));
        let hlc = if is_asked { 2 } else { 1 };
        let cell = Cell::value(version(hlc), 3, Bytes::from_static(b"v"));
        cluster.hosts[host].store.cells.insert(key.clone(), cell);
    }
    deliver(&mut cluster, |packet| !packet.concerns(hung));
    cluster.pass(TIMEOUT / 5);
    deliver(&mut cluster, |packet| !packet.concerns(hung));
    let reply = cluster.replies.get(&id);
    assert!(matches!(reply, Some(Reply::Found { cell, .. }) if cell.meta.version == version(2)), "{reply:?}");
}

#[test]
fn a_read_spreads_its_result_within_its_quorum_so_that_the_next_cannot_miss_it() {
    let mut cluster = cluster(5, 0);
    let key = key("k");
    let hosts = [0, 1, 2].map(|place| at(&cluster, &key, place));
    let [first, second, third] = hosts;
    // The cell was written for five nodes and reached one.
    cluster.hosts[first]
        .store
        .cells
        .insert(key.clone(), Cell::value(version(2), 5, Bytes::from_static(b"new")));
    cluster.hosts[second]
        .store
        .cells
        .insert(key.clone(), Cell::value(version(1), 5, Bytes::from_static(b"old")));
    cluster.hosts[third]
        .store
        .cells
        .insert(key.clone(), Cell::value(version(1), 5, Bytes::from_static(b"old")));
    cluster.hosts[first].view.peers[third].state = PeerState::Unreachable;
    cluster.publish(first);
    let id = get(&mut cluster, first, &key, 2, 3);
    let is_write = |packet: &Packet| {
        matches!(packet, Packet::AtStore { request: StoreRequest::Replica(ReplicaRequest::Write { .. }), .. })
    };
    // The second replica does not store the cell that it is sent.
    deliver(&mut cluster, |packet| !(is_write(packet) && packet.concerns(second)));
    cluster.pass(Duration::from_millis(200));
    deliver(&mut cluster, |packet| !(is_write(packet) && packet.concerns(second)));
    let has_read_it = matches!(cluster.replies.get(&id), Some(Reply::Found { .. }));
    cluster.hosts[second].view.peers[first].state = PeerState::Unreachable;
    cluster.publish(second);
    let later = get(&mut cluster, second, &key, 2, 3);
    deliver(&mut cluster, |packet| !(packet.concerns(first) || is_write(packet) && packet.concerns(second)));
    if has_read_it {
        let reply = &cluster.replies[&later];
        assert!(matches!(reply, Reply::Found { cell, .. } if cell.meta.version == version(2)), "{reply:?}");
    }
}

/// Reads of one key, all submitted at once. The replica of their coordinator is behind, and its
/// store holds back writes.
struct ReadsOfOneKey {
    cluster: World,
    ids: Vec<RequestId>,
    /// The hosts of the replicas, the coordinator first.
    hosts: [usize; 3],
    key: Key,
}

impl ReadsOfOneKey {
    fn new(count: usize) -> Self {
        let mut cluster = cluster(3, 0);
        let key = key("k");
        let hosts = [0, 1, 2].map(|place| at(&cluster, &key, place));
        for (place, host) in hosts.into_iter().enumerate() {
            let hlc = if place == 0 { 1 } else { 2 };
            let cell = Cell::value(version(hlc), 3, Bytes::from_static(b"v"));
            cluster.hosts[host].store.cells.insert(key.clone(), cell);
        }
        let mut reads = Self { cluster, ids: Vec::new(), hosts, key };
        (0..count).for_each(|_| reads.submit());
        reads
    }

    fn submit(&mut self) {
        let id = get(&mut self.cluster, self.hosts[0], &self.key, 2, 3);
        self.ids.push(id);
    }

    /// Delivers everything but writes at the stores.
    fn deliver_all_but_writes(&mut self) {
        while self.cluster.deliver_first(|packet| !packet.is_write_at_store()) {}
    }

    fn writes(&self) -> usize {
        self.cluster.in_flight().filter(|packet| packet.is_write_at_store()).count()
    }

    fn found(&self) -> usize {
        let is_newest = |id: &RequestId| matches!(self.cluster.replies.get(id), Some(Reply::Found { cell, .. }) if cell.meta.version == version(2));
        self.ids.iter().filter(|id| is_newest(id)).count()
    }
}

#[test]
fn reads_that_find_the_same_difference_send_the_cell_once() {
    let mut reads = ReadsOfOneKey::new(20);
    reads.deliver_all_but_writes();
    assert_eq!(reads.writes(), 1);
    assert!(reads.cluster.deliver_first(Packet::is_write_at_store));
    reads.deliver_all_but_writes();
    assert_eq!((reads.found(), reads.writes()), (20, 0));
    // The next difference is sent anew.
    let newer = Cell::value(version(3), 3, Bytes::from_static(b"w"));
    for host in &reads.hosts[1..] {
        reads.cluster.hosts[*host].store.cells.insert(reads.key.clone(), newer.clone());
    }
    reads.submit();
    reads.deliver_all_but_writes();
    assert_eq!(reads.writes(), 1);
}

#[test]
fn reads_go_on_when_the_one_that_sent_the_cell_has_ended() {
    let mut reads = ReadsOfOneKey::new(1);
    reads.deliver_all_but_writes();
    reads.cluster.pass(TIMEOUT - Duration::from_millis(1));
    reads.submit();
    reads.deliver_all_but_writes();
    assert!(reads.writes() >= 1);
    reads.cluster.pass(Duration::from_millis(1));
    let first = reads.cluster.replies.get(&reads.ids[0]);
    assert!(matches!(first, Some(Reply::Failed(_))), "{first:?}");
    while reads.cluster.deliver_first(Packet::is_write_at_store) {}
    reads.deliver_all_but_writes();
    assert_eq!(reads.found(), 1);
}

#[test]
fn each_read_handles_the_failure_of_the_copy_that_it_waits_for() {
    let mut reads = ReadsOfOneKey::new(20);
    reads.deliver_all_but_writes();
    let write = reads.cluster.position(Packet::is_write_at_store).expect("the first read sends the cell");
    reads.cluster.deliver(write, Some(cluster::StoreFault::Full));
    reads.deliver_all_but_writes();
    // The third replica holds the cell as well. It is asked or sent the cell by one of them.
    while reads.cluster.deliver_first(Packet::is_write_at_store) {
        reads.deliver_all_but_writes();
    }
    assert_eq!(reads.found(), 20);
}

#[test]
fn reads_do_not_wait_for_a_copy_on_a_link_that_has_ended() {
    let mut reads = ReadsOfOneKey::new(0);
    // The second replica is behind, and the coordinator's own is not.
    let [first, second, _] = reads.hosts;
    let cells: Vec<Cell> =
        [first, second].map(|host| reads.cluster.hosts[host].store.cells[&reads.key].clone()).into();
    reads.cluster.hosts[first].store.cells.insert(reads.key.clone(), cells[1].clone());
    reads.cluster.hosts[second].store.cells.insert(reads.key.clone(), cells[0].clone());
    (0..20).for_each(|_| reads.submit());
    reads.deliver_all_but_writes();
    assert!(reads.writes() <= 1);
    reads.cluster.break_dialed(first, second);
    reads.deliver_all_but_writes();
    // The next read finds the difference over the next link and sends the cell over it.
    let writes = reads.writes();
    reads.cluster.pass(TIMEOUT / 10);
    reads.deliver_all_but_writes();
    reads.submit();
    reads.deliver_all_but_writes();
    assert_eq!(reads.writes(), writes + 1);
    while reads.cluster.deliver_first(Packet::is_write_at_store) {
        reads.deliver_all_but_writes();
    }
    assert_eq!(reads.found(), 21);
}
