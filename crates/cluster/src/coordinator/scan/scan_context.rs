//! The context in which a scan runs: its requests to stores and peers.
//!
//! **Promise.** Each request is counted at its peer until it is answered or abandoned, once. A
//! snapshot that a store may hold for the scan is released when the scan is over, after the last
//! request that may have taken it.
//!
//! **Caveats.** An answer is awaited for at most `request_timeout`; a request that a store carries
//! out after that may leave a snapshot behind, which ends by its age.

use super::in_flight::{InFlightRequest, InFlightRequests};
use super::request_state::RequestState;
use super::roles::RoleAssignmentCache;
use crate::coordinator::outbox::{CoordinatorEffects, RequestTerms};
use crate::coordinator::peers::{Availability, Peers};
use crate::coordinator::request_number;
use crate::coordinator::scan_reads::{QueuedRead, ScanReads};
use crate::refused::PageScope;
use crate::{
    Key, LayoutEpoch, NodeIndex, PageRequest, PartitionSet, PeerRequest, Quorum, ReplicaOutcome,
    ReplicaRequest, ScanRequest, StoreFault, StoreId, StoreRequest, WaitTarget,
};
use limits::Deadline;
use stdx::Now;

/// The context of a scan while it handles an input: its requests in flight, and the parts of the
/// coordinator's state that scans use.
#[derive(Debug)]
pub(super) struct ScanContext<'a> {
    pub(super) now: Now,
    /// Source of the input, to which the wait for the next page is attributed.
    pub(super) source: WaitTarget,
    pub(super) peers: &'a mut Peers,
    pub(super) outbox: &'a mut CoordinatorEffects,
    pub(super) reads: &'a mut ScanReads,
    pub(super) role_assignments: &'a mut RoleAssignmentCache,
    pub(super) in_flight: &'a mut InFlightRequests,
}

/// The partitions of which a node is asked, and the epoch of the plan that assigned them to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedPart<'a> {
    pub(super) partitions: &'a PartitionSet,
    pub(super) epoch: LayoutEpoch,
}

/// A participant that cannot be asked any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LostParticipant {
    pub(super) node: NodeIndex,
    /// The fault of its store.
    pub(super) fault: Option<StoreFault>,
}

impl ScanContext<'_> {
    /// Asks a node for its part; a busy node, after a pause.
    pub(super) fn ask(
        &mut self,
        request_state: &mut RequestState,
        node: NodeIndex,
        request: ScanRequest,
        part: PlannedPart<'_>,
    ) -> Result<(), LostParticipant> {
        match self.peers.can_read(node) {
            Availability::Ready if node == self.peers.member.me => {
                self.ask_store(request_state, request.into_page(part.partitions.clone()));
            }
            Availability::Ready => {
                let serial = self.begin(request_state, node, None);
                let number = request_number::scan_number(self.in_flight.slot(), serial);
                self.outbox.send_to_peer(node, number, PeerRequest::Scan(request), self.terms(part.epoch));
            }
            Availability::Busy => request_state.pause(self.now.mono),
            Availability::Full | Availability::Unavailable => {
                return Err(LostParticipant { node, fault: None });
            }
        }
        Ok(())
    }

    /// Asks this node's store for a page.
    pub(super) fn ask_store(&mut self, request_state: &mut RequestState, request: PageRequest) {
        let scope = self.peers.view.refused.scope_of(&request);
        let serial = self.begin(request_state, self.peers.member.me, scope);
        let id = StoreId(request_number::scan_number(self.in_flight.slot(), serial));
        self.outbox.store(id, StoreRequest::ReadPage(request), self.deadline());
    }

    /// Queues a read of a key. Returns the number that identifies the result.
    pub(super) fn read(&mut self, key: Key, quorum: Quorum) -> u64 {
        let serial = self.reads.next_serial();
        self.reads.queued.push_back(QueuedRead { slot: self.in_flight.slot(), serial, key, quorum });
        serial
    }

    /// Matches an outcome with its request. Returns both; a page of this node that covers a refused
    /// key is a failure. `None`: the request was abandoned.
    pub(super) fn take_outcome(
        &mut self,
        serial: u64,
        outcome: ReplicaOutcome,
    ) -> Option<(InFlightRequest, ReplicaOutcome)> {
        let request = self.in_flight.remove(serial)?;
        self.peers.end_request(self.now.mono, request.node, 0);
        let outcome = self.peers.view.refused.judge(request.scope.as_deref(), outcome);
        Some((request, outcome))
    }

    /// Forgets the requests to a peer whose link has ended: no answer will come, and the snapshot
    /// there ends by its age.
    pub(super) fn forget_node(&mut self, node: NodeIndex) {
        for _ in 0..self.in_flight.remove_node(node) {
            self.peers.end_request(self.now.mono, node, 0);
        }
    }

    /// Releases the snapshots that no request in flight may take anew; the current one only if the
    /// scan is over.
    pub(super) fn release_snapshots(&mut self, is_over: bool) {
        let epoch = self.peers.member.layout.newest_change();
        while let Some((id, node)) = self.in_flight.take_idle_snapshot(is_over) {
            let number = request_number::scan_number(self.in_flight.slot(), self.reads.next_serial());
            let terms = RequestTerms { deadline: Deadline::NEVER, ..self.terms(epoch) };
            self.outbox.send(node, number, ReplicaRequest::EndSnapshot { id }, terms);
        }
    }

    /// Stops waiting for answers.
    pub(super) fn abandon(&mut self) {
        for request in self.in_flight.remove_all() {
            self.peers.end_request(self.now.mono, request.node, 0);
        }
    }

    fn begin(
        &mut self,
        request_state: &mut RequestState,
        node: NodeIndex,
        scope: Option<Box<PageScope>>,
    ) -> u64 {
        let serial = self.reads.next_serial();
        self.peers.begin_request(self.now.mono, node, 0);
        let snapshot = self.in_flight.snapshot();
        self.in_flight.insert(InFlightRequest { serial, node, snapshot, scope });
        request_state.begin(self.now.mono, serial);
        serial
    }

    fn terms(&self, epoch: LayoutEpoch) -> RequestTerms {
        RequestTerms { now: self.now.mono, deadline: self.deadline(), epoch }
    }

    fn deadline(&self) -> Deadline {
        Deadline::at(self.now.mono + self.peers.limits.request_timeout)
    }
}
