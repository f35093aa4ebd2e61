//! Ranges of the whole cluster: complete, or visibly not.

use crate::common::http::{Connection, bare, delete, put};
use crate::harness::Cluster;
use std::collections::BTreeMap;

/// The entries of the cluster's range, each of which must be one chunk.
#[track_caller]
fn entries(connection: &mut Connection, parameters: &str) -> Vec<Vec<u8>> {
    connection.send(bare("GET", &format!("/v0/entities?cluster=1&{parameters}")));
    let head = connection.head();
    assert_eq!(head.status, 200, "{head:?}");
    assert!(head.header("veche-acks").is_some(), "{head:?}");
    connection.chunks()
}

/// Stores `count` entries through all nodes, pipelined.
fn fill(cluster: &Cluster, count: usize, value_len: usize, replicas: &str) -> BTreeMap<String, Vec<u8>> {
    let entries: BTreeMap<_, _> =
        (0..count).map(|i| (format!("k{i:05}"), vec![b'a' + (i % 26) as u8; value_len])).collect();
    let all: Vec<_> = entries.iter().collect();
    for (node, part) in all.chunks(count.div_ceil(cluster.len())).enumerate() {
        let mut connection = cluster.connect(node);
        for some in part.chunks(50) {
            let requests = some.iter().flat_map(|(key, value)| put(&format!("{key}{replicas}"), value));
            connection.send(requests.collect::<Vec<_>>());
            some.iter().for_each(|(key, _)| assert_eq!(connection.response().status, 201, "{key}"));
        }
    }
    entries
}

fn lines(entries: &BTreeMap<String, Vec<u8>>) -> Vec<Vec<u8>> {
    entries.iter().map(|(key, value)| [key.as_bytes(), b"\n", value].concat()).collect()
}

#[test]
fn every_node_gives_the_union_of_what_all_hold() {
    let cluster = Cluster::start(3);
    // One copy of each: no node holds them all.
    let mut expected = fill(&cluster, 300, 200, "&replicas=1/1");
    for i in (0..300).step_by(7) {
        let key = format!("k{i:05}");
        assert_eq!(cluster.exchange(i % 3, delete(&format!("{key}&replicas=1/1"))).status, 202);
        expected.remove(&key);
    }
    let expected = lines(&expected);
    for node in 0..3 {
        let mut connection = cluster.connect(node);
        assert!(entries(&mut connection, "start=k&replicas=1/1") == expected, "node {node}");
        let (from, to) = (&expected[10][..6], &expected[60][..6]);
        let (from, to) = (String::from_utf8_lossy(from), String::from_utf8_lossy(to));
        assert!(entries(&mut connection, &format!("start={from}&end={to}&replicas=1/1")) == expected[10..60]);
        assert!(entries(&mut connection, "start=k&limit=5&replicas=1/1") == expected[..5]);
        connection.send(bare("GET", "/v0/entities?start=k"));
        assert_eq!(connection.head().status, 200);
        let own = connection.chunks();
        assert!(!own.is_empty() && own.len() < expected.len(), "node {node} holds {} of them", own.len());
    }
}

#[test]
fn a_range_is_complete_while_quorums_overlap_and_504_when_they_cannot_be_reached() {
    let mut cluster = Cluster::start(3);
    let mut expected = fill(&cluster, 200, 100, "");
    cluster.stop(2);
    cluster.wait_until_seen(0, 2, "unreachable");
    for i in (0..200).step_by(3) {
        let key = format!("k{i:05}");
        assert_eq!(cluster.exchange(0, put(&key, "newer")).status, 201);
        expected.insert(key, b"newer".to_vec());
    }
    assert!(entries(&mut cluster.connect(1), "start=k") == lines(&expected));
    cluster.stop(1);
    cluster.wait_until_seen(0, 1, "unreachable");
    let refused = cluster.exchange(0, bare("GET", "/v0/entities?cluster=1&start=k"));
    refused.assert_problem(504, "");
    assert_eq!(refused.reason, "Not Enough Replicas");
    assert!(entries(&mut cluster.connect(0), "start=k&ack=1&from=3") == lines(&expected));
    for node in [1, 2] {
        cluster.spawn(node);
    }
    cluster.wait_until_up();
    assert!(entries(&mut cluster.connect(2), "start=k") == lines(&expected), "what it missed is there too");
}

#[test]
fn a_range_goes_on_without_one_node_and_is_broken_off_without_two() {
    let mut cluster = Cluster::start(3);
    let expected = lines(&fill(&cluster, 5_000, 5_000, ""));
    for (killed, is_whole) in [(&[1][..], true), (&[2][..], false)] {
        let mut reader = cluster.connect(0);
        reader.send(bare("GET", "/v0/entities?cluster=1&start=k"));
        assert_eq!(reader.head().status, 200);
        let mut came = vec![reader.chunk().expect("an entry").expect("an entry")];
        killed.iter().for_each(|node| cluster.kill(*node));
        let end = loop {
            match reader.chunk() {
                Ok(Some(chunk)) => came.push(chunk),
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        assert!(came == expected[..came.len()], "what came is right, in order and without gaps");
        assert_eq!(end, is_whole, "{} of {} entries came", came.len(), expected.len());
        assert_eq!(end, came.len() == expected.len());
    }
}
