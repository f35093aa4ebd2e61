//! What it costs a node to say no, against what it costs bare hyper to say anything.
//!
//! A node refuses nearly everything whose disk takes next to nothing: then its processor time is that of refusals, and of what
//! it does besides, section is measured while nobody asks, and taken off. It refuses only so many a second before it reads
//! more slowly; the floor, section answers as fast as it can, has its work in larger portions, to its advantage.

use super::paced_disk::PacedDisk;
use super::{CONNECTIONS, LoadOutcome, NAME, OverloadBench};
use crate::BenchResult;
use crate::data::require_free_space;
use crate::measure::WARMUP;
use crate::table::{ResultTable, Threshold};
use bench::Pacing;
use bench::process::{CpuMeter, ServerProcess};
use bench::stats::{median, ratio};
use std::thread;

pub(super) const ROUNDS: usize = 3;
const DISK_BYTES: u64 = 1 << 30;
/// What the disk takes a second.
const PACE_BYTES: u64 = 64 << 10;
/// Below this part of refusals among its answers, what is weighed is something else.
const REFUSED_MIN: f64 = 0.95;
const COST_MAX: f64 = 1.0;
/// How many times the knee's connections are refused.
const TIMES: usize = 10;

impl OverloadBench<'_> {
    pub(super) fn refusal_rows(&self, table: &mut ResultTable) -> BenchResult<()> {
        let measure = "CPU of a 503 / of the floor's answer to the same PUT";
        let target = Threshold::AtMost(COST_MAX);
        require_free_space(self.work_dir.dir(), DISK_BYTES)?;
        let disk = match PacedDisk::new(self.work_dir.dir(), DISK_BYTES) {
            Ok(disk) => disk,
            Err(missing) => {
                table.row(measure, target, None, format!("NOT MEASURED: {missing}"));
                return Ok(());
            }
        };
        let bench = Self { duration: self.duration / 2, ..*self };
        let floor = self.work_dir.floor(self.layout)?;
        let server = self.work_dir.veche_with_defaults(
            &format!("{NAME}-refusing"),
            &disk.path().join("data"),
            self.layout,
        )?;
        let scenario = self.writes();
        disk.pace(PACE_BYTES)?;
        // Until it knows how slow its disk has become.
        bench.apply_load(&server, &scenario, CONNECTIONS * TIMES, Pacing::Closed)?;
        let [mut ours, mut floors, mut refused, mut answers] = [const { Vec::new() }; 4];
        for _ in 0..ROUNDS {
            let idle = bench.idle(&server)?;
            let outcome = bench.apply_load(&server, &scenario, CONNECTIONS * TIMES, Pacing::Closed)?;
            ours.push(cost_us(&outcome, idle, (WARMUP + bench.duration).as_secs_f64()));
            refused.push(outcome.refused);
            answers.push(outcome.answers_per_second);
            floors.push(
                bench.apply_load(&floor, &scenario, CONNECTIONS * TIMES, Pacing::Closed)?.sample.cpu_us,
            );
        }
        disk.pace(0)?;
        drop(server);
        let share = median(&refused);
        let proof = if share < REFUSED_MIN { "NOT PROVEN: " } else { "" };
        let note = format!(
            "{proof}us: {:.2} / {:.2}; {:.1} % of {:.0} answers/s were refusals",
            median(&ours),
            median(&floors),
            share * 100.0,
            median(&answers)
        );
        table.row(measure, target, ratio(&ours, &floors), note);
        Ok(())
    }

    /// The part of a core that the node takes while nobody asks.
    fn idle(&self, server: &ServerProcess) -> BenchResult<f64> {
        let meter = CpuMeter::start(server.pid())?;
        thread::sleep(self.duration);
        Ok(meter.spent()?.as_secs_f64() / self.duration.as_secs_f64())
    }
}

/// Processor time of an answer, without what the node takes when it has nothing to answer.
fn cost_us(outcome: &LoadOutcome, idle: f64, seconds: f64) -> f64 {
    let answers = outcome.sample.answers.max(1) as f64;
    (outcome.sample.cpu_us - idle * seconds * 1e6 / answers).max(0.0)
}
