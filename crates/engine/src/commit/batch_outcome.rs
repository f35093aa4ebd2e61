//! The outcome of a batch, and the callbacks that receive it.
//!
//! **Promise.** The callback of the writer and each follower are called exactly once with the
//! outcome, whenever a follower arrives.
//!
//! **Mechanism.** The outcome is set before the callbacks are taken, under a lock. A follower that
//! finds no outcome under this lock is among the callbacks that are taken later. A follower that
//! finds one is called at once. The tests in `schedules` run the hand-over under a scheduler.

use super::sync::{Mutex, OnceLock};
use crate::Error;
use crate::commit::outcome::{CommitOutcome, Completion};
use crate::commit::times::CommitTimes;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The outcome of a batch, once it is known.
pub(super) struct BatchOutcome {
    outcome: OnceLock<Result<CommitTimes, Error>>,
    callbacks: Mutex<Callbacks>,
}

/// Callbacks to be called with the outcome of a batch.
struct Callbacks {
    /// That of the writer; a blocking writer reads the outcome itself.
    completion: Option<Completion>,
    /// Those of writes that the batch covers.
    followers: Vec<Follower>,
}

/// Called once with the outcome of the batch that covers a write, as a [`Completion`] is.
pub(super) type Follower = Box<dyn FnOnce(Result<(), Error>) + Send>;

impl BatchOutcome {
    /// An outcome that is not known yet, with the callback of the writer.
    pub(super) fn awaited_by(completion: Option<Completion>) -> Self {
        let callbacks = Mutex::new(Callbacks { completion, followers: Vec::new() });
        Self { outcome: OnceLock::new(), callbacks }
    }

    /// The outcome, if it is known.
    pub(super) fn get(&self) -> Option<&Result<CommitTimes, Error>> {
        self.outcome.get()
    }

    /// Sets the outcome. Must be called once, and followed by [`BatchOutcome::complete`].
    pub(super) fn set(&self, outcome: Result<CommitTimes, Error>) {
        let newly = self.outcome.set(outcome);
        assert!(newly.is_ok(), "a batch is committed once");
    }

    /// Calls `follower` with the outcome: at once if it is known, otherwise in
    /// [`BatchOutcome::complete`].
    pub(super) fn follow(&self, follower: Follower) {
        let mut callbacks = self.callbacks.lock();
        match self.outcome.get() {
            None => callbacks.followers.push(follower),
            Some(outcome) => {
                drop(callbacks);
                follower(outcome.clone().map(drop));
            }
        }
    }

    /// Calls all callbacks with the outcome, which was set. The callback of the writer gets the
    /// result that `result_of` makes of it.
    pub(super) fn complete(
        &self,
        result_of: impl FnOnce(&Result<CommitTimes, Error>) -> Result<CommitOutcome, Error>,
        calls: &mut Completions,
    ) {
        let (completion, followers) = {
            let mut callbacks = self.callbacks.lock();
            (callbacks.completion.take(), std::mem::take(&mut callbacks.followers))
        };
        let outcome = self.outcome.get().expect("the outcome was set");
        if let Some(completion) = completion {
            calls.call(|| completion(result_of(outcome)));
        }
        for follower in followers {
            calls.call(|| follower(outcome.clone().map(drop)));
        }
    }
}

/// Runs completions one after the other. A panic does not prevent the later ones.
#[derive(Default)]
#[must_use = "a panic is resumed by `end`"]
pub(super) struct Completions {
    /// The first panic.
    panic: Option<Box<dyn Any + Send>>,
}

impl Completions {
    pub(super) fn call(&mut self, completion: impl FnOnce()) {
        // A completion shares no engine state except its arguments, which it owns.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(completion)) {
            self.panic.get_or_insert(panic);
        }
    }

    /// Resumes the first panic, if there was one.
    pub(super) fn end(self) {
        if let Some(panic) = self.panic {
            resume_unwind(panic);
        }
    }
}
