//! What the node remembers through restarts, and how changes of it become durable.
//!
//! **Promise.** What is `durable` here is on disk. Changes go to `wanted` first and take effect when they are
//! durable; the whole record is stored at each change, one request at a time, again after a failure.

use super::outbox::Outbox;
use super::purpose::StorePurpose;
use crate::{NodeRecord, StoreRequest, StoreResponse};
use std::time::Duration;
use stdx::Instant;

/// Between a failure to store the record and the next attempt.
const RETRY_AFTER: Duration = Duration::from_millis(250);

/// See the module.
#[derive(Debug)]
pub(super) struct Record {
    durable: NodeRecord,
    wanted: NodeRecord,
    under_way: Option<NodeRecord>,
    retry_at: Instant,
    /// With this revision or a greater one it is to be stored, whatever has changed.
    renewed_from: u64,
}

impl Record {
    pub(super) fn new(durable: NodeRecord) -> Self {
        Self { wanted: durable.clone(), durable, under_way: None, retry_at: Instant::ZERO, renewed_from: 0 }
    }

    pub(super) const fn durable(&self) -> &NodeRecord {
        &self.durable
    }

    /// What the record will be, unless the process ends before.
    pub(super) const fn wanted(&self) -> &NodeRecord {
        &self.wanted
    }

    pub(super) const fn change(&mut self) -> &mut NodeRecord {
        &mut self.wanted
    }

    /// Has the record stored anew, as it is now: what was stored may be lost. It is done when a record of the returned
    /// revision, or of a greater one, is durable.
    pub(super) fn renew(&mut self) -> u64 {
        self.renewed_from = self.durable.revision.max(self.wanted.revision) + 1;
        self.renewed_from
    }

    /// Has a change stored, if there is one and none is under way.
    pub(super) fn advance(&mut self, now: Instant, outbox: &mut Outbox) {
        if self.under_way.is_some() || !self.is_behind() || now < self.retry_at {
            return;
        }
        self.wanted.revision = self.durable.revision.max(self.wanted.revision) + 1;
        self.under_way = Some(self.wanted.clone());
        let request = StoreRequest::PersistRecord { record: self.wanted.clone() };
        outbox.store(StorePurpose::Remember, request);
    }

    /// Takes the store's answer.
    pub(super) fn stored(&mut self, now: Instant, response: StoreResponse) {
        let record = self.under_way.take().expect("the record was being stored");
        match response {
            StoreResponse::RecordPersisted { .. } => self.durable = record,
            StoreResponse::Failed(_) => self.retry_at = now + RETRY_AFTER,
            response => unreachable!("the store answered Remember with {response:?}"),
        }
    }

    /// When to call [`Record::advance`] though nothing has happened.
    pub(super) fn due(&self) -> Option<Instant> {
        (self.under_way.is_none() && self.is_behind()).then_some(self.retry_at)
    }

    /// Whether a change is not durable yet.
    pub(super) fn is_behind(&self) -> bool {
        let wanted = &self.wanted;
        let durable = &self.durable;
        // The revision alone is no change.
        (wanted.sync_state, wanted.repaired_at, wanted.repair_pending, wanted.unheard)
            != (durable.sync_state, durable.repaired_at, durable.repair_pending, durable.unheard)
            || wanted.peers != durable.peers
            || wanted.own_generations != durable.own_generations
            || wanted.peer_generations != durable.peer_generations
            || wanted.refused != durable.refused
            || durable.revision < self.renewed_from
    }
}
