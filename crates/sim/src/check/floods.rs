//! Invariant: overload does not cause a collapse.
//!
//! When clients ask for more than the disks bear, refusals are early and admitted commands still
//! succeed. The cluster recovers soon after the flood.

use super::InvariantViolation;
use crate::Nanos;
use crate::history::{ClientOperation, ClientOutcome, CommandKind};
use std::ops::Range;
use std::time::Duration;

/// Time after the end of the flood within which the cluster recovers.
pub const RECOVERED_AFTER: Duration = Duration::from_secs(2);
/// Greatest latency of a command after that recovery.
pub const RECOVERED_LATENCY_MAX: Duration = Duration::from_millis(400);
/// Greatest delay of an answer after its deadline.
const TICK: Duration = Duration::from_millis(50);
/// One failure in this many during the flood may be reported late.
const LATE_FAILURES: usize = 10;

/// Times of the phases of a run with a flood.
#[derive(Clone, Debug)]
pub struct FloodPhases {
    /// Deadline of each command.
    pub deadline: Duration,
    /// Phase in which clients ask for somewhat less than the disks bear.
    pub calm: Range<Nanos>,
    /// Phase in which clients ask for far more than the disks bear.
    pub flood: Range<Nanos>,
    /// Phase in which clients ask for little.
    pub after: Range<Nanos>,
}

/// Checks all commands of a run with a flood.
pub fn check<'a>(
    operations: impl Iterator<Item = &'a ClientOperation>,
    times: &FloodPhases,
) -> Result<(), InvariantViolation> {
    let operations: Vec<&ClientOperation> = operations.collect();
    let begun_in = |range: &Range<Nanos>| {
        let range = range.clone();
        operations.iter().copied().filter(move |operation| range.contains(&operation.began))
    };
    if let Some(late) = operations.iter().find(|operation| took(operation) > times.deadline + TICK) {
        return violation(format!("a command was answered too late: {late:?}"));
    }
    let failed: Vec<Duration> =
        begun_in(&times.flood).filter(|operation| has_failed(operation)).map(took).collect();
    let late = failed.iter().filter(|took| **took > times.deadline / 2).count();
    if late * LATE_FAILURES > failed.len() {
        return violation(format!("{late} of {} failures were reported late", failed.len()));
    }
    let rate = |range: &Range<Nanos>| {
        begun_in(range).filter(|operation| is_stored(operation)).count() as f64
            / (range.end - range.start).as_secs_f64()
    };
    let (calm, flooded) = (rate(&times.calm), rate(&times.flood));
    if flooded * 2.0 < calm {
        return violation(format!("{calm} writes a second succeed before the flood, {flooded} during it"));
    }
    let well_from = times.flood.end + RECOVERED_AFTER;
    let failing =
        |operation: &&ClientOperation| has_failed(operation) || took(operation) > RECOVERED_LATENCY_MAX;
    match begun_in(&(well_from..times.after.end)).find(failing) {
        Some(failing) => violation(format!("{RECOVERED_AFTER:?} after the flood: {failing:?}")),
        None => Ok(()),
    }
}

fn violation(detail: String) -> Result<(), InvariantViolation> {
    Err(InvariantViolation::new("floods", detail))
}

/// Latency of an answered command, and zero for an unanswered one, which `deadlines` checks.
fn took(operation: &ClientOperation) -> Duration {
    operation.outcome.as_ref().map_or(Duration::ZERO, |(at, _)| *at - operation.began)
}

const fn has_failed(operation: &ClientOperation) -> bool {
    matches!(operation.outcome, Some((_, ClientOutcome::Failed { .. })))
}

fn is_stored(operation: &ClientOperation) -> bool {
    operation.kind != CommandKind::Get
        && matches!(operation.outcome, Some((_, ClientOutcome::Written { .. })))
}

#[cfg(test)]
mod tests {
    use super::super::testing::write;
    use super::*;

    const MILLI: u64 = 1_000_000;

    /// Phases for tests. The last one lasts longer than the recovery.
    fn times() -> FloodPhases {
        let seconds = |from: u64, until: u64| Nanos(from * 1_000 * MILLI)..Nanos(until * 1_000 * MILLI);
        FloodPhases {
            deadline: Duration::from_secs(1),
            calm: seconds(0, 1),
            flood: seconds(1, 2),
            after: seconds(2, 5),
        }
    }

    /// `count` writes that begin one millisecond apart from millisecond `from` on and take `took`
    /// milliseconds each.
    fn done(count: u64, from: u64, took: u64) -> Vec<ClientOperation> {
        (0..count)
            .map(|number| write(1, (2, 3), (from + number) * MILLI..(from + number + took) * MILLI))
            .collect()
    }

    fn failed(count: u64, from: u64, took: u64) -> Vec<ClientOperation> {
        let outcome = || ClientOutcome::Failed { is_not_stored: true, reason: "busy".to_owned() };
        let fail = |write: ClientOperation| ClientOperation {
            outcome: write.outcome.map(|(at, _)| (at, outcome())),
            ..write
        };
        done(count, from, took).into_iter().map(fail).collect()
    }

    fn passes(parts: &[Vec<ClientOperation>; 4]) -> bool {
        check(parts.concat().iter(), &times()).is_ok()
    }

    #[test]
    fn late_answers_late_refusals_collapse_and_slow_recovery_are_caught() {
        let (calm, flooded, refused, after) =
            (|| done(20, 0, 5), || done(12, 1_000, 200), || failed(100, 1_000, 0), || done(9, 4_500, 5));
        assert!(passes(&[calm(), flooded(), refused(), after()]));
        assert!(!passes(&[calm(), done(12, 1_000, 1_100), refused(), after()]), "late answers");
        assert!(!passes(&[calm(), flooded(), failed(100, 1_000, 700), after()]), "late refusals");
        assert!(!passes(&[calm(), done(9, 1_000, 200), refused(), after()]), "throughput collapses");
        assert!(!passes(&[calm(), flooded(), refused(), failed(1, 4_500, 0)]), "still refused");
        assert!(!passes(&[calm(), flooded(), refused(), done(1, 4_500, 500)]), "still slow");
        assert!(passes(&[calm(), flooded(), refused(), failed(9, 3_500, 0)]), "within the recovery");
    }
}
