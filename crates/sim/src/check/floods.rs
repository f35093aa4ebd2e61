//! More is asked than disks bear: what is refused is refused early, what is let in is done as before, and once the flood is
//! over all is well again.

use super::Violation;
use crate::Nanos;
use crate::history::{Asked, Operation, Told};
use std::ops::Range;
use std::time::Duration;

/// All is well again so long after the flood.
pub const WELL_AFTER: Duration = Duration::from_secs(2);
/// What is asked then is done within so long.
pub const WELL_WITHIN: Duration = Duration::from_millis(400);
/// No answer comes so long after its deadline.
const TICK: Duration = Duration::from_millis(50);
/// Of what fails in the flood, one in so many may be told late.
const LATE_FAILURES: usize = 10;

/// When clients asked for what.
#[derive(Clone, Debug)]
pub struct Flood {
    /// What they wait for an answer.
    pub deadline: Duration,
    /// Somewhat less than the disks bear.
    pub calm: Range<Nanos>,
    /// Far more.
    pub flood: Range<Nanos>,
    /// A little.
    pub after: Range<Nanos>,
}

/// Checks all that was asked.
pub fn check<'a>(operations: impl Iterator<Item = &'a Operation>, times: &Flood) -> Result<(), Violation> {
    let operations: Vec<&Operation> = operations.collect();
    let asked_in = |range: &Range<Nanos>| {
        let range = range.clone();
        operations.iter().copied().filter(move |operation| range.contains(&operation.began))
    };
    if let Some(late) = operations.iter().find(|operation| took(operation) > times.deadline + TICK) {
        return violation(format!("it is answered too late: {late:?}"));
    }
    let failed: Vec<Duration> = asked_in(&times.flood).filter(|asked| has_failed(asked)).map(took).collect();
    let late = failed.iter().filter(|took| **took > times.deadline / 2).count();
    if late * LATE_FAILURES > failed.len() {
        return violation(format!("{late} of {} are told late that they failed", failed.len()));
    }
    let rate = |range: &Range<Nanos>| {
        asked_in(range).filter(|asked| is_stored(asked)).count() as f64
            / (range.end - range.start).as_secs_f64()
    };
    let (calm, flooded) = (rate(&times.calm), rate(&times.flood));
    if flooded * 2.0 < calm {
        return violation(format!("{calm} writes a second are done before the flood, {flooded} in it"));
    }
    let well_from = times.flood.end + WELL_AFTER;
    let unwell = |asked: &&Operation| has_failed(asked) || took(asked) > WELL_WITHIN;
    match asked_in(&(well_from..times.after.end)).find(unwell) {
        Some(unwell) => violation(format!("{WELL_AFTER:?} after the flood: {unwell:?}")),
        None => Ok(()),
    }
}

fn violation(detail: String) -> Result<(), Violation> {
    Err(Violation::new("floods", detail))
}

/// How long it took to answer it; what is not answered is the concern of `deadlines`.
fn took(operation: &Operation) -> Duration {
    operation.told.as_ref().map_or(Duration::ZERO, |(at, _)| *at - operation.began)
}

const fn has_failed(operation: &Operation) -> bool {
    matches!(operation.told, Some((_, Told::Failed { .. })))
}

fn is_stored(operation: &Operation) -> bool {
    operation.asked != Asked::Get && matches!(operation.told, Some((_, Told::Written { .. })))
}

#[cfg(test)]
mod tests {
    use super::super::testing::write;
    use super::*;

    const MILLI: u64 = 1_000_000;

    /// A second each; the last one begins when all is well again.
    fn times() -> Flood {
        let seconds = |from: u64, until: u64| Nanos(from * 1_000 * MILLI)..Nanos(until * 1_000 * MILLI);
        Flood {
            deadline: Duration::from_secs(1),
            calm: seconds(0, 1),
            flood: seconds(1, 2),
            after: seconds(2, 5),
        }
    }

    /// So many writes begun from this millisecond on, done in as many.
    fn done(count: u64, from: u64, took: u64) -> Vec<Operation> {
        (0..count)
            .map(|number| write(1, (2, 3), (from + number) * MILLI..(from + number + took) * MILLI))
            .collect()
    }

    fn failed(count: u64, from: u64, took: u64) -> Vec<Operation> {
        let told = || Told::Failed { is_certain: true, reason: "busy".to_owned() };
        let fail = |write: Operation| Operation { told: write.told.map(|(at, _)| (at, told())), ..write };
        done(count, from, took).into_iter().map(fail).collect()
    }

    fn is_well(parts: &[Vec<Operation>; 4]) -> bool {
        check(parts.concat().iter(), &times()).is_ok()
    }

    #[test]
    fn what_a_flood_may_do_and_what_not() {
        let (calm, flooded, refused, after) =
            (|| done(20, 0, 5), || done(12, 1_000, 200), || failed(100, 1_000, 0), || done(9, 4_500, 5));
        assert!(is_well(&[calm(), flooded(), refused(), after()]));
        assert!(!is_well(&[calm(), done(12, 1_000, 1_100), refused(), after()]), "late answers");
        assert!(!is_well(&[calm(), flooded(), failed(100, 1_000, 700), after()]), "late refusals");
        assert!(!is_well(&[calm(), done(9, 1_000, 200), refused(), after()]), "fewer are done");
        assert!(!is_well(&[calm(), flooded(), refused(), failed(1, 4_500, 0)]), "refused still");
        assert!(!is_well(&[calm(), flooded(), refused(), done(1, 4_500, 500)]), "slow still");
        assert!(is_well(&[calm(), flooded(), refused(), failed(9, 3_500, 0)]), "not yet");
    }
}
