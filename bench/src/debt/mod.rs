//! Compaction debt at half of an overload: whether it stays bounded.
//!
//! A closed loop floods one node. Then, without a pause, half of the rate that it reached in the
//! second half of the flood is applied to the same keys. Each second records the debt, the rate,
//! the 99th percentile and the refusals, for a picture beside that of the model in
//! `crates/engine/examples/debt.rs`.
//!
//! **Caveats.** The node is scraped once a second, which is a request too.

use crate::data::require_free_space;
use crate::measure::{BenchLoad, Sample, measure_lanes};
use crate::picture::{self, Panel};
use crate::scrape::Scrape;
use crate::servers::{CpuLayout, Durability, WorkDir};
use crate::table::{ResultTable, Threshold};
use crate::{BenchResult, Options};
use bench::keys::KEY_LEN;
use bench::recorder::micros;
use bench::units::{bytes, grouped, parse_time, span};
use bench::{LiveSecond, Operation, Pacing, RunHooks, StopFlag};
use lab::process::ServerProcess;
use lab::stats::rounds;
use serde::Serialize;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

const NAME: &str = "debt";
/// Maximum disk space by live entries during the flood: levels, tables being replaced, the log.
const SPACE_AMPLIFICATION: f64 = 2.5;
/// Maximum peak of the debt in the last quarter of the half load, by that in the third quarter.
const GROWTH_MAX: f64 = 1.25;

/// Parameters of the load.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DebtArguments {
    /// Duration of the flood
    #[arg(long, value_parser = parse_time, default_value = "10m")]
    flood: Duration,
    /// Duration of the half load
    #[arg(long, value_parser = parse_time, default_value = "30m")]
    half: Duration,
    /// Connections
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Bytes of a value
    #[arg(long, default_value_t = 1_000)]
    value_size: usize,
    /// Keys, uniform [default: 5 million]
    #[arg(long)]
    write_keys: Option<u64>,
    /// `--memory` of the node
    #[arg(long, default_value = "1GiB")]
    memory: String,
    /// Write a picture of each second to this file, as SVG
    #[arg(long)]
    picture: Option<PathBuf>,
}

/// Figures of one second.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Second {
    is_flood: bool,
    served: u64,
    /// Refused and failed requests.
    not_ok: u64,
    p99_us: f64,
    /// At the end of the second.
    debt_bytes: f64,
    level0_tables: f64,
}

/// Lines of the picture. The flood is grey.
const PANELS: [Panel<Second>; 4] = [
    Panel { title: "compaction debt, GB", color: "#06c", of: |second| second.debt_bytes / 1e9 },
    Panel { title: "writes, thousands per second", color: "#080", of: |second| second.served as f64 / 1e3 },
    Panel { title: "p99 of the seconds, ms", color: "#a50", of: |second| second.p99_us / 1e3 },
    Panel { title: "refused writes per second", color: "#c33", of: |second| second.not_ok as f64 },
];

/// Measures, and adds the rows.
pub(crate) fn rows(
    options: &Options,
    arguments: &DebtArguments,
    work_dir: &WorkDir,
    table: &mut ResultTable,
) -> BenchResult<()> {
    let quick = |given: Duration| if options.quick { given.min(Duration::from_secs(4)) } else { given };
    let (flood, half) = (quick(arguments.flood), quick(arguments.half));
    let keys = arguments.write_keys.unwrap_or(if options.quick { 20_000 } else { 5_000_000 });
    let live_bytes = keys as f64 * (KEY_LEN + arguments.value_size) as f64;
    require_free_space(work_dir.dir(), (live_bytes * SPACE_AMPLIFICATION) as u64)?;
    let layout = CpuLayout::PINNED;
    let server = work_dir.veche(NAME, layout, Durability::Sync, Some(&arguments.memory))?;
    let stop = StopFlag::on_interrupt()?;
    table.section(&format!(
        "PUT of {} x{} to {} keys, durable, --memory {}; {}",
        bytes(arguments.value_size as f64),
        arguments.connections,
        grouped(keys),
        arguments.memory,
        layout.title
    ));
    let load = |pacing, seed| BenchLoad {
        operation: Operation::Put,
        connections: arguments.connections,
        pacing,
        keys,
        value_bytes: arguments.value_size,
        seed,
    };

    let (flooded, mut seconds) = run(&server, layout, load(Pacing::Closed, 1), flood, &stop)?;
    let settled = &seconds[seconds.len() / 2..];
    let reached = settled.iter().map(|second| second.served).sum::<u64>() as f64 / settled.len() as f64;
    let pacing = Pacing::at(reached / 2.0);
    println!("  {pacing:?} for {}", span(half));
    let (sample, rest) = run(&server, layout, load(pacing, 2), half, &stop)?;
    seconds.extend(&rest);

    table.measured("veche", "flood", &[flooded]);
    table.measured("veche", "half", &[sample]);
    add_rows(table, reached, &seconds, &rest);
    table.add_details("seconds", serde_json::to_value(&seconds)?);
    if let Some(path) = &arguments.picture {
        fs::write(path, picture::draw(&PANELS, |second| second.is_flood, &seconds))?;
    }
    Ok(())
}

/// Applies a load. Returns the figures of each second.
fn run(
    server: &ServerProcess,
    layout: CpuLayout,
    load: BenchLoad,
    duration: Duration,
    stop: &StopFlag,
) -> BenchResult<(Sample, Vec<Second>)> {
    let mut seconds: Vec<Second> = Vec::new();
    let mut look = |live: &LiveSecond| {
        if live.second < 0 || seconds.len() as u64 == duration.as_secs() {
            return;
        }
        let last = seconds.last().copied().unwrap_or_default();
        let scrape = Scrape::of(server).ok();
        let second = Second {
            is_flood: load.pacing == Pacing::Closed,
            served: live.row.served(),
            not_ok: live.row.not_ok(),
            p99_us: micros(live.row.latency.quantile(0.99)),
            debt_bytes: scrape.as_ref().map_or(last.debt_bytes, Scrape::debt_bytes),
            level0_tables: scrape
                .map_or(last.level0_tables, |scrape| scrape.sum("veche_level_tables", "level=\"0\"")),
        };
        seconds.push(second);
        if seconds.len().is_multiple_of(10) {
            println!(
                "  {:>5} s {:>8}/s, {:>6} not ok, p99 {:>8.0} us, debt {:>9}, level 0: {:>3} tables",
                seconds.len(),
                second.served,
                second.not_ok,
                second.p99_us,
                bytes(second.debt_bytes),
                second.level0_tables as u64
            );
        }
    };
    let hooks = RunHooks { stop, on_second: &mut look };
    let lanes = vec![load.lane(NAME, server.protocol())];
    let (sample, _) = measure_lanes(std::slice::from_ref(server), layout, duration, lanes, hooks)?;
    if stop.is_set() {
        return Err("interrupted".into());
    }
    if seconds.is_empty() {
        return Err("no second was measured".into());
    }
    Ok((sample, seconds))
}

fn add_rows(table: &mut ResultTable, reached: f64, all: &[Second], rest: &[Second]) {
    let flood = &all[..all.len() - rest.len()];
    let [first, second, third, last] = quarters(rest).map(debt_max);
    let note = format!("half of it: {}", grouped((reached / 2.0) as u64));
    table.row("flood: writes/s in its second half", Threshold::None, rounds(&[reached]), note);
    let gb = |bytes: f64| rounds(&[bytes / 1e9]);
    table.row("flood: compaction debt, GB, peak", Threshold::None, gb(debt_max(flood)), String::new());
    let peaks = [first, second, third, last].map(bytes).join(", ");
    table.row("half: compaction debt, GB, peak of the last quarter", Threshold::None, gb(last), peaks);
    table.row(
        "half: that by the peak of the quarter before",
        Threshold::AtMost(GROWTH_MAX),
        rounds(&[last / third.max(1.0)]),
        String::new(),
    );
    let not_ok = |seconds: &[Second]| seconds.iter().map(|second| second.not_ok).sum::<u64>();
    let note = format!("in the flood: {}", not_ok(flood));
    let refused = rounds(&[not_ok(rest) as f64]);
    table.row("half: writes refused or failed", Threshold::AtMost(0.0), refused, note);
}

fn debt_max(seconds: &[Second]) -> f64 {
    seconds.iter().map(|second| second.debt_bytes).fold(0.0, f64::max)
}

fn quarters(seconds: &[Second]) -> [&[Second]; 4] {
    let (first, second) = seconds.split_at(seconds.len() / 2);
    let ((a, b), (c, d)) = (first.split_at(first.len() / 2), second.split_at(second.len() / 2));
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarters_are_consecutive_and_cover_everything() {
        let seconds: Vec<_> =
            (0..10).map(|debt| Second { debt_bytes: f64::from(debt), ..Second::default() }).collect();
        assert_eq!(quarters(&seconds).map(<[Second]>::len), [2, 3, 2, 3]);
        assert_eq!(quarters(&seconds).map(debt_max), [1.0, 4.0, 6.0, 9.0]);
    }
}
