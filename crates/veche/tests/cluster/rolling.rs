//! A rolling restart under load.

use crate::common::http::{Connection, bare, get, put};
use crate::harness::Cluster;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

const NODES: usize = 3;
const KEYS: u64 = 20;
/// Operations of each client between two restarts.
const BETWEEN_RESTARTS: u64 = 60;
const PATIENCE: Duration = Duration::from_secs(120);

/// State shared by the clients and the operator.
#[derive(Default)]
struct Shared {
    /// Begins and ends of restarts, by node: odd while it is restarted.
    restarts: [AtomicU64; NODES],
    ended: AtomicBool,
    /// Operations done, by client.
    done: [AtomicU64; NODES],
}

/// Writes and reads its own keys through one node, over one connection as long as that is open.
struct Client<'a> {
    node: usize,
    address: SocketAddr,
    shared: &'a Shared,
    connection: Option<Connection>,
    /// Of its node, before the last request that was answered.
    restarts_seen: u64,
    /// Expected values of its keys.
    written: HashMap<u64, u64>,
    /// Requests without an answer because the connection was closed.
    closed: u64,
}

#[test]
fn a_rolling_restart_fails_no_request() {
    let mut cluster = Cluster::start(NODES);
    let shared = Shared::default();
    let closed: Vec<u64> = std::thread::scope(|scope| {
        let clients: Vec<ScopedJoinHandle<'_, u64>> = (0..NODES)
            .map(|node| {
                let client = Client {
                    node,
                    address: cluster.address(node),
                    shared: &shared,
                    connection: None,
                    restarts_seen: 0,
                    written: HashMap::new(),
                    closed: 0,
                };
                scope.spawn(|| client.run())
            })
            .collect();
        for node in (0..NODES).chain(0..NODES) {
            wait_for_operations(&shared, &clients);
            shared.restarts[node].fetch_add(1, Ordering::SeqCst);
            cluster.stop(node);
            cluster.start_node(node);
            shared.restarts[node].fetch_add(1, Ordering::SeqCst);
        }
        wait_for_operations(&shared, &clients);
        shared.ended.store(true, Ordering::SeqCst);
        clients.into_iter().map(|client| client.join().expect("no request failed")).collect()
    });
    // Each node was restarted twice; a client finds its connection closed once for each.
    assert!(closed.iter().all(|closed| *closed <= 2), "connections closed: {closed:?}");
}

/// Waits until each client has done some more.
fn wait_for_operations(shared: &Shared, clients: &[ScopedJoinHandle<'_, u64>]) {
    let done = || shared.done.each_ref().map(|done| done.load(Ordering::SeqCst));
    let begin = done();
    while done().iter().zip(begin).any(|(now, begin)| *now < begin + BETWEEN_RESTARTS) {
        // A client that has failed would be waited for in vain; its join says why it has.
        if clients.iter().any(ScopedJoinHandle::is_finished) {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Client<'_> {
    /// The number of requests that found the connection closed.
    fn run(mut self) -> u64 {
        for number in 0.. {
            if self.shared.ended.load(Ordering::SeqCst) {
                break;
            }
            let key = number % KEYS;
            let name = format!("client-{}-{key}", self.node);
            if number % 2 == 0 {
                if self.exchange(201, put(&name, number.to_string())).is_some() {
                    self.written.insert(key, number);
                } else {
                    // It may have been stored or not.
                    self.written.remove(&key);
                }
            } else if let Some(answer) = self.exchange(200, get(&format!("client-{}-{}", self.node, key - 1)))
                && let Some(written) = self.written.get(&(key - 1))
            {
                assert_eq!(answer, written.to_string(), "{name}");
            }
            self.shared.done[self.node].fetch_add(1, Ordering::SeqCst);
        }
        self.closed
    }

    /// The body of the answer, which has this status; `None` when the node, which is being
    /// restarted, has closed the connection.
    fn exchange(&mut self, status: u16, request: impl AsRef<[u8]>) -> Option<String> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.wait_for_node()?,
        };
        let connection = self.connection.insert(connection);
        let restarts = self.shared.restarts[self.node].load(Ordering::SeqCst);
        let Ok(answer) = connection.try_exchange(request) else {
            assert!(self.has_reason(), "node {} closed a connection", self.node);
            self.connection = None;
            self.closed += 1;
            return None;
        };
        self.restarts_seen = restarts;
        assert_eq!(answer.status, status, "node {}: {answer:?}", self.node);
        if answer.header("connection") == Some("close") {
            self.connection = None;
        }
        Some(answer.text())
    }

    /// A new connection, once the node serves.
    fn wait_for_node(&self) -> Option<Connection> {
        loop {
            if self.shared.ended.load(Ordering::SeqCst) {
                return None;
            }
            let connection = Connection::try_open_with(self.address, PATIENCE);
            if let Ok(mut connection) = connection
                && connection.try_exchange(bare("GET", "/v0/status")).is_ok_and(|answer| answer.status == 200)
            {
                return Some(connection);
            }
            assert!(self.has_reason(), "node {} does not serve", self.node);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether the node is being restarted, or was since it last answered.
    fn has_reason(&self) -> bool {
        let restarts = self.shared.restarts[self.node].load(Ordering::SeqCst);
        restarts % 2 == 1 || restarts != self.restarts_seen
    }
}
