//! Range requests: comparing ranges of keys between two nodes, and reading them.
//!
//! **Promise.** Two nodes get equal digests of a range if they hold the same newest versions of the
//! cells that both are replicas of. Other cells do not change the digest. The size of an answer and
//! the work for it are bounded by [`CHUNK`]. An answer states the last key that it covers.
//!
//! **Mechanism.** A cell is exchanged between two nodes if all of these hold:
//!
//! - Both nodes are among the first `from` of the key's preference list, or of the list after its
//!   running swap, with the `from` of the cell.
//! - Its version is not past the cutoff, since newer cells may still be in flight.
//! - It has not been dead for longer than the grace period, since one of the nodes may have purged
//!   it already.
//!
//! A range covers all partitions, so both nodes must have the same layout. A request of a plan with
//! another epoch is refused ([`ReplicaFault::StaleEpoch`]), and so is one whose layout was replaced
//! here before its answer. While a swap runs, the nodes of both of its lists hold a cell.
//!
//! The end of the grace period is judged by the [horizon](super::horizon), not by the wall clock.
//! So a node whose clock is ahead does not leave out a tombstone that other nodes lack.
//!
//! **Caveats.** Nodes with different horizons see the end of the grace period at different times.
//! Around that time a tombstone may be exchanged once more, without effect.

use super::Node;
use super::dispatch::StorePurpose;
use crate::{
    Key, LayoutEpoch, LinkId, MessageId, NodeIndex, NodeResponse, PeerAnswer, RangeAnswer, RangeDigest,
    RangeRequest, ReplicaFault, ScanLimit, StoreRequest, StoreResponse,
};
use stdx::{Cell, CellMeta, Hlc, Now};

/// Limit of the cells that are read for one answer, or compared together.
pub(super) const CHUNK: ScanLimit = ScanLimit { entries: 1_024, bytes: 1 << 20 };
/// Number of range requests of one peer that may be in flight here. A retry may arrive while the
/// first attempt is being answered.
const RANGES_MAX: u8 = 2;

/// Source of a range request, and the epoch of its plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct RangeRequester {
    pub(super) node: NodeIndex,
    pub(super) link: LinkId,
    pub(super) id: MessageId,
    pub(super) epoch: LayoutEpoch,
}

/// A range request of a peer that the store is scanning for.
#[derive(Debug)]
pub(super) struct PendingRange {
    pub(super) requester: RangeRequester,
    pub(super) cutoff: Hlc,
    pub(super) digest: Option<RangeDigest>,
    pub(super) cells: bool,
}

impl Node {
    /// Handles a peer's request for a range.
    pub(super) fn handle_range_request(&mut self, requester: RangeRequester, request: RangeRequest) {
        let RangeRequester { node, link, id, .. } = requester;
        if let Err(fault) = self.check_layout_of(&requester) {
            return self.outbox.answer(link, id, PeerAnswer::Failed(fault));
        }
        let peer = self.peer_mut(node);
        if peer.ranges_in_flight == RANGES_MAX {
            return self.outbox.answer(link, id, PeerAnswer::Failed(ReplicaFault::Busy));
        }
        peer.ranges_in_flight += 1;
        let RangeRequest { after, until, cutoff, digest, cells } = request;
        let pending = PendingRange { requester, cutoff, digest, cells };
        let request = StoreRequest::Scan { after, until, limit: CHUNK, values: cells };
        self.outbox.request_store(StorePurpose::ScanForPeer(pending), request);
    }

    /// Handles the store's scan of a range that a peer requested.
    pub(super) fn handle_range_scanned(&mut self, now: Now, pending: &PendingRange, response: StoreResponse) {
        let RangeRequester { node, link, id, .. } = pending.requester;
        self.peer_mut(node).ranges_in_flight -= 1;
        let answer = match (self.check_layout_of(&pending.requester), response) {
            (Err(fault), _) => PeerAnswer::Failed(fault),
            (Ok(()), StoreResponse::Scanned { entries, until }) => {
                PeerAnswer::Node(NodeResponse::Range(self.range_answer(now, pending, entries, until)))
            }
            (Ok(()), StoreResponse::Failed(fault)) => PeerAnswer::Failed(ReplicaFault::Store(fault)),
            (Ok(()), response) => unreachable!("the store answered Scan with {response:?}"),
        };
        if self.is_admitted(node, link) {
            self.outbox.answer(link, id, answer);
        }
    }

    /// Whether a range was requested by the layout that this node has.
    fn check_layout_of(&self, requester: &RangeRequester) -> Result<(), ReplicaFault> {
        let epoch = self.member.layout.newest_change();
        if requester.epoch == epoch { Ok(()) } else { Err(ReplicaFault::StaleEpoch { epoch }) }
    }

    fn range_answer(
        &self,
        now: Now,
        pending: &PendingRange,
        mut entries: Vec<(Key, Cell)>,
        until: Option<Key>,
    ) -> RangeAnswer {
        entries.retain(|(key, cell)| {
            let meta = &cell.meta;
            // A pulling node may also read an older value from another peer that has not received
            // an old delete.
            let is_kept = || {
                pending.cells && meta.dead_from().is_some_and(|dead| dead > self.deletes_exchanged_to(now))
            };
            self.is_compared(pending.requester.node, key, meta, pending.cutoff)
                && (!self.is_past_grace(now, meta) || is_kept())
        });
        let versions = || entries.iter().map(|(key, cell)| (key.as_bytes(), cell.meta.version));
        // A digest covers the whole range, so that of a part must not be compared with it.
        if until.is_none() && pending.digest.is_some_and(|digest| digest == RangeDigest::of(versions())) {
            RangeAnswer::Same
        } else if pending.cells {
            RangeAnswer::Cells { entries, until }
        } else {
            let entries = entries.into_iter().map(|(key, cell)| (key, cell.meta)).collect();
            RangeAnswer::Versions { entries, until }
        }
    }

    /// Whether a cell is exchanged between this node and `node`.
    pub(super) fn is_exchanged(
        &self,
        now: Now,
        node: NodeIndex,
        key: &Key,
        meta: &CellMeta,
        cutoff: Hlc,
    ) -> bool {
        self.is_compared(node, key, meta, cutoff) && !self.is_past_grace(now, meta)
    }

    /// Whether both nodes are to hold a cell that was written by `cutoff`.
    fn is_compared(&self, node: NodeIndex, key: &Key, meta: &CellMeta, cutoff: Hlc) -> bool {
        let is_holder = |node| self.member.layout.is_intended_holder(node, key, meta.from);
        meta.version.hlc <= cutoff && is_holder(node) && is_holder(self.member.me)
    }

    fn is_past_grace(&self, now: Now, meta: &CellMeta) -> bool {
        let grace = self.limits.grace;
        meta.dead_from().is_some_and(|dead| dead.saturating_add(grace) < self.horizon(now))
    }
}

/// Position of a key in the key space in thousandths, by its first two bytes.
pub(super) fn permille(key: Option<&Key>) -> u16 {
    let byte = |i| key.and_then(|key| key.as_bytes().get(i)).copied().unwrap_or_default();
    ((u64::from(u16::from_be_bytes([byte(0), byte(1)])) * 1_000) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn the_progress_of_a_scan_is_where_its_key_is() {
        let key = |key: &'static str| Key::new(Bytes::from_static(key.as_bytes())).expect("a short key");
        assert_eq!(permille(None), 0);
        assert_eq!(permille(Some(&key("\u{7f}"))), 496);
        assert_eq!(permille(Some(&key("zz"))), 478);
    }
}
