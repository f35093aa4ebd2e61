//! Reports as text, in the layout of wrk2.

use super::{LaneReport, LatencyReport, Report, RowReport, SearchReport, hgrm};
use crate::units::{bytes, grouped, micros};
use std::fmt::{self, Write};

/// Formats the report. `details` adds the percentile spectrum and a row per second.
pub fn text(report: &Report, details: bool) -> String {
    let mut out = String::new();
    write_report(&mut out, report, details).expect("writing to a String cannot fail");
    out
}

fn write_report(out: &mut String, report: &Report, details: bool) -> fmt::Result {
    if let Some(search) = &report.search {
        write_search(out, search)?;
    }
    if report.interrupted {
        writeln!(out, "Interrupted: the results so far follow.")?;
    }
    write!(out, "{}", report.run)?;
    if details {
        write!(out, "{}", report.run.details())?;
    }
    write_cost(out, report)?;
    if !report.profile.is_empty() {
        writeln!(out, "Profile of the measured part: {}", report.profile.join(", "))?;
    }
    if let Some(published) = &report.published {
        writeln!(out, "Published by others for this load, on machines of their own: {published}")?;
    }
    Ok(())
}

fn write_cost(out: &mut String, report: &Report) -> fmt::Result {
    let cost = &report.cost;
    let busy = cost.generator_busy * 100.0;
    write!(out, "CPU/request: generator {:.2}us ({busy:.0} % of its threads)", cost.generator_us_per_answer)?;
    if let Some(server) = cost.server_us_per_answer {
        write!(out, ", server {server:.2}us")?;
    }
    writeln!(out)?;
    if cost.generator_busy > GENERATOR_BUSY_MAX {
        writeln!(
            out,
            "The generator was busy all the time: this measured the generator. Give it more --threads."
        )?;
    }
    Ok(())
}

/// Fraction of busy time above which the generator may have been the bottleneck.
const GENERATOR_BUSY_MAX: f64 = 0.95;

fn write_search(out: &mut String, search: &SearchReport) -> fmt::Result {
    writeln!(out, "Highest rate that holds {}:", search.goal)?;
    writeln!(
        out,
        "  {:>10} {:>12} {:>10} {:>10} {:>10} {:>10}  {:<8} because",
        "asked/s", "answered/s", "p50", "p99", "p99.9", "max", "held"
    )?;
    for trial in &search.trials {
        let [p50, p99, p999, max] = [trial.p50_us, trial.p99_us, trial.p999_us, trial.max_us].map(micros);
        let held = match (trial.held, trial.is_long) {
            (true, true) => "yes,long",
            (true, false) => "yes",
            (false, true) => "no,long",
            (false, false) => "no",
        };
        let (rate, arrived) = (grouped(trial.rate), grouped(trial.arrived_per_s.round() as u64));
        let why = trial.why.join(", ");
        let line =
            format!("  {rate:>10} {arrived:>12} {p50:>10} {p99:>10} {p999:>10} {max:>10}  {held:<8} {why}");
        writeln!(out, "{}", line.trim_end())?;
    }
    let shown = |rate: Option<u64>| rate.map_or("none".to_owned(), |rate| format!("{}/s", grouped(rate)));
    writeln!(out, "Knee: {}. Working point: {}.\n", shown(search.knee), shown(search.working_point))
}

impl LaneReport {
    /// Formats the detailed percentile spectrum and the rows of the seconds.
    pub fn details(&self) -> String {
        let mut out = String::new();
        write_details(&mut out, self).expect("writing to a String cannot fail");
        out
    }
}

impl fmt::Display for LaneReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let read = bytes(self.body_bytes as f64);
        writeln!(
            f,
            "{}: {} answers in {:.2} s, {read} read",
            self.name,
            grouped(self.answers),
            self.elapsed_s
        )?;
        for (operation, latency) in &self.latency {
            writeln!(f, "  Latency of {operation} (HdrHistogram, from the intended start)")?;
            write_percentiles(f, latency)?;
        }
        let statuses: Vec<String> =
            self.statuses.iter().map(|(status, count)| format!("{status}: {}", grouped(*count))).collect();
        writeln!(
            f,
            "  Statuses: {}",
            if statuses.is_empty() { "none".to_owned() } else { statuses.join(", ") }
        )?;
        for (failure, count) in &self.failures {
            writeln!(f, "  Failed, {}: {}", failure.name(), grouped(*count))?;
        }
        if self.wrong_values > 0 {
            writeln!(f, "  WRONG VALUES: {}", grouped(self.wrong_values))?;
        }
        write!(f, "Requests/sec: {:>10.2}", self.arrived_per_s)?;
        if let (Some(asked), Some(kept)) = (self.asked_per_s, self.kept()) {
            let bursts = if self.burst_s > 0.0 { ", in bursts" } else { "" };
            write!(f, "   ({} asked for{bursts}, {:.2} % kept)", grouped(asked), kept * 100.0)?;
        }
        writeln!(f)?;
        if self.elapsed_s > 0.0 && self.body_bytes > 0 {
            writeln!(f, "Transfer/sec: {:>10}", bytes(self.body_bytes as f64 / self.elapsed_s))?;
        }
        if self.elapsed_s > 0.0 && self.entries > 0 {
            writeln!(f, "Entries/sec:  {:>10}", grouped((self.entries as f64 / self.elapsed_s) as u64))?;
        }
        Ok(())
    }
}

fn write_percentiles(f: &mut fmt::Formatter<'_>, latency: &LatencyReport) -> fmt::Result {
    for (percentile, us) in &latency.percentiles {
        writeln!(f, "  {percentile:>8.3}%  {:>9}", micros(*us))?;
    }
    let (mean, stdev) = (micros(latency.mean_us), micros(latency.stdev_us));
    writeln!(f, "  mean {mean}, standard deviation {stdev}, {} requests", grouped(latency.count))
}

fn write_details(out: &mut String, lane: &LaneReport) -> fmt::Result {
    for (operation, latency) in &lane.latency {
        writeln!(out, "  Detailed percentile spectrum of {operation}, in milliseconds:")?;
        hgrm::write_to(out, latency)?;
    }
    writeln!(
        out,
        "  {:>6} {:>10} {:>8} {:>10} {:>10} {:>10} {:>10}",
        "second", "answers", "not ok", "p50", "p99", "p99.9", "max"
    )?;
    for row in &lane.timeline.rows {
        let RowReport { second, answers, not_ok, .. } = row;
        let [p50, p99, p999, max] = [row.p50_us, row.p99_us, row.p999_us, row.max_us].map(micros);
        writeln!(out, "  {second:>6} {answers:>10} {not_ok:>8} {p50:>10} {p99:>10} {p999:>10} {max:>10}")?;
    }
    Ok(())
}
