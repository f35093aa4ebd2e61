//! The search for the highest rate that holds: rates out, verdicts in.
//!
//! **Promise.** Where there is a rate below which all hold and above which none does, [`RateSearch`] finds it within
//! [`PRECISION`], in a number of trials that grows with the logarithm of the rate. It ends whatever the verdicts are.
//!
//! **Mechanism.** From its start the rate doubles while it holds (or halves until it does); then the gap between the
//! highest that held and the lowest that did not is halved until it is small: the *knee*. A trial is short, and one that
//! fails may have met a hiccup that has nothing to do with the rate: so a rate fails only when it fails twice, and the
//! first one that does must fail at twice the rate, too. And the
//! knee is a place where nobody wants to live: the search steps back by a fifth and asks for a long measurement
//! there, and for another fifth less when that does not hold: the *working point*.
//!
//! **Caveats.** A machine that becomes slower while it is searched (throttling, a growing store) gives a knee that it
//! does not have any more; the working point is then the number to trust. Where hiccups come at every rate, what is found is
//! how often they come: longer trials or a goal with more room help.

/// The gap that is left between the knee and the lowest rate that failed, as a part of the knee.
pub const PRECISION: f64 = 0.02;
/// The part of the knee at which the working point is looked for, and then of each rate that did not hold there.
pub const STEP_BACK: f64 = 0.8;
/// The part of a trial's time that is waited before the next, so that what one has left behind is not charged to another.
pub const SETTLE_DIVISOR: u32 = 20;
/// A rate beyond what one generator sends.
pub const RATE_MAX: u64 = 10_000_000;
/// Long measurements, at most.
const CONFIRMATIONS_MAX: u32 = 3;

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchStep {
    /// Measure this rate for a short while.
    Try(u64),
    /// Measure this rate for long.
    Confirm(u64),
    /// Nothing more.
    Done(SearchResult),
}

/// What was found, in requests/s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchResult {
    /// The highest rate that held in a trial.
    pub knee: Option<u64>,
    /// The rate that held for long.
    pub working_point: Option<u64>,
}

/// A search under way.
#[derive(Clone, Debug)]
pub struct RateSearch {
    rate: u64,
    held: Option<u64>,
    failed: Option<u64>,
    has_failed_once: bool,
    /// Whether `rate` is twice the first rate that failed.
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
    /// A search that begins at `start` requests/s.
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

    /// What is to be done next. Asking changes nothing.
    pub fn step(&self) -> SearchStep {
        match self.phase {
            Phase::Trials => SearchStep::Try(self.rate),
            Phase::Confirming { .. } => SearchStep::Confirm(self.rate),
            Phase::Done { working_point } => {
                SearchStep::Done(SearchResult { knee: self.held, working_point })
            }
        }
    }

    /// The rate of the last [`RateSearch::step`] held, or did not.
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
            // What failed below a rate that holds did not fail for its rate.
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

    /// A long measurement, a step back from `rate`.
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

    /// Runs a search to its end against `holds`; the rates it tried, and what it found.
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
            SearchStep::Done(_) => unreachable!("nothing is measured any more"),
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
        fn it_ends_whatever_the_verdicts_are(seed: u64, start in 0u64..u64::MAX, share in 0.0f64..1.0) {
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
    fn a_server_that_holds_nothing_or_everything_is_no_riddle() {
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
                SearchStep::Done(_) => unreachable!("nothing is measured any more"),
            }
        };
        let (steps, found) = search(8_000, holds(7_000));
        let long = steps.iter().filter(|step| matches!(step, SearchStep::Confirm(_))).count();
        assert_eq!(long, 2);
        assert!((6_200..6_500).contains(&found.working_point.unwrap()), "{found:?}");
        let (_, found) = search(8_000, holds(100));
        assert!(found.knee.is_some() && found.working_point.is_none());
    }

    /// A server with one queue that serves a request in `service` time, now and then in twenty times that, in virtual time.
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
        // One request in two hundred takes twenty times as long.
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
