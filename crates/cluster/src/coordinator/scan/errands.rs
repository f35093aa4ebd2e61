//! What a scan has under way at stores, and the snapshots that it leaves there.
//!
//! **Promise.** Each request is counted at its peer until it is answered or given up, once. A snapshot that a store may
//! keep for the scan is let go when the scan is over, after the last request that may have taken it.
//!
//! **Caveats.** An answer that never comes is waited for no longer than `request_timeout`; what a store does after that
//! may leave a snapshot behind, which ends by its age.

use super::super::context::Context;
use super::super::number;
use crate::{NodeIndex, PageRequest, PeerAnswer, PeerRequest, ScanAnswer, SnapshotId, StoreId, StoreRequest};

/// See the module.
#[derive(Debug)]
pub(super) struct Errands {
    slot: u16,
    snapshot: SnapshotId,
    under_way: Vec<Errand>,
    /// Snapshots that stores may keep.
    kept: Vec<(NodeIndex, SnapshotId)>,
}

/// A request under way at a store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Errand {
    serial: u64,
    node: NodeIndex,
    snapshot: SnapshotId,
}

impl Errands {
    /// Those of the scan in this slot: none yet.
    pub(super) const fn new(slot: u16, snapshot: SnapshotId) -> Self {
        Self { slot, snapshot, under_way: Vec::new(), kept: Vec::new() }
    }

    /// The scan's name in all stores.
    pub(super) const fn snapshot(&self) -> SnapshotId {
        self.snapshot
    }

    /// Asks this node's store for a page; by which number the answer is known.
    pub(super) fn ask_store(&mut self, context: &mut Context, request: PageRequest) -> u64 {
        let serial = self.begin(context, context.member.me, request.snapshot);
        context.store(StoreId(number::scan_number(self.slot, serial)), StoreRequest::ReadPage(request));
        serial
    }

    /// Takes note of an answer. `None`: it is waited for no more.
    pub(super) fn take(&mut self, context: &mut Context, serial: u64) -> Option<Errand> {
        let at = self.under_way.iter().position(|errand| errand.serial == serial)?;
        let errand = self.under_way.swap_remove(at);
        context.end_request(errand.node, 0);
        Some(errand)
    }

    /// A store has come to the end of what it was asked for, and keeps nothing.
    pub(super) fn let_go(&mut self, node: NodeIndex, snapshot: SnapshotId) {
        self.kept.retain(|kept| *kept != (node, snapshot));
    }

    /// Takes an answer that came after the end of the scan.
    pub(super) fn answered_late(&mut self, errand: Errand, answer: &PeerAnswer) {
        if let PeerAnswer::Scan(ScanAnswer::Page { rest: None, .. }) = answer {
            self.let_go(errand.node, errand.snapshot);
        }
    }

    /// Lets go of the snapshots at stores where nothing is under way. Whether nothing is left.
    pub(super) fn end(&mut self, context: &mut Context) -> bool {
        for (node, snapshot) in std::mem::take(&mut self.kept) {
            if self.under_way.iter().any(|errand| (errand.node, errand.snapshot) == (node, snapshot)) {
                self.kept.push((node, snapshot));
                continue;
            }
            let number = number::scan_number(self.slot, context.next_scan_request());
            if node == context.member.me {
                context.store(StoreId(number), StoreRequest::EndSnapshot { id: snapshot });
            } else {
                context.send(node, number, PeerRequest::EndScan { snapshot });
            }
        }
        self.under_way.is_empty()
    }

    /// Waits for no answer any more.
    pub(super) fn give_up(&mut self, context: &mut Context) {
        for errand in std::mem::take(&mut self.under_way) {
            context.end_request(errand.node, 0);
        }
    }

    fn begin(&mut self, context: &mut Context, node: NodeIndex, snapshot: SnapshotId) -> u64 {
        let serial = context.next_scan_request();
        self.under_way.push(Errand { serial, node, snapshot });
        if !self.kept.contains(&(node, snapshot)) {
            self.kept.push((node, snapshot));
        }
        serial
    }
}
