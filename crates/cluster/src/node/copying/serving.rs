//! The source's side of a copy.
//!
//! **Promise.** A source answers only a node that is the gainer of a running swap by the record of
//! the source. Its answer has all cells of the range that the source holds, and of which the loser
//! is a replica.
//! The source has fenced the PREPARE of the swap by then, and the death of the loser. It is
//! read-eligible, and it is the loser itself or the loser is dead. Otherwise the gainer is refused,
//! and asks again.
//!
//! **Mechanism.** The request names the loser and the epoch of its plan. The source finds the swap
//! in its record. A pair has one swap at a time, and its attempts follow each other. The requester
//! has the same attempt if its plan is not older than the attempt, and not newer than the layout of
//! the source. This is checked again when the cells were read.
//!
//! A chunk of keys may hold few cells that move. So up to [`SCANS_MAX`] chunks are read for one
//! answer. The answer has the pause that the rate limit of the plan asks for: the time until all
//! that was sent is paid. With several gainers each waits for the others, so the sum keeps the
//! limit.
//!
//! **Caveats.** A requester that does not pause is not refused. A source that has refused keys
//! lacks their newest state, and refuses to be copied.

use super::super::Node;
use super::super::dispatch::StorePurpose;
use super::super::ranges::{CHUNK, RangeRequester};
use super::source::size;
use super::{copies_cell, fence_before_copy, is_copied, is_dead};
use crate::{
    CopyAnswer, CopyRequest, Key, LayoutRecord, NodeIndex, NodeResponse, PairSwap, PeerAnswer, ReplicaFault,
    StoreRequest, StoreResponse, SwapAttempt,
};
use limits::time_at;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Cell, Now};

/// Number of requests of one peer that may be in flight here: one for each of its sources, and
/// their retries.
const REQUESTS_MAX: u8 = 8;
/// Number of chunks that are read for one answer.
const SCANS_MAX: u8 = 16;

/// A request of a gainer that the store is scanning for.
#[derive(Debug)]
pub(in crate::node) struct PendingCopy {
    requester: RangeRequester,
    loser: NodeIndex,
    attempt: SwapAttempt,
    entries: Vec<(Key, Cell)>,
    bytes: usize,
    scans: u8,
}

impl PendingCopy {
    fn is_full(&self) -> bool {
        self.scans == SCANS_MAX || self.entries.len() * 2 >= CHUNK.entries || self.bytes * 2 >= CHUNK.bytes
    }
}

impl Node {
    /// Handles a request of a gainer.
    pub(in crate::node) fn handle_copy_request(&mut self, requester: RangeRequester, request: CopyRequest) {
        let CopyRequest { loser, after } = request;
        let (link, id) = (requester.link, requester.id);
        let attempt = match self.served_swap(&requester, loser) {
            Ok((record, at)) => record.attempt_of(&record.swaps()[at]),
            Err(fault) => return self.outbox.answer(link, id, PeerAnswer::Failed(fault)),
        };
        let in_flight = self.copies.serving.entry(requester.node).or_default();
        let Some(attempt) = attempt.filter(|_| *in_flight < REQUESTS_MAX) else {
            return self.outbox.answer(link, id, PeerAnswer::Failed(ReplicaFault::Busy));
        };
        *in_flight += 1;
        let pending = PendingCopy { requester, loser, attempt, entries: Vec::new(), bytes: 0, scans: 0 };
        self.scan_for_copy(pending, after);
    }

    fn scan_for_copy(&mut self, mut pending: PendingCopy, after: Option<Key>) {
        pending.scans += 1;
        let request = StoreRequest::Scan { after, until: None, limit: CHUNK, values: true };
        self.outbox.request_store(StorePurpose::ScanForCopy(Box::new(pending)), request);
    }

    /// Handles the store's scan for a gainer.
    pub(in crate::node) fn handle_copy_scanned(
        &mut self,
        now: Now,
        mut pending: PendingCopy,
        response: StoreResponse,
    ) {
        let answer = match (self.scanned_swap(&pending), response) {
            (Err(fault), _) => PeerAnswer::Failed(fault),
            (Ok((record, at)), StoreResponse::Scanned { entries, until }) => {
                let swap = &record.swaps()[at];
                let is_copied = |(key, cell): &(Key, Cell)| copies_cell(&record, swap, key, cell.meta.from);
                pending.entries.extend(entries.into_iter().filter(is_copied));
                pending.bytes = pending.entries.iter().map(size).sum();
                if until.is_some() && !pending.is_full() {
                    return self.scan_for_copy(pending, until);
                }
                let pause = self.charge_sent(now, &record, pending.bytes as u64);
                let entries = std::mem::take(&mut pending.entries);
                PeerAnswer::Node(NodeResponse::Copied(CopyAnswer { entries, until, pause }))
            }
            (Ok(_), StoreResponse::Failed(fault)) => PeerAnswer::Failed(ReplicaFault::Store(fault)),
            (Ok(_), response) => unreachable!("the store answered Scan with {response:?}"),
        };
        let requester = pending.requester;
        if let Some(in_flight) = self.copies.serving.get_mut(&requester.node) {
            *in_flight -= 1;
        }
        if self.is_peer(requester.node) && self.is_admitted(requester.node, requester.link) {
            self.outbox.answer(requester.link, requester.id, answer);
        }
    }

    /// The swap that was scanned for, if the request may be answered still.
    fn scanned_swap(&self, pending: &PendingCopy) -> Result<(Arc<LayoutRecord>, usize), ReplicaFault> {
        let (record, at) = self.served_swap(&pending.requester, pending.loser)?;
        match record.attempt_of(&record.swaps()[at]) == Some(pending.attempt) {
            true => Ok((record, at)),
            false => Err(self.stale_epoch()),
        }
    }

    /// The swap of the loser and the requester by the record of this node, by its index, if this
    /// node may be its source now.
    fn served_swap(
        &self,
        requester: &RangeRequester,
        loser: NodeIndex,
    ) -> Result<(Arc<LayoutRecord>, usize), ReplicaFault> {
        let record = self.adopted_layout().ok_or(ReplicaFault::NotServing)?;
        if requester.epoch > self.member.layout.newest_change() {
            // This node has not learned the record of the requester.
            return Err(ReplicaFault::Busy);
        }
        let pair = (loser, requester.node);
        let is_served = |swap: &PairSwap| swap.pair() == pair && is_copied(swap.phase);
        let at = record.swaps().iter().position(is_served).ok_or_else(|| self.stale_epoch())?;
        let swap = &record.swaps()[at];
        let id = self.is_peer(requester.node).then(|| self.peer(requester.node).accepted).flatten();
        let id = id.map(|accepted| accepted.hello.tag);
        let is_gainer = id.is_some() && record.member(requester.node).and_then(|it| it.node_id) == id;
        if requester.epoch < swap.attempt || !is_gainer {
            return Err(self.stale_epoch());
        }
        if loser != self.member.me && !is_dead(record, loser) {
            return Err(ReplicaFault::NotServing);
        }
        if self.fenced() < fence_before_copy(record, swap) {
            return Err(ReplicaFault::Busy);
        }
        if !self.is_read_eligible() || !self.record.wanted().refused.is_empty() {
            return Err(ReplicaFault::NotReadEligible);
        }
        Ok((Arc::clone(record), at))
    }

    fn stale_epoch(&self) -> ReplicaFault {
        ReplicaFault::StaleEpoch { epoch: self.member.layout.newest_change() }
    }

    /// Charges bytes that are sent to the rate limit of the plan. Returns the time until they are
    /// paid.
    fn charge_sent(&self, now: Now, record: &LayoutRecord, bytes: u64) -> Duration {
        let limit = record.plan.as_ref().and_then(|plan| plan.rate_limit);
        let Some(limit) = limit else { return Duration::ZERO };
        let cost = time_at(limit.bytes_per_second() as f64, bytes);
        self.copies.sending.charge(now.mono, cost, Duration::MAX);
        self.copies.sending.debt(now.mono)
    }
}
