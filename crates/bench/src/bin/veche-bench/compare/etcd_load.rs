//! The load program for etcd. It receives commands as lines of JSON; see `bench/compare/etcd/load`.

use crate::BenchResult;
use crate::measure::WARMUP;
use crate::servers::CpuLayout;
use bench::affinity::while_pinned;
use bench::process::ServerProcess;
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

/// The data of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataSpec {
    pub(crate) keys: u64,
    pub(crate) value_bytes: usize,
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
    pub(crate) fn preload(&mut self, data: DataSpec) -> BenchResult<()> {
        self.send_command("preload", data, json!({}))?.all(data.keys)
    }

    /// Sends requests in a closed loop.
    pub(crate) fn run(
        &mut self,
        operation: &str,
        data: DataSpec,
        seconds: f64,
        seed: u64,
    ) -> BenchResult<LoadReply> {
        let warmup_s = WARMUP.as_secs_f64();
        let order = json!({ "operation": operation, "seconds": seconds, "warmup_s": warmup_s, "seed": seed });
        let done = self.send_command("run", data, order)?;
        done.failures().into_iter().for_each(|failures| println!("  some requests failed: {failures}"));
        Ok(done)
    }

    /// Reads keys spread over the data. Fails unless each has the value that was stored.
    pub(crate) fn verify(&mut self, data: DataSpec, samples: u64) -> BenchResult<()> {
        self.send_command("verify", data, json!({ "samples": samples }))?.all(samples.min(data.keys))
    }

    fn send_command(&mut self, what: &str, data: DataSpec, mut order: Value) -> BenchResult<LoadReply> {
        order["do"] = what.into();
        order["keys"] = data.keys.into();
        order["value_bytes"] = data.value_bytes.into();
        writeln!(self.commands, "{order}")?;
        let mut line = String::new();
        if self.results.read_line(&mut line)? == 0 {
            return Err(format!("etcd's load program ended at its order {order}").into());
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
