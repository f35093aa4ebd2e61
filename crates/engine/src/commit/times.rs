//! Timestamps of a group commit.

use crate::wal::Wal;
use std::time::Duration;
use stdx::Instant;

/// Timestamps of the commit stages of a group, by the engine's clock, in ascending order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitTimes {
    /// Time for which writes were paused just before this group, to keep to the permitted rate.
    pub paused: Duration,
    /// Time at which the group was taken from the queue.
    pub dequeued: Instant,
    /// Time at which the group was written to the log, but not yet durable.
    pub written: Instant,
    /// Time at which the group was durable. Equals `published` for a group without its own sync, as
    /// under `Durability::Os`.
    pub synced: Instant,
    /// Time at which the group was visible to readers.
    pub published: Instant,
}

/// The begin of a group commit.
#[derive(Clone, Copy)]
pub(super) struct GroupStart {
    pub(super) at: Instant,
    pub(super) paused: Duration,
}

impl GroupStart {
    /// The timestamps of the group that `wal` appended last, and that became visible `now`.
    pub(super) fn published(self, wal: &Wal, now: Instant) -> CommitTimes {
        let Self { at: dequeued, paused } = self;
        let (written, synced) = wal.last_sync().filter(|(began, _)| *began >= dequeued).unwrap_or((now, now));
        CommitTimes { paused, dequeued, written, synced, published: now }
    }
}
