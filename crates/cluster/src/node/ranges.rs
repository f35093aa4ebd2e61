//! Ranges of keys, compared and asked for.
//!
//! **Promise.** Two nodes that hold the same newest versions in a range, of the cells that both are to hold, get equal
//! digests of it, whatever else each of them holds. An answer is bounded by [`CHUNK`], and so is what is done for
//! it; it says how far it got.
//!
//! **Mechanism.** A cell is exchanged between two nodes if both are among the first `from` of its key's preference
//! list, `from` being the cell's own; if its version is not past the cutoff, for what is newer may be on its way;
//! and if it has not been dead for longer than the grace period, for then one node may have purged it already.
//!
//! The end of the grace period is judged by the [horizon](super::horizon), not by the wall clock: a node whose clock is
//! ahead leaves out no tombstone that others lack.
//!
//! **Caveats.** Nodes whose horizons differ see the end of the grace period at different times; a tombstone may be
//! exchanged once more around it, to no effect.

use super::Node;
use super::purpose::StorePurpose;
use crate::{
    Key, LinkId, MessageId, NodeIndex, PeerAnswer, PeerFault, RangeAnswer, RangeDigest, RangeRequest,
    ScanLimit, StoreRequest, StoreResponse,
};
use stdx::{Cell, CellMeta, Hlc, Now};

/// What is looked at for one answer, or compared at once.
pub(super) const CHUNK: ScanLimit = ScanLimit { entries: 1_024, bytes: 1 << 20 };
/// Ranges that one peer may have under way here; a retry may come while its first attempt is being answered.
const RANGES_MAX: u8 = 2;

/// A range that a peer asked for.
#[derive(Debug)]
pub(super) struct RangeAsked {
    pub(super) node: NodeIndex,
    pub(super) link: LinkId,
    pub(super) id: MessageId,
    pub(super) cutoff: Hlc,
    pub(super) digest: Option<RangeDigest>,
    pub(super) cells: bool,
}

impl Node {
    /// A peer asks what this node holds in a range.
    pub(super) fn range_came(&mut self, node: NodeIndex, link: LinkId, id: MessageId, request: RangeRequest) {
        let peer = self.peer_mut(node);
        if peer.ranges_under_way == RANGES_MAX {
            return self.outbox.answer(link, id, PeerAnswer::Failed(PeerFault::Busy));
        }
        peer.ranges_under_way += 1;
        let RangeRequest { after, until, cutoff, digest, cells } = request;
        let asked = RangeAsked { node, link, id, cutoff, digest, cells };
        let request = StoreRequest::Scan { after, until, limit: CHUNK, values: cells };
        self.outbox.store(StorePurpose::AnswerRange(asked), request);
    }

    /// The store has scanned what a peer asked for.
    pub(super) fn range_scanned(&mut self, now: Now, asked: &RangeAsked, response: StoreResponse) {
        self.peer_mut(asked.node).ranges_under_way -= 1;
        let answer = match response {
            StoreResponse::Scanned { entries, until } => {
                PeerAnswer::Range(self.range_answer(now, asked, entries, until))
            }
            StoreResponse::Failed(fault) => PeerAnswer::Failed(PeerFault::Store(fault)),
            response => unreachable!("the store answered Scan with {response:?}"),
        };
        if self.is_let_in(asked.node, asked.link) {
            self.outbox.answer(asked.link, asked.id, answer);
        }
    }

    fn range_answer(
        &self,
        now: Now,
        asked: &RangeAsked,
        mut entries: Vec<(Key, Cell)>,
        until: Option<Key>,
    ) -> RangeAnswer {
        entries.retain(|(key, cell)| {
            let meta = &cell.meta;
            // Who is being filled may also read an older value, at a peer that has not heard of an old delete.
            let is_kept =
                || asked.cells && meta.dead_from().is_some_and(|dead| dead > self.exchanged_to(now));
            self.is_compared(asked.node, key, meta, asked.cutoff)
                && (!self.is_past_grace(now, meta) || is_kept())
        });
        let versions = || entries.iter().map(|(key, cell)| (key.as_bytes(), cell.meta.version));
        // A digest is one of the whole range: that of a part says nothing.
        if until.is_none() && asked.digest.is_some_and(|digest| digest == RangeDigest::of(versions())) {
            RangeAnswer::Same
        } else if asked.cells {
            RangeAnswer::Cells { entries, until }
        } else {
            let entries = entries.into_iter().map(|(key, cell)| (key, cell.meta)).collect();
            RangeAnswer::Versions { entries, until }
        }
    }

    /// Whether a cell is compared between this node and that one.
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

    /// Whether both are to hold a cell, and it was written by `cutoff`.
    fn is_compared(&self, node: NodeIndex, key: &Key, meta: &CellMeta, cutoff: Hlc) -> bool {
        let replicas = self.member.layout.replicas(key, meta.from);
        replicas.contains(&node) && replicas.contains(&self.member.me) && meta.version.hlc <= cutoff
    }

    fn is_past_grace(&self, now: Now, meta: &CellMeta) -> bool {
        let grace = self.limits.grace;
        meta.dead_from().is_some_and(|dead| dead.saturating_add(grace) < self.horizon(now))
    }
}

/// How far into all keys this one is, in thousandths, by its first bytes.
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
