//! The time up to which the replicas have exchanged their deletes.
//!
//! **Promise.** A tombstone stays on this node until a pass of anti-entropy that began after the
//! delete has ended with each peer that was heard within the last grace period. So deleted data
//! does not reappear from a peer that runs but cannot be compared with for longer than that.
//! Examples are a full disk, a damaged table, or a link that breaks at each large value.
//!
//! **Mechanism.** For each peer the node keeps the time at which its last complete pass with that
//! peer began. The time is taken from the horizon, which no single wrong clock moves ahead. The
//! time of the last complete round is in the node record and stands for the passes of earlier
//! processes. The earliest of these times is the time up to which deletes are exchanged. The driver
//! passes it to the store together with the horizon. A peer that was silent for a grace period is
//! left out: it was away for longer than deletes are kept, and does not return with its data.
//! Silence is measured by the monotonic clock, from the start of the process at the earliest.
//!
//! **Swaps.** A node that gains a partition has not taken part in the earlier passes over its keys.
//! Another replica may have purged a tombstone before the gainer reads it there, and after the
//! gainer has read an older value from a third one. Or the gainer purges the tombstone that it has
//! copied. So while the adopted record has swaps, no delete counts as exchanged. When the last swap
//! has ended, a round begins, and only passes that begin then or later count. The time of the last
//! round is removed from the node record before a copy begins. A copy also waits until the driver
//! was told that no delete is exchanged ([`Node::keeps_deletes`]).
//!
//! The round has a second purpose. A gainer copies from the loser, which may have missed a write
//! that was acknowledged without it. Hints for the loser are of no use to the gainer, and are
//! deleted. The round makes up for them. So a node that was down while swaps ended begins one too:
//! it finds nodes that have exchanged their places in its first newer layout, or changes of its
//! partitions since its record was stored last.
//!
//! **Caveats.** A delete that reaches this node after the relevant pass, because other replicas
//! acknowledged it, is only covered by their passes. A running peer that is cut off from this node
//! for a whole grace period is treated as one that is away. While a peer is gone for good, each
//! restart of this node keeps its tombstones for one more grace period.

use super::Node;
use crate::{LayoutEpoch, LayoutRecord, NodeIndex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Now, WallTime};

/// A pass covers deletes that are older than its start by at least this: one step of the clocks,
/// within which versions are issued.
const STEP: Duration = Duration::from_millis(1);

/// The passes that count in this process.
#[derive(Debug, Default)]
pub(super) struct DeleteExchange {
    /// Start of the last complete pass with each peer.
    passes: BTreeMap<NodeIndex, WallTime>,
    /// Whether no pass counts, because the adopted record has swaps.
    is_held: bool,
    /// Whether the driver was told since then.
    is_told: bool,
}

impl DeleteExchange {
    /// Records that a pass is complete with a peer. `started_at` is the horizon at the start of the
    /// pass.
    pub(super) fn note(&mut self, node: NodeIndex, started_at: WallTime) {
        if !self.is_held {
            self.passes.insert(node, started_at.saturating_sub(STEP));
        }
    }

    /// Whether passes do not count, because the adopted record has swaps.
    pub(super) const fn is_held(&self) -> bool {
        self.is_held
    }

    /// Forgets a node that is a member no more.
    pub(super) fn forget(&mut self, node: NodeIndex) {
        self.passes.remove(&node);
    }
}

impl Node {
    /// Has no pass count while the adopted record has swaps, and begins a round after the last one.
    pub(in crate::node) fn hold_deletes_while_swapping(&mut self, now: Now) {
        let has_swaps = self.adopted_layout().is_some_and(|record| !record.swaps().is_empty());
        let exchange = &mut self.repair.delete_exchange;
        let has_ended = exchange.is_held && !has_swaps;
        if exchange.is_held != has_swaps {
            *exchange = DeleteExchange { is_held: has_swaps, ..DeleteExchange::default() };
        }
        // A node that settles has a time, too.
        if has_swaps && self.record.wanted().repaired_at.is_some() {
            self.record.wanted_mut().repaired_at = None;
        }
        if has_ended {
            self.abandon_pass();
            self.begin_round(now);
        }
    }

    /// Begins a round because nodes have exchanged places in the layout that this node has just
    /// taken. If it knows of running swaps, a round follows them anyway.
    pub(in crate::node) fn compare_after_missed_swaps(&mut self, now: Now) {
        let exchange = &mut self.repair.delete_exchange;
        let has_swaps = |record: &Arc<LayoutRecord>| !record.swaps().is_empty();
        if exchange.is_held || self.agreement.is_none() || self.adopted_layout().is_some_and(has_swaps) {
            return;
        }
        self.repair.delete_exchange = DeleteExchange::default();
        self.record.wanted_mut().repaired_at = None;
        self.abandon_pass();
        self.begin_round(now);
    }

    /// Has the passes of earlier processes not count if the partitions have changed since the node
    /// record was stored last: a round is due.
    pub(in crate::node) fn forget_round_before_changes(&mut self) {
        let followed = self.record.durable().disowned_to.unwrap_or(LayoutEpoch::FIRST);
        if followed < self.member.layout.newest_change() && self.record.wanted().repaired_at.is_some() {
            self.record.wanted_mut().repaired_at = None;
        }
    }

    /// Records that the driver passes the time of [`Node::deletes_exchanged_to`] to the store.
    pub(in crate::node) const fn note_horizon_tick(&mut self) {
        self.repair.delete_exchange.is_told = self.repair.delete_exchange.is_held;
    }

    /// Whether the store keeps all deletes, and will after a restart.
    pub(in crate::node) fn keeps_deletes(&self) -> bool {
        self.repair.delete_exchange.is_told && self.record.durable().repaired_at.is_none()
    }

    /// The time up to which this node and the peers that it hears have exchanged all deletes. No
    /// newer tombstone may be purged. It is the beginning of time until the first complete pass,
    /// and while the adopted record has swaps.
    pub fn deletes_exchanged_to(&self, now: Now) -> WallTime {
        if self.repair.delete_exchange.is_held {
            return WallTime::default();
        }
        let is_awaited = |node: &NodeIndex| now.mono - self.peer(*node).last_heard < self.limits.grace;
        // A time in the future was recorded by a wrong clock.
        let of_round = self.record.durable().repaired_at.filter(|at| *at <= self.horizon(now));
        let of_round = of_round.filter(|_| self.record.wanted().repaired_at.is_some());
        let with =
            |node| self.repair.delete_exchange.passes.get(&node).copied().max(of_round).unwrap_or_default();
        self.peer_nodes().filter(is_awaited).map(with).min().unwrap_or(now.wall)
    }
}
