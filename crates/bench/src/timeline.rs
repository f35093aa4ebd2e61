//! Timeline of a run: one row per second, in bounded memory.
//!
//! **Promise.** Every response is in exactly one row, by its time of arrival. A row's percentile of
//! two microseconds and more has an error below 1/100. A run of any length has at most [`ROWS_MAX`]
//! rows.
//!
//! **Mechanism.** A row has an HdrHistogram of two digits, which grows with the longest latency to
//! at most 16 KB. When the rows are used up, each pair of neighbours is merged, and rows are twice
//! as wide from then on. The latencies of the whole run, with three digits, are in the histograms
//! of [`crate::recorder`].

use crate::recorder::Failure;
use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// Maximum number of rows: half an hour at one second each.
pub const ROWS_MAX: usize = 1_800;

/// Unit of the histograms, in nanoseconds: latencies of two microseconds and more have both digits.
const LATENCY_NANOS_MIN: u64 = 1 << 4;
/// Greatest latency that is distinguished, in nanoseconds: 18 minutes.
const LATENCY_NANOS_MAX: u64 = 1 << 40;
/// Significant digits of the histograms: the error is below 1/128.
const DIGITS: u8 = 2;

/// Histogram of the latencies of a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowLatency {
    /// `None` until a latency is recorded.
    histogram: Option<Box<Histogram<u32>>>,
    max_nanos: u64,
}

impl RowLatency {
    /// Records a latency, in nanoseconds.
    pub fn record(&mut self, nanos: u64) {
        let histogram = self.histogram.get_or_insert_with(growing);
        histogram.record(nanos.min(LATENCY_NANOS_MAX)).expect("the histogram grows");
        self.max_nanos = self.max_nanos.max(nanos);
    }

    /// Adds the latencies of `other`.
    pub fn add(&mut self, other: &Self) {
        if let Some(theirs) = &other.histogram {
            self.histogram.get_or_insert_with(growing).add(theirs.as_ref()).expect("the histogram grows");
        }
        self.max_nanos = self.max_nanos.max(other.max_nanos);
    }

    /// Number of latencies.
    pub fn len(&self) -> u64 {
        self.histogram.as_ref().map_or(0, |histogram| histogram.len())
    }

    /// Whether the histogram is empty.
    pub const fn is_empty(&self) -> bool {
        self.histogram.is_none()
    }

    /// Greatest latency, in nanoseconds.
    pub const fn max_nanos(&self) -> u64 {
        self.max_nanos
    }

    /// Latency that the fraction `quantile`, in `0.0..=1.0`, of all does not exceed, in
    /// nanoseconds. 0 if the histogram is empty.
    pub fn quantile(&self, quantile: f64) -> u64 {
        let value = self.histogram.as_ref().map_or(0, |histogram| histogram.value_at_quantile(quantile));
        value.min(self.max_nanos)
    }

    /// Counts by [`HeatBuckets`], without zeros.
    pub fn heat(&self) -> BTreeMap<u32, u64> {
        let mut out = BTreeMap::new();
        for value in self.histogram.iter().flat_map(|histogram| histogram.iter_recorded()) {
            let bucket = HeatBuckets::of(value.value_iterated_to());
            *out.entry(bucket).or_default() += value.count_since_last_iteration();
        }
        out
    }
}

fn growing() -> Box<Histogram<u32>> {
    let mut histogram =
        Histogram::new_with_bounds(LATENCY_NANOS_MIN, 2 * LATENCY_NANOS_MIN, DIGITS).expect("a valid range");
    histogram.auto(true);
    Box::new(histogram)
}

/// Buckets of a heat map: eight per octave.
#[derive(Clone, Copy, Debug)]
pub struct HeatBuckets;

impl HeatBuckets {
    /// Number of buckets per octave.
    pub const PER_OCTAVE: u32 = 8;
    /// Lower bound of bucket 1, in nanoseconds; bucket 0 holds lower latencies.
    pub const FROM_NANOS: u64 = 1 << 10;

    fn of(nanos: u64) -> u32 {
        let Some(octave) = nanos.checked_ilog2().filter(|_| nanos >= Self::FROM_NANOS) else { return 0 };
        let part = (nanos >> (octave - Self::PER_OCTAVE.ilog2())) as u32 % Self::PER_OCTAVE;
        1 + (octave - Self::FROM_NANOS.ilog2()) * Self::PER_OCTAVE + part
    }
}

/// Responses and failures within a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Latencies from the intended start.
    pub latency: RowLatency,
    /// Responses by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Requests without a valid response.
    pub failures: BTreeMap<Failure, u64>,
}

impl Row {
    /// Number of responses of any status.
    pub fn answers(&self) -> u64 {
        self.statuses.values().sum()
    }

    /// Number of successful responses.
    pub fn served(&self) -> u64 {
        let served = self.statuses.iter().filter(|(status, _)| is_ok(**status));
        served.map(|(_, count)| count).sum()
    }

    /// Number of refusals, errors and requests without a response; not `404`.
    pub fn not_ok(&self) -> u64 {
        self.answers() - self.served() + self.failures.values().sum::<u64>()
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.latency.add(&other.latency);
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        for (failure, count) in &other.failures {
            *self.failures.entry(*failure).or_default() += count;
        }
    }
}

/// Whether a response of this status is a success. `404` is one: the key does not exist.
pub const fn is_ok(status: u16) -> bool {
    status < 400 || status == 404
}

/// Rows in which an event did not occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gaps {
    /// Number of such rows.
    pub rows: u64,
    /// Greatest number of consecutive such rows.
    pub longest: u64,
}

impl Gaps {
    /// Counts the rows for which `is_gap` holds.
    pub fn of(rows: &[Row], is_gap: impl Fn(&Row) -> bool) -> Self {
        let longest = rows.split(|row| !is_gap(row)).map(<[Row]>::len).max().unwrap_or(0);
        Self { rows: rows.iter().filter(|row| is_gap(row)).count() as u64, longest: longest as u64 }
    }

    /// Counts the rows without any response.
    pub fn without_answers(rows: &[Row]) -> Self {
        Self::of(rows, |row| row.answers() == 0)
    }
}

/// Rows of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    seconds_per_row: u64,
    rows: Vec<Row>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { seconds_per_row: 1, rows: Vec::new() }
    }
}

impl Timeline {
    /// Adds the row of a second.
    pub fn add(&mut self, second: u64, row: &Row) {
        while second / self.seconds_per_row >= ROWS_MAX as u64 {
            self.coarsen();
        }
        let at = (second / self.seconds_per_row) as usize;
        if at >= self.rows.len() {
            self.rows.resize_with(at + 1, Row::default);
        }
        self.rows[at].add(row);
    }

    /// Width of a row, in seconds.
    pub const fn seconds_per_row(&self) -> u64 {
        self.seconds_per_row
    }

    /// Rows, starting at the end of the warm-up.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    fn coarsen(&mut self) {
        self.seconds_per_row *= 2;
        let pairs = self.rows.chunks(2).map(|pair| {
            let mut row = pair[0].clone();
            pair[1..].iter().for_each(|second| row.add(second));
            row
        });
        self.rows = pairs.collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn row(nanos: &[u64]) -> Row {
        let mut row = Row::default();
        for latency in nanos {
            row.latency.record(*latency);
            *row.statuses.entry(200).or_default() += 1;
        }
        row
    }

    proptest! {
        #[test]
        fn quantiles_are_off_by_less_than_a_hundredth(
            mut latencies in proptest::collection::vec(2_000u64..5_000_000_000, 1..300),
            quantile in 0.0f64..1.0,
        ) {
            let recorded = row(&latencies).latency;
            latencies.sort_unstable();
            let rank = ((quantile * latencies.len() as f64).ceil() as usize).max(1);
            let (exact, found) = (latencies[rank - 1] as f64, recorded.quantile(quantile) as f64);
            prop_assert!((found / exact - 1.0).abs() < 0.01, "{found} for {exact}");
        }
    }

    #[test]
    fn heat_maps_have_eight_buckets_an_octave() {
        let heat = row(&[0, 1_023, 1_024, 1_024 + 127, 1_024 + 128, 2_048]).latency.heat();
        assert_eq!(heat, BTreeMap::from([(0, 2), (1, 2), (2, 1), (9, 1)]));
    }

    #[test]
    fn the_longest_latencies_share_a_bucket() {
        let longest = row(&[1 << 40, u64::MAX]).latency;
        assert_eq!((longest.len(), longest.max_nanos(), longest.heat().len()), (2, u64::MAX, 1));
    }

    #[test]
    fn a_long_run_keeps_every_answer_in_few_rows() {
        let mut timeline = Timeline::default();
        let seconds = 5 * ROWS_MAX as u64 + 7;
        (0..seconds).for_each(|second| timeline.add(second, &row(&[second])));
        assert_eq!(timeline.seconds_per_row(), 8);
        assert!(timeline.rows().len() <= ROWS_MAX);
        assert_eq!(timeline.rows().iter().map(Row::answers).sum::<u64>(), seconds);
        assert!(timeline.rows()[..1_000].iter().all(|row| row.answers() == 8));
    }

    #[test]
    fn a_second_of_refusals_has_answers_but_no_served_requests() {
        let row = |status, count| Row { statuses: [(status, count)].into(), ..Row::default() };
        let rows = [row(201, 5), row(503, 9), Row::default(), Row::default(), row(201, 1), Row::default()];
        assert_eq!(Gaps::without_answers(&rows), Gaps { rows: 3, longest: 2 });
        assert_eq!(Gaps::of(&rows, |row| row.served() == 0), Gaps { rows: 4, longest: 3 });
        assert_eq!(Gaps::of(&[], |_| true), Gaps { rows: 0, longest: 0 });
    }

    #[test]
    fn a_missing_key_is_an_answer_and_a_refusal_is_not_ok() {
        let mut row = row(&[]);
        row.statuses = BTreeMap::from([(200, 5), (404, 4), (503, 3), (507, 2)]);
        row.failures = BTreeMap::from([(Failure::Broken, 1)]);
        assert_eq!((row.answers(), row.served(), row.not_ok()), (14, 9, 6));
    }
}
