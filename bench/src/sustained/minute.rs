//! A minute of a measurement: its responses, and samples of the node.

use crate::scrape::Scrape;
use bench::recorder::micros;
use bench::timeline::{Gaps, Row, RowLatency};
use bench::units::bytes;
use lab::process::{ServerProcess, resident_memory};
use serde::Serialize;

/// Metrics of the node at one second.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeSample {
    pub(super) second: u64,
    pub(super) debt_bytes: f64,
    level0_tables: f64,
    pub(super) accepted_bytes: f64,
    pub(super) written_bytes: [f64; 3],
    pause_s: f64,
    resident_bytes: u64,
}

/// One minute of a measurement.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Minute {
    pub(super) per_second: f64,
    not_ok: u64,
    p50_us: f64,
    p99_us: f64,
    pub(super) p999_us: f64,
    max_us: f64,
    /// Seconds without any response.
    pub(super) silent_s: u64,
    pub(super) debt_bytes_max: f64,
    level0_tables_max: f64,
    /// Total time for which writes were paused, in seconds.
    pause_s: f64,
    resident_bytes_max: u64,
    /// Bytes written by log, flushes and compactions per byte accepted.
    write_amplification: f64,
}

impl NodeSample {
    /// Samples the node. `second` counts from the beginning. `None` if the node does not answer in
    /// time.
    pub(super) fn of(server: &ServerProcess, second: u64) -> Option<Self> {
        let scrape = Scrape::of(server).ok()?;
        Some(Self {
            second,
            debt_bytes: scrape.debt_bytes(),
            level0_tables: scrape.sum("veche_level_tables", "level=\"0\""),
            accepted_bytes: scrape.accepted_bytes(),
            written_bytes: scrape.written_bytes(),
            pause_s: scrape.sum("veche_write_pause_seconds_total", ""),
            resident_bytes: resident_memory(server.pid()).ok()?.now,
        })
    }
}

impl Minute {
    pub(super) fn new(seconds: &[Row], moments: &[&NodeSample]) -> Self {
        let mut latency = RowLatency::default();
        seconds.iter().for_each(|second| latency.add(&second.latency));
        let served: u64 = seconds.iter().map(Row::served).sum();
        let quantile_us = |quantile| micros(latency.quantile(quantile));
        let peak =
            |of: &dyn Fn(&NodeSample) -> f64| moments.iter().map(|moment| of(moment)).fold(0.0, f64::max);
        let grown = |of: &dyn Fn(&NodeSample) -> f64| match (moments.first(), moments.last()) {
            (Some(first), Some(last)) => of(last) - of(first),
            _ => 0.0,
        };
        Self {
            per_second: served as f64 / seconds.len() as f64,
            not_ok: seconds.iter().map(Row::not_ok).sum(),
            p50_us: quantile_us(0.5),
            p99_us: quantile_us(0.99),
            p999_us: quantile_us(0.999),
            max_us: micros(latency.max_nanos()),
            silent_s: Gaps::without_answers(seconds).rows,
            debt_bytes_max: peak(&|moment| moment.debt_bytes),
            level0_tables_max: peak(&|moment| moment.level0_tables),
            pause_s: grown(&|moment| moment.pause_s),
            resident_bytes_max: moments.iter().map(|moment| moment.resident_bytes).max().unwrap_or(0),
            write_amplification: grown(&|moment| moment.written_bytes.iter().sum())
                / grown(&|moment| moment.accepted_bytes),
        }
    }

    pub(super) fn head() -> String {
        format!(
            "  {:>6} {:>9} {:>7} {:>8} {:>8} {:>8} {:>9} {:>6} {:>9} {:>7} {:>7} {:>9} {:>7}",
            "minute",
            "writes/s",
            "not ok",
            "p50 us",
            "p99 us",
            "p99.9",
            "max us",
            "silent",
            "debt",
            "level 0",
            "paused",
            "resident",
            "written"
        )
    }

    pub(super) fn line(&self, number: u64) -> String {
        format!(
            "  {number:>6} {:>9.0} {:>7} {:>8.0} {:>8.0} {:>8.0} {:>9.0} {:>4} s {:>9} {:>7} {:>5.1} s {:>9} {:>6.2}x",
            self.per_second,
            self.not_ok,
            self.p50_us,
            self.p99_us,
            self.p999_us,
            self.max_us,
            self.silent_s,
            bytes(self.debt_bytes_max),
            self.level0_tables_max,
            self.pause_s,
            bytes(self.resident_bytes_max as f64),
            self.write_amplification
        )
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Samples at consecutive seconds with these debts, in gigabytes.
    pub(in super::super) fn moments(debts: impl IntoIterator<Item = f64>) -> Vec<NodeSample> {
        let moment = |(second, debt_gb): (usize, f64)| NodeSample {
            second: second as u64,
            debt_bytes: debt_gb * 1e9,
            level0_tables: 0.0,
            accepted_bytes: second as f64,
            written_bytes: [second as f64, 0.0, 2.0 * second as f64],
            pause_s: 0.0,
            resident_bytes: 1,
        };
        debts.into_iter().enumerate().map(moment).collect()
    }

    fn second(answers: u64, refused: u64) -> Row {
        let mut row = Row { statuses: [(201, answers), (503, refused)].into(), ..Row::default() };
        row.statuses.retain(|_, count| *count > 0);
        (0..answers).for_each(|_| row.latency.record(2_000_000));
        row
    }

    #[test]
    fn a_minute_counts_its_silent_seconds_and_written_bytes() {
        let seconds = [second(10, 0), second(0, 0), second(0, 0), second(9, 1)];
        let moments = moments([1.0, 3.0, 2.0]);
        let minute = Minute::new(&seconds, &moments.iter().collect::<Vec<_>>());
        assert_eq!((minute.silent_s, minute.not_ok), (2, 1));
        assert_eq!((minute.debt_bytes_max, minute.write_amplification), (3e9, 3.0));
        assert_eq!(minute.per_second, 19.0 / 4.0);
    }
}
