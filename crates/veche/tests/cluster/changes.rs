//! Clusters that grow, shrink and replace nodes while they serve.
//!
//! Clients write and read through the nodes during each change, and their history is checked.

use crate::common::http::{bare, get, put};
use crate::common::small_disk::SmallDisk;
use crate::common::{eventually, run};
use crate::harness::Cluster;
use crate::probe::Probe;
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;

/// Answered operations between two actions of the operator.
const ANSWERS: u64 = 120;
/// Keys beside those of the clients.
const KEYS: usize = 400;
const VALUE_BYTES: usize = 4 << 10;
/// Longer than a node takes to be counted out.
const HANG: Duration = Duration::from_millis(1_500);
/// Flags of all nodes: requests that a node which is down delays end soon.
const FLAGS: [&str; 2] = ["--request-timeout", "2s"];

fn addresses(cluster: &Cluster, nodes: &[usize]) -> Vec<SocketAddr> {
    nodes.iter().map(|node| cluster.address(*node)).collect()
}

fn value(key: usize) -> Vec<u8> {
    vec![b'a' + (key % 26) as u8; VALUE_BYTES]
}

/// Stores the keys through a node.
fn fill(cluster: &Cluster, by: usize) {
    let mut connection = cluster.connect(by);
    for key in 0..KEYS {
        let stored = || connection.exchange(put(&format!("key-{key}"), value(key))).status == 201;
        eventually("the value is stored", stored);
    }
}

/// Asserts that a node reads all keys.
#[track_caller]
fn assert_filled(cluster: &Cluster, by: usize) {
    let mut connection = cluster.connect(by);
    for key in 0..KEYS {
        let name = format!("key-{key}");
        let mut found = None;
        eventually("the key can be read", || {
            let answer = connection.exchange(get(&name));
            let is_read = ![503, 504].contains(&answer.status);
            found = is_read.then_some(answer);
            is_read
        });
        let found = found.expect("the key can be read");
        assert_eq!((found.status, &found.body[..]), (200, &value(key)[..]), "{name}");
    }
}

/// Waits until a change that runs has moved data, and moves more.
#[track_caller]
fn wait_until_midway(cluster: &Cluster, by: usize) {
    eventually("the change is midway", || {
        let Some(layout) = cluster.try_layout(by) else { return false };
        assert!(layout["plan"].is_object(), "the change has ended too early: {layout}");
        layout["plan"]["steps"].as_array().is_some_and(|steps| !steps.is_empty())
    });
}

/// The URLs of members that the record of a node says hold a share of the data.
fn holders(layout: &Value) -> usize {
    let members = layout["members"].as_array().expect("a list").iter();
    members.filter(|member| member["share"].as_f64().is_some_and(|share| share > 0.0)).count()
}

#[test]
fn a_single_node_with_data_grows_to_three_and_five() {
    let mut cluster = Cluster::start_with(1, &FLAGS);
    fill(&cluster, 0);
    Probe::run(addresses(&cluster, &[0]), 1, |probe| {
        for nodes in [3, 5] {
            probe.wait_for_answers(ANSWERS);
            let old = cluster.len();
            let new: Vec<usize> = (old..nodes).map(|_| cluster.join(0)).collect();
            let added: Vec<String> = new.iter().map(|node| cluster.url(*node)).collect();
            cluster.begin_change(0, &["--add", &added.join(",")]);
            let all: Vec<usize> = (0..nodes).collect();
            cluster.wait_until_changed(&all);
            probe.use_nodes(addresses(&cluster, &all));
            probe.wait_for_answers(ANSWERS);
            assert_eq!(holders(&cluster.layout(0)), nodes);
            all.iter().for_each(|node| assert_eq!(cluster.members(*node), cluster.urls(&all)));
            assert_filled(&cluster, nodes - 1);
        }
        probe.assert_none_failed();
    });
    // What a node holds is its part: a stopped node takes nothing else away.
    cluster.stop_all();
    (0..cluster.len()).for_each(|node| cluster.spawn(node));
    cluster.wait_until_up();
    assert_filled(&cluster, 2);
    cluster.stop_all();
}

#[test]
fn three_nodes_grow_to_five_while_nodes_are_killed_and_hang() {
    let mut cluster = Cluster::start_with(3, &FLAGS);
    fill(&cluster, 0);
    Probe::run(addresses(&cluster, &[0, 1, 2]), 2, |probe| {
        let new = [cluster.join(0), cluster.join(2)];
        let added = new.map(|node| cluster.url(node)).join(",");
        cluster.begin_change(1, &["--add", &added, "--limit", "500KiB/s"]);
        let all = [0, 1, 2, 3, 4];
        probe.use_nodes(addresses(&cluster, &all));
        for (number, node) in [0, 3, 1, 4, 2].into_iter().enumerate() {
            wait_until_midway(&cluster, (node + 1) % 5);
            probe.wait_for_answers(ANSWERS);
            if number % 2 == 0 {
                cluster.kill(node);
                probe.wait_for_answers(ANSWERS);
                cluster.spawn(node);
            } else {
                cluster.pause(node);
                std::thread::sleep(HANG);
                cluster.resume(node);
            }
            cluster.wait_until_up();
        }
        cluster.layout_command(0, &["limit", "none"]).expect("the limit ends");
        cluster.wait_until_changed(&all);
        probe.wait_for_answers(ANSWERS);
    });
    assert_filled(&cluster, 3);
    assert_eq!(holders(&cluster.layout(4)), 5);
    cluster.stop_all();
}

#[test]
fn five_nodes_shrink_to_three_and_the_removed_ones_end_and_are_refused_for_ever() {
    let mut cluster = Cluster::start_with(5, &FLAGS);
    cluster.wait_until_named();
    fill(&cluster, 4);
    Probe::run(addresses(&cluster, &[0, 1, 2]), 3, |probe| {
        let removed = format!("{},{}", cluster.url(3), cluster.url(4));
        cluster.begin_change(4, &["--remove", &removed]);
        cluster.wait_until_changed(&[0, 1, 2]);
        probe.wait_for_answers(ANSWERS);
        probe.assert_none_failed();
    });
    for node in [3, 4] {
        assert!(!cluster.wait_until_ended(node), "its supervisor is not to start it again");
        assert!(
            cluster.log(node).contains("this node is no member of its cluster any more"),
            "{}",
            cluster.log(node)
        );
        // With its old directory it is refused, and ends.
        cluster.spawn(node);
        assert!(!cluster.wait_until_ended(node));
    }
    assert_eq!(cluster.members(0), cluster.urls(&[0, 1, 2]));
    assert_filled(&cluster, 1);
}

#[test]
fn a_removed_node_joins_again_with_an_empty_directory() {
    let mut cluster = Cluster::start_with(4, &FLAGS);
    cluster.wait_until_named();
    fill(&cluster, 0);
    Probe::run(addresses(&cluster, &[0, 1, 2]), 4, |probe| {
        cluster.begin_change(0, &["--remove", &cluster.url(3)]);
        cluster.wait_until_changed(&[0, 1, 2]);
        cluster.wait_until_ended(3);
        cluster.lose_data(3);
        cluster.spawn_joining(3, 1);
        cluster.wait_until_joined(3);
        cluster.begin_change(3, &["--add", &cluster.url(3)]);
        cluster.wait_until_changed(&[0, 1, 2, 3]);
        probe.use_nodes(addresses(&cluster, &[0, 1, 2, 3]));
        probe.wait_for_answers(ANSWERS);
        probe.assert_none_failed();
    });
    assert_eq!(holders(&cluster.layout(3)), 4);
    assert_filled(&cluster, 3);
}

#[test]
fn a_dead_node_is_replaced_while_another_one_hangs_at_times() {
    let mut cluster = Cluster::start_with(4, &FLAGS);
    cluster.wait_until_named();
    fill(&cluster, 0);
    Probe::run(addresses(&cluster, &[0, 1, 2]), 5, |probe| {
        probe.wait_for_answers(ANSWERS);
        cluster.kill(3);
        let new = cluster.join(0);
        let replace = format!("{}={}", cluster.url(3), cluster.url(new));
        cluster.begin_change(1, &["--replace", &replace, "--dead"]);
        for _ in 0..3 {
            cluster.pause(2);
            std::thread::sleep(HANG);
            cluster.resume(2);
            probe.wait_for_answers(ANSWERS);
        }
        cluster.wait_until_changed(&[0, 1, 2, new]);
        probe.use_nodes(addresses(&cluster, &[0, 1, 2, new]));
        probe.wait_for_answers(ANSWERS);
        assert_eq!(cluster.members(new), cluster.urls(&[0, 1, 2, new]));
    });
    assert_filled(&cluster, 4);
}

#[test]
fn a_change_is_cancelled_midway_and_another_one_ends() {
    let mut cluster = Cluster::start_with(3, &FLAGS);
    fill(&cluster, 0);
    Probe::run(addresses(&cluster, &[0, 1, 2]), 6, |probe| {
        let new = cluster.join(0);
        let before = holders(&cluster.layout(0));
        cluster.begin_change(0, &["--add", &cluster.url(new), "--limit", "100KiB/s"]);
        wait_until_midway(&cluster, 0);
        cluster.layout_command(1, &["pause"]).expect("it is paused");
        assert_eq!(cluster.layout(1)["plan"]["state"], "paused");
        cluster.layout_command(2, &["resume"]).expect("it goes on");
        probe.wait_for_answers(ANSWERS);
        cluster.layout_command(2, &["cancel"]).expect("it is cancelled");
        cluster.wait_until_changed(&[0, 1, 2, new]);
        let layout = cluster.layout(0);
        assert!(holders(&layout) >= before, "{layout}");
        probe.wait_for_answers(ANSWERS);
        cluster.begin_change(new, &["--add", &cluster.url(new)]);
        cluster.wait_until_changed(&[0, 1, 2, new]);
        assert_eq!(holders(&cluster.layout(0)), 4);
        probe.wait_for_answers(ANSWERS);
        probe.assert_none_failed();
    });
    assert_filled(&cluster, 3);
}

#[test]
fn a_full_disk_at_the_gaining_node_pauses_its_copies_and_says_so() {
    let mut cluster = Cluster::start_with(3, &FLAGS);
    fill(&cluster, 0);
    let new = cluster.prepare_another();
    let Some(disk) = SmallDisk::mount(cluster.data(new), 64) else { return };
    cluster.spawn_joining(new, 0);
    cluster.wait_until_joined(new);
    cluster.begin_change(0, &["--add", &cluster.url(new), "--limit", "200KiB/s"]);
    wait_until_midway(&cluster, 0);
    // Room for small files is left.
    let other_data = disk.fill(0.9);
    let mut layout = Value::Null;
    eventually("the change says that it waits for room", || {
        layout = cluster.layout(new);
        let steps = layout["plan"]["steps"].as_array().cloned().unwrap_or_default();
        steps.iter().any(|step| step["waits_for"].as_str().is_some_and(|wait| wait.contains("disk")))
    });
    assert_eq!(cluster.exchange(0, put("meanwhile", "v")).status, 201);
    std::fs::remove_file(other_data).expect("it is there");
    cluster.layout_command(0, &["limit", "none"]).expect("the limit ends");
    cluster.wait_until_changed(&[0, 1, 2, new]);
    assert_eq!(holders(&cluster.layout(new)), 4);
    assert_filled(&cluster, new);
    assert_eq!(cluster.exchange(new, bare("GET", "/v0/status")).status, 200);
    cluster.stop_all();
}

#[test]
fn a_node_that_has_lost_its_disk_joins_again_at_its_address() {
    let mut cluster = Cluster::start_with(3, &FLAGS);
    cluster.wait_until_named();
    fill(&cluster, 0);
    Probe::run(addresses(&cluster, &[0, 1]), 7, |probe| {
        probe.wait_for_answers(ANSWERS);
        // While the member serves, no other node gets its address.
        let other = cluster.prepare_another();
        let mut command = cluster.plain_command(other);
        command.args(["--join", &cluster.url(0), "--self-url", &cluster.url(2)]);
        let (code, _, err) = run(command);
        assert!(code == Some(1) && err.contains("a member has the URL"), "{err}");
        cluster.kill(2);
        cluster.lose_data(2);
        cluster.wait_until_seen(0, 2, "unreachable");
        cluster.spawn_joining(2, 0);
        eventually("it is rebuilt", || cluster.sync_state(2) == "settled");
        eventually("the record names it", || cluster.layout(2)["voters_replaced"] == serde_json::json!([]));
        probe.use_nodes(addresses(&cluster, &[0, 1, 2]));
        probe.wait_for_answers(ANSWERS);
    });
    assert_eq!(cluster.members(2), cluster.urls(&[0, 1, 2]), "it has taken the place of the former node");
    assert_filled(&cluster, 2);
}
