//! CPU profiles: which functions spend processor time, by sampling.
//!
//! **Promise.** A sample stands for about one millisecond of processor time of a thread, in user or
//! kernel mode. A thread that waits is not sampled. The process keeps running, slightly slower: the
//! kernel sets a timer at each context switch, which costs most with many switches and on virtual
//! machines.
//!
//! **Mechanism.** Where the system permits it, the kernel takes the samples, including its own
//! frames ([`perf`]). Elsewhere, as in most containers, each thread has a timer of its processor
//! time, and the handler of its signal takes the sample ([`timers`]). Kernel frames are then
//! missing, but kernel time is attributed to its caller.
//!
//! **Caveats.** Both walk the stack by frame pointers: the program must be built with `-C
//! force-frame-pointers=yes`.

mod perf;
mod thread_set;
mod timers;

use crate::aggregate::SampleAggregator;
use crate::error::ProfileError;
use crate::periodic::{StopCondition, run_periodically};
use crate::{Capture, CaptureKind};
use perf::PerfSampler;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use timers::TimerSampler;

/// Processor time per sample. It is not a round number, so that sampling does not run in step with
/// periodic work.
const PERIOD: Duration = Duration::from_nanos(1_001_001);
/// Interval at which samples are drained and new threads are found.
const DRAIN_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of observed threads. Each costs a file descriptor and 68 KiB.
const THREADS_MAX: usize = 512;

/// Source of samples of all threads.
trait Sampler {
    /// Starts to sample new threads, and releases those that have ended.
    fn attach_new_threads(&mut self);
    /// Moves the pending samples to `into`.
    fn drain(&mut self, into: &mut SampleAggregator);
    /// Greatest number of threads that could not be sampled.
    fn unattached(&self) -> usize;
}

/// Records the processor time of this process for `span`, or until `cancelled` is set. Blocks the
/// calling thread.
///
/// # Errors
/// [`ProfileError`] if the system permits neither method, or another profile uses the queue.
pub fn record(span: Duration, cancelled: &AtomicBool) -> Result<Capture, ProfileError> {
    let mut aggregator = SampleAggregator::new(CaptureKind::Cpu);
    let mut sampler: Box<dyn Sampler> = match PerfSampler::begin() {
        Ok(sampler) => Box::new(sampler),
        Err(refused) => {
            aggregator.add_note(format!(
                "The kernel's part of the stacks is missing: perf_event_open is not permitted here ({refused}). See the \
                 sysctl kernel.perf_event_paranoid (1 or less is needed, or CAP_PERFMON) and the seccomp profile of the \
                 container. Samples were taken by timers instead."
            ));
            Box::new(TimerSampler::begin()?)
        }
    };
    sample_until(&mut *sampler, StopCondition { span, cancelled }, &mut aggregator);
    if sampler.unattached() > 0 {
        aggregator.add_note(format!(
            "{} threads are missing: at most {THREADS_MAX} can be looked at, and not more than the limits of the process \
             allow (open files, locked memory).",
            sampler.unattached()
        ));
    }
    drop(sampler);
    Ok(aggregator.finish(|_| false))
}

fn sample_until(sampler: &mut dyn Sampler, until: StopCondition<'_>, aggregator: &mut SampleAggregator) {
    run_periodically(DRAIN_INTERVAL, until, || {
        sampler.attach_new_threads();
        sampler.drain(aggregator);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[inline(never)]
    fn keep_busy(until: &AtomicBool) -> u64 {
        let mut sum = 1u64;
        while !until.load(Ordering::Relaxed) {
            for n in 0..10_000u64 {
                sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(n));
            }
        }
        sum
    }

    /// Sets the flag when it is dropped, also when the test panics.
    struct SetsAtEnd<'a>(&'a AtomicBool);

    impl Drop for SetsAtEnd<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Asserts that a busy thread that starts after the sampler is sampled. A loaded machine may
    /// give the thread little processor time in one round, so several rounds are tried.
    fn assert_sees_busy_thread<S: Sampler>(begin: impl Fn() -> S) {
        const ROUNDS: u32 = 100;
        let sees = (0..ROUNDS).any(|_| sees_busy_thread(begin()));
        assert!(sees, "a busy thread was seen in none of {ROUNDS} rounds");
    }

    /// Whether the busy thread received enough samples. The samples are checked in either case.
    fn sees_busy_thread(mut sampler: impl Sampler) -> bool {
        let (not_cancelled, is_recorded) = (AtomicBool::new(false), AtomicBool::new(false));
        let mut aggregator = SampleAggregator::new(CaptureKind::Cpu);
        std::thread::scope(|scope| {
            let busy = std::thread::Builder::new().name("busy-bee".to_owned());
            busy.spawn_scoped(scope, || keep_busy(&is_recorded)).expect("a thread");
            let _end = SetsAtEnd(&is_recorded);
            let until = StopCondition { span: Duration::from_millis(800), cancelled: &not_cancelled };
            sample_until(&mut sampler, until, &mut aggregator);
        });
        drop(sampler);
        let capture = aggregator.finish(|_| false);
        let of_bee =
            capture.stacks().iter().filter(|stack| capture.names_of(stack).next() == Some("busy-bee"));
        let (mut total, mut in_function) = (0, 0);
        for stack in of_bee {
            total += stack.total();
            if capture.names_of(stack).any(|name| name.ends_with("cpu::tests::keep_busy")) {
                in_function += stack.total();
            }
        }
        // One sample stands for a millisecond, so one thread has at most as many as time has
        // passed.
        assert!(total <= u64::from(capture.slices()) * u64::from(capture.slice_ms()) * 2, "{total}");
        total > 20 && in_function * 10 >= total * 9
    }

    #[test]
    fn a_busy_thread_is_seen_by_timers() {
        let _turn = crate::shared_queue::lock_for_test();
        assert_sees_busy_thread(|| TimerSampler::begin().expect("timers need no permission"));
    }

    #[test]
    fn a_busy_thread_is_seen_by_the_kernel() {
        // Where the system forbids this, timers are used instead.
        if PerfSampler::begin().is_ok() {
            assert_sees_busy_thread(|| PerfSampler::begin().expect("it was permitted before"));
        }
    }

    #[test]
    fn a_cancelled_profile_ends() {
        let _turn = crate::shared_queue::lock_for_test();
        let capture =
            record(Duration::from_secs(3_600), &AtomicBool::new(true)).expect("one way is permitted");
        assert!(capture.slices() < 1_000);
    }
}
