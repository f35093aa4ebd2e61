//! Overload: goodput and refusals of a node with more load than it can take, and its recovery.
//!
//! **Promise.** The node runs with default settings, on this machine's disk and on one throttled to
//! a tenth. Everything is measured relative to the same node's knee, the highest rate at which it
//! meets the goal, found in the same run. Machines are therefore never compared.
//!
//! **Mechanism.** [`knee`] finds the knee. [`flood`] applies more load, in a closed loop over more
//! connections and at constant rates. [`recovery`] measures a light load before, during and after a
//! flood. In these parts the node has a fraction of a core, so that the generator can send ten
//! times what the node can answer. [`slow_disk`] does the same where the disk is the bottleneck.
//! [`fairness`] measures one closed-loop client among pipelined ones, [`refusal`] the cost of a
//! refusal, and [`gaps`] counts seconds without responses.
//!
//! **Caveats.** The generator shares the machine. The measurements state the rate that was sent,
//! and how busy the generator was.

mod fairness;
mod flood;
mod gaps;
mod knee;
mod paced_disk;
mod recovery;
mod refusal;
mod slow_disk;

use crate::measure::{BenchLoad, Sample, measure_lanes, preload};
use crate::processor::ProcessorLimit;
use crate::servers::{CpuLayout, WorkDir};
use crate::table::ResultTable;
use crate::{BenchResult, Options};
use bench::goal::Goal;
use bench::keys::KeyOrder;
use bench::{Lane, LaneResult, LiveSecond, Operation, Pacing, RunHooks, StopFlag};
use lab::process::ServerProcess;
use std::time::Duration;

/// Connections of a load that the node should sustain.
const CONNECTIONS: usize = 64;
const TRIAL_SECONDS: u64 = 3;
/// Factor of the duration of write trials: flushes, and their effects on a disk, occur every few
/// seconds.
const WRITE_TRIALS_LONGER: u32 = 2;
const SECONDS: u64 = 6;
const FLOOD_SECONDS: u64 = 600;
/// Latest useful response, in milliseconds: the default of `--request-timeout`.
const DEADLINE_MS: f64 = 1_000.0;

/// Goals and durations of the measurement.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct OverloadArguments {
    /// Fraction of a core that the node has in the parts write and read
    #[arg(long, default_value_t = 0.05, value_parser = parse_share)]
    core_share: f64,
    /// Goal that a rate of reads has to meet
    #[arg(long, value_name = "GOAL", default_value = "p99<50ms,errors=0")]
    read_goal: Goal,
    /// Goal of writes, each of which waits for a sync of a disk that others may use
    #[arg(long, value_name = "GOAL", default_value = "p99<50ms,errors=0")]
    write_goal: Goal,
    /// Goal of writes on the throttled disk
    #[arg(long, value_name = "GOAL", default_value = "p99<200ms,errors=0")]
    disk_goal: Goal,
    /// Seconds of the long flood of writes [default: 600]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    flood_seconds: Option<u64>,
}

fn parse_share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.001..=1.0).contains(&share) => Ok(share),
        _ => Err(format!("{text:?} is not a fraction from 0.001 to 1")),
    }
}

/// Parts of the measurement: a name for `--only`, and a title.
const PARTS: [(&str, &str); 6] = [
    ("write", "PUT of 2 KiB, durable"),
    ("read", "GET of 100 B"),
    ("disk", "PUT of 2 KiB, durable, on a disk with a tenth of its bandwidth"),
    ("refusal", "the cost of a refusal"),
    ("fairness", "one client that waits for responses among 63 that do not"),
    ("silence", "PUT of 2 KiB at the maximum rate for a long time"),
];

/// A load whose knee is measured.
#[derive(Clone, Debug)]
struct Demand {
    operation: Operation,
    value_bytes: usize,
    goal: Goal,
    /// Duration of a trial.
    trial: Duration,
    /// Maximum time to settle after a trial. `None`: a fixed part of the trial's duration.
    settle: Option<Duration>,
}

/// One CPU layout, with the durations of the measurements.
#[derive(Clone, Copy)]
struct OverloadBench<'a> {
    work_dir: &'a WorkDir,
    layout: CpuLayout,
    arguments: &'a OverloadArguments,
    keys: u64,
    trial: Duration,
    duration: Duration,
    flood: Duration,
    /// Set by Ctrl-C, so that servers and files are cleaned up.
    stop: &'a StopFlag,
}

/// Times after which the clients of an excessive rate abandon a request.
#[derive(Clone, Copy, Debug)]
struct Timeouts {
    /// Wait for a connection.
    send: Duration,
    /// Wait for the response.
    answer: Duration,
}

/// A node with the limit of its processor time. The node is dropped first.
struct LimitedNode {
    server: ServerProcess,
    _limit: ProcessorLimit,
}

/// Measures, and adds the results.
pub(crate) fn run(
    options: &Options,
    arguments: &OverloadArguments,
    work_dir: &WorkDir,
    table: &mut ResultTable,
) -> BenchResult<()> {
    let seconds = |full: u64, quick| Duration::from_secs(if options.quick { quick } else { full });
    let given = options.seconds.map(|seconds| Duration::from_secs((seconds.round() as u64).max(1)));
    let trial = seconds(TRIAL_SECONDS, 1);
    let stop = StopFlag::on_interrupt()?;
    let layouts = options.layouts();
    for (number, layout) in layouts.iter().enumerate() {
        let bench = OverloadBench {
            work_dir,
            layout: *layout,
            arguments,
            keys: options.keys(),
            trial: given.map_or(trial, |given| given.min(trial)),
            duration: given.unwrap_or(seconds(SECONDS, 1)),
            flood: arguments.flood_seconds.map_or(seconds(FLOOD_SECONDS, 3), Duration::from_secs),
            stop: &stop,
        };
        let is_last = number + 1 == layouts.len();
        for (part, title) in PARTS.into_iter().filter(|(part, _)| options.is_selected(part)) {
            // This part takes as long as all the others.
            if part == "silence" && !is_last {
                continue;
            }
            table.section(&format!("{title}; {}", layout.title));
            match part {
                "write" => bench.add_floods(&bench.writes(), table)?,
                "read" => bench.add_floods(&bench.reads(), table)?,
                "disk" => bench.add_slow_disk(table)?,
                "refusal" => bench.add_refusals(table)?,
                "fairness" => bench.add_fairness(table)?,
                _ => bench.add_gaps(table)?,
            }
        }
    }
    Ok(())
}

impl OverloadBench<'_> {
    /// The knee, and loads beyond it.
    fn add_floods(&self, demand: &Demand, table: &mut ResultTable) -> BenchResult<()> {
        let server = self.node(demand)?;
        let limit = ProcessorLimit::of(server.pid(), self.arguments.core_share)?;
        table.note(format!("the node has {}", limit.name()));
        let node = LimitedNode { server, _limit: limit };
        // The node needs little processor time: the generator may use both cores.
        let generator = CpuLayout::UNPINNED;
        let layout = CpuLayout {
            generator_cores: generator.generator_cores,
            generator_threads: generator.generator_threads,
            ..self.layout
        };
        let bench = Self { layout, ..*self };
        let knee = bench.find_knee(&node.server, demand, table)?;
        bench.add_loads_beyond(&node.server, demand, &knee, table)?;
        bench.add_recovery(&node.server, demand, &knee, table)
    }

    fn writes(&self) -> Demand {
        Demand {
            operation: Operation::Put,
            value_bytes: 2048,
            goal: self.arguments.write_goal.clone(),
            trial: self.trial * WRITE_TRIALS_LONGER,
            settle: None,
        }
    }

    fn reads(&self) -> Demand {
        Demand {
            operation: Operation::Get,
            value_bytes: 100,
            goal: self.arguments.read_goal.clone(),
            trial: self.trial,
            settle: None,
        }
    }

    /// Starts a new node, and stores the data that the load reads.
    fn node(&self, demand: &Demand) -> BenchResult<ServerProcess> {
        let name = format!("overload-{}-{}", demand.operation.name(), self.layout.server_threads);
        let server = self.work_dir.veche_with_defaults(&name, &self.work_dir.data(&name), self.layout)?;
        if demand.operation == Operation::Get {
            preload(&server, self.layout, KeyOrder::Sequential, self.keys, demand.value_bytes)?;
        }
        Ok(server)
    }

    fn load(&self, demand: &Demand, connections: usize, pacing: Pacing) -> BenchLoad {
        let Demand { operation, value_bytes, .. } = *demand;
        BenchLoad { operation, connections, pacing, keys: self.keys, value_bytes, seed: 1 }
    }

    fn measure(
        &self,
        server: &ServerProcess,
        duration: Duration,
        lane: Lane,
    ) -> BenchResult<(Sample, LaneResult)> {
        self.measure_with_hooks(server, duration, lane, &mut |_| {})
    }

    /// Measures a lane, and calls `on_second` after each second.
    fn measure_with_hooks(
        &self,
        server: &ServerProcess,
        duration: Duration,
        lane: Lane,
        on_second: &mut dyn FnMut(&LiveSecond),
    ) -> BenchResult<(Sample, LaneResult)> {
        let hooks = RunHooks { stop: self.stop, on_second };
        let servers = std::slice::from_ref(server);
        let (sample, mut results) = measure_lanes(servers, self.layout, duration, vec![lane], hooks)?;
        if self.stop.is_set() { Err("interrupted".into()) } else { Ok((sample, results.swap_remove(0))) }
    }

    /// Applies a load for the duration of a measurement.
    fn apply_load(
        &self,
        server: &ServerProcess,
        demand: &Demand,
        connections: usize,
        pacing: Pacing,
    ) -> BenchResult<Sample> {
        self.apply_lane(server, demand, self.load(demand, connections, pacing), None)
    }

    /// Applies a load whose clients abandon requests after these times; see [`Lane`].
    fn apply_lane(
        &self,
        server: &ServerProcess,
        demand: &Demand,
        load: BenchLoad,
        timeouts: Option<Timeouts>,
    ) -> BenchResult<Sample> {
        let BenchLoad { connections, pacing, .. } = load;
        let lane = Lane {
            send_timeout: timeouts.map(|timeouts| timeouts.send),
            answer_timeout: timeouts.map(|timeouts| timeouts.answer),
            ..load.lane(demand.operation.name(), server.protocol())
        };
        let (sample, _) = self.measure(server, self.duration, lane)?;
        println!(
            "  {:<4} x{connections:<5} {pacing:?}: sent {:.0}/s; {}; p99 {:.1} ms, maximum {:.0} ms",
            demand.operation.name(),
            sample.sent_per_second,
            outcome(&sample),
            sample.served_p99_us / 1e3,
            sample.served_max_us / 1e3
        );
        Ok(sample)
    }
}

/// Results of a load as text.
fn outcome(sample: &Sample) -> String {
    format!(
        "{:.0}/s served; {:.1} % of {:.0} responses/s refused, {:.1} % too late, {} requests without response",
        sample.served_per_second,
        sample.refused * 100.0,
        sample.per_second,
        sample.late * 100.0,
        sample.failed
    )
}
