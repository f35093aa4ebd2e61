//! Reads whose replicas differ, in the corners where values are large, have expired, or cannot spread.

mod coordinator_support;

use bytes::Bytes;
use cluster::{Command, Key, Limits, Reply, RequestId};
use coordinator_support::{Cluster, Packet, key};
use stdx::{Cell, CellKind, CellMeta, Hlc, NodeTag, Version, WallTime};

/// More than any of these conversations takes.
const STEPS_MAX: usize = 100;

fn cluster(nodes: u8, reads_for_one_of_all: u32) -> Cluster {
    Cluster::new(nodes, Limits { reads_for_one_of_all, ..Limits::default() }, 1)
}

fn version(hlc: u64) -> Version {
    Version::new(Hlc::from_bits(hlc), NodeTag(1))
}

/// The host at this place of the key's preference list.
fn at(cluster: &Cluster, key: &Key, place: usize) -> usize {
    cluster.layout.replicas(key, cluster.layout.len())[place].as_usize()
}

fn get(cluster: &mut Cluster, node: usize, key: &Key, ack: u8, from: u8) -> RequestId {
    let quorum = cluster.quorum(ack, from);
    cluster.submit(node, Command::Get { key: key.clone(), quorum })
}

/// Whether this is with a host, or on its way to or from it.
fn concerns(packet: &Packet, host: usize) -> bool {
    match packet {
        Packet::AtStore { node, .. } => *node == host,
        Packet::Message { acceptor, .. } => *acceptor == host,
    }
}

/// Handles what `is_wanted` and what comes of it, as long as there is some. How much there was.
fn deliver(cluster: &mut Cluster, is_wanted: impl Fn(&Packet) -> bool) -> usize {
    for steps in 0..STEPS_MAX {
        let Some(index) = cluster.on_the_way.iter().position(&is_wanted) else {
            return steps;
        };
        cluster.deliver(index, None);
    }
    panic!("there is no end to it: {:?}", cluster.on_the_way);
}

#[test]
fn a_large_value_reaches_a_replica_that_is_found_to_lack_it_after_the_reply() {
    let mut cluster = cluster(3, 1);
    let key = key("k");
    let large = Cell::value(version(1), 3, Bytes::from(vec![7; 100_000]));
    let (first, lacking) = (at(&cluster, &key, 0), at(&cluster, &key, 2));
    for place in 0..2 {
        let host = at(&cluster, &key, place);
        cluster.hosts[host].cells.insert(key.clone(), large.clone());
    }
    let id = get(&mut cluster, first, &key, 2, 3);
    deliver(&mut cluster, |packet| !concerns(packet, lacking));
    assert!(matches!(cluster.replies[&id], Reply::Found { .. }));
    deliver(&mut cluster, |_| true);
    assert_eq!(cluster.hosts[lacking].cells.get(&key), Some(&large));
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
        cluster.hosts[hosts[0]].cells.insert(key.clone(), Cell::value(version(1), 3, Bytes::new()));
        cluster.hosts[hosts[1]].cells.insert(key.clone(), cell(second));
        cluster.hosts[hosts[2]].cells.insert(key.clone(), cell(third));
        let id = get(&mut cluster, hosts[0], &key, 2, 3);
        // Nobody has sent the value yet when both are known to hold what is newest.
        for place in [answers_first, 3 - answers_first] {
            deliver(&mut cluster, |packet| concerns(packet, hosts[place]));
        }
        deliver(&mut cluster, |_| true);
        assert!(matches!(cluster.replies[&id], Reply::Missing { .. }));
        assert_eq!(cluster.hosts[hosts[0]].cells[&key].meta.version, version(2));
    }
}
