//! Overload: goodput and refusals of a node with more load than it can take, and its recovery.
//!
//! **Promise.** The node runs with default settings: the same command, pinned to one core and free
//! on two, on this machine's disk and on one throttled to a tenth. Everything is measured relative
//! to the same node's knee, the highest rate at which it meets the goal, found in the same run.
//! Machines are therefore never compared.
//!
//! **Mechanism.** [`knee`] finds the knee. [`flood`] applies more load, in a closed loop over more
//! connections and at constant rates. [`recovery`] measures a light load before, during and after a
//! flood. [`slow_disk`] does the same where the disk is the bottleneck. [`fairness`] measures one
//! closed-loop client among pipelined ones, [`refusal`] the cost of a refusal, and [`gaps`] counts
//! seconds without responses.
//!
//! **Caveats.** The generator shares the machine. Where it cannot send the load of a row, it was
//! the bottleneck. The row's note states the rate that was sent, and how busy the generator was.

mod estimate;
mod fairness;
mod flood;
mod gaps;
mod knee;
mod load_outcome;
mod paced_disk;
mod recovery;
mod refusal;
mod slow_disk;

use crate::measure::{Load, Sample, measure_lanes, preload};
use crate::servers::{CpuLayout, WorkDir};
use crate::table::ResultTable;
use crate::{BenchResult, Options};
use bench::goal::Goal;
use bench::keys::KeyOrder;
use bench::process::ServerProcess;
use bench::units::span;
use bench::{Lane, LaneResult, LiveSecond, Operation, Pacing, RunHooks, StopFlag};
use load_outcome::LoadOutcome;
use std::path::PathBuf;
use std::time::Duration;

/// Connections of a load that the node should sustain.
const CONNECTIONS: usize = 64;
const TRIAL_SECONDS: u64 = 3;
/// Factor of the duration of write trials: flushes, and their effects on a disk, occur every few
/// seconds.
const WRITE_TRIALS_LONGER: u32 = 2;
const SECONDS: u64 = 6;
const FLOOD_SECONDS: u64 = 600;
/// File name of the report, without extension.
const NAME: &str = "overload";
/// Latest useful response, in milliseconds: the default of `--request-timeout`.
const DEADLINE_MS: f64 = 1_000.0;

/// Selection and goals of the measurement, and destination of the report.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Directory for overload.md, overload.html and overload.json
    #[arg(long, default_value = "target/overload")]
    out: PathBuf,
    /// Run only these: write, read, disk, refusal, fairness, silence
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<Section>,
    /// Goal that a rate of reads has to meet
    #[arg(long, value_name = "GOAL", default_value = "p99<10ms,errors=0")]
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

/// Section of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Section {
    Write,
    Read,
    Disk,
    Refusal,
    Fairness,
    Silence,
}

/// Load whose knee is measured.
#[derive(Clone, Debug)]
struct Scenario {
    name: &'static str,
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
    arguments: &'a Arguments,
    keys: u64,
    trial: Duration,
    duration: Duration,
    flood: Duration,
    is_last: bool,
    /// Set by Ctrl-C, so that servers and files are cleaned up.
    stop: &'a StopFlag,
}

/// Measures, and writes the report.
pub(crate) fn run(
    options: &Options,
    arguments: &Arguments,
    work_dir: &WorkDir,
    table: &mut ResultTable,
) -> BenchResult<()> {
    let seconds = |full: u64, quick| Duration::from_secs(if options.quick { quick } else { full });
    let given = options.seconds.map(|seconds| Duration::from_secs((seconds.round() as u64).max(1)));
    let trial = seconds(TRIAL_SECONDS, 1);
    let stop = StopFlag::on_interrupt()?;
    let layouts = options.layouts();
    let bench = |(number, layout): (usize, &CpuLayout)| OverloadBench {
        work_dir,
        layout: *layout,
        arguments,
        keys: options.keys(),
        trial: given.map_or(trial, |given| given.min(trial)),
        duration: given.unwrap_or(seconds(SECONDS, 1)),
        flood: arguments.flood_seconds.map_or(seconds(FLOOD_SECONDS, 3), Duration::from_secs),
        is_last: number + 1 == layouts.len(),
        stop: &stop,
    };
    let benches: Vec<OverloadBench<'_>> = layouts.iter().enumerate().map(bench).collect();
    println!("  this takes about {}", span(benches.iter().map(OverloadBench::estimate).sum()));
    for bench in benches {
        println!("{}", bench.layout.title);
        bench.rows(table)?;
    }
    table.write(&arguments.out, NAME, "veche under more load than it can take")
}

impl OverloadBench<'_> {
    fn rows(&self, table: &mut ResultTable) -> BenchResult<()> {
        let place = self.layout.title.split(':').next().unwrap_or_default();
        for scenario in [self.writes(), self.reads()] {
            let section = if scenario.operation == Operation::Put { Section::Write } else { Section::Read };
            if self.is_selected(section) {
                table.section(&format!("{place}: {}", scenario.name));
                let server = self.node(&scenario)?;
                let knee = self.find_knee(&server, &scenario)?;
                self.knee_rows(&knee, table);
                self.flood_rows(&server, &scenario, &knee, table)?;
                self.recovery_row(&server, &scenario, &knee, table)?;
            }
        }
        if self.is_selected(Section::Disk) {
            table.section(&format!("{place}: PUT of 2 KiB, the disk paced to a tenth"));
            self.slow_disk_rows(table)?;
        }
        if self.is_selected(Section::Refusal) {
            table.section(&format!("{place}: what a refusal costs"));
            self.refusal_rows(table)?;
        }
        if self.is_selected(Section::Fairness) {
            table.section(&format!("{place}: one client that waits among 63 that do not"));
            self.fairness_rows(table)?;
        }
        // This section takes as long as all the others.
        if self.is_selected(Section::Silence) && self.is_last {
            table
                .section(&format!("{place}: PUT of 2 KiB as fast as can be, for {} s", self.flood.as_secs()));
            self.gap_rows(table)?;
        }
        Ok(())
    }

    fn is_selected(&self, section: Section) -> bool {
        self.arguments.only.is_empty() || self.arguments.only.contains(&section)
    }

    fn writes(&self) -> Scenario {
        Scenario {
            name: "PUT of 2 KiB, durable",
            operation: Operation::Put,
            value_bytes: 2048,
            goal: self.arguments.write_goal.clone(),
            trial: self.trial * WRITE_TRIALS_LONGER,
            settle: None,
        }
    }

    fn reads(&self) -> Scenario {
        Scenario {
            name: "GET of 100 B",
            operation: Operation::Get,
            value_bytes: 100,
            goal: self.arguments.read_goal.clone(),
            trial: self.trial,
            settle: None,
        }
    }

    /// Starts a new node, and stores the data that the scenario reads.
    fn node(&self, scenario: &Scenario) -> BenchResult<ServerProcess> {
        let name = format!("{NAME}-{}-{}", scenario.operation.name(), self.layout.server_threads);
        let server = self.work_dir.veche_with_defaults(&name, &self.work_dir.data(&name), self.layout)?;
        if scenario.operation == Operation::Get {
            preload(&server, self.layout, KeyOrder::Sequential, self.keys, scenario.value_bytes)?;
        }
        Ok(server)
    }

    fn load(&self, scenario: &Scenario, connections: usize, pacing: Pacing) -> Load {
        let Scenario { operation, value_bytes, .. } = *scenario;
        Load { operation, connections, pacing, keys: self.keys, value_bytes, seed: 1 }
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
        scenario: &Scenario,
        connections: usize,
        pacing: Pacing,
    ) -> BenchResult<LoadOutcome> {
        self.apply_lane(server, scenario, self.load(scenario, connections, pacing), None)
    }

    /// Applies a load whose clients abandon a request that has waited for a connection for
    /// `send_timeout`.
    fn apply_lane(
        &self,
        server: &ServerProcess,
        scenario: &Scenario,
        load: Load,
        send_timeout: Option<Duration>,
    ) -> BenchResult<LoadOutcome> {
        let Load { connections, pacing, .. } = load;
        let lane = Lane { send_timeout, ..load.lane(scenario.operation.name(), server.protocol()) };
        let (sample, result) = self.measure(server, self.duration, lane)?;
        let outcome = LoadOutcome::of(&result, sample);
        println!(
            "  {:<4} x{connections:<4} {pacing:?}: {outcome}; p99 {:.1} ms, longest {:.0} ms",
            scenario.operation.name(),
            outcome.p99_us / 1e3,
            outcome.max_us / 1e3
        );
        Ok(outcome)
    }
}
