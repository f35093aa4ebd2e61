//! A cluster of processes.

use crate::common::http::{Connection, Response, bare, exchange};
use crate::common::{REQUEST_TIMEOUT, eventually, run, veche};
use bytes::Bytes;
use cluster::{FEATURE_LEVEL_MAX_DEFAULT, Key, ReplicaRequest, ReplicaResponse, StoreRequest, StoreResponse};
use env::Env;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use stdx::{Cell, NodeTag, Version};
use store::{Membership, Store, StoreOptions};

/// A process that does not end in this time after `SIGTERM` has failed the test.
const STOP_PATIENCE: Duration = Duration::from_secs(120);
/// A change of the members that does not end in this time has failed the test.
const CHANGE_PATIENCE: Duration = Duration::from_secs(120);
/// A client gives up a node that is silent for so long.
const CLIENT_PATIENCE: Duration = Duration::from_secs(120);
/// Ports that the system does not hand out by itself.
const PORTS: std::ops::Range<u32> = 20_000..32_000;

/// Nodes by their number, in the order in which they were given their ports.
pub(crate) struct Cluster {
    dir: tempfile::TempDir,
    nodes: Vec<Member>,
    /// Number of nodes that are given the list of the cluster. The others have joined it.
    founders: usize,
    flags: Vec<String>,
}

struct Member {
    address: SocketAddr,
    data: PathBuf,
    process: Option<Process>,
    /// Logs of all its generations.
    log: Arc<Mutex<String>>,
}

struct Process {
    child: Child,
    logger: JoinHandle<()>,
}

impl Cluster {
    /// `count` nodes that serve and see each other.
    pub(crate) fn start(count: usize) -> Self {
        Self::start_with(count, &[])
    }

    /// As [`Cluster::start`], each with these flags as well.
    pub(crate) fn start_with(count: usize, flags: &[&str]) -> Self {
        let mut cluster = Self::prepare(count, flags);
        (0..count).for_each(|node| cluster.spawn(node));
        cluster.wait_until_up();
        cluster
    }

    /// `count` nodes, none started.
    pub(crate) fn prepare(count: usize, flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let nodes = (0..count)
            .map(|node| Member {
                address: free_address(),
                data: dir.path().join(format!("node-{node}")),
                process: None,
                log: Arc::default(),
            })
            .collect();
        Self { dir, nodes, founders: count, flags: flags.iter().map(ToString::to_string).collect() }
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// A directory that goes with the cluster.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn address(&self, node: usize) -> SocketAddr {
        self.nodes[node].address
    }

    /// The node has another address from its next start on.
    pub(crate) fn move_to(&mut self, node: usize, address: SocketAddr) {
        assert!(!self.runs(node), "node {node} runs");
        self.nodes[node].address = address;
    }

    pub(crate) fn url(&self, node: usize) -> String {
        format!("http://{}", self.address(node))
    }

    /// The value of `--cluster` for every node that has not joined.
    pub(crate) fn list(&self) -> String {
        (0..self.founders).map(|node| self.url(node)).collect::<Vec<_>>().join(",")
    }

    pub(crate) fn data(&self, node: usize) -> &Path {
        &self.nodes[node].data
    }

    /// The node's log so far, over all its generations.
    pub(crate) fn log(&self, node: usize) -> String {
        self.nodes[node].log.lock().expect("no logger panics").clone()
    }

    /// The command that runs a node.
    pub(crate) fn command(&self, node: usize) -> Command {
        match node < self.founders {
            true => self.command_with_list(node, &self.list()),
            false => self.plain_command(node),
        }
    }

    /// The same with another list of nodes.
    pub(crate) fn command_with_list(&self, node: usize, list: &str) -> Command {
        let mut command = self.plain_command(node);
        command.args(["--cluster", list]);
        command
    }

    /// The command that runs a node whose data directory says where it belongs.
    pub(crate) fn plain_command(&self, node: usize) -> Command {
        let member = &self.nodes[node];
        let mut command = veche();
        // Little of everything, so that the tests can run side by side, and deadlines that a loaded
        // machine keeps. Flags win.
        command.env("VECHE_MEMORY", "32MiB").env("VECHE_THREADS", "2");
        command.env("VECHE_REQUEST_TIMEOUT", REQUEST_TIMEOUT);
        command.args(["serve", "--listen", &member.address.to_string(), "--data"]);
        command.arg(&member.data).args(&self.flags);
        command
    }

    /// A place for one more node, which does not run. Returns its number.
    pub(crate) fn prepare_another(&mut self) -> usize {
        let node = self.len();
        let data = self.dir.path().join(format!("node-{node}"));
        self.nodes.push(Member { address: free_address(), data, process: None, log: Arc::default() });
        node
    }

    /// Starts a node that joins the cluster of `member`, and waits until it is a member. Returns
    /// its number.
    #[track_caller]
    pub(crate) fn join(&mut self, member: usize) -> usize {
        let node = self.prepare_another();
        self.spawn_joining(node, member);
        self.wait_until_joined(node);
        node
    }

    /// Starts a node that joins the cluster of `member`, and waits for nothing.
    pub(crate) fn spawn_joining(&mut self, node: usize, member: usize) {
        let mut command = self.plain_command(node);
        command.args(["--join", &self.url(member)]);
        self.spawn_as(node, command);
    }

    #[track_caller]
    pub(crate) fn wait_until_joined(&self, node: usize) {
        eventually("the node serves", || self.serves(node));
    }

    /// Runs `veche layout` by a node, with `--json`. Returns its document, or what it says on the
    /// standard error.
    pub(crate) fn layout_command(&self, by: usize, arguments: &[&str]) -> Result<Value, String> {
        let mut command = veche();
        command.arg("layout").args(arguments).args(["--json", "--url", &self.url(by)]);
        let (code, out, err) = run(command);
        if code == Some(0) { Ok(serde_json::from_str(&out).expect("JSON")) } else { Err(err) }
    }

    /// Plans a change and begins it.
    #[track_caller]
    pub(crate) fn begin_change(&self, by: usize, changes: &[&str]) {
        let plan = self.layout_command(by, &[&["plan"], changes].concat()).expect("a plan");
        let name = plan["plan"].as_str().expect("a name");
        self.layout_command(by, &["apply", name]).expect("the change begins");
    }

    /// Waits until no change runs, by the records of these nodes, and all have one record.
    #[track_caller]
    pub(crate) fn wait_until_changed(&self, nodes: &[usize]) {
        let began = Instant::now();
        loop {
            let layouts: Vec<_> = nodes.iter().map(|node| self.try_layout(*node)).collect();
            let first = layouts[0].as_ref().map(|layout| &layout["hash"]);
            let has_ended = |layout: &Option<Value>| {
                layout.as_ref().is_some_and(|its| its["plan"].is_null() && Some(&its["hash"]) == first)
            };
            if layouts.iter().all(has_ended) {
                return;
            }
            let plans = || layouts.iter().map(|layout| layout.as_ref().map(|layout| &layout["plan"]));
            assert!(
                began.elapsed() < CHANGE_PATIENCE,
                "the change does not end: {:#?}",
                plans().collect::<Vec<_>>()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The URLs of the members by the record of a node, sorted.
    pub(crate) fn members(&self, by: usize) -> Vec<String> {
        let layout = self.layout(by);
        let members = layout["members"].as_array().expect("a list").iter();
        let mut urls: Vec<_> =
            members.map(|member| member["url"].as_str().expect("a URL").to_owned()).collect();
        urls.sort();
        urls
    }

    /// The URLs of these nodes, sorted.
    pub(crate) fn urls(&self, nodes: &[usize]) -> Vec<String> {
        let mut urls: Vec<_> = nodes.iter().map(|node| self.url(*node)).collect();
        urls.sort();
        urls
    }

    /// Waits until the process of a node ends by itself. Returns whether it ended well.
    #[track_caller]
    pub(crate) fn wait_until_ended(&mut self, node: usize) -> bool {
        let mut process = self.nodes[node].process.take().expect("it runs");
        let mut status = None;
        eventually("the process ends", || {
            status = process.child.try_wait().expect("a child");
            status.is_some()
        });
        process.logger.join().expect("no logger panics");
        status.is_some_and(|status| status.success())
    }

    /// A place for a second process of a node: an address and a directory of its own.
    pub(crate) fn place_of_copy() -> Self {
        Self::prepare(1, &[])
    }

    /// The command that runs a second process of a node in the place of a copy.
    pub(crate) fn command_of_copy(&self, node: usize, copy: &Self) -> Command {
        let mut command = copy.command_with_list(0, &self.list());
        command.args(["--self-url", &self.url(node)]);
        command
    }

    /// Starts the node and waits for nothing.
    pub(crate) fn spawn(&mut self, node: usize) {
        let command = self.command(node);
        self.spawn_as(node, command);
    }

    /// Starts the node by a command of its own and waits for nothing.
    pub(crate) fn spawn_as(&mut self, node: usize, mut command: Command) {
        let member = &mut self.nodes[node];
        assert!(member.process.is_none(), "node {node} runs");
        let mut child =
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary is there");
        let lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let log = Arc::clone(&member.log);
        let logger = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                log.lock().expect("no logger panics").extend([line.as_str(), "\n"]);
            }
        });
        member.process = Some(Process { child, logger });
    }

    /// Starts the node and waits until it serves and all that run see each other.
    #[track_caller]
    pub(crate) fn start_node(&mut self, node: usize) {
        self.spawn(node);
        self.wait_until_up();
    }

    /// `kill -9`, and waits for the end.
    pub(crate) fn kill(&mut self, node: usize) {
        let mut process = self.nodes[node].process.take().expect("it runs");
        process.child.kill().expect("it runs");
        process.child.wait().expect("a child");
        process.logger.join().expect("no logger panics");
    }

    /// Stops the node as an operator does, and asserts that it ends well.
    #[track_caller]
    pub(crate) fn stop(&mut self, node: usize) {
        self.signal(node, Signal::TERM);
        let mut process = self.nodes[node].process.take().expect("it runs");
        let told = Instant::now();
        let status = loop {
            if let Some(status) = process.child.try_wait().expect("a child") {
                break status;
            }
            if told.elapsed() > STOP_PATIENCE {
                let _ = process.child.kill();
                panic!("node {node} does not end");
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        process.logger.join().expect("no logger panics");
        assert!(status.success(), "node {node}: {status}: {}", self.log(node));
    }

    #[track_caller]
    pub(crate) fn stop_all(&mut self) {
        for node in 0..self.len() {
            if self.runs(node) {
                self.stop(node);
            }
        }
    }

    pub(crate) fn runs(&self, node: usize) -> bool {
        self.nodes[node].process.is_some()
    }

    /// Stops the process's threads where they are: the system goes on to accept connections for it.
    pub(crate) fn pause(&self, node: usize) {
        self.signal(node, Signal::STOP);
    }

    /// Lets a paused node go on.
    pub(crate) fn resume(&self, node: usize) {
        self.signal(node, Signal::CONT);
    }

    fn signal(&self, node: usize, signal: Signal) {
        let process = self.nodes[node].process.as_ref().expect("it runs");
        kill_process(Pid::from_child(&process.child), signal).expect("it runs");
    }

    /// The node has lost its disk.
    pub(crate) fn lose_data(&self, node: usize) {
        assert!(!self.runs(node), "node {node} runs");
        std::fs::remove_dir_all(self.data(node)).expect("it had data");
    }

    pub(crate) fn connect(&self, node: usize) -> Connection {
        Connection::try_open_with(self.address(node), CLIENT_PATIENCE).expect("the node accepts")
    }

    #[track_caller]
    pub(crate) fn exchange(&self, node: usize, request: impl AsRef<[u8]>) -> Response {
        exchange(self.address(node), request)
    }

    /// Code and document of `GET /v0/status`; `None` if the node does not answer.
    pub(crate) fn status(&self, node: usize) -> Option<(u16, Value)> {
        let mut connection = Connection::try_open_with(self.address(node), CLIENT_PATIENCE).ok()?;
        let answer = connection.try_exchange(bare("GET", "/v0/status")).ok()?;
        Some((answer.status, serde_json::from_slice(&answer.body).expect("JSON")))
    }

    pub(crate) fn serves(&self, node: usize) -> bool {
        self.status(node).is_some_and(|(code, _)| code == 200)
    }

    /// The document of `GET /v0/layout`.
    pub(crate) fn layout(&self, node: usize) -> Value {
        serde_json::from_slice(&self.exchange(node, bare("GET", "/v0/layout")).body).expect("JSON")
    }

    /// The same; `None` if the node does not answer.
    pub(crate) fn try_layout(&self, node: usize) -> Option<Value> {
        let mut connection = Connection::try_open_with(self.address(node), CLIENT_PATIENCE).ok()?;
        let answer = connection.try_exchange(bare("GET", "/v0/layout")).ok()?;
        (answer.status == 200).then(|| serde_json::from_slice(&answer.body).expect("JSON"))
    }

    /// Waits until all nodes hold one layout record, which names the ids of all and has the
    /// feature level of this release.
    #[track_caller]
    pub(crate) fn wait_until_named(&self) {
        eventually("all nodes hold a record that names their ids", || {
            let layouts: Vec<_> = (0..self.len()).map(|node| self.layout(node)).collect();
            let mut members = layouts[0]["members"].as_array().expect("a list").iter();
            members.all(|member| member["node_id"].is_string())
                && layouts[0]["feature_level"] == FEATURE_LEVEL_MAX_DEFAULT
                && layouts.iter().all(|layout| layout["hash"] == layouts[0]["hash"])
        });
    }

    /// The entry of `of` in the status of `node`.
    pub(crate) fn status_of(&self, node: usize, of: usize) -> Value {
        let (_, status) = self.status(node).expect("the node answers");
        let nodes = status["nodes"].as_array().expect("a list of nodes");
        nodes.iter().find(|node| node["url"] == self.url(of)).expect("every node is listed").clone()
    }

    /// Whether the node's own answers count, as it says; nothing while it says nothing.
    pub(crate) fn sync_state(&self, node: usize) -> String {
        let status = self.status(node).map(|(_, status)| status).unwrap_or_default();
        status["cluster"]["standing"].as_str().unwrap_or_default().to_owned()
    }

    /// Waits until all nodes that run serve, and each sees the others as they are.
    #[track_caller]
    pub(crate) fn wait_until_up(&self) {
        let running = || (0..self.len()).filter(|node| self.runs(*node));
        for node in running() {
            eventually("the node serves", || self.serves(node));
            for of in 0..self.len() {
                let state = if self.runs(of) { "up" } else { "unreachable" };
                self.wait_until_seen(node, of, state);
            }
        }
    }

    /// Waits until `node` says of `of` that it is in `state`.
    #[track_caller]
    pub(crate) fn wait_until_seen(&self, node: usize, of: usize, state: &str) {
        eventually(&format!("node {of} is {state}"), || self.status_of(node, of)["state"] == state);
    }

    /// The node's own versions of `keys`, read from its data directory. It must not run.
    pub(crate) fn copies(&self, node: usize, keys: &[String]) -> Vec<Option<Cell>> {
        let store = self.open_store(node);
        let copies = keys.iter().map(|key| copy(&store, key)).collect();
        store.engine().close().expect("the store closes");
        copies
    }

    /// The store of a node that does not run.
    pub(crate) fn open_store(&self, node: usize) -> Store {
        assert!(!self.runs(node), "node {node} runs");
        let options = StoreOptions {
            engine: engine::Options { memory_bytes: 32 << 20, ..engine::Options::default() },
            membership: Membership::of((0..self.len()).map(|node| self.url(node)).collect()),
            new_tag: NodeTag(0),
            away_max: Duration::MAX,
            after_absence: store::AfterAbsence::Refuse,
            snapshot_age: store::SNAPSHOT_AGE_DEFAULT,
        };
        Store::open(Env::os(), self.data(node), options).expect("the directory opens").0
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for (node, member) in self.nodes.iter_mut().enumerate() {
            if let Some(mut process) = member.process.take() {
                // It may have ended already.
                let _ = process.child.kill();
                let _ = process.child.wait();
                let _ = process.logger.join();
            }
            if std::thread::panicking() {
                let log = member.log.lock().map(|log| log.clone()).unwrap_or_default();
                eprintln!("--- log of node {node}, {}\n{log}", member.address);
            }
        }
    }
}

pub(crate) fn key(text: &str) -> Key {
    Key::new(Bytes::copy_from_slice(text.as_bytes())).expect("a key")
}

fn copy(store: &Store, text: &str) -> Option<Cell> {
    match store.answer_blocking(&StoreRequest::Replica(ReplicaRequest::Read { key: key(text) })) {
        StoreResponse::Replica(ReplicaResponse::Cell(cell)) => cell,
        other => panic!("{text}: {other:?}"),
    }
}

/// The version that a response tells.
#[track_caller]
pub(crate) fn version(response: &Response) -> Version {
    let tag = response.header("etag").unwrap_or_else(|| panic!("no version: {response:?}"));
    tag.trim_matches('"').parse().expect("a version")
}

/// An unused address, unique among the tests of this process.
pub(crate) fn free_address() -> SocketAddr {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    const STRIDE: u32 = 211;
    loop {
        let number =
            std::process::id().wrapping_mul(STRIDE).wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + number % (PORTS.end - PORTS.start);
        let address = SocketAddr::from(([127, 0, 0, 1], port as u16));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}
