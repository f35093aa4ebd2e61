//! Refused keys: noted by pulls, and tried again. See [`crate::RefusedKeys`] for what reads make of them.
//!
//! **Promise.** A key stays refused until one of these is durable: the cell that was refused, a version of the key that
//! was issued after the refusal, or the fact that no peer that had the cell holds it any more. Each key is tried again,
//! one after the other, for as long as this process runs.
//!
//! **Mechanism.** One key at a time is *retried*. This node's own store is asked first: a version there that is newer
//! than the refusal ends it. Then each holder is asked for the version that it holds now. A version that can be believed
//! by now is fetched and stored, as a pull would do; a peer without the key is a holder no longer. The node rests between
//! two keys, and for [`ROUND_AGAIN_AFTER`] after the last.
//!
//! **Caveats.** A holder that cannot be reached, or is not believed, is asked in the next round. The key stays refused
//! meanwhile. A later write through a user ends the failure when the key is next retried, not at once.

use super::Node;
use super::purpose::{AskPurpose, StorePurpose};
use crate::{Key, NodeIndex, NodeSet, PeerAnswer, PeerRequest, StoreRequest, StoreResponse};
use std::time::Duration;
use stdx::{Hlc, Instant, Now};

/// Between the last key of a round and the first key of the next.
const ROUND_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Between two keys of a round.
const KEY_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// How far the retries of refused keys are. See the module.
#[derive(Debug)]
pub(super) struct RefusedRetries {
    /// The last key that was retried in this round.
    after: Option<Key>,
    current: Option<Retry>,
    next_at: Instant,
}

#[derive(Debug)]
struct Retry {
    key: Key,
    /// Holders that have not been asked in this retry.
    to_ask: NodeSet,
}

impl RefusedRetries {
    pub(super) const fn new(now: Instant) -> Self {
        Self { after: None, current: None, next_at: now }
    }
}

impl Node {
    /// Notes that `holder` holds a cell of `key` that this node refuses. `false`: there is no room for the key.
    pub(super) fn refuse_key(&mut self, now: Now, key: &Key, holder: NodeIndex) -> bool {
        let since = Hlc::at(now.wall).max(self.member.clock.issued());
        let keys = &mut self.record.change().refused;
        if keys.is_empty() {
            self.refused.next_at = now.mono + ROUND_AGAIN_AFTER;
        }
        keys.try_insert(key, NodeSet::from_iter([holder]), since)
    }

    /// Begins the retry of the next key, if it is time to.
    pub(super) fn advance_refused(&mut self, now: Now) {
        if self.refused_due().is_none_or(|at| now.mono < at) {
            return;
        }
        let keys = &self.record.wanted().refused;
        let Some(key) = keys.next_behind(self.refused.after.as_ref()).cloned() else {
            self.refused.after = None;
            self.refused.next_at = now.mono + ROUND_AGAIN_AFTER;
            return;
        };
        let to_ask = keys.get(&key).map_or(NodeSet::EMPTY, |refusal| refusal.holders);
        self.refused.after = Some(key.clone());
        self.refused.current = Some(Retry { key: key.clone(), to_ask });
        self.outbox.store(StorePurpose::ReadRefused, StoreRequest::Read { key });
    }

    /// When the next key is to be retried; `None`: there is none, or one is being retried.
    pub(super) fn refused_due(&self) -> Option<Instant> {
        let is_idle = self.refused.current.is_none() && self.drain.is_none();
        (is_idle && !self.record.wanted().refused.is_empty()).then_some(self.refused.next_at)
    }

    /// The store has read what this node holds of the key that is retried.
    pub(super) fn refused_read(&mut self, now: Now, response: &StoreResponse) {
        let key = self.retried_key();
        let keys = &mut self.record.change().refused;
        if let (StoreResponse::Cell(Some(cell)), Some(refusal)) = (response, keys.get(&key))
            && cell.meta.version.hlc > refusal.since
        {
            keys.remove(&key);
        }
        self.ask_next_holder(now);
    }

    /// A holder has said what it holds of the key that is retried; `None`: it has not.
    pub(super) fn refused_answered(&mut self, now: Now, node: NodeIndex, answer: Option<PeerAnswer>) {
        let key = self.retried_key();
        let (meta, cell) = match answer {
            Some(PeerAnswer::Meta(meta)) => (meta, None),
            Some(PeerAnswer::Cell(cell)) => (cell.as_ref().map(|cell| cell.meta), cell),
            _ => return self.ask_next_holder(now),
        };
        let own = meta.filter(|meta| self.member.layout.is_replica(self.member.me, &key, meta.from));
        let Some(meta) = own else {
            self.record.change().refused.remove_holders(&key, NodeSet::from_iter([node]));
            return self.ask_next_holder(now);
        };
        if !self.member.clock.accepts(meta.version.hlc, now) || !self.is_usable(node) {
            return self.ask_next_holder(now);
        }
        match cell {
            Some(cell) => {
                let request = StoreRequest::Write { key, cell, hints: NodeSet::EMPTY };
                self.outbox.store(StorePurpose::StoreRefused { holder: node }, request);
            }
            None => self.outbox.ask(now.mono, node, AskPurpose::AskRefused, PeerRequest::ReadCell { key }),
        }
    }

    /// The store has taken a cell of the key that is retried, or has not.
    pub(super) fn refused_stored(&mut self, now: Now, holder: NodeIndex, response: &StoreResponse) {
        if matches!(response, StoreResponse::Written { .. }) {
            let key = self.retried_key();
            self.record.change().refused.remove_holders(&key, NodeSet::from_iter([holder]));
        }
        self.ask_next_holder(now);
    }

    /// Asks the next holder that can be asked; ends the retry after the last.
    fn ask_next_holder(&mut self, now: Now) {
        let may_ask =
            |node: &NodeIndex| self.is_usable(*node) && self.peer(*node).sync_state().is_read_eligible();
        let retry = self.refused.current.as_ref().expect("a key is being retried");
        let is_refused = self.record.wanted().refused.contains(&retry.key);
        let next = retry.to_ask.iter().find(may_ask).filter(|_| is_refused);
        let Some(node) = next else {
            self.refused.current = None;
            self.refused.next_at = now.mono + KEY_AGAIN_AFTER;
            return;
        };
        let retry = self.refused.current.as_mut().expect("it was just seen");
        retry.to_ask.remove(node);
        let key = retry.key.clone();
        self.outbox.ask(now.mono, node, AskPurpose::AskRefused, PeerRequest::ReadMeta { key });
    }

    fn retried_key(&self) -> Key {
        self.refused.current.as_ref().expect("a key is being retried").key.clone()
    }
}
