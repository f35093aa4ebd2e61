//! How fast writes may come: slowed smoothly while flush or compaction lags, never stopped at a cliff.
//!
//! **Promise.** The permitted rate falls continuously as the backlog grows, so that it settles where writes
//! come as fast as the backlog is worked off. A write that would have to wait longer than
//! [`WAIT_MAX`] is refused at once instead of being delayed.
//!
//! **Mechanism.** Three backlogs (memory held by memtables, tables in level 0, bytes that compaction owes)
//! are each mapped to a level between 0 (free) and 1 (full); the worst counts. Between those the rate goes
//! down geometrically from [`RATE_MAX`] to [`RATE_MIN`]. A token bucket makes pauses of it.
//!
//! **Caveats.** The rate is that of the whole engine, whoever writes.

use std::time::Duration;
use stdx::Instant;

/// The rate at which slowing sets in, in bytes per second.
const RATE_MAX: f64 = 512.0 * (1 << 20) as f64;
/// The rate just before writes are refused, in bytes per second.
const RATE_MIN: f64 = 0.5 * (1 << 20) as f64;
/// The longest that a write waits for its turn before it is refused.
pub(crate) const WAIT_MAX: Duration = Duration::from_millis(800);
/// The longest single pause between two groups.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Memtables may fill this part of their memory before writes slow down.
const BUFFERED_FREE: f64 = 0.6;
/// So many tables in level 0 slow writes down, for each that starts a compaction.
const LEVEL0_SLOW: f64 = 3.0;
/// So many refuse them.
const LEVEL0_FULL: f64 = 12.0;
/// So many bytes owed by compaction slow writes down.
const DEBT_SLOW: f64 = 16.0 * (1u64 << 30) as f64;
/// So many refuse them.
const DEBT_FULL: f64 = 128.0 * (1u64 << 30) as f64;

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
    /// How far writes are slowed: 0 where they run free, 1 where they are refused.
    pub fn level(&self) -> f64 {
        let ramp = |value: f64, from: f64, to: f64| ((value - from) / (to - from)).clamp(0.0, 1.0);
        ramp(self.buffered_fraction, BUFFERED_FREE, 1.0)
            .max(ramp(self.level0_fraction, LEVEL0_SLOW, LEVEL0_FULL))
            .max(ramp(self.debt_bytes as f64, DEBT_SLOW, DEBT_FULL))
    }

    /// Whether writes are slowed at all.
    pub(crate) fn is_slowing(&self) -> bool {
        self.level() > 0.0
    }

    /// Bytes per second that may be written; `None`: as many as come.
    pub(crate) fn rate(&self) -> Option<f64> {
        let level = self.level();
        self.is_slowing().then(|| RATE_MAX * (RATE_MIN / RATE_MAX).powf(level))
    }

    /// How long `bytes` take at the permitted rate.
    pub(crate) fn time_for(&self, bytes: u64) -> Duration {
        self.rate().map_or(Duration::ZERO, |rate| Duration::from_secs_f64(bytes as f64 / rate))
    }
}

/// Spreads writes over time so that they keep a rate.
#[derive(Debug, Default)]
pub(crate) struct Pacer {
    /// When all that was let through so far is paid for.
    paid_at: Instant,
}

impl Pacer {
    /// Takes note of a write of `bytes` that begins now, and tells how long to pause before it.
    pub(crate) fn pause_before(&mut self, bytes: u64, backlog: &Backlog, now: Instant) -> Duration {
        let cost = backlog.time_for(bytes);
        if cost.is_zero() {
            self.paid_at = now;
            return Duration::ZERO;
        }
        let pause = (self.paid_at - now).min(PAUSE_MAX);
        self.paid_at = self.paid_at.max(now).min(now + WAIT_MAX) + cost;
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffered(buffered_fraction: f64) -> Backlog {
        Backlog { buffered_fraction, ..Backlog::default() }
    }

    #[test]
    fn the_rate_falls_without_a_step_from_free_to_full() {
        assert_eq!(buffered(BUFFERED_FREE).rate(), None);
        let mut last = RATE_MAX;
        for percent in 61..=100 {
            let rate = buffered(f64::from(percent) / 100.0).rate().expect("above the free part");
            assert!(rate < last && rate > last * 0.8, "from {last} to {rate} at {percent} %");
            last = rate;
        }
        assert!((last - RATE_MIN).abs() < 1.0);
    }

    #[test]
    fn the_worst_backlog_counts() {
        let worst = Backlog { level0_fraction: LEVEL0_FULL, ..buffered(0.7) };
        assert!((worst.level() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn paced_writes_keep_the_rate() {
        let backlog = buffered(0.8);
        let rate = backlog.rate().expect("slowed");
        let (mut pacer, mut now) = (Pacer::default(), Instant::ZERO);
        let bytes = 64 << 10;
        for _ in 0..1_000 {
            now = now + pacer.pause_before(bytes, &backlog, now);
        }
        let expected = 999.0 * bytes as f64 / rate;
        let took = (now - Instant::ZERO).as_secs_f64();
        assert!((took / expected - 1.0).abs() < 0.01, "took {took} s, expected {expected} s");
    }

    #[test]
    fn an_idle_time_is_not_saved_up() {
        let backlog = buffered(0.9);
        let mut pacer = Pacer::default();
        let late = Instant::ZERO + Duration::from_secs(100);
        pacer.pause_before(1 << 20, &backlog, late);
        assert!(!pacer.pause_before(1 << 20, &backlog, late).is_zero());
    }
}
