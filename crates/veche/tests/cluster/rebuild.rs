//! A node that has lost its data directory.

use crate::common::eventually;
use crate::common::http::{get, put};
use crate::harness::{Cluster, version};
use std::fs;
use std::path::Path;
use stdx::Version;

const LOST: usize = 2;
const KEYS: usize = 400;
/// Where reads may be slow, only one of this many keys is read.
const KEYS_PER_SAMPLE: usize = 16;
const READERS: usize = 50;

fn keys(name: &str) -> Vec<String> {
    (0..KEYS).map(|key| format!("{name}-{key}")).collect()
}

/// Writes each key until that is acknowledged. Returns the versions. On a busy machine a write may
/// take longer than its timeout.
fn write(cluster: &Cluster, nodes: &[usize], keys: &[String]) -> Vec<Version> {
    let mut connections: Vec<_> = nodes.iter().map(|node| cluster.connect(*node)).collect();
    let mut write = |(number, key): (usize, &String)| {
        let mut acknowledged = None;
        eventually("the write is acknowledged", || {
            let answer = connections[number % nodes.len()].exchange(put(key, key));
            assert!(matches!(answer.status, 201 | 504), "{answer:?}");
            acknowledged = (answer.status == 201).then(|| version(&answer));
            acknowledged.is_some()
        });
        acknowledged.expect("it was acknowledged")
    };
    keys.iter().enumerate().map(|(number, key)| write((number, key))).collect()
}

/// Quorum reads find a key or say that they cannot; they never say that it is not there. A part of
/// the keys is read, some at once: those that cannot be answered take the time of a request.
fn assert_never_missed(cluster: &Cluster, node: usize, keys: &[String]) {
    let keys: Vec<_> = keys.iter().step_by(KEYS_PER_SAMPLE).collect();
    std::thread::scope(|scope| {
        for keys in keys.chunks(keys.len().div_ceil(READERS)) {
            let mut connection = cluster.connect(node);
            scope.spawn(move || {
                for key in keys {
                    let answer = connection.exchange(get(key));
                    match answer.status {
                        200 => assert_eq!(answer.text(), **key),
                        503 | 504 => {}
                        _ => panic!("{key} from node {node}: {answer:?}"),
                    }
                }
            });
        }
    });
}

/// Each node finds every key.
#[track_caller]
fn assert_found(cluster: &Cluster, nodes: &[usize], keys: &[String]) {
    for node in nodes {
        let mut connection = cluster.connect(*node);
        for key in keys {
            let found = connection.exchange(get(key));
            assert_eq!(found.text(), *key, "from node {node}: {found:?}");
        }
    }
}

#[test]
fn answers_of_a_node_that_lost_its_data_do_not_count_until_it_is_rebuilt() {
    let mut cluster = Cluster::start(3);
    let everywhere = keys("everywhere");
    let mut versions = write(&cluster, &[0, 1, 2], &everywhere);
    // Node 0 is away, so these are acknowledged by node 1 and by the one that is about to lose
    // them.
    cluster.kill(0);
    let mut keys = keys("endangered");
    versions.extend(write(&cluster, &[1, LOST], &keys));
    keys.splice(0..0, everywhere);

    cluster.kill(1);
    cluster.kill(LOST);
    cluster.lose_data(LOST);
    // Only node 0, which missed half of it, and the empty one: two of three, and yet no quorum.
    cluster.spawn(0);
    cluster.spawn(LOST);
    for node in [0, LOST] {
        eventually("the node serves", || cluster.serves(node));
        assert_never_missed(&cluster, node, &keys);
    }
    eventually("it has heard what it lost", || cluster.sync_state(LOST) == "rebuilding");
    cluster.wait_until_seen(0, LOST, "up");
    for node in [0, LOST] {
        assert_never_missed(&cluster, node, &keys);
    }
    assert_eq!(cluster.sync_state(LOST), "rebuilding");

    cluster.spawn(1);
    for _ in 0..3 {
        for node in 0..3 {
            eventually("the node serves", || cluster.serves(node));
            assert_never_missed(&cluster, node, &keys);
        }
    }
    eventually("it is rebuilt", || cluster.sync_state(LOST) == "settled");
    assert_found(&cluster, &[0, 1, LOST], &keys);
    cluster.kill(LOST);
    for ((key, version), copy) in keys.iter().zip(&versions).zip(cluster.copies(LOST, &keys)) {
        assert_eq!(copy.map(|cell| cell.meta.version), Some(*version), "{key}");
    }
}

#[test]
fn a_node_that_lost_its_data_while_the_others_serve_misses_nothing() {
    let mut cluster = Cluster::start(3);
    let mut keys = keys("before");
    let mut versions = write(&cluster, &[0, 1, 2], &keys);
    cluster.kill(LOST);
    cluster.lose_data(LOST);
    cluster.spawn(LOST);
    let meanwhile: Vec<_> = (0..100).map(|key| format!("meanwhile-{key}")).collect();
    versions.extend(write(&cluster, &[0, 1], &meanwhile));
    keys.extend(meanwhile);
    while cluster.sync_state(LOST) != "settled" {
        assert_never_missed(&cluster, 0, &keys);
        assert_never_missed(&cluster, LOST, &keys);
    }
    cluster.wait_until_up();
    for key in &keys {
        assert_eq!(cluster.exchange(LOST, get(&format!("{key}&ack=3"))).text(), *key);
    }
    // One of the other nodes is gone, so its own data must suffice now.
    cluster.kill(0);
    cluster.wait_until_seen(LOST, 0, "unreachable");
    cluster.wait_until_seen(1, 0, "unreachable");
    assert_found(&cluster, &[1, LOST], &keys);
    cluster.kill(LOST);
    for ((key, version), copy) in keys.iter().zip(&versions).zip(cluster.copies(LOST, &keys)) {
        assert_eq!(copy.map(|cell| cell.meta.version), Some(*version), "{key}");
    }
}

/// Where the first group of a segment of the log begins.
const SEGMENT_HEADER_BYTES: u64 = 512;

fn empty_shard(data: &Path) {
    fs::remove_dir_all(data.join("shard-000")).unwrap();
    fs::create_dir(data.join("shard-000")).unwrap();
}

fn cut_log(data: &Path) {
    let segments = fs::read_dir(data.join("shard-000/wal")).unwrap().map(|entry| entry.unwrap().path());
    let newest = segments.filter(|path| path.extension().is_some_and(|it| it == "wal")).max().unwrap();
    fs::OpenOptions::new().write(true).open(newest).unwrap().set_len(SEGMENT_HEADER_BYTES).unwrap();
}

fn cut_log_and_remove_mark(data: &Path) {
    cut_log(data);
    fs::remove_file(data.join("log-mark")).unwrap();
}

#[test]
fn a_directory_with_less_than_it_had_is_a_lost_disk_although_its_identity_is_there() {
    for lose in [empty_shard, cut_log, cut_log_and_remove_mark] {
        let mut cluster = Cluster::start(3);
        cluster.kill(0);
        let keys = keys("endangered");
        write(&cluster, &[1, LOST], &keys);
        cluster.kill(1);
        // A clean stop: the mark of the log is exact.
        cluster.stop(LOST);
        lose(cluster.data(LOST));
        // Only node 0, which missed all of it, and the one that lost it: two of three, and yet no
        // quorum.
        cluster.spawn(0);
        cluster.spawn(LOST);
        for node in [0, LOST] {
            eventually("the node serves", || cluster.serves(node));
            assert_never_missed(&cluster, node, &keys);
        }
        assert_eq!(cluster.sync_state(LOST), "rebuilding");
        assert!(cluster.log(LOST).contains("less than it had"), "{}", cluster.log(LOST));
        let (_, status) = cluster.status(LOST).expect("it answers");
        let warnings = status["warnings"].to_string();
        assert!(warnings.contains("it is being filled by the others"), "at once: {warnings}");
        eventually("its log says that it rebuilds", || cluster.log(LOST).contains("the node rebuilds"));
        eventually("so does that of a peer", || cluster.log(0).contains("a peer rebuilds"));
        cluster.spawn(1);
        eventually("it is rebuilt", || cluster.sync_state(LOST) == "settled");
        eventually("its log says so", || cluster.log(LOST).contains("the node has been rebuilt"));
        cluster.wait_until_up();
        assert_found(&cluster, &[0, 1, LOST], &keys);
    }
}

#[test]
fn a_node_of_a_new_cluster_that_serves_has_the_default_quorum() {
    for round in 0..3 {
        let mut cluster = Cluster::prepare(3, &[]);
        cluster.spawn(0);
        cluster.spawn(1);
        for node in [0, 1] {
            eventually("the first two serve", || cluster.serves(node));
        }
        cluster.spawn(2);
        eventually("the third serves", || cluster.serves(2));
        for answer in [cluster.exchange(2, get("k")), cluster.exchange(2, put("k", "v"))] {
            assert!([404, 201].contains(&answer.status), "round {round}: {}", answer.text());
        }
    }
}
