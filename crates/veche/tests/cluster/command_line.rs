//! Commands of an operator on a cluster.

use crate::common::http::{bare, put};
use crate::common::{run, veche};
use crate::harness::Cluster;

#[test]
fn status_is_a_table_of_nodes() {
    let mut cluster = Cluster::start(3);
    assert_eq!(cluster.exchange(0, put("k&ack=3", "v")).status, 201);
    let status = |cluster: &Cluster| {
        let mut command = veche();
        command.args(["status", "--url", &cluster.url(0)]);
        run(command)
    };
    let line_of = |out: &str, url: &str| {
        let line = out.lines().skip(2).find(|line| line.starts_with(url)).expect("a line for each node");
        line.to_owned()
    };
    let (code, out, err) = status(&cluster);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.starts_with(&format!("{}: serving", cluster.url(0))), "{out}");
    assert!(out.lines().next().is_some_and(|line| line.ends_with("ack/from 2/3")), "{out}");
    assert!(line_of(&out, &cluster.url(0)).contains("this node"), "{out}");
    for peer in [1, 2] {
        let line = line_of(&out, &cluster.url(peer));
        assert!(line.contains("up") && line.contains("settled"), "{out}");
    }
    cluster.kill(1);
    cluster.wait_until_seen(0, 1, "unreachable");
    assert_eq!(cluster.exchange(0, put("k", "w")).status, 201);
    let (code, out, err) = status(&cluster);
    assert_eq!(code, Some(0), "{err}");
    assert!(line_of(&out, &cluster.url(1)).contains("unreachable"), "{out}");
}

#[test]
fn status_tells_of_links_and_round_trips() {
    let cluster = Cluster::start(3);
    assert_eq!(cluster.exchange(0, put("k&ack=3", "v")).status, 201);
    let (_, status) = cluster.status(0).expect("it answers");
    assert_eq!(status["cluster"]["standing"], "settled");
    assert_eq!(status["cluster"]["ready"], true);
    for member in ["dialed", "accepted", "sent_messages", "sent_bytes", "write_calls", "received_bytes"] {
        assert!(
            status["links"][member].as_u64().is_some_and(|count| count > 0),
            "{member}: {}",
            status["links"]
        );
    }
    let peer = cluster.status_of(0, 1);
    assert!(peer["round_trip_us"].as_u64().is_some(), "{peer}");
    assert!(peer["clock_ahead_ms"].as_i64().is_some_and(|millis| millis.abs() < 10_000), "{peer}");
}

#[test]
fn repair_is_a_post_and_nothing_else() {
    let cluster = Cluster::start(2);
    for method in ["GET", "PUT", "DELETE"] {
        let refused = cluster.exchange(0, bare(method, "/v0/repair"));
        refused.assert_problem(405, "POST");
        assert_eq!(refused.header("allow"), Some("POST"));
    }
    assert_eq!(cluster.exchange(0, bare("POST", "/v0/repair")).status, 202);
    let alone = Cluster::start(1);
    let mut command = veche();
    command.args(["repair", "--url", &alone.url(0)]);
    let (code, out, err) = run(command);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("no replicas to compare with"), "{out}");
}
