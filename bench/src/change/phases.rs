//! The seconds of a run, and their latencies before, during and after a change.

use bench::recorder::micros;
use bench::timeline::{Row, RowLatency};
use serde::Serialize;

/// Status of an operation for which too few replicas have answered.
const NOT_ENOUGH_REPLICAS: u16 = 504;

/// Part of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Phase {
    #[default]
    Before,
    During,
    After,
}

impl Phase {
    /// Phase of a second, by the phases at its beginning and at its end. A second that belongs to
    /// the change in part belongs to it.
    pub(super) fn of_second(begins: Self, ends: Self) -> Self {
        if begins == Self::During { begins } else { ends }
    }
}

/// State of the cluster at a moment.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Progress {
    pub(super) phase: Phase,
    /// Epoch of the newest layout record that was seen.
    pub(super) epoch: u64,
    /// Bytes that were copied so far.
    pub(super) moved_bytes: u64,
    /// Copies of partitions that are still to be moved.
    pub(super) copies_left: u64,
    /// Number of steps that run.
    pub(super) steps: u64,
    /// The running plan as text; empty if none runs.
    pub(super) plan: String,
}

/// Figures of one second.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Second {
    pub(super) served: u64,
    /// Refused and failed operations.
    pub(super) not_ok: u64,
    /// Operations that were answered with `504`.
    pub(super) not_enough_replicas: u64,
    pub(super) p99_us: f64,
    pub(super) max_us: f64,
    /// Whether a record was decided in it.
    pub(super) has_new_epoch: bool,
    /// State at its end; the phase is that of the whole second.
    #[serde(flatten)]
    pub(super) progress: Progress,
    #[serde(skip)]
    latency: RowLatency,
}

impl Second {
    /// The second with these responses, which began and ended with these states of the cluster.
    pub(super) fn new(row: &Row, begins: &Progress, ends: &Progress) -> Self {
        let phase = Phase::of_second(begins.phase, ends.phase);
        Self {
            served: row.served(),
            not_ok: row.not_ok(),
            not_enough_replicas: row.statuses.get(&NOT_ENOUGH_REPLICAS).copied().unwrap_or(0),
            p99_us: micros(row.latency.quantile(0.99)),
            max_us: micros(row.latency.max_nanos()),
            has_new_epoch: begins.epoch != ends.epoch,
            progress: Progress { phase, ..ends.clone() },
            latency: row.latency.clone(),
        }
    }
}

/// Latencies of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct PhaseLatency {
    pub(super) operations: u64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
}

impl PhaseLatency {
    /// Latencies of all operations of a phase. `None` if there were none.
    pub(super) fn of(seconds: &[Second], phase: Phase) -> Option<Self> {
        let mut latency = RowLatency::default();
        let of_phase = seconds.iter().filter(|second| second.progress.phase == phase);
        of_phase.for_each(|second| latency.add(&second.latency));
        (!latency.is_empty()).then(|| Self {
            operations: latency.len(),
            p99_us: micros(latency.quantile(0.99)),
            p999_us: micros(latency.quantile(0.999)),
        })
    }
}

/// Upper bound of the delay of operations that were planned again, in milliseconds: the greatest
/// latency in the seconds in which a record was decided and in those after them, without the p99.9
/// before the change. `None` if no record was decided.
pub(super) fn replanning_delay_ms(seconds: &[Second]) -> Option<f64> {
    let usual_us = PhaseLatency::of(seconds, Phase::Before)?.p999_us;
    let is_changed = |number: usize| seconds[number].has_new_epoch;
    // An operation of the second before may be answered in this one.
    let changed =
        (0..seconds.len()).filter(|number| is_changed(*number) || *number > 0 && is_changed(number - 1));
    let greatest_us = changed.map(|number| seconds[number].max_us).max_by(f64::total_cmp)?;
    Some((greatest_us - usual_us).max(0.0) / 1e3)
}

/// The failures of a second in words, or `None` if there are none.
pub(super) fn failure_of(row: &Row) -> Option<String> {
    let status = row.statuses.keys().find(|status| !bench::timeline::is_ok(**status));
    let status = status.map(|status| format!("status {status}"));
    status.or_else(|| row.failures.keys().next().map(|failure| failure.name().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench::recorder::Failure;

    fn row(millis: &[u64], status: u16) -> Row {
        let mut row = Row::default();
        for latency in millis {
            row.latency.record(latency * 1_000_000);
            *row.statuses.entry(status).or_default() += 1;
        }
        row
    }

    fn at(phase: Phase, epoch: u64) -> Progress {
        Progress { phase, epoch, ..Progress::default() }
    }

    fn is_near(found: f64, expected: f64) -> bool {
        (found / expected - 1.0).abs() < 0.02
    }

    #[test]
    fn a_second_belongs_to_the_change_if_a_part_of_it_does() {
        use Phase::{After, Before, During};
        let phases = [(Before, Before), (Before, During), (During, During), (During, After), (After, After)];
        let found = phases.map(|(begins, ends)| Phase::of_second(begins, ends));
        assert_eq!(found, [Before, During, During, During, After]);
    }

    #[test]
    fn percentiles_are_those_of_all_operations_of_a_phase() {
        let (before, during) = (at(Phase::Before, 2), at(Phase::During, 2));
        let seconds = [
            Second::new(&row(&[1; 990], 200), &before, &before),
            Second::new(&row(&[5; 10], 200), &before, &before),
            Second::new(&row(&[2; 980], 200), &before, &during),
            Second::new(&row(&[40; 20], 504), &during, &during),
        ];
        let of = |phase| PhaseLatency::of(&seconds, phase);
        let (calm, changed) = (of(Phase::Before).unwrap(), of(Phase::During).unwrap());
        assert_eq!((calm.operations, changed.operations), (1_000, 1_000));
        assert!(is_near(calm.p99_us, 1_000.0) && is_near(calm.p999_us, 5_000.0), "{calm:?}");
        assert!(is_near(changed.p99_us, 40_000.0), "{changed:?}");
        assert_eq!(of(Phase::After), None);
        assert_eq!((seconds[3].not_ok, seconds[3].not_enough_replicas), (20, 20));
    }

    #[test]
    fn planning_again_is_judged_by_the_seconds_with_a_new_record() {
        let (before, during) = (at(Phase::Before, 2), at(Phase::During, 2));
        let calm = Second::new(&row(&[10; 100], 200), &before, &before);
        let copying = Second::new(&row(&[500], 200), &during, &during);
        assert_eq!(replanning_delay_ms(&[calm.clone(), copying.clone()]), None);
        let changing = Second::new(&row(&[60], 200), &during, &at(Phase::During, 3));
        let seconds = [calm.clone(), copying.clone(), changing.clone()];
        assert!(is_near(replanning_delay_ms(&seconds).unwrap(), 50.0));
        let late = [calm, changing, copying];
        assert!(is_near(replanning_delay_ms(&late).unwrap(), 490.0), "it may have begun before");
        assert_eq!(replanning_delay_ms(&[]), None);
    }

    #[test]
    fn a_failure_is_named_by_its_status_or_its_kind() {
        assert_eq!(failure_of(&row(&[1], 404)), None);
        assert_eq!(failure_of(&row(&[1], 503)).as_deref(), Some("status 503"));
        let broken = Row { failures: [(Failure::Broken, 1)].into(), ..Row::default() };
        assert_eq!(failure_of(&broken).as_deref(), Some("connection broken"));
    }
}
