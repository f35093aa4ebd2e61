//! Requests in flight of a scan, and the snapshots that it may hold at stores.

use crate::refused::PageScope;
use crate::{NodeIndex, NodeSet, SnapshotId};

/// Requests in flight of a scan, and the nodes that may hold its snapshot.
#[derive(Debug)]
pub(super) struct InFlightRequests {
    slot: u16,
    snapshot: SnapshotId,
    requests: Vec<InFlightRequest>,
    /// Nodes that may hold the snapshot.
    snapshot_holders: NodeSet,
}

/// A request in flight at a store.
#[derive(Debug)]
pub(super) struct InFlightRequest {
    pub(super) serial: u64,
    pub(super) node: NodeIndex,
    /// The keys of a page of this node's store that was requested while keys were refused.
    pub(super) scope: Option<Box<PageScope>>,
}

impl InFlightRequests {
    /// Creates the state of the scan in this slot, without requests.
    pub(super) const fn new(slot: u16, snapshot: SnapshotId) -> Self {
        Self { slot, snapshot, requests: Vec::new(), snapshot_holders: NodeSet::EMPTY }
    }

    /// The slot of the scan.
    pub(super) const fn slot(&self) -> u16 {
        self.slot
    }

    /// The scan's snapshot id in all stores.
    pub(super) const fn snapshot(&self) -> SnapshotId {
        self.snapshot
    }

    /// Whether no request is in flight.
    pub(super) const fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Records a request, which may take the snapshot.
    pub(super) fn insert(&mut self, request: InFlightRequest) {
        self.snapshot_holders.insert(request.node);
        self.requests.push(request);
    }

    /// Takes out the request with this number. `None`: it was abandoned.
    pub(super) fn remove(&mut self, serial: u64) -> Option<InFlightRequest> {
        let at = self.requests.iter().position(|request| request.serial == serial)?;
        Some(self.requests.swap_remove(at))
    }

    /// Takes out all requests.
    pub(super) fn remove_all(&mut self) -> Vec<InFlightRequest> {
        std::mem::take(&mut self.requests)
    }

    /// Takes out the requests to a node and returns their number. The node's snapshot is forgotten.
    pub(super) fn remove_node(&mut self, node: NodeIndex) -> usize {
        self.snapshot_holders.remove(node);
        self.requests.extract_if(.., |request| request.node == node).count()
    }

    /// Records that a store has reached the end of its range and holds no snapshot, unless other
    /// requests are in flight there, which may take it anew.
    pub(super) fn forget_snapshot(&mut self, node: NodeIndex) {
        if self.requests.iter().all(|request| request.node != node) {
            self.snapshot_holders.remove(node);
        }
    }

    /// Takes out the nodes that may hold the snapshot and have no request in flight.
    pub(super) fn take_idle_holders(&mut self) -> NodeSet {
        let busy: NodeSet = self.requests.iter().map(|request| request.node).collect();
        let idle = self.snapshot_holders.without(busy);
        self.snapshot_holders = self.snapshot_holders.without(idle);
        idle
    }
}
