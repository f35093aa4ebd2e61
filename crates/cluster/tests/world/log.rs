//! Occurrences that a script shows.

use super::World;
use super::packet::Machine;
use cluster::{ClusterView, Event, Message, Reply, RequestId, StoreFault, StoreRequest, SyncState};

/// Something that occurred, for a script.
#[derive(Clone, Debug)]
pub(crate) enum Occurrence {
    Sent {
        from: usize,
        to: usize,
        message: Message,
        is_lost: bool,
    },
    /// A request to a store. `is_replica`: on behalf of a peer.
    Stored {
        host: usize,
        machine: Machine,
        is_replica: bool,
        request: StoreRequest,
    },
    DiskFailed {
        host: usize,
        fault: StoreFault,
    },
    Event {
        host: usize,
        event: Event,
    },
    Viewed {
        host: usize,
        before: Box<ClusterView>,
        after: Box<ClusterView>,
    },
    State {
        host: usize,
        sync_state: SyncState,
        is_ready: bool,
    },
    Replied {
        id: RequestId,
        reply: Reply,
    },
}

impl World {
    /// Records occurrences from now on, beginning with changes of the present states.
    pub(crate) fn begin_log(&mut self) {
        self.log = Some(Vec::new());
        (0..self.hosts.len()).for_each(|host| self.record_state(host));
        self.log = Some(Vec::new());
    }

    /// Records an occurrence if a script is played.
    pub(super) fn record(&mut self, occurrence: impl FnOnce() -> Occurrence) {
        if let Some(log) = &mut self.log {
            log.push(occurrence());
        }
    }

    pub(super) fn record_view(&mut self, host: usize, after: &ClusterView) {
        let before = self.hosts[host].view.clone();
        let after = Box::new(after.clone());
        self.record(|| Occurrence::Viewed { host, before: Box::new(before), after });
    }

    pub(super) fn record_state(&mut self, host: usize) {
        if self.log.is_none() {
            return;
        }
        let Some(node) = &self.hosts[host].node else { return };
        let state = (node.status().sync_state, node.is_ready());
        if self.hosts[host].shown_state.replace(state) == Some(state) {
            return;
        }
        let (sync_state, is_ready) = state;
        self.record(|| Occurrence::State { host, sync_state, is_ready });
    }
}
