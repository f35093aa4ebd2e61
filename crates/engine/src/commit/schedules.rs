//! Schedule tests: the hand-over of a batch's outcome to writes that the batch covers, under a
//! scheduler that chooses the next thread at every access to a lock.
//!
//! The file of the hand-over is mounted here a second time, with shuttle's locks instead of the
//! shipped ones. Shuttle prints a failing schedule, which `shuttle::replay` accepts.

#[allow(dead_code, unreachable_pub, clippy::duplicate_mod)]
#[path = "batch_outcome.rs"]
mod batch_outcome;

/// Locks with the interfaces of the shipped ones, whose accesses are steps of the schedule.
mod sync {
    use shuttle::sync::MutexGuard;
    use shuttle::sync::atomic::{AtomicBool, Ordering};

    pub(super) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(super) fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub(super) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("no thread panicked with the lock")
        }
    }

    pub(super) struct OnceLock<T> {
        value: std::sync::OnceLock<T>,
        /// Accessed before the value: shuttle has no such lock.
        step: AtomicBool,
    }

    impl<T> OnceLock<T> {
        pub(super) fn new() -> Self {
            Self { value: std::sync::OnceLock::new(), step: AtomicBool::new(false) }
        }

        pub(super) fn get(&self) -> Option<&T> {
            self.step.load(Ordering::Acquire);
            self.value.get()
        }

        pub(super) fn set(&self, value: T) -> Result<(), T> {
            self.step.store(true, Ordering::Release);
            self.value.set(value)
        }
    }
}

use super::outcome::{CommitOutcome, Completion};
use super::times::CommitTimes;
use crate::Error;
use batch_outcome::{BatchOutcome, Completions};
use shuttle::thread;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

const SCHEDULES: usize = 3_000;
/// Number of preemptions that the adversarial scheduler inserts.
const PREEMPTIONS: usize = 3;
const FOLLOWERS: usize = 2;

/// Completes a batch while other threads begin to follow it. Returns after all threads have ended
/// the outcomes that the writer and the followers received, in any order.
fn complete_beside_followers(outcome: &Result<CommitTimes, Error>) -> Vec<(usize, Result<(), Error>)> {
    let (tell, told) = channel();
    let by_writer = tell.clone();
    let completion: Completion = Box::new(move |result: Result<CommitOutcome, Error>| {
        by_writer.send((FOLLOWERS, result.map(drop))).expect("somebody listens");
    });
    let batch = Arc::new(BatchOutcome::awaited_by(Some(completion)));
    let mut threads: Vec<_> = (0..FOLLOWERS)
        .map(|follower| {
            let (batch, tell) = (Arc::clone(&batch), tell.clone());
            let told = move |outcome| tell.send((follower, outcome)).expect("somebody listens");
            thread::spawn(move || batch.follow(Box::new(told)))
        })
        .collect();
    let outcome = outcome.clone();
    threads.push(thread::spawn(move || {
        batch.set(outcome);
        let mut calls = Completions::default();
        batch.complete(|outcome| outcome.clone().map(|_| CommitOutcome::default()), &mut calls);
        calls.end();
    }));
    drop(tell);
    for thread in threads {
        thread.join().expect("a thread of the scenario failed");
    }
    told.try_iter().collect()
}

fn are_all_told_once(outcome: &Result<CommitTimes, Error>) {
    let mut told = complete_beside_followers(outcome);
    told.sort_by_key(|(receiver, _)| *receiver);
    let expected = (0..=FOLLOWERS).map(|receiver| (receiver, outcome.is_ok()));
    assert!(told.iter().map(|(receiver, outcome)| (*receiver, outcome.is_ok())).eq(expected), "{told:?}");
}

#[test]
fn a_follower_that_arrives_beside_the_completion_is_told_the_outcome_once() {
    let scenario = || {
        are_all_told_once(&Ok(CommitTimes::default()));
        are_all_told_once(&Err(Error::Overloaded { retry_after: Duration::ZERO }));
    };
    shuttle::check_random(scenario, SCHEDULES);
    shuttle::check_pct(scenario, SCHEDULES, PREEMPTIONS);
}
