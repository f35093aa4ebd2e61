//! Sustained writes: whether the tail latency of the last minute is that of the first.
//!
//! First the highest sustainable rate is searched: a closed loop for the duration of a measurement,
//! then, unless that held, constant rates below its throughput. A rate *holds* if nothing is
//! refused, nothing fails, and the compaction debt stops growing. After that has settled, half of
//! the rate is applied to the same data.
//!
//! **Caveats.** The node is scraped once a second, which is a request too.

mod hold;
mod minute;

use crate::data::{require_free_space, wait_until_settled};
use crate::servers::{CpuLayout, Durability, WorkDir};
use crate::table::{ResultTable, Threshold};
use crate::{BenchResult, Options};
use bench::keys::KEY_LEN;
use bench::units::{bytes, grouped, parse_bytes};
use bench::{Pacing, StopFlag};
use hold::HoldResult;
use lab::process::{ServerProcess, resident_memory};
use lab::stats::{median, rounds};
use std::time::Duration;

const NAME: &str = "sustained";
const VALUE_BYTES: usize = 2048;
/// Fraction of the sustainable rate at which the tail is measured.
const CALM: f64 = 0.5;
/// Factor from the throughput of a rate that did not hold to the next rate.
const STEP_BACK: f64 = 0.85;
/// Maximum number of rates to try.
const TRIES_MAX: usize = 8;
/// Maximum ratio of table size to live entries during compaction.
const SPACE_AMPLIFICATION: f64 = 1.3;
const SETTLE_PATIENCE: Duration = Duration::from_secs(900);

/// Parameters of the writes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SustainedArguments {
    /// Minutes of each measurement, 2 to 30 [default: 10]
    #[arg(long, value_parser = clap::value_parser!(u64).range(2..=30), default_value_t = 10)]
    minutes: u64,
    /// Keys, uniform [default: 10 million]
    #[arg(long)]
    write_keys: Option<u64>,
    /// `--memory` of the node
    #[arg(long, default_value = "1GiB")]
    memory: String,
    /// The rate that holds, in writes a second, where it is known
    #[arg(long)]
    holds: Option<u64>,
    /// Run the node on one core with one I/O thread, and the generator on the other
    #[arg(long)]
    pinned: bool,
}

/// Constant parameters of the measurements.
struct Writes<'a> {
    server: &'a ServerProcess,
    work_dir: &'a WorkDir,
    layout: CpuLayout,
    keys: u64,
    /// Length of a "minute" in seconds; shorter in a smoke run.
    minute_s: u64,
    minutes: u64,
    /// Set by Ctrl-C, so that servers and files are cleaned up.
    interrupted: StopFlag,
}

/// Measures, and adds the rows.
pub(crate) fn rows(
    options: &Options,
    arguments: &SustainedArguments,
    work_dir: &WorkDir,
    table: &mut ResultTable,
) -> BenchResult<()> {
    let keys = arguments.write_keys.unwrap_or(if options.quick { 20_000 } else { 10_000_000 });
    let entry_bytes = (KEY_LEN + VALUE_BYTES) as f64;
    require_free_space(work_dir.dir(), (keys as f64 * entry_bytes * SPACE_AMPLIFICATION) as u64)?;
    let layout = if arguments.pinned { CpuLayout::PINNED } else { CpuLayout::UNPINNED };
    let server = work_dir.veche(NAME, layout, Durability::Sync, Some(&arguments.memory))?;
    let minutes = if options.quick { arguments.minutes.min(4) } else { arguments.minutes };
    let minute_s = if options.quick { 2 } else { 60 };
    let writes = Writes {
        server: &server,
        work_dir,
        layout,
        keys,
        minute_s,
        minutes,
        interrupted: StopFlag::on_interrupt()?,
    };
    table.section(&format!(
        "PUT of 2 KiB to {} keys, durable, --memory {}; {}",
        grouped(keys),
        arguments.memory,
        layout.title
    ));
    let holds = match arguments.holds {
        Some(rate) => rate as f64,
        None => writes.find(table)?,
    };
    wait_until_settled(&server, SETTLE_PATIENCE)?;
    let rate = ((holds * CALM) as u64).max(1);
    println!("  half of {holds:.0}/s for {minutes} minutes");
    let held = writes.hold(Pacing::Rate(rate))?;
    table.add_details("at half the rate", serde_json::to_value(&held.minutes)?);
    table.row(
        "sustainable rate, writes/s",
        Threshold::None,
        rounds(&[holds]),
        format!("measured below at {}/s", grouped(rate)),
    );
    table.measured("veche", "half of the sustainable rate", &[held.sample]);
    add_rows(table, &held);
    let memory = resident_memory(server.pid())?;
    let budget = parse_bytes(&arguments.memory)? as f64;
    table.row(
        "peak resident memory / --memory",
        Threshold::None,
        rounds(&[memory.peak as f64 / budget]),
        format!("now {}, anonymous {}", bytes(memory.now as f64), bytes(memory.anonymous as f64)),
    );
    Ok(())
}

fn add_rows(table: &mut ResultTable, held: &HoldResult) {
    let first = held.minutes[0].p999_us;
    let mut later: Vec<f64> = held.minutes[1..].iter().map(|minute| minute.p999_us).collect();
    later.sort_by(f64::total_cmp);
    let worst = later.last().copied().unwrap_or(f64::NAN);
    let note = |us: f64| format!("us: {us:.0} / {first:.0}");
    let against_first = |us: f64| rounds(&[us / first]);
    table.row(
        "p99.9: whole run / first minute",
        Threshold::AtMost(2.0),
        against_first(held.sample.p999_us),
        note(held.sample.p999_us),
    );
    let ratios: Vec<f64> = later.iter().map(|us| us / first).collect();
    table.row(
        "p99.9: median of the later minutes / first minute",
        Threshold::AtMost(2.0),
        rounds(&ratios),
        note(median(&later)),
    );
    table.row("p99.9: worst later minute / first minute", Threshold::None, against_first(worst), note(worst));
    let silent: u64 = held.minutes.iter().map(|minute| minute.silent_s).sum();
    let longest = format!("longest gap: {} s", held.longest_silence_s);
    table.row("seconds without a response", Threshold::AtMost(0.0), rounds(&[silent as f64]), longest);
    let refused = format!("{:.3} % of the rate kept", held.kept.unwrap_or(1.0) * 100.0);
    table.row("writes refused or failed", Threshold::AtMost(0.0), rounds(&[held.not_ok as f64]), refused);
    let [wal, flushed, compacted] = held.written_bytes;
    let note = format!(
        "log {:.2}, flush {:.2}, compaction {:.2}; all write calls {:.2}",
        wal / held.accepted_bytes,
        flushed / held.accepted_bytes,
        compacted / held.accepted_bytes,
        held.called_bytes / held.accepted_bytes
    );
    let amplification = (wal + flushed + compacted) / held.accepted_bytes;
    table.row("bytes written per byte accepted", Threshold::None, rounds(&[amplification]), note);
    let debts: Vec<f64> = held.minutes.iter().map(|minute| minute.debt_bytes_max / 1e6).collect();
    let note = if held.is_debt_bounded { "bounded" } else { "NOT BOUNDED" };
    table.row("compaction debt, peak of each minute, MB", Threshold::None, rounds(&debts), note.to_owned());
    let note = format!("generator busy {:.0} %", held.sample.generator_busy * 100.0);
    table.row("CPU time per request, us", Threshold::None, rounds(&[held.sample.cpu_us]), note);
}

impl Writes<'_> {
    /// Highest rate that holds, among those that are tried.
    fn find(&self, table: &mut ResultTable) -> BenchResult<f64> {
        let mut pacing = Pacing::Closed;
        for number in 1..=TRIES_MAX {
            println!("  trial {number}: {pacing:?}");
            let held = self.hold(pacing)?;
            table.add_details(&format!("try {number}"), serde_json::to_value(&held.minutes)?);
            let reached = held.reached_in_the_end();
            match held.broken() {
                None => return Ok(reached),
                Some(why) => println!("  {reached:.0}/s is not sustained: {why}"),
            }
            pacing = Pacing::at(reached * STEP_BACK);
            wait_until_settled(self.server, SETTLE_PATIENCE)?;
        }
        Err(format!("none of {TRIES_MAX} rates holds").into())
    }
}
