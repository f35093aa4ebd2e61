//! More connections than the knee has, and more requests.

use super::knee::Knee;
use super::{Arena, Asked, CONNECTIONS, DEADLINE_MS, Subject};
use crate::Outcome;
use crate::table::{Table, Target};
use bench::Pacing;
use bench::process::Server;
use bench::stats::rounds;
use std::time::Duration;

/// How many times the knee's connections ask in a closed loop.
pub(super) const CLOSED: [usize; 3] = [2, 5, 10];
/// How many times the knee's rate is asked for.
pub(super) const OPEN: [f64; 4] = [1.5, 2.0, 5.0, 10.0];
/// Connections of a rate that is too high: enough for as many requests under way as a node may want to have.
const OPEN_CONNECTIONS: usize = 640;
/// How long a request of such a rate waits for a connection before it is given up: each has its turn every few
/// milliseconds, so one that is busy for so long is kept busy by the node.
const PATIENCE: Duration = Duration::from_millis(100);
/// Of the knee's rate is served.
pub(super) const GOODPUT_CLOSED_MIN: f64 = 0.9;
const GOODPUT_OPEN_MIN: f64 = 0.6;
/// The p99 of what is served, against that at 80 % of the knee.
const P99_GROWTH_MAX: f64 = 5.0;

impl Arena<'_> {
    pub(super) fn flood_rows(
        &self,
        server: &Server,
        subject: &Subject,
        knee: &Knee,
        table: &mut Table,
    ) -> Outcome<()> {
        for times in CLOSED {
            self.closed_rows(server, subject, knee, times, table)?;
        }
        for times in OPEN {
            let asked = self.ask_open(server, subject, knee, times)?;
            let target = if times == OPEN[0] { Target::AtLeast(GOODPUT_OPEN_MIN) } else { Target::None };
            add_open_row(knee, times, &asked, target, table);
        }
        Ok(())
    }

    pub(super) fn closed_rows(
        &self,
        server: &Server,
        subject: &Subject,
        knee: &Knee,
        times: usize,
        table: &mut Table,
    ) -> Outcome<()> {
        let connections = CONNECTIONS * times;
        let asked = self.ask(server, subject, connections, Pacing::Closed)?;
        add_closed_rows(knee, connections, &asked, table);
        Ok(())
    }

    /// Asks for so many times the knee's rate.
    pub(super) fn ask_open(
        &self,
        server: &Server,
        subject: &Subject,
        knee: &Knee,
        times: f64,
    ) -> Outcome<Asked> {
        let load = self.load(subject, OPEN_CONNECTIONS, Pacing::at(knee.rate * times));
        self.ask_with(server, subject, load, Some(PATIENCE))
    }
}

pub(super) fn add_closed_rows(knee: &Knee, connections: usize, asked: &Asked, table: &mut Table) {
    let name = format!("closed loop x{connections}");
    table.row(
        &format!("{name}: goodput / knee"),
        Target::AtLeast(GOODPUT_CLOSED_MIN),
        rounds(&[asked.served_per_second / knee.rate]),
        asked.to_string(),
    );
    add_latency_rows(&name, knee, asked, table);
}

/// The latencies of what was served.
fn add_latency_rows(name: &str, knee: &Knee, asked: &Asked, table: &mut Table) {
    table.row(
        &format!("{name}: p99 of what is served, ms"),
        Target::AtMost(DEADLINE_MS),
        rounds(&[asked.p99_us / 1e3]),
        format!("the longest {:.0} ms", asked.max_us / 1e3),
    );
    table.row(
        &format!("{name}: the same / p99 at 80 % of the knee"),
        Target::AtMost(P99_GROWTH_MAX),
        rounds(&[asked.p99_us / knee.calm.p99_us]),
        format!("us: {:.0} / {:.0}", asked.p99_us, knee.calm.p99_us),
    );
}

/// One row of a rate that is too high, and those of its latencies where the goodput has a target.
pub(super) fn add_open_row(knee: &Knee, times: f64, asked: &Asked, target: Target, table: &mut Table) {
    let name = format!("{times} times the knee");
    let rate = knee.rate * times;
    let note = format!("{asked}; {:.0} % of {rate:.0}/s sent", 100.0 * asked.sent_per_second / rate);
    let goodput = rounds(&[asked.served_per_second / knee.rate]);
    table.row(&format!("{name}: goodput / knee"), target, goodput, note);
    if target.number().is_some() {
        add_latency_rows(&name, knee, asked, table);
    }
}
