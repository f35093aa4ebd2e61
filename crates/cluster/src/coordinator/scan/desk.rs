//! What a scan works with.

use super::super::context::Context;
use super::super::peers::Availability;
use super::errands::Errands;
use super::progress::Progress;
use crate::{Key, NodeIndex, PageRequest, Quorum, ScanRequest, StoreFault};
use stdx::Now;

/// What a scan works with: the time, the cluster as this thread sees it, and what it has under way.
#[derive(Debug)]
pub(super) struct Desk<'a> {
    pub(super) now: Now,
    pub(super) context: &'a mut Context,
    pub(super) errands: &'a mut Errands,
}

/// A node that is asked for its part cannot be asked any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) node: NodeIndex,
    /// What its store said.
    pub(super) fault: Option<StoreFault>,
}

impl Desk<'_> {
    /// Asks this node's store for a page.
    pub(super) fn ask_store(&mut self, progress: &mut Progress, request: PageRequest) {
        let serial = self.errands.ask_store(self.context, request);
        progress.begin(self.now.mono, serial);
    }

    /// Asks a peer for its part; one that has too much to do, after a pause.
    pub(super) fn ask_peer(
        &mut self,
        progress: &mut Progress,
        node: NodeIndex,
        request: ScanRequest,
    ) -> Result<(), Lost> {
        match self.context.can_read(node) {
            Availability::Ready => {
                let serial = self.errands.ask_peer(self.context, node, request);
                progress.begin(self.now.mono, serial);
            }
            Availability::Busy => progress.pause(self.now.mono),
            Availability::Full | Availability::Gone => return Err(Lost { node, fault: None }),
        }
        Ok(())
    }

    /// Has a key read; by which number the result is known.
    pub(super) fn read(&mut self, key: Key, quorum: Quorum) -> u64 {
        self.errands.read(self.context, key, quorum)
    }
}
