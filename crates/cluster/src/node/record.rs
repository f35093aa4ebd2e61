//! The node record: the state that survives restarts, and how changes of it become durable.
//!
//! **Promise.** The record in `durable` is on disk. A change is made to `wanted` first and takes
//! effect when it is durable. Each change stores the whole record. One store request is in flight
//! at a time; a failed one is retried.

use super::dispatch::StorePurpose;
use super::outbox::NodeEffects;
use crate::{NodeRecord, StoreRequest, StoreResponse};
use std::time::Duration;
use stdx::Instant;

/// Time between a failure to store the record and the next attempt.
const RETRY_AFTER: Duration = Duration::from_millis(250);

/// The node record with the state of storing it.
#[derive(Debug)]
pub(super) struct NodeRecordState {
    durable: NodeRecord,
    wanted: NodeRecord,
    in_flight: Option<NodeRecord>,
    retry_at: Instant,
    /// The record is stored until its durable revision is at least this, even if it has not
    /// changed.
    forced_revision: u64,
}

impl NodeRecordState {
    pub(super) fn new(durable: NodeRecord) -> Self {
        Self {
            wanted: durable.clone(),
            durable,
            in_flight: None,
            retry_at: Instant::ZERO,
            forced_revision: 0,
        }
    }

    pub(super) const fn durable(&self) -> &NodeRecord {
        &self.durable
    }

    /// The record with all changes, durable or not.
    pub(super) const fn wanted(&self) -> &NodeRecord {
        &self.wanted
    }

    pub(super) const fn wanted_mut(&mut self) -> &mut NodeRecord {
        &mut self.wanted
    }

    /// Has the current record stored again because the stored one may be lost. It is done when a
    /// record of the returned revision or a greater one is durable.
    pub(super) fn force_store(&mut self) -> u64 {
        self.forced_revision = self.durable.revision.max(self.wanted.revision) + 1;
        self.forced_revision
    }

    /// Stores the record if it has changed and no store request is in flight.
    pub(super) fn advance(&mut self, now: Instant, outbox: &mut NodeEffects) {
        if self.in_flight.is_some() || !self.is_dirty() || now < self.retry_at {
            return;
        }
        self.wanted.revision = self.durable.revision.max(self.wanted.revision) + 1;
        self.in_flight = Some(self.wanted.clone());
        let request = StoreRequest::PersistRecord { record: self.wanted.clone() };
        outbox.request_store(StorePurpose::StoreRecord, request);
    }

    /// Handles the store's answer.
    pub(super) fn handle_stored(&mut self, now: Instant, response: StoreResponse) {
        let record = self.in_flight.take().expect("a record was being stored");
        match response {
            StoreResponse::RecordPersisted { .. } => self.durable = record,
            StoreResponse::Failed(_) => self.retry_at = now + RETRY_AFTER,
            response => unreachable!("the store answered PersistRecord with {response:?}"),
        }
    }

    /// Time at which [`NodeRecordState::advance`] is due without another event.
    pub(super) fn due(&self) -> Option<Instant> {
        (self.in_flight.is_none() && self.is_dirty()).then_some(self.retry_at)
    }

    /// Whether a change is not durable yet.
    pub(super) fn is_dirty(&self) -> bool {
        let wanted = &self.wanted;
        let durable = &self.durable;
        // A difference of the revision alone is no change.
        (wanted.sync_state, wanted.repaired_at, wanted.repair_pending, wanted.unheard)
            != (durable.sync_state, durable.repaired_at, durable.repair_pending, durable.unheard)
            || wanted.peers != durable.peers
            || wanted.own_generations != durable.own_generations
            || wanted.peer_generations != durable.peer_generations
            || wanted.refused != durable.refused
            || wanted.disowned_to != durable.disowned_to
            || durable.revision < self.forced_revision
    }
}
