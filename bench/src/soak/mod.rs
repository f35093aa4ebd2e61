//! Soak test: mixed load for an hour on three nodes that are killed, hung, and run out of disk
//! space. It detects lost data, growth, and exits.
//!
//! **Promise.** Each key is written by one client, so its expected value is known without searching
//! for an order ([`register`]). At the end every key is read back from all three replicas. Each
//! broken promise is a row that misses its threshold, and the command fails.
//!
//! **Mechanism.** [`client`]s write, delete and read through any node that answers, with various
//! `ack` and `from`. The [`nemesis`] injects one fault at a time: it kills a node and restarts it,
//! hangs one and continues it, or fills the small disk of the last node and frees it. [`monitor`]
//! samples memory and files once a second.
//!
//! **Caveats.** Nodes on one machine share a clock, and their links use loopback: skewed clocks and
//! partitions are left to the simulator. Mounting the small disk requires root; without it no disk
//! is filled, which is printed. Ports are taken from outside the ephemeral range, so that a
//! restarted node gets its port again.

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
use bench::threads::join_scoped;
use bench::units::bytes;
use client::SoakClient;
use counts::SoakCounts;
use lab::stats::rounds;
use monitor::Samples;
use nemesis::Faults;
use nodes::Nodes;
use std::thread;
use std::time::{Duration, Instant};

const NODES: usize = 3;
const CLIENTS: u64 = 8;
const QUICK: Duration = Duration::from_secs(40);
/// Disk space for logs and obsolete tables, in bytes; live data is small.
const ROOM_BYTES: u64 = 2 << 30;
/// Maximum growth from the second to the last quarter of the run, beyond the slack for a table or
/// two.
const GROWTH_MAX: f64 = 1.25;
const MEMORY_SLACK: f64 = (32 << 20) as f64;
const DISK_SLACK: f64 = (64 << 20) as f64;
const FILES_SLACK: f64 = 32.0;

/// Parameters of the test.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SoakArguments {
    /// Minutes of load [default: 60]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=24 * 60))]
    minutes: Option<u64>,
    /// `--memory` of each node
    #[arg(long, default_value = "128MiB")]
    memory: String,
    /// Seed of the load and the faults
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs the test, and adds a figure for each promise.
pub(crate) fn run(
    options: &Options,
    arguments: &SoakArguments,
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
            let client = SoakClient::new(number, arguments.seed, nodes.addresses());
            let stop = &stop;
            scope.spawn(move || client.run(stop))
        });
        let clients: Vec<_> = clients.collect();
        let watch = scope.spawn(|| monitor::monitor(&nodes, &stop));
        let ends = Instant::now() + time;
        let mut faults = Faults::default();
        let raged = nemesis::run_faults(&nodes, arguments.seed, ends, &interrupted, &mut faults);
        println!("  reading every key back");
        stop.set();
        let counts = clients.into_iter().map(join_scoped).fold(SoakCounts::default(), SoakCounts::and);
        let samples = join_scoped(watch);
        (counts, samples, faults, raged)
    });
    table.section(&format!("{NODES} nodes, {CLIENTS} clients, {} s; {faults}", time.as_secs()));
    counts.rows(table);
    node_rows(nodes.unexpected_exits(), raged.err().map(|error| error.to_string()), table);
    growth_rows(&samples, table);
    Ok(())
}

/// Adds the rows of unexpected exits, and of faults that a node did not survive.
fn node_rows(ended: u64, failed: Option<String>, table: &mut ResultTable) {
    let failures = u64::from(failed.is_some());
    for (measure, count, note) in [
        ("unexpected exits of nodes", ended, String::new()),
        ("faults after which a node did not recover", failures, failed.unwrap_or_default()),
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
            table.row(&format!("node {node}: growth of {what}"), Threshold::AtMost(GROWTH_MAX), value, note);
        }
    }
    table.add_details("samples", serde_json::to_value(samples).unwrap_or_default());
}
