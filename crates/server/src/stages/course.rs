//! The course of one request, from stage to stage.

use super::Stage;
use crate::replies::Begun;
use api::RequestKind;
use cluster::{WaitTarget, WaitTrace};
use engine::CommitTimes;
use std::time::Duration;
use stdx::Instant;

/// When the store was through with what of an answer. Taken once for all answers of a commit group.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StoreTimes {
    /// Writes.
    Written {
        /// The turn ended that gathered them.
        handed_over: Instant,
        /// The rest, where they were stored.
        commit: Option<CommitTimes>,
    },
    /// A read that had to wait for the disk.
    Read {
        /// It came to the pool.
        came: Instant,
        /// A thread took it.
        taken: Instant,
        /// The answer was there.
        done: Instant,
    },
    /// What was not let in.
    Refused,
}

/// See the module. The stages lie end to end, and stages of no time are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Course {
    begun: Begun,
    until: Instant,
    spans: Vec<(Stage, Duration)>,
}

impl Course {
    /// One that begins.
    pub(super) const fn begin(begun: Begun) -> Self {
        Self { begun, until: begun.at, spans: Vec::new() }
    }

    /// What a command has waited for that is replied to `now`.
    pub(super) fn of(begun: Begun, wait: &WaitTrace, answered: Option<&StoreTimes>, now: Instant) -> Self {
        let mut course = Self::begin(begun);
        for leg in &wait.earlier {
            course.reach(Stage::of(leg.target), leg.until);
        }
        match (wait.last, answered) {
            (WaitTarget::Store, Some(times)) => course.reach_store(times, now),
            (target, _) => course.reach(Stage::of(target), now),
        }
        course
    }

    /// It is in this stage up to then, from where the one before it ended.
    pub(super) fn reach(&mut self, stage: Stage, until: Instant) {
        let took = until.saturating_since(self.until);
        if took.is_zero() {
            return;
        }
        self.until = until;
        match self.spans.iter_mut().find(|(there, _)| *there == stage) {
            Some((_, before)) => *before += took,
            None => self.spans.push((stage, took)),
        }
    }

    /// What it is of.
    pub(crate) const fn begun(&self) -> Begun {
        self.begun
    }

    /// From its beginning until now.
    pub(crate) fn took(&self) -> Duration {
        self.until.saturating_since(self.begun.at)
    }

    /// When it ended.
    pub(super) const fn until(&self) -> Instant {
        self.until
    }

    /// How long it was in each stage, in the order in which it came to them.
    pub(super) fn spans(&self) -> &[(Stage, Duration)] {
        &self.spans
    }

    fn reach_store(&mut self, times: &StoreTimes, now: Instant) {
        match *times {
            StoreTimes::Written { handed_over, commit: Some(commit) } => {
                self.reach(Stage::Coordinator, handed_over);
                self.reach_commit(&commit);
            }
            StoreTimes::Written { handed_over, commit: None } => {
                self.reach(Stage::Coordinator, handed_over);
                return self.reach(Stage::Store, now);
            }
            StoreTimes::Read { came, taken, done } => {
                // Of a page, what was read before this.
                let is_page = matches!(self.begun.kind, RequestKind::Range | RequestKind::RangePage);
                self.reach(if is_page { Stage::DiskRead } else { Stage::Coordinator }, came);
                self.reach(Stage::ReadPoolQueue, taken);
                self.reach(Stage::DiskRead, done);
            }
            StoreTimes::Refused => return self.reach(Stage::Store, now),
        }
        self.reach(Stage::Thread, now);
    }

    fn reach_commit(&mut self, commit: &CommitTimes) {
        // The pause is the last thing before the group is taken.
        let queued = commit.dequeued.saturating_since(self.until);
        let paused = commit.paused.min(queued);
        self.reach(Stage::CommitQueue, self.until + (queued - paused));
        self.reach(Stage::Pacing, commit.dequeued);
        self.reach(Stage::LogWrite, commit.written);
        self.reach(Stage::Sync, commit.synced);
        self.reach(Stage::Publish, commit.published);
    }
}
