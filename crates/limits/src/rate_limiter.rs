//! A token bucket whose rate may change from charge to charge.
//!
//! **Promise.** Work that waits until its debt is paid keeps the rate at which it is charged, for
//! any size of a charge. Unused time is saved up as *credit* for a burst, to a bound. Debt is
//! bounded, too.
//!
//! **Mechanism.** The bucket is one time: the one at which the cost of all charges is paid. If it
//! is in the future, the difference is debt; if it is in the past, credit. A cost is a duration, so
//! a charge has the rate of its moment ([`time_at`]).
//!
//! **Caveats.** One thread charges at a time; any thread may read.
//!
//! Sources: J. S. Turner, "New directions in communications", 1986, on the token bucket; ITU-T
//! I.371, on keeping it as a time (the virtual scheduling algorithm).

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use stdx::{Instant, nanos};

/// Limits a rate of work.
#[derive(Debug)]
pub struct RateLimiter {
    /// Time at which the cost of all charges is paid, in nanoseconds of the clock. May precede the
    /// start of the clock.
    paid_at: AtomicI64,
    credit_max: Duration,
}

impl RateLimiter {
    /// A limiter without debt at the start of the clock, whose credit is at most `credit_max`.
    pub const fn new(credit_max: Duration) -> Self {
        Self { paid_at: AtomicI64::new(0), credit_max }
    }

    /// A limiter that has all of its credit `now`.
    pub fn full(now: Instant, credit_max: Duration) -> Self {
        Self { paid_at: AtomicI64::new(signed(now) - signed_nanos(credit_max)), credit_max }
    }

    /// The time until the debt is paid.
    pub fn debt(&self, now: Instant) -> Duration {
        duration(self.paid_at() - signed(now))
    }

    /// The unused time that the next charges may use.
    pub fn credit(&self, now: Instant) -> Duration {
        duration(signed(now) - self.paid_at()).min(self.credit_max)
    }

    /// Charges `cost`. The debt that is left is at most `debt_max`.
    pub fn charge(&self, now: Instant, cost: Duration, debt_max: Duration) {
        let earliest = signed(now) - signed_nanos(self.credit_max);
        let paid_at = self.paid_at().max(earliest) + signed_nanos(cost);
        self.paid_at.store(paid_at.min(signed(now) + signed_nanos(debt_max)), Ordering::Relaxed);
    }

    /// Returns the cost of a charge whose work was not done.
    pub fn refund(&self, cost: Duration) {
        self.paid_at.store(self.paid_at() - signed_nanos(cost), Ordering::Relaxed);
    }

    /// Forgets all charges.
    pub fn clear(&self) {
        self.paid_at.store(0, Ordering::Relaxed);
    }

    /// Whether there is no debt at any time, because nothing was charged since the last
    /// [`RateLimiter::clear`].
    pub fn is_clear(&self) -> bool {
        self.paid_at() == 0
    }

    fn paid_at(&self) -> i64 {
        self.paid_at.load(Ordering::Relaxed)
    }
}

/// The time that `bytes` take at `rate`, in bytes per second.
pub fn time_at(rate: f64, bytes: u64) -> Duration {
    Duration::from_secs_f64(bytes as f64 / rate)
}

/// The bytes that `rate`, in bytes per second, permits in `time`.
pub fn bytes_at(rate: f64, time: Duration) -> u64 {
    (rate * time.as_secs_f64()) as u64
}

/// Times and durations are bounded by 146 years, so that two of them can be added.
const NANOS_MAX: u64 = i64::MAX as u64 / 2;

fn signed(time: Instant) -> i64 {
    time.as_nanos().min(NANOS_MAX) as i64
}

fn signed_nanos(time: Duration) -> i64 {
    nanos(time).min(NANOS_MAX) as i64
}

fn duration(signed_nanos: i64) -> Duration {
    Duration::from_nanos(u64::try_from(signed_nanos).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + SECOND * seconds as u32
    }

    #[test]
    fn credit_and_debt_are_bounded() {
        let limiter = RateLimiter::full(at(3), 8 * SECOND);
        assert_eq!((limiter.credit(at(3)), limiter.debt(at(3))), (8 * SECOND, Duration::ZERO));
        assert_eq!(limiter.credit(at(100)), 8 * SECOND, "no more is saved up");
        limiter.charge(at(100), 5 * SECOND, SECOND);
        assert_eq!((limiter.credit(at(100)), limiter.credit(at(101))), (3 * SECOND, 4 * SECOND));
        limiter.charge(at(101), 50 * SECOND, 2 * SECOND);
        assert_eq!((limiter.debt(at(101)), limiter.credit(at(101))), (2 * SECOND, Duration::ZERO));
        limiter.refund(3 * SECOND);
        assert_eq!((limiter.debt(at(101)), limiter.credit(at(101))), (Duration::ZERO, SECOND));
    }

    #[test]
    fn charges_keep_the_rate_for_any_size() {
        for bytes in [1, 100, 2_000] {
            let (limiter, mut now, mut charged) = (RateLimiter::new(Duration::ZERO), Instant::ZERO, 0);
            while charged < 100_000 {
                now = now + limiter.debt(now);
                limiter.charge(now, time_at(1_000.0, bytes), Duration::MAX);
                charged += bytes;
            }
            let took = (now + limiter.debt(now) - Instant::ZERO).as_secs_f64();
            assert!((took - 100.0).abs() < 0.01, "{took} s for 100,000 bytes at 1,000 in a second");
        }
    }

    #[test]
    fn cleared_charges_are_forgotten() {
        let limiter = RateLimiter::new(SECOND);
        assert!(limiter.is_clear());
        limiter.charge(at(1), 9 * SECOND, 5 * SECOND);
        assert!(!limiter.is_clear() && limiter.debt(at(1)) == 5 * SECOND);
        limiter.clear();
        assert!(limiter.is_clear() && limiter.debt(at(1)).is_zero());
    }
}
