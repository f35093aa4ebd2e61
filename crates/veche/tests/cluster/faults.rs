//! Nodes that hang, and nodes that die.

use crate::common::eventually;
use crate::common::http::{bare, get, put};
use crate::harness::Cluster;

/// Longer than a client of these tests waits for an answer: a request that is answered did not wait
/// for its deadline.
const REQUEST_TIMEOUT: &str = "1h";

fn start_with_long_deadlines() -> Cluster {
    Cluster::start_with(3, &["--request-timeout", REQUEST_TIMEOUT])
}

#[test]
fn a_hung_replica_holds_up_nobody() {
    const HUNG: usize = 2;
    let mut cluster = start_with_long_deadlines();
    assert_eq!(cluster.exchange(0, put("k&ack=3", "before")).status, 201);
    cluster.pause(HUNG);
    for round in 0..200 {
        let value = round.to_string();
        let written = cluster.exchange(round % 2, put("k", &value));
        assert_eq!(written.status, 201, "{written:?}");
        assert_eq!(cluster.exchange((round + 1) % 2, get("k")).text(), value);
    }
    for node in [0, 1] {
        cluster.wait_until_seen(node, HUNG, "unreachable");
        let refused = cluster.exchange(node, put("never&ack=3", "v"));
        refused.assert_problem(504, "Nothing was sent and nothing was stored");
        assert_eq!(refused.reason, "Not Enough Replicas");
        cluster.exchange(node, get("k&ack=3")).assert_problem(504, "replicas");
        cluster.exchange(node, get("never")).assert_problem(404, "no such key");
    }
    cluster.resume(HUNG);
    cluster.wait_until_up();
    assert_eq!(cluster.exchange(0, put("k&ack=3", "after")).status, 201);
    assert_eq!(cluster.exchange(HUNG, get("k&ack=3")).text(), "after");
    cluster.stop_all();
    let copies = cluster.copies(HUNG, &["k".to_owned(), "never".to_owned()]);
    assert_eq!(copies[0].as_ref().map(|cell| &cell.value[..]), Some(&b"after"[..]));
    assert_eq!(copies[1], None);
}

#[test]
fn what_needs_a_dead_node_is_refused_at_once() {
    const DEAD: usize = 1;
    let mut cluster = start_with_long_deadlines();
    assert_eq!(cluster.exchange(0, put("k&ack=3", "v")).status, 201);
    cluster.kill(DEAD);
    for node in [0, 2] {
        cluster.wait_until_seen(node, DEAD, "unreachable");
        cluster.exchange(node, put("k&ack=3", "w")).assert_problem(504, "nothing was stored");
        cluster.exchange(node, get("k&ack=3")).assert_problem(504, "replicas");
        assert_eq!(cluster.exchange(node, get("k")).text(), "v");
        assert_eq!(cluster.exchange(node, get("k&ack=1")).text(), "v");
    }
    cluster.start_node(DEAD);
    assert_eq!(cluster.exchange(DEAD, put("k&ack=3", "w")).status, 201);
}

#[test]
fn a_node_without_a_quorum_is_not_ready_and_says_whom_it_misses() {
    let mut cluster = Cluster::start(3);
    let ready = |cluster: &Cluster, node| cluster.exchange(node, bare("GET", "/v0/ready"));
    eventually("all are ready", || (0..3).all(|node| ready(&cluster, node).status == 200));
    cluster.kill(1);
    cluster.wait_until_seen(0, 1, "unreachable");
    assert_eq!(ready(&cluster, 0).status, 200, "two of three are a quorum");
    cluster.kill(2);
    cluster.wait_until_seen(0, 2, "unreachable");
    let refused = ready(&cluster, 0);
    refused.assert_problem(503, "default quorum");
    assert!(
        refused.text().contains(&cluster.url(1)) && refused.text().contains(&cluster.url(2)),
        "{refused:?}"
    );
    assert_eq!(cluster.exchange(0, bare("OPTIONS", "/")).status, 503);
    cluster.start_node(1);
    eventually("a quorum is back", || ready(&cluster, 0).status == 200);
}

#[test]
fn one_node_of_two_takes_no_majority_and_single_acks() {
    let mut cluster = Cluster::start(2);
    assert_eq!(cluster.exchange(0, put("k", "v")).status, 201);
    cluster.kill(1);
    cluster.wait_until_seen(0, 1, "unreachable");
    cluster.exchange(0, put("k", "w")).assert_problem(504, "nothing was stored");
    assert_eq!(cluster.exchange(0, put("k&ack=1", "w")).status, 201);
    assert_eq!(cluster.exchange(0, get("k&ack=1")).text(), "w");
    cluster.start_node(1);
    assert_eq!(cluster.exchange(1, get("k")).text(), "w");
}

#[test]
fn all_nodes_killed_and_started_at_once_serve() {
    let mut cluster = Cluster::start(3);
    for round in 0..3 {
        let keys: Vec<_> = (0..50).map(|key| format!("{round}-{key}")).collect();
        for (number, key) in keys.iter().enumerate() {
            assert_eq!(cluster.exchange(number % 3, put(key, key)).status, 201);
        }
        (0..3).for_each(|node| cluster.kill(node));
        (0..3).for_each(|node| cluster.spawn(node));
        (0..3).for_each(|node| eventually("the node serves", || cluster.serves(node)));
        cluster.wait_until_up();
        for (number, key) in keys.iter().enumerate() {
            assert_eq!(cluster.exchange((number + 1) % 3, get(key)).text(), *key);
        }
    }
}

/// A node that starts does not wait for one that accepts connections and says nothing.
#[test]
fn a_start_does_not_wait_for_a_hung_peer() {
    let mut cluster = Cluster::start(3);
    assert_eq!(cluster.exchange(0, put("k&ack=3", "v")).status, 201);
    cluster.kill(0);
    cluster.pause(1);
    cluster.spawn(0);
    eventually("the node serves", || cluster.serves(0));
    cluster.wait_until_seen(0, 1, "unreachable");
    cluster.wait_until_seen(0, 2, "up");
    eventually("the third node sees it", || cluster.exchange(2, get("k")).status == 200);
    assert_eq!(cluster.exchange(0, get("k")).text(), "v");
    cluster.resume(1);
    cluster.wait_until_up();
}

/// A node that was killed and finds none of its peers serves without them, and waits for them again
/// when they come.
#[test]
fn a_killed_node_whose_peers_refuse_serves_and_goes_on_when_they_come() {
    let mut cluster = Cluster::start(3);
    assert_eq!(cluster.exchange(0, put("k&ack=3", "before")).status, 201);
    (0..3).for_each(|node| cluster.kill(node));
    cluster.spawn(0);
    eventually("the node serves", || cluster.serves(0));
    for peer in [1, 2] {
        assert_eq!(cluster.status_of(0, peer)["state"], "unreachable");
    }
    assert_eq!(cluster.exchange(0, get("k&ack=1")).text(), "before");
    cluster.exchange(0, put("k", "never")).assert_problem(504, "nothing was stored");
    assert_eq!(cluster.exchange(0, put("k&ack=1", "alone")).status, 201);
    cluster.spawn(1);
    cluster.start_node(2);
    for node in [1, 2, 0] {
        // Each is the newest, whichever clock began ahead.
        let value = format!("through {node}");
        assert_eq!(cluster.exchange(node, put("k", &value)).status, 201);
        assert_eq!(cluster.exchange((node + 1) % 3, get("k")).text(), value);
    }
}

/// Nodes that say that they serve need no more time: neither to link, nor to believe each other.
#[test]
fn nodes_that_serve_serve_at_once() {
    for round in 0..5 {
        let mut cluster = Cluster::prepare(3, &[]);
        // All at once, and one that serves before there are others.
        if round % 2 == 1 {
            cluster.spawn(0);
            eventually("the node serves", || cluster.serves(0));
        }
        (0..3).filter(|node| *node > 0 || round % 2 == 0).for_each(|node| cluster.spawn(node));
        (0..3).for_each(|node| eventually("the node serves", || cluster.serves(node)));
        for node in 0..3 {
            let key = format!("k{node}");
            let written = cluster.exchange(node, put(&format!("{key}&ack=3"), "v"));
            assert_eq!(written.status, 201, "round {round}, node {node}: {written:?}");
            for reader in 0..3 {
                let found = cluster.exchange(reader, get(&format!("{key}&ack=3")));
                assert_eq!(found.text(), "v", "round {round}, node {reader}: {found:?}");
            }
        }
    }
}
