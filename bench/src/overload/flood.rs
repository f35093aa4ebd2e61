//! Floods: more connections than at the knee, and higher rates.

use super::knee::Knee;
use super::{CONNECTIONS, DEADLINE_MS, Demand, OverloadBench, Timeouts, outcome};
use crate::BenchResult;
use crate::measure::Sample;
use crate::table::{ResultTable, Threshold};
use bench::Pacing;
use lab::process::ServerProcess;
use lab::stats::rounds;
use std::time::Duration;

/// Multiples of the knee's connections, in a closed loop.
const CLOSED: [usize; 3] = [2, 5, 10];
/// Multiples of the knee's rate, with the minimum goodput.
const RATES: [(f64, Threshold); 4] =
    [(1.5, Threshold::AtLeast(0.6)), (2.0, Threshold::None), (5.0, Threshold::None), (10.0, Threshold::None)];
/// Users of an excessive rate abandon a request that finds all of its connections busy, or has no
/// response in time.
const TIMEOUTS: Timeouts = Timeouts { send: Duration::from_millis(250), answer: Duration::from_millis(250) };
/// Number of connections per request that waits. A connection is due at fixed times, so not every
/// one is free when it is due.
const CONNECTIONS_PER_REQUEST: f64 = 1.25;
/// Maximum number of connections of an excessive rate, below the usual limit of open files. More
/// connections than requests that wait would only lengthen the queue of the node.
const CONNECTIONS_MAX: usize = 12_000;
/// Minimum goodput as a fraction of the knee's rate.
pub(super) const GOODPUT_MIN: f64 = 0.9;
/// Maximum p99 of served requests, relative to that at 80 % of the knee.
const P99_GROWTH_MAX: f64 = 5.0;

impl OverloadBench<'_> {
    pub(super) fn add_loads_beyond(
        &self,
        server: &ServerProcess,
        demand: &Demand,
        knee: &Knee,
        table: &mut ResultTable,
    ) -> BenchResult<()> {
        for times in CLOSED {
            self.add_connections(server, demand, knee, times, table)?;
        }
        for (times, target) in RATES {
            self.add_rate(server, demand, knee, times, target, table)?;
        }
        Ok(())
    }

    /// Applies `times` times the knee's connections.
    pub(super) fn add_connections(
        &self,
        server: &ServerProcess,
        demand: &Demand,
        knee: &Knee,
        times: usize,
        table: &mut ResultTable,
    ) -> BenchResult<()> {
        let connections = CONNECTIONS * times;
        let sample = self.apply_load(server, demand, connections, Pacing::Closed)?;
        let name = format!("closed loop x{connections}");
        add_goodput(&name, knee, &sample, Threshold::AtLeast(GOODPUT_MIN), table);
        Ok(())
    }

    /// Applies `times` times the knee's rate.
    pub(super) fn add_rate(
        &self,
        server: &ServerProcess,
        demand: &Demand,
        knee: &Knee,
        times: f64,
        target: Threshold,
        table: &mut ResultTable,
    ) -> BenchResult<()> {
        let rate = knee.rate * times;
        // The requests beyond the knee wait until they are abandoned, each on its connection.
        let waiting = (rate - knee.rate) * TIMEOUTS.answer.as_secs_f64();
        let connections = ((waiting * CONNECTIONS_PER_REQUEST) as usize).clamp(CONNECTIONS, CONNECTIONS_MAX);
        let load = self.load(demand, connections, Pacing::at(rate));
        let sample = self.apply_lane(server, demand, load, Some(TIMEOUTS))?;
        add_goodput(&format!("{times} times the knee"), knee, &sample, target, table);
        Ok(())
    }
}

/// Adds a measurement with its goodput; and its latencies, if the goodput has a threshold.
fn add_goodput(name: &str, knee: &Knee, sample: &Sample, target: Threshold, table: &mut ResultTable) {
    table.measured("veche", name, &[*sample]);
    let goodput = rounds(&[sample.served_per_second / knee.rate]);
    table.row(&format!("{name}: goodput / knee"), target, goodput, outcome(sample));
    if let Some(requested) = sample.requested_per_second {
        let sent = rounds(&[sample.sent_per_second / requested]);
        table.row(&format!("{name}: rate sent / requested"), Threshold::None, sent, String::new());
    }
    if target == Threshold::None {
        return;
    }
    table.row(
        &format!("{name}: p99 of served requests, ms"),
        Threshold::AtMost(DEADLINE_MS),
        rounds(&[sample.served_p99_us / 1e3]),
        format!("maximum {:.0} ms", sample.served_max_us / 1e3),
    );
    table.row(
        &format!("{name}: p99 / p99 at 80 % of the knee"),
        Threshold::AtMost(P99_GROWTH_MAX),
        rounds(&[sample.served_p99_us / knee.calm.served_p99_us]),
        String::new(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_serves_too_little_or_nothing_misses_its_targets() {
        let served = |served_per_second: f64, requested: Option<f64>| Sample {
            requested_per_second: requested,
            served_per_second,
            served_p99_us: if served_per_second > 0.0 { 10_000.0 } else { f64::INFINITY },
            ..Sample::default()
        };
        let mut table = ResultTable::new("overload");
        let knee = Knee { rate: 100.0, calm: served(80.0, Some(80.0)) };
        let target = Threshold::AtLeast(GOODPUT_MIN);
        add_goodput("closed loop", &knee, &served(95.0, None), target, &mut table);
        assert_eq!(table.missed().len(), 0);
        add_goodput("closed loop", &knee, &served(0.0, None), target, &mut table);
        assert_eq!(table.missed().len(), 3);
        add_goodput("1.5 times", &knee, &served(50.0, Some(150.0)), Threshold::AtLeast(0.6), &mut table);
        assert_eq!(table.missed().len(), 4);
    }
}
