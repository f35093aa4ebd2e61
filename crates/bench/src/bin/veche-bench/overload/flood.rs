//! More connections than the knee has, and more requests.

use super::knee::Knee;
use super::{CONNECTIONS, DEADLINE_MS, LoadOutcome, OverloadBench, Scenario};
use crate::BenchResult;
use crate::table::{ResultTable, Threshold};
use bench::Pacing;
use bench::process::ServerProcess;
use bench::stats::rounds;
use std::time::Duration;

/// How many times the knee's connections ask in a closed loop.
pub(super) const CLOSED: [usize; 3] = [2, 5, 10];
/// How many times the knee's rate is outcome for.
pub(super) const OPEN: [f64; 4] = [1.5, 2.0, 5.0, 10.0];
/// Connections of a rate that is too high: enough for as many requests under way as a node may want to have.
const OPEN_CONNECTIONS: usize = 640;
/// How long a request of such a rate waits for a connection before it is given up: each has its turn every few
/// milliseconds, so one that is busy for so long is kept busy by the node.
const SEND_TIMEOUT: Duration = Duration::from_millis(100);
/// Of the knee's rate is served.
pub(super) const GOODPUT_CLOSED_MIN: f64 = 0.9;
const GOODPUT_OPEN_MIN: f64 = 0.6;
/// The p99 of what is served, against that at 80 % of the knee.
const P99_GROWTH_MAX: f64 = 5.0;

impl OverloadBench<'_> {
    pub(super) fn flood_rows(
        &self,
        server: &ServerProcess,
        scenario: &Scenario,
        knee: &Knee,
        table: &mut ResultTable,
    ) -> BenchResult<()> {
        for times in CLOSED {
            self.closed_rows(server, scenario, knee, times, table)?;
        }
        for times in OPEN {
            let outcome = self.apply_open_load(server, scenario, knee, times)?;
            let target =
                if times == OPEN[0] { Threshold::AtLeast(GOODPUT_OPEN_MIN) } else { Threshold::None };
            add_open_row(knee, times, &outcome, target, table);
        }
        Ok(())
    }

    pub(super) fn closed_rows(
        &self,
        server: &ServerProcess,
        scenario: &Scenario,
        knee: &Knee,
        times: usize,
        table: &mut ResultTable,
    ) -> BenchResult<()> {
        let connections = CONNECTIONS * times;
        let outcome = self.apply_load(server, scenario, connections, Pacing::Closed)?;
        add_closed_rows(knee, connections, &outcome, table);
        Ok(())
    }

    /// Asks for so many times the knee's rate.
    pub(super) fn apply_open_load(
        &self,
        server: &ServerProcess,
        scenario: &Scenario,
        knee: &Knee,
        times: f64,
    ) -> BenchResult<LoadOutcome> {
        let load = self.load(scenario, OPEN_CONNECTIONS, Pacing::at(knee.rate * times));
        self.apply_lane(server, scenario, load, Some(SEND_TIMEOUT))
    }
}

pub(super) fn add_closed_rows(
    knee: &Knee,
    connections: usize,
    outcome: &LoadOutcome,
    table: &mut ResultTable,
) {
    let name = format!("closed loop x{connections}");
    table.row(
        &format!("{name}: goodput / knee"),
        Threshold::AtLeast(GOODPUT_CLOSED_MIN),
        rounds(&[outcome.served_per_second / knee.rate]),
        outcome.to_string(),
    );
    add_latency_rows(&name, knee, outcome, table);
}

/// The latencies of what was served.
fn add_latency_rows(name: &str, knee: &Knee, outcome: &LoadOutcome, table: &mut ResultTable) {
    table.row(
        &format!("{name}: p99 of what is served, ms"),
        Threshold::AtMost(DEADLINE_MS),
        rounds(&[outcome.p99_us / 1e3]),
        format!("the longest {:.0} ms", outcome.max_us / 1e3),
    );
    table.row(
        &format!("{name}: the same / p99 at 80 % of the knee"),
        Threshold::AtMost(P99_GROWTH_MAX),
        rounds(&[outcome.p99_us / knee.calm.p99_us]),
        format!("us: {:.0} / {:.0}", outcome.p99_us, knee.calm.p99_us),
    );
}

/// One row of a rate that is too high, and those of its latencies where the goodput has a target.
pub(super) fn add_open_row(
    knee: &Knee,
    times: f64,
    outcome: &LoadOutcome,
    target: Threshold,
    table: &mut ResultTable,
) {
    let name = format!("{times} times the knee");
    let rate = knee.rate * times;
    let note = format!("{outcome}; {:.0} % of {rate:.0}/s sent", 100.0 * outcome.sent_per_second / rate);
    let goodput = rounds(&[outcome.served_per_second / knee.rate]);
    table.row(&format!("{name}: goodput / knee"), target, goodput, note);
    if target.number().is_some() {
        add_latency_rows(&name, knee, outcome, table);
    }
}
