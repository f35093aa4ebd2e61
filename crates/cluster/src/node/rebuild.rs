//! Rebuilding: a node that lost its disk is filled from the others.
//!
//! **Promise.** It ends, and the node's reads count, only when all keys were [pulled](super::pull) from so many others
//! that among them is one of every majority that can have acknowledged a write.
//!
//! **Mechanism.** The former life of the node may have acknowledged a write that its coordinator acknowledges only later, by the
//! answer of another replica. Each such write ends within the request timeout after the former life has ended. So the
//! node *settles* first: it reads nothing from the others before twice the request timeout has passed since its
//! start, or since a peer spoke of a life that the data directory does not know. All that counts an acknowledgement of
//! the former life is then on the others.
//!
//! Beginning and end are told ([`Event::RebuildBegan`], [`Event::RebuildEnded`]), with the reason, and with the sources that had
//! not lost their own data. Without such a source, all nodes have lost theirs, and nothing of before came back.
//!
//! **Caveats.** Progress is not durable: after a restart all begins again. While enough sources are unreachable,
//! the node goes on without being believed. Nodes with different request timeouts settle by their own.

use super::pull::Pulled;
use super::{Node, RepairKind};
use crate::{Event, LostRange, NodeSet, RepairStatus, SyncState};
use stdx::{Instant, Now};

/// Writes under way have ended after this many request timeouts.
pub(super) const SETTLE_TIMEOUTS: u32 = 2;
const ALL_KEYS: LostRange = LostRange { after: None, until: None };

impl Node {
    /// Goes on with the rebuilding, if there is one.
    pub(super) fn advance_rebuild(&mut self, now: Now) {
        if self.record.durable().sync_state != SyncState::Rebuilding {
            self.pull.take_if(|pull| pull.what == Pulled::Node);
            return;
        }
        if now.mono < self.rebuild_begins_at() {
            return;
        }
        if self.pull.as_ref().is_none_or(|pull| pull.what != Pulled::Node) {
            self.begin_pull(now, Pulled::Node, ALL_KEYS);
        }
        self.advance_pull(now);
        if self.record.wanted().sync_state == SyncState::Rebuilding && self.is_pulled() {
            let all: NodeSet = self.peer_nodes().collect();
            let cells = self.pull.as_ref().map_or(0, |pull| pull.cells);
            let took = now.mono - self.contradicted_at.unwrap_or(self.started);
            let from = self.complete_sources();
            self.outbox.event(Event::RebuildEnded { cells, took, from });
            let record = self.record.change();
            record.sync_state = SyncState::Settled;
            record.repair_pending = record.repair_pending.union(all);
        }
    }

    /// When the writes have ended that a former life of this node, or a copy of it, can have acknowledged.
    pub(super) fn rebuild_begins_at(&self) -> Instant {
        self.contradicted_at.unwrap_or(self.started) + self.limits.request_timeout * SETTLE_TIMEOUTS
    }

    /// Has the rebuilding begin anew, though one may be under way.
    pub(super) fn forget_rebuild(&mut self, now: Now) {
        self.contradicted_at = Some(now.mono);
        self.pull.take_if(|pull| pull.what == Pulled::Node);
    }

    /// For operators.
    pub(super) fn rebuild_status(&self) -> Option<RepairStatus> {
        if self.record.durable().sync_state != SyncState::Rebuilding {
            return None;
        }
        let (permille, cells) = self.pull_progress().unwrap_or_default();
        Some(RepairStatus { kind: RepairKind::Rebuild, permille, cells })
    }
}
