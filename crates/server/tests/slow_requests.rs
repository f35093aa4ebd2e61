//! Latency traces of slow requests name the stages in which the time was spent.

mod common;
#[path = "../../veche/tests/common/http.rs"]
#[allow(dead_code, reason = "the black-box tests use the rest")]
mod http;

use common::{eventually, free_address};
use env::{Env, Fault, FaultFs, FaultPlan, Fs, MemFs, OperationKind, OperationMatch, OsClock};
use http::{Connection, bare, exchange, get, put};
use serde_json::Value;
use server::{Config, Limits, Server};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use store::Membership;

/// Slow threshold of these tests.
const SLOW: Duration = Duration::from_millis(40);
/// Duration of a delayed operation.
const DELAY: Duration = Duration::from_millis(200);
/// Duration of a delayed operation that must exceed every other wait, also on a busy machine.
const LONG_DELAY: Duration = Duration::from_secs(2);

fn config(listen: SocketAddr, nodes: &[SocketAddr]) -> Config {
    let name = |address: &SocketAddr| format!("http://{address}");
    let base = common::config(Limits::default());
    Config {
        listen,
        membership: Membership::of(nodes.iter().map(name).collect()),
        self_name: name(&listen),
        default_from: nodes.len().max(1) as u8,
        engine: engine::Options { wal_segment_bytes: 4 << 20, ..base.engine },
        threads: 1,
        slow_request: SLOW,
        ..base
    }
}

fn start(config: Config, fs: impl Fs + 'static) -> Server {
    Server::start(config, Env { fs: Arc::new(fs), clock: Arc::new(OsClock::new()) }).expect("a port is free")
}

fn wait_until_serving(address: SocketAddr) {
    eventually("the node serves", || exchange(address, bare("GET", "/v0/status")).status == 200);
}

/// A fault plan that delays every operation of this kind by `duration`.
fn delayed(kind: OperationKind, duration: Duration) -> FaultPlan {
    let wait = Arc::new(|delay| {
        if !std::thread::current().name().is_some_and(|name| name.starts_with("veche-io")) {
            std::thread::sleep(delay);
        }
    });
    FaultPlan::fail(OperationMatch::kind(kind).sticky(), Fault::Delay { duration, wait })
}

/// A slow request with the time in each of its stages.
struct Slow {
    request: Value,
    stages: Vec<(String, u64)>,
}

impl Slow {
    /// Whether at least 95 % of its time is attributed to named stages. A loaded machine can
    /// preempt a thread between two stages, so tests search for one request with this property.
    fn is_named(&self) -> bool {
        let took = self.request["took_us"].as_u64().expect("a number");
        let unnamed = self.stages.iter().find(|(stage, _)| stage == "other").map_or(0, |(_, took)| *took);
        unnamed * 100 <= took * 5
    }

    /// The stage with the longest time.
    fn longest(&self) -> &str {
        let longest = self.stages.iter().max_by_key(|(_, took)| *took);
        &longest.expect("a slow request has stages").0
    }
}

/// The slow requests of this operation. Checks that the stages add up to the total time.
#[track_caller]
fn slow_requests(address: SocketAddr, operation: &str) -> Vec<Slow> {
    let answer = exchange(address, bare("GET", "/v0/slow"));
    assert_eq!(answer.status, 200, "{answer:?}");
    let document: Value = serde_json::from_slice(&answer.body).expect("it is JSON");
    let requests = document["requests"].as_array().expect("a list").iter();
    let slow = requests.filter(|request| request["operation"] == operation).map(|request| {
        let stages: Vec<_> = request["stages"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|stage| {
                (stage["stage"].as_str().expect("a name").to_owned(), stage["took_us"].as_u64().unwrap())
            })
            .collect();
        let took = request["took_us"].as_u64().expect("a number");
        let sum: u64 = stages.iter().map(|(_, took)| took).sum();
        assert!(
            sum <= took && took - sum <= stages.len() as u64,
            "the stages add up to the total: {request}"
        );
        Slow { request: request.clone(), stages }
    });
    slow.collect()
}

#[test]
fn a_slow_disk_shows_as_sync() {
    let fs = FaultFs::new(Arc::new(MemFs::new()), FaultPlan::none());
    let server = start(config(SocketAddr::from(([127, 0, 0, 1], 0)), &[]), fs.clone());
    let address = server.address();
    wait_until_serving(address);
    assert_eq!(exchange(address, put("early", "v")).status, 201);
    let mut slow = Vec::new();
    eventually("a request is slow because of the disk alone", || {
        fs.set_plan(delayed(OperationKind::SyncData, LONG_DELAY));
        assert_eq!(exchange(address, put("k%001", "v")).status, 201);
        fs.set_plan(FaultPlan::none());
        assert_eq!(exchange(address, get("k%001")).status, 200);
        slow = slow_requests(address, "put");
        let mut written = slow.iter().filter(|slow| slow.request["key"] == "k\\x001").peekable();
        assert!(written.peek().is_some(), "a write was slow");
        written.any(|written| {
            assert_eq!((&written.request["status"], &written.request["key_bytes"]), (&201.into(), &3.into()));
            written.is_named() && written.longest() == "sync"
        })
    });
    let metrics = exchange(address, bare("GET", "/metrics")).text();
    let counted = format!("veche_slow_requests_total{{operation=\"put\"}} {}", slow.len());
    assert!(metrics.contains(&counted), "{counted}");
    server.stop().unwrap();
}

#[test]
fn a_full_read_pool_shows_as_its_queue() {
    const KEYS: usize = 100;
    let disk = MemFs::new();
    let fs = FaultFs::new(Arc::new(disk.clone()), FaultPlan::none());
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = start(config(listen, &[]), fs.clone());
    wait_until_serving(server.address());
    let mut connection = Connection::open(server.address());
    for i in 0..KEYS {
        let stores = || connection.exchange(put(&format!("k{i}"), "v".repeat(10_000))).status == 201;
        eventually("the engine takes it", stores);
    }
    eventually("a memtable is flushed", || {
        disk.file_names().into_iter().any(|path| path.extension().is_some_and(|it| it == "sst"))
    });
    server.stop().unwrap();
    let server = start(config(listen, &[]), fs.clone());
    let address = server.address();
    wait_until_serving(address);
    disk.set_cold(true);
    fs.set_plan(delayed(OperationKind::Read, DELAY));
    let mut connections: Vec<_> = (0..12).map(|_| Connection::open(address)).collect();
    eventually("reads are slow because of the pool's queue and because of the disk", || {
        for (i, connection) in connections.iter_mut().enumerate() {
            connection.send(get(&format!("k{i}")));
        }
        for connection in &mut connections {
            assert_eq!(connection.response().status, 200);
        }
        let slow = slow_requests(address, "get");
        let is_longest = |stage: &str| slow.iter().any(|slow| slow.is_named() && slow.longest() == stage);
        is_longest("read pool queue") && is_longest("disk read")
    });
    fs.set_plan(FaultPlan::none());
    server.stop().unwrap();
}

#[test]
fn a_slow_peer_shows_by_its_number() {
    let mut nodes = [free_address(), free_address()];
    // Nodes are numbered in the order of their names.
    nodes.sort_by_key(ToString::to_string);
    let peer = FaultFs::new(Arc::new(MemFs::new()), FaultPlan::none());
    let servers =
        [start(config(nodes[0], &nodes), MemFs::new()), start(config(nodes[1], &nodes), peer.clone())];
    nodes.iter().for_each(|node| wait_until_serving(*node));
    assert_eq!(exchange(nodes[0], put("early", "v")).status, 201);
    eventually("a request is slow because of the peer alone", || {
        peer.set_plan(delayed(OperationKind::SyncData, LONG_DELAY));
        assert_eq!(exchange(nodes[0], put("k", "v")).status, 201);
        peer.set_plan(FaultPlan::none());
        let slow = slow_requests(nodes[0], "put");
        let mut written = slow.iter().filter(|slow| slow.request["key"] == "k").peekable();
        assert!(written.peek().is_some(), "a write was slow");
        written.any(|written| written.is_named() && written.longest() == "peer 1")
    });
    for server in servers {
        server.stop().unwrap();
    }
}
