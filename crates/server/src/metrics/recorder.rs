//! Request metrics of one I/O thread.
//!
//! **Promise.** Recording reads no clock, takes no lock, and writes no cache line that another
//! thread writes: each thread has its own cells, which a scrape adds up.
//!
//! **Caveats.** A duration is the difference of timestamps that the thread has taken anyway: from
//! the event-loop iteration in which the coordinator received the command to the one in which the
//! reply became available. A read that is answered from memory starts and ends in one iteration,
//! and counts as zero.

use crate::stages::CommandStart;
use api::RequestKind;
use cluster::{CommandFailure, Reply};
use http::StatusCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stdx::Instant;
use stdx::histogram::Histogram;

/// The statuses that are counted separately, the most common first. All others are counted under 0.
pub(super) const STATUSES: [u16; 22] = [
    200, 201, 202, 404, 304, 400, 405, 406, 408, 411, 413, 414, 415, 417, 431, 500, 501, 503, 504, 505, 507,
    0,
];

/// Kinds of operations on several replicas, by `QuorumKind`.
pub(super) const QUORUM_KINDS: [&str; 2] = ["read", "write"];

/// Outcomes of commands, by the class of the response status.
pub(super) const CLASSES: [&str; 3] = ["2xx", "4xx", "5xx"];

const KINDS: usize = RequestKind::ALL.len();
/// Number of request kinds that are commands; they come first.
const COMMAND_KINDS: usize = RequestKind::BatchEntry as usize + 1;

/// The metrics of one I/O thread, which is the only writer. Aligned to two cache lines, since
/// processors prefetch lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct RequestMetrics {
    answers: [[AtomicU64; STATUSES.len()]; KINDS],
    /// Durations of commands, by kind and index in [`CLASSES`].
    latencies: [[Histogram; CLASSES.len()]; COMMAND_KINDS],
    /// Durations of operations on several replicas, by index in [`QUORUM_KINDS`].
    pub(super) quorum_waits: [Histogram; 2],
}

impl RequestMetrics {
    pub(super) fn new() -> Self {
        Self {
            answers: [const { [const { AtomicU64::new(0) }; STATUSES.len()] }; KINDS],
            latencies: [const { [const { Histogram::new() }; CLASSES.len()] }; COMMAND_KINDS],
            quorum_waits: [const { Histogram::new() }; 2],
        }
    }

    /// Number of responses of this kind with the status at `outcome_index` in [`STATUSES`].
    pub(super) fn answers(&self, kind: RequestKind, outcome_index: usize) -> u64 {
        self.answers[kind as usize][outcome_index].load(Ordering::Relaxed)
    }

    /// Durations of commands of this kind with the outcome at `outcome_index` in [`CLASSES`].
    pub(super) fn latencies(&self, kind: RequestKind, outcome_index: usize) -> &Histogram {
        &self.latencies[kind as usize][outcome_index]
    }
}

/// Records the requests of one I/O thread; does nothing if metrics are off.
#[derive(Debug)]
pub(crate) struct RequestRecorder(Option<Arc<RequestMetrics>>);

impl RequestRecorder {
    pub(crate) fn new(into: Option<Arc<RequestMetrics>>) -> Self {
        Self(into)
    }

    /// Counts a response with `status` to a request of this kind.
    #[inline]
    pub(crate) fn record_status(&self, kind: RequestKind, status: StatusCode) {
        if let Some(recorded) = &self.0 {
            let outcome_index = STATUSES.iter().position(|known| *known == status.as_u16());
            let counter = &recorded.answers[kind as usize][outcome_index.unwrap_or(STATUSES.len() - 1)];
            // There is one writer, so a load and a store suffice.
            counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    /// Records the duration and the outcome of a command that is replied to at `now`.
    #[inline]
    pub(crate) fn record_reply(&self, start: CommandStart, now: Instant, outcome: CommandOutcome) {
        if let Some(recorded) = &self.0 {
            let nanos = now.as_nanos().saturating_sub(start.at.as_nanos());
            recorded.latencies[start.kind as usize][outcome.class].record_alone(nanos);
            if let Some(quorum) = outcome.quorum {
                recorded.quorum_waits[quorum as usize].record_alone(nanos);
            }
        }
    }
}

/// The outcome of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandOutcome {
    /// Index in [`CLASSES`].
    class: usize,
    quorum: Option<QuorumKind>,
}

impl CommandOutcome {
    /// Returns the outcome of a reply. A value that the client has already (`304`) counts like any
    /// value found.
    #[inline]
    pub(crate) fn of(reply: &Reply) -> Self {
        let class = match reply {
            Reply::Found { .. } | Reply::Written { .. } | Reply::Page { .. } => 0,
            Reply::Missing { .. } | Reply::Failed(CommandFailure::ExpiryTooLate { .. }) => 1,
            Reply::Failed(_) => 2,
        };
        Self { class, quorum: QuorumKind::of(reply) }
    }
}

/// The kind of a completed operation on several replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuorumKind {
    Read = 0,
    Write = 1,
}

impl QuorumKind {
    /// Returns the kind of the operation of a reply. `None` if it has one replica, or lacked a
    /// quorum.
    #[inline]
    fn of(reply: &Reply) -> Option<Self> {
        match reply {
            Reply::Found { acks, .. } | Reply::Missing { acks } if acks.from > 1 => Some(Self::Read),
            Reply::Written { acks, .. } if acks.from > 1 => Some(Self::Write),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::Acks;

    #[test]
    fn known_statuses_are_counted_separately_and_others_together() {
        let recorded = Arc::new(RequestMetrics::new());
        let recorder = RequestRecorder::new(Some(Arc::clone(&recorded)));
        for status in [200, 404, 404, 418, 599] {
            recorder.record_status(RequestKind::Get, StatusCode::from_u16(status).unwrap());
        }
        let counts: Vec<_> = (0..STATUSES.len())
            .map(|outcome_index| (STATUSES[outcome_index], recorded.answers(RequestKind::Get, outcome_index)))
            .filter(|(_, count)| *count > 0)
            .collect();
        assert_eq!(counts, [(200, 1), (404, 2), (0, 2)]);
        assert_eq!(recorded.answers(RequestKind::Put, 0), 0);
    }

    #[test]
    fn only_an_operation_on_several_replicas_is_a_quorum_wait() {
        let missing = |from| Reply::Missing { acks: Acks { got: 1, from } };
        assert_eq!(
            [1, 2, 3].map(|from| QuorumKind::of(&missing(from))),
            [None, Some(QuorumKind::Read), Some(QuorumKind::Read)]
        );
        assert_eq!(
            QuorumKind::of(&Reply::Failed(CommandFailure::DiskFull {
                acks: Acks { got: 0, from: 1 },
                here: false,
                maybe_stored: false
            })),
            None
        );
    }

    #[test]
    fn a_duration_is_from_the_command_to_its_reply() {
        let recorded = Arc::new(RequestMetrics::new());
        let recorder = RequestRecorder::new(Some(Arc::clone(&recorded)));
        let start = CommandStart { kind: RequestKind::Put, at: Instant::from_nanos(100) };
        let written = |from| Reply::Written {
            version: stdx::Version::new(stdx::Hlc::from_bits(1), stdx::NodeTag(1)),
            superseded: false,
            acks: Acks { got: 1, from },
        };
        recorder.record_reply(start, Instant::from_nanos(350), CommandOutcome::of(&written(2)));
        recorder.record_reply(start, Instant::from_nanos(100), CommandOutcome::of(&written(1)));
        let took = recorded.latencies(RequestKind::Put, 0).snapshot();
        assert_eq!((took.count(), took.sum()), (2, 250));
        assert_eq!(recorded.quorum_waits[1].snapshot().count(), 1);
        RequestRecorder::new(None).record_reply(
            start,
            Instant::from_nanos(350),
            CommandOutcome::of(&written(2)),
        );
    }

    #[test]
    fn durations_are_recorded_by_outcome() {
        let recorded = Arc::new(RequestMetrics::new());
        let recorder = RequestRecorder::new(Some(Arc::clone(&recorded)));
        let start = CommandStart { kind: RequestKind::Get, at: Instant::from_nanos(0) };
        let missing = Reply::Missing { acks: Acks { got: 1, from: 1 } };
        for reply in [
            missing,
            Reply::Failed(CommandFailure::DiskFull {
                acks: Acks { got: 0, from: 1 },
                here: false,
                maybe_stored: false,
            }),
            Reply::Failed(CommandFailure::DiskFull {
                acks: Acks { got: 0, from: 1 },
                here: false,
                maybe_stored: false,
            }),
        ] {
            recorder.record_reply(start, Instant::from_nanos(5), CommandOutcome::of(&reply));
        }
        let counts = [0, 1, 2]
            .map(|outcome_index| recorded.latencies(RequestKind::Get, outcome_index).snapshot().count());
        assert_eq!(counts, [0, 1, 2]);
    }
}
