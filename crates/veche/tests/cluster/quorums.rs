//! Quorums of `ack` and `from`: any node coordinates any request, and reads return acknowledged
//! writes.

use crate::common::http::{bare, delete, get, put};
use crate::harness::{Cluster, version};

/// Default quorums by the number of nodes.
const DEFAULTS: [(usize, u8, u8); 4] = [(1, 1, 1), (2, 2, 2), (3, 2, 3), (5, 2, 3)];

#[test]
fn any_node_of_1_2_3_or_5_serves_any_key_with_a_majority_by_default() {
    for (count, ack, from) in DEFAULTS {
        let cluster = Cluster::start(count);
        let (_, status) = cluster.status(0).expect("it answers");
        assert_eq!(status["default_quorum"], serde_json::json!({"ack": ack, "from": from}));
        for writer in 0..count {
            for key in (0..4).map(|number| format!("k{writer}-{number}")) {
                let written = cluster.exchange(writer, put(&key, &key));
                assert_eq!(written.status, 201, "{written:?}");
                assert_acks(written.header("veche-acks"), ack, from);
                for reader in 0..count {
                    let found = cluster.exchange(reader, get(&key));
                    assert_eq!((found.status, found.text()), (200, key.clone()), "{found:?}");
                    assert_eq!(version(&found), version(&written));
                    assert_acks(found.header("veche-acks"), ack, from);
                    let head = cluster.exchange(reader, bare("HEAD", &format!("/v0/entity?id={key}")));
                    assert_eq!((head.status, version(&head)), (200, version(&written)));
                }
                let deleter = (writer + 1) % count;
                let deleted = cluster.exchange(deleter, delete(&key));
                assert_eq!(deleted.status, 202, "{deleted:?}");
                assert_acks(deleted.header("veche-acks"), ack, from);
                for reader in 0..count {
                    let missing = cluster.exchange(reader, get(&key));
                    missing.assert_problem(404, "no such key");
                    assert_acks(missing.header("veche-acks"), ack, from);
                }
            }
        }
        for query in [format!("&from={}", count + 1), format!("&ack={}", count + 1), "&ack=0".to_owned()] {
            cluster.exchange(0, get(&format!("k{query}"))).assert_problem(400, "quorum");
        }
    }
}

/// `Veche-Acks` is `got/from` with at least `ack` of them.
#[track_caller]
fn assert_acks(acks: Option<&str>, ack: u8, from: u8) {
    let (got, of) = acks.and_then(|acks| acks.split_once('/')).expect("got/from");
    let got: u8 = got.parse().expect("a number");
    assert!((ack..=from).contains(&got) && of == from.to_string(), "{acks:?}, expected {ack} of {from}");
}

#[test]
fn reads_meet_writes_whose_quorums_overlap() {
    const OVERLAPPING: [(u8, u8); 6] = [(1, 3), (2, 2), (2, 3), (3, 1), (3, 2), (3, 3)];
    let cluster = Cluster::start(3);
    for round in 0..40 {
        for (write, read) in OVERLAPPING {
            let key = format!("k{}", round % 7);
            let value = format!("{round} {write} {read}");
            let (writer, reader) = (round % 3, (round + usize::from(read)) % 3);
            let written = cluster.exchange(writer, put(&format!("{key}&ack={write}&from=3"), &value));
            assert_eq!(written.status, 201, "{written:?}");
            let found = cluster.exchange(reader, get(&format!("{key}&ack={read}&from=3")));
            assert_eq!(found.text(), value, "written with {write}, read with {read}");
            assert_eq!(version(&found), version(&written));
        }
    }
}

/// The larger `from` counts.
#[test]
fn reads_meet_writes_with_fewer_replicas() {
    let cluster = Cluster::start(3);
    for round in 0..30 {
        let key = format!("k{round}");
        let written = cluster.exchange(round % 3, put(&format!("{key}&ack=1&from=1"), "one"));
        assert_eq!(written.status, 201);
        let found = cluster.exchange((round + 1) % 3, get(&format!("{key}&ack=3&from=3")));
        assert_eq!(found.text(), "one");
        let written = cluster.exchange((round + 1) % 3, put(&format!("{key}&ack=2&from=2"), "two"));
        assert_eq!(written.status, 201);
        let found = cluster.exchange((round + 2) % 3, get(&format!("{key}&replicas=2/3")));
        assert_eq!((found.text().as_str(), version(&found)), ("two", version(&written)));
    }
}

#[test]
fn five_nodes_serve_with_two_of_them_dead() {
    let mut cluster = Cluster::start_with(5, &["--default-from", "5"]);
    let keys: Vec<_> = (0..40).map(|key| format!("k{key}")).collect();
    for (number, key) in keys.iter().enumerate() {
        assert_eq!(cluster.exchange(number % 5, put(key, "before")).status, 201);
    }
    cluster.kill(1);
    cluster.kill(3);
    for (number, key) in keys.iter().enumerate() {
        let (writer, reader) = ([0, 2, 4][number % 3], [0, 2, 4][(number + 1) % 3]);
        assert_eq!(cluster.exchange(reader, get(key)).text(), "before");
        let written = cluster.exchange(writer, put(key, "after"));
        assert_eq!(written.status, 201, "{written:?}");
        assert_eq!(cluster.exchange(reader, get(key)).text(), "after");
    }
    cluster.exchange(0, get("k0&ack=4")).assert_problem(504, "of the key's 5 replicas");
    cluster.spawn(1);
    cluster.start_node(3);
    for key in &keys {
        for node in 0..5 {
            assert_eq!(cluster.exchange(node, get(key)).text(), "after", "{key} from node {node}");
        }
    }
}

#[test]
fn another_number_of_replicas_by_default_is_an_operators_choice() {
    let cluster = Cluster::start_with(5, &["--default-from", "4"]);
    let written = cluster.exchange(0, put("k", "v"));
    assert_acks(written.header("veche-acks"), 3, 4);
    assert_acks(cluster.exchange(1, get("k")).header("veche-acks"), 3, 4);
    assert_acks(cluster.exchange(1, get("k&from=5")).header("veche-acks"), 3, 5);
}
