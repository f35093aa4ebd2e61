//! Goals that a rate has to meet, such as `p99<10ms,errors=0`.
//!
//! In addition to the stated conditions, at least [`KEPT_MIN`] of the rate has to be answered: a
//! server that falls behind does not meet the goal, however fast its responses are. Requests that
//! start within the goal's longest latency before the end may be answered after it, and are not
//! missed: otherwise the end of a short run would be a condition of its own. At most half of the
//! run is exempt in this way: otherwise any rate would meet the goal in a run that is shorter than
//! that latency.

use crate::load::LaneResult;
use crate::recorder::micros;
use crate::report::{LaneReport, TrialReport};
use crate::units;
use hdrhistogram::Histogram;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Fraction of the requested rate that has to be answered.
pub const KEPT_MIN: f64 = 0.999;

/// Conditions that all have to be met.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, PartialEq)]
enum Condition {
    /// Limit of the latency at a percentile, from 0 to 100.
    Percentile(f64, LatencyLimit),
    Mean(LatencyLimit),
    Errors(ErrorLimit),
}

/// Exclusive upper limit of a latency.
#[derive(Clone, Copy, Debug, PartialEq)]
struct LatencyLimit(Duration);

/// Limit of failed requests.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ErrorLimit {
    AtMost(u64),
    ShareBelow(f64),
}

/// Measurement at a rate.
#[derive(Clone, Debug)]
pub struct Observation {
    /// Latencies from the intended start, in nanoseconds.
    pub latency: Histogram<u64>,
    /// Number of refusals, errors and requests without a response.
    pub errors: u64,
    /// Number of requests that were due.
    pub requests: u64,
    /// Fraction of the requested rate that was answered.
    pub kept: f64,
    /// Measured time.
    pub elapsed: Duration,
}

impl Observation {
    /// The observation of a lane at `rate` requests/s.
    pub fn of(result: &LaneResult, rate: u64) -> Self {
        let recorder = &result.recorder;
        Self {
            latency: recorder.latency(),
            errors: LaneReport::new(result).errors(),
            requests: recorder.answers() + recorder.failures().values().sum::<u64>(),
            kept: result.arrived_per_second() / rate as f64,
            elapsed: result.elapsed,
        }
    }

    /// Report of a trial at `rate` requests/s, with the goal's verdict.
    pub fn trial(&self, goal: &Goal, rate: u64, is_long: bool) -> TrialReport {
        let quantile = |quantile| micros(self.latency.value_at_quantile(quantile));
        let why = goal.violations(self);
        TrialReport {
            rate,
            arrived_per_s: self.kept * rate as f64,
            is_long,
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: micros(self.latency.max()),
            errors: self.errors,
            held: why.is_empty(),
            why,
        }
    }
}

impl Goal {
    /// Descriptions of the violated conditions; empty if the goal is met.
    pub fn violations(&self, observed: &Observation) -> Vec<String> {
        let mut broken: Vec<String> =
            self.conditions.iter().filter_map(|known| known.violations(observed)).collect();
        if observed.kept < KEPT_MIN * (1.0 - self.unanswered_allowance(observed.elapsed)) {
            broken.push(format!("{:.2} % of the rate kept", observed.kept * 100.0));
        }
        broken
    }

    /// Fraction of the requests that may be answered after the end of a run of this length; at most
    /// half.
    fn unanswered_allowance(&self, elapsed: Duration) -> f64 {
        let longest = self.conditions.iter().filter_map(Condition::latency).max().unwrap_or_default();
        (longest.as_secs_f64() / elapsed.as_secs_f64().max(f64::MIN_POSITIVE)).min(0.5)
    }
}

impl Condition {
    const fn latency(&self) -> Option<Duration> {
        match *self {
            Self::Percentile(_, LatencyLimit(latency)) | Self::Mean(LatencyLimit(latency)) => Some(latency),
            Self::Errors(_) => None,
        }
    }

    fn violations(&self, observed: &Observation) -> Option<String> {
        let Observation { latency, errors, requests, .. } = observed;
        let (is_broken, found) = match *self {
            Self::Percentile(percentile, bound) => {
                let found = latency.value_at_percentile(percentile);
                (!bound.is_met_by(found as f64), units::micros(micros(found)))
            }
            Self::Mean(bound) => (!bound.is_met_by(latency.mean()), units::micros(latency.mean() / 1_000.0)),
            Self::Errors(ErrorLimit::AtMost(most)) => (*errors > most, errors.to_string()),
            Self::Errors(ErrorLimit::ShareBelow(share)) => {
                let found = *errors as f64 / (*requests).max(1) as f64;
                (found >= share, format!("{:.3} %", found * 100.0))
            }
        };
        is_broken.then(|| format!("{} {found}", self.name()))
    }

    fn name(&self) -> String {
        match self {
            Self::Percentile(100.0, _) => "max".to_owned(),
            Self::Percentile(percentile, _) => format!("p{percentile}"),
            Self::Mean(_) => "mean".to_owned(),
            Self::Errors(_) => "errors".to_owned(),
        }
    }
}

impl LatencyLimit {
    fn is_met_by(self, nanos: f64) -> bool {
        nanos < self.0.as_nanos() as f64
    }
}

impl fmt::Display for LatencyLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs_f64() {
            seconds if seconds < 1e-3 => write!(f, "{} us", seconds * 1e6),
            seconds if seconds < 1.0 => write!(f, "{} ms", seconds * 1e3),
            seconds => write!(f, "{seconds} s"),
        }
    }
}

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let conditions =
            text.split(',').map(|part| parse_condition(part.trim())).collect::<Result<_, _>>()?;
        Ok(Self { conditions })
    }
}

fn parse_condition(text: &str) -> Result<Condition, String> {
    let error = || format!("{text:?} is not a condition such as p99<10ms, max<1s, errors=0 or errors<0.1%");
    let at = text.find(['<', '=']).ok_or_else(error)?;
    let (name, rest) = text.split_at(at);
    let (operator, value) = rest.split_at(if rest.starts_with("<=") { 2 } else { 1 });
    let (name, value) = (name.trim(), value.trim());
    if name == "errors" {
        return parse_error_limit(operator, value).map(Condition::Errors).ok_or_else(error);
    }
    if operator != "<" {
        return Err(error());
    }
    let bound = LatencyLimit(units::parse_time(value)?);
    match name {
        "mean" => Ok(Condition::Mean(bound)),
        "max" => Ok(Condition::Percentile(100.0, bound)),
        _ => {
            let percentile =
                name.strip_prefix('p').and_then(|digits| digits.parse().ok()).ok_or_else(error)?;
            let is_one = (0.0..=100.0).contains(&percentile);
            if is_one { Ok(Condition::Percentile(percentile, bound)) } else { Err(error()) }
        }
    }
}

fn parse_error_limit(operator: &str, value: &str) -> Option<ErrorLimit> {
    if let Some(percent) = value.strip_suffix('%') {
        let percent: f64 = percent.trim().parse().ok()?;
        return (operator == "<" && percent > 0.0).then_some(ErrorLimit::ShareBelow(percent / 100.0));
    }
    let count: u64 = value.parse().ok()?;
    match operator {
        "<" => count.checked_sub(1).map(ErrorLimit::AtMost),
        _ => Some(ErrorLimit::AtMost(count)).filter(|_| operator == "<=" || count == 0),
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = self.conditions.iter().map(|condition| match condition {
            Condition::Percentile(_, bound) | Condition::Mean(bound) => {
                format!("{} < {bound}", condition.name())
            }
            Condition::Errors(ErrorLimit::AtMost(0)) => "no errors".to_owned(),
            Condition::Errors(ErrorLimit::AtMost(most)) => format!("errors <= {most}"),
            Condition::Errors(ErrorLimit::ShareBelow(share)) => format!("errors < {} %", share * 100.0),
        });
        let kept = format!("{} % of the rate", KEPT_MIN * 100.0);
        f.write_str(&texts.chain([kept]).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Latencies of 1 to 100 ms, uniformly distributed.
    fn observed(errors: u64, kept: f64) -> Observation {
        let mut latency = Histogram::new_with_max(600_000_000_000, 3).unwrap();
        (1..=100u64).for_each(|millis| latency.record(millis * 1_000_000).unwrap());
        Observation { latency, errors, requests: 100 + errors, kept, elapsed: Duration::from_secs(10) }
    }

    fn broken(goal: &str, observed: &Observation) -> usize {
        goal.parse::<Goal>().unwrap().violations(observed).len()
    }

    #[test]
    fn each_condition_is_judged_by_itself() {
        let good = observed(0, 1.0);
        for goal in [
            "p50<51ms",
            "p99<100ms",
            "max<101ms",
            "mean<51ms",
            "errors=0",
            "errors<1",
            "errors<0.1%",
            "p50<1s,errors=0",
        ] {
            assert_eq!(broken(goal, &good), 0, "{goal}");
        }
        for goal in ["p50<50ms", "p99<99ms", "max<100ms", "mean<50ms", "p99.9 < 10ms"] {
            assert_eq!(broken(goal, &good), 1, "{goal}");
        }
        let failing = observed(2, 1.0);
        assert_eq!(
            ["errors=0", "errors<=2", "errors<2", "errors<1%", "errors<3%"]
                .map(|goal| broken(goal, &failing)),
            [1, 0, 1, 1, 0]
        );
        assert_eq!(broken("errors=0,p50<50ms", &failing), 2);
    }

    #[test]
    fn a_rate_that_is_not_kept_does_not_hold() {
        assert_eq!(broken("errors=0", &observed(0, 0.998)), 1);
        assert_eq!(broken("errors=0", &observed(0, 0.9995)), 0);
    }

    #[test]
    fn requests_that_may_be_answered_after_the_end_are_not_missed() {
        // The last 200 ms of ten seconds have 2 % of the requests.
        assert_eq!(broken("p99<200ms", &observed(0, 0.9795)), 0);
        assert_eq!(broken("p99<200ms", &observed(0, 0.9785)), 1);
        assert_eq!(broken("p50<200ms,p99<101ms", &observed(0, 0.9795)), 0);
        // A minute is longer than the run.
        assert_eq!(broken("max<60s", &observed(0, 0.51)), 0);
        assert_eq!(broken("max<60s", &observed(0, 0.49)), 1);
    }

    #[test]
    fn malformed_goals_are_refused() {
        for text in [
            "",
            "p99",
            "p99<",
            "p99>1ms",
            "p99=1ms",
            "p101<1s",
            "q<1s",
            "errors=1",
            "errors<0",
            "errors<x%",
            "p99<1ms,,",
        ] {
            assert!(text.parse::<Goal>().is_err(), "{text}");
        }
        let goal: Goal = "p99<10ms, errors=0".parse().unwrap();
        assert_eq!(goal.to_string(), "p99 < 10 ms, no errors, 99.9 % of the rate");
    }
}
