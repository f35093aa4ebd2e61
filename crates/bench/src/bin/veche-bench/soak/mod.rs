//! An hour of mixed load on three nodes that are killed, hung and filled up: whether anything is lost, grows or ends.
//!
//! **Promise.** Each key has one client that writes it, so what a key must hold is known without searching for an order
//! ([`register`]); every key is read back from all three replicas in the end. A promise that is broken is a row that
//! misses its target, and the command fails.
//!
//! **Mechanism.** [`client`]s write, delete and read through whichever node answers, with every mix of `ack` and `from`.
//! The [`nemesis`] does one thing at a time: kills a node and starts it again, hangs one and lets it go on, fills the small disk
//! of the last one and frees it. [`monitor`] looks at memory and files once a second.
//!
//! **Caveats.** Nodes on one machine have one clock, and their links run over loopback: skewed clocks and partitions are the
//! simulator's. Where no small disk can be mounted, as takes root, none is filled, which is said. Ports are taken from
//! those that the system does not hand out, so that a node that is down finds its own again.

mod client;
mod counts;
mod monitor;
mod nemesis;
mod nodes;
mod register;

use crate::data::require_free_space;
use crate::servers::WorkDir;
use crate::table::{ResultTable, Threshold};
use crate::{BenchResult, Options};
use bench::StopFlag;
use bench::stats::rounds;
use bench::threads::join_scoped;
use bench::units::bytes;
use client::Client;
use counts::SoakCounts;
use monitor::Samples;
use nemesis::Faults;
use nodes::Nodes;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

const NODES: usize = 3;
const CLIENTS: u64 = 8;
const QUICK: Duration = Duration::from_secs(40);
/// Live data is small; this is for logs and tables that are not gone yet.
const ROOM_BYTES: u64 = 2 << 30;
/// In the last quarter of the run, against the second, beyond what a table or two make of it.
const GROWTH_MAX: f64 = 1.25;
const MEMORY_SLACK: f64 = (32 << 20) as f64;
const DISK_SLACK: f64 = (64 << 20) as f64;
const FILES_SLACK: f64 = 32.0;

/// How long, and where the report goes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Minutes of load [default: 60]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=24 * 60))]
    minutes: Option<u64>,
    /// `--memory` of each node
    #[arg(long, default_value = "128MiB")]
    memory: String,
    /// What the load and the faults are drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory for soak.md, soak.html and soak.json
    #[arg(long, default_value = "target/soak")]
    out: PathBuf,
}

/// Loads, and writes the report. Fails when a promise is broken.
pub(crate) fn run(
    options: &Options,
    arguments: &Arguments,
    work_dir: &WorkDir,
    table: &mut ResultTable,
) -> BenchResult<()> {
    require_free_space(work_dir.dir(), ROOM_BYTES)?;
    let minutes = |minutes| Duration::from_secs(60 * minutes);
    let time = arguments.minutes.map_or(if options.quick { QUICK } else { minutes(60) }, minutes);
    let nodes = Nodes::start(work_dir, NODES, &arguments.memory)?;
    let (stop, interrupted) = (StopFlag::default(), StopFlag::on_interrupt()?);
    let (counts, samples, faults, raged) = thread::scope(|scope| {
        let clients = (0..CLIENTS).map(|number| {
            let client = Client::new(number, arguments.seed, nodes.addresses());
            let stop = &stop;
            scope.spawn(move || client.run(stop))
        });
        let clients: Vec<_> = clients.collect();
        let watch = scope.spawn(|| monitor::monitor(&nodes, &stop));
        let ends = Instant::now() + time;
        let mut faults = Faults::default();
        let raged = nemesis::run_faults(&nodes, arguments.seed, ends, &interrupted, &mut faults);
        println!("  every key is read back");
        stop.set();
        let counts = clients.into_iter().map(join_scoped).fold(SoakCounts::default(), SoakCounts::and);
        let samples = join_scoped(watch);
        (counts, samples, faults, raged)
    });
    table.section(&format!("{NODES} nodes, {CLIENTS} clients, {} s; {faults}", time.as_secs()));
    counts.rows(table);
    node_rows(nodes.unexpected_exits(), raged.err().map(|error| error.to_string()), table);
    growth_rows(&samples, table);
    table.write(&arguments.out, "soak", "veche under load and faults for a long time")?;
    match table.missed() {
        missed if missed.is_empty() => Ok(()),
        missed => Err(format!("broken: {}", missed.join("; ")).into()),
    }
}

/// What nodes did by themselves, and whether they came through every fault.
fn node_rows(ended: u64, failed: Option<String>, table: &mut ResultTable) {
    let failures = u64::from(failed.is_some());
    for (measure, count, note) in [
        ("nodes that ended by themselves", ended, String::new()),
        ("faults that a node did not come through", failures, failed.unwrap_or_default()),
    ] {
        table.row(measure, Threshold::AtMost(0.0), rounds(&[count as f64]), note);
    }
}

fn growth_rows(samples: &Samples, table: &mut ResultTable) {
    for node in 0..NODES {
        let of_node = &samples.nodes[node];
        let kinds = [
            ("resident memory", &of_node.resident, MEMORY_SLACK, true),
            ("bytes on disk", &of_node.bytes, DISK_SLACK, true),
            ("files", &of_node.files, FILES_SLACK, false),
        ];
        for (what, values, slack, is_bytes) in kinds {
            let show = |value: f64| if is_bytes { bytes(value) } else { format!("{value:.0}") };
            let growth = monitor::growth(values, slack);
            let most = values.iter().copied().fold(0.0, f64::max);
            let note = growth.as_ref().map_or("too few samples".to_owned(), |growth| {
                format!("{}, {} before; at most {}", show(growth.last), show(growth.second), show(most))
            });
            let value = growth.and_then(|growth| rounds(&[growth.ratio]));
            table.row(&format!("node {node}: {what}, growth"), Threshold::AtMost(GROWTH_MAX), value, note);
        }
    }
    table.add_details("samples", serde_json::to_value(samples).unwrap_or_default());
}
