//! Layout records that a cluster decides by itself: the ids of its nodes, and their addresses.

use crate::common::http::{get, put};
use crate::common::{eventually, run, veche};
use crate::harness::{Cluster, free_address};
use serde_json::Value;
use std::net::SocketAddr;

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
    assert_eq!(first["feature_level"], ::cluster::FEATURE_LEVEL_PLANS, "all nodes are of this release");
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
    // A backup knows the address as well.
    let (backups, restored) = (cluster.dir().join("backups"), cluster.dir().join("restored"));
    let mut command = veche();
    command.args(["backup", "--url", &url, "--to"]).arg(&backups);
    assert_eq!(run(command).0, Some(0));
    let mut command = veche();
    command.args(["restore", "--peers-went-on", "--from"]).arg(&backups).arg("--data").arg(&restored);
    let (code, stdout, stderr) = run(command);
    assert_eq!(code, Some(0), "{stderr}");
    let start = format!("start it with: veche serve --data {}, and its other flags", restored.display());
    assert!(stdout.contains(&start), "{stdout}");
    // The record has the address, so the node needs no flag for it.
    cluster.stop(MOVES);
    for node in 0..2 {
        eventually("the log names it by the address", || {
            let log = cluster.log(node);
            log.lines().any(|line| line.contains("a peer cannot be reached") && line.contains(&url))
        });
    }
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
    assert!(stderr.contains("move one of them to a third address first"), "{stderr}");
}

/// Moves the node to another address and waits until all nodes have the address in their record.
#[track_caller]
fn move_node(cluster: &mut Cluster, node: usize, address: SocketAddr) {
    let id = id_of(cluster, node);
    cluster.stop(node);
    cluster.move_to(node, address);
    let mut command = cluster.command_with_list(node, "");
    command.args(["--self-url", &cluster.url(node)]);
    cluster.spawn_as(node, command);
    eventually("the node serves", || cluster.serves(node));
    let url = cluster.url(node);
    for other in 0..cluster.len() {
        eventually("the record has the new address", || {
            let layout = cluster.layout(other);
            let member = members(&layout).iter().find(|member| member["node_id"] == id).expect("a member");
            member["url"] == url
        });
    }
    cluster.wait_until_up();
}

/// The procedure of docs/operations.md.
#[test]
fn two_nodes_exchange_their_addresses_by_way_of_a_third_one() {
    let mut cluster = start_named(3);
    let (first, second) = (cluster.address(1), cluster.address(2));
    let ids = [id_of(&cluster, 1), id_of(&cluster, 2)];
    assert_eq!(cluster.exchange(0, put("k&ack=3", "v")).status, 201);
    move_node(&mut cluster, 1, free_address());
    move_node(&mut cluster, 2, first);
    move_node(&mut cluster, 1, second);
    assert_eq!([id_of(&cluster, 1), id_of(&cluster, 2)], ids);
    for node in 0..3 {
        assert_eq!(cluster.exchange(node, get("k&ack=3")).text(), "v");
    }
}

/// The warnings in the status of the node.
fn warnings(cluster: &Cluster, node: usize) -> String {
    let (_, status) = cluster.status(node).expect("the node answers");
    status["warnings"].to_string()
}

/// The lists of the other nodes have the former address, and that of the moved node the new one.
#[test]
fn a_list_that_is_older_than_a_move_is_said_to_be_harmless() {
    const MOVES: usize = 2;
    let mut cluster = start_named(3);
    let former = cluster.list();
    cluster.stop(MOVES);
    cluster.move_to(MOVES, free_address());
    cluster.spawn(MOVES);
    let url = cluster.url(MOVES);
    for node in 0..3 {
        eventually("the record has the new address", || {
            cluster.serves(node) && members(&cluster.layout(node)).iter().any(|member| member["url"] == url)
        });
    }
    assert!(!warnings(&cluster, MOVES).contains("--cluster lists"), "{}", warnings(&cluster, MOVES));
    cluster.stop(0);
    let command = cluster.command_with_list(0, &former);
    cluster.spawn_as(0, command);
    cluster.wait_until_up();
    for node in 0..2 {
        let told = warnings(&cluster, node);
        assert!(told.contains("the record counts, and the list only helps to find"), "{told}");
        assert!(told.contains("Update the list at leisure") && !told.contains("--data"), "{told}");
    }
    let log = cluster.log(0);
    assert!(log.contains("Update the list at leisure") && !log.contains("empty --data"), "{log}");
}

#[test]
fn an_address_that_does_not_lead_to_the_node_is_warned_of_by_the_node_and_its_peers() {
    const STATES: usize = 2;
    let mut cluster = start_named(3);
    let recorded = cluster.url(STATES);
    let mut other = Cluster::prepare(1, &[]);
    other.spawn(0);
    eventually("the node of another cluster serves", || other.serves(0));
    let nobody = format!("http://{}", free_address());
    for stated in [nobody, other.url(0)] {
        cluster.stop(STATES);
        let mut command = cluster.command_with_list(STATES, "");
        command.args(["--self-url", &stated]);
        cluster.spawn_as(STATES, command);
        cluster.wait_until_up();
        for node in 0..3 {
            eventually("the status says so", || {
                let told = warnings(&cluster, node);
                told.contains(&stated) && told.contains("--self-url")
            });
            eventually("the log says so", || {
                let log = cluster.log(node);
                log.lines().any(|line| line.contains("WARN") && line.contains(&stated))
            });
        }
        let layout = cluster.layout(0);
        assert!(members(&layout).iter().any(|member| member["url"] == recorded), "{layout}");
    }
    cluster.stop(STATES);
    cluster.spawn(STATES);
    cluster.wait_until_up();
    for node in 0..3 {
        eventually("nothing is warned of", || !warnings(&cluster, node).contains("--self-url"));
    }
}
