//! Every preset of `veche bench` with both durabilities, on nodes started for it.
//!
//! Each load is run by `veche bench` itself. Its JSON report is kept, so that
//! `veche bench compare` can draw it. Consecutive presets that read the same data share a node. The
//! server and the generator have a core each; the nodes of a cluster share one.
//!
//! **Caveats.** Published results come from other machines: their shapes are comparable, their
//! figures are not. A durable load with one connection waits for each sync. If its rate is out of
//! reach for that reason, it runs as a closed loop.

use crate::comparison::NODES;
use crate::data::require_free_space;
use crate::measure::Sample;
use crate::servers::{CpuLayout, Durability, WorkDir};
use crate::table::{ResultTable, Threshold};
use crate::{BenchResult, Options};
use bench::presets::{PRESETS, Preset};
use bench::report::Report;
use bench::{Operation, QuorumOverride, StopFlag};
use lab::process::ServerProcess;
use lab::stats::rounds;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const LAYOUT: CpuLayout = CpuLayout::PINNED;
/// Memory budget of each node of a cluster.
const CLUSTER_MEMORY: &str = "1GiB";
/// Size of the largest data set including compaction, in bytes.
const ROOM_BYTES: u64 = 6 << 30;
/// Number of keys of a smoke run.
const QUICK_KEYS: u64 = 10_000;
/// Maximum rate of a single connection that waits for each sync, in requests/s.
const ONE_DURABLE_WRITER_MAX: u64 = 5_000;
const DURABILITIES: [Durability; 2] = [Durability::Sync, Durability::Os];

/// Pace of the presets.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PresetArguments {
    /// Use each preset's own duration instead of --seconds [default: 20]
    #[arg(long)]
    full: bool,
    /// Also search for the highest rate that meets this goal
    #[arg(long, value_name = "GOAL", num_args = 0..=1, default_missing_value = "p99<10ms,errors=0")]
    knee: Option<String>,
}

/// Nodes that hold the data of one preset, or of several presets that only read it.
struct PresetNodes<'a> {
    work_dir: &'a WorkDir,
    names: Vec<String>,
    servers: Vec<ServerProcess>,
    data: DataSpec,
    durability: Durability,
}

/// Identity of preloaded data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DataSpec {
    preload: Option<&'static str>,
    value_size: &'static str,
    quorum: QuorumOverride,
}

/// Runs the presets, and adds the results.
pub(crate) fn run(
    options: &Options,
    arguments: &PresetArguments,
    work_dir: &WorkDir,
    table: &mut ResultTable,
) -> BenchResult<()> {
    require_free_space(work_dir.dir(), ROOM_BYTES)?;
    let stop = StopFlag::on_interrupt()?;
    let reports = options.out.join("presets");
    fs::create_dir_all(&reports)?;
    for durability in DURABILITIES {
        table.section(&format!("--durability {}; {}", durability.flag(), LAYOUT.title));
        let mut nodes: Option<PresetNodes<'_>> = None;
        for preset in PRESETS.iter().filter(|preset| options.is_selected(preset.name)) {
            if stop.is_set() {
                break;
            }
            if !nodes.as_ref().is_some_and(|nodes| nodes.serves(preset)) {
                // Remove the previous data before the next data is stored.
                drop(nodes.take());
                nodes = Some(PresetNodes::start(work_dir, preset, durability)?);
            }
            println!("{}, --durability {}", preset.name, durability.flag());
            let nodes = nodes.as_ref().ok_or("there are nodes")?;
            let json = reports.join(format!("{}-{}.json", preset.name, durability.flag()));
            let report = nodes.load(options, arguments, preset, &json)?;
            println!("{}", report.run);
            add_report(preset, &report, table);
        }
    }
    table.note(format!("the reports are in {}; `veche bench compare` draws them", reports.display()));
    Ok(())
}

/// Adds the results of a preset.
fn add_report(preset: &Preset, report: &Report, table: &mut ResultTable) {
    let run = &report.run;
    let at = |percentile| {
        let latency = run.overall().and_then(|latency| latency.at(percentile));
        latency.unwrap_or(f64::NAN)
    };
    let sample = Sample {
        requested_per_second: run.asked_per_s.map(|rate| rate as f64),
        cpu_us: report.cost.server_us_per_answer.unwrap_or(f64::NAN),
        p50_us: at(50.0),
        p99_us: at(99.0),
        p999_us: at(99.9),
        generator_busy: report.cost.generator_busy,
        ..Sample::of_rate(f64::NAN, run.arrived_per_s, f64::NAN, run.answers)
    };
    table.measured("veche", preset.name, &[sample]);
    let errors = rounds(&[run.errors() as f64]);
    let note = format!("{}; others: {}", preset.about, preset.published);
    table.row(&format!("{}: errors", preset.name), Threshold::AtMost(0.0), errors, note);
    if let Some(search) = &report.search {
        let knee = search.knee.and_then(|knee| rounds(&[knee as f64]));
        table.row(&format!("{}: knee, requests/s", preset.name), Threshold::None, knee, search.goal.clone());
    }
}

impl<'a> PresetNodes<'a> {
    fn start(work_dir: &'a WorkDir, preset: &Preset, durability: Durability) -> BenchResult<Self> {
        let name = format!("{}-{}", preset.name, durability.flag());
        let (names, servers) = if preset.quorum == QuorumOverride::default() {
            let server = work_dir.veche(&name, LAYOUT, durability, None)?;
            (vec![name], vec![server])
        } else {
            let servers = work_dir.cluster(&name, NODES, LAYOUT, durability, CLUSTER_MEMORY)?;
            ((0..NODES).map(|node| format!("{name}-{node}")).collect(), servers)
        };
        Ok(Self { work_dir, names, servers, data: DataSpec::of(preset), durability })
    }

    /// Whether the preset only reads, and reads the data that is stored here.
    fn serves(&self, preset: &Preset) -> bool {
        let mix = preset.mix();
        let only_reads = !mix.has(Operation::Put) && !mix.has(Operation::Delete);
        only_reads && preset.preload.is_some() && self.data == DataSpec::of(preset)
    }

    /// Runs the preset with `veche bench`.
    fn load(
        &self,
        options: &Options,
        arguments: &PresetArguments,
        preset: &Preset,
        json: &Path,
    ) -> BenchResult<Report> {
        let pids: Vec<String> = self.servers.iter().map(|server| server.pid().to_string()).collect();
        let cores: Vec<String> = LAYOUT.generator_cores.iter().map(ToString::to_string).collect();
        let mut command = Command::new(self.work_dir.program());
        command.args(["bench", "--preset", preset.name]);
        command.args(["--target", &format!("http://{}", self.servers[0].address())]);
        command.args(["--pid", &pids.join(","), "--cores", &cores.join(",")]);
        command.args(pace_flags(options, arguments, preset, self.durability));
        if options.quick {
            command.args(smoke_flags(preset));
        }
        command.arg("--json").arg(json).stdin(Stdio::null()).stdout(Stdio::null());
        let status = command.status()?;
        if !status.success() {
            return Err(format!("veche bench --preset {}: {status}", preset.name).into());
        }
        Ok(serde_json::from_slice(&fs::read(json)?)?)
    }
}

impl Drop for PresetNodes<'_> {
    fn drop(&mut self) {
        self.servers.clear();
        for name in &self.names {
            let data = self.work_dir.data(name);
            if let Err(error) = fs::remove_dir_all(&data) {
                eprintln!("{} cannot be removed: {error}", data.display());
            }
        }
    }
}

impl DataSpec {
    fn of(preset: &Preset) -> Self {
        Self { preload: preset.preload, value_size: preset.value_size, quorum: preset.quorum }
    }
}

/// Flags for pacing and duration.
fn pace_flags(
    options: &Options,
    arguments: &PresetArguments,
    preset: &Preset,
    durability: Durability,
) -> Vec<String> {
    let seconds = if options.quick { 1.0 } else { 20.0 };
    let seconds = options.seconds.unwrap_or(seconds);
    let mut flags = Vec::new();
    if !arguments.full {
        flags.push(format!("--duration={seconds}s"));
    }
    if is_out_of_reach(preset, durability) {
        flags.push("--closed".to_owned());
    } else if let Some(goal) = &arguments.knee {
        flags.extend([format!("--find-max={goal}"), format!("--trial={}s", seconds / 4.0)]);
    }
    flags
}

fn is_out_of_reach(preset: &Preset, durability: Durability) -> bool {
    let waits = durability == Durability::Sync && preset.connections == 1;
    waits && preset.mix().has(Operation::Put) && preset.rate > ONE_DURABLE_WRITER_MAX
}

/// Flags of a smoke run.
fn smoke_flags(preset: &Preset) -> Vec<String> {
    let keys = preset.keys.map_or(QUICK_KEYS, |keys| keys.min(QUICK_KEYS));
    let preload = preset.preload.map(|_| format!("--preload={QUICK_KEYS}"));
    preload.into_iter().chain([format!("--keys={keys}")]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_single_durable_writer_runs_as_a_closed_loop() {
        let closed = |durability| -> Vec<&str> {
            let out_of_reach = PRESETS.iter().filter(|preset| is_out_of_reach(preset, durability));
            out_of_reach.map(|preset| preset.name).collect()
        };
        assert_eq!(closed(Durability::Sync), ["put-small-seq"]);
        assert!(closed(Durability::Os).is_empty());
    }
}
