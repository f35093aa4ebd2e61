//! Writes where the disk is the bottleneck: throttled to a tenth of the bandwidth that the node
//! used without a limit.

use super::flood::GOODPUT_MIN;
use super::paced_disk::PacedDisk;
use super::{CONNECTIONS, Demand, OverloadBench};
use crate::BenchResult;
use crate::data::{require_free_space, wait_until_settled};
use crate::table::{ResultTable, Threshold};
use bench::Pacing;
use bench::units::bytes;
use lab::stats::rounds;
use std::time::{Duration, Instant};

const DISK_BYTES: u64 = 4 << 30;
/// Maximum number of keys: all of them fit on the disk several times.
const KEYS_MAX: u64 = 200_000;
/// Factor of the duration of measurements. At this bandwidth a memtable takes half a minute to
/// fill, and each measurement should include the effects of a flush on writes.
const LONGER: u32 = 8;
/// Remaining fraction of the unthrottled bandwidth.
const PACE: f64 = 0.1;
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Load of the floods, as a multiple of the knee.
const TIMES: f64 = 10.0;

impl OverloadBench<'_> {
    pub(super) fn add_slow_disk(&self, table: &mut ResultTable) -> BenchResult<()> {
        require_free_space(self.work_dir.dir(), DISK_BYTES)?;
        let disk = match PacedDisk::new(self.work_dir.dir(), DISK_BYTES) {
            Ok(disk) => disk,
            Err(missing) => {
                let target = Threshold::AtLeast(GOODPUT_MIN);
                table.row("goodput / knee", target, None, format!("NOT MEASURED: {missing}"));
                return Ok(());
            }
        };
        let bench = Self { keys: self.keys.min(KEYS_MAX), duration: self.duration * LONGER, ..*self };
        let demand = bench.slow_writes();
        let server =
            self.work_dir.veche_with_defaults("overload-disk", &disk.path().join("data"), self.layout)?;
        let (before, begun) = (disk.written_bytes()?, Instant::now());
        let unpaced = self.apply_load(&server, &demand, CONNECTIONS, Pacing::Closed)?;
        let written = (disk.written_bytes()? - before) as f64 / begun.elapsed().as_secs_f64();
        let pace = written * PACE;
        // Settle first, so that work left over from the fast disk is not charged to the slow one.
        wait_until_settled(&server, SETTLE_TIMEOUT)?;
        disk.sync()?;
        disk.pace(pace as u64)?;
        println!("  wrote {}/s, paced to {}/s", bytes(written), bytes(pace));
        let note = format!("{}/s written, of which a tenth is left", bytes(written));
        let rate = rounds(&[unpaced.served_per_second]);
        table.row(
            &format!("full bandwidth: closed loop x{CONNECTIONS}, requests/s"),
            Threshold::None,
            rate,
            note,
        );
        let knee = bench.find_knee(&server, &demand, table)?;
        bench.add_connections(&server, &demand, &knee, TIMES as usize, table)?;
        bench.add_rate(&server, &demand, &knee, TIMES, Threshold::AtLeast(GOODPUT_MIN), table)?;
        disk.pace(0)?;
        // The server must end before its disk is unmounted.
        drop(server);
        Ok(())
    }

    /// Writes with a pause after each trial, so that work left over from a fast trial
    /// is not charged to the next one.
    fn slow_writes(&self) -> Demand {
        let goal = self.arguments.disk_goal.clone();
        Demand { goal, trial: self.duration, settle: Some(SETTLE_TIMEOUT), ..self.writes() }
    }
}
