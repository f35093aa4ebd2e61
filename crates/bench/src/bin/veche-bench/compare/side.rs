//! A side of a comparison: its servers, their load generator, and the guarantee of a response.

use super::etcd_load::{DataSpec, EtcdLoad};
use crate::BenchResult;
use crate::measure::{Load, Meters, measure_all, preload, verify};
use crate::servers::CpuLayout;
use bench::keys::KeyOrder;
use bench::process::ServerProcess;
use bench::process_tree::ProcessTreeMeter;
use bench::{Operation, Pacing};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Number of values that are read back after each comparison, on every side.
pub(crate) const READ_BACK: u64 = 1_000;
const VERIFY_CONNECTIONS: usize = 8;

/// Servers are idle if they use less than this fraction of a core in [`QUIET_POLLS`] consecutive
/// polls.
const IDLE_CPU_SHARE: f64 = 0.1;
/// Number of consecutive polls, each of length [`IDLE_POLL`].
const QUIET_POLLS: usize = 3;
const IDLE_POLL: Duration = Duration::from_millis(100);
/// Maximum time to wait for idle servers.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// A side of a comparison.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    pub(crate) name: String,
    /// Guarantee of a response.
    pub(crate) keeps: String,
    pub(crate) servers: Rc<Vec<ServerProcess>>,
    load_source: LoadSource,
    /// Number of servers that have synced a write before its response.
    pub(crate) synced_copies: u32,
}

/// Source of the load: the generator of this program, or etcd's load program.
#[derive(Clone, Debug)]
enum LoadSource {
    Generator,
    EtcdLoad { load: Rc<RefCell<EtcdLoad>>, read: &'static str },
}

/// Data and concurrency of a load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadSpec {
    pub(crate) operation: Operation,
    pub(crate) connections: usize,
    pub(crate) keys: u64,
    pub(crate) value_bytes: usize,
}

/// Measurement of a side in a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SideSample {
    /// CPU time per response of all processes of the side, in microseconds.
    pub(crate) cpu_us: f64,
    pub(crate) per_second: f64,
    /// Fraction of its cores that the generator used.
    pub(crate) generator_busy: f64,
    /// Number of responses, including the warm-up.
    pub(crate) answers: u64,
}

impl Side {
    /// Creates a side whose first server receives the generator's load.
    pub(crate) fn new(name: &str, keeps: &str, servers: Vec<ServerProcess>) -> Self {
        Self {
            name: name.to_owned(),
            keeps: keeps.to_owned(),
            servers: Rc::new(servers),
            load_source: LoadSource::Generator,
            synced_copies: 0,
        }
    }

    /// Creates a side that etcd's load program drives.
    pub(crate) fn of_etcd(name: &str, keeps: &str, servers: Vec<ServerProcess>, load: EtcdLoad) -> Self {
        let load = Rc::new(RefCell::new(load));
        let load_source = LoadSource::EtcdLoad { load, read: "get" };
        Self { load_source, ..Self::new(name, keeps, servers) }
    }

    /// The same servers with another name and guarantee.
    pub(crate) fn promising(&self, name: &str, keeps: &str) -> Self {
        Self { name: name.to_owned(), keeps: keeps.to_owned(), ..self.clone() }
    }

    /// Makes reads serializable: etcd answers from the contacted node's data, without consulting
    /// the others.
    pub(crate) fn serializable(mut self) -> Self {
        if let LoadSource::EtcdLoad { read, .. } = &mut self.load_source {
            *read = "get-serializable";
        }
        self
    }

    /// Sets the number of servers that sync a write before its response.
    pub(crate) fn syncing(self, copies: u32) -> Self {
        Self { synced_copies: copies, ..self }
    }

    /// Runs the load for `seconds`, and measures.
    pub(crate) fn measure(
        &self,
        layout: CpuLayout,
        spec: LoadSpec,
        seconds: f64,
        seed: u64,
    ) -> BenchResult<SideSample> {
        match &self.load_source {
            LoadSource::Generator => {
                let sample = measure_all(&self.servers, layout, seconds, &[spec.load(seed)])?;
                Ok(SideSample {
                    cpu_us: sample.cpu_us,
                    per_second: sample.per_second,
                    generator_busy: sample.generator_busy,
                    answers: sample.answers,
                })
            }
            LoadSource::EtcdLoad { load, read } => {
                let operation = if spec.operation == Operation::Put { "put" } else { read };
                self.measure_etcd(&mut load.borrow_mut(), layout, spec.data(), operation, seconds, seed)
            }
        }
    }

    /// Runs the load as [`Side::measure`] does, then waits until the servers are idle. Work that
    /// responses leave behind is part of their cost, and must not slow the side that is measured
    /// next.
    pub(crate) fn measure_until_idle(
        &self,
        layout: CpuLayout,
        spec: LoadSpec,
        seconds: f64,
        seed: u64,
    ) -> BenchResult<SideSample> {
        let sample = self.measure(layout, spec, seconds, seed)?;
        let behind_us = self.wait_until_idle()?.as_secs_f64() * 1e6;
        Ok(SideSample { cpu_us: sample.cpu_us + behind_us / sample.answers.max(1) as f64, ..sample })
    }

    /// Waits until the servers and their children are idle. Returns the CPU time that they used
    /// until then.
    fn wait_until_idle(&self) -> BenchResult<Duration> {
        let begun = Instant::now();
        let meters = self.servers.iter().map(|server| ProcessTreeMeter::start(server.pid()));
        let meters = meters.collect::<Result<Vec<_>, _>>()?;
        let (mut spent, mut quiet) = (Duration::ZERO, 0);
        while quiet < QUIET_POLLS {
            if begun.elapsed() > IDLE_TIMEOUT {
                println!("  {} is not at rest after {} s", self.name, IDLE_TIMEOUT.as_secs());
                break;
            }
            std::thread::sleep(IDLE_POLL);
            let before = std::mem::replace(
                &mut spent,
                meters.iter().map(ProcessTreeMeter::spent).sum::<Result<_, _>>()?,
            );
            quiet =
                if spent.saturating_sub(before) < IDLE_POLL.mul_f64(IDLE_CPU_SHARE) { quiet + 1 } else { 0 };
        }
        Ok(spent)
    }

    fn measure_etcd(
        &self,
        load: &mut EtcdLoad,
        layout: CpuLayout,
        data: DataSpec,
        operation: &str,
        seconds: f64,
        seed: u64,
    ) -> BenchResult<SideSample> {
        let meters = Meters::start(&self.servers, load.pid(), layout)?;
        let done = load.run(operation, data, seconds, seed)?;
        let spent = meters.spent()?;
        Ok(SideSample {
            cpu_us: spent.by_servers.as_secs_f64() * 1e6 / done.requests.max(1) as f64,
            per_second: done.measured as f64 / done.seconds,
            generator_busy: spent.generator_busy,
            answers: done.requests,
        })
    }

    /// Stores every key once, and waits until the servers are idle.
    pub(crate) fn preload(&self, layout: CpuLayout, spec: LoadSpec) -> BenchResult<()> {
        let LoadSpec { keys, value_bytes, .. } = spec;
        match &self.load_source {
            LoadSource::Generator => {
                preload(&self.servers[0], layout, KeyOrder::Sequential, keys, value_bytes)?;
            }
            LoadSource::EtcdLoad { load, .. } => load.borrow_mut().preload(spec.data())?,
        }
        self.wait_until_idle()?;
        Ok(())
    }

    /// Reads keys. Fails unless each has the value that was stored.
    pub(crate) fn read_back(&self, layout: CpuLayout, spec: LoadSpec) -> BenchResult<()> {
        let read = LoadSpec { operation: Operation::Get, connections: VERIFY_CONNECTIONS, ..spec };
        match &self.load_source {
            LoadSource::Generator => verify(&self.servers[0], layout, read.load(0), READ_BACK),
            LoadSource::EtcdLoad { load, .. } => load.borrow_mut().verify(spec.data(), READ_BACK),
        }
    }
}

impl LoadSpec {
    fn load(self, seed: u64) -> Load {
        let Self { operation, connections, keys, value_bytes } = self;
        Load { operation, connections, pacing: Pacing::Closed, keys, value_bytes, seed }
    }

    const fn data(self) -> DataSpec {
        DataSpec { keys: self.keys, value_bytes: self.value_bytes }
    }
}
