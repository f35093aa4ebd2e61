//! Floods: more connections than at the knee, and higher rates.

use super::knee::Knee;
use super::{CONNECTIONS, DEADLINE_MS, LoadOutcome, OverloadBench, Scenario};
use crate::BenchResult;
use crate::table::{ResultTable, Threshold};
use bench::Pacing;
use bench::process::ServerProcess;
use bench::stats::rounds;
use std::time::Duration;

/// Multiples of the knee's connections, in a closed loop.
pub(super) const CLOSED: [usize; 3] = [2, 5, 10];
/// Multiples of the knee's rate.
pub(super) const OPEN: [f64; 4] = [1.5, 2.0, 5.0, 10.0];
/// Connections of an excessive rate: enough for as many requests in flight as a node may admit.
const OPEN_CONNECTIONS: usize = 640;
/// Time that a request of an excessive rate waits for a connection before it is abandoned. Each
/// connection is due every few milliseconds, so a connection that is busy for this long is kept
/// busy by the node.
const SEND_TIMEOUT: Duration = Duration::from_millis(100);
/// Minimum goodput as a fraction of the knee's rate.
pub(super) const GOODPUT_CLOSED_MIN: f64 = 0.9;
const GOODPUT_OPEN_MIN: f64 = 0.6;
/// Maximum p99 of served requests, relative to that at 80 % of the knee.
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

    /// Applies `times` times the knee's rate.
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

/// Adds the rows of the latencies of served requests.
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

/// Adds the row of an excessive rate, and its latency rows if its goodput has a threshold.
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
