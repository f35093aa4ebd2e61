//! Writes that do not end: whether the tail of the last minute is that of the first.
//!
//! First the rate that holds is looked for: a closed loop for as long as the measurement, then, unless that held, constant
//! rates below what it reached. A rate *holds* when nothing is refused, nothing fails, and the debt of compaction does not
//! grow any more in the end. Then, once what that left behind is settled, half of it is kept up, on the same data.
//!
//! **Caveats.** The node is asked about itself once a second; that is a request, too.

use crate::data::{RESERVE_BYTES, free_bytes, require_room, settle};
use crate::measure::{Load, Sample, measure_watched};
use crate::scrape::Scrape;
use crate::servers::{Durability, Home, Layout, number_at, status};
use crate::table::{Table, Target};
use crate::{Options, Outcome};
use bench::keys::KEY_LEN;
use bench::process::{Server, resident};
use bench::recorder::micros;
use bench::stats::{median, rounds};
use bench::timeline::{Buckets, Row, Silence};
use bench::units::{bytes, grouped};
use bench::{LiveSecond, Operation, Pacing, Stop, Watch};
use serde::Serialize;
use std::time::Duration;

const NAME: &str = "sustained";
const VALUE_BYTES: usize = 2048;
const CONNECTIONS: usize = 64;
/// The part of the rate that holds at which the tail is measured.
const CALM: f64 = 0.5;
/// The part of what a rate reached that is tried next when it did not hold.
const STEP_BACK: f64 = 0.85;
/// Rates that are tried before it is given up.
const TRIES_MAX: usize = 5;
/// A constant rate is kept when so much of it is answered.
const KEPT_MIN: f64 = 0.999;
/// Debt is bounded when its peak in the last quarter is at most so many times that of the quarter before, and a little.
const DEBT_GROWTH_MAX: f64 = 1.25;
const DEBT_SLACK_BYTES: f64 = (256 << 20) as f64;
/// The part by which tables may be larger than the entries that live, while compaction is under way.
const SPACE_AMPLIFICATION: f64 = 1.3;
/// Where the status says what the node's calls wrote to files.
const WRITTEN: &str = "storage.io.written_bytes";
const SETTLE_PATIENCE: Duration = Duration::from_secs(900);

/// What is written, and for how long.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
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
    /// The node on one core with one I/O thread, the generator on the other
    #[arg(long)]
    pinned: bool,
}

/// Everything about one measurement that stays the same.
struct Writes<'a> {
    server: &'a Server,
    home: &'a Home,
    layout: Layout,
    keys: u64,
    /// How long a "minute" is: shorter in a smoke run.
    minute_s: u64,
    minutes: u64,
    /// By Ctrl-C: what was begun is cleaned up.
    interrupted: Stop,
}

/// What the node said of itself in a second.
#[derive(Clone, Copy, Debug)]
struct Moment {
    second: u64,
    debt_bytes: f64,
    level0_tables: f64,
    accepted_bytes: f64,
    written_bytes: [f64; 3],
    pause_s: f64,
    resident_bytes: u64,
}

/// One minute of a measurement.
#[derive(Clone, Debug, Serialize)]
struct Minute {
    per_second: f64,
    not_ok: u64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
    /// Seconds in which no answer came.
    silent_s: u64,
    debt_bytes_max: f64,
    level0_tables_max: f64,
    /// How long writes were held up, together.
    pause_s: f64,
    resident_bytes_max: u64,
    /// Bytes written by log, flushes and compaction for each byte accepted.
    write_amplification: f64,
}

/// A measurement.
struct Held {
    pacing: Pacing,
    sample: Sample,
    minutes: Vec<Minute>,
    p999_us: f64,
    kept: Option<f64>,
    not_ok: u64,
    longest_silence_s: u64,
    is_debt_bounded: bool,
    accepted_bytes: f64,
    written_bytes: [f64; 3],
    /// By all calls of the node that write to files.
    called_bytes: f64,
}

/// Measures, and adds the rows.
pub(crate) fn rows(options: &Options, arguments: &Arguments, home: &Home, table: &mut Table) -> Outcome<()> {
    let keys = arguments.write_keys.unwrap_or(if options.quick { 20_000 } else { 10_000_000 });
    let entry_bytes = (KEY_LEN + VALUE_BYTES) as f64;
    require_room(home.dir(), (keys as f64 * entry_bytes * SPACE_AMPLIFICATION) as u64)?;
    let layout = if arguments.pinned { Layout::PINNED } else { Layout::UNPINNED };
    let server = home.veche(NAME, layout, Durability::Sync, Some(&arguments.memory))?;
    let minutes = if options.quick { arguments.minutes.min(4) } else { arguments.minutes };
    let minute_s = if options.quick { 2 } else { 60 };
    let writes =
        Writes { server: &server, home, layout, keys, minute_s, minutes, interrupted: Stop::on_interrupt()? };
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
    settle(&server, SETTLE_PATIENCE)?;
    let rate = ((holds * CALM) as u64).max(1);
    println!("  half of {holds:.0}/s for {minutes} minutes");
    let held = writes.hold(Pacing::Rate(rate))?;
    table.keep("at half the rate", serde_json::to_value(&held.minutes)?);
    table.row(
        "rate that holds, writes/s",
        Target::None,
        rounds(&[holds]),
        format!("measured below at {}/s", grouped(rate)),
    );
    add_rows(table, &held);
    let memory = resident(server.pid())?;
    let budget = bench::units::parse_bytes(&arguments.memory)? as f64;
    table.row(
        "peak resident memory / --memory",
        Target::None,
        rounds(&[memory.peak as f64 / budget]),
        format!("now {}, anonymous {}", bytes(memory.now as f64), bytes(memory.anonymous as f64)),
    );
    Ok(())
}

fn add_rows(table: &mut Table, held: &Held) {
    let first = held.minutes[0].p999_us;
    let mut later: Vec<f64> = held.minutes[1..].iter().map(|minute| minute.p999_us).collect();
    later.sort_by(f64::total_cmp);
    let worst = later.last().copied().unwrap_or(f64::NAN);
    let note = |us: f64| format!("us: {us:.0} / {first:.0}");
    let against_first = |us: f64| rounds(&[us / first]);
    table.row(
        "p99.9, the whole time / its first minute",
        Target::AtMost(2.0),
        against_first(held.p999_us),
        note(held.p999_us),
    );
    let ratios: Vec<f64> = later.iter().map(|us| us / first).collect();
    table.row("p99.9, median later minute / first", Target::AtMost(2.0), rounds(&ratios), note(median(&later)));
    table.row("p99.9, worst later minute / first", Target::None, against_first(worst), note(worst));
    let silent: u64 = held.minutes.iter().map(|minute| minute.silent_s).sum();
    let longest = format!("longest time without: {} s", held.longest_silence_s);
    table.row("seconds without an answer", Target::AtMost(0.0), rounds(&[silent as f64]), longest);
    let refused = format!("{:.3} % of the rate kept", held.kept.unwrap_or(1.0) * 100.0);
    table.row("writes refused or failed", Target::AtMost(0.0), rounds(&[held.not_ok as f64]), refused);
    let [wal, flushed, compacted] = held.written_bytes;
    let note = format!(
        "log {:.2}, flush {:.2}, compaction {:.2}; by all calls that write {:.2}",
        wal / held.accepted_bytes,
        flushed / held.accepted_bytes,
        compacted / held.accepted_bytes,
        held.called_bytes / held.accepted_bytes
    );
    let amplification = (wal + flushed + compacted) / held.accepted_bytes;
    table.row("bytes written / byte accepted", Target::None, rounds(&[amplification]), note);
    let debts: Vec<f64> = held.minutes.iter().map(|minute| minute.debt_bytes_max / 1e6).collect();
    let note = if held.is_debt_bounded { "bounded" } else { "NOT BOUNDED" };
    table.row("compaction debt, MB, peak of each minute", Target::None, rounds(&debts), note.to_owned());
    let Sample { cpu_us, generator_busy, .. } = held.sample;
    let note = format!("generator busy {:.0} %", generator_busy * 100.0);
    table.row("CPU/request, us", Target::None, rounds(&[cpu_us]), note);
}

impl Writes<'_> {
    /// The highest rate that holds, among those that are tried.
    fn find(&self, table: &mut Table) -> Outcome<f64> {
        let mut pacing = Pacing::Closed;
        for number in 1..=TRIES_MAX {
            println!("  which rate holds: try {number}, {pacing:?}");
            let held = self.hold(pacing)?;
            table.keep(&format!("try {number}"), serde_json::to_value(&held.minutes)?);
            let reached = held.reached_in_the_end();
            match held.broken() {
                None => return Ok(reached),
                Some(why) => println!("  {reached:.0}/s does not hold: {why}"),
            }
            pacing = Pacing::at(reached * STEP_BACK);
            settle(self.server, SETTLE_PATIENCE)?;
        }
        Err(format!("none of {TRIES_MAX} rates holds").into())
    }

    fn hold(&self, pacing: Pacing) -> Outcome<Held> {
        let load = Load {
            operation: Operation::Put,
            connections: CONNECTIONS,
            pacing,
            keys: self.keys,
            value_bytes: VALUE_BYTES,
            seed: if pacing == Pacing::Closed { 1 } else { 2 },
        };
        let called = self.called_bytes()?;
        let mut is_full = false;
        let mut moments: Vec<Moment> = self.moment(0).into_iter().collect();
        println!("{}", Minute::head());
        let mut minute: Vec<Row> = Vec::new();
        let mut look = |second: &LiveSecond| {
            let Ok(at) = u64::try_from(second.second) else { return };
            moments.extend(self.moment(at + 1));
            minute.push(second.row.clone());
            if (at + 1).is_multiple_of(self.minute_s) {
                let number = at / self.minute_s;
                println!("{}", Minute::new(&minute, &self.inside(&moments, number)).line(number + 1));
                minute.clear();
            }
            if free_bytes(self.home.dir()).is_ok_and(|free| free < RESERVE_BYTES / 2) {
                is_full = true;
                self.interrupted.set();
            }
        };
        let watch = Watch { stop: &self.interrupted, each_second: &mut look };
        let duration = Duration::from_secs(self.minute_s * self.minutes);
        let servers = std::slice::from_ref(self.server);
        let (sample, result) = measure_watched(servers, self.layout, duration, &[load], watch)?;
        if is_full {
            return Err("the disk is nearly full: choose another --dir or fewer --write-keys".into());
        }
        if self.interrupted.is_set() {
            return Err("interrupted".into());
        }
        let timeline = result.recorder.timeline();
        let seconds = &timeline.rows()[..timeline.rows().len().min(duration.as_secs() as usize)];
        let minutes = self.minutes(seconds, &moments);
        let (Some(first), Some(last)) = (moments.first(), moments.last()) else {
            return Err("the node told nothing of itself".into());
        };
        Ok(Held {
            pacing,
            sample,
            p999_us: sample.p999_us,
            kept: match pacing {
                Pacing::Closed => None,
                Pacing::Rate(rate) => Some(result.arrived_per_second() / rate as f64),
            },
            not_ok: seconds.iter().map(Row::not_ok).sum(),
            longest_silence_s: Silence::without_answers(seconds).longest,
            is_debt_bounded: is_bounded(&moments),
            accepted_bytes: last.accepted_bytes - first.accepted_bytes,
            written_bytes: difference(last.written_bytes, first.written_bytes),
            called_bytes: self.called_bytes()? - called,
            minutes,
        })
    }

    fn called_bytes(&self) -> Outcome<f64> {
        let written = number_at(&status(self.server)?, WRITTEN);
        written.ok_or_else(|| format!("status has no {WRITTEN}").into())
    }

    /// What the node says now; nothing when it does not answer in time.
    fn moment(&self, second: u64) -> Option<Moment> {
        let scrape = Scrape::of(self.server).ok()?;
        Some(Moment {
            second,
            debt_bytes: scrape.debt_bytes(),
            level0_tables: scrape.sum("veche_level_tables", "level=\"0\""),
            accepted_bytes: scrape.accepted_bytes(),
            written_bytes: scrape.written_bytes(),
            pause_s: scrape.sum("veche_write_pause_seconds_total", ""),
            resident_bytes: resident(self.server.pid()).ok()?.now,
        })
    }

    fn minutes(&self, seconds: &[Row], moments: &[Moment]) -> Vec<Minute> {
        let minute =
            |(number, seconds): (usize, &[Row])| Minute::new(seconds, &self.inside(moments, number as u64));
        seconds.chunks(self.minute_s as usize).enumerate().map(minute).collect()
    }

    /// The moments of a minute, from its beginning to its end.
    fn inside<'m>(&self, moments: &'m [Moment], number: u64) -> Vec<&'m Moment> {
        let (from, to) = (number * self.minute_s, (number + 1) * self.minute_s);
        moments.iter().filter(|moment| (from..=to).contains(&moment.second)).collect()
    }
}

impl Held {
    /// Writes a second in the last half: what came before may have gone into empty memtables and levels.
    fn reached_in_the_end(&self) -> f64 {
        let last = &self.minutes[self.minutes.len() / 2..];
        last.iter().map(|minute| minute.per_second).sum::<f64>() / last.len() as f64
    }

    /// Why this rate does not hold, if it does not.
    fn broken(&self) -> Option<String> {
        if self.not_ok > 0 {
            return Some(format!("{} writes refused or failed", self.not_ok));
        }
        if let Some(kept) = self.kept.filter(|kept| *kept < KEPT_MIN) {
            return Some(format!("{:.2} % of {:?} kept", kept * 100.0, self.pacing));
        }
        (!self.is_debt_bounded).then(|| "the debt of compaction grows".to_owned())
    }
}

impl Minute {
    fn new(seconds: &[Row], moments: &[&Moment]) -> Self {
        let mut latency = Buckets::default();
        seconds.iter().for_each(|second| latency.add(&second.latency));
        let served: u64 = seconds.iter().map(Row::served).sum();
        let quantile_us = |quantile| micros(latency.quantile(quantile));
        let peak = |of: &dyn Fn(&Moment) -> f64| moments.iter().map(|moment| of(moment)).fold(0.0, f64::max);
        let grown = |of: &dyn Fn(&Moment) -> f64| match (moments.first(), moments.last()) {
            (Some(first), Some(last)) => of(last) - of(first),
            _ => 0.0,
        };
        Self {
            per_second: served as f64 / seconds.len() as f64,
            not_ok: seconds.iter().map(Row::not_ok).sum(),
            p50_us: quantile_us(0.5),
            p99_us: quantile_us(0.99),
            p999_us: quantile_us(0.999),
            max_us: micros(latency.max_nanos()),
            silent_s: Silence::without_answers(seconds).rows,
            debt_bytes_max: peak(&|moment| moment.debt_bytes),
            level0_tables_max: peak(&|moment| moment.level0_tables),
            pause_s: grown(&|moment| moment.pause_s),
            resident_bytes_max: moments.iter().map(|moment| moment.resident_bytes).max().unwrap_or(0),
            write_amplification: grown(&|moment| moment.written_bytes.iter().sum())
                / grown(&|moment| moment.accepted_bytes),
        }
    }

    fn head() -> String {
        format!(
            "  {:>6} {:>9} {:>7} {:>8} {:>8} {:>8} {:>9} {:>6} {:>9} {:>7} {:>7} {:>9} {:>7}",
            "minute",
            "writes/s",
            "not ok",
            "p50 us",
            "p99 us",
            "p99.9",
            "max us",
            "silent",
            "debt",
            "level 0",
            "paused",
            "resident",
            "written"
        )
    }

    fn line(&self, number: u64) -> String {
        format!(
            "  {number:>6} {:>9.0} {:>7} {:>8.0} {:>8.0} {:>8.0} {:>9.0} {:>4} s {:>9} {:>7} {:>5.1} s {:>9} {:>6.2}x",
            self.per_second,
            self.not_ok,
            self.p50_us,
            self.p99_us,
            self.p999_us,
            self.max_us,
            self.silent_s,
            bytes(self.debt_bytes_max),
            self.level0_tables_max,
            self.pause_s,
            bytes(self.resident_bytes_max as f64),
            self.write_amplification
        )
    }
}

fn difference(after: [f64; 3], before: [f64; 3]) -> [f64; 3] {
    std::array::from_fn(|i| after[i] - before[i])
}

/// Whether the debt has stopped to grow: it comes and goes with every compaction, so peaks are compared.
fn is_bounded(moments: &[Moment]) -> bool {
    let quarter = moments.len() / 4;
    let peak = |moments: &[Moment]| moments.iter().map(|moment| moment.debt_bytes).fold(0.0, f64::max);
    let (before, last) = moments[moments.len() / 2..].split_at(quarter);
    peak(last) <= peak(before) * DEBT_GROWTH_MAX + DEBT_SLACK_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(debts: impl IntoIterator<Item = f64>) -> Vec<Moment> {
        let moment = |(second, debt_gb): (usize, f64)| Moment {
            second: second as u64,
            debt_bytes: debt_gb * 1e9,
            level0_tables: 0.0,
            accepted_bytes: second as f64,
            written_bytes: [second as f64, 0.0, 2.0 * second as f64],
            pause_s: 0.0,
            resident_bytes: 1,
        };
        debts.into_iter().enumerate().map(moment).collect()
    }

    #[test]
    fn debt_that_comes_and_goes_is_bounded_and_debt_that_grows_is_not() {
        assert!(is_bounded(&moments((0..600).map(|second| f64::from(second % 40) / 10.0))));
        assert!(!is_bounded(&moments((0..600).map(|second| f64::from(second) / 50.0))));
        assert!(is_bounded(&moments([0.0])));
    }

    fn second(answers: u64, refused: u64) -> Row {
        let mut row = Row { statuses: [(201, answers), (503, refused)].into(), ..Row::default() };
        row.statuses.retain(|_, count| *count > 0);
        (0..answers).for_each(|_| row.latency.record(2_000_000));
        row
    }

    #[test]
    fn a_minute_counts_its_silent_seconds_and_what_was_written() {
        let seconds = [second(10, 0), second(0, 0), second(0, 0), second(9, 1)];
        let moments = moments([1.0, 3.0, 2.0]);
        let minute = Minute::new(&seconds, &moments.iter().collect::<Vec<_>>());
        assert_eq!((minute.silent_s, minute.not_ok), (2, 1));
        assert_eq!((minute.debt_bytes_max, minute.write_amplification), (3e9, 3.0));
        assert_eq!(minute.per_second, 19.0 / 4.0);
    }
}
