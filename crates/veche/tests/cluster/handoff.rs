//! Copies that come to where they belong: hints, read repair, anti-entropy.

use crate::common::http::{delete, get, put};
use crate::common::{eventually, run, veche};
use crate::harness::{Cluster, key, version};
use cluster::{NodeSet, ReplicaRequest, StoreId, StoreRequest};
use std::sync::mpsc;
use stdx::{Cell, CellKind, Version};

/// The node that misses writes.
const AWAY: usize = 2;
const KEYS: usize = 60;

fn keys() -> Vec<String> {
    (0..KEYS).map(|key| format!("key-{key}")).collect()
}

/// Writes the keys, and deletes every third again; the versions.
fn change(cluster: &Cluster, keys: &[String]) -> Vec<Version> {
    let change = |(number, key): (usize, &String)| {
        let answer = cluster.exchange(number % 2, put(key, format!("{key} of {number}")));
        assert_eq!(answer.status, 201, "{answer:?}");
        if number % 3 != 0 {
            return version(&answer);
        }
        let answer = cluster.exchange(number % 2, delete(key));
        assert_eq!(answer.status, 202, "{answer:?}");
        version(&answer)
    };
    keys.iter().enumerate().map(change).collect()
}

/// The node itself holds the keys in these versions.
#[track_caller]
fn assert_holds(cluster: &Cluster, node: usize, keys: &[String], versions: &[Version]) {
    for ((key, version), (number, copy)) in
        keys.iter().zip(versions).zip((0..).zip(cluster.copies(node, keys)))
    {
        let copy = copy.unwrap_or_else(|| panic!("node {node} lacks {key}"));
        let kind = if number % 3 == 0 { CellKind::Tombstone } else { CellKind::Value };
        assert_eq!((copy.meta.version, copy.meta.kind), (*version, kind), "{key} on node {node}");
    }
}

#[test]
fn a_node_that_comes_back_is_given_what_it_missed() {
    let mut cluster = Cluster::start(3);
    let keys = keys();
    cluster.kill(AWAY);
    cluster.wait_until_seen(0, AWAY, "unreachable");
    cluster.wait_until_seen(1, AWAY, "unreachable");
    let versions = change(&cluster, &keys);
    eventually("hints are kept", || {
        let kept = |node| cluster.status_of(node, AWAY)["hints"].as_u64().expect("a number");
        kept(0) + kept(1) >= KEYS as u64
    });
    cluster.start_node(AWAY);
    // It serves, so all hints are applied. No read has repaired anything.
    cluster.kill(AWAY);
    assert_holds(&cluster, AWAY, &keys, &versions);
}

#[test]
fn hints_outlive_the_nodes_that_keep_them() {
    let mut cluster = Cluster::start(3);
    let keys = keys();
    cluster.kill(AWAY);
    let versions = change(&cluster, &keys);
    eventually("hints are kept", || {
        let kept = |node| cluster.status_of(node, AWAY)["hints"].as_u64().expect("a number");
        kept(0) + kept(1) >= KEYS as u64
    });
    cluster.kill(0);
    cluster.kill(1);
    (0..3).for_each(|node| cluster.spawn(node));
    cluster.wait_until_up();
    cluster.kill(AWAY);
    assert_holds(&cluster, AWAY, &keys, &versions);
}

/// Makes versions that only the node `AWAY` stores, newer than those of the others, without hints.
fn make_diverge(cluster: &mut Cluster) -> (Vec<String>, Vec<Version>) {
    let keys = keys();
    for (number, key) in keys.iter().enumerate().filter(|(number, _)| number % 2 == 0) {
        assert_eq!(cluster.exchange(number % 3, put(&format!("{key}&ack=3"), "older")).status, 201);
    }
    let ahead = cluster.exchange(AWAY, put("last&ack=3", "v"));
    cluster.stop_all();
    let store = cluster.open_store(AWAY);
    let mut group = store.write_group();
    let mut hlc = version(&ahead).hlc;
    let mut versions = Vec::new();
    for (number, text) in (0..).zip(&keys) {
        hlc = hlc.next();
        let version = Version::new(hlc, store.tag());
        let cell = match number % 3 {
            0 => Cell::tombstone(version, 3),
            _ => Cell::value(version, 3, format!("newer {number}").into()),
        };
        let request =
            StoreRequest::Replica(ReplicaRequest::Write { key: key(text), cell, hints: NodeSet::EMPTY });
        group.add(StoreId(number), &request);
        versions.push(version);
    }
    let (done, committed) = mpsc::sync_channel(KEYS);
    store.submit(group, move |answers, _| done.send(answers.len()).expect("the test waits"));
    store.engine().close().expect("the store commits what waits, and closes");
    assert_eq!(committed.try_iter().sum::<usize>(), KEYS);
    drop(store);
    (0..3).for_each(|node| cluster.spawn(node));
    cluster.wait_until_up();
    (keys, versions)
}

#[test]
fn a_read_stores_the_newest_copy_where_it_is_missing() {
    let mut cluster = Cluster::start(3);
    let (keys, versions) = make_diverge(&mut cluster);
    for (number, key) in keys.iter().enumerate() {
        let found = cluster.exchange(number % 2, get(&format!("{key}&ack=3")));
        if number % 3 == 0 {
            found.assert_problem(404, "no such key");
        } else {
            assert_eq!(found.text(), format!("newer {number}"));
            assert_eq!(version(&found), versions[number]);
        }
    }
    // With ack=3 all three hold it before the answer.
    (0..3).for_each(|node| cluster.kill(node));
    (0..3).for_each(|node| assert_holds(&cluster, node, &keys, &versions));
}

#[test]
fn veche_repair_makes_copies_equal() {
    let mut cluster = Cluster::start(3);
    let (keys, versions) = make_diverge(&mut cluster);
    let mut command = veche();
    command.args(["repair", "--url", &cluster.url(0)]);
    let (code, out, err) = run(command);
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.contains("all keys are compared"), "{out}");
    cluster.kill(0);
    assert_holds(&cluster, 0, &keys, &versions);
}
