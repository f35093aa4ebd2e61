//! Search for the highest rate that meets a goal: it proposes rates and receives verdicts.
//!
//! **Promise.** If all rates up to a threshold hold and none above it does, [`RateSearch`] finds
//! the threshold within [`PRECISION`], in a number of trials logarithmic in the rate. The search
//! terminates for any verdicts.
//!
//! **Mechanism.** The rate doubles while it holds (or is halved until it does). Then the gap
//! between the highest rate that held and the lowest that failed is bisected until it is small: the
//! *knee*. A trial is short, and a hiccup unrelated to the rate may make it fail. Therefore a rate
//! fails only if it fails twice, and the first failing rate must also fail at twice the rate. The
//! knee is no rate for production: the search steps back by a fifth and asks for a long measurement
//! there, and for another fifth less if that fails: the *working point*.
//!
//! **Caveats.** If the machine slows down during the search (throttling, a growing store), the knee
//! is too high; the working point is then the reliable figure. If hiccups occur at every rate, the
//! result measures their frequency: use longer trials or a goal with more slack.

/// Maximum gap between the knee and the lowest failing rate, as a fraction of the knee.
pub const PRECISION: f64 = 0.02;
/// Factor from the knee to the first rate of the long measurements, and from each failed one to the
/// next.
pub const STEP_BACK: f64 = 0.8;
/// Divisor of a trial's duration: the pause after a trial, so that its after-effects are not
/// charged to the next one.
pub const SETTLE_DIVISOR: u32 = 20;
/// Maximum rate, in requests/s: more than one generator sends.
pub const RATE_MAX: u64 = 10_000_000;
/// Maximum number of long measurements.
const CONFIRMATIONS_MAX: u32 = 3;

/// Next step of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchStep {
    /// Measure this rate briefly.
    Try(u64),
    /// Measure this rate for long.
    Confirm(u64),
    /// The search has ended.
    Done(SearchResult),
}

/// Result of a search, in requests/s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchResult {
    /// Highest rate that held in a trial.
    pub knee: Option<u64>,
    /// Rate that held in a long measurement.
    pub working_point: Option<u64>,
}

/// A search in progress.
#[derive(Clone, Debug)]
pub struct RateSearch {
    rate: u64,
    held: Option<u64>,
    failed: Option<u64>,
    has_failed_once: bool,
    /// Whether `rate` is twice the first failing rate, to find out whether that failed because of
    /// its rate.
    is_rechecking: bool,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Trials,
    Confirming { attempts: u32 },
    Done { working_point: Option<u64> },
}

impl RateSearch {
    /// Creates a search that begins at `start` requests/s.
    pub fn new(start: u64) -> Self {
        let rate = start.clamp(1, RATE_MAX);
        Self {
            rate,
            held: None,
            failed: None,
            has_failed_once: false,
            is_rechecking: false,
            phase: Phase::Trials,
        }
    }

    /// Next step. Calling this has no effect.
    pub fn step(&self) -> SearchStep {
        match self.phase {
            Phase::Trials => SearchStep::Try(self.rate),
            Phase::Confirming { .. } => SearchStep::Confirm(self.rate),
            Phase::Done { working_point } => {
                SearchStep::Done(SearchResult { knee: self.held, working_point })
            }
        }
    }

    /// Records whether the rate of the last [`RateSearch::step`] held.
    pub fn record_verdict(&mut self, held: bool) {
        match self.phase {
            Phase::Trials if held || self.has_failed_once || self.is_rechecking => self.end_trial(held),
            Phase::Trials => self.has_failed_once = true,
            Phase::Confirming { .. } if held => self.phase = Phase::Done { working_point: Some(self.rate) },
            Phase::Confirming { attempts } if attempts + 1 == CONFIRMATIONS_MAX => self.end(),
            Phase::Confirming { attempts } => self.confirm_below(self.rate, attempts + 1),
            Phase::Done { .. } => {}
        }
    }

    fn end_trial(&mut self, held: bool) {
        self.has_failed_once = false;
        let was_rechecking = std::mem::take(&mut self.is_rechecking);
        if held {
            self.held = Some(self.rate);
            // A failure below a rate that holds was not caused by its rate.
            self.failed = self.failed.filter(|failed| *failed > self.rate);
        } else if !was_rechecking {
            let is_first = self.failed.replace(self.rate).is_none();
            if is_first && self.rate <= RATE_MAX / 2 {
                self.is_rechecking = true;
                self.rate *= 2;
                return;
            }
        }
        match (self.held, self.failed) {
            (None, Some(1) | None) => self.end(),
            (None, Some(failed)) => self.rate = failed / 2,
            (Some(held), None) if held == RATE_MAX => self.confirm_below(held, 0),
            (Some(held), None) => self.rate = (held * 2).min(RATE_MAX),
            (Some(held), Some(failed)) if is_close(held, failed) => self.confirm_below(held, 0),
            (Some(held), Some(failed)) => self.rate = held + (failed - held) / 2,
        }
    }

    /// Requests a long measurement, a step below `rate`.
    fn confirm_below(&mut self, rate: u64, attempts: u32) {
        let back = (rate as f64 * STEP_BACK) as u64;
        if back == 0 {
            return self.end();
        }
        self.rate = back;
        self.phase = Phase::Confirming { attempts };
    }

    fn end(&mut self) {
        self.phase = Phase::Done { working_point: None };
    }
}

fn is_close(held: u64, failed: u64) -> bool {
    failed - held <= ((held as f64 * PRECISION) as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goal::{Goal, Observation};
    use crate::schedule::{Pacing, Schedule, ThreadShare};
    use hdrhistogram::Histogram;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::time::Duration;
    use stdx::{Instant, Rng};

    const TRIALS_MAX: usize = 120;

    /// Runs a search to its end against `holds`. Returns its steps and its result.
    fn search(start: u64, mut holds: impl FnMut(SearchStep) -> bool) -> (Vec<SearchStep>, SearchResult) {
        let mut search = RateSearch::new(start);
        let mut steps = Vec::new();
        loop {
            match search.step() {
                SearchStep::Done(found) => return (steps, found),
                step => {
                    steps.push(step);
                    assert!(steps.len() <= TRIALS_MAX, "the search does not end: {steps:?}");
                    search.record_verdict(holds(step));
                }
            }
        }
    }

    fn rate(step: SearchStep) -> u64 {
        match step {
            SearchStep::Try(rate) | SearchStep::Confirm(rate) => rate,
            SearchStep::Done(_) => unreachable!("the search has ended"),
        }
    }

    proptest! {
        #[test]
        fn the_knee_of_a_server_with_one_is_found(capacity in 1u64..2_000_000, start in 1u64..2_000_000) {
            let (_, found) = search(start, |step| rate(step) <= capacity);
            let knee = found.knee.unwrap();
            prop_assert!(knee <= capacity && capacity - knee <= (capacity as f64 * PRECISION) as u64 + 1);
            let expected = Some((knee as f64 * STEP_BACK) as u64).filter(|rate| *rate > 0);
            prop_assert_eq!(found.working_point, expected);
        }

        #[test]
        fn the_search_ends_for_any_verdicts(seed: u64, start in 0u64..u64::MAX, share in 0.0f64..1.0) {
            let mut rng = Rng::new(seed);
            let (steps, _) = search(start, |_| rng.chance(share));
            prop_assert!(steps.into_iter().all(|step| (1..=RATE_MAX).contains(&rate(step))));
        }
    }

    #[test]
    fn a_hiccup_at_each_rate_changes_nothing() {
        let mut tried = BTreeSet::new();
        let (steps, found) = search(1_000, |step| match step {
            SearchStep::Try(rate) => !tried.insert(rate) && rate <= 50_000,
            _ => true,
        });
        assert!(found.knee.unwrap() > 49_000, "{found:?} after {steps:?}");
    }

    #[test]
    fn a_rate_that_fails_where_twice_as_much_holds_did_not_fail_for_its_rate() {
        let (_, found) = search(1_000, |step| rate(step) <= 50_000 && rate(step) != 4_000);
        assert!(found.knee.unwrap() > 49_000, "{found:?}");
    }

    #[test]
    fn a_server_that_holds_no_rate_or_every_rate_ends_the_search() {
        assert_eq!(search(1_000, |_| false).1, SearchResult { knee: None, working_point: None });
        let all = search(1_000, |_| true).1;
        assert_eq!(all, SearchResult { knee: Some(RATE_MAX), working_point: Some(RATE_MAX / 5 * 4) });
    }

    #[test]
    fn the_working_point_goes_back_until_it_holds_for_long() {
        let holds = |limit: u64| {
            move |step| match step {
                SearchStep::Try(rate) => rate <= 10_000,
                SearchStep::Confirm(rate) => rate <= limit,
                SearchStep::Done(_) => unreachable!("the search has ended"),
            }
        };
        let (steps, found) = search(8_000, holds(7_000));
        let long = steps.iter().filter(|step| matches!(step, SearchStep::Confirm(_))).count();
        assert_eq!(long, 2);
        assert!((6_200..6_500).contains(&found.working_point.unwrap()), "{found:?}");
        let (_, found) = search(8_000, holds(100));
        assert!(found.knee.is_some() && found.working_point.is_none());
    }

    /// Simulates a server with one queue in virtual time. A request takes `service`, and
    /// occasionally twenty times as long.
    fn simulate(rate: u64, service: Duration, rng: &mut Rng) -> Observation {
        let (start, end) = (Instant::ZERO, Instant::ZERO + Duration::from_secs(4));
        let mut schedule = Schedule::new(Pacing::Rate(rate), 1, ThreadShare { index: 0, of: 1 }, start, end);
        schedule.release(end, |_| {});
        let mut latency = Histogram::new_with_max(600_000_000_000, 3).unwrap();
        let (mut free, mut requests, mut in_time) = (start, 0u64, 0u64);
        while let Some(intended) = schedule.claim(0, end) {
            let slow = if rng.chance(0.005) { 20 } else { 1 };
            free = free.max(intended) + service * slow;
            latency.saturating_record((free - intended).as_nanos() as u64);
            requests += 1;
            in_time += u64::from(free < end);
        }
        let kept = in_time as f64 / requests as f64;
        Observation { latency, errors: 0, requests, kept, elapsed: end - start }
    }

    #[test]
    fn the_knee_of_a_simulated_server_lies_where_its_queue_begins_to_grow() {
        let service = Duration::from_micros(50);
        // One request in 200 takes twenty times as long.
        let capacity = 20_000.0 / (0.995 + 0.005 * 20.0);
        let mut rng = Rng::new(7);
        let goal: Goal = "p99<10ms,errors=0".parse().unwrap();
        let (steps, found) =
            search(1_000, |step| goal.violations(&simulate(rate(step), service, &mut rng)).is_empty());
        let knee = found.knee.unwrap() as f64;
        assert!((0.85 * capacity..1.01 * capacity).contains(&knee), "{knee} of {capacity}");
        assert!(found.working_point.is_some());
        assert!(steps.len() < 25, "{steps:?}");
        let strict: Goal = "p50<50us".parse().unwrap();
        let (_, found) =
            search(1_000, |step| strict.violations(&simulate(rate(step), service, &mut rng)).is_empty());
        assert_eq!(found, SearchResult { knee: None, working_point: None }, "no request is served so fast");
    }
}
