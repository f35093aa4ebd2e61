//! How much of a processor compaction claims.
//!
//! **Promise.** What compaction owes stays bounded while writes come slower than it can work with a processor of its own,
//! however busy the processors are with serving.
//!
//! **Mechanism.** The compaction threads run at a low priority: they take what nobody else wants, and on a busy machine
//! that may be less than what comes. So there is another thread at the priority of those who serve, which works on the same
//! job for a *share* of the time ([`share`]). The share grows with what is owed, from nothing to the whole time, and is
//! whole before the debt slows writes ([`pressure`](crate::pressure)): so the debt settles where one comes as fast as the
//! other goes.
//!
//! **Caveats.** The share is one of the processor. How much of a job waits for the device at once does not depend on it.

use crate::pressure::Backlog;
use std::time::Duration;

/// Seconds of work that compaction may owe before it claims anything, ...
const DEBT_SECONDS_FREE: f64 = 5.0;
/// ... and from which on it claims a processor.
const DEBT_SECONDS_WHOLE: f64 = 40.0;
/// Tables in level 0, for each that starts a compaction: a compaction that keeps up begins at 1 and ends soon after.
const LEVEL0_FREE: f64 = 1.25;
const LEVEL0_WHOLE: f64 = 2.0;
/// A smaller share is none: it is not worth the wake-ups.
const SHARE_MIN: f64 = 0.02;
/// From here on the thread of low priority stands back: there would be nothing left for it.
const SHARE_ALONE: f64 = 0.9;
/// Work and pause of a share together. In the pause the thread of low priority may work. On a busy machine it holds up the
/// other one in the middle of a step, so this is much longer than a step.
const PERIOD: Duration = Duration::from_millis(200);

/// Which part of the time compaction claims a processor, from 0 to 1, by what it owes and how many bytes it merges a second.
pub(crate) fn share(backlog: &Backlog, compaction_throughput: f64) -> f64 {
    let debt_seconds = backlog.debt_bytes as f64 / compaction_throughput.max(1.0);
    let of_debt = (debt_seconds - DEBT_SECONDS_FREE) / (DEBT_SECONDS_WHOLE - DEBT_SECONDS_FREE);
    let of_level0 = (backlog.level0_fraction - LEVEL0_FREE) / (LEVEL0_WHOLE - LEVEL0_FREE);
    let share = of_debt.max(of_level0).min(1.0);
    if share < SHARE_MIN { 0.0 } else { share }
}

/// Whether only the thread at the priority of those who serve is to work.
pub(crate) fn is_exclusive(share: f64) -> bool {
    share >= SHARE_ALONE
}

/// How long to work, and how long to pause then.
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
    fn the_share_grows_with_the_debt_and_is_whole_before_writes_are_slowed() {
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
    fn pauses_leave_work_its_share() {
        for share in [0.05, 0.25, 0.5, 0.9, 1.0] {
            let (work, pause) = duty_cycle(share);
            let got = work.as_secs_f64() / (work + pause).as_secs_f64();
            assert!((got - share).abs() < 1e-6, "{got} of {share}");
        }
    }
}
