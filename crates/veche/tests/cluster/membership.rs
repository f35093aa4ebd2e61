//! Who belongs to a cluster, and who is turned away.

use crate::common::eventually;
use crate::common::http::{get, put};
use crate::harness::{Cluster, free_address};

/// The node that does not belong.
const UNKNOWN_PEER: usize = 1;

#[test]
fn a_changed_list_is_refused_and_the_old_one_still_serves() {
    let mut cluster = Cluster::start(2);
    assert_eq!(cluster.exchange(0, put("k", "v")).status, 201);
    cluster.stop(UNKNOWN_PEER);
    let list = format!("{},http://{}", cluster.list(), free_address());
    let command = cluster.command_with_list(UNKNOWN_PEER, &list);
    cluster.spawn_as(UNKNOWN_PEER, command);
    assert_eq!(cluster.wait_for_end(UNKNOWN_PEER), Some(1));
    let log = cluster.log(UNKNOWN_PEER);
    assert!(log.contains("was made for the cluster") && log.contains("use another --data"), "{log}");
    cluster.start_node(UNKNOWN_PEER);
    assert_eq!(cluster.exchange(UNKNOWN_PEER, get("k")).text(), "v");
}

#[test]
fn a_node_of_another_list_is_turned_away_and_both_sides_say_so() {
    let mut cluster = Cluster::prepare(2, &[]);
    cluster.spawn(0);
    let list = format!("{},http://{}", cluster.list(), free_address());
    let command = cluster.command_with_list(UNKNOWN_PEER, &list);
    cluster.spawn_as(UNKNOWN_PEER, command);
    assert_turned_away(&cluster, "list");
}

#[test]
fn a_node_with_another_secret_or_none_is_turned_away_and_both_sides_say_so() {
    for secret in ["of another town", ""] {
        let mut cluster = Cluster::prepare(2, &[]);
        for (node, secret) in [(0, "of the town"), (UNKNOWN_PEER, secret)] {
            let mut command = cluster.command(node);
            command.env("VECHE_CLUSTER_SECRET", secret);
            cluster.spawn_as(node, command);
        }
        assert_turned_away(&cluster, "secret");
        for node in [0, UNKNOWN_PEER] {
            let log = cluster.log(node);
            assert!(!log.contains("of the town") && !log.contains("of another town"), "{log}");
        }
    }
}

#[test]
fn nodes_with_one_secret_are_a_cluster() {
    let mut cluster = Cluster::prepare(3, &[]);
    let file = cluster.dir().join("secret");
    std::fs::write(&file, "of the town\n").expect("a file");
    for node in 0..3 {
        let mut command = cluster.command(node);
        if node == 0 {
            command.arg("--cluster-secret-file").arg(&file);
        } else {
            command.env("VECHE_CLUSTER_SECRET", "of the town");
        }
        cluster.spawn_as(node, command);
    }
    cluster.wait_until_up();
    assert_eq!(cluster.exchange(0, put("k&ack=3", "v")).status, 201);
    assert_eq!(cluster.exchange(2, get("k&ack=3")).text(), "v");
}

#[test]
fn more_than_five_copies_by_default_are_warned_of() {
    for (nodes, flags, warns) in [(6, &[][..], true), (5, &[], false), (6, &["--default-from", "3"], false)] {
        let mut cluster = Cluster::prepare(nodes, flags);
        cluster.spawn(0);
        eventually("the node serves", || cluster.serves(0));
        let (_, status) = cluster.status(0).expect("it answers");
        assert_eq!(status["warnings"].to_string().contains("--default-from 3"), warns, "{status}");
        assert_eq!(cluster.log(0).contains("--default-from 3"), warns, "{}", cluster.log(0));
    }
}

/// Both serve, neither takes the other for its peer, and both say why.
#[track_caller]
fn assert_turned_away(cluster: &Cluster, says: &str) {
    for node in [0, UNKNOWN_PEER] {
        eventually("the node serves without the other", || cluster.serves(node));
        eventually(&format!("node {node} says why: {says}"), || {
            cluster.log(node).lines().any(|line| line.contains("WARN") && line.contains(says))
        });
    }
    cluster.exchange(0, put("k", "v")).assert_problem(504, "nothing was stored");
    assert_ne!(cluster.status_of(0, UNKNOWN_PEER)["state"], "up");
}
