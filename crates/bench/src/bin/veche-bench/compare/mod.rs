//! The same load on veche and on others: bare hyper, Redis, etcd, nginx; and the generator beside wrk.
//!
//! **Promise.** Sides of one contest are asked for the same keys and values by as many connections, one request in flight
//! on each, in turns within one run; what an answer promises is said beside each. CPU time is that of all processes
//! of a side, what they forked included, until they are at rest again: a log that is rewritten or tables that are merged
//! after the last answer count for who left them to be done, and slow nobody else.
//!
//! **Mechanism.** One generator drives all who speak HTTP or RESP ([`bench::Protocol`]); etcd, name speaks gRPC, is driven
//! by a load program of its own with etcd's client ([`etcd_load`]), whose commands come from here. Afterwards values
//! are read back and compared on every side, and `strace` counts syncs while it is written to ([`proof`]).
//!
//! **Caveats.** Generator and servers share the machine. etcd's client takes more time than this generator: "generator
//! busy" tells when it was the limit of a rate. etcd never compacts its revisions here, name saves it time.

mod contest;
mod etcd_load;
mod generator;
mod others;
mod page;
mod proof;
mod report;
mod side;
mod stores;
mod tools;

use crate::servers::WorkDir;
use crate::table::write_report;
use crate::{BenchResult, Options};
use bench::machine::MachineInfo;
use contest::ComparisonRunner;
use report::{ComparisonReport, Section};
use std::path::PathBuf;
use tools::{Tool, Tools};

const ROUNDS: usize = 10;
const ROUNDS_QUICK: usize = 2;

/// What is compared, and where the report goes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Directory for compare.md, compare.html and compare.json
    #[arg(long, default_value = "target/compare")]
    out: PathBuf,
    /// Directory of etcd and its load program, as bench/run builds them
    #[arg(long, default_value = "bench/compare/etcd/bin")]
    etcd: PathBuf,
    /// Only these: reads, durable, os, three, generator
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<SectionName>,
}

/// A part of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum SectionName {
    Reads,
    Durable,
    Os,
    Three,
    Generator,
}

/// Compares, and writes the report.
pub(crate) fn run(options: &Options, arguments: &Arguments, work_dir: &WorkDir) -> BenchResult<()> {
    let tools = Tools::find(&arguments.etcd);
    for missing in &tools.missing {
        println!("  left out: {}, there is no {}; {}", missing.rows, missing.name, missing.remedy);
    }
    let mut report = ComparisonReport {
        machine: MachineInfo::here(),
        command: std::env::args().collect::<Vec<_>>().join(" "),
        rounds: options.rounds.unwrap_or(if options.quick { ROUNDS_QUICK } else { ROUNDS }),
        seconds: options.seconds(),
        versions: tools.found(),
        missing: tools.missing.clone(),
        sections: Vec::new(),
    };
    let ours = Tool::at("veche", work_dir.program().to_owned(), "--version");
    report.versions.splice(..0, ours);
    for layout in options.layouts().iter().copied() {
        let (rounds, seconds) = (report.rounds, report.seconds);
        let runner =
            ComparisonRunner { work_dir, tools: &tools, layout, rounds, seconds, keys: options.keys() };
        println!("{}", layout.title);
        report.sections.push(section(&runner, arguments)?);
    }
    write(&report, arguments)
}

fn section(runner: &ComparisonRunner<'_>, arguments: &Arguments) -> BenchResult<Section> {
    let is_selected = |name| arguments.only.is_empty() || arguments.only.contains(&name);
    let mut contests = Vec::new();
    if is_selected(SectionName::Reads) {
        contests.extend(runner.reads()?);
    }
    if is_selected(SectionName::Durable) {
        contests.push(runner.durable_writes()?);
    }
    if is_selected(SectionName::Os) {
        contests.push(runner.system_writes()?);
    }
    if is_selected(SectionName::Three) {
        contests.extend(runner.three_nodes()?);
    }
    if is_selected(SectionName::Generator) {
        contests.extend(runner.generators()?);
    }
    Ok(Section { layout: runner.layout.title, contests })
}

fn write(report: &ComparisonReport, arguments: &Arguments) -> BenchResult<()> {
    let markdown = report.markdown();
    println!("\n{markdown}");
    let json = serde_json::to_string_pretty(report)?;
    write_report(&arguments.out, "compare", &markdown, &page::page(report), &json)
}
