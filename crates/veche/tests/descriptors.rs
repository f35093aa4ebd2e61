//! A node with few file descriptors.

mod common;

use common::exposition::Scrape;
use common::http::{Connection, bare, get};
use common::{Node, data_dir, eventually, run, veche};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

const HOSTILE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const POLITE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 77);

/// A command that serves `data` with a limit of `files_max` open files.
fn serve(data: &Path, files_max: u64) -> Command {
    let serve = veche();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n \"$0\" && exec \"$@\"", &files_max.to_string()]);
    command.arg(serve.get_program());
    for (name, value) in serve.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
        .args(["serve", "--threads", "2", "--memory", "64MiB", "--listen", "127.0.0.1:0", "--data"])
        .arg(data);
    command
}

/// The lowest limit of open files, as a refused node names it.
fn files_min(data: &Path) -> u64 {
    let (code, _, err) = run(serve(data, 64));
    assert_eq!(code, Some(1), "{err}");
    let (_, min) =
        err.split_once("the limit of open files is 64, and this node needs at least ").expect(&err);
    assert!(min.contains("LimitNOFILE=") && min.contains("ulimit -Hn"), "{err}");
    min.split(':').next().and_then(|min| min.parse().ok()).expect("a number")
}

fn scrape(node: &Node) -> Scrape {
    Scrape::read(&node.exchange(bare("GET", "/metrics")).text()).expect("well formed")
}

/// The status of a request from another address than those of hostile clients.
fn polite_status(node: &Node) -> u16 {
    let mut connection = Connection::try_open_from(POLITE, node.address).expect("the system accepts");
    connection.try_exchange(get("none")).expect("a response").status
}

#[test]
fn a_limit_of_open_files_that_is_too_low_is_refused_with_the_number_that_suffices() {
    let (_dir, data) = data_dir();
    let min = files_min(&data);
    let (code, _, err) = run(serve(&data, min - 1));
    assert!(code == Some(1) && err.contains(&format!("needs at least {min}")), "{err}");
    assert!(!data.exists(), "a refused node leaves no directory");
    Node::spawn(serve(&data, min)).stop();
}

#[test]
fn a_node_at_the_lowest_limit_of_open_files_has_a_descriptor_for_every_connection() {
    let (_dir, data) = data_dir();
    let node = Node::spawn(serve(&data, files_min(&data)));
    let begins = [
        "",
        "GET /v0/entity?id=k HTTP/1.1\r\nHost: v",
        "PUT /v0/entity?id=k HTTP/1.1\r\nHost: v\r\nContent-Length: 9\r\n\r\nbegun",
        "GET /v0/peer HTTP/1.1\r\n",
        "GET /v0/status HTTP/1.1\r\nHost: v",
    ];
    let mut hostile = Vec::new();
    for round in 0..100 {
        for begin in begins {
            let mut connection =
                Connection::try_open_from(HOSTILE, node.address).expect("the system accepts");
            // The node may have refused the connection already.
            let _ = connection.try_send(begin);
            hostile.push(connection);
        }
        if round % 10 == 0 {
            let status = polite_status(&node);
            assert!([404, 503].contains(&status), "{status}");
        }
    }
    drop(hostile);
    eventually("the node serves again", || polite_status(&node) == 404);
    let scrape = scrape(&node);
    assert_eq!(scrape.get("veche_accept_failures_total", &[]), 0.0, "a descriptor was missing");
    assert!(!node.stop().contains("could not be accepted"));
}

#[test]
fn a_node_whose_descriptors_are_used_up_answers_and_recovers() {
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--threads", "2"]);
    let mut idle: Vec<_> = (0..20).map(|_| node.connect()).collect();
    idle.iter_mut().for_each(|connection| assert_eq!(connection.exchange(get("none")).status, 404));
    node.limit_open_files(Some(node.open_files()));
    let (mut statuses, mut is_warned) = (Vec::new(), false);
    eventually("the node warns, and serves with the descriptors of idle connections", || {
        let mut connection = node.connect();
        statuses.push(connection.exchange(get("none")).status);
        idle.push(connection);
        let status = node.connect().try_exchange(bare("GET", "/v0/status"));
        is_warned |= status.is_ok_and(|status| status.text().contains("could not be accepted"));
        statuses.len() > 30 && statuses.ends_with(&[404; 5]) && is_warned
    });
    assert!(statuses.iter().all(|status| [404, 503].contains(status)), "{statuses:?}");
    node.limit_open_files(None);
    eventually("the node serves again", || polite_status(&node) == 404);
    assert!(scrape(&node).get("veche_accept_failures_total", &[]) > 0.0, "{statuses:?}");
    drop(idle);
    assert!(node.stop().contains("could not be accepted"));
}
