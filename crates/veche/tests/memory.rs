//! One budget for all memory: clients that use too much are refused or disconnected, and others are
//! served.
//!
//! The whole load, with its bounds, takes a while and hundreds of sockets:
//! `cargo test --release -p veche --test memory -- --ignored --nocapture`.

mod common;

use common::exposition::Scrape;
use common::http::{Connection, bare, get, put};
use common::{Node, data_dir, eventually};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// So long clients wait that push more than is taken.
const PATIENCE: Duration = Duration::from_millis(50);

const GET_IF_NEW: &str = "GET /v0/entity?id=large HTTP/1.1\r\nHost: v\r\nIf-None-Match: *\r\n\r\n";

fn scrape(node: &Node) -> Scrape {
    Scrape::read(&node.exchange(bare("GET", "/metrics")).text()).expect("well formed")
}

/// Bytes that do not compress, others for each seed.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(len).collect()
}

/// A client whose writes time out if the node does not read them.
fn pusher(node: &Node) -> TcpStream {
    let stream = TcpStream::connect(node.address).expect("there is room for one more");
    stream.set_write_timeout(Some(PATIENCE)).expect("a time");
    stream
}

#[test]
fn readers_that_stand_still_make_room_for_others() {
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--threads", "1", "--memory", "96MiB"]);
    let value = noise(1, 12 * MIB);
    eventually("it is stored", || node.put("large", &value).status == 201);
    let stuck: Vec<_> = (0..6)
        .map(|_| {
            let mut connection = node.connect();
            connection.send(get("large"));
            connection
        })
        .collect();
    eventually("one of them too many is refused", || {
        scrape(&node).get("veche_refused_total", &[("reason", "replies")]) > 0.0
    });
    let held = scrape(&node).get("veche_memory_bytes", &[("part", "replies")]);
    assert!(held > 0.0 && held <= (18 * MIB) as f64, "{held}");
    // A conditional read of an unchanged value is `304`, however little memory is free.
    assert_eq!(node.exchange(GET_IF_NEW).status, 304);
    // Small values need no room, and who stands still loses his.
    assert_eq!(node.put("small", "value").status, 201);
    assert_eq!(node.get("small").text(), "value");
    eventually("there is room again", || {
        let answer = node.get("large");
        if answer.status == 503 {
            answer.assert_problem(503, "");
            assert!(answer.header("retry-after").is_some(), "{answer:?}");
        }
        answer.status == 200 && answer.body == value
    });
    assert!(scrape(&node).get("veche_connections_cut_total", &[("reason", "stalled")]) > 0.0);
    drop(stuck);
    eventually("all of it", || scrape(&node).get("veche_memory_bytes", &[("part", "replies")]) == 0.0);
}

#[test]
fn bodies_that_stand_still_make_room_for_others() {
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--threads", "1", "--memory", "96MiB"]);
    let value = noise(2, 12 * MIB);
    let mut slow: Vec<_> = (0..6).map(|_| pusher(&node)).collect();
    for stream in &mut slow {
        // A refused client may close before it has received everything.
        let _ = stream.write_all(&put("slow", &value)[..10 * MIB]);
    }
    let part = |part| scrape(&node).get("veche_memory_bytes", &[("part", part)]);
    assert!(part("bodies") > 0.0 && part("bodies") <= (18 * MIB) as f64);
    assert!(scrape(&node).get("veche_refused_total", &[("reason", "bodies")]) > 0.0);
    assert_eq!(node.put("small", "value").status, 201);
    eventually("there is room again", || node.put("large", &value).status == 201);
    assert_eq!(node.get("slow").status, 404);
    drop(slow);
    eventually("all of it", || part("bodies") == 0.0);
}

#[test]
fn hundreds_of_short_ranges_at_once_are_not_too_many_for_the_least_budget() {
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--memory", "16MiB"]);
    let mut connection = node.connect();
    for number in 0..50 {
        assert_eq!(connection.exchange(put(&format!("k{number:02}"), noise(number, 500))).status, 201);
    }
    let mut connections: Vec<_> = (0..200).map(|_| node.connect()).collect();
    for _ in 0..3 {
        connections
            .iter_mut()
            .for_each(|connection| connection.send(bare("GET", "/v0/entities?start=k&limit=20")));
        for connection in &mut connections {
            assert_eq!(connection.head().status, 200);
            assert_eq!(connection.chunks().len(), 20);
        }
    }
    assert_eq!(scrape(&node).get("veche_refused_total", &[("reason", "ranges")]), 0.0);
}

#[test]
fn a_connection_that_rests_costs_little_whatever_it_has_carried() {
    const CONNECTIONS: usize = 400;
    let (_dir, data) = data_dir();
    let node = Node::start(&data);
    let value = noise(3, 64 << 10);
    let mut warm = node.connect();
    for _ in 0..50 {
        assert_eq!(warm.exchange(put("k", &value)).status, 201);
    }
    let before = node.resident_bytes();
    let resting: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let mut connection = node.connect();
            assert_eq!(connection.exchange(put("k", &value)).status, 201);
            connection
        })
        .collect();
    let store = |of: &Scrape| {
        let parts = ["memtables", "cache", "commit_queue", "snapshots", "tables"];
        parts.map(|part| of.get("veche_memory_bytes", &[("part", part)])).iter().sum::<f64>() as u64
    };
    let cost = node.resident_bytes().saturating_sub(before).saturating_sub(store(&scrape(&node)));
    assert!(cost < (CONNECTIONS as u64) * (40 << 10), "{cost} bytes for {CONNECTIONS} connections");
    drop(resting);
}

/// Greatest observed memory figures of a node.
#[derive(Clone, Copy, Debug, Default)]
struct Peak {
    accounted: f64,
    resident: u64,
}

impl Peak {
    fn watch(&mut self, node: &Node, connection: &mut Connection) {
        let answer = connection.exchange(bare("GET", "/metrics"));
        let scrape = Scrape::read(&answer.text()).expect("well formed");
        self.accounted = self.accounted.max(scrape.sum("veche_memory_bytes", &[]));
        self.resident = self.resident.max(node.resident_bytes());
    }
}

/// Clients that take and give as little as they can. Who is refused or cut comes again.
struct Nuisance {
    address: SocketAddr,
    clients: Vec<Client>,
}

/// A nuisance client and its behaviour.
struct Client {
    stream: TcpStream,
    manner: Manner,
}

#[derive(Clone)]
enum Manner {
    /// Asks, and reads nothing.
    Reads(String),
    /// Sends the remaining bytes of a value in small pieces.
    Writes { len: usize, left: usize },
    /// Sends entries without end, and reads no results.
    Batches,
}

/// How many there are of each.
#[derive(Clone, Copy)]
struct Numbers {
    /// Bytes of each large value.
    large_bytes: usize,
    readers: usize,
    ranges: usize,
    large_bodies: usize,
    small_bodies: usize,
    batches: usize,
}

const MANY: Numbers = Numbers {
    large_bytes: 16 * MIB,
    readers: 64,
    ranges: 100,
    large_bodies: 200,
    small_bodies: 1_000,
    batches: 16,
};

const SOME: Numbers = Numbers {
    large_bytes: 4 * MIB,
    readers: 32,
    ranges: 30,
    large_bodies: 60,
    small_bodies: 100,
    batches: 4,
};

impl Nuisance {
    fn begin(address: SocketAddr, numbers: Numbers) -> Self {
        let range = |number: usize| bare("GET", &format!("/v0/entities?start={}", ["a", "c"][number % 2]));
        let reads = (0..numbers.readers).map(|number| get(&format!("big{}", number % 8)));
        let reads = reads.chain((0..numbers.ranges).map(range)).map(Manner::Reads);
        let writes = |count, len| (0..count).map(move |_| Manner::Writes { len, left: len });
        let writes = writes(numbers.large_bodies, MIB).chain(writes(numbers.small_bodies, 64 << 10));
        let batches = (0..numbers.batches).map(|_| Manner::Batches);
        let clients = reads.chain(writes).chain(batches).map(|manner| Client::begin(address, manner));
        Self { address, clients: clients.collect() }
    }

    /// Sends a little more of everything.
    fn go_on(&mut self) {
        for client in &mut self.clients {
            if client.is_refused() {
                *client = Client::begin(self.address, client.manner.clone());
            }
            client.go_on();
        }
    }
}

impl Client {
    fn begin(address: SocketAddr, mut manner: Manner) -> Self {
        let head = match &mut manner {
            Manner::Reads(request) => request.clone(),
            Manner::Writes { len, left } => {
                *left = *len;
                format!("PUT /v0/entity?id=slow HTTP/1.1\r\nHost: v\r\nContent-Length: {len}\r\n\r\n")
            }
            Manner::Batches => {
                "POST /v0/entities HTTP/1.1\r\nHost: v\r\nContent-Type: application/x-ndjson\r\n\
                                Transfer-Encoding: chunked\r\n\r\n"
                    .to_owned()
            }
        };
        let stream = TcpStream::connect(address).expect("the node listens");
        stream.set_nonblocking(true).expect("a socket");
        let _ = (&stream).write_all(head.as_bytes());
        Self { stream, manner }
    }

    /// Whether the connection has ended, or has been answered otherwise than was wished for.
    fn is_refused(&self) -> bool {
        let mut start = [0; 10];
        match self.stream.peek(&mut start) {
            Ok(len) => len == 0 || !b"HTTP/1.1 2".starts_with(&start[..len]),
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }

    fn go_on(&mut self) {
        const PIECES: usize = 64;
        match &mut self.manner {
            Manner::Reads(_) => {}
            Manner::Writes { len, left } => {
                let piece = (*len / PIECES).min(*left);
                *left -= self.stream.write(&vec![b'x'; piece]).unwrap_or(0);
            }
            Manner::Batches => {
                let entry = "{\"key\":\"batch\",\"delete\":true}\n".repeat(2_000);
                let chunk = format!("{:x}\r\n{entry}\r\n", entry.len());
                // A write that fails leaves a malformed batch, which the node answers as such.
                let _ = self.stream.write(chunk.as_bytes());
            }
        }
    }
}

fn fill(node: &Node, large_bytes: usize) {
    for number in 0..8 {
        let value = noise(number, large_bytes);
        eventually("a large value is stored", || node.put(&format!("big{number}"), &value).status == 201);
    }
    let mut connection = node.connect();
    for number in 0..2_000 {
        let write = put(&format!("c{number:05}"), noise(number, 4 << 10));
        eventually("a small value is stored", || connection.exchange(&write).status == 201);
    }
}

/// Runs all nuisance clients at once beside a well-behaved client. Returns the peak memory of the
/// node.
fn drive(node: &Node, numbers: Numbers, time: Duration) -> Peak {
    fill(node, numbers.large_bytes);
    // Connects before the nuisance clients, which may take all connections.
    let (mut peak, mut connection) = (Peak::default(), node.connect());
    let is_over = AtomicBool::new(false);
    let mut served = (0, 0);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let (mut done, mut refused) = (0, 0);
            let mut connection = Connection::open(node.address);
            while !is_over.load(Ordering::Relaxed) {
                let answers = [connection.exchange(put("good", "value")), connection.exchange(get("good"))];
                for answer in answers {
                    match answer.status {
                        200 | 201 => done += 1,
                        _ => refused += 1,
                    }
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            (done, refused)
        });
        let nuisance = scope.spawn(|| {
            let mut nuisance = Nuisance::begin(node.address, numbers);
            while !is_over.load(Ordering::Relaxed) {
                nuisance.go_on();
                std::thread::sleep(PATIENCE);
            }
            nuisance
        });
        let end = Instant::now() + time;
        while Instant::now() < end {
            peak.watch(node, &mut connection);
            std::thread::sleep(Duration::from_millis(20));
        }
        is_over.store(true, Ordering::Relaxed);
        served = client.join().expect("the good client is answered");
        drop(nuisance.join().expect("the others may do what they want"));
    });
    println!("served {}, refused {}, {peak:?}", served.0, served.1);
    assert!(served.0 > served.1, "a client as it should be is served: {served:?}");
    peak
}

#[test]
fn memory_is_held_under_some_load_of_every_kind() {
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--memory", "128MiB", "--value-max", "4MiB"]);
    let budget = (128 * MIB) as f64;
    let peak = drive(&node, SOME, Duration::from_secs(3));
    assert!(peak.accounted < 1.1 * budget, "{peak:?}");
    // In a small budget, the process itself and unaccounted parts of large values weigh more.
    assert!((peak.resident as f64) < 1.7 * budget, "{peak:?}");
}

/// The bound allows for memory outside the budget: the program, its threads and free memory of the
/// allocator.
#[test]
#[ignore = "takes half a minute, 400 MiB of memory, and more sockets than a process may open by default"]
fn memory_is_held_under_every_load_at_once() {
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--memory", "256MiB"]);
    let budget = (256 * MIB) as f64;
    let peak = drive(&node, MANY, Duration::from_secs(30));
    assert!(peak.accounted < 1.1 * budget, "{peak:?}");
    assert!((peak.resident as f64) < 1.3 * budget, "{peak:?}");
    // All reservations end with their requests.
    eventually("the memory is given back", || {
        let scrape = scrape(&node);
        let part = |part| scrape.get("veche_memory_bytes", &[("part", part)]);
        ["bodies", "replies", "ranges", "batches"].map(part) == [0.0; 4]
    });
}

/// Runs the node in a control group of 512 MiB without `--memory`, if this process may make one.
/// The budget is then 128 MiB, eight of the largest values. Outside it are the process, free memory
/// of the allocator, and two values of 16 MiB: one being compacted, and one read but not yet
/// admitted.
#[test]
#[ignore = "takes half a minute, more sockets than a process may open by default, and the right to make control groups"]
fn a_node_in_a_small_control_group_is_not_killed() {
    let group = Group::new(512 * MIB).expect("the right to make control groups");
    let (_dir, data) = data_dir();
    let mut command = std::process::Command::new("sh");
    let script = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", group.0.display());
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_veche")]);
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(&data);
    let node = Node::spawn(command);
    let budget = scrape(&node).get("veche_memory_budget_bytes", &[]);
    assert_eq!(budget, (128 * MIB) as f64);
    let peak = drive(&node, MANY, Duration::from_secs(30));
    assert!(peak.accounted < 1.1 * budget && (peak.resident as f64) < 1.3 * budget, "{peak:?}");
    node.stop();
}

/// A control group with a limit of memory; removed when this is dropped.
struct Group(std::path::PathBuf);

impl Group {
    fn new(bytes: usize) -> std::io::Result<Self> {
        let name = format!("veche-test-{}", std::process::id());
        let (version_1, version_2) = ("/sys/fs/cgroup/memory", "/sys/fs/cgroup");
        let (root, limit) = match std::path::Path::new(version_1).exists() {
            true => (version_1, "memory.limit_in_bytes"),
            false => (version_2, "memory.max"),
        };
        let path = std::path::Path::new(root).join(name);
        std::fs::create_dir(&path)?;
        let group = Self(path);
        std::fs::write(group.0.join(limit), bytes.to_string())?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn beginnings_of_requests_that_drip_cost_nobody_else_anything() {
    const SLOW: usize = 400;
    let (_dir, data) = data_dir();
    let node = Node::start_with(&data, &["--threads", "1"]);
    let mut slow: Vec<_> = (0..SLOW).map(|_| pusher(&node)).collect();
    for stream in &mut slow {
        stream.write_all(b"GET /v0/entity?id=k HTTP/1.1\r\nHost: v\r\nX-Slow: ").expect("it is taken");
    }
    let mut connection = node.connect();
    for round in 0..50 {
        for stream in slow.iter_mut().skip(round % 10).step_by(10) {
            stream.write_all(b"z").expect("it is taken");
        }
        assert_eq!(connection.exchange(put("k", round.to_string())).status, 201);
        assert_eq!(connection.exchange(get("k")).text(), round.to_string());
    }
    eventually("all are counted", || scrape(&node).get("veche_connections", &[]) >= (SLOW + 1) as f64);
    let room = scrape(&node).get("veche_memory_bytes", &[("part", "connections")]);
    assert!(room >= (SLOW * (8 << 10)) as f64, "{room}");
    for stream in &mut slow {
        stream.write_all(b"\r\n\r\n").expect("it is taken");
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, b"HTTP/1.1 200", "whoever ends a request is answered");
    }
}
