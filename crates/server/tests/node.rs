//! A single node in this process, on an in-memory disk.

mod common;
#[path = "../../veche/tests/common/http.rs"]
#[allow(dead_code, reason = "the black-box tests use the rest")]
mod http;

use common::eventually;
use env::{Clock, Env, Fault, FaultFs, FaultPlan, Fs, MemFs, OperationKind, OperationMatch, OsClock};
use http::{Connection, Response, bare, delete, get, put};
use parking_lot::{Condvar, Mutex};
use server::{Config, Limits, Server, ServerError};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use stdx::Now;
use store::{Membership, StoreError};

fn config() -> Config {
    common::config(Limits::default())
}

fn start(config: Config, fs: impl Fs + 'static) -> Server {
    let server = start_only(config, fs);
    eventually("the node serves", || exchange(&server, bare("GET", "/v0/status")).status == 200);
    server
}

fn start_only(config: Config, fs: impl Fs + 'static) -> Server {
    Server::start(config, Env { fs: Arc::new(fs), clock: Arc::new(OsClock::new()) }).expect("a port is free")
}

#[track_caller]
fn exchange(server: &Server, request: impl AsRef<[u8]>) -> Response {
    http::exchange(server.address(), request)
}

fn faulty() -> (FaultFs, MemFs) {
    let disk = MemFs::new();
    (FaultFs::new(Arc::new(disk.clone()), FaultPlan::none()), disk)
}

/// The request counter `name` in the node's status.
#[track_caller]
fn counted(server: &Server, name: &str) -> u64 {
    let status = exchange(server, bare("GET", "/v0/status")).text();
    let requests = status.split("\"requests\":").nth(1).expect("requests are counted");
    let counter = requests.split(&format!("\"{name}\":")).nth(1).expect("it is counted");
    counter.split([',', '}']).next().and_then(|count| count.parse().ok()).expect("a number")
}

/// The value of `sample` at `/metrics`. A connection that is closed or refused is tried again:
/// under pressure another new connection may evict it.
#[track_caller]
fn measured(server: &Server, sample: &str) -> f64 {
    let mut text = String::new();
    eventually("the metrics are told", || {
        let answer = Connection::open(server.address()).try_exchange(bare("GET", "/metrics"));
        answer.is_ok_and(|answer| {
            text = answer.text();
            answer.status == 200
        })
    });
    let value = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {sample}")).parse().expect("a number")
}

/// Blocks file operations until it is opened.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<GateState>, Condvar)>);

#[derive(Default)]
struct GateState {
    is_open: bool,
    waiting: usize,
}

impl Gate {
    /// A fault plan that blocks operations of this kind at the gate.
    fn plan(&self, kind: OperationKind) -> FaultPlan {
        let gate = self.clone();
        let wait = Arc::new(move |_| gate.pass());
        FaultPlan::fail(OperationMatch::kind(kind).sticky(), Fault::Delay { duration: Duration::ZERO, wait })
    }

    fn pass(&self) {
        let (state, opened) = &*self.0;
        let mut state = state.lock();
        state.waiting += 1;
        while !state.is_open {
            opened.wait(&mut state);
        }
    }

    fn waiting(&self) -> usize {
        self.0.0.lock().waiting
    }

    fn open(&self) {
        self.0.0.lock().is_open = true;
        self.0.1.notify_all();
    }
}

#[test]
fn a_full_disk_refuses_only_values_and_recovers_without_help() {
    const CAPACITY: u64 = 24 << 20;
    let disk = MemFs::with_capacity(CAPACITY);
    let server = start(config(), disk.clone());
    let mut connection = Connection::open(server.address());
    // The values are incompressible.
    let value = |i: usize| {
        let mut bytes = vec![0; 64_000];
        stdx::Rng::new(i as u64).fill(&mut bytes);
        bytes
    };
    let mut stored = 0;
    // Space that flush and compaction free is filled again, until none is freed any more.
    let is_full = |connection: &mut Connection| {
        connection.exchange(bare("GET", "/v0/status")).text().contains("The disk is full")
    };
    loop {
        let answer = connection.exchange(put(&format!("k{stored}"), value(stored)));
        match answer.status {
            201 => stored += 1,
            503 => std::thread::sleep(Duration::from_millis(20)),
            _ => {
                answer.assert_problem(507, "disk");
                if is_full(&mut connection) {
                    break;
                }
            }
        }
        assert!((stored as u64) < CAPACITY / 64_000 + 1, "more was stored than the disk holds");
    }
    assert!(stored > 50, "{stored}");
    for i in 0..stored {
        let found = connection.exchange(get(&format!("k{i}")));
        assert_eq!((found.status, found.body == value(i)), (200, true), "k{i}");
    }
    for i in 0..20 {
        eventually("deletes go on", || connection.exchange(delete(&format!("k{i}"))).status == 202);
        assert_eq!(connection.exchange(get(&format!("k{i}"))).status, 404);
    }
    disk.set_capacity(2 * CAPACITY);
    eventually("values are taken again", || connection.exchange(put("later", "v")).status == 201);
    server.stop().unwrap();

    let server = start(config(), disk);
    for i in 0..stored {
        let expected = if i < 20 { 404 } else { 200 };
        assert_eq!(exchange(&server, get(&format!("k{i}"))).status, expected, "k{i}");
    }
    server.stop().unwrap();
}

#[test]
fn a_recovering_node_responds_that_it_is_starting() {
    let (fs, _) = faulty();
    let gate = Gate::default();
    fs.set_plan(gate.plan(OperationKind::Open));
    let server = start_only(config(), fs);
    for request in [get("k").into_bytes(), put("k", "v"), delete("k").into_bytes()] {
        let refused = exchange(&server, request);
        refused.assert_problem(503, "starting");
        assert_eq!(refused.header("retry-after"), Some("1"));
    }
    let status = exchange(&server, bare("GET", "/v0/status"));
    assert_eq!((status.status, status.header("retry-after")), (503, Some("1")));
    assert!(status.text().contains("\"state\":\"starting\""), "{}", status.text());
    assert_eq!(measured(&server, "veche_state{state=\"starting\"}"), 1.0);
    assert_eq!(measured(&server, "veche_requests_total{operation=\"get\",status=\"503\"}"), 1.0);
    gate.open();
    eventually("the node serves", || exchange(&server, bare("GET", "/v0/status")).status == 200);
    assert_eq!(measured(&server, "veche_state{state=\"starting\"}"), 0.0);
    assert_eq!(exchange(&server, put("k", "v")).status, 201);
    server.stop().unwrap();
}

#[test]
fn a_stop_during_recovery_stops_the_node() {
    let (fs, disk) = faulty();
    let gate = Gate::default();
    fs.set_plan(gate.plan(OperationKind::Open));
    let server = start_only(config(), fs);
    eventually("recovery waits", || gate.waiting() > 0);
    let stopping = std::thread::spawn(move || server.stop());
    gate.open();
    stopping.join().unwrap().unwrap();
    start(config(), disk).stop().unwrap();
}

#[test]
fn a_data_directory_in_use_is_an_error() {
    let disk = MemFs::new();
    let server = start(config(), disk.clone());
    let second = start_only(config(), disk);
    let error = second.stop().unwrap_err();
    assert!(matches!(error, ServerError::Store(StoreError::Locked { .. })), "{error}");
    server.stop().unwrap();
}

#[test]
fn a_failed_sync_ends_the_node_and_loses_no_acknowledged_write() {
    let (fs, disk) = faulty();
    let server = start(config(), fs.clone());
    assert_eq!(exchange(&server, put("k", "acknowledged")).status, 201);
    fs.set_plan(FaultPlan::fail(OperationMatch::kind(OperationKind::SyncData).sticky(), Fault::DeviceError));
    let mut connection = Connection::open(server.address());
    connection.send(put("k", "not acknowledged"));
    // The node may end before the response is sent.
    if let Some(answer) = connection.try_response(false) {
        answer.assert_problem(500, "");
    }
    eventually("the node ends", || Connection::try_open(server.address()).is_err());
    let error = server.stop().unwrap_err();
    assert!(matches!(error, ServerError::Poisoned { .. }), "{error}");
    let server = start(config(), disk.kill());
    assert!(exchange(&server, get("k")).text().ends_with("acknowledged"));
    server.stop().unwrap();
}

#[test]
fn reads_that_wait_for_the_disk_run_in_the_read_pool() {
    let disk = MemFs::new();
    let server = start(config(), disk.clone());
    let mut connection = Connection::open(server.address());
    let value = |i: usize| format!("{i} ").repeat(1_000);
    for i in 0..400 {
        eventually("the engine takes it", || {
            connection.exchange(put(&format!("k{i}"), value(i))).status == 201
        });
    }
    server.stop().unwrap();
    let server = start(config(), disk.clone());
    disk.set_cold(true);
    let would_wait_before = disk.counters().counts().reads_would_wait;
    let mut connection = Connection::open(server.address());
    for i in 0..400 {
        connection.send(get(&format!("k{i}")));
    }
    for i in 0..400 {
        assert_eq!(connection.response().text(), value(i), "k{i}");
    }
    assert!(
        disk.counters().counts().reads_would_wait > would_wait_before,
        "no read had to wait for the disk"
    );
    assert!(measured(&server, "veche_read_pool_wait_seconds_count{kind=\"point\"}") > 0.0);
    assert_eq!(measured(&server, "veche_read_pool_waiting{kind=\"point\"}"), 0.0);
    let hot = measured(&server, "veche_request_seconds_count{operation=\"get\",status=\"2xx\"}");
    assert_eq!(hot, 400.0, "each of them was one request");
    server.stop().unwrap();
}

#[test]
fn a_damaged_table_causes_errors_and_never_wrong_values() {
    const KEYS: usize = 400;
    let disk = MemFs::new();
    let server = start(config(), disk.clone());
    let mut connection = Connection::open(server.address());
    let value = |i: usize| format!("{i} ").repeat(1_000);
    for i in 0..KEYS {
        eventually("the engine takes it", || {
            connection.exchange(put(&format!("k{i}"), value(i))).status == 201
        });
    }
    let tables =
        || disk.file_names().into_iter().filter(|path| path.extension().is_some_and(|it| it == "sst"));
    eventually("a memtable is flushed", || tables().next().is_some());
    server.stop().unwrap();
    for table in tables() {
        // A small table may end before this offset.
        let _ = disk.corrupt(table, 1_000, 3);
    }
    let server = start(config(), disk);
    let mut damaged = 0;
    for i in 0..KEYS {
        let answer = exchange(&server, get(&format!("k{i}")));
        if answer.status == 200 {
            assert_eq!(answer.text(), value(i), "k{i}");
        } else {
            answer.assert_problem(500, ".sst");
            damaged += 1;
        }
    }
    assert!(damaged > 0, "no read met the damage");
    drop(server);
}

#[test]
fn a_hung_disk_fails_writes_at_their_deadline_and_not_reads() {
    let (fs, _) = faulty();
    let config = Config { request_timeout: Duration::from_millis(200), ..config() };
    let server = start(config, fs.clone());
    eventually("it is stored in time", || exchange(&server, put("k", "old")).status == 201);
    let names = ["deadlines_passed", "not_enough_replicas"];
    let before = names.map(|name| counted(&server, name));
    let gate = Gate::default();
    fs.set_plan(gate.plan(OperationKind::SyncData));
    let late = exchange(&server, put("k", "new"));
    late.assert_problem(504, "may have been stored");
    assert_eq!((late.reason.as_str(), late.header("veche-acks")), ("Not Enough Replicas", Some("0/1")));
    assert_eq!(names.map(|name| counted(&server, name)), before.map(|count| count + 1));
    assert_eq!(exchange(&server, get("k")).text(), "old", "a write that is not durable is not read");
    gate.open();
    eventually("the write is durable", || exchange(&server, get("k")).text() == "new");
    server.stop().unwrap();
}

#[test]
fn a_write_in_flight_is_answered_before_the_node_stops() {
    let (fs, _) = faulty();
    let server = start(config(), fs.clone());
    let address = server.address();
    assert_eq!(exchange(&server, put("k", "old")).status, 201);
    let gate = Gate::default();
    fs.set_plan(gate.plan(OperationKind::SyncData));
    let mut connection = Connection::open(address);
    connection.send(put("k", "new"));
    eventually("the write waits for the disk", || gate.waiting() > 0);
    let stopping = std::thread::spawn(move || server.stop());
    eventually("the node does not listen any more", || Connection::try_open(address).is_err());
    gate.open();
    let answer = connection.response();
    assert_eq!((answer.status, answer.header("connection")), (201, Some("close")));
    connection.assert_closed();
    stopping.join().unwrap().unwrap();
}

#[test]
fn a_request_sent_before_the_stop_is_answered() {
    assert!(
        (0..50).any(|_| stop_with_requests_on_their_way()),
        "this machine never sent the requests in time"
    );
}

/// Returns `false` if sending the requests took so long that the node was not obliged to wait for
/// them.
fn stop_with_requests_on_their_way() -> bool {
    const IN_TIME: Duration = Duration::from_millis(400);
    let server = start(config(), MemFs::new());
    let address = server.address();
    let request = |i: usize| if i.is_multiple_of(2) { get("k").into_bytes() } else { put("k", "v") };
    let mut fresh: Vec<_> = (0..16).map(|_| Connection::open(address)).collect();
    let mut begun: Vec<_> = (0..16)
        .map(|i| {
            let mut connection = Connection::open(address);
            assert_eq!(connection.exchange(delete("k")).status, 202);
            connection.send(&request(i)[..10]);
            connection
        })
        .collect();
    // Its response shows that the node has read the earlier bytes.
    assert_eq!(exchange(&server, get("k")).status, 404);
    let mut idle = Connection::open(address);
    assert_eq!(idle.exchange(get("k")).status, 404);
    let told = Instant::now();
    let stopping = std::thread::spawn(move || server.stop());
    eventually("the node does not listen any more", || Connection::try_open(address).is_err());
    let sent = (0..).zip(&mut fresh).map(|(i, connection)| connection.try_send(request(i)));
    let rest = (0..).zip(&mut begun).map(|(i, connection)| connection.try_send(&request(i)[10..]));
    let all_left = sent.chain(rest).all(|sent| sent.is_ok());
    if told.elapsed() > IN_TIME {
        stopping.join().unwrap().unwrap();
        return false;
    }
    assert!(all_left, "the node closes no connection before its drain time");
    for connection in fresh.iter_mut().chain(&mut begun) {
        let answer = connection.response();
        assert!(matches!(answer.status, 200 | 201 | 404), "{answer:?}");
        assert_eq!(answer.header("connection"), Some("close"), "{answer:?}");
        connection.assert_closed();
    }
    idle.assert_closed();
    stopping.join().unwrap().unwrap();
    true
}

#[test]
fn a_request_that_does_not_end_is_cut_when_the_node_stops() {
    let limits = Limits { drain_time: Duration::from_millis(100), ..Limits::default() };
    let server = start(Config { limits, ..config() }, MemFs::new());
    let mut connection = Connection::open(server.address());
    connection.send(put("k", "value").split_last().expect("a request").1);
    assert_eq!(exchange(&server, bare("GET", "/v0/status")).status, 200);
    server.stop().unwrap();
    connection.assert_closed();
}

#[test]
fn a_node_whose_identity_is_lost_ends_with_an_error() {
    let disk = MemFs::new();
    let server = start(config(), disk.clone());
    assert_eq!(exchange(&server, put("k", "v")).status, 201);
    disk.remove_file(std::path::Path::new("/data/identity")).unwrap();
    let address = server.address();
    eventually("the node does not listen any more", || Connection::try_open(address).is_err());
    let error = server.stop().unwrap_err().to_string();
    assert!(error.contains("removed or replaced"), "{error}");
}

#[test]
fn the_directory_of_a_node_that_ended_early_can_be_opened_again_in_the_same_process() {
    let disk = MemFs::new();
    let (identity, elsewhere) = (PathBuf::from("/data/identity"), PathBuf::from("/data/elsewhere"));
    let server = start(config(), disk.clone());
    assert_eq!(exchange(&server, put("k", "v")).status, 201);
    disk.rename(&identity, &elsewhere).unwrap();
    let address = server.address();
    eventually("the node does not listen any more", || Connection::try_open(address).is_err());
    let ended = server.stop();
    assert!(matches!(ended, Err(ServerError::DirectoryLost { .. })), "{ended:?}");
    disk.rename(&elsewhere, &identity).unwrap();
    let server = start(config(), disk);
    assert_eq!(exchange(&server, get("k")).text(), "v");
    server.stop().unwrap();
}

/// Opens connections whose writes wait for the disk at `gate`: a connection whose request is being
/// executed is not evicted. Each connection has its permit before the next one is opened.
fn busy_connections(server: &Server, fs: &FaultFs, gate: &Gate, count: usize) -> Vec<Connection> {
    fs.set_plan(gate.plan(OperationKind::SyncData));
    let open = |_| {
        let mut connection = admitted(server);
        connection.send(put("k", "value"));
        connection
    };
    let busy = (0..count).map(open).collect();
    eventually("the writes wait for the disk", || gate.waiting() > 0);
    busy
}

/// Opens a connection and waits until a response shows that it has a permit. An earlier connection
/// may keep the permit for a moment after its client has closed it.
#[track_caller]
fn admitted(server: &Server) -> Connection {
    let mut connection = None;
    eventually("a connection is admitted", || {
        let connection = connection.insert(Connection::open(server.address()));
        connection.try_exchange(get("none")).is_ok_and(|answer| answer.status == 404)
    });
    connection.expect("it was admitted")
}

#[test]
fn a_connection_above_the_limit_gets_a_refusal() {
    let (fs, _) = faulty();
    let limits = Limits { connections_max: 3, ..Limits::default() };
    let server = start(Config { limits, ..config() }, fs.clone());
    let gate = Gate::default();
    let mut held = busy_connections(&server, &fs, &gate, 3);
    eventually("all have a place", || measured(&server, "veche_connections") == 4.0);
    let mut connection = Connection::open(server.address());
    let answer = connection.exchange(get("k"));
    answer.assert_problem(503, "connection");
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(answer.header("date").is_some_and(|date| date.ends_with(" GMT")), "{answer:?}");
    connection.assert_closed();
    gate.open();
    assert!(held.iter_mut().all(|connection| connection.response().status == 201));
    held.clear();
    eventually("there is room again", || {
        exchange(&server, bare("GET", "/v0/status")).text().contains("\"connections\":1,")
    });
    // Further connections may be refused between both readings.
    eventually("the metrics and the status count the same refusals", || {
        let refused = measured(&server, "veche_refused_total{reason=\"connections\"}");
        refused > 0.0 && refused == counted(&server, "refused") as f64
    });
    server.stop().unwrap();
}

#[test]
fn an_administration_request_is_admitted_at_the_connection_limit() {
    let (fs, _) = faulty();
    let limits = Limits { connections_max: 1, head_time: FOR_EVER, ..Limits::default() };
    let server = start(Config { limits, ..config() }, fs.clone());
    let gate = Gate::default();
    let busy = busy_connections(&server, &fs, &gate, 1);
    eventually("it has the place", || is_answered(&server, get("k"), 503));
    for (method, target) in
        [("GET", "/v0/status"), ("GET", "/metrics"), ("HEAD", "/v0/ready"), ("OPTIONS", "/")]
    {
        let mut connection = Connection::open(server.address());
        let answer = connection.exchange(bare(method, target));
        assert_eq!((answer.status, answer.header("connection")), (200, Some("close")), "{method} {target}");
        connection.assert_closed();
    }
    // Incomplete administration requests take none of the reserved connections.
    let _half_sent: Vec<_> = (0..40).map(|_| half_sent(&server, "GET /v0/status HTTP/1.1\r\nHost")).collect();
    eventually("the status is told", || is_answered(&server, bare("GET", "/v0/status"), 200));
    eventually("the metrics are told", || is_answered(&server, bare("GET", "/metrics"), 200));
    gate.open();
    drop(busy);
    server.stop().unwrap();
}

#[test]
fn idle_connections_are_evicted_for_new_ones() {
    let limits = Limits { connections_max: 16, ..Limits::default() };
    let server = start(Config { limits, ..config() }, MemFs::new());
    let silent: Vec<_> = (0..16).map(|_| Connection::open(server.address())).collect();
    let mut served = Vec::new();
    for round in 0..12 {
        let mut connection = Connection::open(server.address());
        assert_eq!(connection.exchange(get("k")).status, 404, "{round}");
        served.push(connection);
    }
    assert!(measured(&server, "veche_connections_cut_total{reason=\"evicted\"}") >= 12.0);
    assert_eq!(measured(&server, "veche_refused_total{reason=\"connections\"}"), 0.0);
    drop(silent);
    server.stop().unwrap();
}

/// A duration longer than any test.
const FOR_EVER: Duration = Duration::from_secs(1 << 20);

/// Limits under which connections end only by eviction.
const PATIENT: Limits = Limits {
    connections_max: 64,
    handshakes_max: 64,
    memory_bytes: 256 << 20,
    head_time: FOR_EVER,
    idle_time: FOR_EVER,
    progress_time: FOR_EVER,
    reader_time: FOR_EVER,
    hint_bytes_max: 1 << 30,
    drain_time: Duration::from_secs(1),
};

/// Opens a connection that sends `begin` and no more.
fn half_sent(server: &Server, begin: impl AsRef<[u8]>) -> Connection {
    let mut connection = Connection::open(server.address());
    // The node may have refused the connection already.
    let _ = connection.try_send(begin);
    connection
}

/// Whether a request on a new connection gets `status`.
fn is_answered(server: &Server, request: impl AsRef<[u8]>, status: u16) -> bool {
    let answer = Connection::open(server.address()).try_exchange(request);
    answer.is_ok_and(|answer| answer.status == status)
}

#[test]
fn unfinished_heads_keep_no_client_out_at_any_rate() {
    let server = start(Config { limits: PATIENT, ..config() }, MemFs::new());
    let mut resting = Connection::open(server.address());
    assert_eq!(resting.exchange(get("k")).status, 404);
    let mut hostile = std::collections::VecDeque::new();
    for round in 0..600 {
        hostile.push_back(half_sent(&server, "GET /v0/entity?id=k HTTP/1.1\r\nHost: v\r\n"));
        if hostile.len() > 200 {
            hostile.pop_front();
        }
        if round % 20 == 0 {
            eventually("a client of the same address is answered", || is_answered(&server, get("k"), 404));
            eventually("the status is told", || is_answered(&server, bare("GET", "/v0/status"), 200));
            eventually("the metrics are told", || is_answered(&server, bare("GET", "/metrics"), 200));
        }
    }
    assert!(measured(&server, "veche_connections_cut_total{reason=\"evicted\"}") > 100.0);
    assert_eq!(resting.exchange(get("k")).status, 404, "a connection with whole requests is not evicted");
    server.stop().unwrap();
}

#[test]
fn unfinished_heads_after_a_whole_request_are_evicted_too() {
    let server = start(Config { limits: PATIENT, ..config() }, MemFs::new());
    let hostile: Vec<_> = (0..100)
        .map(|_| half_sent(&server, get("k") + "GET /v0/entity?id=k HTTP/1.1\r\nHost: v\r\n"))
        .collect();
    eventually("a client is answered", || is_answered(&server, get("k"), 404));
    drop(hostile);
    server.stop().unwrap();
}

#[test]
fn stalled_bodies_are_evicted_when_connections_run_short() {
    let server = start(Config { limits: PATIENT, ..config() }, MemFs::new());
    let mut hostile: Vec<_> =
        (0..70).map(|_| half_sent(&server, put("k", "value").split_last().expect("a request").1)).collect();
    eventually("a client is answered", || is_answered(&server, get("k"), 404));
    assert!(measured(&server, "veche_connections_cut_total{reason=\"slow_request\"}") > 0.0);
    let told = hostile
        .iter_mut()
        .filter_map(|connection| connection.try_response(false).map(|answer| answer.status));
    assert!(told.take(1).all(|status| [408, 503].contains(&status)));
    server.stop().unwrap();
}

#[test]
fn unread_responses_are_evicted_when_connections_run_short() {
    let limits = Limits { connections_max: 16, ..PATIENT };
    let server = start(Config { limits, ..config() }, MemFs::new());
    eventually("a large value is stored", || exchange(&server, put("k", "x".repeat(1 << 20))).status == 201);
    // More bytes than the socket buffers hold.
    let mut hostile = Vec::new();
    eventually("a client is answered in place of one that does not read", || {
        // A busy node may have refused the reads of earlier ones, which are short responses.
        hostile.extend((0..20).map(|_| half_sent(&server, get("k").repeat(16))));
        is_answered(&server, get("none"), 404)
            && measured(&server, "veche_connections_cut_total{reason=\"stalled\"}") > 0.0
    });
    drop(hostile);
    server.stop().unwrap();
}

#[test]
fn bodies_use_at_most_their_share_of_memory() {
    let limits = Limits { memory_bytes: 700_000, ..Limits::default() };
    let server = start(Config { limits, ..config() }, MemFs::new());
    let (half, whole) = ("x".repeat(200_000), "x".repeat(400_000));
    // Either body may arrive first and get the memory, so both are retried until the intended one
    // waits. A connection that was too late is closed, so that its buffered input takes no memory
    // from the category of connections.
    let mut waiting = None;
    eventually("the budget is used up", || {
        drop(waiting.take());
        let mut connection = Connection::open(server.address());
        connection.send(&put("waiting", &whole)[..200_000]);
        waiting = Some(connection);
        let answer = exchange(&server, put("k", &half));
        if answer.status == 503 {
            answer.assert_problem(503, "memory");
        }
        answer.status == 503 && measured(&server, "veche_body_bytes") > 0.0
    });
    let refused = measured(&server, "veche_refused_total{reason=\"bodies\"}");
    assert!(refused > 0.0 && refused == counted(&server, "refused") as f64);
    drop(waiting);
    eventually("the budget came back", || exchange(&server, put("k", &half)).status == 201);
    eventually("all of it", || measured(&server, "veche_body_bytes") == 0.0);
    assert_eq!(exchange(&server, get("waiting")).status, 404);
    server.stop().unwrap();
}

#[test]
fn slow_clients_get_a_refusal_and_idle_ones_are_closed() {
    let second = Duration::from_secs(1);
    let limits = Limits { head_time: second, progress_time: second, idle_time: second, ..Limits::default() };
    let server = start(Config { limits, ..config() }, MemFs::new());
    let mut idle = Connection::open(server.address());
    assert_eq!(idle.exchange(bare("GET", "/v0/status")).status, 200);
    let beginnings =
        ["GET /v0/ent", "PUT /v0/entity?id=k HTTP/1.1\r\nHost: v\r\nContent-Length: 100\r\n\r\nbegun"];
    let slow = beginnings.map(|beginning| {
        let mut connection = Connection::open(server.address());
        connection.send(beginning);
        connection
    });
    for mut connection in slow {
        connection.response().assert_problem(408, "too slowly");
        connection.assert_closed();
    }
    idle.assert_closed();
    assert_eq!(exchange(&server, get("k")).status, 404);
    assert_eq!(measured(&server, "veche_connections_cut_total{reason=\"slow_request\"}"), 2.0);
    assert_eq!(measured(&server, "veche_connections_cut_total{reason=\"idle\"}"), 1.0);
    assert_eq!(measured(&server, "veche_requests_total{operation=\"other\",status=\"408\"}"), 2.0);
    server.stop().unwrap();
}

#[test]
fn a_stalled_stream_is_aborted_recognizably() {
    const VALUES: usize = 40;
    let second = Duration::from_secs(1);
    let limits = Limits { progress_time: second, reader_time: second, ..Limits::default() };
    // The budget covers all unread bytes, so that the batch gets to its first result.
    let memory =
        engine::Options { memory_bytes: 128 << 20, memtable_bytes: Some(32 << 20), ..config().engine };
    let server = start(Config { limits, engine: memory, ..config() }, MemFs::new());
    let mut connection = Connection::open(server.address());
    for i in 0..VALUES {
        let stores = || connection.exchange(put(&format!("k{i:02}"), vec![7; 500_000])).status == 201;
        eventually("the engine takes it", stores);
    }
    let batch = "POST /v0/entities HTTP/1.1\r\nHost: v\r\nContent-Type: application/x-ndjson\r\n\
                 Transfer-Encoding: chunked\r\n\r\n";
    let entry = "1b\r\n{\"key\":\"b\",\"value\":\"value\"}\r\n";
    let [mut range, mut range_1_0, mut begun, mut not_begun] = [
        bare("GET", "/v0/entities?start=k"),
        "GET /v0/entities?start=k HTTP/1.0\r\n\r\n".to_owned(),
        [batch, entry, "1\r\n\n\r\n"].concat(),
        batch.to_owned(),
    ]
    .map(|request| {
        let mut connection = Connection::open(server.address());
        connection.send(request);
        connection
    });
    for streamed in [&mut range, &mut range_1_0, &mut begun] {
        assert_eq!(streamed.head().status, 200);
    }
    assert!(begun.chunk().expect("a result").is_some());
    not_begun.response().assert_problem(408, "too slowly");
    assert!(begun.chunk().is_err(), "a stalled batch ends without its last chunk");
    eventually("nothing is kept for those who do not read", || {
        exchange(&server, bare("GET", "/v0/status"))
            .text()
            .contains("\"ranges\":{\"open\":0,\"snapshots\":0}")
    });
    let came = std::iter::from_fn(|| range.chunk().transpose()).collect::<Result<Vec<_>, _>>();
    assert!(came.is_err(), "an unread range ends without its last chunk");
    assert_eq!(
        range_1_0.rest().1,
        std::io::ErrorKind::ConnectionReset,
        "without chunks, a reset marks the abort"
    );
    assert_eq!(exchange(&server, get("b")).text(), "value");
    server.stop().unwrap();
}

#[test]
fn a_slow_store_does_not_count_as_a_stalled_client() {
    let second = Duration::from_secs(1);
    let (fs, _) = faulty();
    let limits = Limits { progress_time: second, ..Limits::default() };
    let request_timeout = 60 * second;
    let server = start(Config { limits, request_timeout, ..config() }, fs.clone());
    let mut connection = Connection::open(server.address());
    for i in 0..20 {
        let stores = || connection.exchange(put(&format!("k{i:02}"), vec![7; 100_000])).status == 201;
        eventually("the engine takes it", stores);
    }
    eventually("tables are written", || {
        !exchange(&server, bare("GET", "/v0/status")).text().contains("\"flushes\":0")
    });
    let gate = Gate::default();
    fs.set_plan(gate.plan(OperationKind::Read));
    connection.send(bare("GET", "/v0/entities?start=k"));
    eventually("the range waits for the disk", || gate.waiting() > 0);
    // Longer than the progress time by the clock of the sweep, which cuts stalled clients
    // meanwhile.
    let mut silent = Connection::open(server.address());
    silent.send("PUT /v0/entity?id=k HTTP/1.1\r\nHost: v\r\nContent-Length: 100\r\n\r\nbegun");
    silent.response().assert_problem(408, "too slowly");
    gate.open();
    assert_eq!(connection.head().status, 200);
    assert_eq!(connection.chunks().len(), 20);
    server.stop().unwrap();
}

/// Clocks of a machine that the test suspends.
#[derive(Default)]
struct Suspendable(AtomicU64);

impl Clock for Suspendable {
    fn now(&self) -> Now {
        let now = OsClock::new().now();
        let suspended = Duration::from_secs(self.0.load(Ordering::Relaxed));
        Now { wall: now.wall.saturating_add(suspended), ..now }
    }

    fn since_boot(&self) -> Option<Duration> {
        let suspended = Duration::from_secs(self.0.load(Ordering::Relaxed));
        Some(Duration::from_nanos(OsClock::new().now().mono.as_nanos()) + suspended)
    }
}

#[test]
fn a_node_whose_machine_was_suspended_for_too_long_ends_and_its_next_start_judges_the_absence() {
    let (clock, disk) = (Arc::new(Suspendable::default()), MemFs::new());
    let nodes = ["http://127.0.0.1:2", "http://127.0.0.1:3", "http://127.0.0.1:4"].map(str::to_owned);
    let start = |disk: &MemFs| {
        let config = Config {
            membership: Membership::of(nodes.to_vec()),
            self_name: nodes[0].clone(),
            default_from: 3,
            ..config()
        };
        let env = Env { fs: Arc::new(disk.clone()), clock: Arc::clone(&clock) as _ };
        Server::start(config, env).expect("a port is free")
    };
    let server = start(&disk);
    let mark = PathBuf::from("/data/log-mark");
    eventually("its store is open", || disk.read_file(&mark).is_ok());
    clock.0.store(11 * 24 * 3600, Ordering::Relaxed);
    let address = server.address();
    eventually("it ends by itself", || std::net::TcpStream::connect(address).is_err());
    let ended = server.stop();
    assert!(matches!(ended, Err(ServerError::Store(StoreError::PausedTooLong { .. }))), "{ended:?}");
    let refused = start(&disk).stop();
    assert!(matches!(refused, Err(ServerError::Store(StoreError::AwayTooLong { .. }))), "{refused:?}");
}
