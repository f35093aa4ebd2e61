//! Up to when the replicas have exchanged their deletes.
//!
//! **Promise.** A tombstone stays on this node until a pass of anti-entropy that began after the delete has ended with
//! each peer that was heard within the last grace period. So a peer that runs and cannot be compared with for longer
//! than that (a full disk, a damaged table, a link that breaks at each large value) does not bring the deleted back.
//!
//! **Mechanism.** For each peer the node keeps when the last complete pass with it began, by the horizon, which no single
//! wrong clock moves ahead. The time
//! of the last complete round is recorded; it stands for passes of former processes. The earliest of these times
//! is the one up to which deletes are exchanged; the driver gives it to the store beside the horizon. A peer that was
//! silent for a grace period is left out: it was away for longer than deletes are kept, and does not come back with its
//! data. Silence is measured by the monotonic clock, from the start of the process at least.
//!
//! **Caveats.** A delete that comes to this node after the pass that counts, because it was acknowledged by others, is
//! only covered by their passes. A peer that runs while it is cut off from this node for a whole grace period is taken
//! for one that is away. While a peer is gone for good, each restart of this node keeps its tombstones for one more
//! grace period.

use super::Node;
use crate::NodeIndex;
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::{Now, WallTime};

/// A pass covers deletes that are older than its beginning by this: clocks count in steps, and versions within a step.
const STEP: Duration = Duration::from_millis(1);

/// When the last complete pass with each peer began, in this process.
#[derive(Debug, Default)]
pub(super) struct Exchanged(BTreeMap<NodeIndex, WallTime>);

impl Exchanged {
    /// A pass that began at this time of the horizon is complete with a peer.
    pub(super) fn note(&mut self, node: NodeIndex, begun_at: WallTime) {
        self.0.insert(node, begun_at.saturating_sub(STEP));
    }
}

impl Node {
    /// The time up to which this node and the peers that it hears have exchanged all deletes: none that is newer may be
    /// forgotten. The beginning of time before the first complete pass.
    pub fn exchanged_to(&self, now: Now) -> WallTime {
        let is_awaited = |node: &NodeIndex| now.mono - self.peer(*node).last_heard < self.limits.grace;
        // A time in the future was recorded by a clock that was wrong.
        let of_round = self.record.durable().repaired_at.filter(|at| *at <= self.horizon(now));
        let with = |node| self.repair.exchanged.0.get(&node).copied().max(of_round).unwrap_or_default();
        self.peer_nodes().filter(is_awaited).map(with).min().unwrap_or(now.wall)
    }
}
