//! What a benchmark leaves behind: the same facts as text, JSON, an `.hgrm` file and a page.
//!
//! [`Report`] is the document; its JSON can be read back, so that runs made at different times are compared or laid
//! over each other. Latencies are in microseconds, counted from the intended start of each request.

mod compare;
mod hgrm;
mod page;
mod sheet;
mod text;

pub use compare::comparison;
pub use hgrm::hgrm;
pub use page::{PresetGroup, escape, gallery, page, plain_page};
pub use sheet::Sheet;
pub use text::text;

use crate::load::LaneResult;
use crate::machine::MachineInfo;
use crate::recorder::{Failure, Recorder, micros};
use crate::schedule::Pacing;
use crate::timeline::{Buckets, CoarseBuckets, Row, Timeline, is_ok};
use crate::workload::Operation;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const PERCENTILES: [f64; 8] = [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 99.999, 100.0];
/// Rows of the spectrum for each halving of the distance to 100 %.
const SPECTRUM_TICKS: u32 = 5;
/// Columns of a heat map: about what a screen shows.
const HEAT_COLUMNS_MAX: usize = 600;
/// The name under which the latencies of all operations together stand.
pub const ALL_OPERATIONS: &str = "all";
/// The form of the JSON document.
pub const FORMAT: &str = "veche-bench 1";

/// One benchmark.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// [`FORMAT`].
    pub format: String,
    /// The preset, or what was run.
    pub name: String,
    /// The command line, as one could enter it again.
    pub command: String,
    /// When it began, RFC 3339, UTC.
    pub started: String,
    /// The generator's version.
    pub generator: String,
    /// Where the generator ran.
    pub machine: MachineInfo,
    /// Who was asked.
    pub servers: Vec<ServerReport>,
    /// What was asked.
    pub load: LoadReport,
    /// What others have published for this load.
    pub published: Option<String>,
    /// Whether it was ended early.
    pub interrupted: bool,
    /// CPU time.
    pub cost: CostReport,
    /// The search for the highest rate.
    pub search: Option<SearchReport>,
    /// The files of a profile that was taken meanwhile.
    pub profile: Vec<String>,
    /// What was measured; for a search, at its working point.
    pub run: LaneReport,
}

/// A server, by its own account.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerReport {
    /// Its address.
    pub url: String,
    /// Its software and version.
    pub software: String,
    /// Facts that numbers depend on, as sentences: durability, nodes, memory.
    pub facts: Vec<String>,
}

/// What was asked, and how.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadReport {
    /// Operations and their shares.
    pub mix: String,
    /// The order of the keys.
    pub order: String,
    /// Keys that are drawn from.
    pub keys: u64,
    /// ValueSizes of the values.
    pub value_size: String,
    /// Answers and replicas, where they were asked for.
    pub quorum: Option<String>,
    /// Milliseconds after which what was written expires.
    pub ttl_ms: Option<u64>,
    /// Entries of a range, where ranges are read.
    pub limit: Option<u64>,
    /// Keys that were stored before.
    pub preloaded: Option<u64>,
    /// Over all threads.
    pub connections: usize,
    /// Of the generator.
    pub threads: usize,
    /// Of the order of operations and keys.
    pub seed: u64,
    /// Seconds before the measured ones.
    pub warmup_s: f64,
}

/// What the load cost in CPU time.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CostReport {
    /// The generator's, for each answer.
    pub generator_us_per_answer: f64,
    /// The part of its threads' time that the generator spent. Near 1, it and not the server was measured.
    pub generator_busy: f64,
    /// The server's, for each answer, where its process was named.
    pub server_us_per_answer: Option<f64>,
}

/// A search for the highest rate that holds a goal.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SearchReport {
    /// What had to hold.
    pub goal: String,
    /// In their order.
    pub trials: Vec<TrialReport>,
    /// The highest rate that held in a trial, requests/s.
    pub knee: Option<u64>,
    /// The rate that held in the long measurement, requests/s.
    pub working_point: Option<u64>,
}

/// One rate that was tried.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrialReport {
    /// Requests/s that were asked for.
    pub rate: u64,
    /// Answers/s that came.
    pub arrived_per_s: f64,
    /// Whether this was a long measurement, not one of the search.
    pub is_long: bool,
    /// The latency's median.
    pub p50_us: f64,
    /// Its 99th percentile.
    pub p99_us: f64,
    /// Its 99.9th percentile.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
    /// Refusals, errors, requests without an answer.
    pub errors: u64,
    /// Whether the goal held.
    pub held: bool,
    /// What did not hold.
    pub why: Vec<String>,
}

/// What one lane measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LaneReport {
    /// The lane.
    pub name: String,
    /// Requests/s that were asked for. `None`: a closed loop.
    pub asked_per_s: Option<u64>,
    /// What was due within so many seconds started together. 0: each request at its own time.
    pub burst_s: f64,
    /// Measured time, without the warm-up.
    pub elapsed_s: f64,
    /// Answers of any status to requests that were meant to start in that time.
    pub answers: u64,
    /// The same, a second.
    pub answers_per_s: f64,
    /// Answers a second that came in that time, no more than were asked for in it: the rate that was kept.
    pub arrived_per_s: f64,
    /// By status.
    pub statuses: BTreeMap<u16, u64>,
    /// Requests without a valid answer.
    pub failures: BTreeMap<Failure, u64>,
    /// Answers whose value was not the key's.
    pub wrong_values: u64,
    /// Bytes of bodies that were read.
    pub body_bytes: u64,
    /// Entries of ranges that were read.
    pub entries: u64,
    /// By operation; several together also as [`ALL_OPERATIONS`].
    pub latency: BTreeMap<String, LatencyReport>,
    /// Over time.
    pub timeline: TimelineReport,
}

/// Latencies of one kind of request, in microseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencyReport {
    /// Requests.
    pub count: u64,
    /// The mean.
    pub mean_us: f64,
    /// The standard deviation.
    pub stdev_us: f64,
    /// The longest.
    pub max_us: f64,
    /// Percentile and value.
    pub percentiles: Vec<(f64, f64)>,
    /// Percentile, value and how many requests were not slower, ever closer to 100 %.
    pub spectrum: Vec<(f64, f64, u64)>,
}

/// A run over time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TimelineReport {
    /// How wide a row is.
    pub seconds_per_row: u64,
    /// By when answers came.
    pub rows: Vec<RowReport>,
    /// Latencies over time.
    pub heat: HeatReport,
}

/// What came in one row's time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RowReport {
    /// Where it begins, since the end of the warm-up.
    pub second: u64,
    /// Answers of any status.
    pub answers: u64,
    /// Refusals, errors and requests without an answer; not `404`.
    pub not_ok: u64,
    /// What they were.
    pub errors: BTreeMap<String, u64>,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// How many answers had which latency, over time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HeatReport {
    /// How wide a column is.
    pub seconds_per_column: u64,
    /// Where bucket 1 begins; bucket 0 holds what is below.
    pub from_us: f64,
    /// Buckets for each doubling of the latency, even within it.
    pub buckets_per_octave: u32,
    /// Of each column, the buckets that are not empty, with their counts.
    pub columns: Vec<Vec<(u32, u64)>>,
}

impl LaneReport {
    /// The report of a lane.
    pub fn new(result: &LaneResult) -> Self {
        let recorder = &result.recorder;
        Self {
            name: result.name.clone(),
            asked_per_s: match result.pacing {
                Pacing::Closed => None,
                Pacing::Rate(rate) => Some(rate),
            },
            burst_s: result.burst.as_secs_f64(),
            elapsed_s: result.elapsed.as_secs_f64(),
            answers: recorder.answers(),
            answers_per_s: result.answers_per_second(),
            arrived_per_s: result.arrived_per_second(),
            statuses: recorder.statuses().clone(),
            failures: recorder.failures().clone(),
            wrong_values: recorder.wrong_values(),
            body_bytes: recorder.body_bytes(),
            entries: recorder.entries(),
            latency: latency_by_operation(recorder),
            timeline: TimelineReport::new(&recorder.timeline()),
        }
    }

    /// The latencies of all requests together.
    pub fn overall(&self) -> Option<&LatencyReport> {
        self.latency.get(ALL_OPERATIONS).or_else(|| self.latency.values().next())
    }

    /// Refusals, errors, wrong values and requests without an answer.
    pub fn errors(&self) -> u64 {
        let refused = self.statuses.iter().filter(|(status, _)| !is_ok(**status));
        refused.map(|(_, count)| count).chain(self.failures.values()).sum::<u64>() + self.wrong_values
    }

    /// The part of the asked rate that was answered. `None` in a closed loop.
    pub fn kept(&self) -> Option<f64> {
        self.asked_per_s.map(|asked| self.arrived_per_s / asked as f64)
    }
}

fn latency_by_operation(recorder: &Recorder) -> BTreeMap<String, LatencyReport> {
    let measured = |operation: Operation| {
        let histogram = recorder.latency_by(operation)?;
        Some((operation.name().to_owned(), LatencyReport::new(histogram)))
    };
    let mut all: BTreeMap<String, LatencyReport> = Operation::ALL.into_iter().filter_map(measured).collect();
    if all.len() > 1 {
        all.insert(ALL_OPERATIONS.to_owned(), LatencyReport::new(&recorder.latency()));
    }
    all
}

impl LatencyReport {
    /// The report of a histogram of nanoseconds.
    pub fn new(histogram: &Histogram<u64>) -> Self {
        let value = |percentile: f64| micros(histogram.value_at_percentile(percentile));
        let spectrum = histogram.iter_quantiles(SPECTRUM_TICKS).scan(0, |total, step| {
            *total += step.count_since_last_iteration();
            Some((step.percentile(), micros(step.value_iterated_to()), *total))
        });
        let mut spectrum: Vec<_> = spectrum.collect();
        // The end may be told twice: as the last step, and as the end.
        spectrum.dedup();
        Self {
            count: histogram.len(),
            mean_us: histogram.mean() / 1_000.0,
            stdev_us: histogram.stdev() / 1_000.0,
            max_us: micros(histogram.max()),
            percentiles: PERCENTILES.into_iter().map(|percentile| (percentile, value(percentile))).collect(),
            spectrum,
        }
    }

    /// The value at one of the percentiles that a report keeps.
    pub fn at(&self, percentile: f64) -> Option<f64> {
        self.percentiles.iter().find(|(kept, _)| *kept == percentile).map(|(_, value)| *value)
    }
}

impl TimelineReport {
    fn new(timeline: &Timeline) -> Self {
        let seconds_per_row = timeline.seconds_per_row();
        let rows = timeline.rows().iter().enumerate();
        Self {
            seconds_per_row,
            rows: rows.map(|(i, row)| RowReport::new(i as u64 * seconds_per_row, row)).collect(),
            heat: HeatReport::new(timeline),
        }
    }
}

impl RowReport {
    fn new(second: u64, row: &Row) -> Self {
        let quantile = |quantile| micros(row.latency.quantile(quantile));
        let refused = row.statuses.iter().filter(|(status, _)| !is_ok(**status));
        let refused = refused.map(|(status, count)| (status.to_string(), *count));
        let failed = row.failures.iter().map(|(failure, count)| (failure.name().to_owned(), *count));
        Self {
            second,
            answers: row.answers(),
            not_ok: row.not_ok(),
            errors: refused.chain(failed).collect(),
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: micros(row.latency.max_nanos()),
        }
    }
}

impl HeatReport {
    fn new(timeline: &Timeline) -> Self {
        let rows_per_column = timeline.rows().len().div_ceil(HEAT_COLUMNS_MAX).max(1);
        let column = |rows: &[Row]| {
            let mut all = Buckets::default();
            rows.iter().for_each(|row| all.add(&row.latency));
            all.coarse().into_iter().collect()
        };
        Self {
            seconds_per_column: timeline.seconds_per_row() * rows_per_column as u64,
            from_us: micros(CoarseBuckets::FROM_NANOS),
            buckets_per_octave: CoarseBuckets::PER_OCTAVE,
            columns: timeline.rows().chunks(rows_per_column).map(column).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
