//! What an I/O thread records of the requests on their way.
//!
//! **Promise.** No clock is read for it, nothing is locked, and no cache line is written that another thread writes:
//! each thread has cells of its own, which whoever asks adds up.
//!
//! **Caveats.** A request is as long as the instants say that its thread had at hand: from the turn in which the
//! coordinator got its command to the turn in which the reply came. A read that is answered from memory begins and ends in
//! one turn, and counts as no time at all.

use crate::replies::CommandStart;
use api::RequestKind;
use cluster::{Failure, Reply};
use http::StatusCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stdx::Instant;
use stdx::histogram::Histogram;

/// The statuses that are told apart, the most common first; what is none of them counts with 0.
pub(super) const STATUSES: [u16; 22] = [
    200, 201, 202, 404, 304, 400, 405, 406, 408, 411, 413, 414, 415, 417, 431, 500, 501, 503, 504, 505, 507,
    0,
];

/// Whether an operation of several replicas reads or writes.
pub(super) const QUORUM_KINDS: [&str; 2] = ["read", "write"];

/// How commands end, in times: the classes of the statuses that they are answered with.
pub(super) const CLASSES: [&str; 3] = ["2xx", "4xx", "5xx"];

const KINDS: usize = RequestKind::ALL.len();
/// The kinds that are commands are among the first.
const COMMAND_KINDS: usize = RequestKind::BatchEntry as usize + 1;

/// What one I/O thread recorded. It alone writes. Aligned to two cache lines: processors fetch lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct RequestMetrics {
    answers: [[AtomicU64; STATUSES.len()]; KINDS],
    /// By [`CLASSES`].
    took: [[Histogram; CLASSES.len()]; COMMAND_KINDS],
    /// By [`QUORUM_KINDS`].
    pub(super) quorum_waits: [Histogram; 2],
}

impl RequestMetrics {
    pub(super) fn new() -> Self {
        Self {
            answers: [const { [const { AtomicU64::new(0) }; STATUSES.len()] }; KINDS],
            took: [const { [const { Histogram::new() }; CLASSES.len()] }; COMMAND_KINDS],
            quorum_waits: [const { Histogram::new() }; 2],
        }
    }

    /// Answers of this kind with the status at this place of [`STATUSES`].
    pub(super) fn answers(&self, kind: RequestKind, outcome_index: usize) -> u64 {
        self.answers[kind as usize][outcome_index].load(Ordering::Relaxed)
    }

    /// How long commands of this kind took that ended as at this place of [`CLASSES`].
    pub(super) fn latencies(&self, kind: RequestKind, outcome_index: usize) -> &Histogram {
        &self.took[kind as usize][outcome_index]
    }
}

/// Records what happens on one I/O thread, if anything is to be recorded.
#[derive(Debug)]
pub(crate) struct Recorder(Option<Arc<RequestMetrics>>);

impl Recorder {
    pub(crate) fn new(into: Option<Arc<RequestMetrics>>) -> Self {
        Self(into)
    }

    /// A request of this kind is answered with `status`.
    #[inline]
    pub(crate) fn answered(&self, kind: RequestKind, status: StatusCode) {
        if let Some(recorded) = &self.0 {
            let outcome_index = STATUSES.iter().position(|known| *known == status.as_u16());
            let counter = &recorded.answers[kind as usize][outcome_index.unwrap_or(STATUSES.len() - 1)];
            // One thread writes, so a load and a store will do.
            counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    /// A command is replied to, and ends so.
    #[inline]
    pub(crate) fn replied(&self, begun: CommandStart, now: Instant, outcome: Outcome) {
        if let Some(recorded) = &self.0 {
            let nanos = now.as_nanos().saturating_sub(begun.at.as_nanos());
            recorded.took[begun.kind as usize][outcome.class].record_alone(nanos);
            if let Some(quorum) = outcome.quorum {
                recorded.quorum_waits[quorum as usize].record_alone(nanos);
            }
        }
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// Its place in [`CLASSES`].
    class: usize,
    quorum: Option<QuorumKind>,
}

impl Outcome {
    /// What is replied says it. A value that the client turns out to have already is found like any other.
    #[inline]
    pub(crate) fn of(reply: &Reply) -> Self {
        let class = match reply {
            Reply::Found { .. } | Reply::Written { .. } | Reply::Page { .. } => 0,
            Reply::Missing { .. } | Reply::Failed(Failure::ExpiryTooLate { .. }) => 1,
            Reply::Failed(_) => 2,
        };
        Self { class, quorum: QuorumKind::of(reply) }
    }
}

/// An operation of several replicas that has had its answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuorumKind {
    Read = 0,
    Write = 1,
}

impl QuorumKind {
    /// What the reply is to; `None`: to an operation of one replica, or it did not have its answers.
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
    fn statuses_are_told_apart_and_the_rest_counted_together() {
        let recorded = Arc::new(RequestMetrics::new());
        let recorder = Recorder::new(Some(Arc::clone(&recorded)));
        for status in [200, 404, 404, 418, 599] {
            recorder.answered(RequestKind::Get, StatusCode::from_u16(status).unwrap());
        }
        let counts: Vec<_> = (0..STATUSES.len())
            .map(|outcome_index| (STATUSES[outcome_index], recorded.answers(RequestKind::Get, outcome_index)))
            .filter(|(_, count)| *count > 0)
            .collect();
        assert_eq!(counts, [(200, 1), (404, 2), (0, 2)]);
        assert_eq!(recorded.answers(RequestKind::Put, 0), 0);
    }

    #[test]
    fn only_what_several_replicas_answered_is_a_wait_for_a_quorum() {
        let missing = |from| Reply::Missing { acks: Acks { got: 1, from } };
        assert_eq!(
            [1, 2, 3].map(|from| QuorumKind::of(&missing(from))),
            [None, Some(QuorumKind::Read), Some(QuorumKind::Read)]
        );
        assert_eq!(
            QuorumKind::of(&Reply::Failed(Failure::DiskFull {
                acks: Acks { got: 0, from: 1 },
                here: false,
                maybe_stored: false
            })),
            None
        );
    }

    #[test]
    fn time_is_from_the_turn_of_the_command_to_that_of_the_reply() {
        let recorded = Arc::new(RequestMetrics::new());
        let recorder = Recorder::new(Some(Arc::clone(&recorded)));
        let begun = CommandStart { kind: RequestKind::Put, at: Instant::from_nanos(100) };
        let written = |from| Reply::Written {
            version: stdx::Version::new(stdx::Hlc::from_bits(1), stdx::NodeTag(1)),
            superseded: false,
            acks: Acks { got: 1, from },
        };
        recorder.replied(begun, Instant::from_nanos(350), Outcome::of(&written(2)));
        recorder.replied(begun, Instant::from_nanos(100), Outcome::of(&written(1)));
        let took = recorded.latencies(RequestKind::Put, 0).snapshot();
        assert_eq!((took.count(), took.sum()), (2, 250));
        assert_eq!(recorded.quorum_waits[1].snapshot().count(), 1);
        Recorder::new(None).replied(begun, Instant::from_nanos(350), Outcome::of(&written(2)));
    }

    #[test]
    fn times_are_told_apart_by_how_it_ended() {
        let recorded = Arc::new(RequestMetrics::new());
        let recorder = Recorder::new(Some(Arc::clone(&recorded)));
        let begun = CommandStart { kind: RequestKind::Get, at: Instant::from_nanos(0) };
        let missing = Reply::Missing { acks: Acks { got: 1, from: 1 } };
        for reply in [
            missing,
            Reply::Failed(Failure::DiskFull {
                acks: Acks { got: 0, from: 1 },
                here: false,
                maybe_stored: false,
            }),
            Reply::Failed(Failure::DiskFull {
                acks: Acks { got: 0, from: 1 },
                here: false,
                maybe_stored: false,
            }),
        ] {
            recorder.replied(begun, Instant::from_nanos(5), Outcome::of(&reply));
        }
        let counts = [0, 1, 2]
            .map(|outcome_index| recorded.latencies(RequestKind::Get, outcome_index).snapshot().count());
        assert_eq!(counts, [0, 1, 2]);
    }
}
