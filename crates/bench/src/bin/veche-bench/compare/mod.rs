//! The same load on veche and on other servers: bare hyper, Redis, etcd, nginx; and `veche bench`
//! compared with wrk.
//!
//! **Promise.** The sides of a contest receive the same keys and values over the same number of
//! connections, one request in flight on each, in interleaved rounds of one run. The guarantee of a
//! response is stated for each side. CPU time covers all processes of a side, including forked
//! ones, until they are idle again: rewriting a log or merging tables after the last response is
//! charged to the side that caused it, and slows no other side.
//!
//! **Mechanism.** One generator drives all servers with HTTP or RESP ([`bench::Protocol`]). etcd,
//! which uses gRPC, is driven by a load program with etcd's own client ([`etcd_load`]), controlled
//! from here. Afterwards values are read back and compared on every side, and `strace` counts syncs
//! during writes ([`proof`]).
//!
//! **Caveats.** The generator and the servers share the machine. etcd's client uses more CPU time
//! than this generator: "generator busy" shows where it limited a rate. etcd never compacts its
//! revisions here, which saves it time.

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

/// Selection of the comparison, and destination of the report.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Directory for compare.md, compare.html and compare.json
    #[arg(long, default_value = "target/compare")]
    out: PathBuf,
    /// Directory of etcd and its load program, as bench/run builds them
    #[arg(long, default_value = "bench/compare/etcd/bin")]
    etcd: PathBuf,
    /// Run only these: reads, durable, os, three, generator
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<SectionName>,
}

/// Section of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum SectionName {
    Reads,
    Durable,
    Os,
    Three,
    Generator,
}

/// Runs the comparison, and writes the report.
pub(crate) fn run(options: &Options, arguments: &Arguments, work_dir: &WorkDir) -> BenchResult<()> {
    let tools = Tools::find(&arguments.etcd);
    for missing in &tools.missing {
        println!("  omitted: {}; {} is not installed: {}", missing.rows, missing.name, missing.remedy);
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
