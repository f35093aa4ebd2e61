//! Outcome of a load: requests that were served, refused, late or not answered.

use crate::measure::Sample;
use bench::LaneResult;
use bench::recorder::{Failure, micros};
use bench::timeline::is_ok;
use hdrhistogram::Histogram;
use std::fmt;

/// Outcome of a load.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadOutcome {
    pub(super) served_per_second: f64,
    pub(super) answers_per_second: f64,
    /// Requests sent per second. The other requests found all of their connections busy.
    pub(super) sent_per_second: f64,
    /// Fraction of the responses that were refusals: `503` and `507`.
    pub(super) refused: f64,
    /// Fraction of the responses that reported a deadline or another failure.
    pub(super) late: f64,
    /// Requests that were sent and not answered, or whose connection broke.
    pub(super) failed: u64,
    pub(super) p99_us: f64,
    pub(super) max_us: f64,
    pub(super) sample: Sample,
}

impl LoadOutcome {
    pub(super) fn of(result: &LaneResult, sample: Sample) -> Self {
        let recorder = &result.recorder;
        let (answers, seconds) = (recorder.answers(), result.elapsed.as_secs_f64());
        let share = |is_kind: fn(u16) -> bool| {
            let of_kind = recorder.statuses().iter().filter(|(status, _)| is_kind(**status));
            of_kind.map(|(_, count)| count).sum::<u64>() as f64 / answers.max(1) as f64
        };
        let refused = share(is_refusal);
        let late = share(|status| !is_ok(status) && !is_refusal(status));
        let failures = recorder.failures().iter();
        let failed: u64 =
            failures.filter(|(failure, _)| **failure != Failure::Unsent).map(|(_, count)| count).sum();
        let served = recorder.served_latency();
        Self {
            served_per_second: result.served_per_second(),
            answers_per_second: result.answers_per_second(),
            sent_per_second: (answers + failed) as f64 / seconds,
            refused,
            late,
            failed,
            p99_us: latency_us(&served, served.value_at_quantile(0.99)),
            max_us: latency_us(&served, served.max()),
            sample,
        }
    }
}

/// Latency in microseconds; infinite if nothing was served.
fn latency_us(served: &Histogram<u64>, nanos: u64) -> f64 {
    if served.is_empty() { f64::INFINITY } else { micros(nanos) }
}

const fn is_refusal(status: u16) -> bool {
    matches!(status, 503 | 507)
}

impl fmt::Display for LoadOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.0}/s; {:.1} % of {:.0} answers/s refused, {:.1} % too late, {} failed; generator busy {:.0} %",
            self.served_per_second,
            self.refused * 100.0,
            self.answers_per_second,
            self.late * 100.0,
            self.failed,
            self.sample.generator_busy * 100.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::flood::{add_closed_rows, add_open_row};
    use super::super::knee::Knee;
    use super::*;
    use crate::table::{ResultTable, Threshold};
    use bench::machine::MachineInfo;
    use bench::recorder::{Recorder, ResponseOutcome as Answered};
    use bench::{Operation, Pacing};
    use std::sync::Arc;
    use std::time::Duration;
    use stdx::Instant;

    const SAMPLE: Sample = Sample {
        cpu_us: 1.0,
        answers: 1,
        per_second: 1.0,
        p50_us: 1.0,
        p99_us: 1.0,
        p999_us: 1.0,
        generator_busy: 0.5,
    };

    /// Two seconds with these numbers of responses by status. A `504` takes 1 s, every other
    /// response 10 ms.
    fn outcome(statuses: &[(u16, u64)], unsent: u64) -> LoadOutcome {
        let at = |millis: u64| Instant::ZERO + Duration::from_millis(millis);
        let mut recorder = Recorder::new(at(0), at(2_000), Arc::default());
        for (status, count) in statuses {
            let took = if *status == 504 { 1_000 } else { 10 };
            for _ in 0..*count {
                recorder.answer(Operation::Put, at(100), at(100 + took), Answered::of_status(*status));
            }
        }
        (0..unsent).for_each(|_| recorder.failure(Operation::Put, at(100), at(200), Failure::Unsent));
        recorder.failure(Operation::Put, at(100), at(150), Failure::Broken);
        let pacing = Pacing::Rate(1_000);
        LoadOutcome::of(
            &LaneResult {
                name: String::new(),
                pacing,
                burst: Duration::ZERO,
                recorder,
                elapsed: Duration::from_secs(2),
            },
            SAMPLE,
        )
    }

    #[test]
    fn goodput_and_latency_exclude_unserved_requests() {
        let outcome = outcome(&[(201, 100), (503, 200), (507, 40), (504, 60)], 1_000);
        assert_eq!((outcome.served_per_second, outcome.answers_per_second), (50.0, 200.0));
        assert_eq!((outcome.refused, outcome.late, outcome.failed), (0.6, 0.15, 1));
        assert_eq!(outcome.sent_per_second, 200.5);
        assert!((9_900.0..10_100.0).contains(&outcome.p99_us), "{outcome}");
    }

    #[test]
    fn a_node_that_serves_too_little_or_nothing_misses_its_targets() {
        let mut table = ResultTable::new(MachineInfo::here(), String::new());
        let knee = Knee { rate: 100.0, calm: outcome(&[(201, 200)], 0), closed_per_second: 120.0 };
        add_closed_rows(&knee, 640, &outcome(&[(201, 190), (503, 500)], 0), &mut table);
        assert_eq!(table.missed().len(), 0);
        add_closed_rows(&knee, 640, &outcome(&[(503, 500)], 0), &mut table);
        assert_eq!(table.missed().len(), 3);
        add_open_row(&knee, 1.5, &outcome(&[(201, 100)], 50), Threshold::AtLeast(0.6), &mut table);
        assert_eq!(table.missed().len(), 4);
    }
}
