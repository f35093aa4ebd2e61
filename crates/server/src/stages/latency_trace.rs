//! The course of one request, from stage to stage.

use super::Stage;
use crate::replies::CommandStart;
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
pub(crate) struct LatencyTrace {
    begun: CommandStart,
    until: Instant,
    spans: Vec<(Stage, Duration)>,
}

impl LatencyTrace {
    /// One that begins.
    pub(super) const fn begin(begun: CommandStart) -> Self {
        Self { begun, until: begun.at, spans: Vec::new() }
    }

    /// What a command has waited for that is replied to `now`.
    pub(super) fn of(
        begun: CommandStart,
        wait: &WaitTrace,
        answered: Option<&StoreTimes>,
        now: Instant,
    ) -> Self {
        let mut trace = Self::begin(begun);
        for leg in &wait.earlier {
            trace.add_span(Stage::of(leg.target), leg.until);
        }
        match (wait.last, answered) {
            (WaitTarget::Store, Some(times)) => trace.add_store_spans(times, now),
            (target, _) => trace.add_span(Stage::of(target), now),
        }
        trace
    }

    /// It is in this stage up to then, from where the one before it ended.
    pub(super) fn add_span(&mut self, stage: Stage, until: Instant) {
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
    pub(crate) const fn begun(&self) -> CommandStart {
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

    fn add_store_spans(&mut self, times: &StoreTimes, now: Instant) {
        match *times {
            StoreTimes::Written { handed_over, commit: Some(commit) } => {
                self.add_span(Stage::Coordinator, handed_over);
                self.add_commit_spans(&commit);
            }
            StoreTimes::Written { handed_over, commit: None } => {
                self.add_span(Stage::Coordinator, handed_over);
                return self.add_span(Stage::Store, now);
            }
            StoreTimes::Read { came, taken, done } => {
                // Of a page, what was read before this.
                let is_page = matches!(self.begun.kind, RequestKind::Range | RequestKind::RangePage);
                self.add_span(if is_page { Stage::DiskRead } else { Stage::Coordinator }, came);
                self.add_span(Stage::ReadPoolQueue, taken);
                self.add_span(Stage::DiskRead, done);
            }
            StoreTimes::Refused => return self.add_span(Stage::Store, now),
        }
        self.add_span(Stage::Thread, now);
    }

    fn add_commit_spans(&mut self, commit: &CommitTimes) {
        // The pause is the last thing before the group is taken.
        let queued = commit.dequeued.saturating_since(self.until);
        let paused = commit.paused.min(queued);
        self.add_span(Stage::CommitQueue, self.until + (queued - paused));
        self.add_span(Stage::Pacing, commit.dequeued);
        self.add_span(Stage::LogWrite, commit.written);
        self.add_span(Stage::Sync, commit.synced);
        self.add_span(Stage::Publish, commit.published);
    }
}
