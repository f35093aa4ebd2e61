//! Retries of refused keys, which pulls record. [`crate::RefusedKeys`] describes their effect on
//! reads.
//!
//! **Promise.** A key stays refused until one of these is durable:
//!
//! - the cell that was refused,
//! - a version of the key that was issued after the refusal,
//! - the fact that no peer that had the cell still holds it.
//!
//! The keys are retried one after the other for as long as this process runs.
//!
//! **Mechanism.** The store of this node is read first: a version that is newer than the refusal
//! ends it. Then each holder is asked for the version that it holds now. A version that the clock
//! accepts by now is fetched and stored, as in a pull. A peer without the key is removed from the
//! holders. The node pauses for [`KEY_INTERVAL`] after each key, and for [`ROUND_INTERVAL`] after
//! the last.
//!
//! **Caveats.** A holder that is unreachable or not read-eligible is asked in the next round; the
//! key stays refused meanwhile. A later write by a user ends the refusal at the key's next retry,
//! not at once.

use super::Node;
use super::dispatch::{RequestPurpose, StorePurpose};
use crate::{Key, NodeIndex, NodeSet, PeerAnswer, ReplicaRequest, ReplicaResponse, StoreResponse};
use std::time::Duration;
use stdx::{Hlc, Instant, Now};

/// Time between the last key of a round and the first key of the next.
const ROUND_INTERVAL: Duration = Duration::from_secs(10);
/// Time between two keys of a round.
const KEY_INTERVAL: Duration = Duration::from_millis(50);

/// Progress of the retries of refused keys.
#[derive(Debug)]
pub(super) struct RefusedRetries {
    /// Last key that was retried in this round.
    after: Option<Key>,
    current: Option<Retry>,
    next_at: Instant,
}

#[derive(Debug)]
struct Retry {
    key: Key,
    /// Holders that were not asked yet in this retry.
    holders_left: NodeSet,
}

impl RefusedRetries {
    pub(super) const fn new(now: Instant) -> Self {
        Self { after: None, current: None, next_at: now }
    }
}

impl Node {
    /// Records that `holder` holds a cell of `key` that this node refuses. `false`: the record has
    /// no room for the key.
    pub(super) fn refuse_key(&mut self, now: Now, key: &Key, holder: NodeIndex) -> bool {
        let since = Hlc::at(now.wall).max(self.member.clock.issued());
        let keys = &mut self.record.wanted_mut().refused;
        if keys.is_empty() {
            self.refused_retries.next_at = now.mono + ROUND_INTERVAL;
        }
        keys.try_insert(key, NodeSet::from_iter([holder]), since)
    }

    /// Begins the retry of the next key if it is due.
    pub(super) fn advance_refused(&mut self, now: Now) {
        if self.refused_due().is_none_or(|at| now.mono < at) {
            return;
        }
        let keys = &self.record.wanted().refused;
        let Some(key) = keys.next_behind(self.refused_retries.after.as_ref()).cloned() else {
            self.refused_retries.after = None;
            self.refused_retries.next_at = now.mono + ROUND_INTERVAL;
            return;
        };
        let holders_left = keys.get(&key).map_or(NodeSet::EMPTY, |refusal| refusal.holders);
        self.refused_retries.after = Some(key.clone());
        self.refused_retries.current = Some(Retry { key: key.clone(), holders_left });
        self.outbox.request_store(StorePurpose::ReadRefusedKey, ReplicaRequest::ReadMeta { key });
    }

    /// Time at which the next retry is due. `None`: no key is refused, a retry is running, or the
    /// node drains.
    pub(super) fn refused_due(&self) -> Option<Instant> {
        let is_idle = self.refused_retries.current.is_none() && self.drain.is_none();
        (is_idle && !self.record.wanted().refused.is_empty()).then_some(self.refused_retries.next_at)
    }

    /// Handles the store's answer with the version that this node holds of the retried key.
    pub(super) fn handle_refused_key_read(&mut self, now: Now, response: &StoreResponse) {
        let key = self.current_retry_key();
        let keys = &mut self.record.wanted_mut().refused;
        if let (StoreResponse::Replica(ReplicaResponse::Meta(Some(meta))), Some(refusal)) =
            (response, keys.get(&key))
            && meta.version.hlc > refusal.since
        {
            keys.remove(&key);
        }
        self.ask_next_holder(now);
    }

    /// Handles a holder's answer about the retried key. `None`: there was no answer.
    pub(super) fn handle_holder_answer(&mut self, now: Now, node: NodeIndex, answer: Option<PeerAnswer>) {
        let key = self.current_retry_key();
        let (meta, cell) = match answer {
            Some(PeerAnswer::Replica(ReplicaResponse::Meta(meta))) => (meta, None),
            Some(PeerAnswer::Replica(ReplicaResponse::Cell(cell))) => {
                (cell.as_ref().map(|cell| cell.meta), cell)
            }
            _ => return self.ask_next_holder(now),
        };
        let own = meta.filter(|meta| self.member.layout.is_intended_holder(self.member.me, &key, meta.from));
        let Some(meta) = own else {
            self.record.wanted_mut().refused.remove_holders(&key, NodeSet::from_iter([node]));
            return self.ask_next_holder(now);
        };
        if !self.member.clock.accepts(meta.version.hlc, now) || !self.is_usable(node) {
            return self.ask_next_holder(now);
        }
        match cell {
            Some(cell) => {
                let request = ReplicaRequest::Write { key, cell, hints: NodeSet::EMPTY };
                self.outbox.request_store(StorePurpose::StoreRefusedKey { holder: node }, request);
            }
            None => self.outbox.request_peer(
                now.mono,
                node,
                RequestPurpose::RetryRefusedKey,
                ReplicaRequest::Read { key },
            ),
        }
    }

    /// Handles the store's answer to the write of the retried key's cell.
    pub(super) fn handle_refused_key_stored(
        &mut self,
        now: Now,
        holder: NodeIndex,
        response: &StoreResponse,
    ) {
        if matches!(response, StoreResponse::Replica(ReplicaResponse::Written { .. })) {
            let key = self.current_retry_key();
            self.record.wanted_mut().refused.remove_holders(&key, NodeSet::from_iter([holder]));
        }
        self.ask_next_holder(now);
    }

    /// Asks the next holder that can be asked. Ends the retry after the last.
    fn ask_next_holder(&mut self, now: Now) {
        let can_ask =
            |node: &NodeIndex| self.is_usable(*node) && self.peer(*node).sync_state().is_read_eligible();
        let retry = self.refused_retries.current.as_ref().expect("a key is being retried");
        let is_refused = self.record.wanted().refused.contains(&retry.key);
        let next = retry.holders_left.iter().find(can_ask).filter(|_| is_refused);
        let Some(node) = next else {
            self.refused_retries.current = None;
            self.refused_retries.next_at = now.mono + KEY_INTERVAL;
            return;
        };
        let retry = self.refused_retries.current.as_mut().expect("checked above");
        retry.holders_left.remove(node);
        let key = retry.key.clone();
        self.outbox.request_peer(
            now.mono,
            node,
            RequestPurpose::RetryRefusedKey,
            ReplicaRequest::ReadMeta { key },
        );
    }

    fn current_retry_key(&self) -> Key {
        self.refused_retries.current.as_ref().expect("a key is being retried").key.clone()
    }
}
