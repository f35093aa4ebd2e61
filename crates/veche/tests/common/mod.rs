//! A node as a process of its own.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod exposition;
pub(crate) mod http;
pub(crate) mod small_disk;

use http::{Connection, Response};
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Timeout for all waits of tests.
const PATIENCE: Duration = Duration::from_secs(120);
/// Request timeout for tests that are not about timeouts.
pub(crate) const REQUEST_TIMEOUT: &str = "30s";
/// Polling interval.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The binary, without settings from the environment.
pub(crate) fn veche() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_veche"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("VECHE_")) {
        command.env_remove(name);
    }
    command
}

/// A running node on a port of its own. It is killed when this is dropped.
pub(crate) struct Node {
    child: Child,
    pub(crate) address: SocketAddr,
    stderr: Option<JoinHandle<String>>,
}

impl Node {
    /// A node on `data`, ready to serve.
    pub(crate) fn start(data: &Path) -> Self {
        Self::start_with(data, &[])
    }

    /// As [`Node::start`], with more flags.
    pub(crate) fn start_with(data: &Path, flags: &[&str]) -> Self {
        let mut command = veche();
        // Little memory, so that the tests can run side by side, and deadlines that a loaded
        // machine keeps. Flags win.
        command.env("VECHE_MEMORY", "64MiB").env("VECHE_REQUEST_TIMEOUT", REQUEST_TIMEOUT);
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data).args(flags);
        Self::spawn(command)
    }

    /// The node that `command` starts, ready to serve.
    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary is there");
        let mut stderr = child.stderr.take().expect("piped");
        let stderr = std::thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).expect("logs are UTF-8");
            text
        });
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("UTF-8");
        let Some(address) = line.trim().strip_prefix("listening on ") else {
            let status = child.wait();
            panic!("the node did not start: {status:?}, {}", stderr.join().unwrap_or_default());
        };
        let node = Self { child, address: address.parse().expect("an address"), stderr: Some(stderr) };
        eventually("the node serves", || node.exchange(http::bare("GET", "/v0/status")).status == 200);
        node
    }

    #[track_caller]
    pub(crate) fn exchange(&self, request: impl AsRef<[u8]>) -> Response {
        http::exchange(self.address, request)
    }

    pub(crate) fn connect(&self) -> Connection {
        Connection::open(self.address)
    }

    #[track_caller]
    pub(crate) fn put(&self, id: &str, value: impl AsRef<[u8]>) -> Response {
        self.exchange(http::put(id, value))
    }

    #[track_caller]
    pub(crate) fn get(&self, id: &str) -> Response {
        self.exchange(http::get(id))
    }

    /// Document of `GET /v0/status`.
    #[track_caller]
    pub(crate) fn status(&self) -> serde_json::Value {
        let status = self.exchange(http::bare("GET", "/v0/status"));
        serde_json::from_slice(&status.body).expect("JSON")
    }

    /// Resident memory, in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("Linux tells");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("memory is told");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    }

    /// Number of open files and sockets.
    pub(crate) fn open_files(&self) -> u64 {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("Linux tells").count() as u64
    }

    /// Sets the soft limit of open files; `None`: to the hard limit.
    pub(crate) fn limit_open_files(&self, files_max: Option<u64>) {
        use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
        let maximum = getrlimit(Resource::Nofile).maximum;
        let limit = Rlimit { current: files_max.or(maximum), maximum };
        prlimit(Some(Pid::from_child(&self.child)), Resource::Nofile, limit).expect("the limit of a child");
    }

    /// `kill -9`, and waits for the end.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("a child");
    }

    /// Sends `SIGTERM`.
    pub(crate) fn terminate(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    /// Sends a signal; to a process that has ended meanwhile it means nothing.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("it was not waited for yet");
    }

    /// How it ended, if it has.
    pub(crate) fn end(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child")
    }

    /// Waits for the end. Returns the exit status and the log.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let status = wait_for(&mut self.child);
        let stderr = self.stderr.take().expect("taken once").join().expect("logs are UTF-8");
        (status, stderr)
    }

    /// Stops it as an operator does, and asserts that it ends well.
    #[track_caller]
    pub(crate) fn stop(self) -> String {
        self.terminate();
        let (status, stderr) = self.wait();
        assert!(status.success(), "{status}: {stderr}");
        stderr
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait_for(child: &mut Child) -> ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return status;
        }
        assert!(started.elapsed() < PATIENCE, "the process does not end");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Runs to the end: exit code, standard output, standard error.
pub(crate) fn run(mut command: Command) -> (Option<i32>, String, String) {
    let output = command.stdin(Stdio::null()).output().expect("the binary is there");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Waits until `happens`.
#[track_caller]
pub(crate) fn eventually(what: &str, mut happens: impl FnMut() -> bool) {
    let started = Instant::now();
    while !happens() {
        assert!(started.elapsed() < PATIENCE, "this never came true: {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// A directory that goes with the test, and a data directory in it that is not there yet.
pub(crate) fn data_dir() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let data = dir.path().join("data");
    (dir, data)
}
