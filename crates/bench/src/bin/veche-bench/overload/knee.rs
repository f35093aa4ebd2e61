//! The knee: the highest rate at which the goal holds.

use super::{CONNECTIONS, LoadOutcome, OverloadBench, Scenario};
use crate::BenchResult;
use crate::data::wait_until_settled;
use crate::table::{ResultTable, Threshold};
use bench::Pacing;
use bench::goal::Observation;
use bench::process::ServerProcess;
use bench::search::{RateSearch, SETTLE_DIVISOR, STEP_BACK, SearchStep};
use bench::stats::rounds;
use std::thread;

/// Start of the search, as a fraction of the closed loop's throughput.
const START: f64 = 0.7;
/// Maximum number of trials: twice as many as a search takes with consistent verdicts.
const TRIALS_MAX: u32 = 26;

/// A knee below this fraction of the closed loop's throughput is implausible: other load disturbed
/// the machine.
const PLAUSIBLE: f64 = 0.5;

/// Capacity of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Knee {
    /// Rate of the knee, in requests per second.
    pub(super) rate: f64,
    /// Measurement at [`STEP_BACK`] of the knee, where a node is meant to be operated.
    pub(super) calm: LoadOutcome,
    /// Throughput of a closed loop.
    pub(super) closed_per_second: f64,
}

impl OverloadBench<'_> {
    /// Searches as `veche bench --find-max` does, then measures a step below the knee.
    pub(super) fn find_knee(&self, server: &ServerProcess, scenario: &Scenario) -> BenchResult<Knee> {
        let top = self.apply_load(server, scenario, CONNECTIONS, Pacing::Closed)?;
        let mut search = RateSearch::new((top.served_per_second * START) as u64);
        let mut held = None;
        for _ in 0..TRIALS_MAX {
            // The search's long measurements are not used. The first one is made below.
            let SearchStep::Try(rate) = search.step() else { break };
            let observed = self.try_rate(server, scenario, rate)?;
            let broken = scenario.goal.violations(&observed);
            println!("  {rate}/s: {}", if broken.is_empty() { "held".to_owned() } else { broken.join(", ") });
            if broken.is_empty() {
                held = held.max(Some(rate));
            }
            search.record_verdict(broken.is_empty());
            match scenario.settle {
                Some(patience) => wait_until_settled(server, patience)?,
                None => thread::sleep(scenario.trial / SETTLE_DIVISOR),
            }
        }
        let rate =
            held.ok_or_else(|| format!("no rate holds {} for {}", scenario.goal, scenario.name))? as f64;
        let calm = self.apply_load(server, scenario, CONNECTIONS, Pacing::at(rate * STEP_BACK))?;
        Ok(Knee { rate, calm, closed_per_second: top.served_per_second })
    }

    fn try_rate(&self, server: &ServerProcess, scenario: &Scenario, rate: u64) -> BenchResult<Observation> {
        let load = self.load(scenario, CONNECTIONS, Pacing::Rate(rate));
        let lane = load.lane(scenario.operation.name(), server.protocol());
        let (_, result) = self.measure(server, scenario.trial, lane)?;
        Ok(Observation::of(&result, rate))
    }

    pub(super) fn knee_rows(&self, knee: &Knee, table: &mut ResultTable) {
        let doubt = if knee.is_plausible() { "" } else { "NOT PROVEN, something else held it up: " };
        let note = format!("{doubt}a closed loop x{CONNECTIONS} reached {:.0}/s", knee.closed_per_second);
        table.row("knee, requests/s", Threshold::None, rounds(&[knee.rate]), note);
        let note = format!(
            "{:.1} % of the rate served; {}; CPU of the node {:.1} us/request",
            100.0 * knee.calm.served_per_second / (knee.rate * STEP_BACK),
            knee.calm,
            knee.calm.sample.cpu_us
        );
        table.row("p99 at 80 % of the knee, ms", Threshold::None, rounds(&[knee.calm.p99_us / 1e3]), note);
    }
}

impl Knee {
    fn is_plausible(&self) -> bool {
        self.rate >= self.closed_per_second * PLAUSIBLE
    }
}
