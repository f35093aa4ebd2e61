//! Hinted handoff: delivers missed writes to peers that are reachable again.
//!
//! **Promise.** A hint is deleted only in one of these cases:
//!
//! - Its target has acknowledged the newest cell of the key as durable.
//! - The target is not a replica of that cell. While a swap runs, the replicas are those of both
//!   lists. A target that a swap has removed from them gets nothing any more. The node that has its
//!   place may lack the write: the round of anti-entropy after the swaps makes up for it.
//! - The hint is dropped: it is too old, or its cell is missing. The ledger counts dropped hints,
//!   and each makes a repair pending.
//!
//! A target that missed an older version than the newest is a replica of the newest as well, for
//! any `from` of the newest. This ends with the first change of the partition. A hint for a newer
//! version that was stored meanwhile stays. A peer is told that no hints are left for it only after
//! a count or a pass found none.
//!
//! **Mechanism.** At the start the hints on disk are counted for each target. While a target is up
//! and the ledger holds hints for it, a *pass* reads them in chunks of [`CHUNK`]. It sends the
//! cells of a chunk, waits for the answers, deletes the delivered hints in one batch, and reads the
//! next chunk. The next pass begins only after these deletes have ended, so no hint is subtracted
//! from the ledger twice.
//!
//! The ledger may count too many hints: a newer hint replaces an older one, or its write failed.
//! Hints that the ledger held when a pass began and that the pass did not find are *unconfirmed*.
//! They may still be on their way to the disk. If the ledger has held them for [`UNCONFIRMED_MAX`]
//! before the pass began, they do not exist and are subtracted from the ledger.
//!
//! A target that knows a newer layout refuses a cell of a partition that has changed. Its hint
//! stays, and the pass goes on with the others. The next pass decides by the layout that this node
//! has then.
//!
//! Hints for a slot without a member are read and deleted in the same passes. A pass delivers none
//! of them, because no cell has a replica there.
//!
//! A node that leaves the cluster hands no hints over. Every node runs a round of anti-entropy
//! after its swaps, and the targets get the writes in it from the replicas that have them.
//!
//! **Caveats.** A hint that reaches the disk later than [`UNCONFIRMED_MAX`] after it was counted is
//! delivered only with the next hint for its target, or after the next start.

use super::Node;
use super::dispatch::{RequestPurpose, StorePurpose};
use crate::{
    Event, Hint, HintCount, Key, LayoutEpoch, NodeIndex, NodeSet, PeerAnswer, PeerState, ReplicaFault,
    ReplicaRequest, ReplicaResponse, ScanLimit, StoreRequest, StoreResponse, hint_bytes,
};
use std::time::Duration;
use stdx::{Cell, Instant, Now, Version};

/// Hints that are read, sent and deleted together for one target.
const CHUNK: ScanLimit = ScanLimit { entries: 64, bytes: 1 << 20 };
/// Hints that are read together while they are counted.
const COUNT_CHUNK: ScanLimit = ScanLimit { entries: 1_024, bytes: 1 << 20 };
/// Time between a pass that left hints undelivered, or a failure of the store, and the next
/// attempt.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The same time while this node drains.
const RETRY_AFTER_DRAINING: Duration = Duration::from_millis(200);
/// Time after which a counted hint is on disk or never will be.
const UNCONFIRMED_MAX: Duration = Duration::from_secs(10);

/// State of the handoff to one target.
#[derive(Debug)]
pub(super) struct Handoff {
    stage: HandoffStage,
    /// The hints on disk have been counted since the start of the process.
    is_counted: bool,
    /// Earliest start of the next pass.
    next_at: Instant,
    pass: HandoffPass,
    /// Number of requests to delete hints that are in flight.
    forgets_in_flight: u32,
    /// Hints that the ledger counts and the last pass did not find.
    unconfirmed: HintCount,
    /// An earlier count of the ledger with its time, less the hints that were deleted since.
    earlier_count: Option<(Instant, HintCount)>,
    /// Number of hints deleted since the start of the process.
    pub(super) hints_removed: u64,
    /// Number of dropped hints for which a repair was already requested.
    dropped_seen: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum HandoffStage {
    Idle,
    /// The store is reading hints.
    Reading,
    /// Cells were sent to the target and answers are pending.
    Delivering,
}

/// A pass over the hints of one target: to count them, or to deliver them.
#[derive(Debug, Default)]
struct HandoffPass {
    /// Last key that was read.
    after: Option<Key>,
    /// The last chunk has been read.
    is_at_end: bool,
    held_at_start: HintCount,
    /// Hints that the pass must find if they exist: counted at least [`UNCONFIRMED_MAX`] before its
    /// start.
    confirmed_at_start: Option<HintCount>,
    found: HintCount,
    /// Number of answers of the target that are outstanding for this chunk.
    answers_pending: u32,
    /// Hints of this chunk that may be deleted.
    forgettable: Vec<(Key, Version)>,
    /// The target refused a cell, did not answer, or could not be reached. The pass ends after this
    /// chunk.
    is_stalled: bool,
}

impl Handoff {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            stage: HandoffStage::Idle,
            is_counted: false,
            next_at: now,
            pass: HandoffPass::default(),
            forgets_in_flight: 0,
            unconfirmed: HintCount::default(),
            earlier_count: None,
            hints_removed: 0,
            dropped_seen: 0,
        }
    }

    /// Makes the next pass due now.
    pub(super) fn expedite(&mut self, now: Instant) {
        self.next_at = self.next_at.min(now);
    }

    fn begin_pass(&mut self, now: Instant, held: HintCount) {
        let (counted_at, counted) = *self.earlier_count.get_or_insert((now, held));
        let is_confirmed = now - counted_at >= UNCONFIRMED_MAX;
        self.pass = HandoffPass {
            held_at_start: held,
            confirmed_at_start: is_confirmed.then_some(counted),
            ..HandoffPass::default()
        };
    }
}

impl Node {
    /// Number of hints pending for a peer. It is 0 only when the last pass or count left none.
    pub(super) fn hints_left(&self, node: NodeIndex) -> u64 {
        let handoff = self.handoff(node);
        let held = self.member.hints.held(node).hints;
        if handoff.is_counted { held.saturating_sub(handoff.unconfirmed.hints) } else { held.max(1) }
    }

    /// Advances the handoff to a peer as far as possible.
    pub(super) fn advance_handoff(&mut self, now: Now, node: NodeIndex) {
        if self.handoff(node).stage == HandoffStage::Delivering
            && self.handoff(node).pass.answers_pending == 0
        {
            self.end_chunk(now, node);
        }
        if self.handoff_due(node).is_some_and(|at| at <= now.mono) {
            let held = self.member.hints.held(node);
            self.handoff_mut(node).begin_pass(now.mono, held);
            self.read_hints(node);
        } else if self.leftover_hints.contains(node) && self.has_no_hints(node) {
            self.leftover_hints.remove(node);
        }
    }

    /// Whether the store holds no hints for a slot, and deletes none.
    fn has_no_hints(&self, node: NodeIndex) -> bool {
        let Handoff { stage, is_counted, forgets_in_flight, .. } = self.handoff(node);
        let is_idle = *stage == HandoffStage::Idle && *is_counted && *forgets_in_flight == 0;
        is_idle && self.member.hints.held(node) == HintCount::default()
    }

    /// The peers, and the slots without a member for which the store may hold hints.
    pub(super) fn hint_targets(&self) -> impl Iterator<Item = NodeIndex> + use<> {
        self.peer_nodes().chain(self.leftover_hints.iter())
    }

    /// Time at which the next pass is due.
    pub(super) fn handoff_due(&self, node: NodeIndex) -> Option<Instant> {
        let handoff = self.handoff(node);
        let is_free = handoff.stage == HandoffStage::Idle && handoff.forgets_in_flight == 0;
        let has_work = !handoff.is_counted
            || (self.can_deliver(node) && self.member.hints.held(node) != HintCount::default());
        (is_free && has_work).then_some(handoff.next_at)
    }

    /// Makes the next pass over the hints for a peer due now: it plans them by a new layout.
    pub(super) fn expedite_handoff(&mut self, now: Now, node: NodeIndex) {
        self.handoff_mut(node).expedite(now.mono);
    }

    /// Whether hints are pending that could be delivered now.
    pub(super) fn has_hints_to_deliver(&self, node: NodeIndex) -> bool {
        self.can_deliver(node) && self.hints_left(node) > 0
    }

    /// Returns the peers that need a repair because hints were dropped here or by a coordinator,
    /// and has them told so. A dropped hint for this node itself concerns every peer, since any of
    /// them may hold the missing cell.
    pub(super) fn note_dropped_hints(&mut self) -> NodeSet {
        let last_request = self.outbox.last_request_number();
        let mut pending = NodeSet::EMPTY;
        for node in self.member.layout.nodes() {
            let dropped = self.member.hints.dropped(node);
            let handoff = self.handoff_mut(node);
            if dropped != handoff.dropped_seen {
                handoff.dropped_seen = dropped;
                self.peer_mut(node).unacked_repair_notice = Some(last_request);
                pending.insert(node);
            }
        }
        if pending.remove(self.member.me) {
            pending = self.peer_nodes().collect();
        }
        pending
    }

    /// Handles the store's answer to a read of hints.
    pub(super) fn handle_hints_read(&mut self, now: Now, node: NodeIndex, response: StoreResponse) {
        let (hints, until) = match response {
            StoreResponse::Hints { hints, until } => (hints, until),
            StoreResponse::Failed(_) => return self.end_handoff(now, node),
            response => unreachable!("the store answered ReadHints with {response:?}"),
        };
        let pass = &mut self.handoff_mut(node).pass;
        pass.is_at_end = until.is_none();
        pass.after = until;
        for hint in &hints {
            pass.found.hints += 1;
            pass.found.bytes += hint_bytes(&hint.key);
        }
        if self.handoff(node).is_counted {
            self.handoff_mut(node).stage = HandoffStage::Delivering;
            hints.into_iter().for_each(|hint| self.deliver_hint(now, node, hint));
        } else if self.handoff(node).pass.is_at_end {
            self.end_count(now, node);
        } else {
            self.read_hints(node);
        }
    }

    /// Handles the target's answer to a delivered hint. `None`: there was no answer.
    pub(super) fn handle_hint_answer(
        &mut self,
        node: NodeIndex,
        (key, version): (Key, Version),
        answer: Option<&PeerAnswer>,
    ) {
        let pass = &mut self.handoff_mut(node).pass;
        pass.answers_pending -= 1;
        match answer {
            Some(PeerAnswer::Replica(ReplicaResponse::Written { .. })) => {
                pass.forgettable.push((key, version));
                self.outbox.emit_event(Event::HintDelivered { target: node });
            }
            // The target refuses this version, or the plan for this key; it may accept others.
            Some(PeerAnswer::Failed(ReplicaFault::ClockAhead { .. } | ReplicaFault::StaleEpoch { .. })) => {}
            _ => pass.is_stalled = true,
        }
    }

    /// Handles the store's answer to a delete of hints.
    pub(super) fn handle_hints_forgotten(
        &mut self,
        node: NodeIndex,
        deleted: HintCount,
        response: StoreResponse,
    ) {
        let handoff = &mut self.peers[node.as_usize()].handoff;
        handoff.forgets_in_flight -= 1;
        match response {
            StoreResponse::HintsForgotten => {
                handoff.hints_removed += deleted.hints;
                if let Some((_, counted)) = &mut handoff.earlier_count {
                    *counted = saturating_sub(*counted, deleted);
                }
                self.member.hints.remove(node, deleted);
            }
            // The next pass finds these hints again.
            StoreResponse::Failed(_) => {}
            response => unreachable!("the store answered ForgetHints with {response:?}"),
        }
    }

    /// Whether hints for a slot can be delivered. Those for a slot without a member are deleted.
    fn can_deliver(&self, node: NodeIndex) -> bool {
        if !self.is_peer(node) {
            return true;
        }
        let has_room = self.peer(node).heartbeat().is_some_and(|heartbeat| !heartbeat.disk_full);
        self.peer(node).state == PeerState::Up && self.is_usable(node) && has_room
    }

    fn read_hints(&mut self, node: NodeIndex) {
        let handoff = self.handoff_mut(node);
        handoff.stage = HandoffStage::Reading;
        let after = handoff.pass.after.clone();
        let cells = handoff.is_counted;
        let limit = if cells { CHUNK } else { COUNT_CHUNK };
        let request = StoreRequest::ReadHints { target: node, after, limit, cells };
        self.outbox.request_store(StorePurpose::ReadHints { target: node }, request);
    }

    /// Sends the newest cell of a hint, or drops the hint.
    fn deliver_hint(&mut self, now: Now, node: NodeIndex, hint: Hint) {
        if !self.is_peer(node) {
            return self.handoff_mut(node).pass.forgettable.push((hint.key, hint.version));
        }
        let is_too_old = hint.version.hlc.wall().saturating_add(self.limits.hint_age_max) < self.horizon(now);
        let cell = hint.cell.filter(|cell| cell.meta.version >= hint.version);
        let layout = &self.member.layout;
        let partition = layout.partition_of(&hint.key);
        // If the partition has changed, the target may have lost its place, rather than be a
        // replica of an older version with a greater `from`.
        let has_changed = layout.changed(partition) > LayoutEpoch::FIRST;
        let widen = |cell: Cell| match cell.meta.version > hint.version && !has_changed {
            true => cell.with_from_of_at_least(layout.least_from(node, partition)),
            false => cell,
        };
        let cell = cell.map(widen);
        let is_reachable = self.is_usable(node);
        let pass = &mut self.peers[node.as_usize()].handoff.pass;
        match cell {
            Some(cell) if !layout.is_intended_replica(node, partition, cell.meta.from) => {
                pass.forgettable.push((hint.key, hint.version));
            }
            Some(cell) if !is_too_old && is_reachable => {
                pass.answers_pending += 1;
                let purpose = RequestPurpose::DeliverHint { key: hint.key.clone(), version: hint.version };
                let request = ReplicaRequest::Write { key: hint.key, cell, hints: NodeSet::EMPTY };
                self.outbox.request_peer(now.mono, node, purpose, request);
            }
            Some(_) if !is_too_old => pass.is_stalled = true,
            _ => {
                pass.forgettable.push((hint.key, hint.version));
                self.member.hints.count_dropped(node, 1);
                self.outbox.emit_event(Event::HintDropped { target: node });
            }
        }
    }

    fn end_chunk(&mut self, now: Now, node: NodeIndex) {
        let handoff = self.handoff_mut(node);
        let hints = std::mem::take(&mut handoff.pass.forgettable);
        if !hints.is_empty() {
            handoff.forgets_in_flight += 1;
            let bytes = hints.iter().map(|(key, _)| hint_bytes(key)).sum();
            let deleted = HintCount { hints: hints.len() as u64, bytes };
            let request = StoreRequest::ForgetHints { target: node, hints };
            self.outbox.request_store(StorePurpose::ForgetHints { target: node, deleted }, request);
        }
        let pass = &self.handoff(node).pass;
        if pass.is_at_end || pass.is_stalled || !self.can_deliver(node) {
            self.end_handoff(now, node);
        } else {
            self.read_hints(node);
        }
    }

    fn end_handoff(&mut self, now: Now, node: NodeIndex) {
        let retry_after = if self.drain.is_some() { RETRY_AFTER_DRAINING } else { RETRY_AFTER };
        let handoff = &mut self.peers[node.as_usize()].handoff;
        handoff.stage = HandoffStage::Idle;
        handoff.next_at = now.mono + retry_after;
        let pass = &handoff.pass;
        if !handoff.is_counted || !pass.is_at_end {
            return;
        }
        handoff.unconfirmed = saturating_sub(pass.held_at_start, pass.found);
        if let Some(confirmed) = pass.confirmed_at_start {
            let surplus = saturating_sub(confirmed, pass.found);
            handoff.unconfirmed = saturating_sub(handoff.unconfirmed, surplus);
            handoff.earlier_count = None;
            self.member.hints.remove(node, surplus);
        }
    }

    fn end_count(&mut self, now: Now, node: NodeIndex) {
        let handoff = &mut self.peers[node.as_usize()].handoff;
        handoff.stage = HandoffStage::Idle;
        handoff.is_counted = true;
        handoff.next_at = now.mono;
        handoff.earlier_count = None;
        self.member.hints.recount(node, HintCount::default(), handoff.pass.found);
    }

    fn handoff(&self, node: NodeIndex) -> &Handoff {
        &self.peer(node).handoff
    }

    fn handoff_mut(&mut self, node: NodeIndex) -> &mut Handoff {
        &mut self.peer_mut(node).handoff
    }
}

const fn saturating_sub(a: HintCount, b: HintCount) -> HintCount {
    HintCount { hints: a.hints.saturating_sub(b.hints), bytes: a.bytes.saturating_sub(b.bytes) }
}
