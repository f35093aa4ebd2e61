//! Recording of measurements: latencies, statuses, failures, and rows over time.
//!
//! Each thread has its own [`Recorder`] for each lane: no state is shared within a second. At the
//! end of a second its row is added to the lane's [`SharedTimeline`], which merges the rows of all
//! threads. The rows are displayed during the run and reported after it.

use crate::timeline::{Row, Timeline, is_ok};
use crate::workload::Operation;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use stdx::Instant;

/// Greatest recorded latency, in nanoseconds. Longer latencies count as this one.
const LATENCY_NANOS_MAX: u64 = 600_000_000_000;
/// Significant digits of the histograms: the error is below 0.1 %.
const DIGITS: u8 = 3;
/// Maximum number of rows that wait to be displayed. Older rows are kept in the timeline only.
const RECENT_MAX: usize = 16;

const NANOS_PER_SECOND: i128 = 1_000_000_000;

/// Properties of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseOutcome {
    /// Status code.
    pub status: u16,
    /// Whether the body was verified and was wrong.
    pub wrong_value: bool,
    /// Bytes of the body, without framing.
    pub body_bytes: u64,
    /// Entries of a range.
    pub entries: u64,
}

impl ResponseOutcome {
    /// A response with this status, without body bytes and without a wrong value.
    pub fn of_status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }
}

/// Reason why a request has no valid response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Failure {
    /// No connection could be established.
    Connect,
    /// The connection broke while the request was in flight.
    Broken,
    /// The response was malformed.
    Malformed,
    /// No response arrived before the end of the drain time, or before the request was abandoned.
    Unanswered,
    /// The request was due, but its connection was busy until the end.
    Unsent,
}

impl Failure {
    /// Description in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connect => "no connection",
            Self::Broken => "connection broken",
            Self::Malformed => "not HTTP",
            Self::Unanswered => "unanswered",
            Self::Unsent => "unsent",
        }
    }
}

/// Timeline of a lane, shared by all threads.
#[derive(Debug, Default)]
pub struct SharedTimeline {
    rows: Mutex<SharedRows>,
}

#[derive(Debug, Default)]
struct SharedRows {
    timeline: Timeline,
    /// Rows by second, negative during the warm-up.
    recent: BTreeMap<i64, Row>,
}

impl SharedTimeline {
    /// Removes and returns the row of a second, as far as threads have published it.
    pub fn take_recent(&self, second: i64) -> Row {
        self.lock().recent.remove(&second).unwrap_or_default()
    }

    /// All rows so far.
    pub fn timeline(&self) -> Timeline {
        self.lock().timeline.clone()
    }

    fn publish(&self, second: i64, row: &Row) {
        let mut rows = self.lock();
        if let Ok(second) = u64::try_from(second) {
            rows.timeline.add(second, row);
        }
        rows.recent.entry(second).or_default().add(row);
        while rows.recent.len() > RECENT_MAX {
            rows.recent.pop_first();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, SharedRows> {
        // A row is added as a whole, so a thread that panicked has not left partial data.
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Number of the second, counted from `from`, that contains `now`.
pub(crate) fn second_of(from: Instant, now: Instant) -> i64 {
    let nanos = i128::from(now.as_nanos()) - i128::from(from.as_nanos());
    i64::try_from(nanos.div_euclid(NANOS_PER_SECOND)).unwrap_or(i64::MAX)
}

/// Measurements of one lane on one thread, or on all threads after merging.
#[derive(Clone, Debug)]
pub struct Recorder {
    from: Instant,
    to: Instant,
    by_operation: [Option<Box<Histogram<u64>>>; Operation::ALL.len()],
    statuses: BTreeMap<u16, u64>,
    failures: BTreeMap<Failure, u64>,
    wrong_values: u64,
    body_bytes: u64,
    entries: u64,
    answers_with_warmup: u64,
    arrived: u64,
    arrived_served: u64,
    /// Latencies of refusals, errors and requests without a response. These are few in normal
    /// operation.
    unserved: Option<Box<Histogram<u64>>>,
    shared_timeline: Arc<SharedTimeline>,
    second: i64,
    second_ends: Instant,
    row: Row,
}

impl Recorder {
    /// Creates a recorder. Requests whose intended start is before `from` are warm-up and not
    /// counted. No request starts at `to` or later. Rows are published to `shared_timeline`.
    pub fn new(from: Instant, to: Instant, shared_timeline: Arc<SharedTimeline>) -> Self {
        Self {
            from,
            to,
            by_operation: [const { None }; Operation::ALL.len()],
            statuses: BTreeMap::new(),
            failures: BTreeMap::new(),
            wrong_values: 0,
            body_bytes: 0,
            entries: 0,
            answers_with_warmup: 0,
            arrived: 0,
            arrived_served: 0,
            unserved: None,
            shared_timeline,
            second: i64::MIN,
            second_ends: Instant::ZERO,
            row: Row::default(),
        }
    }

    /// Records a response that arrived at `now`, to a request whose intended start was `intended`.
    pub fn answer(
        &mut self,
        operation: Operation,
        intended: Instant,
        now: Instant,
        outcome: ResponseOutcome,
    ) {
        self.answers_with_warmup += 1;
        let is_served = is_ok(outcome.status);
        if self.from <= now && now < self.to {
            self.arrived += 1;
            self.arrived_served += u64::from(is_served);
        }
        self.advance_to(now);
        if intended >= self.from {
            *self.statuses.entry(outcome.status).or_default() += 1;
            self.wrong_values += u64::from(outcome.wrong_value);
            self.body_bytes += outcome.body_bytes;
            self.entries += outcome.entries;
            self.latency_of(operation, intended, now, is_served);
        } else if self.second >= 0 {
            return;
        }
        *self.row.statuses.entry(outcome.status).or_default() += 1;
        self.row.latency.record(nanos_between(intended, now));
    }

    /// Records a request without a valid response. If the end of the run cut it off, the time it
    /// has waited is recorded as its latency: a lower bound.
    pub fn failure(&mut self, operation: Operation, intended: Instant, now: Instant, failure: Failure) {
        self.advance_to(now);
        if intended >= self.from {
            *self.failures.entry(failure).or_default() += 1;
            if matches!(failure, Failure::Unanswered | Failure::Unsent) {
                self.latency_of(operation, intended, now, false);
            }
        } else if self.second >= 0 {
            return;
        }
        *self.row.failures.entry(failure).or_default() += 1;
    }

    /// Advances the time to `now`. Publishes the row of a second that has ended.
    pub fn advance_to(&mut self, now: Instant) {
        if now < self.second_ends {
            return;
        }
        self.publish();
        self.second = second_of(self.from, now);
        let ends = i128::from(self.from.as_nanos()) + (i128::from(self.second) + 1) * NANOS_PER_SECOND;
        self.second_ends = Instant::from_nanos(u64::try_from(ends).unwrap_or(u64::MAX));
    }

    /// Ends the run at `now`, if that is earlier than planned.
    pub fn end_by(&mut self, now: Instant) {
        self.to = self.to.min(now);
    }

    /// Publishes the last row.
    pub fn finish(&mut self) {
        self.publish();
    }

    fn publish(&mut self) {
        let row = std::mem::take(&mut self.row);
        if row != Row::default() {
            self.shared_timeline.publish(self.second, &row);
        }
    }

    /// Adds the measurements of another thread in the same run. The timeline is shared already.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.by_operation.iter_mut().zip(&other.by_operation) {
            if let Some(theirs) = theirs {
                mine.get_or_insert_with(empty).add(theirs.as_ref()).expect("both have the same range");
            }
        }
        if let Some(theirs) = &other.unserved {
            let mine = self.unserved.get_or_insert_with(empty);
            mine.add(theirs.as_ref()).expect("both have the same range");
        }
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        for (failure, count) in &other.failures {
            *self.failures.entry(*failure).or_default() += count;
        }
        self.wrong_values += other.wrong_values;
        self.body_bytes += other.body_bytes;
        self.entries += other.entries;
        self.answers_with_warmup += other.answers_with_warmup;
        self.arrived += other.arrived;
        self.arrived_served += other.arrived_served;
    }

    /// Number of responses of all operations and statuses.
    pub fn answers(&self) -> u64 {
        self.statuses.values().sum()
    }

    /// Number of responses, including the warm-up: the server's CPU time was spent on all of them.
    pub const fn answers_with_warmup(&self) -> u64 {
        self.answers_with_warmup
    }

    /// Number of responses that arrived during the measured time, regardless of the start of their
    /// requests. This is the rate that a server sustains.
    pub const fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Number of successful responses among [`Recorder::arrived`].
    pub const fn arrived_served(&self) -> u64 {
        self.arrived_served
    }

    /// Number of responses with this status.
    pub fn with_status(&self, status: u16) -> u64 {
        self.statuses.get(&status).copied().unwrap_or(0)
    }

    /// Responses by status.
    pub const fn statuses(&self) -> &BTreeMap<u16, u64> {
        &self.statuses
    }

    /// Requests without a valid response, by reason.
    pub const fn failures(&self) -> &BTreeMap<Failure, u64> {
        &self.failures
    }

    /// Number of responses whose value did not match the key.
    pub const fn wrong_values(&self) -> u64 {
        self.wrong_values
    }

    /// Bytes of bodies that were read.
    pub const fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    /// Entries of ranges that were read.
    pub const fn entries(&self) -> u64 {
        self.entries
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

    /// Latencies of successful requests, in nanoseconds.
    pub fn served_latency(&self) -> Histogram<u64> {
        let mut served = self.latency();
        if let Some(unserved) = &self.unserved {
            served.subtract(unserved.as_ref()).expect("each of them is also among all");
        }
        served
    }

    /// All rows so far, of all threads.
    pub fn timeline(&self) -> Timeline {
        self.shared_timeline.timeline()
    }

    fn latency_of(&mut self, operation: Operation, intended: Instant, now: Instant, is_served: bool) {
        let nanos = nanos_between(intended, now);
        self.by_operation[operation as usize].get_or_insert_with(empty).saturating_record(nanos);
        if !is_served {
            self.unserved.get_or_insert_with(empty).saturating_record(nanos);
        }
    }
}

fn empty() -> Box<Histogram<u64>> {
    Box::new(Histogram::new_with_max(LATENCY_NANOS_MAX, DIGITS).expect("a valid range"))
}

fn nanos_between(from: Instant, to: Instant) -> u64 {
    to.as_nanos().saturating_sub(from.as_nanos())
}

/// Converts nanoseconds to microseconds.
pub fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn recorder(from: u64, shared_timeline: &Arc<SharedTimeline>) -> Recorder {
        Recorder::new(at(from), at(60_000), Arc::clone(shared_timeline))
    }

    #[test]
    fn warm_up_does_not_count_and_seconds_are_counted_in_their_rows() {
        let shared_timeline = Arc::default();
        let mut recorder = recorder(1_000, &shared_timeline);
        recorder.answer(Operation::Get, at(990), at(995), ResponseOutcome::of_status(200));
        recorder.answer(Operation::Get, at(999), at(1_500), ResponseOutcome::of_status(200));
        recorder.answer(Operation::Get, at(1_000), at(1_500), ResponseOutcome::of_status(200));
        recorder.answer(Operation::Put, at(1_000), at(2_500), ResponseOutcome::of_status(503));
        recorder.failure(Operation::Get, at(1_000), at(2_600), Failure::Broken);
        recorder.finish();
        assert_eq!(
            (recorder.answers(), recorder.answers_with_warmup(), recorder.with_status(503)),
            (2, 4, 1)
        );
        assert_eq!((recorder.arrived(), recorder.arrived_served()), (3, 2), "by when they came");
        assert_eq!(recorder.served_latency().len(), 1);
        assert_eq!(recorder.latency_by(Operation::Get).map(Histogram::len), Some(1));
        let timeline = shared_timeline.timeline();
        let rows: Vec<_> = timeline.rows().iter().map(|row| (row.answers(), row.not_ok())).collect();
        assert_eq!(rows, [(1, 0), (1, 2)]);
        assert_eq!([-1, 0, 0].map(|second| shared_timeline.take_recent(second).answers()), [1, 1, 0]);
    }

    #[test]
    fn merging_two_threads_is_as_if_one_had_measured_all() {
        let shared_timelines: [Arc<SharedTimeline>; 2] = Default::default();
        let mut all = recorder(0, &shared_timelines[0]);
        let mut parts = [recorder(0, &shared_timelines[1]), recorder(0, &shared_timelines[1])];
        for i in 0..5_000u64 {
            let outcome = ResponseOutcome {
                status: 200 + (i % 3) as u16 * 101,
                wrong_value: i % 100 == 0,
                body_bytes: i,
                entries: 1,
            };
            for recorder in [&mut all, &mut parts[(i % 2) as usize]] {
                recorder.answer(Operation::Get, at(i), at(i + i % 50), outcome);
            }
        }
        [&mut all].into_iter().chain(&mut parts).for_each(Recorder::finish);
        let [mut merged, other] = parts;
        merged.merge(&other);
        assert_eq!(merged.latency(), all.latency());
        assert_eq!(merged.statuses(), all.statuses());
        assert_eq!((merged.wrong_values(), merged.body_bytes()), (all.wrong_values(), all.body_bytes()));
        assert_eq!((merged.entries(), merged.arrived()), (all.entries(), all.arrived()));
        assert_eq!(merged.arrived_served(), all.arrived_served());
        assert_eq!(merged.served_latency(), all.served_latency());
        assert_eq!(merged.timeline(), all.timeline());
    }

    #[test]
    fn requests_cut_off_by_the_end_count_with_their_wait() {
        let mut recorder = recorder(0, &Arc::default());
        recorder.failure(Operation::Get, at(0), at(5_000), Failure::Unanswered);
        assert!(recorder.latency().max() >= 5_000_000_000);
    }
}
