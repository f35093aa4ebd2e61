//! Metrics of the nodes of a cluster.

use super::harness::Cluster;
use crate::common::eventually;
use crate::common::exposition::Scrape;
use crate::common::http::{bare, get, put};

const PEERS: [usize; 2] = [1, 2];

#[track_caller]
fn scrape(cluster: &Cluster, node: usize) -> Scrape {
    let answer = cluster.exchange(node, bare("GET", "/metrics"));
    assert_eq!(answer.status, 200, "{answer:?}");
    Scrape::read(&answer.text()).unwrap_or_else(|wrong| panic!("{wrong}"))
}

#[test]
fn the_work_with_each_peer_is_told() {
    const WRITES: usize = 25;
    const READS: usize = 40;
    let cluster = Cluster::start(3);
    let before = scrape(&cluster, 0);
    for i in 0..WRITES {
        assert_eq!(cluster.exchange(0, put(&format!("k{i}"), "value")).status, 201);
    }
    for i in 0..READS {
        let expected = if i < WRITES { 200 } else { 404 };
        assert_eq!(cluster.exchange(0, get(&format!("k{i}"))).status, expected);
    }
    // One replica is no quorum to wait for.
    assert!(matches!(cluster.exchange(0, get("k0&ack=1&from=1")).status, 200 | 404));
    let after = scrape(&cluster, 0);
    after.assert_rises_from(&before);
    assert_eq!(after.get("veche_quorum_wait_seconds_count", &[("operation", "write")]), WRITES as f64);
    assert_eq!(after.get("veche_quorum_wait_seconds_count", &[("operation", "read")]), READS as f64);
    assert_eq!(after.sum("veche_request_seconds_count", &[("operation", "get")]), READS as f64 + 1.0);
    assert_eq!(after.get("veche_requests_total", &[("operation", "put"), ("status", "201")]), WRITES as f64);
    assert!(after.get("veche_quorum_wait_seconds_sum", &[("operation", "write")]) > 0.0);
    for peer in PEERS {
        let url = cluster.url(peer);
        let peer = [("peer", url.as_str())];
        let rise = |name: &str| after.get(name, &peer) - before.get(name, &peer);
        // A write goes to every replica.
        assert!(rise("veche_peer_messages_sent_total") >= WRITES as f64);
        assert!(rise("veche_peer_messages_received_total") >= WRITES as f64);
        assert!(rise("veche_peer_sent_bytes_total") > rise("veche_peer_messages_sent_total"));
        assert!(rise("veche_peer_received_bytes_total") > rise("veche_peer_messages_received_total"));
        assert!(after.get("veche_peer_links_opened_total", &peer) >= 2.0, "one in each direction");
        assert_eq!(after.get("veche_peer_state", &[peer[0], ("state", "up")]), 1.0);
        assert_eq!(after.sum("veche_peer_state", &peer), 1.0, "a peer is in one state");
        assert!(after.get("veche_peer_round_trip_seconds_count", &peer) > 0.0);
        assert!(after.get("veche_peer_clock_ahead_seconds", &peer).abs() < 5.0, "it is one clock");
        assert_eq!(after.get("veche_hints_dropped_total", &peer), 0.0);
    }
    assert_eq!(after.of("veche_peer_state").len(), 2 * 4, "a node is no peer of itself");
    assert_eq!(after.get("veche_standing", &[("standing", "settled")]), 1.0);
    assert_eq!(
        scrape(&cluster, 1).sum("veche_requests_total", &[("operation", "put")]),
        0.0,
        "peers do not ask so"
    );
}

#[test]
fn a_peer_that_is_away_shows_with_its_hints_until_they_are_delivered() {
    const WRITES: usize = 12;
    let mut cluster = Cluster::start(3);
    let url = cluster.url(2);
    let peer = [("peer", url.as_str())];
    cluster.kill(2);
    cluster.wait_until_seen(0, 2, "unreachable");
    for i in 0..WRITES {
        assert_eq!(cluster.exchange(0, put(&format!("k{i}"), "value")).status, 201);
    }
    let unwanted = cluster.exchange(0, put("k&ack=3&from=3", "value"));
    assert_eq!(unwanted.status, 504);
    eventually("hints are kept", || scrape(&cluster, 0).get("veche_hints", &peer) >= WRITES as f64);
    let away = scrape(&cluster, 0);
    assert_eq!(away.get("veche_peer_state", &[peer[0], ("state", "unreachable")]), 1.0);
    assert!(away.get("veche_hints_bytes", &peer) > 0.0);
    assert_eq!(away.get("veche_requests_total", &[("operation", "put"), ("status", "504")]), 1.0);
    assert_eq!(away.get("veche_not_enough_replicas_total", &[]), 1.0);
    let timed = |status| away.get("veche_request_seconds_count", &[("operation", "put"), ("status", status)]);
    assert_eq!((timed("2xx"), timed("5xx")), (WRITES as f64, 1.0));
    assert_eq!(
        away.get("veche_quorum_wait_seconds_count", &[("operation", "write")]),
        WRITES as f64,
        "one had none"
    );
    eventually("dials fail", || scrape(&cluster, 0).get("veche_peer_dials_failed_total", &peer) > 0.0);
    let kept = away.get("veche_hints", &peer);
    cluster.start_node(2);
    eventually("hints are delivered", || scrape(&cluster, 0).get("veche_hints", &peer) == 0.0);
    let back = scrape(&cluster, 0);
    assert!(back.get("veche_hints_delivered_total", &peer) >= kept);
    let (_, status) = cluster.status(0).expect("it answers");
    let delivered = status["requests"]["hints_delivered"].as_f64();
    assert_eq!(delivered, Some(scrape(&cluster, 0).sum("veche_hints_delivered_total", &[])));
    assert_eq!(back.get("veche_peer_state", &[peer[0], ("state", "up")]), 1.0);
}
