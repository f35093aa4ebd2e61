//! Timeline of a run: one row per second, in bounded memory.
//!
//! **Promise.** Every response is in exactly one row, by its time of arrival. The error of a row's
//! percentile is below 1/32 of its value. A run of any length has at most [`ROWS_MAX`] rows.
//!
//! **Mechanism.** A row counts latencies in [`Buckets`]: each octave is divided into 32 equal
//! parts, from a microsecond to nine minutes. When the rows are used up, each pair of neighbours is
//! merged, and rows are twice as wide from then on. The latencies of the whole run, with three
//! exact digits, are in the histograms of [`crate::recorder`].

use crate::recorder::Failure;
use std::collections::BTreeMap;

/// Maximum number of rows: half an hour at one second each.
pub const ROWS_MAX: usize = 1_800;

/// Binary logarithm of the number of parts of an octave.
const PARTS_BITS: u32 = 5;
const PARTS: usize = 1 << PARTS_BITS;
/// Binary logarithm of the second bucket's lower bound, in nanoseconds. Lower latencies share the
/// first bucket.
const OCTAVE_MIN: u32 = 10;
/// Highest octave. Latencies of 2^40 ns and more share the last bucket.
const OCTAVE_MAX: u32 = 39;

/// Histogram of latencies, with logarithmic octaves of linear parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buckets {
    counts: Vec<u32>,
    max_nanos: u64,
}

impl Buckets {
    /// Counts a latency, in nanoseconds.
    pub fn record(&mut self, nanos: u64) {
        let bucket = bucket_of(nanos);
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.max_nanos = self.max_nanos.max(nanos);
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        if other.counts.len() > self.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.saturating_add(*theirs);
        }
        self.max_nanos = self.max_nanos.max(other.max_nanos);
    }

    /// Number of latencies.
    pub fn len(&self) -> u64 {
        self.counts.iter().copied().map(u64::from).sum()
    }

    /// Whether the histogram is empty.
    pub const fn is_empty(&self) -> bool {
        self.max_nanos == 0 && self.counts.is_empty()
    }

    /// Greatest latency, in nanoseconds.
    pub const fn max_nanos(&self) -> u64 {
        self.max_nanos
    }

    /// Latency that the fraction `quantile`, in `0.0..=1.0`, of all does not exceed, in
    /// nanoseconds. 0 if the histogram is empty.
    pub fn quantile(&self, quantile: f64) -> u64 {
        let rank = ((quantile * self.len() as f64).ceil() as u64).max(1);
        let mut below = 0;
        for (bucket, count) in self.filled() {
            if below + count >= rank {
                let (from, to) = (lower_bound(bucket), lower_bound(bucket + 1));
                let inside = (to - from) * (rank - below) / count;
                return (from + inside).min(self.max_nanos);
            }
            below += count;
        }
        self.max_nanos
    }

    /// Counts by [`CoarseBuckets`], without zeros.
    pub fn coarse(&self) -> BTreeMap<u32, u64> {
        let mut out = BTreeMap::new();
        for (bucket, count) in self.filled() {
            *out.entry(CoarseBuckets::of(bucket)).or_default() += count;
        }
        out
    }

    fn filled(&self) -> impl Iterator<Item = (usize, u64)> {
        let counted = self.counts.iter().copied().map(u64::from).enumerate();
        counted.filter(|(_, count)| *count > 0)
    }
}

/// Buckets of a heat map: eight per octave.
#[derive(Clone, Copy, Debug)]
pub struct CoarseBuckets;

impl CoarseBuckets {
    /// Number of buckets per octave.
    pub const PER_OCTAVE: u32 = 8;
    /// Lower bound of bucket 1, in nanoseconds; bucket 0 holds lower latencies.
    pub const FROM_NANOS: u64 = 1 << OCTAVE_MIN;

    fn of(bucket: usize) -> u32 {
        let parts = PARTS / Self::PER_OCTAVE as usize;
        if bucket == 0 { 0 } else { ((bucket - 1) / parts) as u32 + 1 }
    }
}

fn bucket_of(nanos: u64) -> usize {
    if nanos < 1 << OCTAVE_MIN {
        return 0;
    }
    let octave = nanos.ilog2();
    if octave > OCTAVE_MAX {
        return (OCTAVE_MAX - OCTAVE_MIN + 1) as usize * PARTS;
    }
    let part = (nanos >> (octave - PARTS_BITS)) as usize & (PARTS - 1);
    1 + (octave - OCTAVE_MIN) as usize * PARTS + part
}

/// Least latency of a bucket, in nanoseconds.
const fn lower_bound(bucket: usize) -> u64 {
    if bucket == 0 {
        return 0;
    }
    let (octave, part) = ((bucket - 1) / PARTS, (bucket - 1) % PARTS);
    ((PARTS + part) as u64) << (octave as u32 + OCTAVE_MIN - PARTS_BITS)
}

/// Responses and failures within a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Latencies from the intended start.
    pub latency: Buckets,
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
        fn a_latency_lies_in_its_bucket(nanos in 0u64..1 << 40) {
            let bucket = bucket_of(nanos);
            prop_assert!(lower_bound(bucket) <= nanos && nanos < lower_bound(bucket + 1));
        }

        #[test]
        fn quantiles_are_off_by_less_than_a_part_of_an_octave(
            mut latencies in proptest::collection::vec(2_000u64..5_000_000_000, 1..300),
            quantile in 0.0f64..1.0,
        ) {
            let buckets = row(&latencies).latency;
            latencies.sort_unstable();
            let rank = ((quantile * latencies.len() as f64).ceil() as usize).max(1);
            let (exact, found) = (latencies[rank - 1] as f64, buckets.quantile(quantile) as f64);
            prop_assert!((found / exact - 1.0).abs() <= 1.0 / 32.0, "{found} for {exact}");
        }
    }

    #[test]
    fn pictures_have_eight_buckets_an_octave() {
        let buckets = row(&[0, 1_024, 1_024 + 127, 1_024 + 128, 2_048]).latency;
        assert_eq!(buckets.coarse(), BTreeMap::from([(0, 1), (1, 2), (2, 1), (9, 1)]));
    }

    #[test]
    fn the_longest_latencies_share_a_bucket() {
        let buckets = row(&[1 << 40, u64::MAX]).latency;
        assert_eq!((buckets.len(), buckets.max_nanos(), buckets.coarse().len()), (2, u64::MAX, 1));
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
