//! Recovery: the time until a light load has normal latencies after a flood has ended.

use super::knee::Knee;
use super::{CONNECTIONS, Demand, OverloadBench};
use crate::BenchResult;
use crate::measure::{WARMUP, measure_lanes};
use crate::servers::CpuLayout;
use crate::table::{ResultTable, Threshold};
use bench::recorder::micros;
use bench::threads::join_scoped;
use bench::timeline::{Row, RowLatency};
use bench::{LiveSecond, Pacing, RunHooks, StopFlag};
use lab::process::ServerProcess;
use lab::stats::rounds;
use std::thread;
use std::time::{Duration, Instant};

/// Rate of the light load, as a fraction of the knee's rate.
const LIGHT: f64 = 0.1;
const LIGHT_CONNECTIONS: usize = 16;
/// Connections of the flood, as a multiple of the knee's connections, in a closed loop.
const HEAVY: usize = 10;
/// Latencies are normal again when the p99 of a second is at most this multiple of the p99 before.
const NORMAL: f64 = 2.0;
const BEFORE: Duration = Duration::from_secs(4);
const AFTER: Duration = Duration::from_secs(6);
const RECOVERED_WITHIN_S: f64 = 2.0;

/// Rows of the light load.
struct LightLoad {
    begun: Instant,
    rows: Vec<Row>,
}

impl OverloadBench<'_> {
    pub(super) fn add_recovery(
        &self,
        server: &ServerProcess,
        demand: &Demand,
        knee: &Knee,
        table: &mut ResultTable,
    ) -> BenchResult<()> {
        let stop = StopFlag::default();
        let (light, heavy) = thread::scope(|scope| {
            let light = scope.spawn(|| self.light(server, demand, knee, &stop).map_err(|e| e.to_string()));
            thread::sleep(WARMUP + BEFORE);
            let begun = Instant::now();
            let outcome = self.apply_load(server, demand, CONNECTIONS * HEAVY, Pacing::Closed);
            thread::sleep(AFTER);
            stop.set();
            (join_scoped(light), outcome.map(|_| begun..begun + WARMUP + self.duration))
        });
        let (light, heavy) = (light?, heavy?);
        let seconds_to = |moment: Instant| moment.saturating_duration_since(light.begun).as_secs_f64();
        let (begun, ended) = (seconds_to(heavy.start), seconds_to(heavy.end));
        let before = &light.rows[..(begun as usize).min(light.rows.len())];
        let normal_us = p99_us(before.iter());
        let recovered = recovery_s(&light.rows, ended, normal_us);
        let in_it = light.rows.iter().skip(begun.ceil() as usize).take((ended - begun) as usize);
        let note = match recovered {
            None => format!("NOT within {} s", AFTER.as_secs()),
            Some(_) => "from the end of the load to the first normal second".to_owned(),
        };
        let note = format!(
            "{note}; p99 of the light load: {normal_us:.0} us before, {:.0} us during",
            p99_us(in_it)
        );
        table.row(
            "p99 of a light load is normal again after, s",
            Threshold::AtMost(RECOVERED_WITHIN_S),
            rounds(&[recovered.unwrap_or(f64::INFINITY)]),
            note,
        );
        Ok(())
    }

    /// Applies a light load until `stop` is set.
    fn light(
        &self,
        server: &ServerProcess,
        demand: &Demand,
        knee: &Knee,
        stop: &StopFlag,
    ) -> BenchResult<LightLoad> {
        let load = self.load(demand, LIGHT_CONNECTIONS, Pacing::at(knee.rate * LIGHT));
        let lane = load.lane("light", server.protocol());
        let mut rows = Vec::new();
        let mut look = |second: &LiveSecond| {
            if second.second >= 0 {
                rows.push(second.row.clone());
            }
        };
        let begun = Instant::now() + WARMUP;
        let layout = CpuLayout { generator_threads: 1, ..self.layout };
        let duration = BEFORE + self.duration + AFTER * 4;
        let hooks = RunHooks { stop, on_second: &mut look };
        measure_lanes(std::slice::from_ref(server), layout, duration, vec![lane], hooks)?;
        Ok(LightLoad { begun, rows })
    }
}

fn p99_us<'r>(rows: impl Iterator<Item = &'r Row>) -> f64 {
    let mut latency = RowLatency::default();
    rows.for_each(|row| latency.add(&row.latency));
    micros(latency.quantile(0.99))
}

/// Seconds from `ended` to the first whole second in which everything was served at a normal
/// latency.
fn recovery_s(rows: &[Row], ended: f64, normal_us: f64) -> Option<f64> {
    let is_normal =
        |row: &Row| row.answers() > 0 && row.not_ok() == 0 && p99_us([row].into_iter()) <= normal_us * NORMAL;
    let from = ended.ceil() as usize;
    let first = rows.iter().enumerate().skip(from).find(|(_, row)| is_normal(row));
    first.map(|(second, _)| second as f64 - ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(micros: u64, status: u16) -> Row {
        let mut row = Row { statuses: [(status, 100)].into(), ..Row::default() };
        (0..100).for_each(|_| row.latency.record(micros * 1_000));
        row
    }

    #[test]
    fn the_first_whole_second_counts_in_which_all_is_well() {
        let rows = [
            second(100, 200),
            second(9_000, 200),
            second(9_000, 200),
            second(100, 503),
            Row::default(),
            second(150, 200),
        ];
        assert_eq!(recovery_s(&rows, 1.5, 100.0), Some(3.5));
        assert_eq!(recovery_s(&rows[..5], 1.5, 100.0), None);
        assert_eq!(recovery_s(&rows, 0.0, 100.0), Some(0.0));
    }
}
