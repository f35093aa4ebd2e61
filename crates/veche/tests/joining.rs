//! `veche serve --join`: nodes that join a cluster, and nodes that are refused.

mod common;

use common::http::bare;
use common::{Node, data_dir, eventually, run, veche};
use std::path::Path;
use std::process::Command;

/// A node of a cluster of its own, which has a URL.
fn member(data: &Path) -> (Node, String) {
    let url = format!("http://{}", free_address());
    let listen = url.trim_start_matches("http://").to_owned();
    let mut command = serve(data, &listen);
    command.args(["--cluster", &url]);
    let node = Node::spawn(command);
    eventually("the record names the id of the node", || {
        let found = node.exchange(bare("GET", "/v0/layout"));
        let layout: serde_json::Value = serde_json::from_str(&found.text()).expect("JSON");
        layout["members"][0]["node_id"].is_string()
    });
    (node, url)
}

/// An address that is free for now.
fn free_address() -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound")
}

fn serve(data: &Path, listen: &str) -> Command {
    let mut command = veche();
    command.env("VECHE_MEMORY", "64MiB").env("VECHE_REQUEST_TIMEOUT", common::REQUEST_TIMEOUT);
    command.args(["serve", "--listen", listen, "--data"]).arg(data);
    command
}

fn joining(data: &Path, member: &str) -> Command {
    let mut command = serve(data, &free_address().to_string());
    command.args(["--join", member]);
    command
}

/// The last line of a command that fails.
#[track_caller]
fn refusal(command: Command) -> String {
    let (code, _, err) = run(command);
    assert_eq!(code, Some(1), "{err}");
    err.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn a_node_without_settings_takes_others_in_and_is_known_by_the_url_that_they_gave() {
    let ((_dir, data), (_new_dir, new)) = (data_dir(), data_dir());
    let first = Node::start(&data);
    assert_eq!(first.put("k", "v").status, 201);
    let url = format!("http://{}", first.address);
    let second = Node::spawn(joining(&new, &url));
    let expected = [url, format!("http://{}", second.address)];
    for node in [&first, &second] {
        eventually("both have the record", || {
            let layout: serde_json::Value =
                serde_json::from_str(&node.exchange(bare("GET", "/v0/layout")).text()).expect("JSON");
            let members = layout["members"].as_array().expect("a list").clone();
            members.iter().map(|member| member["url"].clone()).eq(expected.clone())
        });
    }
    assert_eq!(second.get("k").text(), "v");
    let log = first.stop();
    assert!(log.contains("a layout record was adopted"), "{log}");
    second.stop();
    // Each finds its cluster in its data directory.
    let first = Node::spawn(serve(&data, expected[0].trim_start_matches("http://")));
    first.stop();
}

#[test]
fn a_member_that_does_not_answer_or_has_another_secret_is_named() {
    let ((_dir, data), (_new_dir, new)) = (data_dir(), data_dir());
    let nobody = format!("http://{}", free_address());
    let told = refusal(joining(&new, &nobody));
    assert!(told.contains(&format!("cannot join: {nobody} does not answer")), "{told}");
    let (node, url) = member(&data);
    let mut unknown = joining(&new, &url);
    unknown.args(["--cluster-secret", "a secret of another cluster"]);
    let told = refusal(unknown);
    assert!(told.contains("give all the same --cluster-secret"), "{told}");
    node.stop();
}

#[test]
fn a_directory_with_a_cluster_ignores_the_flag_and_refuses_another_cluster() {
    let ((_dir, data), (_other_dir, other)) = (data_dir(), data_dir());
    let (node, url) = member(&data);
    let (second, _) = member(&other);
    second.stop();
    let told = refusal(joining(&other, &url));
    assert!(told.contains("belongs to cluster") && told.contains("give it another --data"), "{told}");
    node.stop();
    // Its own cluster is this one node, which is down.
    let again = Node::spawn(joining(&data, &url));
    let log = again.stop();
    assert!(log.contains("--join has no effect"), "{log}");
}

#[test]
fn settings_that_contradict_a_join_are_refused_before_anything_is_made() {
    let (_dir, data) = data_dir();
    let cases: [(&[&str], &str); 5] = [
        (&["--cluster", "http://a:1,http://b:1"], "--join and --cluster are both set"),
        (&["--listen", "0.0.0.0:0"], "set --self-url to it"),
        (&["--self-url", "b:1"], "--self-url: \"b:1\" is not the address of a node"),
        (&["--zone", "two\nlines"], "--zone is one line"),
        (&["--join", "a:1"], "--join: \"a:1\" is not the address of a node"),
    ];
    for (flags, says) in cases {
        let mut command = veche();
        command.args(["serve", "--data"]).arg(&data).args(flags);
        if !flags.contains(&"--join") {
            command.args(["--join", "http://127.0.0.1:1"]);
        }
        let (code, _, err) = run(command);
        assert!(code.is_some_and(|code| code > 0) && err.contains(says), "{says:?} is not in {err}");
        assert!(!data.exists(), "{flags:?}: nothing is made");
    }
    let mut open = serve(&data, "0.0.0.0:0");
    open.args(["--join", "http://127.0.0.1:1", "--self-url", "http://127.0.0.1:2"]);
    let told = refusal(open);
    assert!(told.contains("set --cluster-secret or --cluster-secret-file"), "{told}");
    assert!(!data.exists(), "nothing is made");
}
