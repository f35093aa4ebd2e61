//! Where the processors' time went.
//!
//! **Promise.** A sample stands for about a millisecond of processor time of a thread, in its own code or in the kernel
//! for it; a thread that waits is in none. The process runs on while it is looked at, a little slower: the kernel sets a timer at each
//! change of threads, which costs most where there are many, and on virtual machines.
//!
//! **Mechanism.** Where it is permitted, the kernel takes the samples, with its own part of the stack ([`perf`]). Where it
//! is not, as in most containers, each thread has a timer of its processor time, whose signal takes the sample
//! ([`timers`]): the kernel's part is then missing from the stacks, but its time is counted where it was called.
//!
//! **Caveats.** Both walk the stack by frame pointers: the program must be built with `-C force-frame-pointers=yes`.

mod perf;
mod thread_set;
mod timers;

use crate::aggregate::SampleAggregator;
use crate::error::ProfileError;
use crate::periodic::{StopCondition, run_periodically};
use crate::{Capture, Kind};
use perf::PerfSampler;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use timers::TimerSampler;

/// One sample for so much processor time. Not a round number, so that it does not keep step with what is done regularly.
const PERIOD: Duration = Duration::from_nanos(1_001_001);
/// How often samples are taken out of the buffers, and new threads looked for.
const DRAIN_INTERVAL: Duration = Duration::from_millis(20);
/// The most threads that are looked at; each costs a file and 68 KiB.
const THREADS_MAX: usize = 512;

/// What takes samples of all threads.
trait Sampler {
    /// Begins with threads that are new, and leaves those that have ended.
    fn attach_new_threads(&mut self);
    /// Hands over what was taken.
    fn drain(&mut self, into: &mut SampleAggregator);
    /// How many threads could not be looked at.
    fn unattached(&self) -> usize;
}

/// Takes samples of this process for so long, or until `cancelled`.
///
/// # Errors
/// The system permits neither way, or another profile of the kind is being taken.
pub fn record(span: Duration, cancelled: &AtomicBool) -> Result<Capture, ProfileError> {
    let mut aggregator = SampleAggregator::new(Kind::Cpu);
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

    /// Sets it when it is dropped, also by a test that fails.
    struct SetsAtEnd<'a>(&'a AtomicBool);

    impl Drop for SetsAtEnd<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// A thread that is busy while samples are taken, and begins after the sampler, is seen. A loaded machine may give it
    /// little of the processor in one round.
    fn assert_sees_busy_thread<S: Sampler>(begin: impl Fn() -> S) {
        const ROUNDS: u32 = 100;
        let sees = (0..ROUNDS).any(|_| sees_busy_thread(begin()));
        assert!(sees, "a busy thread was seen in none of {ROUNDS} rounds");
    }

    /// Whether enough is seen of it. What is seen is right in any case.
    fn sees_busy_thread(mut sampler: impl Sampler) -> bool {
        let (not_cancelled, is_recorded) = (AtomicBool::new(false), AtomicBool::new(false));
        let mut aggregator = SampleAggregator::new(Kind::Cpu);
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
        // A millisecond a sample, of one thread: no more than the time there was.
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
        // Where this is not permitted, timers do it.
        if PerfSampler::begin().is_ok() {
            assert_sees_busy_thread(|| PerfSampler::begin().expect("it was permitted a moment ago"));
        }
    }

    #[test]
    fn a_profile_that_is_not_wanted_any_more_ends() {
        let _turn = crate::shared_queue::lock_for_test();
        let capture =
            record(Duration::from_secs(3_600), &AtomicBool::new(true)).expect("one way is permitted");
        assert!(capture.slices() < 1_000);
    }
}
