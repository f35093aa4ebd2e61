//! A measurement: a run of the generator, with the CPU time of the servers.

use crate::BenchResult;
use crate::servers::CpuLayout;
use bench::cpu::CpuMeter;
use bench::keys::KeyOrder;
use bench::recorder::{Failure, micros};
use bench::report::LaneReport;
use bench::timeline::is_ok;
use bench::values::ValueSizes;
use bench::{
    Lane, LaneResult, Mix, Operation, Pacing, Protocol, RunHooks, RunSpec, StopFlag, WorkloadSpec, run,
    run_with_hooks,
};
use lab::process::ServerProcess;
use lab::process_tree::ProcessTreeMeter;
use lab::stats::median;
use serde::Serialize;
use std::time::{Duration, Instant};

const PRELOAD_CONNECTIONS: usize = 64;
pub(crate) const WARMUP: Duration = Duration::from_millis(300);

/// A lane of one operation over uniform keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BenchLoad {
    pub(crate) operation: Operation,
    pub(crate) connections: usize,
    pub(crate) pacing: Pacing,
    pub(crate) keys: u64,
    pub(crate) value_bytes: usize,
    pub(crate) seed: u64,
}

impl BenchLoad {
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
            answer_timeout: None,
        }
    }
}

/// Measurement of the first lane of a run. Latencies are in microseconds; a value that was not
/// measured is NaN.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Sample {
    /// Requested rate; `None` in a closed loop.
    pub(crate) requested_per_second: Option<f64>,
    /// Requests that were sent per second. At a rate, the others found their connections busy.
    pub(crate) sent_per_second: f64,
    /// Responses of any status per second.
    pub(crate) per_second: f64,
    /// Successful responses per second that arrived in the measured time.
    pub(crate) served_per_second: f64,
    /// Number of responses, including the warm-up.
    pub(crate) answers: u64,
    /// Fraction of the responses that were refusals: `503` and `507`.
    pub(crate) refused: f64,
    /// Fraction of the responses that reported a timeout or another error.
    pub(crate) late: f64,
    /// Number of requests that were sent and have no response.
    pub(crate) failed: u64,
    /// CPU time of the servers per response of any lane, in microseconds.
    pub(crate) cpu_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    /// Latencies of successful requests; infinite if there are none.
    pub(crate) served_p99_us: f64,
    pub(crate) served_max_us: f64,
    /// Fraction of its cores that the generator used. Near 1, the generator was the bottleneck, not
    /// the server.
    pub(crate) generator_busy: f64,
}

impl Default for Sample {
    /// A sample in which nothing was measured.
    fn default() -> Self {
        Self {
            requested_per_second: None,
            sent_per_second: f64::NAN,
            per_second: f64::NAN,
            served_per_second: f64::NAN,
            answers: 0,
            refused: f64::NAN,
            late: f64::NAN,
            failed: 0,
            cpu_us: f64::NAN,
            p50_us: f64::NAN,
            p99_us: f64::NAN,
            p999_us: f64::NAN,
            served_p99_us: f64::NAN,
            served_max_us: f64::NAN,
            generator_busy: f64::NAN,
        }
    }
}

impl Sample {
    /// The sample of a load of another generator, of which only the throughput is known.
    pub(crate) fn of_rate(cpu_us: f64, per_second: f64, generator_busy: f64, answers: u64) -> Self {
        Self { sent_per_second: per_second, per_second, answers, cpu_us, generator_busy, ..Self::default() }
    }

    fn of(result: &LaneResult, spent: Spent, all_answers: u64) -> Self {
        let recorder = &result.recorder;
        let (answers, seconds) = (recorder.answers(), result.elapsed.as_secs_f64());
        let share = |is_kind: fn(u16) -> bool| {
            let of_kind = recorder.statuses().iter().filter(|(status, _)| is_kind(**status));
            of_kind.map(|(_, count)| count).sum::<u64>() as f64 / answers.max(1) as f64
        };
        let failures = recorder.failures().iter();
        let failed =
            failures.filter(|(failure, _)| **failure != Failure::Unsent).map(|(_, count)| count).sum();
        let (latency, served) = (recorder.latency(), recorder.served_latency());
        let quantile_us = |quantile| micros(latency.value_at_quantile(quantile));
        let of_served = |nanos| if served.is_empty() { f64::INFINITY } else { micros(nanos) };
        Self {
            requested_per_second: match result.pacing {
                Pacing::Closed => None,
                Pacing::Rate(rate) => Some(rate as f64),
            },
            sent_per_second: (answers + failed) as f64 / seconds,
            per_second: result.answers_per_second(),
            served_per_second: result.served_per_second(),
            answers: recorder.answers_with_warmup(),
            refused: share(is_refusal),
            late: share(|status| !is_ok(status) && !is_refusal(status)),
            failed,
            cpu_us: spent.by_servers.as_secs_f64() * 1e6 / all_answers.max(1) as f64,
            p50_us: quantile_us(0.5),
            p99_us: quantile_us(0.99),
            p999_us: quantile_us(0.999),
            served_p99_us: of_served(served.value_at_quantile(0.99)),
            served_max_us: of_served(served.max()),
            generator_busy: spent.generator_busy,
        }
    }

    /// Medians of the samples of several rounds.
    pub(crate) fn median(samples: &[Self]) -> Self {
        let of = |value: fn(&Self) -> f64| median(&samples.iter().map(value).collect::<Vec<_>>());
        let requested = of(|sample| sample.requested_per_second.unwrap_or(f64::NAN));
        Self {
            requested_per_second: Some(requested).filter(|rate| !rate.is_nan()),
            sent_per_second: of(|sample| sample.sent_per_second),
            per_second: of(|sample| sample.per_second),
            served_per_second: of(|sample| sample.served_per_second),
            answers: samples.iter().map(|sample| sample.answers).sum(),
            refused: of(|sample| sample.refused),
            late: of(|sample| sample.late),
            failed: samples.iter().map(|sample| sample.failed).sum(),
            cpu_us: of(|sample| sample.cpu_us),
            p50_us: of(|sample| sample.p50_us),
            p99_us: of(|sample| sample.p99_us),
            p999_us: of(|sample| sample.p999_us),
            served_p99_us: of(|sample| sample.served_p99_us),
            served_max_us: of(|sample| sample.served_max_us),
            generator_busy: of(|sample| sample.generator_busy),
        }
    }
}

const fn is_refusal(status: u16) -> bool {
    matches!(status, 503 | 507)
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
    loads: &[BenchLoad],
) -> BenchResult<Sample> {
    measure_all(std::slice::from_ref(server), layout, seconds, loads)
}

/// Runs the lanes against the first of `servers`. The CPU time is that of all servers.
pub(crate) fn measure_all(
    servers: &[ServerProcess],
    layout: CpuLayout,
    seconds: f64,
    loads: &[BenchLoad],
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
    loads: &[BenchLoad],
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
    let sample = Sample::of(&results[0], spent, answers);
    Ok((sample, results))
}

/// Reads keys. Fails unless each has the value that was stored.
pub(crate) fn verify(
    server: &ServerProcess,
    layout: CpuLayout,
    load: BenchLoad,
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
    let load = BenchLoad {
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

#[cfg(test)]
mod tests {
    use super::*;
    use bench::recorder::{Recorder, ResponseOutcome};
    use std::sync::Arc;
    use stdx::Instant;

    /// Two seconds with these numbers of responses by status, and a broken connection. A `504`
    /// takes 1 s, every other response 10 ms.
    pub(crate) fn sample(statuses: &[(u16, u64)], unsent: u64) -> Sample {
        let at = |millis: u64| Instant::ZERO + Duration::from_millis(millis);
        let mut recorder = Recorder::new(at(0), at(2_000), Arc::default());
        for (status, count) in statuses {
            let took = if *status == 504 { 1_000 } else { 10 };
            for _ in 0..*count {
                let outcome = ResponseOutcome::of_status(*status);
                recorder.answer(Operation::Put, at(100), at(100 + took), outcome);
            }
        }
        (0..unsent).for_each(|_| recorder.failure(Operation::Put, at(100), at(200), Failure::Unsent));
        recorder.failure(Operation::Put, at(100), at(150), Failure::Broken);
        let result = LaneResult {
            name: String::new(),
            pacing: Pacing::Rate(1_000),
            burst: Duration::ZERO,
            recorder,
            elapsed: Duration::from_secs(2),
        };
        Sample::of(&result, Spent { by_servers: Duration::ZERO, generator_busy: 0.5 }, 1)
    }

    #[test]
    fn goodput_and_latency_exclude_unserved_requests_and_unsent_ones_are_not_sent() {
        let sample = sample(&[(201, 100), (503, 200), (507, 40), (504, 60)], 1_000);
        assert_eq!((sample.served_per_second, sample.per_second), (50.0, 200.0));
        assert_eq!((sample.refused, sample.late, sample.failed), (0.6, 0.15, 1));
        assert_eq!((sample.requested_per_second, sample.sent_per_second), (Some(1_000.0), 200.5));
        assert!((9_900.0..10_100.0).contains(&sample.served_p99_us), "{sample:?}");
    }
}
