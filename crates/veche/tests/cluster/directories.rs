//! Data directories that are new, older than their peers remember, or in use twice.

use crate::common::eventually;
use crate::common::http::{get, put};
use crate::harness::Cluster;
use std::path::Path;
use std::process::Command;

/// The node whose directory is changed.
const CHANGED: usize = 2;

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("a file");
        }
    }
}

/// Two of three new nodes settle when the operator says so, and the third joins them without the
/// flag.
#[track_caller]
fn assert_founds_a_cluster(new_cluster: impl Fn(&mut Command)) {
    let mut cluster = Cluster::prepare(3, &[]);
    for node in [0, 1] {
        let mut command = cluster.command(node);
        new_cluster(&mut command);
        cluster.spawn_as(node, command);
    }
    for node in [0, 1] {
        eventually("it serves", || cluster.serves(node));
        eventually("it has settled", || cluster.sync_state(node) == "settled");
    }
    cluster.wait_until_seen(0, 1, "up");
    eventually("a majority answers", || cluster.exchange(0, get("k")).status == 404);
    assert_eq!(cluster.exchange(1, put("k", "v")).status, 201);
    assert_eq!(cluster.exchange(0, get("k")).text(), "v");
    cluster.start_node(2);
    eventually("the third belongs to it", || cluster.sync_state(2) == "settled");
    eventually("all have it", || cluster.exchange(2, get("k&ack=3")).status == 200);
}

#[test]
fn new_nodes_with_one_missing_wait_for_it() {
    let mut cluster = Cluster::prepare(3, &[]);
    (0..2).for_each(|node| cluster.spawn(node));
    for node in [0, 1] {
        eventually("it serves", || cluster.serves(node));
    }
    cluster.wait_until_seen(0, 1, "up");
    assert_eq!(cluster.sync_state(0), "unsettled");
    assert_eq!(cluster.exchange(0, get("k")).status, 504);
}

#[test]
fn the_flag_founds_a_cluster_with_a_node_missing() {
    assert_founds_a_cluster(|command| {
        command.arg("--new-cluster");
    });
}

#[test]
fn the_environment_founds_a_cluster_with_a_node_missing() {
    assert_founds_a_cluster(|command| {
        command.env("VECHE_NEW_CLUSTER", "true");
    });
}

#[test]
fn a_directory_that_was_rolled_back_is_filled_by_the_others() {
    let mut cluster = Cluster::start(3);
    assert_eq!(cluster.exchange(0, put("before&ack=3", "v")).status, 201);
    cluster.stop(CHANGED);
    let aside = cluster.dir().join("aside");
    copy_dir(cluster.data(CHANGED), &aside);
    cluster.start_node(CHANGED);
    let keys: Vec<String> = (0..20).map(|number| format!("later-{number}")).collect();
    for key in &keys {
        assert_eq!(cluster.exchange(0, put(&format!("{key}&ack=3"), key)).status, 201);
    }
    cluster.stop(CHANGED);
    cluster.lose_data(CHANGED);
    std::fs::rename(aside, cluster.data(CHANGED)).expect("the older state");
    cluster.spawn(CHANGED);
    eventually("it serves", || cluster.serves(CHANGED));
    // Until it has been filled its own answers do not count.
    for key in &keys {
        let answer = cluster.exchange(CHANGED, get(&format!("{key}&ack=1")));
        assert!(answer.status == 504 || answer.text() == *key, "{key}: {answer:?}");
    }
    eventually("it says that it is being filled", || cluster.sync_state(CHANGED) == "rebuilding");
    eventually("it is filled", || cluster.sync_state(CHANGED) == "settled");
    cluster.stop(CHANGED);
    let held = cluster.copies(CHANGED, &keys);
    assert!(held.iter().all(Option::is_some), "{held:?}");
}

#[test]
fn a_copy_beside_its_original_is_refused_and_its_answers_do_not_count() {
    let mut cluster = Cluster::start(3);
    assert_eq!(cluster.exchange(0, put("k&ack=3", "v")).status, 201);
    cluster.stop(CHANGED);
    let mut copy = Cluster::place_of_copy();
    copy_dir(cluster.data(CHANGED), copy.data(0));
    cluster.start_node(CHANGED);
    assert_eq!(cluster.exchange(0, put("k&ack=3", "newer")).status, 201);
    let command = cluster.command_of_copy(CHANGED, &copy);
    copy.spawn_as(0, command);
    eventually("it serves", || copy.serves(0));
    eventually("it says why", || copy.log(0).contains("another process answers at the address of this node"));
    eventually("the others say so", || cluster.log(0).contains("a second process calls itself this node"));
    assert_eq!(copy.exchange(0, get("k&ack=1")).status, 504);
    eventually("it is to be filled", || copy.sync_state(0) == "rebuilding");
    assert_eq!(cluster.exchange(CHANGED, get("k&ack=1")).text(), "newer");
    assert_eq!(cluster.sync_state(CHANGED), "settled");
    copy.kill(0);
    // The way out: the original alone.
    assert_eq!(cluster.exchange(CHANGED, get("k&ack=3")).text(), "newer");
}
