//! Benchmarks over HTTP: each command measures and prints a table.
//!
//! Every number is a ratio within one run, the median of interleaved rounds. First the server runs
//! on core 0 with one I/O thread, and the generator on core 1. Then nothing is pinned, with two
//! threads each. `bench/README.md` describes each row.

mod batch;
mod big;
mod cluster;
mod compare;
mod cost;
mod data;
mod large;
mod measure;
mod metrics;
mod overload;
mod presets;
mod range;
mod scrape;
mod servers;
mod soak;
mod sustained;
mod table;
mod tail;

use bench::machine::MachineInfo;
use clap::{Parser, Subcommand};
use servers::{CpuLayout, WorkDir};
use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use table::ResultTable;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Result of a step; an error ends the benchmark.
type BenchResult<T> = Result<T, Box<dyn Error>>;

/// Benchmarks of veche over HTTP.
#[derive(Clone, Debug, Parser)]
struct Options {
    #[command(subcommand)]
    command: Command,
    /// A smoke run: seconds instead of minutes, numbers without meaning.
    #[arg(long, global = true)]
    quick: bool,
    /// Skip the second, unpinned layout, where there are two.
    #[arg(long, global = true)]
    pinned_only: bool,
    /// Rounds of each measurement [default: 7, unless the command states another].
    #[arg(long, global = true)]
    rounds: Option<usize>,
    /// Seconds of each measurement in a round [default: 5, unless the command states another].
    #[arg(long, global = true)]
    seconds: Option<f64>,
    /// Keys of the small data set [default: 1 million].
    #[arg(long, global = true, value_parser = clap::value_parser!(u64).range(1..))]
    keys: Option<u64>,
    /// Keys of the big data set, 1 KiB each [default: 10 million].
    #[arg(long, global = true, value_parser = clap::value_parser!(u64).range(1..))]
    big_keys: Option<u64>,
    /// Directory for data directories and logs; a subdirectory is created for the run and removed
    /// at its end.
    #[arg(long, global = true, default_value = "target/bench-data")]
    dir: PathBuf,
    /// The server; by default the one beside this program.
    #[arg(long, global = true)]
    veche: Option<PathBuf>,
    /// The floor; by default the one beside this program.
    #[arg(long, global = true)]
    floor: Option<PathBuf>,
    /// Also write the table to this file, as JSON.
    #[arg(long, global = true)]
    json: Option<PathBuf>,
}

/// Benchmark to run.
#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Requests of one key, against a bare hyper server: processor time, throughput, read tail
    /// during writes.
    Http,
    /// 10 GB in little memory: memory, absent keys, opening after `kill -9`.
    Big,
    /// Ranges against bare hyper, and batches against single requests.
    Range(range::Arguments),
    /// Three nodes against one.
    Cluster,
    /// The cost of metrics.
    Metrics,
    /// Writes for a long time at half the rate that can be held.
    Sustained(sustained::Arguments),
    /// Reads of more data than memory, against RocksDB behind the same HTTP server.
    Large(large::Arguments),
    /// The same load on Redis, etcd and nginx, as far as they are installed.
    Compare(compare::Arguments),
    /// More load than the node can take: goodput, refusals, and recovery.
    Overload(overload::Arguments),
    /// Three nodes under load and faults for a long time: nothing is lost, nothing grows.
    Soak(soak::Arguments),
    /// Every preset of `veche bench`, on one page.
    Presets(presets::Arguments),
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
}

fn main() -> ExitCode {
    match benchmark(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("veche-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn benchmark(options: &Options) -> BenchResult<()> {
    let command = std::env::args().collect::<Vec<_>>().join(" ");
    let mut table = ResultTable::new(MachineInfo::here(), command);
    println!("{}\n{options:?}\n", table.machine);
    let work_dir = WorkDir::create(options)?;
    match &options.command {
        Command::Http => {
            for layout in options.layouts() {
                table.section(layout.title);
                cost::rows(options, &work_dir, *layout, &mut table)?;
                tail::rows(options, &work_dir, *layout, &mut table)?;
            }
        }
        Command::Big => big::rows(options, &work_dir, &mut table)?,
        Command::Range(arguments) => range::rows(options, arguments, &work_dir, &mut table)?,
        Command::Cluster => cluster::rows(options, &work_dir, &mut table)?,
        Command::Metrics => {
            for layout in options.layouts() {
                table.section(layout.title);
                metrics::rows(options, &work_dir, *layout, &mut table)?;
            }
        }
        Command::Sustained(arguments) => sustained::rows(options, arguments, &work_dir, &mut table)?,
        Command::Large(arguments) => large::rows(options, arguments, &work_dir, &mut table)?,
        Command::Overload(arguments) => overload::run(options, arguments, &work_dir, &mut table)?,
        Command::Soak(arguments) => soak::run(options, arguments, &work_dir, &mut table)?,
        // These commands write their own reports.
        Command::Compare(arguments) => return compare::run(options, arguments, &work_dir),
        Command::Presets(arguments) => return presets::run(options, arguments, &work_dir),
    }
    println!("\n{table}");
    if let Some(path) = &options.json {
        fs::write(path, serde_json::to_vec_pretty(&table)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Options::command().debug_assert();
    }
}
