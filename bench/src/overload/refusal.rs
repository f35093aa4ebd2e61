//! The cost of a refusal, compared with that of a response of bare hyper.
//!
//! A node with an extremely slow disk refuses nearly everything. Its CPU time then is that of
//! refusals plus background work, which is measured without load and subtracted. It refuses a
//! limited number of requests per second before it reads more slowly. Bare hyper answers as fast as
//! it can and so works in larger batches, which favours it.

use super::paced_disk::PacedDisk;
use super::{CONNECTIONS, OverloadBench};
use crate::BenchResult;
use crate::data::require_free_space;
use crate::measure::{Sample, WARMUP};
use crate::table::{ResultTable, Threshold};
use bench::Pacing;
use bench::cpu::CpuMeter;
use lab::process::ServerProcess;
use lab::stats::{median, ratio};
use std::thread;

const ROUNDS: usize = 3;
const DISK_BYTES: u64 = 1 << 30;
/// Write bandwidth of the disk, in bytes per second.
const PACE_BYTES: u64 = 64 << 10;
/// Minimum fraction of refusals among the responses. Below it, the CPU time is not that of
/// refusals.
const REFUSED_MIN: f64 = 0.95;
const COST_MAX: f64 = 1.0;
/// Connections, as a multiple of the knee's connections.
const TIMES: usize = 10;

impl OverloadBench<'_> {
    pub(super) fn add_refusals(&self, table: &mut ResultTable) -> BenchResult<()> {
        let measure = "CPU of a 503 / of bare hyper's response to the same PUT";
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
        let hyper = self.work_dir.bare_hyper(self.layout, &[])?;
        let server =
            self.work_dir.veche_with_defaults("overload-refusing", &disk.path().join("data"), self.layout)?;
        let demand = self.writes();
        disk.pace(PACE_BYTES)?;
        // Load until the node has observed how slow its disk is.
        bench.apply_load(&server, &demand, CONNECTIONS * TIMES, Pacing::Closed)?;
        let [mut ours, mut of_hyper, mut refused, mut answers] = [const { Vec::new() }; 4];
        for _ in 0..ROUNDS {
            let idle = bench.idle(&server)?;
            let outcome = bench.apply_load(&server, &demand, CONNECTIONS * TIMES, Pacing::Closed)?;
            ours.push(cost_us(&outcome, idle, (WARMUP + bench.duration).as_secs_f64()));
            refused.push(outcome.refused);
            answers.push(outcome.per_second);
            of_hyper.push(bench.apply_load(&hyper, &demand, CONNECTIONS * TIMES, Pacing::Closed)?.cpu_us);
        }
        disk.pace(0)?;
        drop(server);
        let share = median(&refused);
        let proof = if share < REFUSED_MIN { "NOT PROVEN: " } else { "" };
        let note = format!(
            "{proof}us: {:.2} / {:.2}; {:.1} % of {:.0} responses/s were refusals",
            median(&ours),
            median(&of_hyper),
            share * 100.0,
            median(&answers)
        );
        table.row(measure, target, ratio(&ours, &of_hyper), note);
        Ok(())
    }

    /// Fraction of a core that the node uses without load.
    fn idle(&self, server: &ServerProcess) -> BenchResult<f64> {
        let meter = CpuMeter::start(server.pid())?;
        thread::sleep(self.duration);
        Ok(meter.spent()?.as_secs_f64() / self.duration.as_secs_f64())
    }
}

/// CPU time per response without the background work, in microseconds.
fn cost_us(outcome: &Sample, idle: f64, seconds: f64) -> f64 {
    let answers = outcome.answers.max(1) as f64;
    (outcome.cpu_us - idle * seconds * 1e6 / answers).max(0.0)
}
