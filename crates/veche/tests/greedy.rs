//! Clients of one address that take all memory do not keep out the clients of other addresses.

mod common;

use common::exposition::Scrape;
use common::http::{Connection, bare, put};
use common::{Node, data_dir, eventually};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const GREEDY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const POLITE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 77);

/// Pause between two pieces of a slow client.
const PAUSE: Duration = Duration::from_millis(250);
const POLITE_REQUESTS: usize = 12;

fn refused(node: &Node, reason: &str) -> f64 {
    let scrape = Scrape::read(&node.exchange(bare("GET", "/metrics")).text()).expect("well formed");
    scrape.get("veche_refused_total", &[("reason", reason)])
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
