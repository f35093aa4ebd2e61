//! A long flood of writes: seconds without any response.

use super::{CONNECTIONS, OverloadBench};
use crate::BenchResult;
use crate::data::require_free_space;
use crate::table::{ResultTable, Threshold};
use bench::keys::KEY_LEN;
use bench::recorder::micros;
use bench::timeline::{Gaps, Row};
use bench::units::bytes;
use bench::{LiveSecond, Pacing};
use lab::process::resident_memory;
use lab::stats::rounds;

/// Connections, as a multiple of the knee's connections.
const TIMES: usize = 10;
/// Maximum ratio of table size to live data during compaction.
const SPACE_AMPLIFICATION: f64 = 2.0;

impl OverloadBench<'_> {
    pub(super) fn add_gaps(&self, table: &mut ResultTable) -> BenchResult<()> {
        let demand = self.writes();
        let live = (KEY_LEN + demand.value_bytes) as f64 * self.keys as f64;
        require_free_space(self.work_dir.dir(), (live * SPACE_AMPLIFICATION) as u64)?;
        let name = "overload-silence";
        let server = self.work_dir.veche_with_defaults(name, &self.work_dir.data(name), self.layout)?;
        let load = self.load(&demand, CONNECTIONS * TIMES, Pacing::Closed);
        let mut seconds = Vec::new();
        let mut look = |second: &LiveSecond| {
            if second.second >= 0 && second.covered.as_secs() == 1 {
                seconds.push(second.row.clone());
            }
        };
        let lane = load.lane("flood", server.protocol());
        let (sample, result) = self.measure_with_hooks(&server, self.flood, lane, &mut look)?;
        let silent = Gaps::without_answers(&seconds);
        let unserved = Gaps::of(&seconds, |row| row.served() == 0);
        let least = seconds.iter().map(Row::served).min().unwrap_or(0);
        let note = format!("the longest time without: {} s", silent.longest);
        table.row(
            "seconds without any response",
            Threshold::AtMost(0.0),
            rounds(&[silent.rows as f64]),
            note,
        );
        let note = format!("the longest time without: {} s; {least} in the worst second", unserved.longest);
        let value = rounds(&[unserved.rows as f64]);
        table.row("seconds in which nothing was stored", Threshold::None, value, note);
        let latency = result.recorder.served_latency();
        let note = format!(
            "p99 {:.0} ms; {:.0} responses/s",
            micros(latency.value_at_quantile(0.99)) / 1e3,
            sample.per_second
        );
        table.row("writes/s", Threshold::None, rounds(&[result.served_per_second()]), note);
        let memory = resident_memory(server.pid())?;
        let note = format!("now {}", bytes(memory.now as f64));
        table.row("peak resident memory, MB", Threshold::None, rounds(&[memory.peak as f64 / 1e6]), note);
        Ok(())
    }
}
