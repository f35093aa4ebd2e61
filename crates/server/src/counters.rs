//! Event counters. Only rare events are counted here: no common request touches these counters.

use api::RequestStatus;
use cluster::{CommandFailure, Event, NODES_MAX, NodeIndex};
use std::sync::atomic::{AtomicU64, Ordering};

/// Reason for refusing a request for lack of capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The maximum number of connections is open.
    Connections,
    /// Request bodies use all the memory of their category.
    Bodies,
    /// The maximum number of ranges is open, or they use all the memory of their category.
    Ranges,
    /// Values on their way to readers use all the memory of their category.
    Replies,
    /// Batches use all the memory of their category.
    Batches,
    /// The maximum number of commands is in flight, or the store cannot accept more.
    Operations,
}

impl Refusal {
    pub(crate) const ALL: [Self; 6] =
        [Self::Connections, Self::Bodies, Self::Ranges, Self::Replies, Self::Batches, Self::Operations];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Bodies => "bodies",
            Self::Ranges => "ranges",
            Self::Replies => "replies",
            Self::Batches => "batches",
            Self::Operations => "operations",
        }
    }
}

/// Reason for closing a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// The connection was idle for [`idle_time`](crate::Limits::idle_time).
    Idle,
    /// A request arrived too slowly.
    SlowRequest,
    /// The client did not read a response, or stopped in the middle of a request that was answered
    /// already.
    Stalled,
    /// The connection was evicted because connections ran short.
    Evicted,
}

impl CloseReason {
    pub(crate) const ALL: [Self; 4] = [Self::Idle, Self::SlowRequest, Self::Stalled, Self::Evicted];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::SlowRequest => "slow_request",
            Self::Stalled => "stalled",
            Self::Evicted => "evicted",
        }
    }
}

/// A count since the start of the process. Accesses are relaxed, so a reader may see a slightly old
/// value.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Event counts since the start of the process.
#[derive(Debug, Default)]
pub(crate) struct EventCounters {
    pub(crate) superseded: Counter,
    pub(crate) deadlines_passed: Counter,
    /// Operations that were not executed because their deadline had passed when their time came.
    pub(crate) expired: Counter,
    pub(crate) not_enough_replicas: Counter,
    pub(crate) hedged: Counter,
    pub(crate) repaired_before_reply: Counter,
    pub(crate) repaired_after_reply: Counter,
    cut: [Counter; CloseReason::ALL.len()],
    /// Counters for each node, by slot.
    peers: Box<[PeerEvents]>,
}

/// Event counts for one peer.
#[derive(Debug, Default)]
pub(crate) struct PeerEvents {
    pub(crate) hints_delivered: Counter,
    pub(crate) repaired: Counter,
    /// Ranges that were not compared with the peer because a block is damaged on either node.
    pub(crate) ranges_passed_over: Counter,
    /// Writes of the peer that were refused because its clock is too far ahead.
    pub(crate) clock_ahead: Counter,
    /// Cells that this node requested from the peer and did not store because their versions are
    /// too far ahead.
    pub(crate) cells_refused: Counter,
    /// Layout records of the peer that contradict the one of this node.
    pub(crate) layout_conflicts: Counter,
}

impl EventCounters {
    /// Counters without a count.
    pub(crate) fn new() -> Self {
        Self { peers: (0..NODES_MAX).map(|_| PeerEvents::default()).collect(), ..Self::default() }
    }

    pub(crate) fn count(&self, event: Event) {
        match event {
            Event::WriteSuperseded => self.superseded.count(),
            Event::DeadlinePassed => self.deadlines_passed.count(),
            Event::Expired => self.expired.count(),
            Event::ClockAhead { node } => self.peer(node).clock_ahead.count(),
            Event::CellRefused { node } => self.peer(node).cells_refused.count(),
            Event::Hedged => self.hedged.count(),
            Event::ReadRepaired { blocking: true } => self.repaired_before_reply.count(),
            Event::ReadRepaired { blocking: false } => self.repaired_after_reply.count(),
            Event::HintDelivered { target } => self.peer(target).hints_delivered.count(),
            Event::Repaired { node } => self.peer(node).repaired.count(),
            Event::RangeSkipped { node } => self.peer(node).ranges_passed_over.count(),
            // Refusals are counted with their replies, and dropped hints in the hint ledger.
            Event::Refused | Event::HintDropped { .. } => {}
            // These events are only logged.
            Event::RebuildBegan { .. }
            | Event::RebuildEnded { .. }
            | Event::CopyBegan { .. }
            | Event::CopyBlocked { .. }
            | Event::CopyEnded { .. }
            | Event::PlanStalled { .. }
            | Event::SettledAsNew { .. } => {}
            Event::RoundInFuture { at } => {
                tracing::warn!(
                    recorded_unix_ms = at.millis_since_unix_epoch(),
                    "the last pass over all keys is recorded with a time in the future, by a clock that was wrong: \
                     the time is ignored, and a pass begins"
                );
            }
            Event::ClockBehind { issued } => {
                tracing::warn!(
                    newest_version_unix_ms = issued.wall().millis_since_unix_epoch(),
                    "the wall clock is behind the newest version this node issued: it was set back"
                );
            }
        }
    }

    /// Counts a failed command.
    pub(crate) fn count_failure(&self, failure: &CommandFailure) {
        if matches!(failure, CommandFailure::NotEnoughReplicas { .. } | CommandFailure::NotEnoughHeard { .. })
        {
            self.not_enough_replicas.count();
        }
    }

    /// Counts a client connection that this node closed.
    pub(crate) fn count_cut(&self, why: CloseReason) {
        self.cut[why as usize].count();
    }

    pub(crate) fn cut(&self, why: CloseReason) -> u64 {
        self.cut[why as usize].get()
    }

    /// Counters for this node.
    pub(crate) fn peer(&self, node: NodeIndex) -> &PeerEvents {
        &self.peers[node.as_usize()]
    }

    /// All counts, with `refused` requests that were refused for lack of capacity.
    pub(crate) fn counts(&self, refused: u64) -> RequestStatus {
        let of_peers =
            |count: fn(&PeerEvents) -> &Counter| self.peers.iter().map(|peer| count(peer).get()).sum();
        RequestStatus {
            superseded: self.superseded.get(),
            deadlines_passed: self.deadlines_passed.get(),
            not_enough_replicas: self.not_enough_replicas.get(),
            refused,
            clock_ahead: of_peers(|peer| &peer.clock_ahead),
            hedged: self.hedged.get(),
            repaired_before_reply: self.repaired_before_reply.get(),
            repaired_after_reply: self.repaired_after_reply.get(),
            hints_delivered: of_peers(|peer| &peer.hints_delivered),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_sums_the_counts_of_all_peers() {
        let counters = EventCounters::new();
        for node in [0, 2, 2].map(NodeIndex) {
            counters.count(Event::HintDelivered { target: node });
            counters.count(Event::ClockAhead { node });
        }
        let counts = counters.counts(4);
        assert_eq!((counts.refused, counts.hints_delivered, counts.clock_ahead), (4, 3, 3));
        assert_eq!(counters.peer(NodeIndex(2)).hints_delivered.get(), 2);
    }
}
