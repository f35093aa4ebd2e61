//! Backpressure on writes: the permitted rate falls continuously while flush or compaction lags.
//!
//! **Promise.** The permitted rate settles at the rate that flush and compaction sustain, on any
//! disk and processor. Bursts are admitted at full speed; a lasting overload is slowed to that
//! rate, and the excess is refused. A write that would wait longer than [`WAIT_MAX`] is refused at
//! once, with the estimated time until there is space, unless few writes wait (see
//! [`commit`](crate::commit)). The permitted rate does not reach zero while background jobs
//! advance.
//!
//! **Mechanism.** The rate is the measured throughput of the jobs (see
//! [`throughput`](crate::throughput)) times a factor that falls continuously as the backlog grows.
//!
//! *Memtables* have a hard limit. Their factor makes the remaining space last until the running
//! flush is done. With space for exactly one memtable at the start of a flush, writes are as fast
//! as the flush; with more space they are faster, with less they are slower. A flush that is
//! overdue by some time is expected to take that time again.
//!
//! For *level 0* and the *compaction debt* the factor is a power of the excess of the backlog over
//! its slowdown threshold. So it settles where input and output are balanced. Compaction debt is
//! measured in bytes and in the time needed to pay it off: a slow disk may have less of it.
//!
//! The pacer is a token bucket: a group of writes is charged when it is committed, and the next
//! group waits until that cost is paid. Under pressure groups are small, so that each second has
//! many.
//!
//! **Caveats.** The rate is that of the whole engine, not of one client. Overwrites make level 0
//! receive fewer bytes than were written; the factor compensates for that.

use limits::{RateLimiter, bytes_at, time_at};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stdx::Instant;

/// Longest time that a queued write may wait for the permitted rate before it is refused.
pub(crate) const WAIT_MAX: Duration = Duration::from_millis(250);
/// Longest pause before the rate is computed again.
const PAUSE_MAX: Duration = Duration::from_millis(10);
/// A group may take the bytes that the rate permits in this time, and at least one write.
const GROUP_TIME: Duration = Duration::from_millis(5);
/// Limit of the unused time before a group that adds to its size, so that long syncs do not lower
/// the rate.
const CREDIT_MAX: Duration = Duration::from_millis(100);
/// Longest delay that one group causes for the next, even if its only write is large. So a single
/// client that writes sequentially is never refused.
const CHARGE_MAX: Duration = WAIT_MAX;
/// Lower bound of the permitted rate, in bytes per second.
const RATE_MIN: f64 = 64.0 * 1024.0;
/// The lower bound is less for small memtables: the rate that fills them in 256 seconds. Once they
/// are full, writes are refused.
const FILL_SECONDS: f64 = 256.0;
/// Rates from here on count as unlimited, in bytes per second.
const RATE_MAX: f64 = 4.0 * (1u64 << 30) as f64;
/// Bounds of the retry time that a refused write reports.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

/// Thresholds of a backlog. Below `slowdown` it slows no write; from `balance` on, the permitted
/// rate is at most the rate at which it drains.
struct Thresholds {
    slowdown: f64,
    balance: f64,
}

/// Memtables, as a fraction of the memory that they may take.
const BUFFERED: Thresholds = Thresholds { slowdown: 0.5, balance: 0.75 };
/// Tables in level 0, as a multiple of the number that triggers a compaction.
const LEVEL0: Thresholds = Thresholds { slowdown: 2.0, balance: 5.0 };
/// Compaction debt in bytes.
const DEBT: Thresholds =
    Thresholds { slowdown: 16.0 * (1u64 << 30) as f64, balance: 64.0 * (1u64 << 30) as f64 };
/// Compaction debt in seconds of work.
const DEBT_TIME: Thresholds = Thresholds { slowdown: 60.0, balance: 300.0 };

/// Exponent with which the rate falls with the excess of level 0 or debt, below `balance`.
const EXPONENT_BELOW_BALANCE: i32 = 2;
/// The same beyond `balance`, which is reached only if the throughput was measured wrong.
const EXPONENT_ABOVE_BALANCE: i32 = 6;

impl Thresholds {
    /// Position of a backlog between the thresholds: 0 up to `slowdown`, 1 at `balance`, more
    /// beyond.
    fn excess(&self, value: f64) -> f64 {
        ((value - self.slowdown) / (self.balance - self.slowdown)).max(0.0)
    }
}

/// Work that flush and compaction have not done yet.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Backlog {
    /// Bytes of all memtables, relative to their limit.
    pub buffered_fraction: f64,
    /// Tables in level 0, relative to the number that triggers a compaction.
    pub level0_fraction: f64,
    /// Bytes that compaction must rewrite until every level is within its target size.
    pub debt_bytes: u64,
}

impl Backlog {
    /// Whether the backlog slows writes, at this throughput of compaction in bytes per second.
    pub(crate) fn slows(&self, compaction_throughput: f64) -> bool {
        self.buffered_fraction > BUFFERED.slowdown
            || self.level0_fraction > LEVEL0.slowdown
            || self.debt_excess(compaction_throughput) > 0.0
    }

    fn debt_excess(&self, compaction_throughput: f64) -> f64 {
        let of_bytes = DEBT.excess(self.debt_bytes as f64);
        of_bytes.max(DEBT_TIME.excess(self.debt_seconds(compaction_throughput)))
    }

    /// The compaction debt in seconds of work, at this throughput of compaction in bytes per
    /// second.
    pub(crate) fn debt_seconds(&self, compaction_throughput: f64) -> f64 {
        self.debt_bytes as f64 / compaction_throughput.max(1.0)
    }
}

/// Inputs of the permitted rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pressure {
    /// The backlog without the work that running compactions have completed.
    pub(crate) backlog: Backlog,
    /// Memory limit of all memtables, in bytes.
    pub(crate) memtables_bytes: u64,
    /// The part of that limit that writes may still use, in bytes.
    pub(crate) memtable_space_bytes: u64,
    /// Memory that memtables take per byte written.
    pub(crate) overhead: f64,
    /// Estimated seconds until the next memtable is flushed; `None` when none is sealed.
    pub(crate) flush_seconds_left: Option<f64>,
    /// Excess of level 0 over its slowdown threshold, in bytes as they were written.
    pub(crate) level0_over_bytes: u64,
    /// Bytes of memtables flushed per second.
    pub(crate) flush_throughput: f64,
    /// Bytes that leave level 0 per second.
    pub(crate) level0_throughput: f64,
    /// Bytes of tables merged per second.
    pub(crate) compaction_throughput: f64,
}

impl Pressure {
    /// The permitted rate in bytes per second; `None` when it is unlimited.
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

    /// Estimated wait of a write that finds the memtables full and `before_bytes` of stalled writes
    /// before it.
    pub(crate) fn wait_for_room(&self, before_bytes: u64) -> Duration {
        let seconds = self.flush_seconds_left.unwrap_or(0.0)
            + before_bytes as f64 * self.overhead / self.flush_throughput;
        Duration::from_secs_f64(seconds.min(RETRY_AFTER_MAX.as_secs_f64()))
    }

    /// Estimated time until every backlog is below its slowdown threshold, if no more is written.
    pub(crate) fn retry_after(&self) -> Duration {
        let buffered = (self.backlog.buffered_fraction - BUFFERED.slowdown) * self.memtables_bytes as f64;
        let seconds = [
            buffered / self.flush_throughput,
            self.level0_over_bytes as f64 / self.level0_throughput,
            self.backlog.debt_seconds(self.compaction_throughput) - DEBT_TIME.slowdown,
            (self.backlog.debt_bytes as f64 - DEBT.slowdown) / self.compaction_throughput,
        ];
        let longest = seconds.into_iter().fold(0.0, f64::max);
        Duration::from_secs_f64(longest.min(RETRY_AFTER_MAX.as_secs_f64())).max(RETRY_AFTER_MIN)
    }

    /// Number of tables that level 0 has above its slowdown threshold.
    pub(crate) fn level0_over(level0_fraction: f64, level0_tables: usize) -> f64 {
        (level0_fraction - LEVEL0.slowdown).max(0.0) * level0_tables as f64
    }
}

/// Paces writes by a token bucket. Nothing is charged until the host asks for pauses: the debt
/// would never be paid.
#[derive(Debug)]
pub(crate) struct Pacer {
    limiter: RateLimiter,
    /// Whether the host asks for pauses.
    is_polled: AtomicBool,
}

impl Default for Pacer {
    fn default() -> Self {
        Self { limiter: RateLimiter::new(CREDIT_MAX), is_polled: AtomicBool::new(false) }
    }
}

impl Pacer {
    /// Charges a group of `bytes` that was committed `now`. To be called by the thread that holds
    /// the log.
    pub(crate) fn charge(&self, bytes: u64, rate: Option<f64>, now: Instant) {
        if !self.is_polled.load(Ordering::Relaxed) {
            return;
        }
        match rate.map(|rate| time_at(rate, bytes).min(CHARGE_MAX)).filter(|cost| !cost.is_zero()) {
            Some(cost) => self.limiter.charge(now, cost, CHARGE_MAX),
            None => self.limiter.clear(),
        }
    }

    /// Size limit of a group at `rate`, in bytes.
    pub(crate) fn group_bytes_max(&self, rate: f64, now: Instant) -> usize {
        bytes_at(rate, GROUP_TIME + self.limiter.credit(now)) as usize
    }

    /// Whether no debt is open at any time, because the last group was not throttled.
    pub(crate) fn is_unthrottled(&self) -> bool {
        self.is_polled.load(Ordering::Relaxed) && self.limiter.is_clear()
    }

    /// The time until the debt is paid.
    pub(crate) fn wait(&self, now: Instant) -> Duration {
        self.limiter.debt(now)
    }

    /// The pause to make now. After it the permitted rate is computed again.
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
    fn half_full_memtables_slow_no_write() {
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
    fn the_rate_falls_continuously_and_not_to_zero() {
        let mut last = f64::INFINITY;
        for buffered in 129..256 {
            let rate = rate_mib(&pressure(buffered * MIB, 0));
            assert!(rate < last, "from {last} to {rate} at {buffered}");
            last = rate;
        }
        assert!(last > 0.1, "{last}");
        assert_eq!(pressure(256 * MIB, 0).rate(), Some(RATE_MIN));
    }

    /// Writes at the permitted rate, while the estimate of the flush throughput is wrong by the
    /// factor `wrong`.
    fn overload(wrong: f64) {
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
    fn an_overload_settles_at_the_throughput_of_the_flush_and_never_stops() {
        for wrong in [1.0, 0.5, 1.5] {
            overload(wrong);
        }
    }

    #[test]
    fn level_0_settles_where_it_drains_as_fast_as_it_grows() {
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
    fn a_refusal_reports_when_there_will_be_space() {
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
    fn paced_writes_keep_the_rate_for_any_group_size() {
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
    fn a_charge_is_forgotten_once_writes_are_unthrottled() {
        let pacer = polled_pacer();
        pacer.charge(1 << 20, Some(1e6), Instant::ZERO);
        assert!(!pacer.wait(Instant::ZERO).is_zero());
        pacer.charge(1, None, Instant::ZERO);
        assert!(pacer.wait(Instant::ZERO).is_zero());
    }
}
