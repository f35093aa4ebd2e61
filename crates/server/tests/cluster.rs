//! Clusters of several nodes in one process, on in-memory disks.

mod common;
#[path = "../../veche/tests/common/http.rs"]
#[allow(dead_code, reason = "the black-box tests use the rest")]
mod http;

use common::{PATIENCE, eventually, free_address};
use env::{Env, MemFs, OsClock};
use http::{Connection, Response, bare, delete, exchange, get, put};
use server::{Config, Limits, Server};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use store::Membership;

/// A cluster whose nodes can be started and stopped.
struct Cluster {
    addresses: Vec<SocketAddr>,
    disks: Vec<MemFs>,
    servers: Vec<Option<Server>>,
    request_timeout: Duration,
}

impl Cluster {
    /// Starts a cluster of `nodes` nodes and waits until all of them serve.
    fn start(nodes: usize) -> Self {
        let mut cluster = Self::prepare(nodes);
        (0..nodes).for_each(|node| cluster.start_node(node));
        (0..nodes).for_each(|node| cluster.wait_until_serving(node));
        cluster
    }

    /// Creates a cluster without starting its nodes.
    fn prepare(nodes: usize) -> Self {
        Self {
            addresses: (0..nodes).map(|_| free_address()).collect(),
            disks: (0..nodes).map(|_| MemFs::new()).collect(),
            servers: (0..nodes).map(|_| None).collect(),
            request_timeout: Duration::from_secs(600),
        }
    }

    fn config(&self, node: usize) -> Config {
        Config {
            listen: self.addresses[node],
            data: PathBuf::from("/data"),
            peer_listen: None,
            membership: Membership::of(self.addresses.iter().map(|address| name(*address)).collect()),
            self_name: name(self.addresses[node]),
            moved_to: None,
            listed: Vec::new(),
            default_from_flag: None,
            default_from: self.addresses.len() as u8,
            new_cluster: false,
            secret: None,
            after_absence: store::AfterAbsence::default(),
            engine: engine::Options {
                memory_bytes: 256 << 20,
                memtable_bytes: Some(32 << 20),
                wal_segment_bytes: 32 << 20,
                table_bytes: 4 << 20,
                level1_bytes: 16 << 20,
                ..engine::Options::default()
            },
            threads: 2,
            request_timeout: self.request_timeout,
            slow_request: Duration::ZERO,
            value_bytes_max: 16 << 20,
            drain_delay: Duration::ZERO,
            feature_level_max: cluster::FEATURE_LEVEL_MAX_DEFAULT,
            snapshot_age: Duration::from_secs(60),
            warnings: Vec::new(),
            metrics: true,
            limits: Limits::default(),
        }
    }

    fn start_node(&mut self, node: usize) {
        self.start_with(node, self.config(node));
    }

    fn start_with(&mut self, node: usize, config: Config) {
        let env = Env { fs: Arc::new(self.disks[node].clone()), clock: Arc::new(OsClock::new()) };
        self.servers[node] = Some(Server::start(config, env).expect("the port is free"));
    }

    #[track_caller]
    fn wait_until_serving(&self, node: usize) {
        eventually("the node serves", || self.exchange(node, bare("GET", "/v0/status")).status == 200);
    }

    #[track_caller]
    fn stop(&mut self, node: usize) {
        self.servers[node].take().expect("it runs").stop().expect("it ends well");
    }

    #[track_caller]
    fn stop_all(mut self) {
        (0..self.servers.len())
            .filter(|node| self.servers[*node].is_some())
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|node| self.stop(node));
    }

    #[track_caller]
    fn exchange(&self, node: usize, request: impl AsRef<[u8]>) -> Response {
        exchange(self.addresses[node], request)
    }

    /// The state of node `of` in the status of `node`.
    fn state_of(&self, node: usize, of: usize) -> String {
        let status = self.exchange(node, bare("GET", "/v0/status")).text();
        let url = format!("\"url\":\"{}\"", name(self.addresses[of]));
        let begin = status.find(&url).unwrap_or_else(|| panic!("{url} is not in {status}"));
        let state = status[begin..].split("\"state\":\"").nth(1).expect("a node has a state");
        state.split('"').next().expect("a state ends").to_owned()
    }

    /// The warnings in the status of `node`.
    fn warnings(&self, node: usize) -> String {
        let status = self.exchange(node, bare("GET", "/v0/status")).text();
        status.split("\"warnings\":").nth(1).expect("warnings are told").to_owned()
    }

    #[track_caller]
    fn wait_until_seen(&self, by: usize, node: usize, state: &str) {
        eventually(&format!("{node} is {state} to {by}"), || self.state_of(by, node) == state);
    }
}

fn name(address: SocketAddr) -> String {
    format!("http://{address}")
}

#[test]
fn a_write_through_one_node_is_read_through_every_node() {
    let cluster = Cluster::start(3);
    for node in 0..3 {
        let stored = cluster.exchange(node, put(&format!("k{node}"), format!("v{node}")));
        assert_eq!(stored.status, 201, "{stored:?}");
        let acks = stored.header("veche-acks").expect("acks are told");
        assert!(acks == "2/3" || acks == "3/3", "{acks}");
    }
    for node in 0..3 {
        for key in 0..3 {
            let found = cluster.exchange(node, get(&format!("k{key}")));
            assert_eq!((found.status, found.text()), (200, format!("v{key}")), "k{key} at {node}");
        }
        assert_eq!(cluster.exchange(node, get("missing")).status, 404);
    }
    assert_eq!(cluster.exchange(1, delete("k0")).status, 202);
    for node in 0..3 {
        assert_eq!(cluster.exchange(node, get("k0")).status, 404);
    }
    cluster.stop_all();
}

#[test]
fn a_key_with_one_replica_is_read_through_every_node() {
    let cluster = Cluster::start(3);
    let mut connections: Vec<_> =
        cluster.addresses.iter().map(|address| Connection::open(*address)).collect();
    for i in 0..30 {
        let id = format!("k{i}&replicas=1/1");
        assert_eq!(connections[i % 3].exchange(put(&id, "v")).status, 201);
        for connection in &mut connections {
            assert_eq!(connection.exchange(get(&id)).text(), "v", "k{i}");
        }
    }
    cluster.stop_all();
}

#[test]
fn two_of_three_nodes_serve_and_one_of_three_refuses_at_once() {
    let mut cluster = Cluster::start(3);
    assert_eq!(cluster.exchange(0, put("k", "old")).status, 201);
    cluster.stop(2);
    cluster.wait_until_seen(0, 2, "unreachable");
    assert_eq!(cluster.exchange(0, put("k", "new")).status, 201);
    assert_eq!(cluster.exchange(1, get("k")).text(), "new");
    let lost = format!("{} is unreachable: start it", name(cluster.addresses[2]));
    eventually("the lost node is warned of", || cluster.warnings(0).contains(&lost));

    cluster.stop(1);
    cluster.wait_until_seen(0, 1, "unreachable");
    // The request timeout is longer than the client of this test waits, so the refusals do not wait
    // for it.
    assert!(cluster.request_timeout > PATIENCE);
    for request in [put("k", "never"), get("k").into_bytes(), delete("k").into_bytes()] {
        let refused = cluster.exchange(0, request);
        refused.assert_problem(504, "");
        assert_eq!(refused.reason, "Not Enough Replicas");
    }
    assert_eq!(cluster.exchange(0, get("k&ack=1&from=3")).text(), "new", "nothing was stored");

    for node in [1, 2] {
        cluster.start_node(node);
    }
    for node in [1, 2] {
        cluster.wait_until_serving(node);
    }
    cluster.wait_until_seen(0, 1, "up");
    assert_eq!(cluster.exchange(0, put("k", "newest")).status, 201);
    for node in 0..3 {
        assert_eq!(cluster.exchange(node, get("k")).text(), "newest");
    }
    eventually("nothing is left to warn of", || !cluster.warnings(0).contains("unreachable"));
    cluster.stop_all();
}

#[test]
fn a_node_receives_the_writes_that_it_missed_before_it_serves() {
    let mut cluster = Cluster::start(3);
    cluster.stop(2);
    cluster.wait_until_seen(0, 2, "unreachable");
    for i in 0..50 {
        assert_eq!(cluster.exchange(i % 2, put(&format!("k{i}"), format!("v{i}"))).status, 201);
    }
    cluster.start_node(2);
    cluster.wait_until_serving(2);
    for node in [0, 1] {
        cluster.stop(node);
    }
    for node in [0, 1] {
        cluster.wait_until_seen(2, node, "unreachable");
    }
    for i in 0..50 {
        let found = cluster.exchange(2, get(&format!("k{i}&ack=1&from=3")));
        assert_eq!((found.status, found.text()), (200, format!("v{i}")), "k{i}");
    }
    cluster.stop_all();
}

#[test]
fn a_cluster_keeps_its_data_over_a_restart() {
    let mut cluster = Cluster::start(3);
    for i in 0..20 {
        assert_eq!(cluster.exchange(i % 3, put(&format!("k{i}"), format!("v{i}"))).status, 201);
    }
    (0..3).for_each(|node| cluster.stop(node));
    (0..3).for_each(|node| cluster.start_node(node));
    (0..3).for_each(|node| cluster.wait_until_serving(node));
    for i in 0..20 {
        assert_eq!(cluster.exchange((i + 1) % 3, get(&format!("k{i}"))).text(), format!("v{i}"));
    }
    cluster.stop_all();
}

#[test]
fn small_values_are_not_blocked_behind_large_ones() {
    let cluster = Cluster::start(3);
    let large = |i: u8| {
        let mut bytes = vec![i; 16 << 20];
        stdx::Rng::new(u64::from(i)).fill(&mut bytes[..1 << 20]);
        bytes
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2u8)
            .map(|i| {
                let address = cluster.addresses[usize::from(i)];
                scope.spawn(move || exchange(address, put(&format!("large{i}"), large(i))))
            })
            .collect();
        let mut connection = Connection::open(cluster.addresses[0]);
        for i in 0..200 {
            let stored = connection.exchange(put(&format!("small{i}"), format!("{i}")));
            assert_eq!(stored.status, 201, "small{i}: {}", stored.text());
        }
        for writer in writers {
            let stored = writer.join().expect("no panic");
            assert_eq!(stored.status, 201, "{}", stored.text());
        }
    });
    for i in 0..2u8 {
        for node in 0..3 {
            let found = cluster.exchange(node, get(&format!("large{i}&ack=3&from=3")));
            assert!(found.status == 200 && found.body == large(i), "large{i} at {node}: {}", found.status);
        }
    }
    cluster.stop_all();
}

#[test]
fn nodes_with_another_node_list_or_without_the_secret_are_refused() {
    let mut cluster = Cluster::prepare(3);
    cluster.start_node(0);
    let mut other_list = cluster.config(1);
    other_list.membership = Membership::of(vec![
        name(cluster.addresses[0]),
        name(cluster.addresses[1]),
        name(SocketAddr::from(([127, 0, 0, 1], 1))),
    ]);
    cluster.start_with(1, other_list);
    let no_secret = Config { secret: Some("another".to_owned()), ..cluster.config(2) };
    cluster.start_with(2, no_secret);
    eventually("links are refused", || {
        let status = cluster.exchange(0, bare("GET", "/v0/status")).text();
        let refused =
            status.split("\"refused\":").map(|rest| rest.split([',', '}']).next().unwrap_or_default());
        refused.filter_map(|count| count.parse::<u64>().ok()).any(|count| count >= 4)
    });
    for node in [1, 2] {
        assert_ne!(cluster.state_of(0, node), "up");
    }
    let warnings = || cluster.warnings(0);
    eventually("the operator is told why", || {
        warnings().contains("disagree about the cluster") && warnings().contains("different secrets")
    });
    cluster.stop_all();
}

#[test]
fn invalid_handshakes_are_dropped() {
    let cluster = Cluster::start(3);
    let upgrade = "GET /v0/peer HTTP/1.1\r\nHost: veche\r\nConnection: Upgrade\r\nUpgrade: veche\r\n\r\n";
    for garbage in [&b"\0\0\0\0garbage"[..], &[0xff; 100_000], b""] {
        let mut stream = TcpStream::connect(cluster.addresses[0]).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(upgrade.as_bytes()).unwrap();
        // The node may close the connection before all bytes are sent.
        let _ = stream.write_all(garbage);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&answer));
    }
    let no_upgrade = cluster.exchange(0, bare("GET", "/v0/peer"));
    no_upgrade.assert_problem(400, "nodes");
    let other_method = cluster.exchange(0, bare("PUT", "/v0/peer"));
    assert_eq!(other_method.status, 400);
    assert_eq!(cluster.exchange(0, put("k", "v")).status, 201);
    assert_eq!(cluster.exchange(1, get("k")).text(), "v");
    cluster.stop_all();
}

#[test]
fn a_peer_that_never_responds_is_unreachable_and_delays_no_request() {
    let mut cluster = Cluster::prepare(3);
    let hung = TcpListener::bind(cluster.addresses[2]).unwrap();
    for node in [0, 1] {
        let config = cluster.config(node);
        cluster.start_with(node, Config { new_cluster: true, ..config });
    }
    for node in [0, 1] {
        cluster.wait_until_serving(node);
        cluster.wait_until_seen(node, 2, "unreachable");
    }
    for i in 0..20 {
        assert_eq!(cluster.exchange(i % 2, put(&format!("k{i}"), "v")).status, 201);
        assert_eq!(cluster.exchange((i + 1) % 2, get(&format!("k{i}"))).text(), "v");
    }
    let refused = cluster.exchange(0, put("k&replicas=3/3", "v"));
    refused.assert_problem(504, "othing was s");
    drop(hung);
    cluster.start_node(2);
    cluster.wait_until_serving(2);
    cluster.wait_until_seen(0, 2, "up");
    assert_eq!(cluster.exchange(0, put("k&replicas=3/3", "v")).status, 201);
    cluster.stop_all();
}

#[test]
fn new_nodes_serve_reads_only_after_all_nodes_were_heard() {
    let mut cluster = Cluster::prepare(3);
    (0..2).for_each(|node| cluster.start_node(node));
    (0..2).for_each(|node| cluster.wait_until_serving(node));
    (0..2).for_each(|node| cluster.wait_until_seen(node, 1 - node, "up"));
    assert_eq!(cluster.exchange(0, put("k", "v")).status, 201);
    for node in 0..2 {
        let refused = cluster.exchange(node, get("k"));
        refused.assert_problem(504, &format!("http://{}. ", cluster.addresses[2]));
        refused.assert_problem(504, "--new-cluster");
    }
    cluster.start_node(2);
    cluster.wait_until_serving(2);
    for node in 0..3 {
        eventually("its reads count", || cluster.exchange(node, get("k")).status == 200);
    }
    cluster.stop_all();
}

#[test]
fn a_differing_default_replica_count_is_a_warning() {
    let mut cluster = Cluster::prepare(3);
    for (node, default_from) in [(0, 3), (1, 2), (2, 3)] {
        let config = cluster.config(node);
        cluster.start_with(node, Config { default_from, ..config });
    }
    (0..3).for_each(|node| cluster.wait_until_serving(node));
    let odd = cluster.addresses[1];
    let is_told = |node: usize, of: &str| cluster.warnings(node).contains(of);
    let of_odd = format!("default_from is 2 on http://{odd} and 3 on this node");
    eventually("the others warn of it", || is_told(0, &of_odd));
    let of_other = format!("default_from is 3 on http://{} and 2 on this node", cluster.addresses[0]);
    eventually("it warns of the others", || is_told(1, &of_other));
    assert!(!is_told(0, "default_from is 3 on http"), "the peer with the same default is not named");
    let metrics = cluster.exchange(0, bare("GET", "/metrics"));
    let sample = format!("veche_peer_default_from_differs{{peer=\"http://{odd}\"}} 1");
    assert!(metrics.text().contains(&sample), "{sample}");
    cluster.stop_all();
}

#[test]
fn connections_of_clients_do_not_keep_peers_out() {
    let mut cluster = Cluster::prepare(3);
    let limits = Limits { connections_max: 2, ..Limits::default() };
    cluster.start_with(0, Config { limits, ..cluster.config(0) });
    let crowd: Vec<_> = (0..2)
        .map(|_| {
            let mut connection = Connection::open(cluster.addresses[0]);
            // A connection that waits for a body is not evicted; an idle one would be.
            connection.send(put("k", "value").split_last().expect("a request").1);
            connection
        })
        .collect();
    cluster.start_node(1);
    cluster.wait_until_serving(1);
    cluster.wait_until_seen(1, 0, "up");
    cluster.exchange(0, get("k")).assert_problem(503, "connections");
    drop(crowd);
    cluster.wait_until_serving(0);
    cluster.stop_all();
}

/// Keeps `count` unfinished handshakes of unknown dialers open at `address`, until `ends` is set.
fn flood(address: SocketAddr, count: usize, ends: &AtomicBool) {
    let begin = || {
        let mut socket = TcpStream::connect(address).ok()?;
        let request = format!(
            "GET /v0/peer HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: veche\r\n\r\n"
        );
        socket.write_all(request.as_bytes()).ok()?;
        socket.set_nonblocking(true).ok()?;
        Some(socket)
    };
    let is_open = |socket: &mut TcpStream| loop {
        match socket.read(&mut [0; 1_024]) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
    };
    let mut sockets: Vec<_> = (0..count).map(|_| begin()).collect();
    while !ends.load(Ordering::Relaxed) {
        for socket in &mut sockets {
            if !socket.as_mut().is_some_and(is_open) {
                *socket = begin();
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_flood_of_handshakes_drops_no_handshake_of_a_peer() {
    let mut cluster = Cluster::prepare(2);
    let config = |cluster: &Cluster, node| Config {
        secret: Some("a secret of the cluster".to_owned()),
        ..cluster.config(node)
    };
    cluster.start_with(0, config(&cluster, 0));
    let dropped = |cluster: &Cluster, dialer: &str| {
        let metrics = cluster.exchange(0, bare("GET", "/metrics")).text().to_owned();
        let name = format!("veche_handshakes_dropped_total{{dialer=\"{dialer}\"}} ");
        let sample = metrics.lines().find_map(|line| line.strip_prefix(&name));
        sample.expect("it is counted").parse::<u64>().expect("a number")
    };
    let (address, ends) = (cluster.addresses[0], &AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(move || flood(address, 400, ends));
        eventually("there are more than places", || dropped(&cluster, "stranger") > 0);
        cluster.start_with(1, config(&cluster, 1));
        cluster.wait_until_serving(1);
        cluster.wait_until_serving(0);
        cluster.wait_until_seen(0, 1, "up");
        cluster.wait_until_seen(1, 0, "up");
        eventually("each thread and the node have linked", || {
            let metrics = cluster.exchange(1, bare("GET", "/metrics"));
            metrics.text().contains("veche_links{dialed_by=\"self\"} 3")
        });
        let before = dropped(&cluster, "stranger");
        eventually("the flood goes on", || dropped(&cluster, "stranger") > before);
        ends.store(true, Ordering::Relaxed);
    });
    assert_eq!(dropped(&cluster, "peer"), 0);
    cluster.stop_all();
}

#[test]
fn peers_and_clients_can_use_separate_addresses() {
    let mut cluster = Cluster::prepare(2);
    // The node list names the addresses for peers; clients use others.
    let clients: Vec<_> = (0..2).map(|_| free_address()).collect();
    for (node, listen) in clients.iter().copied().enumerate() {
        let peers = cluster.addresses[node];
        cluster.start_with(node, Config { listen, peer_listen: Some(peers), ..cluster.config(node) });
    }
    for address in &clients {
        eventually("the node serves", || exchange(*address, bare("GET", "/v0/status")).status == 200);
    }
    assert_eq!(exchange(clients[0], put("k", "v")).status, 201);
    assert_eq!(exchange(clients[1], get("k")).text(), "v");
    exchange(cluster.addresses[0], get("k")).assert_problem(400, "nodes");
    cluster.stop_all();
}
