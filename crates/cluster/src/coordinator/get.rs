//! Reads: ask the replica, decide by this node's clock whether what it holds still lives.

use super::{Coordinator, Work};
use crate::{Acks, Key, Quorum, Reply, RequestId, StoreRequest};
use stdx::{Cell, Now, WallTime};

impl Coordinator {
    pub(super) fn submit_get(&mut self, now: Now, to: RequestId, key: Key, quorum: Quorum) {
        let id = self.operations.insert(self.operation(now, to, quorum, Work::Read));
        self.store(id.store_id(), StoreRequest::Read { key });
    }
}

/// The answer at `wall` to a read that found `cell`: tombstones and expired values are not there.
pub(super) fn reply(cell: Option<Cell>, wall: WallTime, acks: Acks) -> Reply {
    match cell {
        Some(cell) if cell.meta.is_live_at(wall) => Reply::Found { cell, acks },
        _ => Reply::Missing { acks },
    }
}
