//! More connections than a node serves: a client that sends a whole request gets an answer, and an
//! address without connections gets a place beside addresses that hold many.

mod common;

use common::exposition::Scrape;
use common::http::{Connection, bare, get};
use common::{Node, data_dir, veche};
use rustix::process::Signal;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Limit of open files of the node, which leaves about a hundred places.
const FILES_MAX: &str = "400";
/// Pause between two requests of a busy connection: less than the time after which it is idle.
const BUSY_PAUSE: Duration = Duration::from_millis(200);
const NEW_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
const TRIES: usize = 24;

/// A node with few places for connections, and their number.
fn start() -> (tempfile::TempDir, Node, usize) {
    let (dir, data) = data_dir();
    let serve = veche();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n \"$0\" && exec \"$@\"", FILES_MAX]).arg(serve.get_program());
    command.args(["serve", "--threads", "2", "--memory", "128MiB", "--listen", "127.0.0.1:0", "--data"]);
    let node = Node::spawn(std::mem::replace(command.arg(data), Command::new("true")));
    let scrape = Scrape::read(&node.exchange(bare("GET", "/metrics")).text()).expect("well formed");
    let places = scrape.get("veche_connections_max", &[]) as usize;
    assert!((80..200).contains(&places), "{places}");
    (dir, node, places)
}

/// A connection on which a request was sent.
fn asking(node: &Node, from: Ipv4Addr) -> Connection {
    let mut connection = Connection::try_open_from(from, node.address).expect("the system accepts");
    connection.try_send(get("none")).expect("the system takes the request");
    connection
}

/// The status of the response, if there is one.
fn status(connection: &mut Connection) -> Option<u16> {
    connection.try_response(false).map(|response| response.status)
}

/// Stops the busy clients at the end of a test, even at a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends requests on all connections until `stop`. A connection that ends stays closed.
fn keep_busy(mut connections: Vec<Connection>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        connections.retain_mut(|connection| connection.try_exchange(get("none")).is_ok());
        std::thread::sleep(BUSY_PAUSE);
    }
}

#[test]
fn an_address_without_connections_gets_a_place_beside_busy_ones_of_others() {
    let (_dir, node, places) = start();
    for addresses in [5, 2] {
        let mut busy: Vec<_> = (0..places)
            .map(|index| asking(&node, Ipv4Addr::new(127, 0, 0, 20 + (index % addresses) as u8)))
            .collect();
        busy.retain_mut(|connection| status(connection) == Some(404));
        assert!(busy.len() > places / 2, "{} of {places}", busy.len());
        let stop = AtomicBool::new(false);
        let statuses: Vec<_> = std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            scope.spawn(|| keep_busy(busy, &stop));
            (0..TRIES).map(|_| status(&mut asking(&node, NEW_ADDRESS))).collect()
        });
        assert_eq!(statuses, [Some(404); TRIES], "{addresses} addresses");
    }
}

#[test]
fn every_whole_request_is_answered_when_all_places_are_taken() {
    let (_dir, node, places) = start();
    let holders = (0..places).map(|index| asking(&node, Ipv4Addr::new(127, 0, 1, 1 + index as u8)));
    let mut holders: Vec<_> = holders.collect();
    holders.iter_mut().for_each(|connection| {
        status(connection);
    });
    // The requests arrive before the node accepts their connections.
    node.signal(Signal::STOP);
    let flood = (0..200).map(|index| asking(&node, Ipv4Addr::new(127, 0, 2, 1 + index % 40)));
    let mut asked: Vec<_> = flood.chain((0..TRIES).map(|_| asking(&node, NEW_ADDRESS))).collect();
    node.signal(Signal::CONT);
    let statuses: Vec<_> = asked.iter_mut().map(status).collect();
    let is_answer = |status: &Option<u16>| matches!(status, Some(404 | 503));
    assert!(statuses.iter().all(is_answer), "{statuses:?}");
    assert!(statuses.contains(&Some(503)), "no place was missing");
    drop(holders);
}
