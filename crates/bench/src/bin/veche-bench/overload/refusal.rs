//! What it costs a node to say no, against what it costs bare hyper to say anything.
//!
//! A node refuses nearly everything whose disk takes next to nothing: then its processor time is that of refusals, and of what
//! it does besides, which is measured while nobody asks, and taken off. It refuses only so many a second before it reads
//! more slowly; the floor, which answers as fast as it can, has its work in larger portions, to its advantage.

use super::paced_disk::PacedDisk;
use super::{Arena, Asked, CONNECTIONS, NAME};
use crate::Outcome;
use crate::data::require_room;
use crate::measure::WARMUP;
use crate::table::{Table, Target};
use bench::Pacing;
use bench::process::{CpuMeter, Server};
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

impl Arena<'_> {
    pub(super) fn refusal_rows(&self, table: &mut Table) -> Outcome<()> {
        let measure = "CPU of a 503 / of the floor's answer to the same PUT";
        let target = Target::AtMost(COST_MAX);
        require_room(self.home.dir(), DISK_BYTES)?;
        let disk = match PacedDisk::new(self.home.dir(), DISK_BYTES) {
            Ok(disk) => disk,
            Err(missing) => {
                table.row(measure, target, None, format!("NOT MEASURED: {missing}"));
                return Ok(());
            }
        };
        let arena = Self { duration: self.duration / 2, ..*self };
        let floor = self.home.floor(self.layout)?;
        let server = self.home.plain(&format!("{NAME}-refusing"), &disk.path().join("data"), self.layout)?;
        let subject = self.writes();
        disk.pace(PACE_BYTES)?;
        // Until it knows how slow its disk has become.
        arena.ask(&server, &subject, CONNECTIONS * TIMES, Pacing::Closed)?;
        let [mut ours, mut floors, mut refused, mut answers] = [const { Vec::new() }; 4];
        for _ in 0..ROUNDS {
            let idle = arena.idle(&server)?;
            let asked = arena.ask(&server, &subject, CONNECTIONS * TIMES, Pacing::Closed)?;
            ours.push(cost_us(&asked, idle, (WARMUP + arena.duration).as_secs_f64()));
            refused.push(asked.refused);
            answers.push(asked.answers_per_second);
            floors.push(arena.ask(&floor, &subject, CONNECTIONS * TIMES, Pacing::Closed)?.sample.cpu_us);
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
    fn idle(&self, server: &Server) -> Outcome<f64> {
        let meter = CpuMeter::start(server.pid())?;
        thread::sleep(self.duration);
        Ok(meter.spent()?.as_secs_f64() / self.duration.as_secs_f64())
    }
}

/// Processor time of an answer, without what the node takes when it has nothing to answer.
fn cost_us(asked: &Asked, idle: f64, seconds: f64) -> f64 {
    let answers = asked.sample.answers.max(1) as f64;
    (asked.sample.cpu_us - idle * seconds * 1e6 / answers).max(0.0)
}
