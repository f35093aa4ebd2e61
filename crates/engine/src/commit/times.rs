//! When a group went through the commit.

use crate::wal::Wal;
use std::time::Duration;
use stdx::Instant;

/// When a group was through with what, by the engine's clock: each is not before the one above it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitTimes {
    /// How long writes were held up just before it was dequeued, to keep the rate that the backlog permits.
    pub paused: Duration,
    /// It was dequeued from the queue.
    pub dequeued: Instant,
    /// The log had it, not durably yet.
    pub written: Instant,
    /// It was durable. Without a sync of its own, as under `Durability::Os`, when it was published.
    pub synced: Instant,
    /// Readers could see it.
    pub published: Instant,
}

/// The times of a group on its way.
#[derive(Clone, Copy)]
pub(super) struct GroupStart {
    pub(super) at: Instant,
    pub(super) paused: Duration,
}

impl GroupStart {
    /// The times of a group that `wal` took last, and that readers see `now`.
    pub(super) fn published(self, wal: &Wal, now: Instant) -> CommitTimes {
        let Self { at: dequeued, paused } = self;
        let (written, synced) = wal.last_sync().filter(|(began, _)| *began >= dequeued).unwrap_or((now, now));
        CommitTimes { paused, dequeued, written, synced, published: now }
    }
}
