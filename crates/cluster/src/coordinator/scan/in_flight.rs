//! Requests in flight of a scan, and the snapshots that it holds at stores.
//!
//! **Promise.** Each request is counted at its peer until it is answered or abandoned, once. A
//! snapshot that a store may hold for the scan is released when the scan is over, after the last
//! request that may have taken it.
//!
//! **Caveats.** An answer is awaited for at most `request_timeout`; a request that a store carries
//! out after that may leave a snapshot behind, which ends by its age.

use super::super::context::Context;
use super::super::request_number;
use crate::refused::PageScope;
use crate::{
    Key, NodeIndex, NodeSet, PageRequest, PartitionSet, PeerRequest, Quorum, ReplicaOutcome, ReplicaRequest,
    ScanRequest, SnapshotId, StoreId, StoreRequest,
};

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
struct InFlightRequest {
    serial: u64,
    node: NodeIndex,
    /// The keys of a page of this node's store that was requested while keys were refused.
    scope: Option<Box<PageScope>>,
}

/// A read that a scan has queued, to be carried out like a client's read.
#[derive(Debug)]
pub(in crate::coordinator) struct QueuedRead {
    pub(super) slot: u16,
    pub(super) serial: u64,
    pub(super) key: Key,
    pub(super) quorum: Quorum,
}

impl QueuedRead {
    /// Whether the scan in this slot has queued it.
    pub(super) const fn is_of(&self, slot: u16) -> bool {
        self.slot == slot
    }
}

impl InFlightRequests {
    /// Creates the state of the scan in this slot, without requests.
    pub(super) const fn new(slot: u16, snapshot: SnapshotId) -> Self {
        Self { slot, snapshot, requests: Vec::new(), snapshot_holders: NodeSet::EMPTY }
    }

    /// The scan's snapshot id in all stores.
    pub(super) const fn snapshot(&self) -> SnapshotId {
        self.snapshot
    }

    /// Asks a node for its part, which is in these partitions. Returns the number that identifies
    /// the answer.
    pub(super) fn ask(
        &mut self,
        context: &mut Context,
        node: NodeIndex,
        request: ScanRequest,
        partitions: &PartitionSet,
    ) -> u64 {
        if node == context.member.me {
            return self.ask_store(context, request.into_page(partitions.clone()));
        }
        let serial = self.begin(context, node, None);
        let number = request_number::scan_number(self.slot, serial);
        let deadline = Some(context.now + context.limits.request_timeout);
        context.send_to_peer(node, number, PeerRequest::Scan(request), deadline);
        serial
    }

    /// Asks this node's store for a page. Returns the number that identifies the answer.
    pub(super) fn ask_store(&mut self, context: &mut Context, request: PageRequest) -> u64 {
        let scope = context.view.refused.scope_of(&request);
        let serial = self.begin(context, context.member.me, scope);
        let id = StoreId(request_number::scan_number(self.slot, serial));
        let deadline = Some(context.now + context.limits.request_timeout);
        context.store(id, StoreRequest::ReadPage(request), deadline);
        serial
    }

    /// Queues a read of a key. Returns the number that identifies the result.
    pub(super) fn read(&self, context: &mut Context, key: Key, quorum: Quorum) -> u64 {
        let serial = context.next_scan_request();
        context.queued_reads.push_back(QueuedRead { slot: self.slot, serial, key, quorum });
        serial
    }

    /// Matches an outcome with its request. Returns the node and the outcome; a page of this node
    /// that covers a refused key is a failure. `None`: the request was abandoned.
    pub(super) fn take_outcome(
        &mut self,
        context: &mut Context,
        serial: u64,
        outcome: ReplicaOutcome,
    ) -> Option<(NodeIndex, ReplicaOutcome)> {
        let at = self.requests.iter().position(|request| request.serial == serial)?;
        let InFlightRequest { node, scope, .. } = self.requests.swap_remove(at);
        context.end_request(node, 0);
        Some((node, context.view.refused.judge(scope.as_deref(), outcome)))
    }

    /// Records that a store has reached the end of its range and holds no snapshot, unless other
    /// requests are in flight there, which may take it anew.
    pub(super) fn forget_snapshot(&mut self, node: NodeIndex) {
        if self.requests.iter().all(|request| request.node != node) {
            self.snapshot_holders.remove(node);
        }
    }

    /// Forgets the requests to a peer whose link has ended: no answer will come, and the snapshot
    /// there ends by its age.
    pub(super) fn forget_node(&mut self, context: &mut Context, node: NodeIndex) {
        self.snapshot_holders.remove(node);
        for _ in self.requests.extract_if(.., |request| request.node == node) {
            context.end_request(node, 0);
        }
    }

    /// Releases the snapshots at stores without requests in flight. Returns whether no request is
    /// left.
    pub(super) fn release_snapshots(&mut self, context: &mut Context) -> bool {
        let busy: NodeSet = self.requests.iter().map(|request| request.node).collect();
        let snapshot = self.snapshot;
        for node in self.snapshot_holders.without(busy).iter() {
            self.snapshot_holders.remove(node);
            let number = request_number::scan_number(self.slot, context.next_scan_request());
            context.send(node, number, ReplicaRequest::EndSnapshot { id: snapshot }, None);
        }
        self.requests.is_empty()
    }

    /// Stops waiting for answers.
    pub(super) fn abandon(&mut self, context: &mut Context) {
        for request in std::mem::take(&mut self.requests) {
            context.end_request(request.node, 0);
        }
    }

    fn begin(&mut self, context: &mut Context, node: NodeIndex, scope: Option<Box<PageScope>>) -> u64 {
        let serial = context.next_scan_request();
        context.begin_request(node, 0);
        self.requests.push(InFlightRequest { serial, node, scope });
        self.snapshot_holders.insert(node);
        serial
    }
}
