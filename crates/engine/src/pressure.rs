//! How fast writes may come: slowed smoothly while flush or compaction lags, never stopped at a cliff.
//!
//! **Promise.** The permitted rate settles at what flush and compaction bear, whatever disk and processor: a burst is
//! taken as it comes, a lasting overload is slowed down to that rate, and what is beyond it is refused: a write that
//! would have to wait longer than [`WAIT_MAX`] is, at once, with the time until there is room again, unless it is one of
//! few (see [`commit`](crate::commit)). What is permitted never falls to nothing while the background work moves on.
//!
//! **Mechanism.** The rate is that at which the work goes by measurement (see [`throughput`](crate::throughput)), times a factor
//! that falls continuously as the backlog grows. *Memtables* have a hard bound, so there the factor is such that the room
//! that is left lasts until the flush under way is done: with the room of one memtable left at the beginning of a flush,
//! writes come exactly as fast as they are flushed; with more, faster; with less, slower; and a flush that takes
//! longer than it should is expected to take as much longer again. For *level 0* and the *debt* of compaction the factor is a power of
//! how far the backlog is above what is free, so that it settles where one comes as fast as the other goes.
//! Debt counts in bytes and in the time that it takes to work off: a slow disk may owe less.
//!
//! A group of writes is charged when it is committed; the next waits until it is paid for. Under pressure groups are
//! small, so that each second has many.
//!
//! **Caveats.** The rate is that of the whole engine, whoever writes. Where keys are overwritten level 0 has less than
//! was written: the factor makes up for that.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use stdx::Instant;

/// The longest that a write waits for its turn before it is refused.
pub(crate) const WAIT_MAX: Duration = Duration::from_millis(250);
/// The longest pause before the rate is looked at again.
const PAUSE_MAX: Duration = Duration::from_millis(10);
/// A group takes what the rate permits in this time, and one write at least, ...
const GROUP_TIME: Duration = Duration::from_millis(5);
/// ... and what was left of the time before it, so that long syncs do not lower the rate.
const CREDIT_MAX: Duration = Duration::from_millis(100);
/// No group holds up the next for longer, however large its one write: so nobody who writes alone is refused.
const CHARGE_MAX: Duration = WAIT_MAX;
/// No rate is lower than this, in bytes per second, ...
const RATE_MIN: f64 = 64.0 * 1024.0;
/// ... or one at which memtables are filled in so many seconds: where all is full, writes are refused.
const FILL_SECONDS: f64 = 256.0;
/// A higher rate is none at all.
const RATE_MAX: f64 = 4.0 * (1u64 << 30) as f64;
/// Who was refused is not told to come back earlier or later than this.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

/// Each backlog slows nobody until it is *free*; from *held* on writes come no faster than it is worked off.
struct Thresholds {
    slowdown: f64,
    balance: f64,
}

/// Memtables, as a part of the memory that they may take.
const BUFFERED: Thresholds = Thresholds { slowdown: 0.5, balance: 0.75 };
/// Tables in level 0, for each that starts a compaction.
const LEVEL0: Thresholds = Thresholds { slowdown: 2.0, balance: 5.0 };
/// What compaction owes, in bytes...
const DEBT: Thresholds =
    Thresholds { slowdown: 16.0 * (1u64 << 30) as f64, balance: 64.0 * (1u64 << 30) as f64 };
/// ... and in seconds of work.
const DEBT_TIME: Thresholds = Thresholds { slowdown: 60.0, balance: 300.0 };

/// The rate falls with this power of the excess of level 0 or of the debt, up to where it is held, ...
const EXPONENT_BELOW_BALANCE: i32 = 2;
/// ... and beyond: there the speed must have been measured wrong.
const EXPONENT_ABOVE_BALANCE: i32 = 6;

impl Thresholds {
    /// How far a backlog is from free, 0, to held, 1, and beyond.
    fn excess(&self, value: f64) -> f64 {
        ((value - self.slowdown) / (self.balance - self.slowdown)).max(0.0)
    }
}

/// What waits for flush and compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Backlog {
    /// Bytes held by all memtables, against what they may hold.
    pub buffered_fraction: f64,
    /// Tables in level 0, against the number that starts a compaction.
    pub level0_fraction: f64,
    /// Bytes that compaction would have to rewrite for every level to be within its size.
    pub debt_bytes: u64,
}

impl Backlog {
    /// Whether it slows writes at all, where compaction merges so many bytes a second.
    pub(crate) fn slows(&self, compaction_throughput: f64) -> bool {
        self.buffered_fraction > BUFFERED.slowdown
            || self.level0_fraction > LEVEL0.slowdown
            || self.debt_excess(compaction_throughput) > 0.0
    }

    fn debt_excess(&self, compaction_throughput: f64) -> f64 {
        let debt_bytes = self.debt_bytes as f64;
        DEBT.excess(debt_bytes).max(DEBT_TIME.excess(debt_bytes / compaction_throughput))
    }
}

/// What the permitted rate follows from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pressure {
    /// Less what the jobs under way have finished of level 0 and of the debt.
    pub(crate) backlog: Backlog,
    /// What all memtables may hold.
    pub(crate) memtables_bytes: u64,
    /// Of that, what writes may still take.
    pub(crate) memtable_space_bytes: u64,
    /// What memtables take for each byte that is written.
    pub(crate) overhead: f64,
    /// Seconds until the next memtable is flushed; `None` when none waits for it.
    pub(crate) flush_seconds_left: Option<f64>,
    /// What level 0 is above its bound, in bytes as they were written.
    pub(crate) level0_over_bytes: u64,
    /// Bytes per second: of memtables that are flushed, ...
    pub(crate) flush_throughput: f64,
    /// ... of what leaves level 0, ...
    pub(crate) level0_throughput: f64,
    /// ... and of tables that are merged.
    pub(crate) compaction_throughput: f64,
}

impl Pressure {
    /// Bytes per second that may be written; `None`: as many as come.
    pub(crate) fn rate(&self) -> Option<f64> {
        let rate = self.memtable_rate().min(self.compaction_rate());
        let least = RATE_MIN.min(self.memtables_bytes as f64 / FILL_SECONDS);
        (rate < RATE_MAX).then(|| rate.max(least))
    }

    fn memtable_rate(&self) -> f64 {
        let excess = BUFFERED.excess(self.backlog.buffered_fraction);
        match self.flush_seconds_left {
            Some(seconds) if excess > 0.0 => {
                self.memtable_space_bytes as f64 / self.overhead / seconds.max(1e-9) / excess.min(1.0)
            }
            _ => f64::INFINITY,
        }
    }

    fn compaction_rate(&self) -> f64 {
        let debt = self.backlog.debt_excess(self.compaction_throughput);
        let excess = LEVEL0.excess(self.backlog.level0_fraction).max(debt);
        let steepness = if excess < 1.0 { EXPONENT_BELOW_BALANCE } else { EXPONENT_ABOVE_BALANCE };
        self.level0_throughput * excess.powi(-steepness)
    }

    fn debt_seconds(&self) -> f64 {
        self.backlog.debt_bytes as f64 / self.compaction_throughput
    }

    /// How long a write waits that finds the memtables full, and so many bytes before it.
    pub(crate) fn wait_for_room(&self, before_bytes: u64) -> Duration {
        let seconds = self.flush_seconds_left.unwrap_or(0.0)
            + before_bytes as f64 * self.overhead / self.flush_throughput;
        Duration::from_secs_f64(seconds.min(RETRY_AFTER_MAX.as_secs_f64()))
    }

    /// When there will be room again if no more is written: every backlog is free then.
    pub(crate) fn retry_after(&self) -> Duration {
        let buffered = (self.backlog.buffered_fraction - BUFFERED.slowdown) * self.memtables_bytes as f64;
        let seconds = [
            buffered / self.flush_throughput,
            self.level0_over_bytes as f64 / self.level0_throughput,
            self.debt_seconds() - DEBT_TIME.slowdown,
            (self.backlog.debt_bytes as f64 - DEBT.slowdown) / self.compaction_throughput,
        ];
        let longest = seconds.into_iter().fold(0.0, f64::max);
        Duration::from_secs_f64(longest.min(RETRY_AFTER_MAX.as_secs_f64())).max(RETRY_AFTER_MIN)
    }

    /// How many tables level 0 has above its free bound, of so many that start a compaction.
    pub(crate) fn level0_over(level0_fraction: f64, level0_tables: usize) -> f64 {
        (level0_fraction - LEVEL0.slowdown).max(0.0) * level0_tables as f64
    }
}

/// How long `bytes` take at `rate`, in bytes per second.
pub(crate) fn time_at(rate: f64, bytes: u64) -> Duration {
    Duration::from_secs_f64(bytes as f64 / rate)
}

/// How many bytes take so long at a rate in bytes per second.
pub(crate) fn bytes_at(rate: f64, time: Duration) -> u64 {
    (rate * time.as_secs_f64()) as u64
}

/// Spreads writes over time so that they keep a rate.
#[derive(Debug, Default)]
pub(crate) struct Pacer {
    /// When all that was committed so far is paid for, in nanoseconds of the clock.
    paid_at: AtomicU64,
    /// Whether anybody asks for pauses.
    is_polled: AtomicBool,
}

impl Pacer {
    /// Charges a group of `bytes` that was committed `now`. To be called by whoever has the log. Where nobody asks for
    /// pauses nothing would ever be paid.
    pub(crate) fn charge(&self, bytes: u64, rate: Option<f64>, now: Instant) {
        if !self.is_polled.load(Ordering::Relaxed) {
            return;
        }
        let cost = rate.map_or(Duration::ZERO, |rate| time_at(rate, bytes)).min(CHARGE_MAX);
        // The present end of what is paid, but not so long ago that a rest would be saved up.
        let earliest = Instant::from_nanos(now.as_nanos().saturating_sub(CREDIT_MAX.as_nanos() as u64));
        let paid_at = (self.paid_at().max(earliest) + cost).min(now + CHARGE_MAX);
        self.paid_at.store(if cost.is_zero() { 0 } else { paid_at.as_nanos() }, Ordering::Relaxed);
    }

    /// The most bytes of a group at `rate`.
    pub(crate) fn group_bytes_max(&self, rate: f64, now: Instant) -> usize {
        (rate * (GROUP_TIME + self.credit(now)).as_secs_f64()) as usize
    }

    /// The time since all was paid for that the next group may use.
    fn credit(&self, now: Instant) -> Duration {
        now.saturating_since(self.paid_at()).min(CREDIT_MAX)
    }

    fn paid_at(&self) -> Instant {
        Instant::from_nanos(self.paid_at.load(Ordering::Relaxed))
    }

    /// Whether all that was committed is paid for, whatever the time.
    pub(crate) fn is_unthrottled(&self) -> bool {
        self.is_polled.load(Ordering::Relaxed) && self.paid_at.load(Ordering::Relaxed) == 0
    }

    /// How long it takes until what was committed is paid for.
    pub(crate) fn wait(&self, now: Instant) -> Duration {
        self.paid_at().saturating_since(now)
    }

    /// How long to pause now; when that is over the rate may be another.
    pub(crate) fn pause(&self, now: Instant) -> Duration {
        if !self.is_polled.load(Ordering::Relaxed) {
            self.is_polled.store(true, Ordering::Relaxed);
        }
        self.wait(now).min(PAUSE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Four memtables of 64 MiB, the oldest of which is being flushed at 10 MiB/s.
    fn pressure(buffered_bytes: u64, flushed_bytes: u64) -> Pressure {
        let memtables_bytes = 256 * MIB;
        Pressure {
            backlog: Backlog {
                buffered_fraction: buffered_bytes as f64 / memtables_bytes as f64,
                ..Backlog::default()
            },
            memtables_bytes,
            memtable_space_bytes: memtables_bytes - buffered_bytes,
            overhead: 1.0,
            flush_seconds_left: Some((64 * MIB - flushed_bytes) as f64 / (10 * MIB) as f64),
            level0_over_bytes: 0,
            flush_throughput: 10.0 * MIB as f64,
            level0_throughput: 5.0 * MIB as f64,
            compaction_throughput: 20.0 * MIB as f64,
        }
    }

    fn rate_mib(pressure: &Pressure) -> f64 {
        pressure.rate().expect("slowed") / MIB as f64
    }

    #[test]
    fn half_of_the_memtables_slow_nobody() {
        assert_eq!(pressure(128 * MIB, 0).rate(), None);
        assert_eq!(Pressure { flush_seconds_left: None, ..pressure(250 * MIB, 0) }.rate(), None);
    }

    #[test]
    fn with_room_for_one_memtable_writes_come_as_fast_as_they_are_flushed() {
        for flushed in (0..64).step_by(8) {
            let rate = rate_mib(&pressure((192 + flushed) * MIB, flushed * MIB));
            assert!((rate - 10.0).abs() < 1e-6, "{rate} with {flushed} flushed");
        }
    }

    #[test]
    fn the_rate_falls_without_a_step_and_not_to_nothing() {
        let mut last = f64::INFINITY;
        for buffered in 129..256 {
            let rate = rate_mib(&pressure(buffered * MIB, 0));
            assert!(rate < last, "from {last} to {rate} at {buffered}");
            last = rate;
        }
        assert!(last > 0.1, "{last}");
        assert_eq!(pressure(256 * MIB, 0).rate(), Some(RATE_MIN));
    }

    /// Writes as fast as they may come while memtables are flushed at a speed that was measured wrong by `wrong`.
    fn flood(wrong: f64) {
        let step = Duration::from_millis(10);
        let (mut buffered, mut flushed, mut accepted) = (0.0, 0.0, Vec::new());
        for _ in 0..30_000 {
            let true_one = pressure(buffered as u64, flushed as u64);
            let flush_seconds_left = true_one.flush_seconds_left.map(|seconds| seconds / wrong);
            let estimated = Pressure { flush_seconds_left, ..true_one };
            let rate = estimated.rate().unwrap_or(f64::INFINITY).min(200.0 * MIB as f64);
            buffered += rate * step.as_secs_f64();
            assert!(buffered < 256.5 * MIB as f64, "the bound holds by itself: {buffered}");
            flushed += 10.0 * MIB as f64 * step.as_secs_f64();
            if flushed >= 64.0 * MIB as f64 {
                (buffered, flushed) = (buffered - 64.0 * MIB as f64, 0.0);
            }
            accepted.push(rate / MIB as f64);
        }
        let settled = &accepted[10_000..];
        let mean = settled.iter().sum::<f64>() / settled.len() as f64;
        assert!((9.5..10.5).contains(&mean), "{mean} MiB/s of 10, measured wrong by {wrong}");
        let least = settled.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(least > 0.2, "{least} MiB/s at the least, measured wrong by {wrong}");
    }

    #[test]
    fn a_flood_settles_at_the_speed_of_the_flush_and_is_never_stopped() {
        for wrong in [1.0, 0.5, 1.5] {
            flood(wrong);
        }
    }

    #[test]
    fn level_0_settles_where_it_is_worked_off_as_fast_as_it_grows() {
        let mut last = f64::INFINITY;
        for tables in 9..34 {
            let backlog = Backlog { level0_fraction: f64::from(tables) / 4.0, ..Backlog::default() };
            let rate = rate_mib(&Pressure { backlog, ..pressure(0, 0) });
            assert!(rate < last && rate > 0.0, "from {last} to {rate} at {tables} tables");
            assert!((rate > 5.0) == (tables < 20), "{rate} at {tables} tables");
            last = rate;
        }
    }

    #[test]
    fn debt_counts_by_the_time_it_takes() {
        let owing = |debt_bytes, compaction_throughput| {
            let backlog = Backlog { debt_bytes, ..Backlog::default() };
            Pressure { backlog, compaction_throughput, ..pressure(0, 0) }
        };
        let gib = 1 << 30;
        assert_eq!(owing(10 * gib, 1e9).rate(), None);
        assert!(rate_mib(&owing(10 * gib, 2e7)) < 5.0, "ten minutes' work on a slow disk");
        assert!(rate_mib(&owing(70 * gib, 1e9)) < 5.0);
    }

    #[test]
    fn who_is_refused_is_told_when_there_will_be_room() {
        assert_eq!(pressure(228 * MIB, 0).retry_after(), Duration::from_secs(10), "100 MiB to flush");
        assert_eq!(pressure(129 * MIB, 0).retry_after(), RETRY_AFTER_MIN);
        let level0 = Pressure { level0_over_bytes: 60 * MIB, ..pressure(0, 0) };
        assert_eq!(level0.retry_after(), Duration::from_secs(12));
        let backlog = Backlog { debt_bytes: 1 << 40, ..Backlog::default() };
        assert_eq!(Pressure { backlog, ..pressure(0, 0) }.retry_after(), RETRY_AFTER_MAX);
    }

    fn polled_pacer() -> Pacer {
        let pacer = Pacer::default();
        pacer.pause(Instant::ZERO);
        pacer
    }

    #[test]
    fn paced_writes_keep_the_rate_whatever_the_size_of_groups() {
        let rate = 3.0 * MIB as f64;
        for group_bytes in [100, 64 << 10, 512 << 10] {
            let (pacer, mut now, mut written) = (polled_pacer(), Instant::ZERO, 0);
            while written < 100 * MIB {
                while !pacer.wait(now).is_zero() {
                    now = now + pacer.pause(now);
                }
                pacer.charge(group_bytes, Some(rate), now);
                written += group_bytes;
            }
            let (took, expected) = ((now - Instant::ZERO).as_secs_f64(), written as f64 / rate);
            assert!((took / expected - 1.0).abs() < 0.05, "took {took} s, expected {expected} s");
        }
    }

    #[test]
    fn an_idle_time_is_not_saved_up() {
        let pacer = polled_pacer();
        let late = Instant::ZERO + Duration::from_secs(100);
        pacer.charge(10 << 20, Some(1e7), late);
        assert!(!pacer.wait(late).is_zero());
    }

    #[test]
    fn what_is_charged_is_forgotten_once_writes_run_free() {
        let pacer = polled_pacer();
        pacer.charge(1 << 20, Some(1e6), Instant::ZERO);
        assert!(!pacer.wait(Instant::ZERO).is_zero());
        pacer.charge(1, None, Instant::ZERO);
        assert!(pacer.wait(Instant::ZERO).is_zero());
    }
}
