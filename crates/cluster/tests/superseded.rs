//! A write is reported as superseded even if only a read of a replica's tables shows the greater
//! version.

mod world;

use bytes::Bytes;
use cluster::{Command, CoordinatorLimits, Lifetime, ReplicaRequest, Reply, StoreFault, StoreRequest};
use std::time::Duration;
use stdx::{Cell, Hlc, NodeTag, Version};
use world::{Packet, TIMEOUT, World, key};

/// Three nodes whose stores need a read to report superseded writes, and a key with a later version
/// on the given nodes.
fn cluster_with_later_on(nodes: &[usize]) -> World {
    let mut cluster = World::of_coordinators(3, CoordinatorLimits::default(), 1);
    let later = Hlc::at(cluster.now_at(0).wall.saturating_add(Duration::from_secs(5)));
    let cell = Cell::value(Version::new(later, NodeTag(1)), 3, Bytes::from_static(b"later"));
    nodes.iter().for_each(|node| drop(cluster.hosts[*node].store.cells.insert(key("k"), cell.clone())));
    cluster.hosts.iter_mut().for_each(|host| host.store.is_unsure = true);
    cluster
}

fn put(cluster: &World, name: &str) -> Command {
    let quorum = cluster.quorum(3, 3);
    Command::Put { key: key(name), value: Bytes::new(), lifetime: Lifetime::Forever, quorum }
}

fn is_superseded(reply: &Reply) -> bool {
    let Reply::Written { superseded, acks, .. } = reply else { panic!("{reply:?}") };
    assert_eq!(acks.got, 3);
    *superseded
}

#[test]
fn a_write_that_loses_to_a_stored_version_is_reported_for_any_holder() {
    for (holders, expected) in [(&[][..], false), (&[0], true), (&[1], true), (&[0, 1, 2], true)] {
        for node in 0..3 {
            let mut cluster = cluster_with_later_on(holders);
            let put_k = put(&cluster, "k");
            let asked = cluster.submit(node, put_k);
            cluster.settle();
            assert_eq!(
                is_superseded(&cluster.replies[&asked]),
                expected,
                "{holders:?}, asked of node {node}"
            );
            let put_other = put(&cluster, "other");
            let asked = cluster.submit(node, put_other);
            cluster.settle();
            assert!(!is_superseded(&cluster.replies[&asked]));
        }
    }
}

#[test]
fn a_write_counts_though_the_read_for_a_greater_version_fails() {
    let mut cluster = cluster_with_later_on(&[0, 1, 2]);
    let put = put(&cluster, "k");
    let asked = cluster.submit(0, put);
    let is_read = |packet: &Packet| {
        matches!(
            packet,
            Packet::AtStore { request: StoreRequest::Replica(ReplicaRequest::ReadMeta { .. }), .. }
        )
    };
    loop {
        let Some(fails) = cluster.in_flight().next().map(is_read) else { break };
        cluster.deliver(0, fails.then(|| StoreFault::Io { detail: "as ordered".into() }));
    }
    assert!(!is_superseded(&cluster.replies[&asked]), "nothing is known");
}

#[test]
fn a_lost_link_while_a_replica_reads_leaves_no_operation() {
    let mut cluster = cluster_with_later_on(&[1]);
    let put = put(&cluster, "k");
    cluster.submit(0, put.clone());
    let is_read_of = |packet: &Packet| {
        matches!(
            packet,
            Packet::AtStore { node: 1, request: StoreRequest::Replica(ReplicaRequest::ReadMeta { .. }), .. }
        )
    };
    while !cluster.in_flight().any(is_read_of) {
        cluster.deliver(0, None);
    }
    cluster.cut(0, 1);
    cluster.settle();
    cluster.pass(2 * TIMEOUT);
    cluster.settle();
    let asked = cluster.submit(0, put);
    cluster.settle();
    assert!(is_superseded(&cluster.replies[&asked]));
    assert_eq!(cluster.coordinator_mut(0).1.operations(), 0);
}
