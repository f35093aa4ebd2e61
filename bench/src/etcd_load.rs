//! The load program for etcd. It receives commands as lines of JSON; see `bench/compare/etcd/load`.

use crate::BenchResult;
use crate::measure::{BenchLoad, WARMUP};
use crate::servers::CpuLayout;
use bench::affinity::while_pinned;
use lab::process::ServerProcess;
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A connected load program.
#[derive(Debug)]
pub(crate) struct EtcdLoad {
    child: Child,
    commands: ChildStdin,
    results: BufReader<ChildStdout>,
}

/// Reply to a command.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct LoadReply {
    /// Number of requests, including the warm-up.
    pub(crate) requests: u64,
    /// Number of requests after the warm-up.
    pub(crate) measured: u64,
    pub(crate) seconds: f64,
    failures: u64,
    #[serde(default)]
    first_failure: String,
}

impl EtcdLoad {
    /// Starts a load program on the cores of the generator, and connects it.
    pub(crate) fn start(
        program: &Path,
        server: &ServerProcess,
        layout: CpuLayout,
        connections: usize,
    ) -> BenchResult<Self> {
        let mut command = Command::new(program);
        command.args([format!("-endpoints=http://{}", server.address())]);
        command.args([format!("-clients={connections}"), format!("-connections={connections}")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = while_pinned(layout.generator_cores, || command.spawn())?;
        let (commands, results) = (child.stdin.take(), child.stdout.take());
        let (commands, results) = commands.zip(results).ok_or("the load program has no pipes")?;
        Ok(Self { child, commands, results: BufReader::new(results) })
    }

    /// Process id of the load program.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stores every key once.
    pub(crate) fn preload(&mut self, keys: u64, value_bytes: usize) -> BenchResult<()> {
        self.send_command(&json!({ "do": "preload", "keys": keys, "value_bytes": value_bytes }))?.all(keys)
    }

    /// Sends requests in a closed loop.
    pub(crate) fn run(&mut self, operation: &str, load: &BenchLoad, seconds: f64) -> BenchResult<LoadReply> {
        let done = self.send_command(&json!({
            "do": "run",
            "keys": load.keys,
            "value_bytes": load.value_bytes,
            "operation": operation,
            "seconds": seconds,
            "warmup_s": WARMUP.as_secs_f64(),
            "seed": load.seed,
        }))?;
        done.failures().into_iter().for_each(|failures| println!("  some requests failed: {failures}"));
        Ok(done)
    }

    /// Reads keys spread over the data. Fails unless each has the value that was stored.
    pub(crate) fn verify(&mut self, keys: u64, value_bytes: usize, samples: u64) -> BenchResult<()> {
        let command = json!({ "do": "verify", "keys": keys, "value_bytes": value_bytes, "samples": samples });
        self.send_command(&command)?.all(samples.min(keys))
    }

    fn send_command(&mut self, command: &Value) -> BenchResult<LoadReply> {
        writeln!(self.commands, "{command}")?;
        let mut line = String::new();
        if self.results.read_line(&mut line)? == 0 {
            return Err(format!("etcd's load program ended at the command {command}").into());
        }
        Ok(serde_json::from_str(&line)?)
    }
}

impl LoadReply {
    fn failures(&self) -> Option<String> {
        let Self { failures, first_failure, .. } = self;
        (*failures > 0).then(|| format!("etcd: {failures} failures, the first: {first_failure}"))
    }

    /// Fails unless `requests` requests were answered without a failure.
    fn all(self, requests: u64) -> BenchResult<()> {
        match self.failures() {
            Some(failures) => Err(failures.into()),
            None if self.requests < requests => {
                Err(format!("etcd: {} of {requests} requests were done", self.requests).into())
            }
            None => Ok(()),
        }
    }
}

impl Drop for EtcdLoad {
    fn drop(&mut self) {
        // Both calls fail only for a process that was already reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
