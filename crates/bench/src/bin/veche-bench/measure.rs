//! A measurement: a run of the generator, with the CPU time of the servers.

use crate::BenchResult;
use crate::servers::CpuLayout;
use bench::keys::KeyOrder;
use bench::process::{CpuMeter, ServerProcess};
use bench::process_tree::ProcessTreeMeter;
use bench::recorder::micros;
use bench::report::LaneReport;
use bench::values::ValueSizes;
use bench::{
    Lane, LaneResult, Mix, Operation, Pacing, Protocol, RunHooks, RunSpec, StopFlag, WorkloadSpec, run,
    run_with_hooks,
};
use std::time::{Duration, Instant};

const PRELOAD_CONNECTIONS: usize = 64;
pub(crate) const WARMUP: Duration = Duration::from_millis(300);

/// A lane of one operation over uniform keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) operation: Operation,
    pub(crate) connections: usize,
    pub(crate) pacing: Pacing,
    pub(crate) keys: u64,
    pub(crate) value_bytes: usize,
    pub(crate) seed: u64,
}

impl Load {
    /// The lane in the generator's terms.
    pub(crate) fn lane(&self, name: &str, protocol: Protocol) -> Lane {
        Lane {
            name: name.to_owned(),
            connections: self.connections,
            pacing: self.pacing,
            burst: Duration::ZERO,
            workload: WorkloadSpec {
                mix: Mix::only(self.operation),
                keys: self.keys,
                order: KeyOrder::Uniform,
                sizes: ValueSizes::Fixed(self.value_bytes),
                seed: self.seed,
                protocol,
                ..WorkloadSpec::default()
            },
            requests: None,
            verify: false,
            retry: false,
            send_timeout: None,
        }
    }
}

/// Measurement of the first lane of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// CPU time of the servers per response of any lane, in microseconds.
    pub(crate) cpu_us: f64,
    /// Number of responses, including the warm-up.
    pub(crate) answers: u64,
    pub(crate) per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    /// Fraction of its cores that the generator used. Near 1, the generator was the bottleneck, not
    /// the server.
    pub(crate) generator_busy: f64,
}

/// CPU meters of servers and a generator.
#[derive(Debug)]
pub(crate) struct Meters {
    servers: Vec<ProcessTreeMeter>,
    generator: CpuMeter,
    generator_threads: usize,
    begun: Instant,
}

/// Reading of [`Meters`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent {
    /// CPU time of all servers, including forked processes.
    pub(crate) by_servers: Duration,
    /// Fraction of its cores that the generator used.
    pub(crate) generator_busy: f64,
}

impl Meters {
    /// Starts the meters. `generator` is the process id of the generator.
    pub(crate) fn start(servers: &[ServerProcess], generator: u32, layout: CpuLayout) -> BenchResult<Self> {
        let servers = servers.iter().map(|server| ProcessTreeMeter::start(server.pid()));
        Ok(Self {
            servers: servers.collect::<Result<_, _>>()?,
            generator: CpuMeter::start(generator)?,
            generator_threads: layout.generator_threads,
            begun: Instant::now(),
        })
    }

    /// Times since the start.
    pub(crate) fn spent(&self) -> BenchResult<Spent> {
        let busy = self.generator.spent()?.as_secs_f64() / self.begun.elapsed().as_secs_f64();
        let by_servers = self.servers.iter().map(ProcessTreeMeter::spent).sum::<Result<Duration, _>>()?;
        Ok(Spent { by_servers, generator_busy: busy / self.generator_threads as f64 })
    }
}

/// Runs the lanes for `seconds`.
pub(crate) fn measure(
    server: &ServerProcess,
    layout: CpuLayout,
    seconds: f64,
    loads: &[Load],
) -> BenchResult<Sample> {
    measure_all(std::slice::from_ref(server), layout, seconds, loads)
}

/// Runs the lanes against the first of `servers`. The CPU time is that of all servers.
pub(crate) fn measure_all(
    servers: &[ServerProcess],
    layout: CpuLayout,
    seconds: f64,
    loads: &[Load],
) -> BenchResult<Sample> {
    let duration = Duration::try_from_secs_f64(seconds)?;
    let hooks = RunHooks { stop: &StopFlag::default(), on_second: &mut |_| {} };
    Ok(measure_with_hooks(servers, layout, duration, loads, hooks)?.0)
}

/// Runs the lanes as [`measure_all`] does, with hooks. Also returns the full result of the first
/// lane.
pub(crate) fn measure_with_hooks(
    servers: &[ServerProcess],
    layout: CpuLayout,
    duration: Duration,
    loads: &[Load],
    hooks: RunHooks<'_>,
) -> BenchResult<(Sample, LaneResult)> {
    let protocol = servers[0].protocol();
    let lanes = loads.iter().map(|load| load.lane(load.operation.name(), protocol)).collect();
    let (sample, mut results) = measure_lanes(servers, layout, duration, lanes, hooks)?;
    for (load, result) in loads.iter().zip(&results) {
        let done = result.recorder.with_status(load.operation.expected_status());
        if done != result.recorder.answers() || !result.recorder.failures().is_empty() {
            println!("  some requests failed:\n{}", LaneReport::new(result));
        }
    }
    Ok((sample, results.swap_remove(0)))
}

/// Runs lanes as [`measure_with_hooks`] does, but accepts refusals.
pub(crate) fn measure_lanes(
    servers: &[ServerProcess],
    layout: CpuLayout,
    duration: Duration,
    lanes: Vec<Lane>,
    hooks: RunHooks<'_>,
) -> BenchResult<(Sample, Vec<LaneResult>)> {
    let spec = RunSpec {
        targets: vec![servers[0].address().into()],
        threads: layout.generator_threads,
        cores: layout.generator_cores.to_vec(),
        warmup: WARMUP,
        duration: Some(duration),
        lanes,
    };
    let meters = Meters::start(servers, std::process::id(), layout)?;
    let results = run_with_hooks(&spec, hooks)?;
    let spent = meters.spent()?;
    let answers: u64 = results.iter().map(|result| result.recorder.answers_with_warmup()).sum();
    let first = &results[0];
    let latency = first.recorder.latency();
    let quantile_us = |quantile| micros(latency.value_at_quantile(quantile));
    let sample = Sample {
        cpu_us: spent.by_servers.as_secs_f64() * 1e6 / answers.max(1) as f64,
        answers: first.recorder.answers_with_warmup(),
        per_second: first.answers_per_second(),
        p50_us: quantile_us(0.5),
        p99_us: quantile_us(0.99),
        p999_us: quantile_us(0.999),
        generator_busy: spent.generator_busy,
    };
    Ok((sample, results))
}

/// Reads keys. Fails unless each has the value that was stored.
pub(crate) fn verify(
    server: &ServerProcess,
    layout: CpuLayout,
    load: Load,
    requests: u64,
) -> BenchResult<()> {
    let mut lane = load.lane("verify", server.protocol());
    (lane.requests, lane.verify) = (Some(requests), true);
    let result = run(&counted_run(server, layout, lane))?.remove(0);
    let found = result.recorder.with_status(load.operation.expected_status());
    if found == requests && result.recorder.wrong_values() == 0 {
        return Ok(());
    }
    Err(format!("{} has lost stored values:\n{}", server.address(), LaneReport::new(&result)).into())
}

/// Specification of a run that ends when its lane has sent all its requests.
fn counted_run(server: &ServerProcess, layout: CpuLayout, lane: Lane) -> RunSpec {
    RunSpec {
        targets: vec![server.address().into()],
        threads: layout.generator_threads,
        cores: layout.generator_cores.to_vec(),
        warmup: Duration::ZERO,
        duration: None,
        lanes: vec![lane],
    }
}

/// Stores every key once.
pub(crate) fn preload(
    server: &ServerProcess,
    layout: CpuLayout,
    order: KeyOrder,
    keys: u64,
    value_bytes: usize,
) -> BenchResult<()> {
    let load = Load {
        operation: Operation::Put,
        connections: PRELOAD_CONNECTIONS,
        pacing: Pacing::Closed,
        keys,
        value_bytes,
        seed: 0,
    };
    let mut lane = load.lane("preload", server.protocol());
    lane.workload.order = order;
    lane.requests = Some(keys);
    lane.retry = true;
    let result = run(&counted_run(server, layout, lane))?.remove(0);
    println!("  preload of {}: {:.0} PUT/s", server.address(), result.answers_per_second());
    if result.recorder.with_status(Operation::Put.expected_status()) == keys {
        Ok(())
    } else {
        Err(format!("the preload did not store every key:\n{}", LaneReport::new(&result)).into())
    }
}
