//! The same load on veche and on others: bare hyper, Redis, etcd, nginx; and the generator beside wrk.
//!
//! **Promise.** Sides of one contest are asked for the same keys and values by as many connections, one request in flight
//! on each, in turns within one run; what an answer promises is said beside each. CPU time is that of all processes
//! of a side, what they forked included, until they are at rest again: a log that is rewritten or tables that are merged
//! after the last answer count for who left them to be done, and slow nobody else.
//!
//! **Mechanism.** One generator drives all who speak HTTP or RESP ([`bench::Protocol`]); etcd, which speaks gRPC, is driven
//! by a load program of its own with etcd's client ([`etcd_load`]), whose orders come from here. Afterwards values
//! are read back and compared on every side, and `strace` counts syncs while it is written to ([`proof`]).
//!
//! **Caveats.** Generator and servers share the machine. etcd's client takes more time than this generator: "generator
//! busy" tells when it was the limit of a rate. etcd never compacts its revisions here, which saves it time.

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

use crate::servers::Home;
use crate::table::write_report;
use crate::{Options, Outcome};
use bench::machine::Machine;
use contest::Arena;
use report::{Report, Section};
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
    only: Vec<Which>,
}

/// A part of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Which {
    Reads,
    Durable,
    Os,
    Three,
    Generator,
}

/// Compares, and writes the report.
pub(crate) fn run(options: &Options, arguments: &Arguments, home: &Home) -> Outcome<()> {
    let tools = Tools::find(&arguments.etcd);
    for missing in &tools.missing {
        println!("  left out: {}, there is no {}; {}", missing.rows, missing.name, missing.remedy);
    }
    let mut report = Report {
        machine: Machine::here(),
        command: std::env::args().collect::<Vec<_>>().join(" "),
        rounds: options.rounds.unwrap_or(if options.quick { ROUNDS_QUICK } else { ROUNDS }),
        seconds: options.seconds(),
        versions: tools.found(),
        missing: tools.missing.clone(),
        sections: Vec::new(),
    };
    let ours = Tool::at("veche", home.program().to_owned(), "--version");
    report.versions.splice(..0, ours);
    for layout in options.layouts().iter().copied() {
        let (rounds, seconds) = (report.rounds, report.seconds);
        let arena = Arena { home, tools: &tools, layout, rounds, seconds, keys: options.keys() };
        println!("{}", layout.title);
        report.sections.push(section(&arena, arguments)?);
    }
    write(&report, arguments)
}

fn section(arena: &Arena<'_>, arguments: &Arguments) -> Outcome<Section> {
    let wants = |which| arguments.only.is_empty() || arguments.only.contains(&which);
    let mut contests = Vec::new();
    if wants(Which::Reads) {
        contests.extend(arena.reads()?);
    }
    if wants(Which::Durable) {
        contests.push(arena.durable_writes()?);
    }
    if wants(Which::Os) {
        contests.push(arena.system_writes()?);
    }
    if wants(Which::Three) {
        contests.extend(arena.three_nodes()?);
    }
    if wants(Which::Generator) {
        contests.extend(arena.generators()?);
    }
    Ok(Section { layout: arena.layout.title, contests })
}

fn write(report: &Report, arguments: &Arguments) -> Outcome<()> {
    let markdown = report.markdown();
    println!("\n{markdown}");
    let json = serde_json::to_string_pretty(report)?;
    write_report(&arguments.out, "compare", &markdown, &page::page(report), &json)
}
