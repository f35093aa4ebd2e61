//! The HTTP rows of the benchmark, by one command: veche against the bare hyper floor, in one run.
//!
//! Every number is a ratio within this run, the median of interleaved rounds. First table: the server on core 0
//! with one I/O thread, the generator on core 1. Second: nothing pinned, two threads each. `--big` adds the
//! rows on a data set much larger than memory. See `bench/README.md` for what each row means.

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

use bench::machine::Machine;
use clap::{Parser, Subcommand};
use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use table::Table;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What a step gives back, or why the benchmark stops.
type Outcome<T> = Result<T, Box<dyn Error>>;

/// Benchmarks veche over HTTP against a bare hyper server.
#[derive(Clone, Debug, Parser)]
struct Options {
    #[command(subcommand)]
    command: Option<Command>,
    /// A smoke run: seconds instead of minutes, numbers without meaning.
    #[arg(long, global = true)]
    quick: bool,
    /// Also the rows on 10 GB.
    #[arg(long)]
    big: bool,
    /// Only the big rows.
    #[arg(long, conflicts_with = "big")]
    only_big: bool,
    /// Only the rows of a cluster of three nodes.
    #[arg(long, conflicts_with_all = ["big", "only_big"])]
    cluster: bool,
    /// Only the rows of ranges and batches.
    #[arg(long, conflicts_with_all = ["only_big", "cluster"])]
    range: bool,
    /// Only the rows of what metrics cost.
    #[arg(long, conflicts_with_all = ["big", "only_big", "cluster", "range"])]
    metrics_cost: bool,
    /// Skip the second, unpinned table.
    #[arg(long)]
    pinned_only: bool,
    /// Rounds of each measurement.
    #[arg(long, global = true)]
    rounds: Option<usize>,
    /// Seconds of each measurement in a round.
    #[arg(long, global = true)]
    seconds: Option<f64>,
    /// Keys of the small data set.
    #[arg(long)]
    keys: Option<u64>,
    /// Keys of the big data set, 1 KiB each.
    #[arg(long)]
    big_keys: Option<u64>,
    /// `--memory` of the server whose tail is measured: small, so that it flushes often.
    #[arg(long, default_value = "256MiB")]
    tail_memory: String,
    /// Writes of 1 KiB a second beside the reads whose tail is measured.
    #[arg(long, default_value_t = 10_000)]
    tail_writes: u64,
    /// Where data directories and logs go; a directory of its own is made in it and removed at the end.
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

/// Benchmarks of their own, instead of the rows over HTTP.
#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Writes for a long time at half the rate that can be held.
    Sustained(sustained::Arguments),
    /// Reads of more data than memory, against RocksDB behind the same HTTP shell.
    Large(large::Arguments),
    /// The same load on Redis, etcd and nginx, as far as they are there.
    Compare(compare::Arguments),
    /// More than the node can take: what is served, refused, and how soon it is well again.
    Overload(overload::Arguments),
    /// Three nodes under load and faults for a long time: nothing lost, nothing that grows.
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

    /// Entries of a range: a gigabyte of values of 1 KiB.
    fn range_keys(&self) -> u64 {
        self.keys.unwrap_or(if self.quick { 20_000 } else { 1_000_000 })
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

fn benchmark(options: &Options) -> Outcome<()> {
    let command = std::env::args().collect::<Vec<_>>().join(" ");
    let mut table = Table::new(Machine::here(), command);
    println!("{}\n{options:?}\n", table.machine);
    let mut layouts = vec![servers::Layout::PINNED];
    if !options.pinned_only {
        layouts.push(servers::Layout::UNPINNED);
    }
    let home = servers::Home::make(options)?;
    if let Some(command) = &options.command {
        match command {
            Command::Compare(arguments) => return compare::run(options, arguments, &home),
            Command::Sustained(arguments) => sustained::rows(options, arguments, &home, &mut table)?,
            Command::Large(arguments) => large::rows(options, arguments, &home, &mut table)?,
            Command::Overload(arguments) => overload::run(options, arguments, &home, &mut table)?,
            Command::Soak(arguments) => soak::run(options, arguments, &home, &mut table)?,
            Command::Presets(arguments) => presets::run(options, arguments, &home)?,
        }
    } else if options.cluster {
        table.section("three nodes on core 0 with one I/O thread each, generator on core 1; 2 of 3, durable");
        cluster::rows(options, &home, &mut table)?;
    } else if options.range {
        range::rows(options, &home, &layouts, &mut table)?;
    } else if options.metrics_cost {
        for layout in layouts {
            table.section(layout.title);
            metrics::rows(options, &home, layout, &mut table)?;
        }
    } else if !options.only_big {
        for layout in layouts {
            table.section(layout.title);
            cost::rows(options, &home, layout, &mut table)?;
            tail::rows(options, &home, layout, &mut table)?;
        }
    }
    if (options.big || options.only_big) && !options.range {
        table.section("10 GB data set, --memory 512MiB (size as given)");
        big::rows(options, &home, &mut table)?;
    }
    println!("\n{table}");
    if let Some(path) = &options.json {
        fs::write(path, serde_json::to_vec_pretty(&table)?)?;
    }
    Ok(())
}
