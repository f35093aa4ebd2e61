//! Rebuilding: a node that lost its disk is filled from the others.
//!
//! **Promise.** It ends, and the node's reads count, only when all keys were [pulled](super::pull) from so many others
//! that among them is one of every majority that can have acknowledged a write.
//!
//! **Caveats.** Progress is not durable: after a restart all begins again. While enough sources are unreachable,
//! the node goes on without being believed.

use super::pull::Pulled;
use super::{Node, RepairKind};
use crate::{LostRange, NodeSet, RepairStatus, Standing};
use stdx::Now;

const ALL_KEYS: LostRange = LostRange { after: None, until: None };

impl Node {
    /// Goes on with the rebuilding, if there is one.
    pub(super) fn advance_rebuild(&mut self, now: Now) {
        if self.record.durable().standing != Standing::Rebuilding {
            self.pull.take_if(|pull| pull.what == Pulled::Node);
            return;
        }
        if self.pull.as_ref().is_none_or(|pull| pull.what != Pulled::Node) {
            self.begin_pull(now, Pulled::Node, ALL_KEYS);
        }
        self.advance_pull(now);
        if self.record.wanted().standing == Standing::Rebuilding && self.is_pulled() {
            let all: NodeSet = self.peer_nodes().collect();
            let record = self.record.change();
            record.standing = Standing::Settled;
            record.repair_owed = record.repair_owed.union(all);
        }
    }
    /// For operators.
    pub(super) fn rebuild_status(&self) -> Option<RepairStatus> {
        self.pull.as_ref().filter(|pull| pull.what == Pulled::Node)?;
        let (permille, cells) = self.pull_progress()?;
        Some(RepairStatus { kind: RepairKind::Rebuild, permille, cells })
    }
}
