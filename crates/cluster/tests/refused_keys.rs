//! A replica that has refused the newest cell of a key gives no answers for that key, and normal
//! answers for all others. A replica that is not read-eligible gives none for any key.

mod world;

use bytes::Bytes;
use cluster::{
    Command, CommandFailure, CoordinatorLimits, Cut, KeyRange, Lifetime, NodeIndex, NodeSet, Quorum,
    RefusedKey, RefusedKeys, Reply, Scan, ScanId, ScanScope, Shortfall,
};
use stdx::{Cell, Hlc, NodeTag, Version};
use world::{World, key};

/// Three nodes that hold the keys `a`, `k` and `z`. Node 0 has refused `k`, and holds an older
/// version of it.
fn cluster() -> World {
    let limits = CoordinatorLimits { reads_for_one_of_all: 0, ..CoordinatorLimits::default() };
    let mut cluster = World::of_coordinators(3, limits, 1);
    let cell = |at: u64, value| {
        let version = Version::new(Hlc::at(cluster.now_at(0).wall).next(), NodeTag(at));
        Cell::value(version, 3, Bytes::from_static(value))
    };
    let (older, newer) = (cell(1, b"older"), cell(2, b"newer"));
    for node in 0..3 {
        for name in ["a", "z"] {
            cluster.hosts[node].store.cells.insert(key(name), older.clone());
        }
        let of_k = if node == 0 { &older } else { &newer };
        cluster.hosts[node].store.cells.insert(key("k"), of_k.clone());
    }
    let refusal =
        RefusedKey { since: Hlc::at(cluster.now_at(0).wall), holders: NodeSet::from_iter([NodeIndex(1)]) };
    let refused = RefusedKeys::of([(key("k"), refusal)].into()).expect("one key");
    cluster.hosts[0].view.refused = refused;
    cluster.publish(0);
    cluster
}

fn get(cluster: &mut World, node: usize, name: &str, quorum: Quorum) -> Reply {
    let id = cluster.submit(node, Command::Get { key: key(name), quorum });
    cluster.settle();
    cluster.replies.remove(&id).expect("a reply")
}

/// The values of all keys from `from` on, or the failure of the scan.
fn scan(
    cluster: &mut World,
    node: usize,
    from: &str,
    scope: ScanScope,
) -> Result<Vec<Bytes>, CommandFailure> {
    let range = KeyRange { from: Some(Cut::Before(key(from))), to: None };
    let (id, mut values) = (ScanId(7), Vec::new());
    let mut asked = cluster.submit(node, Command::Scan { id, scan: Scan { range, limit: None, scope } });
    loop {
        cluster.settle();
        match cluster.replies.remove(&asked).expect("a reply") {
            Reply::Page { page, is_last } => {
                values.extend(page.entries().map(|entry| Bytes::copy_from_slice(entry.cell.value)));
                if is_last {
                    return Ok(values);
                }
            }
            Reply::Failed(failure) => return Err(failure),
            reply => panic!("a scan was answered with {reply:?}"),
        }
        asked = cluster.submit(node, Command::NextPage { id });
    }
}

fn is_short(failure: &CommandFailure, of: Shortfall) -> bool {
    matches!(failure, CommandFailure::NotEnoughReplicas { shortfall, .. } if *shortfall == of)
}

#[test]
fn a_read_counts_no_replica_that_has_refused_the_key() {
    let mut cluster = cluster();
    let (one, two, three) = (cluster.quorum(1, 3), cluster.quorum(2, 3), cluster.quorum(3, 3));
    for node in 0..3 {
        for quorum in [one, two] {
            for _ in 0..20 {
                let reply = get(&mut cluster, node, "k", quorum);
                assert!(matches!(&reply, Reply::Found { cell, .. } if cell.value == "newer"), "{reply:?}");
            }
        }
        let reply = get(&mut cluster, node, "k", three);
        assert!(matches!(&reply, Reply::Failed(CommandFailure::NotEnoughReplicas { .. })), "{reply:?}");
        assert!(matches!(get(&mut cluster, node, "a", three), Reply::Found { .. }));
    }
}

#[test]
fn the_only_replica_fails_instead_of_reporting_a_missing_key() {
    for node in 0..3 {
        let mut cluster = cluster();
        let name = (0..100).map(|i| format!("k{i}"));
        let is_first = |name: &String| cluster.layout.replicas(&key(name), 1) == [NodeIndex(0)];
        let name = name.into_iter().find(is_first).expect("node 0 is the first replica of some key");
        let refusal = RefusedKey { since: Hlc::ZERO, holders: NodeSet::from_iter([NodeIndex(1)]) };
        cluster.hosts[0].view.refused = RefusedKeys::of([(key(&name), refusal)].into()).expect("one key");
        cluster.publish(0);
        let quorum = cluster.quorum(1, 1);
        let reply = get(&mut cluster, node, &name, quorum);
        let shortfall = if node == 0 { Shortfall::Refused } else { Shortfall::Unanswered };
        assert!(matches!(&reply, Reply::Failed(failure) if is_short(failure, shortfall)), "{reply:?}");
        let put = Command::Put { key: key(&name), value: Bytes::new(), lifetime: Lifetime::Forever, quorum };
        let id = cluster.submit(node, put);
        cluster.settle();
        assert!(matches!(cluster.replies[&id], Reply::Written { .. }), "writes are stored as ever");
    }
}

#[test]
fn a_scan_of_the_node_fails_where_it_covers_a_refused_key() {
    let mut cluster = cluster();
    let failure = scan(&mut cluster, 0, "a", ScanScope::Node).expect_err("it holds no newest state of k");
    assert!(is_short(&failure, Shortfall::Refused), "{failure:?}");
    assert_eq!(scan(&mut cluster, 0, "l", ScanScope::Node).expect("without k").len(), 1);
    assert_eq!(scan(&mut cluster, 1, "a", ScanScope::Node).expect("another node").len(), 3);
}

#[test]
fn a_scan_of_the_cluster_takes_a_refused_key_from_other_replicas() {
    for node in 0..3 {
        let mut cluster = cluster();
        for ack in [1, 2] {
            let scope = ScanScope::Cluster(cluster.quorum(ack, 3));
            let values = scan(&mut cluster, node, "a", scope).expect("two nodes do");
            assert_eq!(values, ["older", "newer", "older"]);
        }
        let scope = ScanScope::Cluster(cluster.quorum(3, 3));
        scan(&mut cluster, node, "a", scope).expect_err("one of three says nothing");
        assert_eq!(scan(&mut cluster, node, "l", scope).expect("without k").len(), 1);
    }
}

#[test]
fn a_node_that_is_not_read_eligible_refuses_reads_and_stores_writes() {
    let mut cluster = cluster();
    // The views of the others are not up to date.
    cluster.hosts[2].view.peers[2].read_eligible = false;
    cluster.publish(2);
    let (two, three) = (cluster.quorum(2, 3), cluster.quorum(3, 3));
    assert!(matches!(get(&mut cluster, 1, "a", two), Reply::Found { .. }), "two others answer");
    assert!(matches!(get(&mut cluster, 1, "a", three), Reply::Failed(_)), "one says nothing");
    scan(&mut cluster, 1, "l", ScanScope::Cluster(three)).expect_err("one says nothing");
    let put = Command::Put { key: key("a"), value: Bytes::new(), lifetime: Lifetime::Forever, quorum: three };
    let id = cluster.submit(1, put);
    cluster.settle();
    assert!(matches!(cluster.replies[&id], Reply::Written { .. }), "{:?}", cluster.replies[&id]);
}

#[test]
fn a_scan_fails_at_once_when_a_needed_participant_is_not_read_eligible_any_more() {
    let mut cluster = cluster();
    let range = KeyRange { from: Some(Cut::Before(key("l"))), to: None };
    let scan = Scan { range, limit: None, scope: ScanScope::Cluster(cluster.quorum(3, 3)) };
    let id = cluster.submit(0, Command::Scan { id: ScanId(1), scan });
    assert!(cluster.replies.is_empty() && cluster.in_flight().next().is_some(), "it waits for pages");
    cluster.hosts[0].view.peers[1].read_eligible = false;
    cluster.publish(0);
    let reply = &cluster.replies[&id];
    assert!(matches!(reply, Reply::Failed(failure) if is_short(failure, Shortfall::Unanswered)), "{reply:?}");
}
