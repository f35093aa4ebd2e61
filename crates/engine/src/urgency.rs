//! The share of a processor that compaction claims.
//!
//! **Promise.** Compaction debt stays bounded on processors that are busy with serving, while
//! writes are slower than compaction with a processor of its own.
//!
//! **Mechanism.** The compaction threads run at low priority and use idle processor time, which on
//! a busy machine may be too little. So one more thread, at the priority of the serving threads,
//! works on the same job for a *share* of the time ([`share`]). The share grows with the debt from
//! 0 to 1, and is 1 before the debt slows writes ([`pressure`](crate::pressure)). So the debt
//! settles where input and output are balanced.
//!
//! **Caveats.** The share is one of processor time. It does not change the number of device
//! requests of a job in flight.

use crate::pressure::Backlog;
use std::time::Duration;

/// Up to this debt, in seconds of work, compaction claims no share.
const DEBT_SECONDS_FREE: f64 = 5.0;
/// From this debt on, in seconds of work, compaction claims the whole processor.
const DEBT_SECONDS_WHOLE: f64 = 40.0;
/// The same for tables in level 0, as a multiple of the number that triggers a compaction. A
/// compaction that keeps up begins at 1 and ends soon after.
const LEVEL0_FREE: f64 = 1.25;
const LEVEL0_WHOLE: f64 = 2.0;
/// Shares below this are rounded to 0: they are not worth the wake-ups.
const SHARE_MIN: f64 = 0.02;
/// From this share on the low-priority thread is idle: there would be no time left for it.
const SHARE_ALONE: f64 = 0.9;
/// Length of one duty cycle of work and pause. The low-priority thread may work in the pause. On a
/// busy machine it delays the other thread in the middle of a step, so this is much longer than a
/// step.
const PERIOD: Duration = Duration::from_millis(200);

/// The share of a processor that compaction claims, from 0 to 1, by its debt and its throughput in
/// bytes per second.
pub(crate) fn share(backlog: &Backlog, compaction_throughput: f64) -> f64 {
    let debt_seconds = backlog.debt_bytes as f64 / compaction_throughput.max(1.0);
    let of_debt = (debt_seconds - DEBT_SECONDS_FREE) / (DEBT_SECONDS_WHOLE - DEBT_SECONDS_FREE);
    let of_level0 = (backlog.level0_fraction - LEVEL0_FREE) / (LEVEL0_WHOLE - LEVEL0_FREE);
    let share = of_debt.max(of_level0).min(1.0);
    if share < SHARE_MIN { 0.0 } else { share }
}

/// Whether only the thread at the priority of the serving threads works.
pub(crate) fn is_exclusive(share: f64) -> bool {
    share >= SHARE_ALONE
}

/// Durations of work and pause in one cycle.
pub(crate) fn duty_cycle(share: f64) -> (Duration, Duration) {
    let work = PERIOD.mul_f64(share.min(1.0));
    (work, PERIOD - work)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owing(seconds: f64, level0_fraction: f64) -> f64 {
        let backlog = Backlog { debt_bytes: (seconds * 1e8) as u64, level0_fraction, ..Backlog::default() };
        share(&backlog, 1e8)
    }

    #[test]
    fn the_share_grows_with_the_debt_and_is_1_before_writes_are_slowed() {
        assert_eq!(owing(4.0, 1.0), 0.0);
        let shares: Vec<f64> = (5..60).map(|seconds| owing(f64::from(seconds), 0.0)).collect();
        assert!(shares.is_sorted() && shares.windows(2).all(|pair| pair[1] - pair[0] < 0.06), "{shares:?}");
        for (seconds, level0_fraction) in [(60.0, 0.0), (0.0, 2.0)] {
            let debt_bytes = (seconds * 1e8) as u64;
            let backlog = Backlog { debt_bytes, level0_fraction, ..Backlog::default() };
            assert!(!backlog.slows(1e8));
            assert_eq!(share(&backlog, 1e8), 1.0);
        }
    }

    #[test]
    fn a_duty_cycle_has_the_share() {
        for share in [0.05, 0.25, 0.5, 0.9, 1.0] {
            let (work, pause) = duty_cycle(share);
            let got = work.as_secs_f64() / (work + pause).as_secs_f64();
            assert!((got - share).abs() < 1e-6, "{got} of {share}");
        }
    }
}
