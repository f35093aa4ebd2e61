//! How fast a replica answers reads: what chooses whom to ask, and when an answer is late.
//!
//! The mean is an exponentially weighted one. The 95th percentile is estimated by stochastic approximation (Robbins
//! and Monro, 1951): an answer above the estimate raises it by 19 parts, one below lowers it by one.

use std::time::Duration;

/// An answer is never called late before this, ...
pub(super) const LATE_MIN: Duration = Duration::from_millis(1);
/// ... and always after this.
pub(super) const LATE_MAX: Duration = Duration::from_millis(100);

/// A replica whose answers take so long in the mean is asked when there is no other: its disk hangs, or nearly so.
const SLOW: Duration = Duration::from_millis(50);

/// The latest answer has this part in the mean, as a shift.
const MEAN_SHIFT: u32 = 4;
/// An answer below the percentile lowers it by this part, as a shift.
const PERCENTILE_SHIFT: u32 = 9;
/// How many answers below the 95th percentile there are for one above.
const BELOW_FOR_ONE_ABOVE: u64 = 19;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct LatencyEstimate {
    mean_nanos: u64,
    p95_nanos: u64,
}

impl LatencyEstimate {
    /// Of a replica that has not answered yet: it counts as fast, so that it will be asked.
    pub(super) const UNKNOWN: Self = Self { mean_nanos: 0, p95_nanos: 10_000_000 };

    /// Takes note of an answer, or of one that is late already after so long.
    #[inline]
    pub(super) fn observe(&mut self, took: Duration) {
        let nanos = took.as_nanos().min(u128::from(u32::MAX)) as u64;
        self.mean_nanos = self.mean_nanos - (self.mean_nanos >> MEAN_SHIFT) + (nanos >> MEAN_SHIFT);
        let part = (self.p95_nanos >> PERCENTILE_SHIFT) + 1;
        self.p95_nanos = if nanos > self.p95_nanos {
            (self.p95_nanos + part * BELOW_FOR_ONE_ABOVE).min(LATE_MAX.as_nanos() as u64)
        } else {
            self.p95_nanos - part.min(self.p95_nanos)
        };
    }

    /// For comparing replicas.
    pub(super) const fn mean_nanos(self) -> u64 {
        self.mean_nanos
    }

    /// Whether it is better not to wait for it.
    pub(super) const fn is_slow(self) -> bool {
        self.mean_nanos > SLOW.as_nanos() as u64
    }

    /// After so long without an answer it is late.
    pub(super) fn late_after(self) -> Duration {
        Duration::from_nanos(self.p95_nanos).clamp(LATE_MIN, LATE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::Rng;

    #[test]
    fn the_estimate_is_near_the_percentile_of_what_it_saw() {
        let mut latency = LatencyEstimate::UNKNOWN;
        let mut rng = Rng::new(1);
        (0..20_000).for_each(|_| latency.observe(Duration::from_micros(2_000 + rng.below(10_000))));
        let late_after = latency.late_after().as_micros();
        assert!(
            (11_000..=12_000).contains(&late_after),
            "the 95th percentile is 11,500 us, not {late_after}"
        );
        assert!((6_000_000..8_000_000).contains(&latency.mean_nanos()), "{latency:?}");
    }

    #[test]
    fn a_replica_that_hangs_is_slow_at_once_and_well_after_some_quick_answers() {
        let mut latency = LatencyEstimate::UNKNOWN;
        latency.observe(Duration::from_secs(1));
        assert!(latency.is_slow(), "one that let a read wait to its deadline");
        let quick = (0..).find(|_| {
            latency.observe(Duration::from_micros(200));
            !latency.is_slow()
        });
        assert!(quick <= Some(4), "{quick:?}");
    }

    #[test]
    fn late_has_bounds() {
        let mut latency = LatencyEstimate::UNKNOWN;
        (0..10_000).for_each(|_| latency.observe(Duration::ZERO));
        assert_eq!(latency.late_after(), LATE_MIN);
        (0..10_000).for_each(|_| latency.observe(Duration::from_secs(1_000)));
        assert_eq!(latency.late_after(), LATE_MAX);
    }
}
