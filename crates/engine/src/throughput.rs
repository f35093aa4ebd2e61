//! Measured throughput and progress of flush and compaction: the inputs for predictions of
//! backpressure.
//!
//! **Promise.** These are estimates, measured on this disk and processor under the present load.
//! They are read without a lock.
//!
//! **Mechanism.** A [`Throughput`] is a moving average: work divided by time, with exponential
//! decay. A flush is measured from begin to end, and a compaction by the duration of its steps. The
//! throughput of level 0 is measured from the end of one of its compactions to the next. That
//! includes the other compactions in between, so it is the rate that writes can rely on. The
//! finished part of a running job counts as done, so that the backlog shrinks continuously and not
//! at the end of each job.
//!
//! **Caveats.** A change of throughput is seen at the end of a job.

use crate::compaction::{Plan, PlanId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stdx::Instant;

/// Assumed before the first measurement, in bytes per second.
const THROUGHPUT_INITIAL: f64 = 64.0 * (1 << 20) as f64;
/// Upper bound, in bytes per second: on a clock that stands still all work takes no time.
const THROUGHPUT_MAX: f64 = 64.0 * (1u64 << 30) as f64;
/// Work after which the weight of an older measurement is halved.
const HALF_LIFE: Duration = Duration::from_secs(4);

/// A moving average of bytes per second.
#[derive(Debug, Default)]
pub(crate) struct Throughput {
    /// Seconds per byte, as the bits of an `f64`; 0 before the first measurement.
    cost: AtomicU64,
    measured: Mutex<DecayedSums>,
}

#[derive(Debug, Default)]
struct DecayedSums {
    bytes: f64,
    seconds: f64,
}

impl Throughput {
    /// Records that `bytes` took this long. The weight is the duration, so that the fixed costs of
    /// a tiny job are not taken for the cost of its bytes.
    pub(crate) fn note(&self, bytes: u64, took: Duration) {
        if bytes == 0 {
            return;
        }
        let seconds = took.as_secs_f64().max(bytes as f64 / THROUGHPUT_MAX);
        let older = 0.5f64.powf(seconds / HALF_LIFE.as_secs_f64());
        let mut measured = self.measured.lock();
        measured.bytes = measured.bytes * older + bytes as f64;
        measured.seconds = measured.seconds * older + seconds;
        self.cost.store((measured.seconds / measured.bytes).to_bits(), Ordering::Relaxed);
    }

    pub(crate) fn bytes_per_second(&self) -> f64 {
        self.measured().unwrap_or(THROUGHPUT_INITIAL)
    }

    pub(crate) fn is_measured(&self) -> bool {
        self.measured().is_some()
    }

    fn measured(&self) -> Option<f64> {
        let cost = f64::from_bits(self.cost.load(Ordering::Relaxed));
        (cost > 0.0).then(|| 1.0 / cost)
    }
}

/// Throughput and progress of the background jobs.
#[derive(Debug, Default)]
pub(crate) struct BackgroundThroughput {
    /// Bytes of memtables flushed.
    pub(crate) flush: Throughput,
    level0: Throughput,
    /// As `level0`, measured from the steps of compactions that are still running.
    level0_running: Throughput,
    /// Bytes of tables merged by compactions.
    pub(crate) compaction: Throughput,
    /// Bytes of the oldest sealed memtable that are already flushed.
    flushed_bytes: AtomicU64,
    /// Time since which that memtable is waiting, in nanoseconds of the clock; 0 when none is.
    flush_pending_since: AtomicU64,
    running: Mutex<RunningCompactions>,
    /// Tables of level 0 that running compactions have merged, in thousandths.
    level0_merged: AtomicU64,
    /// Bytes of tables that running compactions have merged.
    merged_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct RunningCompactions {
    plans: BTreeMap<PlanId, RunningCompaction>,
    /// When the last compaction of level 0 ended, or the first of any kind began after an idle
    /// period.
    level0_since: Instant,
}

#[derive(Debug)]
struct RunningCompaction {
    moves: bool,
    level0_tables: u64,
    level0_data_bytes: u64,
    bytes: u64,
    done: f64,
    worked: Duration,
}

impl RunningCompaction {
    fn of(plan: &Plan) -> Self {
        let level0 = || plan.inputs.iter().filter(|input| input.level == 0).flat_map(|input| &input.tables);
        Self {
            moves: plan.is_move,
            level0_tables: level0().count() as u64,
            level0_data_bytes: level0().map(|table| table.meta().data_bytes).sum(),
            bytes: plan.bytes(),
            done: 0.0,
            worked: Duration::ZERO,
        }
    }
}

impl BackgroundThroughput {
    /// Sets how many bytes of the oldest sealed memtable are flushed.
    pub(crate) fn set_flushed_bytes(&self, bytes: u64) {
        self.flushed_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Records that a memtable waits to be flushed, unless one is waiting already.
    pub(crate) fn note_pending_flush(&self, now: Instant) {
        let _owed_before = self.flush_pending_since.compare_exchange(
            0,
            now.as_nanos(),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }

    /// Estimated seconds until the flush of the oldest sealed memtable, of `bytes`, is done: by the
    /// measured throughput, and by the time that it is overdue.
    pub(crate) fn flush_seconds_left(&self, bytes: u64, now: Instant) -> f64 {
        let speed = self.flush.bytes_per_second();
        let left_bytes = bytes.saturating_sub(self.flushed_bytes.load(Ordering::Relaxed));
        let overdue = match self.flush_pending_since.load(Ordering::Relaxed) {
            0 => 0.0,
            since => now.saturating_since(Instant::from_nanos(since)).as_secs_f64() - bytes as f64 / speed,
        };
        left_bytes as f64 / speed + overdue.max(0.0)
    }

    /// Ends a flush. `freed` is its size and duration, if it succeeded.
    pub(crate) fn flush_ended(&self, freed: Option<(u64, Duration)>) {
        self.set_flushed_bytes(0);
        self.flush_pending_since.store(0, Ordering::Relaxed);
        if let Some((bytes, took)) = freed {
            self.flush.note(bytes, took);
        }
    }

    /// Bytes of keys and values that leave level 0 per second while compaction is running.
    pub(crate) fn level0_throughput(&self) -> f64 {
        self.level0.measured().unwrap_or_else(|| self.level0_running.bytes_per_second())
    }

    pub(crate) fn compaction_began(&self, id: PlanId, plan: &Plan, now: Instant) {
        let mut running = self.running.lock();
        if running.plans.is_empty() {
            running.level0_since = now;
        }
        running.plans.insert(id, RunningCompaction::of(plan));
    }

    /// Records the completed fraction of a compaction, and the duration of its last step.
    pub(crate) fn note_compaction_step(&self, id: PlanId, done: f64, took: Duration) {
        let mut running = self.running.lock();
        if let Some(compacting) = running.plans.get_mut(&id) {
            compacting.done = done.clamp(0.0, 1.0);
            compacting.worked += took;
            let merged_bytes = (compacting.level0_data_bytes as f64 * compacting.done) as u64;
            self.level0_running.note(merged_bytes, compacting.worked);
        }
        self.add_up(&running);
    }

    /// Records a pause between two steps of a compaction. A compaction that runs alone does not
    /// count it: its pauses end as the debt grows.
    pub(crate) fn note_compaction_pause(&self, pause: Duration) {
        let mut running = self.running.lock();
        if running.plans.len() == 1 {
            running.level0_since = running.level0_since + pause;
        }
    }

    /// Ends a compaction. Its throughput counts only if its outputs became live.
    pub(crate) fn compaction_ended(&self, id: PlanId, is_live: bool, now: Instant) {
        let mut running = self.running.lock();
        if let Some(ended) = running.plans.remove(&id).filter(|ended| is_live && !ended.moves) {
            self.compaction.note(ended.bytes, ended.worked);
            if ended.level0_tables > 0 {
                self.level0.note(ended.level0_data_bytes, now.saturating_since(running.level0_since));
                running.level0_since = now;
            }
        }
        self.add_up(&running);
    }

    fn add_up(&self, running: &RunningCompactions) {
        let sum = |of: fn(&RunningCompaction) -> u64| -> u64 {
            running.plans.values().map(|plan| (of(plan) as f64 * plan.done) as u64).sum()
        };
        self.level0_merged.store(sum(|plan| plan.level0_tables * 1000), Ordering::Relaxed);
        self.merged_bytes.store(sum(|plan| plan.bytes), Ordering::Relaxed);
    }

    /// Number of tables of level 0 that running compactions have merged.
    pub(crate) fn level0_merged(&self) -> f64 {
        self.level0_merged.load(Ordering::Relaxed) as f64 / 1000.0
    }

    /// Bytes of tables that running compactions have merged.
    pub(crate) fn merged_bytes(&self) -> u64 {
        self.merged_bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overdue_flush_is_expected_to_take_the_overdue_time_again() {
        let second = |number| Instant::ZERO + Duration::from_secs(number);
        let background = BackgroundThroughput::default();
        background.flush_ended(Some((100, Duration::from_secs(10))));
        assert!((background.flush_seconds_left(100, second(7)) - 10.0).abs() < 1e-6, "before it is pending");
        background.note_pending_flush(second(7));
        background.note_pending_flush(second(8));
        background.set_flushed_bytes(60);
        assert!((background.flush_seconds_left(100, second(13)) - 4.0).abs() < 1e-6, "on time");
        assert!((background.flush_seconds_left(100, second(37)) - 24.0).abs() < 1e-6, "20 s late");
    }

    #[test]
    fn newer_work_counts_more_than_older() {
        let speed = Throughput::default();
        assert!((speed.bytes_per_second() - THROUGHPUT_INITIAL).abs() < 1.0, "before the first");
        speed.note(100, Duration::from_secs(1));
        assert!((speed.bytes_per_second() - 100.0).abs() < 1e-6);
        for _ in 0..8 {
            speed.note(100, Duration::from_secs(10));
        }
        assert!((speed.bytes_per_second() - 10.0).abs() < 0.1, "{speed:?}");
        speed.note(1, Duration::ZERO);
        assert!(speed.bytes_per_second().is_finite());
    }

    #[test]
    fn a_tiny_job_has_little_weight() {
        const MIB: u64 = 1 << 20;
        let speed = Throughput::default();
        speed.note(200 * MIB, Duration::from_secs(1));
        for _ in 0..10 {
            speed.note(789, Duration::from_micros(700));
        }
        assert!(speed.bytes_per_second() > 190.0 * MIB as f64, "{speed:?}");
    }
}
