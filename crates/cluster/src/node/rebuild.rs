//! Rebuild: a node that lost data is filled from the other replicas.
//!
//! **Promise.** The rebuild ends, and the node becomes read-eligible, only when all keys were
//! [pulled](super::pull) from enough replicas. These include one of every majority that can have
//! acknowledged a write.
//!
//! **Mechanism.** The previous generation of the node may have acknowledged a write to its
//! coordinator, which completes the write only later with the answer of another replica. Each such
//! write ends within the request timeout after the previous generation has ended. So the node first
//! waits for twice the request timeout. The wait begins at its start, when a peer last reported a
//! generation that contradicts the data directory, or when a peer last refused this process as a
//! duplicate. After it, every acknowledged write that
//! counted the previous generation is stored on the other replicas that acknowledged it.
//!
//! The start and the end of a rebuild are reported as [`Event::RebuildBegan`], with the reason, and
//! [`Event::RebuildEnded`], with the sources that had not lost their own data. If there was no such
//! source, every node has lost its data, and no earlier data was restored.
//!
//! **Caveats.** Progress is not durable: after a restart the rebuild begins again. While too few
//! sources are reachable, the node runs without being read-eligible. Nodes with different request
//! timeouts wait for their own.

use super::pull::PullTarget;
use super::{Node, RepairKind};
use crate::{Event, LostRange, NodeSet, RepairStatus, SyncState};
use stdx::{Instant, Now};

/// Number of request timeouts after which writes in flight have ended.
pub(super) const IN_FLIGHT_WRITE_TIMEOUTS: u32 = 2;
const ALL_KEYS: LostRange = LostRange { after: None, until: None };

impl Node {
    /// Advances the rebuild if the node is rebuilding.
    pub(super) fn advance_rebuild(&mut self, now: Now) {
        if self.record.durable().sync_state != SyncState::Rebuilding {
            self.pull.take_if(|pull| pull.target == PullTarget::Node);
            return;
        }
        if now.mono < self.rebuild_begins_at() {
            return;
        }
        if self.pull.as_ref().is_none_or(|pull| pull.target != PullTarget::Node) {
            self.begin_pull(now, PullTarget::Node, ALL_KEYS);
        }
        self.advance_pull(now);
        if self.record.wanted().sync_state == SyncState::Rebuilding && self.is_pull_complete() {
            let all: NodeSet = self.peer_nodes().collect();
            let cells = self.pull.as_ref().map_or(0, |pull| pull.cells);
            let took = now.mono - self.contradicted_at.unwrap_or(self.started);
            let from = self.complete_sources();
            self.outbox.emit_event(Event::RebuildEnded { cells, took, from });
            let record = self.record.wanted_mut();
            record.sync_state = SyncState::Settled;
            record.repair_pending = record.repair_pending.union(all);
        }
    }

    /// Time at which every write has ended that an earlier generation of this node, or a copy of
    /// it, can have acknowledged.
    pub(super) fn rebuild_begins_at(&self) -> Instant {
        self.contradicted_at.unwrap_or(self.started) + self.limits.request_timeout * IN_FLIGHT_WRITE_TIMEOUTS
    }

    /// Starts the rebuild again from the beginning.
    pub(super) fn restart_rebuild(&mut self, now: Now) {
        self.contradicted_at = Some(now.mono);
        self.pull.take_if(|pull| pull.target == PullTarget::Node);
    }

    /// Status of the rebuild for operators.
    pub(super) fn rebuild_status(&self) -> Option<RepairStatus> {
        if self.record.durable().sync_state != SyncState::Rebuilding {
            return None;
        }
        let (permille, cells) = self.pull_progress().unwrap_or_default();
        Some(RepairStatus { kind: RepairKind::Rebuild, permille, cells })
    }
}
