//! Weak secrets and open doors are refused or told.

mod common;

use common::{Node, data_dir, run, veche};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Two nodes, of which the second one never runs.
const CLUSTER: &str = "http://127.0.0.1:1,http://127.0.0.1:2";

/// `veche serve` of the first node.
fn serve(data: &Path, listen: &str, flags: &[&str]) -> Command {
    let mut command = veche();
    command.env("VECHE_MEMORY", "64MiB").env("VECHE_REQUEST_TIMEOUT", common::REQUEST_TIMEOUT);
    command.args(["serve", "--listen", listen, "--data"]).arg(data).args(flags);
    command
}

fn serve_cluster(data: &Path, listen: &str, flags: &[&str]) -> Command {
    let mut command = serve(data, listen, &["--cluster", CLUSTER, "--self-url", "http://127.0.0.1:1"]);
    command.args(flags);
    command
}

/// What a node warns of, which the log and the status both tell.
#[track_caller]
fn assert_warns(node: Node, says: &str) {
    let told = node.status()["warnings"].to_string();
    assert!(told.contains(says), "{says:?} is not in {told}");
    let log = node.stop();
    assert!(log.contains(says), "{says:?} is not in {log}");
}

#[test]
fn a_new_node_beyond_loopback_refuses_a_short_secret_and_an_old_one_starts_with_a_warning() {
    let (_dir, data) = data_dir();
    let short = ["--cluster-secret", "fifteen letters"];
    let (code, _, err) = run(serve_cluster(&data, "0.0.0.0:0", &short));
    assert_eq!(code, Some(1), "{err}");
    let last = err.lines().last().unwrap_or_default();
    assert!(last.starts_with("veche: the cluster's secret has 15 bytes"), "{err}");
    assert!(!data.exists(), "nothing is made");
    // On loopback it may begin, and is an old one from then on.
    assert_warns(Node::spawn(serve_cluster(&data, "127.0.0.1:0", &short)), "secret has 15 bytes");
    assert_warns(Node::spawn(serve_cluster(&data, "0.0.0.0:0", &short)), "secret has 15 bytes");
}

#[test]
fn a_node_that_replaces_a_lost_one_may_have_the_short_secret_of_its_cluster() {
    let (_dir, data) = data_dir();
    let flags = ["--cluster-secret", "short", "--allow-short-secret"];
    assert_warns(Node::spawn(serve_cluster(&data, "0.0.0.0:0", &flags)), "secret has 5 bytes");
}

#[test]
fn a_secret_file_that_every_user_may_read_is_warned_of() {
    let (dir, data) = data_dir();
    let file = dir.path().join("the secret");
    std::fs::write(&file, "a secret of more than 16 bytes\n").expect("written");
    let flags = ["--cluster-secret-file", file.to_str().expect("UTF-8")];
    let mode = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("ours");
    mode(0o644);
    let node = Node::spawn(serve_cluster(&data, "127.0.0.1:0", &flags));
    assert_warns(node, &format!("chmod o-rwx '{}'", file.display()));
    mode(0o640);
    let node = Node::spawn(serve_cluster(&data, "127.0.0.1:0", &flags));
    assert!(!node.status()["warnings"].to_string().contains("secret"), "{}", node.status());
    node.stop();
}

#[test]
fn a_node_that_everybody_reaches_says_so() {
    let (_dir, data) = data_dir();
    assert_warns(Node::spawn(serve(&data, "0.0.0.0:0", &[])), "listens on 0.0.0.0 without a secret");
}
