//! `cargo xtask netns`: tests of a cluster whose network cables are cut.
//!
//! Three nodes run in separate network namespaces, joined by a switch. A cut cable drops packets
//! silently. Unlike after the death of a process, no connection is refused or reset, so nodes
//! detect the failure by timeouts only. Cables are cut for one node, between two nodes, and in one
//! direction.
//!
//! The command needs root and `ip` (iproute2). All changes are made inside namespaces that are
//! removed at the end. The machine's own network stays unchanged. The command runs itself again
//! inside the switch's namespace, which reaches all nodes.
//!
//! To drop packets from one node to another, the test gives the first node a wrong hardware address
//! of the second.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

const NODES: usize = 3;
const PORT: u16 = 8080;
/// Environment variables of the inner run: the prefix of the namespaces' names, and the node's
/// binary.
const PREFIX_VARIABLE: &str = "XTASK_NETNS_PREFIX";
const BINARY_VARIABLE: &str = "XTASK_NETNS_BINARY";
const UNUSED_MAC: &str = "02:00:00:00:00:99";
/// Timeout of each condition and request.
const TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

type Outcome<T = ()> = Result<T, String>;

pub(crate) fn run() -> ExitCode {
    let outcome = match (std::env::var(PREFIX_VARIABLE), std::env::var(BINARY_VARIABLE)) {
        (Ok(prefix), Ok(binary)) => check(&prefix, Path::new(&binary)),
        _ => prepare(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netns: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the node, creates the namespaces, and runs this command inside the switch's namespace.
fn prepare() -> Outcome {
    run_command(Command::new("cargo").args(["build", "--locked", "--package", "veche"]))?;
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
    let binary = std::path::absolute(Path::new(&target).join("debug/veche"))
        .map_err(|error| format!("where is the binary: {error}"))?;
    let network = Network::make(format!("veche-{}", std::process::id()))?;
    let own = std::env::current_exe().map_err(|error| format!("which binary is this: {error}"))?;
    let mut inside = Command::new("ip");
    inside.args(["netns", "exec", &network.switch()]).arg(own).arg("netns");
    inside.env(PREFIX_VARIABLE, &network.prefix).env(BINARY_VARIABLE, binary);
    run_command(&mut inside)
}

/// The namespaces. They are removed when this is dropped.
struct Network {
    prefix: String,
}

impl Network {
    fn make(prefix: String) -> Outcome<Self> {
        let network = Self { prefix };
        let switch = network.switch();
        ip(&["netns", "add", &switch]).map_err(|error| format!("{error}; this needs root and iproute2"))?;
        ip(&["-n", &switch, "link", "add", "br0", "type", "bridge"])?;
        ip(&["-n", &switch, "addr", "add", "10.99.7.254/24", "dev", "br0"])?;
        ip(&["-n", &switch, "link", "set", "br0", "up"])?;
        ip(&["-n", &switch, "link", "set", "lo", "up"])?;
        for node in 0..NODES {
            let (space, port, address) =
                (network.space(node), port(node), format!("{}/24", address(node).ip()));
            ip(&["netns", "add", &space])?;
            ip(&[
                "link", "add", "e0", "netns", &space, "type", "veth", "peer", "name", &port, "netns", &switch,
            ])?;
            ip(&["-n", &switch, "link", "set", &port, "master", "br0", "up"])?;
            ip(&["-n", &space, "addr", "add", &address, "dev", "e0"])?;
            ip(&["-n", &space, "link", "set", "e0", "up"])?;
            ip(&["-n", &space, "link", "set", "lo", "up"])?;
        }
        Ok(network)
    }

    fn switch(&self) -> String {
        format!("{}-switch", self.prefix)
    }

    fn space(&self, node: usize) -> String {
        format!("{}-{node}", self.prefix)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let spaces = (0..NODES).map(|node| self.space(node)).chain([self.switch()]);
        for space in spaces {
            // The namespace may not exist.
            let _ = Command::new("ip").args(["netns", "del", &space]).stderr(Stdio::null()).status();
        }
    }
}

/// The switch's end of a node's cable.
fn port(node: usize) -> String {
    format!("port{node}")
}

fn address(node: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(10, 99, 7, node as u8 + 1), PORT))
}

fn ip(arguments: &[&str]) -> Outcome {
    run_command(Command::new("ip").args(arguments))
}

fn run_command(command: &mut Command) -> Outcome {
    let status = command.status().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("failed ({status}): {command:?}")) }
}

/// Running nodes and their cables, seen from the switch. The nodes are killed when this is dropped.
struct Cluster {
    prefix: String,
    nodes: Vec<Child>,
    dir: PathBuf,
}

impl Cluster {
    fn start(prefix: &str, binary: &Path) -> Outcome<Self> {
        let dir = std::env::temp_dir().join(prefix);
        let list = (0..NODES).map(|node| format!("http://{}", address(node))).collect::<Vec<_>>().join(",");
        let mut cluster = Self { prefix: prefix.to_owned(), nodes: Vec::new(), dir };
        for node in 0..NODES {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &cluster.space(node)]).arg(binary);
            command.args(["serve", "--listen", &address(node).to_string(), "--cluster", &list, "--data"]);
            command.arg(cluster.dir.join(node.to_string())).args(["--memory", "64MiB", "--threads", "2"]);
            command
                .args(["--cluster-secret", "of the town of Novgorod", "--log", "error"])
                .stdout(Stdio::null());
            let child = command.spawn().map_err(|error| format!("cannot start a node: {error}"))?;
            cluster.nodes.push(child);
        }
        cluster.wait_until_up()?;
        Ok(cluster)
    }

    fn space(&self, node: usize) -> String {
        format!("{}-{node}", self.prefix)
    }

    /// Unplugs the node's cable from the switch, or plugs it in.
    fn set_cable(&self, node: usize, state: &str) -> Outcome {
        ip(&["link", "set", &port(node), state])
    }

    /// Drops all packets from `from` to `to`.
    fn lose(&self, from: usize, to: usize) -> Outcome {
        let (space, to) = (self.space(from), address(to).ip().to_string());
        ip(&["-n", &space, "neigh", "replace", &to, "lladdr", UNUSED_MAC, "dev", "e0", "nud", "permanent"])
    }

    /// Delivers packets from `from` to `to` again.
    fn deliver(&self, from: usize, to: usize) -> Outcome {
        let (space, to) = (self.space(from), address(to).ip().to_string());
        ip(&["-n", &space, "neigh", "del", &to, "dev", "e0"])
    }

    fn wait_until_up(&self) -> Outcome {
        for node in 0..NODES {
            eventually(&format!("node {node} serves"), || {
                request(node, "GET", "/v0/status", "").is_ok_and(|answer| answer.code == 200)
            })?;
            for of in 0..NODES {
                self.wait_until_seen(node, of, "up")?;
            }
        }
        Ok(())
    }

    fn wait_until_seen(&self, node: usize, of: usize, state: &str) -> Outcome {
        eventually(&format!("node {node} sees node {of} {state}"), || {
            let status = request(node, "GET", "/v0/status", "").map(|answer| answer.body).unwrap_or_default();
            let at = status.find(&format!("\"url\":\"http://{}\"", address(of)));
            at.is_some_and(|at| {
                let entry = status[at..].split('}').next().unwrap_or_default();
                entry.contains(&format!("\"state\":\"{state}\""))
            })
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            // It may have ended already.
            let _ = node.kill();
            let _ = node.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Runs all checks in one cluster.
fn check(prefix: &str, binary: &Path) -> Outcome {
    let cluster = Cluster::start(prefix, binary)?;
    let mut register = Register::default();
    register.write_and_read_through(&[0, 1, 2])?;
    println!("three nodes are up");

    cluster.set_cable(2, "down")?;
    for _ in 0..20 {
        register.write_and_read_through(&[0, 1])?;
    }
    cluster.wait_until_seen(0, 2, "unreachable")?;
    cluster.wait_until_seen(1, 2, "unreachable")?;
    register.write_and_read_through(&[0, 1])?;
    expect(request(0, "PUT", "/v0/entity?id=other&ack=3", "v")?, 504, "nothing was stored")?;
    cluster.set_cable(2, "up")?;
    cluster.wait_until_up()?;
    register.read_through(2, "&ack=3")?;
    register.write_and_read_through(&[0, 1, 2])?;
    println!("a node whose cable was pulled out was not missed, and has come back");

    cluster.lose(1, 2)?;
    cluster.lose(2, 1)?;
    cluster.wait_until_seen(1, 2, "unreachable")?;
    cluster.wait_until_seen(2, 1, "unreachable")?;
    register.write_and_read_through(&[0, 1, 2])?;
    cluster.deliver(1, 2)?;
    cluster.deliver(2, 1)?;
    cluster.wait_until_up()?;
    register.read_through(1, "&ack=3")?;
    println!("two nodes that did not reach each other served with the third");

    cluster.lose(0, 1)?;
    cluster.wait_until_seen(0, 1, "unreachable")?;
    cluster.wait_until_seen(1, 0, "unreachable")?;
    register.write_and_read_through(&[0, 1, 2])?;
    cluster.deliver(0, 1)?;
    cluster.wait_until_up()?;
    register.read_through(1, "&ack=3")?;
    println!("a cable cut in one direction delayed no request");

    for other in [0, 1] {
        cluster.lose(2, other)?;
        cluster.lose(other, 2)?;
    }
    for other in [0, 1] {
        cluster.wait_until_seen(2, other, "unreachable")?;
        cluster.wait_until_seen(other, 2, "unreachable")?;
    }
    register.write_and_read_through(&[0, 1])?;
    expect(request(2, "GET", "/v0/entity?id=register", "")?, 504, "replicas")?;
    expect(request(2, "PUT", "/v0/entity?id=register", "never")?, 504, "nothing was stored")?;
    for other in [0, 1] {
        cluster.deliver(2, other)?;
        cluster.deliver(other, 2)?;
    }
    cluster.wait_until_up()?;
    register.read_through(2, "&ack=3")?;
    register.write_and_read_through(&[0, 1, 2])?;
    println!("a node cut off from the others refused reads and writes");
    Ok(())
}

/// One key and its expected value.
#[derive(Default)]
struct Register {
    written: u64,
}

impl Register {
    /// Writes through each of these nodes in turn, and reads through all of them after each write.
    fn write_and_read_through(&mut self, nodes: &[usize]) -> Outcome {
        for writer in nodes {
            self.written += 1;
            let value = self.written.to_string();
            // An answer may take as long as the detection of an unreachable peer.
            eventually(&format!("node {writer} takes a write"), || {
                let answer = request(*writer, "PUT", "/v0/entity?id=register", &value);
                answer.is_ok_and(|answer| answer.code == 201)
            })?;
            nodes.iter().try_for_each(|reader| self.read_through(*reader, ""))?;
        }
        Ok(())
    }

    fn read_through(&self, node: usize, quorum: &str) -> Outcome {
        let target = format!("/v0/entity?id=register{quorum}");
        let mut found = String::new();
        eventually(&format!("node {node} answers a read"), || match request(node, "GET", &target, "") {
            Ok(answer) if answer.code != 503 && answer.code != 504 => {
                found = format!("{} {}", answer.code, answer.body);
                true
            }
            _ => false,
        })?;
        let expected = format!("200 {}", self.written);
        if found == expected { Ok(()) } else { Err(format!("node {node} read {found:?}, not {expected:?}")) }
    }
}

struct Answer {
    code: u16,
    body: String,
}

fn request(node: usize, method: &str, target: &str, body: &str) -> Outcome<Answer> {
    let converse = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address(node), TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let len = body.len();
        write!(stream, "{method} {target} HTTP/1.0\r\nHost: veche\r\nContent-Length: {len}\r\n\r\n{body}")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = converse().map_err(|error| format!("node {node}: {error}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("an answer that is not HTTP")?;
    let code =
        head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or("an answer without a status")?;
    Ok(Answer { code, body: body.to_owned() })
}

fn expect(answer: Answer, code: u16, expected: &str) -> Outcome {
    let Answer { code: got, body } = answer;
    if got == code && body.contains(expected) {
        return Ok(());
    }
    Err(format!("expected {code} and {expected:?}, got {got}: {body}"))
}

fn eventually(what: &str, mut happens: impl FnMut() -> bool) -> Outcome {
    let started = Instant::now();
    while !happens() {
        if started.elapsed() > TIMEOUT {
            return Err(format!("this never came true: {what}"));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}
