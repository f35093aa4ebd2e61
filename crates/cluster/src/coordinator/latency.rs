//! Read latency of a replica, by which replicas are ranked and overdue answers detected.
//!
//! The mean is an exponentially weighted moving average. The 95th percentile is estimated by
//! stochastic approximation (Robbins and Monro, 1951): an answer above the estimate raises it by 19
//! steps, one below lowers it by one step.

use std::time::Duration;

/// An answer is never overdue before this time.
pub(super) const OVERDUE_MIN: Duration = Duration::from_millis(1);
/// An answer is always overdue after this time.
pub(super) const OVERDUE_MAX: Duration = Duration::from_millis(100);

/// A replica with a greater mean latency is asked only if there is no other: its disk hangs, or
/// nearly so.
const SLOW: Duration = Duration::from_millis(50);

/// Weight of the latest answer in the mean, as a right shift.
const MEAN_SHIFT: u32 = 4;
/// Step by which an answer below the percentile lowers the estimate, as a right shift of the
/// estimate.
const PERCENTILE_SHIFT: u32 = 9;
/// Number of answers below the 95th percentile per answer above it.
const BELOW_FOR_ONE_ABOVE: u64 = 19;

/// Estimates of the mean and the 95th percentile of a replica's read latency.
#[derive(Clone, Copy, Debug)]
pub(super) struct LatencyEstimate {
    mean_nanos: u64,
    p95_nanos: u64,
}

impl LatencyEstimate {
    /// The estimate for a replica that has not answered yet: it counts as fast, so that it will be
    /// asked.
    pub(super) const UNKNOWN: Self = Self { mean_nanos: 0, p95_nanos: 10_000_000 };

    /// Records the latency of an answer, or the time that an overdue answer has taken so far.
    #[inline]
    pub(super) fn observe(&mut self, took: Duration) {
        let nanos = took.as_nanos().min(u128::from(u32::MAX)) as u64;
        self.mean_nanos = self.mean_nanos - (self.mean_nanos >> MEAN_SHIFT) + (nanos >> MEAN_SHIFT);
        let part = (self.p95_nanos >> PERCENTILE_SHIFT) + 1;
        self.p95_nanos = if nanos > self.p95_nanos {
            (self.p95_nanos + part * BELOW_FOR_ONE_ABOVE).min(OVERDUE_MAX.as_nanos() as u64)
        } else {
            self.p95_nanos - part.min(self.p95_nanos)
        };
    }

    /// The mean, for comparing replicas.
    pub(super) const fn mean_nanos(self) -> u64 {
        self.mean_nanos
    }

    /// Whether reads should avoid the replica.
    pub(super) const fn is_slow(self) -> bool {
        self.mean_nanos > SLOW.as_nanos() as u64
    }

    /// Time without an answer after which it is overdue.
    pub(super) fn overdue_after(self) -> Duration {
        Duration::from_nanos(self.p95_nanos).clamp(OVERDUE_MIN, OVERDUE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::Rng;

    #[test]
    fn the_estimate_is_near_the_percentile() {
        let mut latency = LatencyEstimate::UNKNOWN;
        let mut rng = Rng::new(1);
        (0..20_000).for_each(|_| latency.observe(Duration::from_micros(2_000 + rng.below(10_000))));
        let overdue_after = latency.overdue_after().as_micros();
        assert!(
            (11_000..=12_000).contains(&overdue_after),
            "the 95th percentile is 11,500 us, not {overdue_after}"
        );
        assert!((6_000_000..8_000_000).contains(&latency.mean_nanos()), "{latency:?}");
    }

    #[test]
    fn a_hanging_replica_is_slow_at_once_and_recovers_after_some_quick_answers() {
        let mut latency = LatencyEstimate::UNKNOWN;
        latency.observe(Duration::from_secs(1));
        assert!(latency.is_slow(), "it let a read wait to its deadline");
        let quick = (0..).find(|_| {
            latency.observe(Duration::from_micros(200));
            !latency.is_slow()
        });
        assert!(quick <= Some(4), "{quick:?}");
    }

    #[test]
    fn the_overdue_time_is_bounded() {
        let mut latency = LatencyEstimate::UNKNOWN;
        (0..10_000).for_each(|_| latency.observe(Duration::ZERO));
        assert_eq!(latency.overdue_after(), OVERDUE_MIN);
        (0..10_000).for_each(|_| latency.observe(Duration::from_secs(1_000)));
        assert_eq!(latency.overdue_after(), OVERDUE_MAX);
    }
}
