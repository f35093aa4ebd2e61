//! The shares of a processor and of the disk that compaction claims.
//!
//! **Promise.** Compaction debt stays bounded on processors and disks that are busy with serving,
//! while writes are slower than compaction with both to itself. While the debt is small, syncs of
//! the log rarely wait for compaction.
//!
//! **Mechanism.** The compaction threads run at low priority and use idle processor time, which on
//! a busy machine may be too little. So one more thread, at the priority of the serving threads,
//! works on the same job for a *share* of the time ([`share`]). The share grows with the debt from
//! 0 to 1, and is 1 before the debt slows writes ([`pressure`](crate::pressure)). So the debt
//! settles where input and output are balanced.
//!
//! Disks know no such priority. So while the log is being synced, the compaction threads pause
//! after each step ([`pause_after`]). Steps wait for the disk for a share of the time that grows
//! with the first one ([`disk_share`]). It never falls to 0: compaction advances at any debt. A
//! step that computes more than it waits leaves the disk to others by itself, and needs no pause.
//!
//! Both threads alternate on one job, and the one in the middle of a step keeps the other waiting.
//! At low priority on busy processors a step may take seconds. So a low-priority thread that waited
//! long for a processor is *starved* for some time after it ([`starved_for`]): it makes small
//! steps, and none while compaction claims a share.
//!
//! **Caveats.** Nothing pauses for reads.

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
/// Length of one duty cycle of work and pause. The low-priority thread may work in the pause. It
/// delays the other thread in the middle of a step, so this is much longer than a step.
const PERIOD: Duration = Duration::from_millis(200);
/// The share of the disk without debt. Compaction at a quarter of its speed keeps up with most
/// loads, and three of four syncs of the log meet none of its requests.
const DISK_SHARE_MIN: f64 = 0.25;
/// Longest pause after one step.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// A step that was ready to run for less time did not delay the urgent thread much.
const STARVED_FROM: Duration = Duration::from_millis(20);
/// Time for which a thread is starved after a step, as a multiple of the time for which it was
/// ready to run. So a low-priority thread delays the urgent one for at most a tenth of the time.
const STARVED_FACTOR: u32 = 10;
const STARVED_MAX: Duration = Duration::from_secs(60);

/// The share of a processor that compaction claims, from 0 to 1, by its debt and its throughput in
/// bytes per second.
pub(crate) fn share(backlog: &Backlog, compaction_throughput: f64) -> f64 {
    let debt_seconds = backlog.debt_seconds(compaction_throughput);
    let of_debt = (debt_seconds - DEBT_SECONDS_FREE) / (DEBT_SECONDS_WHOLE - DEBT_SECONDS_FREE);
    let of_level0 = (backlog.level0_fraction - LEVEL0_FREE) / (LEVEL0_WHOLE - LEVEL0_FREE);
    let share = of_debt.max(of_level0).min(1.0);
    if share < SHARE_MIN { 0.0 } else { share }
}

/// Whether only the thread at the priority of the serving threads works.
pub(crate) fn is_exclusive(share: f64, is_starved: bool) -> bool {
    share >= SHARE_ALONE || (is_starved && share > 0.0)
}

/// Durations of work and pause in one cycle.
pub(crate) fn duty_cycle(share: f64) -> (Duration, Duration) {
    let work = PERIOD.mul_f64(share.min(1.0));
    (work, PERIOD - work)
}

/// The share of the disk that a compaction thread claims from syncs of the log, by the share of a
/// processor that compaction claims. Above 0, and 1 if that is 1.
pub(crate) fn disk_share(share: f64) -> f64 {
    DISK_SHARE_MIN + (1.0 - DISK_SHARE_MIN) * share.clamp(0.0, 1.0)
}

/// Duration of a step of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTime {
    /// Time from the beginning of the step to its end.
    pub elapsed: Duration,
    /// Time for which the step waited for the disk.
    pub on_disk: Duration,
    /// Time for which the step was ready to run and had no processor.
    pub ready: Duration,
}

/// The time for which a low-priority thread counts as starved after a step.
pub(crate) fn starved_for(step: StepTime) -> Duration {
    if step.ready < STARVED_FROM { Duration::ZERO } else { (step.ready * STARVED_FACTOR).min(STARVED_MAX) }
}

/// The pause after a step, so that steps wait for the disk for at most this share of the time.
pub(crate) fn pause_after(step: StepTime, disk_share: f64) -> Duration {
    step.on_disk.div_f64(disk_share).saturating_sub(step.elapsed).min(PAUSE_MAX)
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

    #[test]
    fn the_share_of_the_disk_follows_the_share_of_a_processor() {
        let shares: Vec<f64> = (0..=100).map(|percent| disk_share(f64::from(percent) / 100.0)).collect();
        assert!(shares.is_sorted() && shares[0] == DISK_SHARE_MIN && shares[100] == 1.0, "{shares:?}");
        for (percent, disk) in shares.iter().enumerate() {
            assert!(*disk >= percent as f64 / 100.0, "{percent} % of a processor, {disk} of the disk");
        }
    }

    #[test]
    fn a_step_and_its_pause_have_the_share() {
        let millis = Duration::from_millis;
        let pause = |elapsed, on_disk, disk_share| {
            let ready = Duration::ZERO;
            pause_after(StepTime { elapsed: millis(elapsed), on_disk: millis(on_disk), ready }, disk_share)
        };
        assert_eq!(pause(2, 2, 1.0), Duration::ZERO);
        assert_eq!(pause(2, 2, 0.25), millis(6));
        assert_eq!(pause(6, 2, 0.25), millis(2), "4 ms of computing are part of the pause");
        assert_eq!(pause(8, 2, 0.25), Duration::ZERO);
        assert_eq!(pause(1_000, 1_000, 0.25), PAUSE_MAX);
    }

    #[test]
    fn a_starved_thread_delays_the_urgent_one_for_a_small_part_of_the_time() {
        let starved = |ready| {
            let ready = Duration::from_millis(ready);
            starved_for(StepTime { elapsed: ready, on_disk: Duration::ZERO, ready })
        };
        assert_eq!(starved(19), Duration::ZERO);
        assert_eq!(starved(100), Duration::from_secs(1));
        assert_eq!(starved(100_000), STARVED_MAX);
        assert!(!is_exclusive(0.5, false) && is_exclusive(0.95, false));
        assert!(is_exclusive(0.5, true) && !is_exclusive(0.0, true));
    }
}
