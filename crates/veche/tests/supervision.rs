//! The node under a terminal or a service manager: a second Ctrl-C, and the notifications of
//! systemd.

mod common;

use common::http::bare;
use common::{Node, data_dir, eventually, veche};
use rustix::process::Signal;
use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::Duration;

/// A notification that does not come in this time has failed the test.
const PATIENCE: Duration = Duration::from_secs(120);

/// A drain that lasts longer than any test.
const ENDLESS: &[&str] = &["--drain-delay", "10h"];

fn until_it_drains(node: &Node) {
    eventually("the node drains", || {
        let status = node.exchange(bare("GET", "/v0/status"));
        status.status == 503 && status.text().contains("\"state\":\"draining\"")
    });
}

#[test]
fn a_second_interrupt_ends_a_drain_at_once() {
    for first in [Signal::INT, Signal::TERM] {
        let (_dir, data) = data_dir();
        let mut node = Node::start_with(&data, ENDLESS);
        assert_eq!(node.put("k", "acknowledged").status, 201);
        node.signal(first);
        until_it_drains(&node);
        eventually("the node ends", || {
            node.signal(Signal::INT);
            node.end().is_some()
        });
        let status = node.end().expect("it has ended");
        assert_eq!(status.code(), Some(130), "{status}");
        let (_, log) = node.wait();
        assert!(log.contains("interrupted again"), "{log}");
        let node = Node::start(&data);
        assert_eq!(node.get("k").text(), "acknowledged");
    }
}

#[test]
fn a_second_sigterm_leaves_a_drain_alone() {
    let (_dir, data) = data_dir();
    let mut node = Node::start_with(&data, ENDLESS);
    node.signal(Signal::TERM);
    until_it_drains(&node);
    for _ in 0..100 {
        node.signal(Signal::TERM);
        until_it_drains(&node);
    }
    assert_eq!(node.end(), None);
}

/// A node whose service manager listens on the socket of this name.
fn start_notifying(data: &Path, name: impl Into<OsString>) -> Node {
    let mut command = veche();
    command.env("VECHE_MEMORY", "64MiB").env("NOTIFY_SOCKET", name.into());
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data);
    Node::spawn(command)
}

fn next_state(manager: &UnixDatagram) -> String {
    let mut bytes = [0; 4_096];
    let len = manager.recv(&mut bytes).expect("a notification comes");
    String::from_utf8(bytes[..len].to_vec()).expect("UTF-8")
}

/// Goes through a node's life.
fn assert_notifies(manager: &UnixDatagram, name: impl Into<OsString>) {
    let (_dir, data) = data_dir();
    manager.set_read_timeout(Some(PATIENCE)).expect("a time");
    let node = start_notifying(&data, name);
    let ready = next_state(manager);
    assert!(ready.lines().any(|line| line == "READY=1"), "{ready:?}");
    assert_eq!(node.exchange(bare("GET", "/v0/status")).status, 200, "a ready node serves");
    node.stop();
    let stopping = next_state(manager);
    assert!(stopping.lines().any(|line| line == "STOPPING=1"), "{stopping:?}");
}

#[test]
fn systemd_hears_when_the_node_serves_and_when_it_stops() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    assert_notifies(&manager, path);
}

#[test]
fn systemd_hears_it_through_an_abstract_socket() {
    let name = format!("veche-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("a name");
    let manager = UnixDatagram::bind_addr(&address).expect("a socket");
    assert_notifies(&manager, format!("@{name}"));
}

#[test]
fn a_service_manager_that_is_gone_ends_no_node() {
    let (_dir, data) = data_dir();
    let node = start_notifying(&data, data.with_file_name("nobody"));
    assert_eq!(node.put("k", "v").status, 201);
    assert!(node.stop().contains("cannot notify the service manager"));
}

#[test]
fn the_container_image_gives_its_data_directory_to_its_user() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ops/container/Containerfile");
    let text = std::fs::read_to_string(file).expect("it is there");
    let user = text.lines().find_map(|line| line.strip_prefix("USER ")).expect("it runs as a user");
    let owner =
        text.lines().find_map(|line| line.strip_prefix("COPY --chown=")).expect("the directory has an owner");
    assert!(owner.starts_with(&format!("{user} ")) && owner.ends_with("/image-root/ /"), "{owner}");
}
