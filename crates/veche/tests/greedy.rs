//! Clients of one address that take all memory do not keep out the clients of other addresses.

mod common;

use common::exposition::Scrape;
use common::http::{Connection, bare, get, put};
use common::{Node, data_dir, eventually};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const GREEDY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const POLITE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 77);

/// Pause between two pieces of a slow client.
const PAUSE: Duration = Duration::from_millis(250);
const POLITE_REQUESTS: usize = 12;

fn metric(node: &Node, name: &str, labels: &[(&str, &str)]) -> f64 {
    let scrape = Scrape::read(&node.exchange(bare("GET", "/metrics")).text()).expect("well formed");
    scrape.get(name, labels)
}

fn refused(node: &Node, reason: &str) -> f64 {
    metric(node, "veche_refused_total", &[("reason", reason)])
}

/// Number of connections that ended because their clients did not read.
fn stalled(node: &Node) -> f64 {
    metric(node, "veche_connections_cut_total", &[("reason", "stalled")])
}

/// Stops the greedy clients at the end of a test, even at a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends most of `request` and then small pieces, on one connection after the other.
fn trickle(node: &Node, request: &[u8], at_once: usize, piece: usize, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut connection) = Connection::try_open_from(GREEDY, node.address) else { continue };
        let (first, rest) = request.split_at(at_once);
        if connection.try_send(first).is_err() {
            continue;
        }
        for piece in rest.chunks(piece) {
            if stop.load(Ordering::Relaxed) || connection.try_send(piece).is_err() {
                break;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

fn statuses_beside_trickling_bodies(clients: usize, len: usize) -> Vec<Option<u16>> {
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--threads", "2", "--memory", "128MiB"]);
    let (greedy, polite) = (put("greedy", vec![b'g'; len]), put("polite", vec![b'p'; 2_000_000]));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for _ in 0..clients {
            scope.spawn(|| trickle(&node, &greedy, len - 300_000, 3_000, &stop));
        }
        eventually("the greedy clients hold all memory", || refused(&node, "bodies") > 0.0);
        (0..POLITE_REQUESTS)
            .map(|_| {
                let mut connection =
                    Connection::try_open_from(POLITE, node.address).expect("there is room for one more");
                connection.try_exchange(&polite).ok().map(|response| response.status)
            })
            .collect()
    })
}

#[test]
fn trickling_bodies_of_one_address_leave_memory_for_the_bodies_of_others() {
    for (clients, len) in [(16, 2_000_000), (4, 16 << 20)] {
        let statuses = statuses_beside_trickling_bodies(clients, len);
        let stored = statuses.iter().filter(|status| matches!(status, Some(200 | 201 | 204))).count();
        assert_eq!(stored, POLITE_REQUESTS, "{clients} bodies of {len} bytes: {statuses:?}");
    }
}

/// Sends `request` and then reads a byte now and then, on one connection after the other.
fn read_slowly(node: &Node, request: &str, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut connection) = Connection::try_open_from(GREEDY, node.address) else { continue };
        if connection.try_send(request).is_err() {
            continue;
        }
        while !stop.load(Ordering::Relaxed) && connection.read_byte() {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Stores `count` incompressible values of `len` bytes, whose keys begin with `prefix`.
fn fill(node: &Node, prefix: &str, count: usize, len: usize) {
    let mut connection = node.connect();
    for i in 0..count {
        let mut value = vec![0; len];
        stdx::Rng::new(i as u64).fill(&mut value);
        let request = put(&format!("{prefix}{i:03}"), value);
        eventually("a value is stored", || connection.exchange(&request).status == 201);
    }
}

/// The statuses of polite requests beside greedy clients that request `greedy` and do not read.
fn statuses_beside_slow_readers(
    node: &Node,
    greedy: &[String],
    clients: usize,
    reason: &str,
    polite: &str,
) -> Vec<Option<u16>> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for client in 0..clients {
            let request = &greedy[client % greedy.len()];
            scope.spawn(|| read_slowly(node, request, &stop));
        }
        // On a busy machine the sockets fill slowly. Only then do the clients count as slow.
        eventually("the greedy clients hold all memory and are slow", || {
            refused(node, reason) > 0.0 && stalled(node) > 0.0
        });
        (0..POLITE_REQUESTS)
            .map(|_| {
                let mut connection =
                    Connection::try_open_from(POLITE, node.address).expect("there is room for one more");
                connection.try_send(polite).ok()?;
                connection.try_head().ok().map(|head| head.status)
            })
            .collect()
    })
}

#[test]
fn unread_ranges_of_one_address_leave_places_for_the_ranges_of_others() {
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--threads", "2", "--memory", "128MiB"]);
    fill(&node, "k", 300, 60_000);
    let greedy = [bare("GET", "/v0/entities?prefix=k")];
    let polite = bare("GET", "/v0/entities?prefix=k00");
    let statuses = statuses_beside_slow_readers(&node, &greedy, 120, "ranges", &polite);
    assert_eq!(statuses, [Some(200); POLITE_REQUESTS]);
}

#[test]
fn unread_values_of_one_address_leave_memory_for_the_values_of_others() {
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--threads", "2", "--memory", "128MiB"]);
    fill(&node, "large", 8, 8 << 20);
    fill(&node, "polite", 1, 1 << 20);
    let greedy: Vec<_> = (0..8).map(|i| get(&format!("large{i:03}"))).collect();
    for polite in [
        get("polite000"),
        // This request does not qualify for the fast path.
        "GET /v0/entity?id=polite000 HTTP/1.1\r\nHost: v\r\nAccept-Encoding: identity\r\nConnection: close\r\n\r\n"
            .to_owned(),
    ] {
        let statuses = statuses_beside_slow_readers(&node, &greedy, 32, "replies", &polite);
        assert_eq!(statuses, [Some(200); POLITE_REQUESTS], "{polite}");
    }
}

/// Opens ranges of the greedy address, one after the other, that are not read beyond their heads,
/// until one is refused.
fn open_unread_ranges(node: &Node, range: &str) -> Vec<Connection> {
    let begin = || {
        let mut connection = Connection::try_open_from(GREEDY, node.address).expect("the system accepts");
        connection.send(range);
        (connection.head().status == 200).then_some(connection)
    };
    std::iter::from_fn(begin).collect()
}

/// Reads a range of the greedy address to its end. Its last page needs memory of its own, while a
/// client of another address waits for memory. `false`: that client did not wait until the end, or
/// slow clients were disconnected meanwhile.
fn page_grows_beside_a_waiting_client(node: &Node) -> bool {
    let range = bare("GET", "/v0/entities?prefix=k");
    let mut growing = Connection::try_open_from(GREEDY, node.address).expect("the system accepts");
    growing.send(&range);
    if growing.head().status != 200 {
        return false;
    }
    let large = open_unread_ranges(node, &bare("GET", "/v0/entities?prefix=large"));
    let unread = (large, open_unread_ranges(node, &range));
    let open = || metric(node, "veche_ranges_open", &[]);
    let (open_before, stalled_before) = (open(), stalled(node));
    let is_answered = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut polite =
                Connection::try_open_from(POLITE, node.address).expect("there is room for one more");
            polite.send(bare("GET", "/v0/entities?prefix=k00"));
            let _ = polite.try_head();
            is_answered.store(true, Ordering::Release);
        });
        eventually("a client of another address waits", || {
            open() > open_before || is_answered.load(Ordering::Acquire)
        });
        while growing.chunk().is_ok_and(|chunk| chunk.is_some()) {}
        let has_waited = !is_answered.load(Ordering::Acquire);
        let is_evicted = stalled(node) > stalled_before;
        drop(unread);
        has_waited && !is_evicted
    })
}

#[test]
fn a_range_whose_page_grows_beside_a_waiting_client_does_not_end_its_thread() {
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--threads", "2", "--memory", "128MiB"]);
    // More than the sockets hold, so that the last page is not read ahead.
    fill(&node, "k", 150, 60_000);
    fill(&node, "kz", 1, 1 << 20);
    fill(&node, "large", 7, 2 << 20);
    eventually("a page grows beside a waiting client", || page_grows_beside_a_waiting_client(&node));
    let log = node.stop();
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn a_node_stops_while_ranges_wait_for_places() {
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--threads", "2", "--memory", "128MiB"]);
    fill(&node, "k", 300, 60_000);
    let range = bare("GET", "/v0/entities?prefix=k");
    let mut unread = Vec::new();
    eventually("the greedy clients hold all memory", || {
        let mut connection = Connection::try_open_from(GREEDY, node.address).expect("the system accepts");
        let _ = connection.try_send(&range);
        unread.push(connection);
        refused(&node, "ranges") > 0.0
    });
    let waiting: Vec<_> = (0..6)
        .map(|i| {
            let mut connection = Connection::try_open_from(POLITE, node.address).expect("the system accepts");
            connection.send(&range);
            // Some clients hang up while they wait.
            (i % 2 == 0).then_some(connection)
        })
        .collect();
    node.stop();
    drop((waiting, unread));
}
