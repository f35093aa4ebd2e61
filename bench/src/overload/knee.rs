//! The knee: the highest rate at which the goal holds.

use super::{CONNECTIONS, Demand, OverloadBench, outcome};
use crate::BenchResult;
use crate::data::wait_until_settled;
use crate::measure::Sample;
use crate::table::{ResultTable, Threshold};
use bench::Pacing;
use bench::goal::Observation;
use bench::search::{RateSearch, SETTLE_DIVISOR, STEP_BACK, SearchStep};
use lab::process::ServerProcess;
use lab::stats::rounds;
use std::thread;

/// Start of the search, as a fraction of the closed loop's throughput.
const START: f64 = 0.7;
/// Maximum number of trials: twice as many as a search takes with consistent verdicts.
const TRIALS_MAX: u32 = 26;

/// Plausible knees are at least this fraction of the throughput of a closed loop.
const PLAUSIBLE: f64 = 0.5;

/// Capacity of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Knee {
    /// Rate of the knee, in requests per second.
    pub(super) rate: f64,
    /// Measurement at [`STEP_BACK`] of the knee, where a node is meant to be operated.
    pub(super) calm: Sample,
}

impl OverloadBench<'_> {
    /// Searches as `veche bench --find-max` does, then measures a step below the knee.
    pub(super) fn find_knee(
        &self,
        server: &ServerProcess,
        demand: &Demand,
        table: &mut ResultTable,
    ) -> BenchResult<Knee> {
        let top = self.apply_load(server, demand, CONNECTIONS, Pacing::Closed)?;
        let mut search = RateSearch::new((top.served_per_second * START) as u64);
        let mut held = None;
        for _ in 0..TRIALS_MAX {
            // The search's long measurements are not used. The first one is made below.
            let SearchStep::Try(rate) = search.step() else { break };
            let observed = self.try_rate(server, demand, rate)?;
            let broken = demand.goal.violations(&observed);
            println!("  {rate}/s: {}", if broken.is_empty() { "held".to_owned() } else { broken.join(", ") });
            if broken.is_empty() {
                held = held.max(Some(rate));
            }
            search.record_verdict(broken.is_empty());
            match demand.settle {
                Some(patience) => wait_until_settled(server, patience)?,
                None => thread::sleep(demand.trial / SETTLE_DIVISOR),
            }
        }
        let rate = held.ok_or_else(|| format!("no rate meets {}", demand.goal))? as f64;
        let calm = self.apply_load(server, demand, CONNECTIONS, Pacing::at(rate * STEP_BACK))?;
        table.measured("veche", "closed loop x64", &[top]);
        table.measured("veche", "80 % of the knee, x64", &[calm]);
        // A lower knee is implausible: other load disturbed the machine.
        let is_plausible = rate >= top.served_per_second * PLAUSIBLE;
        let doubt = if is_plausible { "" } else { "NOT PROVEN, other load disturbed the machine: " };
        let note = format!("{doubt}a closed loop x{CONNECTIONS} reached {:.0}/s", top.served_per_second);
        table.row("knee, requests/s", Threshold::None, rounds(&[rate]), note);
        let note = outcome(&calm);
        table.row("80 % of the knee: p99, ms", Threshold::None, rounds(&[calm.served_p99_us / 1e3]), note);
        Ok(Knee { rate, calm })
    }

    fn try_rate(&self, server: &ServerProcess, demand: &Demand, rate: u64) -> BenchResult<Observation> {
        let load = self.load(demand, CONNECTIONS, Pacing::Rate(rate));
        let lane = load.lane(demand.operation.name(), server.protocol());
        let (_, result) = self.measure(server, demand.trial, lane)?;
        Ok(Observation::of(&result, rate))
    }
}
