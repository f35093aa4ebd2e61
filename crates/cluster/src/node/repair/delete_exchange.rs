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
//! **Caveats.** A delete that reaches this node after the relevant pass, because other replicas
//! acknowledged it, is only covered by their passes. A running peer that is cut off from this node
//! for a whole grace period is treated as one that is away. While a peer is gone for good, each
//! restart of this node keeps its tombstones for one more grace period.

use super::Node;
use crate::NodeIndex;
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::{Now, WallTime};

/// A pass covers deletes that are older than its start by at least this: one step of the clocks,
/// within which versions are issued.
const STEP: Duration = Duration::from_millis(1);

/// Start of the last complete pass with each peer in this process.
#[derive(Debug, Default)]
pub(super) struct DeleteExchange(BTreeMap<NodeIndex, WallTime>);

impl DeleteExchange {
    /// Records that a pass is complete with a peer. `started_at` is the horizon at the start of the
    /// pass.
    pub(super) fn note(&mut self, node: NodeIndex, started_at: WallTime) {
        self.0.insert(node, started_at.saturating_sub(STEP));
    }

    /// Forgets a node that is a member no more.
    pub(super) fn forget(&mut self, node: NodeIndex) {
        self.0.remove(&node);
    }
}

impl Node {
    /// The time up to which this node and the peers that it hears have exchanged all deletes. No
    /// newer tombstone may be purged. It is the beginning of time until the first complete pass.
    pub fn deletes_exchanged_to(&self, now: Now) -> WallTime {
        let is_awaited = |node: &NodeIndex| now.mono - self.peer(*node).last_heard < self.limits.grace;
        // A time in the future was recorded by a wrong clock.
        let of_round = self.record.durable().repaired_at.filter(|at| *at <= self.horizon(now));
        let with = |node| self.repair.delete_exchange.0.get(&node).copied().max(of_round).unwrap_or_default();
        self.peer_nodes().filter(is_awaited).map(with).min().unwrap_or(now.wall)
    }
}
