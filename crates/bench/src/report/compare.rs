//! Comparison of two reports.

use super::Report;
use crate::units::{bytes, grouped, micros};
use std::collections::BTreeSet;

/// One line of the comparison.
struct Line {
    what: String,
    values: [Option<f64>; 2],
    shown: fn(f64) -> String,
}

/// Table of both runs, with the ratio of the second to the first.
pub fn comparison(first: &Report, second: &Report) -> String {
    let both = [first, second];
    let mut out = String::new();
    for (letter, report) in ["A", "B"].into_iter().zip(both) {
        out += &format!(
            "{letter}: {}, {}, {}\n   {}\n",
            report.name, report.started, report.machine, report.command
        );
    }
    out += &format!("\n{:<22} {:>14} {:>14} {:>8}\n", "", "A", "B", "B/A");
    for line in lines(both) {
        let [a, b] = line.values.map(|value| value.map_or("-".to_owned(), line.shown));
        let ratio = match line.values {
            [Some(a), Some(b)] if a > 0.0 => format!("{:.2}", b / a),
            _ => "-".to_owned(),
        };
        out += &format!("{:<22} {a:>14} {b:>14} {ratio:>8}\n", line.what);
    }
    out
}

fn lines(both: [&Report; 2]) -> Vec<Line> {
    let line = |what: &str, shown, value: &dyn Fn(&Report) -> Option<f64>| Line {
        what: what.to_owned(),
        values: both.map(value),
        shown,
    };
    let count = |value: f64| grouped(value.round() as u64);
    let mut lines = vec![
        line("asked/s", count, &|report| report.run.asked_per_s.map(|asked| asked as f64)),
        line("answered/s", count, &|report| Some(report.run.arrived_per_s)),
        line("errors", count, &|report| Some(report.run.errors() as f64)),
        line("knee/s", count, &|report| Some(report.search.as_ref()?.knee? as f64)),
        line("working point/s", count, &|report| Some(report.search.as_ref()?.working_point? as f64)),
        line("read/s", bytes, &|report| {
            (report.run.body_bytes > 0).then(|| report.run.body_bytes as f64 / report.run.elapsed_s)
        }),
        line("generator CPU/request", micros, &|report| Some(report.cost.generator_us_per_answer)),
        line("server CPU/request", micros, &|report| report.cost.server_us_per_answer),
    ];
    let operations: BTreeSet<&String> = both.iter().flat_map(|report| report.run.latency.keys()).collect();
    for operation in operations {
        let latency = |report: &Report| report.run.latency.get(operation).cloned();
        lines.push(line(&format!("{operation} mean"), micros, &|report| Some(latency(report)?.mean_us)));
        for (name, percentile) in
            [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9), ("p99.99", 99.99), ("max", 100.0)]
        {
            let value = |report: &Report| latency(report)?.at(percentile);
            lines.push(line(&format!("{operation} {name}"), micros, &value));
        }
    }
    lines.retain(|line| line.values.iter().any(Option::is_some));
    lines
}
