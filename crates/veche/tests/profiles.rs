//! Profiles of a real node under a little load.

mod common;

use common::http::{self, Connection};
use common::{Node, data_dir, veche};
use profile::{Capture, Stack};
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};

fn profile(node: SocketAddr, kind: &str, dir: &Path) -> Output {
    let target = format!("http://{node}");
    let mut command = veche();
    command.args(["profile", "--target", &target, "--seconds", "1", "--kind", kind, "--out"]).arg(dir);
    command.output().expect("the binary is there")
}

/// Does something with a node while it has work to do.
fn under_load<T>(node: &Node, work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut connection = node.connect();
            let value = [7; 20_000];
            for number in 0.. {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                assert_eq!(connection.exchange(http::put(&format!("k{}", number % 100), value)).status, 201);
                assert_eq!(connection.exchange(http::get("k0")).status, 200);
            }
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        result
    })
}

/// The profile that was written into `dir`, with its pictures.
#[track_caller]
fn read(output: &Output, kind: &str, dir: &Path) -> Capture {
    assert!(output.status.success(), "{output:?}");
    let file = |extension: &str| {
        let path = dir.join(format!("profile-{kind}.{extension}"));
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let (svg, html) = (file("svg"), file("html"));
    assert!(svg.starts_with(b"<svg") && html.starts_with(b"<!DOCTYPE html>"));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        printed.contains("Greatest by self") && printed.contains(&format!("profile-{kind}.html")),
        "{printed}"
    );
    Capture::from_json(&file("json")).expect("a capture")
}

/// How much of it has a frame for which `is_it` holds.
fn weight_of(capture: &Capture, is_it: impl Fn(&str) -> bool) -> u64 {
    let has = |stack: &&Stack| capture.names_of(stack).any(&is_it);
    capture.stacks().iter().filter(has).map(Stack::total).sum()
}

#[test]
fn a_node_under_load_tells_where_its_time_goes() {
    let (dir, data) = data_dir();
    let node = Node::start(&data);
    // A loaded machine may give the node little of the processor in one second.
    common::eventually("the node's work is seen where it is done", || {
        let output = under_load(&node, || profile(node.address, "cpu", dir.path()));
        let capture = read(&output, "cpu", dir.path());
        assert!(capture.slices() >= 20 && capture.slice_ms() == 50, "{output:?}");
        let of_server = weight_of(&capture, |name| name.starts_with("server::"));
        let of_engine = weight_of(&capture, |name| name.starts_with("engine::"));
        let mut roots = capture.stacks().iter().filter_map(|stack| capture.names_of(stack).next());
        of_server * 4 > capture.total()
            && of_server > 10
            && of_engine > 0
            && roots.any(|root| root.starts_with("veche-io"))
    });
}

#[test]
fn a_node_under_load_tells_who_allocates() {
    let (dir, data) = data_dir();
    let node = Node::start(&data);
    common::eventually("what the node's work allocates is seen", || {
        let output = under_load(&node, || profile(node.address, "alloc", dir.path()));
        let capture = read(&output, "alloc", dir.path());
        let of_server = weight_of(&capture, |name| name.starts_with("server::"));
        capture.total() > 1 << 20 && of_server * 2 > capture.total()
    });
}

#[test]
fn a_node_under_load_tells_what_requests_wait_for() {
    let (dir, data) = data_dir();
    let node = Node::start(&data);
    common::eventually("what its requests wait for is seen", || {
        let output = under_load(&node, || profile(node.address, "wait", dir.path()));
        let capture = read(&output, "wait", dir.path());
        weight_of(&capture, |name| name == "put") > 0
    });
}

#[test]
fn one_at_a_time_and_nobody_waits_for_those_who_left() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let first = begin_profile(&node);
    let again = node.exchange(short_profile());
    again.assert_problem(503, "Another profile");
    assert_eq!(again.header("retry-after"), Some("30"), "of five minutes, the most that is said");
    drop(first);
    common::eventually("it has ended", || node.exchange(short_profile()).status == 200);
    let mut short = node.connect();
    common::eventually("a short one is taken", || {
        short.send(short_profile());
        let retry_after = node.exchange(short_profile()).header("retry-after").map(str::to_owned);
        assert!(retry_after.as_deref().is_none_or(|secs| ["1", "2"].contains(&secs)), "{retry_after:?}");
        short.response();
        retry_after.is_some()
    });
    node.exchange(http::bare("GET", "/v0/profile?kind=heat")).assert_problem(400, "cpu, alloc or wait");
    node.exchange(http::bare("POST", "/v0/profile")).assert_problem(405, "");
}

#[test]
fn a_profile_does_not_hold_up_the_end_of_the_node() {
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let _asking = begin_profile(&node);
    node.stop();
}

fn short_profile() -> String {
    http::bare("GET", "/v0/profile?kind=wait&seconds=1")
}

/// A profile that goes on until the connection is dropped.
fn begin_profile(node: &Node) -> Connection {
    loop {
        let mut asking = node.connect();
        asking.send(http::bare("GET", "/v0/profile?seconds=300"));
        // Whichever of the two came first, the other is refused.
        if node.exchange(short_profile()).status == 503 {
            return asking;
        }
    }
}

#[test]
fn a_client_on_another_machine_is_refused() {
    // A client that comes by an address of the machine that is not its loopback looks like one from
    // elsewhere.
    let Some(own) = own_address() else { return };
    let (_dir, data) = data_dir();
    let mut command = veche();
    command.env("VECHE_MEMORY", "64MiB");
    command.args(["serve", "--listen", "0.0.0.0:0", "--data"]).arg(&data);
    let node = Node::spawn(command);
    let mut elsewhere = Connection::open(SocketAddr::new(own, node.address.port()));
    let refused = elsewhere.exchange(http::bare("GET", "/v0/profile?seconds=1"));
    refused.assert_problem(403, "loopback");
}

/// An address of this machine that is not its loopback, if it has one.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // Nothing is sent: it is only looked up which way it would go. The address is one for
    // documentation.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback())
}

#[test]
fn a_benchmark_takes_a_profile_of_its_measured_part() {
    let (dir, data) = data_dir();
    let node = Node::start(&data);
    let mut command = veche();
    let target = format!("http://{}", node.address);
    command.current_dir(dir.path()).args(["bench", "--target", &target, "-m", "put", "-c", "2", "-r", "200"]);
    command.args(["-d", "1s", "--warmup", "0", "--profile", "wait=pictures", "--json", "a.json"]);
    let output = command.output().expect("the binary is there");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && printed.contains("pictures/profile-wait.html"), "{output:?}");
    let report: Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("a.json")).expect("a file")).expect("JSON");
    assert_eq!(report["profile"].as_array().map(Vec::len), Some(3), "{report}");
    assert!(dir.path().join("pictures/profile-wait.svg").exists());
}
