//! Which nodes hold a key, looked at on their disks.

use crate::common::http::{get, put};
use crate::common::{eventually, http::bare};
use crate::harness::{Cluster, version};
use std::collections::BTreeSet;
use stdx::{Cell, Version};

const NODES: usize = 3;
const KEYS: usize = 3_000;
/// Of these keys also what happens with more replicas is looked at.
const KEYS_WITH_MORE: usize = 300;

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|key| format!("key-{key}")).collect()
}

/// Writes all keys, each through the next node; their versions.
fn write(cluster: &Cluster, keys: &[String], quorum: &str) -> Vec<Version> {
    let mut connections: Vec<_> = (0..cluster.len()).map(|node| cluster.connect(node)).collect();
    let mut write = |(number, key): (usize, &String)| {
        let connection = &mut connections[number % NODES];
        let answer = connection.exchange(put(&format!("{key}&{quorum}"), format!("{key} {quorum}")));
        assert_eq!(answer.status, 201, "{key} {quorum}: {answer:?}");
        version(&answer)
    };
    keys.iter().enumerate().map(|(number, key)| write((number, key))).collect()
}

/// For each key, the nodes that store it and their versions.
fn holders(cluster: &Cluster, keys: &[String]) -> Vec<Vec<(usize, Cell)>> {
    let mut holders = vec![Vec::new(); keys.len()];
    for node in 0..cluster.len() {
        for (holders, copy) in holders.iter_mut().zip(cluster.copies(node, keys)) {
            holders.extend(copy.map(|cell| (node, cell)));
        }
    }
    holders
}

/// For each key, the nodes that hold it with this `from`, as the nodes name them.
fn named_nodes(cluster: &Cluster, keys: &[String], from: usize) -> Vec<BTreeSet<String>> {
    let nodes_of = |(number, key): (usize, &String)| {
        let answer = cluster.exchange(number % NODES, get(&format!("{key}&locate=1&ack=1&from={from}")));
        let nodes = answer.header("veche-nodes").unwrap_or_else(|| panic!("{key}: {answer:?}"));
        nodes.split(", ").map(str::to_owned).collect()
    };
    keys.iter().enumerate().map(nodes_of).collect()
}

fn nodes(holders: &[(usize, Cell)]) -> Vec<usize> {
    holders.iter().map(|(node, _)| *node).collect()
}

/// One pass of anti-entropy on every node.
fn repair_all(cluster: &Cluster) {
    for node in 0..cluster.len() {
        let repaired_at = |cluster: &Cluster| cluster.status(node).expect("it answers").1["cluster"].clone();
        let before = repaired_at(cluster)["repaired_at_ms"].clone();
        assert_eq!(cluster.exchange(node, bare("POST", "/v0/repair")).status, 202);
        eventually("the pass ends", || {
            let now = repaired_at(cluster);
            now["repair"].is_null() && now["repaired_at_ms"] != before
        });
    }
}

#[test]
fn a_key_is_on_exactly_from_nodes_and_those_of_a_smaller_from_are_among_them() {
    let mut cluster = Cluster::start(NODES);
    let keys = keys(KEYS);
    let some = &keys[..KEYS_WITH_MORE];

    let versions = write(&cluster, &keys, "ack=1&from=1");
    // Reads of all replicas and repair move nothing to nodes that are not to hold it.
    for key in some {
        assert_eq!(cluster.exchange(0, get(&format!("{key}&ack=3&from=3"))).status, 200, "{key}");
    }
    repair_all(&cluster);
    cluster.stop_all();
    let on_one = holders(&cluster, &keys);
    for (holders, version) in on_one.iter().zip(&versions) {
        assert_eq!(holders.len(), 1, "{holders:?}");
        assert_eq!((holders[0].1.meta.version, holders[0].1.meta.from), (*version, 1));
    }
    assert_uniform(&on_one);

    let mut fewer = on_one;
    for from in [2, 3] {
        (0..NODES).for_each(|node| cluster.spawn(node));
        cluster.wait_until_up();
        let versions = write(&cluster, some, &format!("ack={from}&from={from}"));
        let named = named_nodes(&cluster, some, from);
        cluster.stop_all();
        let more = holders(&cluster, some);
        for (named, holders) in named.iter().zip(&more) {
            assert_eq!(named, &nodes(holders).iter().map(|node| cluster.url(*node)).collect());
        }
        for ((more, fewer), version) in more.iter().zip(&fewer).zip(&versions) {
            assert_eq!(more.len(), from, "{more:?}");
            assert!(more.iter().all(|(_, cell)| cell.meta.version == *version), "{more:?}");
            let more = nodes(more);
            assert!(nodes(fewer).iter().all(|node| more.contains(node)), "{fewer:?} is not within {more:?}");
        }
        fewer = more;
    }
}

/// Each node holds its share of the keys, within four standard deviations.
fn assert_uniform(holders: &[Vec<(usize, Cell)>]) {
    let share = 1.0 / NODES as f64;
    let expected = holders.len() as f64 * share;
    let sigma = (expected * (1.0 - share)).sqrt();
    for node in 0..NODES {
        let held = holders.iter().filter(|holders| nodes(holders).contains(&node)).count() as f64;
        assert!((held - expected).abs() <= 4.0 * sigma, "node {node} holds {held} of {} keys", holders.len());
    }
}
