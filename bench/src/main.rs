//! Benchmarks: each scenario measures and prints a table.
//!
//! Most figures are ratios within one run, medians of interleaved rounds. First the server runs on
//! core 0 with one I/O thread, and the generator on core 1. Then nothing is pinned, with two
//! threads each. `bench/README.md` describes the scenarios and their figures.

mod big;
mod change;
mod comparison;
mod comparisons;
mod data;
mod debt;
mod etcd_load;
mod generator;
mod instructions;
mod large;
mod measure;
mod others;
mod overload;
mod picture;
mod presets;
mod processor;
mod proof;
mod range;
mod scrape;
mod servers;
mod side;
mod soak;
mod sustained;
mod table;
mod tools;

use clap::{CommandFactory, Parser, Subcommand};
use comparison::ComparisonRunner;
use comparisons::COMPARISONS;
use servers::{CpuLayout, WorkDir};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use table::ResultTable;
use tools::Tools;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Result of a step; an error ends the benchmark.
type BenchResult<T> = Result<T, Box<dyn Error>>;

/// Panic message: each side of a comparison has a server.
const REQUIRED: &str = "a side has a server";

/// Benchmarks of veche.
#[derive(Clone, Debug, Parser)]
#[command(bin_name = "bench/run", disable_help_subcommand = true)]
struct Options {
    #[command(subcommand)]
    command: Command,
    /// A smoke run: seconds instead of minutes, figures without meaning
    #[arg(long, global = true)]
    quick: bool,
    /// Skip the second, unpinned layout, where there are two
    #[arg(long, global = true)]
    pinned_only: bool,
    /// Rounds of each measurement [default: 7]
    #[arg(long, global = true)]
    rounds: Option<usize>,
    /// Seconds of each measurement in a round [default: 5, unless the scenario states another]
    #[arg(long, global = true)]
    seconds: Option<f64>,
    /// Keys of the small data set [default: 1 million]
    #[arg(long, global = true, value_parser = clap::value_parser!(u64).range(1..))]
    keys: Option<u64>,
    /// Keys of the big data set, 1 KiB each [default: 10 million]
    #[arg(long, global = true, value_parser = clap::value_parser!(u64).range(1..))]
    big_keys: Option<u64>,
    /// Run only these parts of the scenario
    #[arg(long, global = true, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Directory for data directories and logs; a subdirectory is created for the run and removed
    /// at its end
    #[arg(long, global = true, default_value = "target/bench-data")]
    dir: PathBuf,
    /// Directory for the results, SCENARIO.txt and SCENARIO.json
    #[arg(long, global = true, default_value = "target/bench-results")]
    out: PathBuf,
    /// The server [default: the one beside this program]
    #[arg(long, global = true)]
    veche: Option<PathBuf>,
    /// Bare hyper [default: the one beside this program]
    #[arg(long, global = true)]
    bare_hyper: Option<PathBuf>,
}

/// Scenario to run.
#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Print the scenarios
    List,
    /// The cost of a request of one key, compared with bare hyper; parts: requests, writes
    Http,
    /// Memory, absent keys and restart with 10 GB of data in 512 MiB of memory
    Big,
    /// Throughput of ranges, compared with bare hyper, and of batches
    Range(range::RangeArguments),
    /// The cost of three nodes, compared with one
    Cluster,
    /// The cost of metrics
    Metrics,
    /// User instructions of a request, counted by callgrind, compared with an earlier build; parts:
    /// one, three
    Instructions(instructions::InstructionArguments),
    /// The compaction debt in each second of an overload and of half of its rate
    Debt(debt::DebtArguments),
    /// The sustainable rate of writes, and the latency at half of it
    Sustained(sustained::SustainedArguments),
    /// Reads of more data than memory, compared with RocksDB
    Large(large::LargeArguments),
    /// Redis, etcd, nginx and wrk, as far as they are installed; parts: reads, durable, os, three,
    /// generator
    Compare(compare::CompareArguments),
    /// Loads beyond the highest rate that holds; parts: write, read, disk, refusal, fairness,
    /// silence
    Overload(overload::OverloadArguments),
    /// Promises and growth of three nodes under load and faults for a long time
    Soak(soak::SoakArguments),
    /// Changes of the membership under load, and their costs; parts: join, leave, replace, restart,
    /// idle, etcd
    Change(change::ChangeArguments),
    /// All presets of `veche bench`; parts: the names of presets
    Presets(presets::PresetArguments),
}

/// Programs of the comparison.
mod compare {
    use std::path::PathBuf;

    #[derive(Clone, Debug, clap::Args)]
    pub(crate) struct CompareArguments {
        /// Directory of etcd and its load program, as bench/run builds them
        #[arg(long, default_value = "bench/compare/etcd/bin")]
        pub(crate) etcd: PathBuf,
    }
}

impl Options {
    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 2 } else { 7 })
    }

    fn seconds(&self) -> f64 {
        self.seconds.unwrap_or(if self.quick { 0.5 } else { 5.0 })
    }

    fn keys(&self) -> u64 {
        self.keys.unwrap_or(if self.quick { 20_000 } else { 1_000_000 })
    }

    fn layouts(&self) -> &'static [CpuLayout] {
        if self.pinned_only { &[CpuLayout::PINNED] } else { &[CpuLayout::PINNED, CpuLayout::UNPINNED] }
    }

    fn big_keys(&self) -> u64 {
        self.big_keys.unwrap_or(if self.quick { 50_000 } else { 10_000_000 })
    }

    /// Whether a part of the scenario is to be run.
    fn is_selected(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == part)
    }
}

fn main() -> ExitCode {
    match benchmark(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn benchmark(options: &Options) -> BenchResult<()> {
    let scenario = match &options.command {
        Command::List => return list(),
        Command::Http => "http",
        Command::Big => "big",
        Command::Range(_) => "range",
        Command::Cluster => "cluster",
        Command::Metrics => "metrics",
        Command::Instructions(_) => "instructions",
        Command::Debt(_) => "debt",
        Command::Sustained(_) => "sustained",
        Command::Large(_) => "large",
        Command::Compare(_) => "compare",
        Command::Overload(_) => "overload",
        Command::Soak(_) => "soak",
        Command::Change(_) => "change",
        Command::Presets(_) => "presets",
    };
    let mut table = ResultTable::new(scenario);
    println!("{options:?}\n");
    let work_dir = WorkDir::create(options)?;
    match &options.command {
        Command::List | Command::Http | Command::Metrics => {
            compare_servers(scenario, options, &work_dir, &Tools::default(), &mut table)?;
        }
        Command::Cluster => {
            let pinned = Options { pinned_only: true, ..options.clone() };
            compare_servers(scenario, &pinned, &work_dir, &Tools::default(), &mut table)?;
        }
        Command::Compare(arguments) => {
            let tools = Tools::find(&arguments.etcd);
            table.add_details("versions", serde_json::to_value(tools.found())?);
            compare_servers(scenario, options, &work_dir, &tools, &mut table)?;
            for missing in &tools.missing {
                table.note(format!(
                    "omitted: {}; {} is not installed: {}",
                    missing.rows, missing.name, missing.remedy
                ));
            }
        }
        Command::Big => big::rows(options, &work_dir, &mut table)?,
        Command::Instructions(arguments) => instructions::rows(options, arguments, &work_dir, &mut table)?,
        Command::Range(arguments) => range::rows(options, arguments, &work_dir, &mut table)?,
        Command::Debt(arguments) => debt::rows(options, arguments, &work_dir, &mut table)?,
        Command::Sustained(arguments) => sustained::rows(options, arguments, &work_dir, &mut table)?,
        Command::Large(arguments) => large::rows(options, arguments, &work_dir, &mut table)?,
        Command::Overload(arguments) => overload::run(options, arguments, &work_dir, &mut table)?,
        Command::Soak(arguments) => soak::run(options, arguments, &work_dir, &mut table)?,
        Command::Change(arguments) => change::run(options, arguments, &work_dir, &mut table)?,
        Command::Presets(arguments) => presets::run(options, arguments, &work_dir, &mut table)?,
    }
    table.write(&options.out)?;
    match table.missed() {
        missed if missed.is_empty() || !matches!(options.command, Command::Soak(_)) => Ok(()),
        missed => Err(format!("broken promises: {}", missed.join("; ")).into()),
    }
}

/// Runs the comparisons of a scenario.
fn compare_servers(
    scenario: &str,
    options: &Options,
    work_dir: &WorkDir,
    tools: &Tools,
    table: &mut ResultTable,
) -> BenchResult<()> {
    for layout in options.layouts() {
        let runner = ComparisonRunner { options, work_dir, tools, layout: *layout };
        let selected = |comparison: &&comparison::Comparison| {
            comparison.scenario == scenario && options.is_selected(comparison.name)
        };
        COMPARISONS.iter().filter(selected).try_for_each(|comparison| runner.run(comparison, table))?;
        if scenario == "compare" && options.is_selected("generator") {
            runner.generators(table)?;
        }
    }
    Ok(())
}

/// Prints the scenarios.
fn list() -> BenchResult<()> {
    for command in Options::command().get_subcommands() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        println!("{:<12} {about}", command.get_name());
    }
    // `bench/run` starts these programs itself.
    println!("{:<12} The engine, compared with RocksDB and fjall", "engine");
    println!("{:<12} `veche bench` with any options", "load");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }
}
