//! Layout records that a cluster decides by itself: the ids of its nodes, and their addresses.

use crate::common::http::{get, put};
use crate::common::{eventually, run};
use crate::harness::{Cluster, free_address};
use serde_json::Value;

fn members(layout: &Value) -> &[Value] {
    layout["members"].as_array().expect("a list")
}

/// A cluster whose nodes all hold one record that names their ids.
#[track_caller]
fn start_named(nodes: usize) -> Cluster {
    let cluster = Cluster::start(nodes);
    cluster.wait_until_named();
    cluster
}

/// The id of the member at the address of `node`.
fn id_of(cluster: &Cluster, node: usize) -> Value {
    let layout = cluster.layout(0);
    let member = members(&layout).iter().find(|member| member["url"] == cluster.url(node));
    member.expect("a member")["node_id"].clone()
}

#[test]
fn a_new_cluster_names_its_nodes_and_remembers_them() {
    let mut cluster = start_named(3);
    let first = cluster.layout(0);
    assert!(first["epoch"].as_u64() >= Some(2), "{first}");
    assert_eq!(first["feature_level"], ::cluster::FEATURE_LEVEL_NAMED, "all nodes are of this release");
    for node in 0..3 {
        assert!(cluster.log(node).contains("has the node id"), "{}", cluster.log(node));
    }
    (0..3).for_each(|node| cluster.kill(node));
    (0..3).for_each(|node| cluster.spawn(node));
    cluster.wait_until_up();
    cluster.wait_until_named();
    let ids = |layout: &Value| members(layout).iter().map(|it| it["node_id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&cluster.layout(2)), ids(&first));
    assert_eq!(cluster.exchange(0, put("k&ack=3", "v")).status, 201);
}

#[test]
fn a_node_that_moves_keeps_its_identity_and_the_record_follows() {
    const MOVES: usize = 2;
    let mut cluster = start_named(3);
    assert_eq!(cluster.exchange(0, put("k&ack=3", "v")).status, 201);
    let id = id_of(&cluster, MOVES);
    cluster.stop(MOVES);
    cluster.move_to(MOVES, free_address());
    let mut command = cluster.command_with_list(MOVES, "");
    command.args(["--self-url", &cluster.url(MOVES)]);
    cluster.spawn_as(MOVES, command);
    eventually("the node serves", || cluster.serves(MOVES));
    eventually("the log says so", || cluster.log(MOVES).contains("it keeps its identity"));
    let url = cluster.url(MOVES);
    for node in 0..3 {
        eventually("the record has the new address", || {
            let layout = cluster.layout(node);
            let member = members(&layout).iter().find(|member| member["node_id"] == id).expect("a member");
            member["url"] == url && member["health"] == "up"
        });
    }
    cluster.wait_until_up();
    assert_eq!(cluster.exchange(MOVES, get("k&ack=3")).text(), "v");
    assert!(cluster.log(0).contains("has moved to"), "{}", cluster.log(0));
    // The record has the address, so the node needs no flag for it.
    cluster.stop(MOVES);
    let command = cluster.command_with_list(MOVES, "");
    cluster.spawn_as(MOVES, command);
    cluster.wait_until_up();
}

/// With one of two nodes, no record can name an id.
#[test]
fn a_node_without_a_named_id_is_refused_at_another_address_and_told_what_to_do() {
    let mut cluster = Cluster::prepare(2, &[]);
    cluster.spawn(0);
    eventually("the node serves", || cluster.serves(0));
    cluster.stop(0);
    let former = cluster.url(0);
    cluster.move_to(0, free_address());
    let mut command = cluster.command_with_list(0, "");
    command.args(["--self-url", &cluster.url(0)]);
    let (code, _, stderr) = run(command);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains(&format!("start it with --self-url {former}")), "{stderr}");
    assert!(stderr.contains("once the layout record names its id"), "{stderr}");
}

#[test]
fn a_node_is_not_started_at_the_address_of_another_member() {
    let mut cluster = start_named(3);
    cluster.stop(1);
    let mut command = cluster.command_with_list(1, "");
    command.args(["--self-url", &cluster.url(0)]);
    let (code, _, stderr) = run(command);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("is the address of another member of its cluster"), "{stderr}");
}
