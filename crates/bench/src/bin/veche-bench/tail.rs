//! Tail latency of reads while writes cause flushes and compactions.

use crate::measure::{Load, measure, preload};
use crate::servers::{CpuLayout, Durability, WorkDir, numbers_about, status};
use crate::table::{ResultTable, Threshold};
use crate::{BenchResult, Options};
use bench::keys::KeyOrder;
use bench::stats::{median, ratio};
use bench::{Operation, Pacing};
use serde_json::Value;

const VALUE_BYTES: usize = 100;
const WRITTEN_BYTES: usize = 1024;
/// Memory budget: small, so that the server flushes often.
const MEMORY: &str = "256MiB";
const CONNECTIONS: usize = 64;
const WRITERS: usize = 16;
const WRITES_PER_SECOND: u64 = 10_000;
/// Words in the status paths of flushes, compactions and tables by level.
const WORK: [&str; 3] = ["flush", "compact", "levels"];
/// Factor of the duration of a round, so that flushes fall into it.
const ROUND_FACTOR: f64 = 2.0;

/// Measures, and adds the row.
pub(crate) fn rows(
    options: &Options,
    work_dir: &WorkDir,
    layout: CpuLayout,
    table: &mut ResultTable,
) -> BenchResult<()> {
    let name = format!("tail-{}", layout.server_threads);
    let server = work_dir.veche(&name, layout, Durability::Sync, Some(MEMORY))?;
    preload(&server, layout, KeyOrder::Sequential, options.keys(), VALUE_BYTES)?;
    let load = |operation, connections, pacing, value_bytes, seed| Load {
        operation,
        connections,
        pacing,
        keys: options.keys(),
        value_bytes,
        seed,
    };
    let seconds = options.seconds() * ROUND_FACTOR;
    let top = measure(
        &server,
        layout,
        options.seconds(),
        &[load(Operation::Get, CONNECTIONS, Pacing::Closed, VALUE_BYTES, 0)],
    )?;
    let rate = Pacing::at(top.per_second / 2.0);
    println!(
        "  top rate {:.0} GET/s; reads at half of it, {WRITES_PER_SECOND} writes/s of {WRITTEN_BYTES} B",
        top.per_second
    );
    let before = status(&server)?;
    let (mut quiet, mut loud) = (Vec::new(), Vec::new());
    for round in 0..options.rounds() as u64 {
        let reads = load(Operation::Get, CONNECTIONS, rate, VALUE_BYTES, round);
        let writes = load(Operation::Put, WRITERS, Pacing::Rate(WRITES_PER_SECOND), WRITTEN_BYTES, !round);
        quiet.push(measure(&server, layout, seconds, &[reads])?.p999_us);
        loud.push(measure(&server, layout, seconds, &[reads, writes])?.p999_us);
        println!(
            "  round {round}: p99.9 quiet {:.0} us, beside writes {:.0} us",
            quiet[quiet.len() - 1],
            loud[loud.len() - 1]
        );
    }
    let note =
        format!("us: {:.0} / {:.0}; {}", median(&loud), median(&quiet), work(&before, &status(&server)?));
    table.row(
        "GET at half the top rate: p99.9, beside writes / quiet",
        Threshold::AtMost(3.0),
        ratio(&loud, &quiet),
        note,
    );
    Ok(())
}

/// Counters of flushes and compactions that grew between two statuses, as evidence that there were
/// some.
fn work(before: &Value, after: &Value) -> String {
    let before = numbers_about(before, &WORK);
    let grown = numbers_about(after, &WORK).into_iter().filter_map(|(path, now)| {
        let then = before.iter().find(|(old, _)| *old == path).map_or(0.0, |(_, then)| *then);
        (now > then).then(|| format!("{path} +{}", now - then))
    });
    let grown: Vec<String> = grown.collect();
    if grown.is_empty() {
        "NOT PROVEN: the status shows no flush or compaction".to_owned()
    } else {
        grown.join(", ")
    }
}
