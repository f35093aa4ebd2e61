//! A disk that hangs: reads learn to avoid it on any node, and writes never wait for it.

mod world;

use bytes::Bytes;
use cluster::{Command, CoordinatorLimits, Lifetime, Reply};
use std::time::Duration;
use world::{Packet, TIMEOUT, World, key};

/// The node whose store does not answer.
const HUNG: usize = 0;
/// Greatest number of reads that wait for the disk until it is avoided.
const FIND_OUT_MAX: usize = 16;
const READS: usize = 200;
const SOON: Duration = Duration::from_millis(150);

/// Handles all packets except the requests at the hung store.
fn settle(cluster: &mut World) {
    let is_free = |packet: &Packet| !matches!(packet, Packet::AtStore { node: HUNG, .. });
    while let Some(next) = cluster.position(is_free) {
        cluster.deliver(next, None);
    }
}

fn put(value: &'static str) -> impl Fn(&World) -> Command {
    move |cluster| Command::Put {
        key: key("k"),
        value: Bytes::from_static(value.as_bytes()),
        lifetime: Lifetime::Forever,
        quorum: cluster.quorum(2, 3),
    }
}

/// Whether a command at this node gets its reply in time.
fn is_soon(cluster: &mut World, node: usize, command: impl Fn(&World) -> Command) -> bool {
    let command = command(cluster);
    let id = cluster.submit(node, command);
    settle(cluster);
    for _ in 0..10 {
        cluster.pass(SOON / 10);
        settle(cluster);
    }
    let soon = matches!(cluster.replies.get(&id), Some(Reply::Found { .. } | Reply::Written { .. }));
    cluster.pass(TIMEOUT);
    settle(cluster);
    soon
}

#[test]
fn reads_learn_to_avoid_a_disk_that_hangs() {
    for node in 0..3 {
        let mut cluster = World::of_coordinators(3, CoordinatorLimits::default(), 5);
        let command = put("v")(&cluster);
        cluster.submit(1, command);
        cluster.settle();
        let get = |cluster: &World| Command::Get { key: key("k"), quorum: cluster.quorum(2, 3) };
        let late: Vec<usize> = (0..READS).filter(|_| !is_soon(&mut cluster, node, get)).collect();
        assert!(late.len() <= FIND_OUT_MAX, "at node {node} these reads were late: {late:?}");
        assert!(late.last().is_none_or(|last| *last < READS / 2), "at node {node}: {late:?}");
    }
}

#[test]
fn writes_do_not_wait_for_a_disk_that_hangs() {
    let mut cluster = World::of_coordinators(3, CoordinatorLimits::default(), 6);
    for _ in 0..50 {
        assert!(is_soon(&mut cluster, 1, put("w")));
    }
}
