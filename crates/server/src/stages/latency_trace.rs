//! The latency trace of one request: the spans of time that it spends in each stage.

use super::stage::Stage;
use api::RequestKind;
use cluster::{WaitTarget, WaitTrace};
use engine::CommitTimes;
use std::time::Duration;
use stdx::Instant;

/// Start of a command: the kind under which it is counted, and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandStart {
    pub(crate) kind: RequestKind,
    pub(crate) at: Instant,
}

/// Timestamps of a store response. They are taken once for all responses of a commit group.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StoreTimes {
    /// The responses of a commit group.
    Written {
        /// When the driver submitted the group.
        submitted: Instant,
        /// Timestamps of the commit stages; `None` if the group was not stored.
        commit: Option<CommitTimes>,
    },
    /// The response to a read of the read pool.
    Read {
        /// When the read was enqueued.
        enqueued: Instant,
        /// When a pool thread dequeued it.
        dequeued: Instant,
        /// When the response was complete.
        done: Instant,
    },
    /// The request was refused before it reached the store.
    Refused,
}

/// The trace of one request. Its spans are contiguous: they add up to the total time. Spans of zero
/// length are omitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LatencyTrace {
    start: CommandStart,
    until: Instant,
    spans: Vec<(Stage, Duration)>,
}

impl LatencyTrace {
    /// Creates a trace without spans.
    pub(super) const fn begin(start: CommandStart) -> Self {
        Self { start, until: start.at, spans: Vec::new() }
    }

    /// Builds the trace of a command that is replied to at `now`, from the waits that the
    /// coordinator recorded and the timestamps of the store response being handled.
    pub(super) fn of(
        start: CommandStart,
        wait: &WaitTrace,
        store_times: Option<&StoreTimes>,
        now: Instant,
    ) -> Self {
        let mut trace = Self::begin(start);
        for leg in &wait.earlier {
            trace.add_span(Stage::of(leg.target), leg.until);
        }
        match (wait.last, store_times) {
            (WaitTarget::Store, Some(times)) => trace.add_store_spans(times, now),
            (target, _) => trace.add_span(Stage::of(target), now),
        }
        trace
    }

    /// Attributes the time from the end of the previous span to `until` to `stage`.
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

    /// Kind and start of the traced command.
    pub(crate) const fn start(&self) -> CommandStart {
        self.start
    }

    /// Time from the start of the command to the end of the last span.
    pub(crate) fn took(&self) -> Duration {
        self.until.saturating_since(self.start.at)
    }

    /// End of the last span.
    pub(super) const fn until(&self) -> Instant {
        self.until
    }

    /// Total time in each stage, in the order in which the stages were entered.
    pub(super) fn spans(&self) -> &[(Stage, Duration)] {
        &self.spans
    }

    fn add_store_spans(&mut self, times: &StoreTimes, now: Instant) {
        match *times {
            StoreTimes::Written { submitted, commit: Some(commit) } => {
                self.add_span(Stage::Coordinator, submitted);
                self.add_commit_spans(&commit);
            }
            StoreTimes::Written { submitted, commit: None } => {
                self.add_span(Stage::Coordinator, submitted);
                return self.add_span(Stage::Store, now);
            }
            StoreTimes::Read { enqueued, dequeued, done } => {
                // For a page, the time before it was enqueued was spent on earlier disk reads.
                let is_page = matches!(self.start.kind, RequestKind::Range | RequestKind::RangePage);
                self.add_span(if is_page { Stage::DiskRead } else { Stage::Coordinator }, enqueued);
                self.add_span(Stage::ReadPoolQueue, dequeued);
                self.add_span(Stage::DiskRead, done);
            }
            StoreTimes::Refused => return self.add_span(Stage::Store, now),
        }
        self.add_span(Stage::Thread, now);
    }

    fn add_commit_spans(&mut self, commit: &CommitTimes) {
        // Pacing is the last delay before the group is dequeued.
        let queued = commit.dequeued.saturating_since(self.until);
        let paused = commit.paused.min(queued);
        self.add_span(Stage::CommitQueue, self.until + (queued - paused));
        self.add_span(Stage::Pacing, commit.dequeued);
        self.add_span(Stage::LogWrite, commit.written);
        self.add_span(Stage::Sync, commit.synced);
        self.add_span(Stage::Publish, commit.published);
    }
}
