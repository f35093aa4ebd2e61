//! What it costs a node to say no, against what it costs bare hyper to say anything.
//!
//! A node refuses nearly everything whose disk takes next to nothing: then its processor time is that of refusals.

use super::paced_disk::PacedDisk;
use super::{Arena, CONNECTIONS, NAME};
use crate::Outcome;
use crate::data::require_room;
use crate::table::{Table, Target};
use bench::Pacing;
use bench::stats::{ratio, rounds};

const ROUNDS: usize = 3;
const DISK_BYTES: u64 = 1 << 30;
/// What the disk takes a second.
const PACE_BYTES: u64 = 64 << 10;
/// Below this part of refusals among its answers, what is weighed is something else.
const REFUSED_MIN: f64 = 0.95;
const COST_MAX: f64 = 1.0;

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
        let floor = self.home.floor(self.layout)?;
        let server = self.home.plain(&format!("{NAME}-refusing"), &disk.path().join("data"), self.layout)?;
        let subject = self.writes();
        disk.pace(PACE_BYTES)?;
        // Until it knows how slow its disk has become.
        self.ask(&server, &subject, CONNECTIONS, Pacing::Closed)?;
        let (mut ours, mut floors, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let asked = self.ask(&server, &subject, CONNECTIONS, Pacing::Closed)?;
            ours.push(asked.sample.cpu_us);
            refused.push(asked.refused);
            floors.push(self.ask(&floor, &subject, CONNECTIONS, Pacing::Closed)?.sample.cpu_us);
        }
        disk.pace(0)?;
        drop(server);
        let middle = |values: &[f64]| rounds(values).map_or(f64::NAN, |rounds| rounds.median);
        let share = middle(&refused);
        let proof = if share < REFUSED_MIN { "NOT PROVEN: " } else { "" };
        let note = format!(
            "{proof}us: {:.2} / {:.2}; {:.1} % of its answers were refusals",
            middle(&ours),
            middle(&floors),
            share * 100.0
        );
        table.row(measure, target, ratio(&ours, &floors), note);
        Ok(())
    }
}
