//! The knee: the highest rate at which the goal holds.

use super::{Arena, Asked, CONNECTIONS, Subject};
use crate::Outcome;
use crate::data::settle;
use crate::table::{Table, Target};
use bench::Pacing;
use bench::goal::Observed;
use bench::process::Server;
use bench::search::{RateSearch, SETTLE_PART, STEP_BACK, Step};
use bench::stats::rounds;
use std::thread;

/// The part of what a closed loop reached at which the search begins.
const START: f64 = 0.7;
/// Twice what a search takes where each rate holds or does not.
const TRIALS_MAX: u32 = 26;

/// A knee below this part of what a closed loop over as many connections reached is that of a machine that others use.
const PLAUSIBLE: f64 = 0.5;

/// What a node bears.
#[derive(Clone, Copy, Debug)]
pub(super) struct Knee {
    /// Requests a second.
    pub(super) rate: f64,
    /// What was measured at [`STEP_BACK`] of it: where a node is meant to live.
    pub(super) calm: Asked,
    /// What a closed loop reached.
    pub(super) closed_per_second: f64,
}

impl Arena<'_> {
    /// Searches as `veche bench --find-max` does, and measures at a step back from what it finds.
    pub(super) fn find_knee(&self, server: &Server, subject: &Subject) -> Outcome<Knee> {
        let top = self.ask(server, subject, CONNECTIONS, Pacing::Closed)?;
        let mut search = RateSearch::new((top.served_per_second * START) as u64);
        let mut held = None;
        for _ in 0..TRIALS_MAX {
            // Of its long measurements only the first is wanted, and is made below.
            let Step::Try(rate) = search.step() else { break };
            let observed = self.try_rate(server, subject, rate)?;
            let broken = subject.goal.broken_by(&observed);
            println!("  {rate}/s: {}", if broken.is_empty() { "held".to_owned() } else { broken.join(", ") });
            if broken.is_empty() {
                held = held.max(Some(rate));
            }
            search.verdict(broken.is_empty());
            match subject.settle {
                Some(patience) => settle(server, patience)?,
                None => thread::sleep(subject.trial / SETTLE_PART),
            }
        }
        let rate = held.ok_or_else(|| format!("no rate holds {} for {}", subject.goal, subject.name))? as f64;
        let calm = self.ask(server, subject, CONNECTIONS, Pacing::at(rate * STEP_BACK))?;
        Ok(Knee { rate, calm, closed_per_second: top.served_per_second })
    }

    fn try_rate(&self, server: &Server, subject: &Subject, rate: u64) -> Outcome<Observed> {
        let load = self.load(subject, CONNECTIONS, Pacing::Rate(rate));
        let lane = load.lane(subject.operation.name(), server.protocol());
        let (_, result) = self.measure(server, subject.trial, lane)?;
        Ok(Observed::of(&result, rate))
    }

    pub(super) fn knee_rows(&self, knee: &Knee, table: &mut Table) {
        let doubt = if knee.is_plausible() { "" } else { "NOT PROVEN, something else held it up: " };
        let note = format!("{doubt}a closed loop x{CONNECTIONS} reached {:.0}/s", knee.closed_per_second);
        table.row("knee, requests/s", Target::None, rounds(&[knee.rate]), note);
        let note = format!(
            "{:.1} % of the rate served; {}; CPU of the node {:.1} us/request",
            100.0 * knee.calm.served_per_second / (knee.rate * STEP_BACK),
            knee.calm,
            knee.calm.sample.cpu_us
        );
        table.row("p99 at 80 % of the knee, ms", Target::None, rounds(&[knee.calm.p99_us / 1e3]), note);
    }
}

impl Knee {
    fn is_plausible(&self) -> bool {
        self.rate >= self.closed_per_second * PLAUSIBLE
    }
}
