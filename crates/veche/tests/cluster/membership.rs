//! Who belongs to a cluster, and who is turned away.

use crate::common::eventually;
use crate::common::http::{bare, get, put};
use crate::common::{run, veche};
use crate::harness::{Cluster, free_address};

/// The node that does not belong.
const UNKNOWN_PEER: usize = 1;

#[test]
fn a_changed_list_is_warned_of_and_the_layout_record_counts() {
    let mut cluster = Cluster::start(2);
    assert_eq!(cluster.exchange(0, put("k", "v")).status, 201);
    let longer = format!("{},http://{}", cluster.list(), free_address());
    let strange = format!("http://{},http://{}", free_address(), free_address());
    for list in [longer, strange] {
        cluster.stop(UNKNOWN_PEER);
        let command = cluster.command_with_list(UNKNOWN_PEER, &list);
        cluster.spawn_as(UNKNOWN_PEER, command);
        cluster.wait_until_up();
        assert_eq!(cluster.exchange(UNKNOWN_PEER, get("k&ack=2")).text(), "v");
        let warning = format!("--cluster lists {}", sorted(&list));
        // A node may answer before the thread that starts it writes the line.
        eventually("the warning is logged", || cluster.log(UNKNOWN_PEER).contains(&warning));
        let (_, status) = cluster.status(UNKNOWN_PEER).expect("it answers");
        assert!(status["warnings"].to_string().contains("the record counts"), "{status}");
        assert_eq!(status["nodes"].as_array().map(Vec::len), Some(2), "{status}");
    }
}

fn sorted(list: &str) -> String {
    let mut nodes: Vec<_> = list.split(',').collect();
    nodes.sort_unstable();
    nodes.join(",")
}

#[test]
fn a_node_with_a_layout_record_needs_no_list() {
    let mut cluster = Cluster::start(2);
    assert_eq!(cluster.exchange(0, put("k", "v")).status, 201);
    cluster.stop(UNKNOWN_PEER);
    let command = cluster.command_with_list(UNKNOWN_PEER, "");
    cluster.spawn_as(UNKNOWN_PEER, command);
    cluster.wait_until_up();
    assert_eq!(cluster.exchange(UNKNOWN_PEER, get("k&ack=2")).text(), "v");
}

/// A data directory of a larger cluster, started with the list of a smaller one.
#[test]
fn a_node_of_another_cluster_is_refused_and_told_what_to_do() {
    let mut cluster = Cluster::start(2);
    cluster.stop(UNKNOWN_PEER);
    let mut other = Cluster::place_of_copy();
    let larger = format!("{},http://{}", cluster.list(), free_address());
    let mut command = other.command_with_list(0, &larger);
    command.args(["--self-url", &cluster.url(UNKNOWN_PEER)]);
    other.spawn_as(0, command);
    eventually("it serves", || other.serves(0));
    other.stop(0);
    let command = cluster.command_of_copy(UNKNOWN_PEER, &other);
    other.spawn_as(0, command);
    eventually("it serves", || other.serves(0));
    let says = |log: String| log.contains("the nodes disagree about the cluster");
    eventually("both sides say so", || says(cluster.log(0)) && says(other.log(0)));
    // Both logs also contain the first run of the node, whose list was right.
    eventually("the node says what to do", || other.log(0).contains("needs an empty --data to join"));
    cluster.exchange(0, put("k", "v")).assert_problem(504, "nothing was stored");
}

#[test]
fn a_node_of_another_list_is_turned_away_and_both_sides_say_so() {
    let mut cluster = Cluster::prepare(2, &[]);
    cluster.spawn(0);
    let list = format!("{},http://{}", cluster.list(), free_address());
    let command = cluster.command_with_list(UNKNOWN_PEER, &list);
    cluster.spawn_as(UNKNOWN_PEER, command);
    assert_turned_away(&cluster, "list");
}

#[test]
fn a_node_with_another_secret_or_none_is_turned_away_and_both_sides_say_so() {
    for secret in ["of another town", ""] {
        let mut cluster = Cluster::prepare(2, &[]);
        for (node, secret) in [(0, "of the town"), (UNKNOWN_PEER, secret)] {
            let mut command = cluster.command(node);
            command.env("VECHE_CLUSTER_SECRET", secret);
            cluster.spawn_as(node, command);
        }
        assert_turned_away(&cluster, "secret");
        for node in [0, UNKNOWN_PEER] {
            let log = cluster.log(node);
            assert!(!log.contains("of the town") && !log.contains("of another town"), "{log}");
        }
    }
}

#[test]
fn nodes_with_one_secret_are_a_cluster() {
    let mut cluster = Cluster::prepare(3, &[]);
    let file = cluster.dir().join("secret");
    std::fs::write(&file, "of the town\n").expect("a file");
    for node in 0..3 {
        let mut command = cluster.command(node);
        if node == 0 {
            command.arg("--cluster-secret-file").arg(&file);
        } else {
            command.env("VECHE_CLUSTER_SECRET", "of the town");
        }
        cluster.spawn_as(node, command);
    }
    cluster.wait_until_up();
    assert_eq!(cluster.exchange(0, put("k&ack=3", "v")).status, 201);
    assert_eq!(cluster.exchange(2, get("k&ack=3")).text(), "v");
}

#[test]
fn a_new_cluster_keeps_3_copies_and_more_than_5_are_warned_of() {
    for (nodes, flags, from) in [(6, &["--default-from", "6"][..], 6), (6, &[], 3), (2, &[], 2)] {
        let mut cluster = Cluster::prepare(nodes, flags);
        cluster.spawn(0);
        eventually("the node serves", || cluster.serves(0));
        let (_, status) = cluster.status(0).expect("it answers");
        assert_eq!(status["default_quorum"]["from"], from, "{status}");
        let warns = from > 5;
        assert_eq!(status["warnings"].to_string().contains("3 are enough"), warns, "{status}");
        let is_logged = || cluster.log(0).contains("3 are enough");
        if warns {
            eventually("the warning is logged", is_logged);
        } else {
            assert!(!is_logged(), "{}", cluster.log(0));
        }
    }
}

#[test]
fn all_nodes_hold_one_layout_record() {
    let cluster = Cluster::start(5);
    cluster.wait_until_named();
    for node in 0..5 {
        eventually("the others have told it their epochs", || {
            let layout = cluster.layout(node);
            let mut members = layout["members"].as_array().expect("a list").iter();
            members.all(|member| member["health"] == "up" && member["epoch"] == layout["epoch"])
        });
    }
    let first = cluster.layout(0);
    assert_eq!(first["feature_level"], ::cluster::FEATURE_LEVEL_PLANS);
    assert_eq!(first["default_from"], 3);
    assert_eq!(first["voters_unreachable"], serde_json::json!([]));
    let members = first["members"].as_array().expect("a list");
    assert_eq!(members.len(), 5);
    assert!(members.iter().all(|member| (member["share"].as_f64().unwrap_or(0.0) - 0.2).abs() < 0.001));
    assert_eq!(first["voters"].as_array().map(Vec::len), Some(5));
    for node in 1..5 {
        assert_eq!(cluster.layout(node), first, "node {node}");
    }
}

/// Of five nodes three are lost. The two others go on as a new lineage, and refuse a lost node that
/// comes back.
#[test]
fn the_remaining_nodes_of_a_lost_majority_go_on_as_a_new_lineage() {
    const REMAINING: [usize; 2] = [0, 3];
    const LOST: [usize; 3] = [1, 2, 4];
    let mut cluster = Cluster::start(5);
    cluster.wait_until_named();
    assert_eq!(cluster.exchange(0, put("k&ack=5&from=5", "v")).status, 201);
    cluster.stop_all();
    let lost = LOST.map(|node| cluster.url(node)).join(",");
    let recover = |cluster: &Cluster, node: usize, arguments: &[&str]| {
        let mut command = veche();
        command
            .args(["layout", "recover", "--lost", &lost, "--data"])
            .arg(cluster.data(node))
            .args(arguments);
        run(command)
    };
    let (code, _, stderr) = recover(&cluster, REMAINING[0], &[]);
    assert_eq!(code, Some(2), "without --unsafe: {stderr}");
    let (code, _, stderr) = recover(&cluster, LOST[0], &["--unsafe"]);
    assert!(code == Some(1) && stderr.contains("is the node of this directory"), "{stderr}");
    let layout_of = |cluster: &Cluster, name: &str| std::fs::read(cluster.data(REMAINING[0]).join(name)).ok();
    let former = layout_of(&cluster, "layout");
    let former_record = former.as_deref().map(::cluster::LayoutRecord::decode);
    let former_epoch = former_record.expect("a file").expect("a record").epoch.0;
    let (code, stdout, stderr) = recover(&cluster, REMAINING[0], &["--dry-run"]);
    assert!(code == Some(0) && stdout.contains("would follow"), "{stdout}{stderr}");
    for (node, state) in
        LOST.map(|node| (node, "dead")).into_iter().chain(REMAINING.map(|node| (node, "active")))
    {
        let url = cluster.url(node);
        let row = stdout.lines().find(|line| line.contains(&url) && line.contains(state));
        let voter = if state == "active" { " yes " } else { " no " };
        assert!(row.is_some_and(|row| row.contains(voter)), "{stdout}");
    }
    let (code, planned, stderr) = recover(&cluster, REMAINING[0], &["--dry-run", "--json"]);
    assert_eq!(code, Some(0), "{stderr}");
    let planned: serde_json::Value = serde_json::from_str(&planned).expect("one JSON document");
    assert!(layout_of(&cluster, "layout.before-recovery").is_none(), "nothing is changed");
    assert_eq!(layout_of(&cluster, "layout"), former);
    let (code, stdout, stderr) = recover(&cluster, REMAINING[0], &["--unsafe"]);
    assert_eq!(code, Some(0), "{stderr}");
    let undo =
        stdout.lines().find_map(|line| line.split_once("on each: ")).expect("it says how to undo it").1;
    let undone = std::process::Command::new("sh").args(["-c", undo]).status().expect("a shell");
    assert!(undone.success() && layout_of(&cluster, "layout") == former, "{undo}");
    let clusters = REMAINING.map(|node| {
        let (code, stdout, stderr) = recover(&cluster, node, &["--unsafe", "--json"]);
        assert_eq!(code, Some(0), "{stderr}");
        serde_json::from_str::<serde_json::Value>(&stdout).expect("one JSON document")
    });
    assert_eq!(clusters[0], clusters[1]);
    assert_eq!(clusters[0]["epoch"], former_epoch + 1);
    for name in ["cluster_id", "epoch", "hash", "members", "voters", "default_from", "partitions"] {
        assert!(planned[name] == clusters[0][name] && !planned[name].is_null(), "{name}: {planned}");
    }
    assert_eq!(clusters[0]["kept"], serde_json::json!(["layout.before-recovery", "votes.before-recovery"]));
    REMAINING.into_iter().for_each(|node| cluster.spawn(node));
    let [a, b] = REMAINING;
    REMAINING.into_iter().for_each(|node| eventually("the node serves", || cluster.serves(node)));
    cluster.wait_until_seen(a, b, "up");
    assert_eq!(cluster.exchange(a, get("k&ack=2&from=5")).text(), "v");
    let layout = cluster.exchange(b, bare("GET", "/v0/layout"));
    let layout: serde_json::Value = serde_json::from_str(&layout.text()).expect("JSON");
    assert_eq!(layout["cluster_id"], clusters[0]["cluster_id"]);
    assert_eq!(layout["voters"], serde_json::json!(REMAINING.map(|node| cluster.url(node))));
    assert_eq!(layout["members"][LOST[0]]["state"], "dead");
    for (shown, planned) in layout["members"]
        .as_array()
        .expect("a list")
        .iter()
        .zip(planned["members"].as_array().expect("a list"))
    {
        let planned = planned.as_object().expect("a member");
        assert!(planned.len() >= 6 && planned.iter().all(|(name, value)| shown[name] == *value), "{shown}");
    }
    let of_lost = format!("{} was declared lost", cluster.url(LOST[0]));
    eventually("the lost members are not to be started", || {
        let (_, status) = cluster.status(a).expect("it answers");
        let warnings = status["warnings"].to_string();
        warnings.contains(&of_lost) && !warnings.contains("start it")
    });
    cluster.spawn(LOST[0]);
    eventually("both sides say why", || {
        [a, LOST[0]]
            .into_iter()
            .all(|node| cluster.log(node).contains("the nodes disagree about the cluster (id "))
    });
    assert_eq!(cluster.status_of(a, LOST[0])["state"], "unreachable");
    cluster.stop(LOST[0]);
    for replaced in LOST {
        cluster.lose_data(replaced);
        cluster.spawn(replaced);
        eventually("the node serves", || cluster.serves(replaced));
        eventually("the record of the lost lineage is refused", || {
            cluster.log(replaced).contains("the file layout of a member if this one was recovered")
        });
        cluster.stop(replaced);
        std::fs::copy(cluster.data(a).join("layout"), cluster.data(replaced).join("layout"))
            .expect("both exist");
        cluster.spawn(replaced);
    }
    cluster.wait_until_up();
    for node in 0..cluster.len() {
        eventually("the node is filled", || cluster.sync_state(node) == "settled");
    }
    assert_eq!(cluster.exchange(LOST[2], get("k&ack=3&from=5")).text(), "v");
}

#[test]
fn the_layout_record_of_another_cluster_is_refused_and_the_node_says_what_to_do() {
    let mut cluster = Cluster::start(2);
    let mut other = Cluster::start(2);
    cluster.wait_until_named();
    other.wait_until_named();
    cluster.stop(0);
    other.stop(0);
    let own = std::fs::read(cluster.data(0).join("layout")).expect("a record");
    std::fs::copy(other.data(0).join("layout"), cluster.data(0).join("layout")).expect("both exist");
    let (code, _, stderr) = run(cluster.command(0));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("is the layout record of another cluster"), "{stderr}");
    assert!(stderr.contains(&cluster.url(0)) && stderr.contains(&other.url(1)), "{stderr}");
    assert!(stderr.contains("Copy the file from another member of its own cluster"), "{stderr}");
    std::fs::write(cluster.data(0).join("layout"), own).expect("it is writable");
    cluster.start_node(0);
}

#[test]
fn a_later_flag_does_not_change_the_default_number_of_copies() {
    let mut cluster = Cluster::prepare(3, &[]);
    for node in 0..3 {
        let mut command = cluster.command(node);
        command.args(["--default-from", "2"]);
        cluster.spawn_as(node, command);
    }
    cluster.wait_until_up();
    cluster.stop(0);
    let mut command = cluster.command(0);
    command.args(["--default-from", "3"]);
    cluster.spawn_as(0, command);
    cluster.wait_until_up();
    let (_, status) = cluster.status(0).expect("it answers");
    assert_eq!(status["default_quorum"]["from"], 2, "{status}");
    assert!(
        status["warnings"].to_string().contains("--default-from is 3, and the layout record"),
        "{status}"
    );
}

/// A node that replaces another one is started without the flag that the first start had. It adopts
/// the record, and uses its default after a restart.
#[test]
fn a_node_that_adopts_another_default_number_of_copies_is_to_be_restarted() {
    const REPLACED: usize = 2;
    let mut cluster = Cluster::prepare(3, &[]);
    for node in 0..3 {
        let mut command = cluster.command(node);
        command.args(["--default-from", "2"]);
        cluster.spawn_as(node, command);
    }
    cluster.wait_until_up();
    cluster.wait_until_named();
    cluster.stop(REPLACED);
    cluster.lose_data(REPLACED);
    cluster.spawn(REPLACED);
    let warnings = |cluster: &Cluster, node: usize| {
        let status = cluster.status(node).map(|(_, status)| status["warnings"].to_string());
        status.unwrap_or_default()
    };
    let restart = "default_from is 3 on this node until it is restarted, and 2 in the layout record";
    eventually("it is to be restarted", || warnings(&cluster, REPLACED).contains(restart));
    eventually("its log says so", || cluster.log(REPLACED).contains(restart));
    let differs = format!("default_from is 3 on {} and 2 on this node", cluster.url(REPLACED));
    eventually("its peers say so", || warnings(&cluster, 0).contains(&differs));
    eventually("the log of a peer says so", || cluster.log(0).contains(&differs));
    cluster.stop(REPLACED);
    cluster.spawn(REPLACED);
    cluster.wait_until_up();
    for node in [0, REPLACED] {
        eventually("all have the same", || !warnings(&cluster, node).contains("default_from"));
    }
}

/// Both serve, neither takes the other for its peer, and both say why.
#[track_caller]
fn assert_turned_away(cluster: &Cluster, says: &str) {
    for node in [0, UNKNOWN_PEER] {
        eventually("the node serves without the other", || cluster.serves(node));
        eventually(&format!("node {node} says why: {says}"), || {
            cluster.log(node).lines().any(|line| line.contains("WARN") && line.contains(says))
        });
    }
    cluster.exchange(0, put("k", "v")).assert_problem(504, "nothing was stored");
    assert_ne!(cluster.status_of(0, UNKNOWN_PEER)["state"], "up");
}
