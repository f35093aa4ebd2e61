//! What was measured: latencies, statuses, errors, one row a second.

use crate::workload::Operation;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use stdx::Instant;

/// The longest latency that is told apart from longer ones.
const LATENCY_NANOS_MAX: u64 = 600_000_000_000;
/// Of the histograms of a run: errors below a thousandth.
const DIGITS: u8 = 3;
/// Of the histograms of a second, which only give its row.
const SECOND_DIGITS: u8 = 2;
/// Rows kept; what comes later is in the run's histograms only.
const SECONDS_MAX: usize = 24 * 3_600;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// How a request ended, other than by not being answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The status of the answer.
    pub status: u16,
    /// Whether the body was checked and was wrong.
    pub wrong_value: bool,
}

impl Outcome {
    /// An answer whose body was right or not looked at.
    pub const fn of_status(status: u16) -> Self {
        Self { status, wrong_value: false }
    }
}

/// Why a request got no answer, or none that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Failure {
    /// No connection was to be had.
    Connect,
    /// The connection broke with the request on its way.
    Broken,
    /// The answer was not HTTP.
    Malformed,
    /// No answer came until the run was given up.
    Unanswered,
    /// Its slot came, but its connection was busy until the end.
    Unsent,
    /// Its slot came when too many waited already.
    BacklogFull,
}

#[derive(Clone, Debug)]
struct Second {
    latency: Histogram<u32>,
    not_ok: u64,
}

/// Collects what one lane measured, on one thread or, merged, on all.
#[derive(Clone, Debug)]
pub struct Recorder {
    from: Instant,
    by_operation: [Option<Box<Histogram<u64>>>; Operation::ALL.len()],
    statuses: BTreeMap<u16, u64>,
    failures: BTreeMap<Failure, u64>,
    wrong_values: u64,
    seconds: Vec<Second>,
    answers_with_warmup: u64,
}

impl Recorder {
    /// Counts requests that were meant to start at `from` or later; those before are warm-up.
    pub fn new(from: Instant) -> Self {
        Self {
            from,
            by_operation: [const { None }; Operation::ALL.len()],
            statuses: BTreeMap::new(),
            failures: BTreeMap::new(),
            wrong_values: 0,
            seconds: Vec::new(),
            answers_with_warmup: 0,
        }
    }

    /// An answer that came at `now` to a request meant to start at `intended`.
    pub fn answer(&mut self, operation: Operation, intended: Instant, now: Instant, outcome: Outcome) {
        self.answers_with_warmup += 1;
        if intended < self.from {
            return;
        }
        *self.statuses.entry(outcome.status).or_default() += 1;
        self.wrong_values += u64::from(outcome.wrong_value);
        self.latency_of(operation, intended, now);
        let ok = outcome.status < 400 || outcome.status == 404;
        if let Some(second) = self.second(now) {
            second.not_ok += u64::from(!ok);
            second.latency.saturating_record(nanos_between(intended, now));
        }
    }

    /// A request without a valid answer. Where the run's end cut it off, what it had waited by then is
    /// recorded as its latency, which it is at the least.
    pub fn failure(&mut self, operation: Operation, intended: Instant, now: Instant, failure: Failure) {
        if intended < self.from {
            return;
        }
        *self.failures.entry(failure).or_default() += 1;
        if matches!(failure, Failure::Unanswered | Failure::Unsent) {
            self.latency_of(operation, intended, now);
        }
        if let Some(second) = self.second(now) {
            second.not_ok += 1;
        }
    }

    /// Slots that were refused because too many waited.
    pub fn backlog_full(&mut self, count: u64) {
        if count > 0 {
            *self.failures.entry(Failure::BacklogFull).or_default() += count;
        }
    }

    /// Adds what another thread measured in the same run.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.by_operation.iter_mut().zip(&other.by_operation) {
            if let Some(theirs) = theirs {
                mine.get_or_insert_with(empty).add(theirs.as_ref()).expect("both have the same range");
            }
        }
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        for (failure, count) in &other.failures {
            *self.failures.entry(*failure).or_default() += count;
        }
        self.wrong_values += other.wrong_values;
        self.answers_with_warmup += other.answers_with_warmup;
        for (i, theirs) in other.seconds.iter().enumerate() {
            let Some(mine) = self.second_at(i) else { break };
            mine.latency.add(&theirs.latency).expect("both have the same range");
            mine.not_ok += theirs.not_ok;
        }
    }

    /// Answers of every kind and status.
    pub fn answers(&self) -> u64 {
        self.statuses.values().sum()
    }

    /// Answers of every kind and status, the warm-up's too: what the server's CPU time was spent on.
    pub const fn answers_with_warmup(&self) -> u64 {
        self.answers_with_warmup
    }

    /// Answers with this status.
    pub fn with_status(&self, status: u16) -> u64 {
        self.statuses.get(&status).copied().unwrap_or(0)
    }

    /// Answers by status.
    pub const fn statuses(&self) -> &BTreeMap<u16, u64> {
        &self.statuses
    }

    /// Requests without a valid answer, by reason.
    pub const fn failures(&self) -> &BTreeMap<Failure, u64> {
        &self.failures
    }

    /// Answers whose value was not the key's.
    pub const fn wrong_values(&self) -> u64 {
        self.wrong_values
    }

    /// Latencies of one operation, in nanoseconds.
    pub fn latency_by(&self, operation: Operation) -> Option<&Histogram<u64>> {
        self.by_operation[operation as usize].as_deref()
    }

    /// Latencies of all operations, in nanoseconds.
    pub fn latency(&self) -> Histogram<u64> {
        let mut all = *empty();
        for histogram in self.by_operation.iter().flatten() {
            all.add(histogram.as_ref()).expect("both have the same range");
        }
        all
    }

    /// One row for each second since `from`.
    pub fn rows(&self) -> Vec<SecondRow> {
        let row = |(i, second): (usize, &Second)| SecondRow {
            second: i as u64,
            answers: second.latency.len(),
            not_ok: second.not_ok,
            p50_us: micros(second.latency.value_at_quantile(0.5)),
            p99_us: micros(second.latency.value_at_quantile(0.99)),
            max_us: micros(second.latency.max()),
        };
        self.seconds.iter().enumerate().map(row).collect()
    }

    fn latency_of(&mut self, operation: Operation, intended: Instant, now: Instant) {
        let histogram = self.by_operation[operation as usize].get_or_insert_with(empty);
        histogram.saturating_record(nanos_between(intended, now));
    }

    fn second(&mut self, now: Instant) -> Option<&mut Second> {
        let second = nanos_between(self.from, now) / NANOS_PER_SECOND;
        self.second_at(usize::try_from(second).ok()?)
    }

    fn second_at(&mut self, i: usize) -> Option<&mut Second> {
        if i >= SECONDS_MAX {
            return None;
        }
        while self.seconds.len() <= i {
            let latency = Histogram::new_with_max(LATENCY_NANOS_MAX, SECOND_DIGITS).expect("a valid range");
            self.seconds.push(Second { latency, not_ok: 0 });
        }
        self.seconds.get_mut(i)
    }
}

/// One second of a run, by when answers came.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SecondRow {
    /// Since the end of the warm-up.
    pub second: u64,
    /// Answers of any status.
    pub answers: u64,
    /// Refusals, errors and requests without an answer; not `404`.
    pub not_ok: u64,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

fn empty() -> Box<Histogram<u64>> {
    Box::new(Histogram::new_with_max(LATENCY_NANOS_MAX, DIGITS).expect("a valid range"))
}

fn nanos_between(from: Instant, to: Instant) -> u64 {
    to.as_nanos().saturating_sub(from.as_nanos())
}

/// Nanoseconds as microseconds.
pub fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn warm_up_does_not_count_and_the_rest_is_counted_where_it_belongs() {
        let mut recorder = Recorder::new(at(1_000));
        recorder.answer(Operation::Get, at(999), at(1_500), Outcome::of_status(200));
        recorder.answer(Operation::Get, at(1_000), at(1_500), Outcome::of_status(200));
        recorder.answer(Operation::Put, at(1_000), at(2_500), Outcome::of_status(503));
        recorder.failure(Operation::Get, at(1_000), at(2_600), Failure::Broken);
        assert_eq!(
            (recorder.answers(), recorder.answers_with_warmup(), recorder.with_status(503)),
            (2, 3, 1)
        );
        assert_eq!(recorder.latency_by(Operation::Get).map(Histogram::len), Some(1));
        let rows: Vec<_> = recorder.rows().iter().map(|row| (row.answers, row.not_ok)).collect();
        assert_eq!(rows, [(1, 0), (1, 2)]);
    }

    #[test]
    fn merging_two_threads_is_as_if_one_had_measured_all() {
        let mut all = Recorder::new(at(0));
        let mut parts = [Recorder::new(at(0)), Recorder::new(at(0))];
        for i in 0..1_000u64 {
            let outcome = Outcome { status: 200 + (i % 3) as u16, wrong_value: i % 100 == 0 };
            for recorder in [&mut all, &mut parts[(i % 2) as usize]] {
                recorder.answer(Operation::Get, at(i), at(i + i % 50), outcome);
            }
        }
        let [mut merged, other] = parts;
        merged.merge(&other);
        assert_eq!(merged.latency(), all.latency());
        assert_eq!(merged.statuses(), all.statuses());
        assert_eq!(merged.wrong_values(), all.wrong_values());
        assert_eq!(format!("{:?}", merged.rows()), format!("{:?}", all.rows()));
    }

    #[test]
    fn what_the_end_cut_off_counts_with_what_it_had_waited() {
        let mut recorder = Recorder::new(at(0));
        recorder.failure(Operation::Get, at(0), at(5_000), Failure::Unanswered);
        assert!(recorder.latency().max() >= 5_000_000_000);
    }
}
