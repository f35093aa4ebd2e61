//! A node that was down while keys changed is asked as soon as it serves again.

use crate::common::eventually;
use crate::common::http::{delete, get, put};
use crate::harness::Cluster;

const MISSED_BY: usize = 2;

#[test]
fn what_a_node_missed_is_read_from_every_node() {
    let mut cluster = Cluster::start(3);
    for key in ["deleted", "overwritten", "recreated"] {
        assert_eq!(cluster.exchange(0, put(key, "old")).status, 201);
    }
    cluster.kill(MISSED_BY);
    assert_eq!(cluster.exchange(0, put("written", "new")).status, 201);
    assert_eq!(cluster.exchange(1, put("overwritten", "new")).status, 201);
    assert_eq!(cluster.exchange(0, delete("deleted")).status, 202);
    assert_eq!(cluster.exchange(1, delete("recreated")).status, 202);
    assert_eq!(cluster.exchange(0, put("recreated", "new")).status, 201);
    let assert_all = |cluster: &Cluster| {
        for node in (0..3).filter(|node| cluster.runs(*node)) {
            for key in ["written", "overwritten", "recreated"] {
                assert_eq!(cluster.exchange(node, get(key)).text(), "new", "{key} from node {node}");
            }
            cluster.exchange(node, get("deleted")).assert_problem(404, "no such key");
        }
    };
    assert_all(&cluster);
    cluster.start_node(MISSED_BY);
    assert_all(&cluster);
    // Now its own answers are needed.
    cluster.kill(0);
    assert_all(&cluster);
}

/// Writes through a node that then dies are read through the others.
#[test]
fn the_coordinator_may_die_after_the_answer() {
    let mut cluster = Cluster::start(3);
    for round in 0..3 {
        let keys: Vec<_> = (0..20).map(|key| format!("{round}-{key}")).collect();
        for key in &keys {
            assert_eq!(cluster.exchange(round, put(key, key)).status, 201);
        }
        cluster.kill(round);
        for node in (0..3).filter(|node| *node != round) {
            for key in &keys {
                assert_eq!(read(&cluster, node, key), *key, "from node {node}");
            }
        }
        cluster.start_node(round);
    }
}

/// The answer to a read of `key`, as soon as enough replicas can be asked. Nodes that get no
/// processor for a second suspect each other.
fn read(cluster: &Cluster, node: usize, key: &str) -> String {
    let mut text = None;
    eventually("enough replicas can be asked", || {
        let response = cluster.exchange(node, get(key));
        text = (response.status != 504).then(|| response.text());
        text.is_some()
    });
    text.expect("it was answered")
}
