//! Reports of benchmarks, as text, JSON, an `.hgrm` file and an HTML page.
//!
//! [`Report`] is the document. Its JSON can be read back, so that runs of different times can be
//! compared. Latencies are in microseconds and count from the intended start of each request.

mod compare;
mod hgrm;
mod page;
mod text;

pub use compare::comparison;
pub use hgrm::hgrm;
pub use page::page;
pub use text::text;

use crate::load::LaneResult;
use crate::machine::MachineInfo;
use crate::recorder::{Failure, Recorder, micros};
use crate::schedule::Pacing;
use crate::timeline::{HeatBuckets, Row, RowLatency, Timeline, is_ok};
use crate::workload::Operation;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const PERCENTILES: [f64; 8] = [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 99.999, 100.0];
/// Rows of the spectrum for each halving of the distance to 100 %.
const SPECTRUM_TICKS: u32 = 5;
/// Maximum number of columns of a heat map, about as many as a screen shows.
const HEAT_COLUMNS_MAX: usize = 600;
/// Name of the latencies of all operations together.
pub const ALL_OPERATIONS: &str = "all";
/// Format of the JSON document.
pub const FORMAT: &str = "veche-bench 1";

/// Report of a benchmark.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Always [`FORMAT`].
    pub format: String,
    /// Name of the preset, or of the operations.
    pub name: String,
    /// Command line that repeats the benchmark.
    pub command: String,
    /// Start time, RFC 3339, UTC.
    pub started: String,
    /// Version of the generator.
    pub generator: String,
    /// Machine of the generator.
    pub machine: MachineInfo,
    /// Servers under test.
    pub servers: Vec<ServerReport>,
    /// Load.
    pub load: LoadReport,
    /// Published results of others for this load.
    pub published: Option<String>,
    /// Whether the benchmark was interrupted.
    pub interrupted: bool,
    /// CPU time.
    pub cost: CostReport,
    /// Search for the highest rate.
    pub search: Option<SearchReport>,
    /// Files of a profile that was recorded during the measurement.
    pub profile: Vec<String>,
    /// Measurement; for a search, that of its working point.
    pub run: LaneReport,
}

/// A server, as it describes itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerReport {
    /// URL of the server.
    pub url: String,
    /// Software and version.
    pub software: String,
    /// Properties that results depend on: durability, number of nodes, memory.
    pub facts: Vec<String>,
}

/// The load of a benchmark.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadReport {
    /// Operations and their shares.
    pub mix: String,
    /// Order of the keys.
    pub order: String,
    /// Number of keys that are drawn from.
    pub keys: u64,
    /// Sizes of the values.
    pub value_size: String,
    /// Required acknowledgements and replicas, if they were stated.
    pub quorum: Option<String>,
    /// Time to live of written values, in milliseconds.
    pub ttl_ms: Option<u64>,
    /// Maximum number of entries of a range, if ranges are read.
    pub limit: Option<u64>,
    /// Keys that were stored before.
    pub preloaded: Option<u64>,
    /// Connections over all threads.
    pub connections: usize,
    /// Threads of the generator.
    pub threads: usize,
    /// Seed of the order of operations and keys.
    pub seed: u64,
    /// Length of the warm-up, in seconds.
    pub warmup_s: f64,
}

/// CPU time of a load.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CostReport {
    /// CPU time of the generator per response, in microseconds.
    pub generator_us_per_answer: f64,
    /// Fraction of its threads' time that the generator was busy. Near 1, the generator was the
    /// bottleneck, not the server.
    pub generator_busy: f64,
    /// CPU time of the servers per response, in microseconds, if their processes are known.
    pub server_us_per_answer: Option<f64>,
}

/// Search for the highest rate that meets a goal.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SearchReport {
    /// Goal of the search.
    pub goal: String,
    /// Trials in their order.
    pub trials: Vec<TrialReport>,
    /// Highest rate that held in a trial, in requests/s.
    pub knee: Option<u64>,
    /// Rate that held in the long measurement, in requests/s.
    pub working_point: Option<u64>,
}

/// A rate that was tried.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrialReport {
    /// Requested rate, in requests/s.
    pub rate: u64,
    /// Responses per second that arrived.
    pub arrived_per_s: f64,
    /// Whether this was a long measurement rather than a trial.
    pub is_long: bool,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile of the latency.
    pub p99_us: f64,
    /// 99.9th percentile of the latency.
    pub p999_us: f64,
    /// Greatest latency.
    pub max_us: f64,
    /// Refusals, errors, and requests without a response.
    pub errors: u64,
    /// Whether the goal was met.
    pub held: bool,
    /// Violated conditions.
    pub why: Vec<String>,
}

/// Measurement of a lane.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LaneReport {
    /// Name of the lane.
    pub name: String,
    /// Requested rate, in requests/s. `None`: a closed loop.
    pub asked_per_s: Option<u64>,
    /// Burst interval, in seconds: requests due within it started together. 0: each request started
    /// at its own time.
    pub burst_s: f64,
    /// Measured time without the warm-up, in seconds.
    pub elapsed_s: f64,
    /// Responses of any status to requests whose intended start lies in the measured time.
    pub answers: u64,
    /// Those responses per second.
    pub answers_per_s: f64,
    /// Responses per second that arrived in the measured time, at most as many as were requested in
    /// it: the sustained rate.
    pub arrived_per_s: f64,
    /// Responses by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Requests without a valid response.
    pub failures: BTreeMap<Failure, u64>,
    /// Responses whose value did not match the key.
    pub wrong_values: u64,
    /// Bytes of bodies that were read.
    pub body_bytes: u64,
    /// Entries of ranges that were read.
    pub entries: u64,
    /// Latencies by operation; with several operations also as [`ALL_OPERATIONS`].
    pub latency: BTreeMap<String, LatencyReport>,
    /// Measurement over time.
    pub timeline: TimelineReport,
}

/// Latencies of one kind of request, in microseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencyReport {
    /// Number of requests.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Standard deviation.
    pub stdev_us: f64,
    /// Greatest latency.
    pub max_us: f64,
    /// Pairs of percentile and latency.
    pub percentiles: Vec<(f64, f64)>,
    /// Percentile, latency, and number of requests that were not slower, ever closer to 100 %.
    pub spectrum: Vec<(f64, f64, u64)>,
}

/// A run over time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TimelineReport {
    /// Width of a row, in seconds.
    pub seconds_per_row: u64,
    /// Rows, by time of arrival.
    pub rows: Vec<RowReport>,
    /// Latencies over time.
    pub heat: HeatReport,
}

/// Responses that arrived during a row.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RowReport {
    /// Start of the row, in seconds since the end of the warm-up.
    pub second: u64,
    /// Responses of any status.
    pub answers: u64,
    /// Refusals, errors and requests without a response; not `404`.
    pub not_ok: u64,
    /// Number of errors by description.
    pub errors: BTreeMap<String, u64>,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile of the latency.
    pub p99_us: f64,
    /// 99.9th percentile of the latency.
    pub p999_us: f64,
    /// Greatest latency.
    pub max_us: f64,
}

/// Heat map: number of responses by latency and time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HeatReport {
    /// Width of a column, in seconds.
    pub seconds_per_column: u64,
    /// Lower bound of bucket 1; bucket 0 holds lower latencies.
    pub from_us: f64,
    /// Number of buckets per doubling of the latency. Within a doubling they have equal widths.
    pub buckets_per_octave: u32,
    /// For each column, the buckets that are not empty, with their counts.
    pub columns: Vec<Vec<(u32, u64)>>,
}

impl LaneReport {
    /// Creates the report of a lane.
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

    /// Latencies of all requests together.
    pub fn overall(&self) -> Option<&LatencyReport> {
        self.latency.get(ALL_OPERATIONS).or_else(|| self.latency.values().next())
    }

    /// Refusals, errors, wrong values and requests without a response.
    pub fn errors(&self) -> u64 {
        let refused = self.statuses.iter().filter(|(status, _)| !is_ok(**status));
        refused.map(|(_, count)| count).chain(self.failures.values()).sum::<u64>() + self.wrong_values
    }

    /// Fraction of the requested rate that was answered. `None` in a closed loop.
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
    /// Creates the report of a histogram of nanoseconds.
    pub fn new(histogram: &Histogram<u64>) -> Self {
        let value = |percentile: f64| micros(histogram.value_at_percentile(percentile));
        let spectrum = histogram.iter_quantiles(SPECTRUM_TICKS).scan(0, |total, step| {
            *total += step.count_since_last_iteration();
            Some((step.percentile(), micros(step.value_iterated_to()), *total))
        });
        let mut spectrum: Vec<_> = spectrum.collect();
        // The iterator may yield the end twice: as the last step, and as the end.
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

    /// Latency at one of the percentiles that a report contains.
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
            let mut all = RowLatency::default();
            rows.iter().for_each(|row| all.add(&row.latency));
            all.heat().into_iter().collect()
        };
        Self {
            seconds_per_column: timeline.seconds_per_row() * rows_per_column as u64,
            from_us: micros(HeatBuckets::FROM_NANOS),
            buckets_per_octave: HeatBuckets::PER_OCTAVE,
            columns: timeline.rows().chunks(rows_per_column).map(column).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
