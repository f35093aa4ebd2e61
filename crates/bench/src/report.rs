//! Results as text, in the form that users of wrk2 know, and as JSON.

use crate::load::LaneResult;
use crate::recorder::{Failure, Recorder, SecondRow, micros};
use crate::workload::Operation;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::{self, Write};

const PERCENTILES: [f64; 8] = [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 99.999, 100.0];
/// Rows of the spectrum for each halving of the distance to 100 %.
const SPECTRUM_TICKS: u32 = 5;

/// A lane's results.
#[derive(Clone, Debug, Serialize)]
pub struct LaneReport {
    /// The lane.
    pub name: String,
    /// Measured time, without the warm-up.
    pub elapsed_s: f64,
    /// Answers of any status.
    pub answers: u64,
    /// The same, a second.
    pub answers_per_s: f64,
    /// By status.
    pub statuses: BTreeMap<u16, u64>,
    /// Requests without a valid answer.
    pub failures: BTreeMap<Failure, u64>,
    /// Answers whose value was not the key's.
    pub wrong_values: u64,
    /// From the intended start.
    pub latency: BTreeMap<&'static str, LatencyReport>,
    /// One row a second.
    pub seconds: Vec<SecondRow>,
}

/// Latencies of one kind of request, in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyReport {
    /// Requests.
    pub count: u64,
    /// The mean.
    pub mean_us: f64,
    /// The standard deviation.
    pub stdev_us: f64,
    /// Percentile and value.
    pub percentiles: Vec<(f64, f64)>,
    /// Percentile, value and how many requests were not slower, ever closer to 100 %.
    pub spectrum: Vec<(f64, f64, u64)>,
}

impl LaneReport {
    /// The report of a lane.
    pub fn new(result: &LaneResult) -> Self {
        let recorder = &result.recorder;
        Self {
            name: result.name.clone(),
            elapsed_s: result.elapsed.as_secs_f64(),
            answers: recorder.answers(),
            answers_per_s: result.answers_per_second(),
            statuses: recorder.statuses().clone(),
            failures: recorder.failures().clone(),
            wrong_values: recorder.wrong_values(),
            latency: latency_by_operation(recorder),
            seconds: recorder.rows(),
        }
    }

    /// The detailed percentile spectrum and the rows of the seconds, as text.
    pub fn details(&self) -> String {
        let mut out = String::new();
        for (operation, latency) in &self.latency {
            write_spectrum(&mut out, operation, latency).expect("a String takes all");
        }
        write_seconds(&mut out, &self.seconds).expect("a String takes all");
        out
    }
}

fn latency_by_operation(recorder: &Recorder) -> BTreeMap<&'static str, LatencyReport> {
    (Operation::ALL.into_iter())
        .filter_map(|operation| {
            let histogram = recorder.latency_by(operation)?;
            Some((operation.name(), LatencyReport::new(histogram)))
        })
        .collect()
}

impl LatencyReport {
    fn new(histogram: &Histogram<u64>) -> Self {
        let value = |percentile: f64| micros(histogram.value_at_percentile(percentile));
        let spectrum = histogram.iter_quantiles(SPECTRUM_TICKS).scan(0, |total, step| {
            *total += step.count_since_last_iteration();
            Some((step.percentile(), micros(step.value_iterated_to()), *total))
        });
        Self {
            count: histogram.len(),
            mean_us: histogram.mean() / 1_000.0,
            stdev_us: histogram.stdev() / 1_000.0,
            percentiles: PERCENTILES.into_iter().map(|percentile| (percentile, value(percentile))).collect(),
            spectrum: spectrum.collect(),
        }
    }
}

impl fmt::Display for LaneReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {} answers in {:.2} s", self.name, self.answers, self.elapsed_s)?;
        for (operation, latency) in &self.latency {
            writeln!(f, "  Latency of {operation} (HdrHistogram, from the intended start)")?;
            for (percentile, us) in &latency.percentiles {
                writeln!(f, "  {percentile:>8.3}%  {}", duration(*us))?;
            }
            let (mean, stdev) = (duration(latency.mean_us), duration(latency.stdev_us));
            writeln!(f, "  mean {mean}, standard deviation {stdev}, {} requests", latency.count)?;
        }
        let statuses: Vec<String> =
            self.statuses.iter().map(|(code, count)| format!("{code}: {count}")).collect();
        writeln!(f, "  Statuses: {}", statuses.join(", "))?;
        for (failure, count) in &self.failures {
            writeln!(f, "  {failure:?}: {count}")?;
        }
        if self.wrong_values > 0 {
            writeln!(f, "  WRONG VALUES: {}", self.wrong_values)?;
        }
        writeln!(f, "Requests/sec: {:.2}", self.answers_per_s)
    }
}

fn write_spectrum(out: &mut String, operation: &str, latency: &LatencyReport) -> fmt::Result {
    writeln!(out, "  Detailed percentile spectrum of {operation}:")?;
    writeln!(out, "       Value(ms)   Percentile   TotalCount 1/(1-Percentile)\n")?;
    for (percentile, us, total) in &latency.spectrum {
        let distance = 1.0 / (1.0 - percentile / 100.0);
        writeln!(out, "{:>14.3} {:>12.6} {total:>12} {distance:>14.2}", us / 1_000.0, percentile / 100.0)?;
    }
    writeln!(
        out,
        "#[Mean = {:.3}, StdDeviation = {:.3}]",
        latency.mean_us / 1_000.0,
        latency.stdev_us / 1_000.0
    )
}

fn write_seconds(out: &mut String, rows: &[SecondRow]) -> fmt::Result {
    writeln!(out, "  second    answers     not ok        p50        p99        max")?;
    for row in rows {
        let SecondRow { second, answers, not_ok, .. } = row;
        let [p50, p99, max] = [row.p50_us, row.p99_us, row.max_us].map(duration);
        writeln!(out, "{second:>8} {answers:>10} {not_ok:>10} {p50:>10} {p99:>10} {max:>10}")?;
    }
    Ok(())
}

/// Microseconds for people.
pub fn duration(us: f64) -> String {
    match us {
        us if us < 1_000.0 => format!("{us:.1}us"),
        us if us < 1_000_000.0 => format!("{:.2}ms", us / 1_000.0),
        us => format!("{:.2}s", us / 1_000_000.0),
    }
}
