//! The context in which a scan runs.

use super::super::context::Context;
use super::super::peers::Availability;
use super::in_flight::InFlightRequests;
use super::request_state::RequestState;
use crate::{Key, NodeIndex, PageRequest, PartitionSet, Quorum, ScanRequest, StoreFault};
use stdx::Now;

/// The context of a scan: the time, the coordinator's state, and the scan's requests in flight.
#[derive(Debug)]
pub(super) struct ScanContext<'a> {
    pub(super) now: Now,
    pub(super) context: &'a mut Context,
    pub(super) in_flight: &'a mut InFlightRequests,
}

/// A participant that cannot be asked any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LostParticipant {
    pub(super) node: NodeIndex,
    /// The fault of its store.
    pub(super) fault: Option<StoreFault>,
}

impl ScanContext<'_> {
    /// Asks this node's store for a page.
    pub(super) fn ask_store(&mut self, request_state: &mut RequestState, request: PageRequest) {
        let serial = self.in_flight.ask_store(self.context, request);
        request_state.begin(self.now.mono, serial);
    }

    /// Asks a node for its part, which is in these partitions; a busy node, after a pause.
    pub(super) fn ask(
        &mut self,
        request_state: &mut RequestState,
        node: NodeIndex,
        request: ScanRequest,
        partitions: &PartitionSet,
    ) -> Result<(), LostParticipant> {
        match self.context.can_read(node) {
            Availability::Ready => {
                let serial = self.in_flight.ask(self.context, node, request, partitions);
                request_state.begin(self.now.mono, serial);
            }
            Availability::Busy => request_state.pause(self.now.mono),
            Availability::Full | Availability::Unavailable => {
                return Err(LostParticipant { node, fault: None });
            }
        }
        Ok(())
    }

    /// Queues a read of a key. Returns the number that identifies the result.
    pub(super) fn read(&mut self, key: Key, quorum: Quorum) -> u64 {
        self.in_flight.read(self.context, key, quorum)
    }
}
