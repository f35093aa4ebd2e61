//! Requests in flight of a scan, and the snapshots that it may hold at stores.
//!
//! A scan has one current snapshot, under one id at all stores. When it is planned anew for another
//! layout, it begins a new one: a store that gains a partition may have taken the former snapshot
//! while it lacked cells of it. A former snapshot is released at a store once no request is in
//! flight there that may take it again.

use crate::refused::PageScope;
use crate::{NodeIndex, NodeSet, SnapshotId};

/// Requests in flight of a scan, and the nodes that may hold its snapshots.
#[derive(Debug)]
pub(super) struct InFlightRequests {
    slot: u16,
    current: ScanSnapshot,
    /// Snapshots of earlier plans that some nodes may still hold.
    former: Vec<ScanSnapshot>,
    requests: Vec<InFlightRequest>,
}

/// A snapshot of a scan.
#[derive(Debug)]
struct ScanSnapshot {
    id: SnapshotId,
    /// Nodes that may hold it.
    holders: NodeSet,
}

impl ScanSnapshot {
    const fn new(id: SnapshotId) -> Self {
        Self { id, holders: NodeSet::EMPTY }
    }

    /// A node that may hold the snapshot and has no request in flight that may take it anew.
    fn idle_holder(&self, requests: &[InFlightRequest]) -> Option<NodeIndex> {
        let of_this = requests.iter().filter(|request| request.snapshot == self.id);
        let busy: NodeSet = of_this.map(|request| request.node).collect();
        self.holders.without(busy).iter().next()
    }
}

/// A request in flight at a store.
#[derive(Debug)]
pub(super) struct InFlightRequest {
    pub(super) serial: u64,
    pub(super) node: NodeIndex,
    /// The snapshot that the request may take.
    pub(super) snapshot: SnapshotId,
    /// The keys of a page of this node's store that was requested while keys were refused.
    pub(super) scope: Option<Box<PageScope>>,
}

impl InFlightRequests {
    /// Creates the state of the scan in this slot, without requests.
    pub(super) const fn new(slot: u16, snapshot: SnapshotId) -> Self {
        Self { slot, current: ScanSnapshot::new(snapshot), former: Vec::new(), requests: Vec::new() }
    }

    /// The slot of the scan.
    pub(super) const fn slot(&self) -> u16 {
        self.slot
    }

    /// The id of the current snapshot in all stores.
    pub(super) const fn snapshot(&self) -> SnapshotId {
        self.current.id
    }

    /// Begins a new snapshot with this id.
    pub(super) fn renew_snapshot(&mut self, id: SnapshotId) {
        self.former.push(std::mem::replace(&mut self.current, ScanSnapshot::new(id)));
    }

    /// Whether no request is in flight.
    pub(super) const fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Records a request, which may take the current snapshot.
    pub(super) fn insert(&mut self, request: InFlightRequest) {
        self.current.holders.insert(request.node);
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

    /// Takes out the requests to a node and returns their number. The node's snapshots are
    /// forgotten.
    pub(super) fn remove_node(&mut self, node: NodeIndex) -> usize {
        for snapshot in std::iter::once(&mut self.current).chain(&mut self.former) {
            snapshot.holders.remove(node);
        }
        self.requests.extract_if(.., |request| request.node == node).count()
    }

    /// Records that a store has reached the end of its range and does not hold the current
    /// snapshot, unless other requests are in flight there, which may take it anew.
    pub(super) fn forget_snapshot(&mut self, node: NodeIndex) {
        if self.requests.iter().all(|request| request.node != node) {
            self.current.holders.remove(node);
        }
    }

    /// Takes out a snapshot with a node that may hold it, and has no request in flight that may
    /// take it anew. The current snapshot is taken only if the scan is over.
    pub(super) fn take_idle_snapshot(&mut self, is_over: bool) -> Option<(SnapshotId, NodeIndex)> {
        let Self { current, former, requests, .. } = self;
        former.retain(|snapshot| !snapshot.holders.is_empty());
        let current = is_over.then_some(current);
        former.iter_mut().chain(current).find_map(|snapshot| {
            let node = snapshot.idle_holder(requests)?;
            snapshot.holders.remove(node);
            Some((snapshot.id, node))
        })
    }
}
