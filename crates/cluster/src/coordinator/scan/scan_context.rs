//! What a scan works with.

use super::super::context::Context;
use super::super::peers::Availability;
use super::in_flight::InFlightRequests;
use super::request_state::RequestState;
use crate::{Key, NodeIndex, PageRequest, Quorum, ScanRequest, StoreFault};
use stdx::Now;

/// What a scan works with: the time, the cluster as this thread sees it, and what it has under way.
#[derive(Debug)]
pub(super) struct ScanContext<'a> {
    pub(super) now: Now,
    pub(super) context: &'a mut Context,
    pub(super) in_flight: &'a mut InFlightRequests,
}

/// A node that is asked for its part cannot be asked any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LostParticipant {
    pub(super) node: NodeIndex,
    /// What its store said.
    pub(super) fault: Option<StoreFault>,
}

impl ScanContext<'_> {
    /// Asks this node's store for a page.
    pub(super) fn ask_store(&mut self, request_state: &mut RequestState, request: PageRequest) {
        let serial = self.in_flight.ask_store(self.context, request);
        request_state.begin(self.now.mono, serial);
    }

    /// Asks a peer for its part; one that has too much to do, after a pause.
    pub(super) fn ask_peer(
        &mut self,
        request_state: &mut RequestState,
        node: NodeIndex,
        request: ScanRequest,
    ) -> Result<(), LostParticipant> {
        match self.context.can_read(node) {
            Availability::Ready => {
                let serial = self.in_flight.ask_peer(self.context, node, request);
                request_state.begin(self.now.mono, serial);
            }
            Availability::Busy => request_state.pause(self.now.mono),
            Availability::Full | Availability::Unavailable => {
                return Err(LostParticipant { node, fault: None });
            }
        }
        Ok(())
    }

    /// Has a key read; by which number the result is known.
    pub(super) fn read(&mut self, key: Key, quorum: Quorum) -> u64 {
        self.in_flight.read(self.context, key, quorum)
    }
}
