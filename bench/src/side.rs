//! A side of a comparison: its servers, their load generator, and the guarantee of a response.

use crate::etcd_load::EtcdLoad;
use crate::measure::{BenchLoad, Meters, Sample, measure_all, preload, verify};
use crate::servers::CpuLayout;
use crate::{BenchResult, REQUIRED};
use bench::keys::{KeyNumber, KeyOrder};
use bench::values::{ValueGenerator, ValueSizes};
use bench::{Operation, Pacing, fetch};
use lab::process::ServerProcess;
use lab::process_tree::ProcessTreeMeter;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Number of values that are read back after each comparison, on every side.
const READ_BACK: u64 = 1_000;
const VERIFY_CONNECTIONS: usize = 8;
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

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
pub(crate) struct ComparedSide {
    pub(crate) name: &'static str,
    /// Guarantee of a response.
    pub(crate) guarantee: &'static str,
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

impl ComparedSide {
    /// Creates a side whose first server receives the generator's load.
    pub(crate) fn new(name: &'static str, guarantee: &'static str, servers: Vec<ServerProcess>) -> Self {
        let (servers, load_source) = (Rc::new(servers), LoadSource::Generator);
        Self { name, guarantee, servers, load_source, synced_copies: 0 }
    }

    /// Makes etcd's load program the source of the load.
    pub(crate) fn driven_by(self, load: EtcdLoad) -> Self {
        let load = Rc::new(RefCell::new(load));
        Self { load_source: LoadSource::EtcdLoad { load, read: "get" }, ..self }
    }

    /// Sets the number of servers that sync a write before its response.
    pub(crate) fn syncing(self, copies: u32) -> Self {
        Self { synced_copies: copies, ..self }
    }

    /// The same servers of etcd with serializable reads: the contacted node answers from its own
    /// data, without consulting the others.
    pub(crate) fn serializable(&self, name: &'static str, guarantee: &'static str) -> Self {
        let mut side = Self { name, guarantee, ..self.clone() };
        if let LoadSource::EtcdLoad { read, .. } = &mut side.load_source {
            *read = "get-serializable";
        }
        side
    }

    /// The server that receives the load.
    pub(crate) fn first(&self) -> &ServerProcess {
        self.servers.first().expect(REQUIRED)
    }

    /// Applies the loads for `seconds`, and measures the first of them.
    pub(crate) fn measure(
        &self,
        layout: CpuLayout,
        seconds: f64,
        loads: &[BenchLoad],
    ) -> BenchResult<Sample> {
        match &self.load_source {
            LoadSource::Generator => measure_all(&self.servers, layout, seconds, loads),
            LoadSource::EtcdLoad { load, read } => {
                let operation = if loads[0].operation == Operation::Put { "put" } else { read };
                self.measure_etcd(&mut load.borrow_mut(), layout, operation, seconds, &loads[0])
            }
        }
    }

    /// Measures as [`ComparedSide::measure`] does, then waits until the servers are idle. Work that
    /// responses leave behind is part of their cost, and must not slow the side that is measured
    /// next.
    pub(crate) fn measure_until_idle(
        &self,
        layout: CpuLayout,
        seconds: f64,
        loads: &[BenchLoad],
    ) -> BenchResult<Sample> {
        let sample = self.measure(layout, seconds, loads)?;
        let behind_us = self.wait_until_idle()?.as_secs_f64() * 1e6;
        // Responses of the other loads are not counted here: their share of this work is small.
        Ok(Sample { cpu_us: sample.cpu_us + behind_us / sample.answers.max(1) as f64, ..sample })
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
                println!("  {} is not idle after {} s", self.name, IDLE_TIMEOUT.as_secs());
                break;
            }
            std::thread::sleep(IDLE_POLL);
            let before = std::mem::replace(
                &mut spent,
                meters.iter().map(ProcessTreeMeter::spent).sum::<Result<_, _>>()?,
            );
            let is_quiet = spent.saturating_sub(before) < IDLE_POLL.mul_f64(IDLE_CPU_SHARE);
            quiet = if is_quiet { quiet + 1 } else { 0 };
        }
        Ok(spent)
    }

    fn measure_etcd(
        &self,
        etcd: &mut EtcdLoad,
        layout: CpuLayout,
        operation: &str,
        seconds: f64,
        load: &BenchLoad,
    ) -> BenchResult<Sample> {
        let meters = Meters::start(&self.servers, etcd.pid(), layout)?;
        let done = etcd.run(operation, load, seconds)?;
        let spent = meters.spent()?;
        let cpu_us = spent.by_servers.as_secs_f64() * 1e6 / done.requests.max(1) as f64;
        let per_second = done.measured as f64 / done.seconds;
        Ok(Sample::of_rate(cpu_us, per_second, spent.generator_busy, done.requests))
    }

    /// Stores every key once, and waits until the servers are idle.
    pub(crate) fn preload(&self, layout: CpuLayout, keys: u64, value_bytes: usize) -> BenchResult<()> {
        match &self.load_source {
            LoadSource::Generator => preload(self.first(), layout, KeyOrder::Sequential, keys, value_bytes)?,
            LoadSource::EtcdLoad { load, .. } => load.borrow_mut().preload(keys, value_bytes)?,
        }
        self.wait_until_idle()?;
        Ok(())
    }

    /// Reads keys. Fails unless each has the value that was stored. Returns the result as a
    /// sentence.
    pub(crate) fn read_back(&self, layout: CpuLayout, keys: u64, value_bytes: usize) -> BenchResult<String> {
        let (operation, connections, pacing) = (Operation::Get, VERIFY_CONNECTIONS, Pacing::Closed);
        let load = BenchLoad { operation, connections, pacing, keys, value_bytes, seed: 0 };
        match &self.load_source {
            LoadSource::Generator => verify(self.first(), layout, load, READ_BACK)?,
            LoadSource::EtcdLoad { load, .. } => {
                load.borrow_mut().verify(keys, value_bytes, READ_BACK)?;
            }
        }
        Ok(format!("{READ_BACK} values read back were correct"))
    }

    /// Fails unless the first servers of both sides send the same number of header bytes: only then
    /// is bare hyper comparable.
    pub(crate) fn require_equal_heads(&self, other: &Self, value_bytes: usize) -> BenchResult<()> {
        let mut value = Vec::new();
        ValueGenerator::standard(ValueSizes::Fixed(value_bytes)).append(KeyNumber(0), &mut value);
        let key = KeyNumber(0).stored_key();
        let path = format!("/v0/entity?id={}", String::from_utf8_lossy(&key));
        for (method, body) in [("GET", [].as_slice()), ("PUT", &value)] {
            let head = |side: &Self| {
                fetch(side.first().address(), method, &path, body, FETCH_TIMEOUT).map(|answer| answer.head)
            };
            let heads = [head(self)?, head(other)?];
            if heads[0].len() != heads[1].len() {
                let [own, other] = heads.map(|head| String::from_utf8_lossy(&head).into_owned());
                return Err(format!("the header bytes of {method} differ:\n{own}---\n{other}").into());
            }
        }
        Ok(())
    }
}
