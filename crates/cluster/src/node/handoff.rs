//! Hinted handoff: what peers missed is brought to them when they are back.
//!
//! **Promise.** A hint is forgotten only after its target said that it has the newest cell of the key durably, or
//! when the target is not to hold that cell, or when the hint is dropped: kept for too long, or without its cell. A
//! target that was owed an older version than the newest is a replica of the newest too, whatever its `from`.
//! A dropped one is counted in the ledger, from where it makes a repair owed. A hint that came meanwhile for a
//! newer version stays. A peer is told that nothing is left for it only when a count or a pass found nothing.
//!
//! **Mechanism.** At the start the hints on disk are counted, target by target. While a target is up and the
//! ledger holds something for it, a *pass* goes through its hints, [`CHUNK`] at a time: the cells of a chunk
//! are sent, answers awaited, what was stored is forgotten in one batch; then the next chunk. The next pass does not
//! begin before all is forgotten, so that no hint is counted as gone twice.
//!
//! The ledger counts too much: a newer hint takes the place of an older one, or its write failed. What a pass did not
//! find of what was counted as it began is *doubtful*; it may still be on its way to the disk. What was counted
//! [`DOUBT_MAX`] before a pass began and was not found by it is not there, and is taken from the ledger.
//!
//! **Caveats.** A hint that takes longer than that from the ledger to the disk is not replayed before the next
//! one for its target, or the next start.

use super::Node;
use super::purpose::{AskPurpose, StorePurpose};
use crate::{
    Event, Hint, HintCount, Key, NodeIndex, NodeSet, PeerAnswer, PeerFault, PeerRequest, PeerState,
    ScanLimit, StoreRequest, StoreResponse, hint_bytes,
};
use std::time::Duration;
use stdx::{Cell, Instant, Now, Version};

/// What is read, sent and forgotten at once for one target.
const CHUNK: ScanLimit = ScanLimit { entries: 64, bytes: 1 << 20 };
/// What is read at once to be counted.
const COUNT_CHUNK: ScanLimit = ScanLimit { entries: 1_024, bytes: 1 << 20 };
/// Between a pass that could not bring all that it found, or a failure of the store, and the next attempt.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The same while this node is about to end.
const RETRY_AFTER_DRAINING: Duration = Duration::from_millis(200);
/// A hint that was counted so long ago is on disk or will never be.
const DOUBT_MAX: Duration = Duration::from_secs(10);

/// The handoff to one target.
#[derive(Debug)]
pub(super) struct Handoff {
    stage: Stage,
    /// Hints on disk have been counted since the start.
    is_counted: bool,
    /// Not before this.
    next_at: Instant,
    pass: Pass,
    /// Requests to forget that are under way.
    forgetting: u32,
    /// What the ledger counts and the last pass did not find.
    doubtful: HintCount,
    /// What the ledger counted at some time, less what is gone of it.
    counted_earlier: Option<(Instant, HintCount)>,
    /// Hints that are gone since the start of the process.
    pub(super) gone: u64,
    /// Hints whose drop is known.
    dropped: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    Idle,
    /// The store reads hints.
    Reading,
    /// Cells are with the target.
    Delivering,
}

/// One way through the hints of a target, or through those to be counted.
#[derive(Debug, Default)]
struct Pass {
    /// What was looked at ends with this key.
    after: Option<Key>,
    /// There is nothing behind that.
    at_end: bool,
    held_at_begin: HintCount,
    /// What of `held_at_begin` is surely found, if it is there.
    settled_at_begin: Option<HintCount>,
    found: HintCount,
    /// Answers that are still to come for this chunk.
    awaited: u32,
    /// What of this chunk may be forgotten.
    done: Vec<(Key, Version)>,
    /// The target has no time or room.
    stalled: bool,
}

impl Handoff {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            stage: Stage::Idle,
            is_counted: false,
            next_at: now,
            pass: Pass::default(),
            forgetting: 0,
            doubtful: HintCount::default(),
            counted_earlier: None,
            gone: 0,
            dropped: 0,
        }
    }

    /// Tries again now.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.next_at = self.next_at.min(now);
    }

    fn begin_pass(&mut self, now: Instant, held: HintCount) {
        let (counted_at, counted) = *self.counted_earlier.get_or_insert((now, held));
        let is_settled = now - counted_at >= DOUBT_MAX;
        self.pass =
            Pass { held_at_begin: held, settled_at_begin: is_settled.then_some(counted), ..Pass::default() };
    }
}

impl Node {
    /// How many hints are left for a peer: 0 only when the last pass or count left none.
    pub(super) fn hints_left(&self, node: NodeIndex) -> u64 {
        let handoff = self.handoff(node);
        let held = self.member.hints.held(node).hints;
        if handoff.is_counted { held.saturating_sub(handoff.doubtful.hints) } else { held.max(1) }
    }

    /// Goes on with the handoff to a peer, as far as it can.
    pub(super) fn advance_handoff(&mut self, now: Now, node: NodeIndex) {
        if self.handoff(node).stage == Stage::Delivering && self.handoff(node).pass.awaited == 0 {
            self.end_chunk(now, node);
        }
        if self.handoff_due(node).is_some_and(|at| at <= now.mono) {
            let held = self.member.hints.held(node);
            self.handoff_mut(node).begin_pass(now.mono, held);
            self.read_hints(node);
        }
    }

    /// When the next pass is to begin.
    pub(super) fn handoff_due(&self, node: NodeIndex) -> Option<Instant> {
        let handoff = self.handoff(node);
        let is_free = handoff.stage == Stage::Idle && handoff.forgetting == 0;
        let has_work = !handoff.is_counted
            || (self.may_deliver(node) && self.member.hints.held(node) != HintCount::default());
        (is_free && has_work).then_some(handoff.next_at)
    }

    /// Whether something is left that could be handed over now.
    pub(super) fn has_to_hand_over(&self, node: NodeIndex) -> bool {
        self.may_deliver(node) && self.hints_left(node) > 0
    }

    /// Peers that a repair is owed with, since hints were dropped here or by a coordinator; they are told. One that was dropped for
    /// this node itself, which any of them may help out, is owed by all.
    pub(super) fn look_for_dropped_hints(&mut self) -> NodeSet {
        let told_before = self.outbox.last_number();
        let mut owed = NodeSet::EMPTY;
        for node in self.member.layout.nodes() {
            let dropped = self.member.hints.dropped(node);
            let handoff = self.handoff_mut(node);
            if dropped != handoff.dropped {
                handoff.dropped = dropped;
                self.peer_mut(node).untold = Some(told_before);
                owed.insert(node);
            }
        }
        if owed.remove(self.member.me) {
            owed = self.peer_nodes().collect();
        }
        owed
    }

    /// The store has read hints.
    pub(super) fn hints_read(&mut self, now: Now, node: NodeIndex, response: StoreResponse) {
        let (hints, until) = match response {
            StoreResponse::Hints { hints, until } => (hints, until),
            StoreResponse::Failed(_) => return self.end_handoff(now, node),
            response => unreachable!("the store answered ReadHints with {response:?}"),
        };
        let pass = &mut self.handoff_mut(node).pass;
        pass.at_end = until.is_none();
        pass.after = until;
        for hint in &hints {
            pass.found.hints += 1;
            pass.found.bytes += hint_bytes(&hint.key);
        }
        if self.handoff(node).is_counted {
            self.handoff_mut(node).stage = Stage::Delivering;
            hints.into_iter().for_each(|hint| self.deliver(now, node, hint));
        } else if self.handoff(node).pass.at_end {
            self.end_count(now, node);
        } else {
            self.read_hints(node);
        }
    }

    /// The target has answered; `None`: it has not.
    pub(super) fn hint_delivered(
        &mut self,
        node: NodeIndex,
        (key, version): (Key, Version),
        answer: Option<&PeerAnswer>,
    ) {
        let pass = &mut self.handoff_mut(node).pass;
        pass.awaited -= 1;
        match answer {
            Some(PeerAnswer::Written { .. }) => {
                pass.done.push((key, version));
                self.outbox.event(Event::HintDelivered { target: node });
            }
            // Not this one; others may do.
            Some(PeerAnswer::Failed(PeerFault::ClockAhead { .. })) => {}
            _ => pass.stalled = true,
        }
    }

    /// The store has forgotten hints.
    pub(super) fn hints_forgotten(&mut self, node: NodeIndex, gone: HintCount, response: StoreResponse) {
        let handoff = &mut self.peers[node.as_usize()].handoff;
        handoff.forgetting -= 1;
        match response {
            StoreResponse::HintsForgotten => {
                handoff.gone += gone.hints;
                if let Some((_, counted)) = &mut handoff.counted_earlier {
                    *counted = less(*counted, gone);
                }
                self.member.hints.remove(node, gone);
            }
            // They are found again by the next pass.
            StoreResponse::Failed(_) => {}
            response => unreachable!("the store answered ForgetHints with {response:?}"),
        }
    }

    fn may_deliver(&self, node: NodeIndex) -> bool {
        let has_room = self.peer(node).heartbeat().is_some_and(|heartbeat| !heartbeat.disk_full);
        self.peer(node).state == PeerState::Up && self.is_usable(node) && has_room
    }

    fn read_hints(&mut self, node: NodeIndex) {
        let handoff = self.handoff_mut(node);
        handoff.stage = Stage::Reading;
        let after = handoff.pass.after.clone();
        let cells = handoff.is_counted;
        let limit = if cells { CHUNK } else { COUNT_CHUNK };
        let request = StoreRequest::ReadHints { target: node, after, limit, cells };
        self.outbox.store(StorePurpose::ReadHints { target: node }, request);
    }

    /// Sends the newest cell of a hint, if it is to be sent.
    fn deliver(&mut self, now: Now, node: NodeIndex, hint: Hint) {
        let is_too_old = hint.version.hlc.wall().saturating_add(self.limits.hint_age_max) < self.horizon(now);
        let cell = hint.cell.filter(|cell| cell.meta.version >= hint.version);
        let from_owed = self.place_of(node, &hint.key) + 1;
        let owe = |cell: Cell| match cell.meta.version > hint.version {
            true => cell.with_from_of_at_least(from_owed),
            false => cell,
        };
        let cell = cell.map(owe);
        let is_reachable = self.is_usable(node);
        let pass = &mut self.peers[node.as_usize()].handoff.pass;
        match cell {
            Some(cell) if !self.member.layout.is_replica(node, &hint.key, cell.meta.from) => {
                pass.done.push((hint.key, hint.version));
            }
            Some(cell) if !is_too_old && is_reachable => {
                pass.awaited += 1;
                let purpose = AskPurpose::DeliverHint { key: hint.key.clone(), version: hint.version };
                let request = PeerRequest::Write { key: hint.key, cell, hints: NodeSet::EMPTY };
                self.outbox.ask(now.mono, node, purpose, request);
            }
            Some(_) if !is_too_old => pass.stalled = true,
            _ => {
                pass.done.push((hint.key, hint.version));
                self.member.hints.count_dropped(node, 1);
                self.outbox.event(Event::HintDropped { target: node });
            }
        }
    }

    /// Where a node stands in the preference list of a key.
    fn place_of(&self, node: NodeIndex, key: &Key) -> u8 {
        let layout = &self.member.layout;
        let list = layout.preference_list(layout.partition_of(key));
        list.iter().position(|other| *other == node).expect("a preference list names every node") as u8
    }

    fn end_chunk(&mut self, now: Now, node: NodeIndex) {
        let handoff = self.handoff_mut(node);
        let hints = std::mem::take(&mut handoff.pass.done);
        if !hints.is_empty() {
            handoff.forgetting += 1;
            let bytes = hints.iter().map(|(key, _)| hint_bytes(key)).sum();
            let gone = HintCount { hints: hints.len() as u64, bytes };
            let request = StoreRequest::ForgetHints { target: node, hints };
            self.outbox.store(StorePurpose::ForgetHints { target: node, gone }, request);
        }
        let pass = &self.handoff(node).pass;
        if pass.at_end || pass.stalled || !self.may_deliver(node) {
            self.end_handoff(now, node);
        } else {
            self.read_hints(node);
        }
    }

    fn end_handoff(&mut self, now: Now, node: NodeIndex) {
        let retry_after = if self.drain.is_some() { RETRY_AFTER_DRAINING } else { RETRY_AFTER };
        let handoff = &mut self.peers[node.as_usize()].handoff;
        handoff.stage = Stage::Idle;
        handoff.next_at = now.mono + retry_after;
        let pass = &handoff.pass;
        if !handoff.is_counted || !pass.at_end {
            return;
        }
        handoff.doubtful = less(pass.held_at_begin, pass.found);
        if let Some(settled) = pass.settled_at_begin {
            let surplus = less(settled, pass.found);
            handoff.doubtful = less(handoff.doubtful, surplus);
            handoff.counted_earlier = None;
            self.member.hints.remove(node, surplus);
        }
    }

    fn end_count(&mut self, now: Now, node: NodeIndex) {
        let handoff = &mut self.peers[node.as_usize()].handoff;
        handoff.stage = Stage::Idle;
        handoff.is_counted = true;
        handoff.next_at = now.mono;
        handoff.counted_earlier = None;
        self.member.hints.recount(node, HintCount::default(), handoff.pass.found);
    }

    fn handoff(&self, node: NodeIndex) -> &Handoff {
        &self.peer(node).handoff
    }

    fn handoff_mut(&mut self, node: NodeIndex) -> &mut Handoff {
        &mut self.peer_mut(node).handoff
    }
}

const fn less(a: HintCount, b: HintCount) -> HintCount {
    HintCount { hints: a.hints.saturating_sub(b.hints), bytes: a.bytes.saturating_sub(b.bytes) }
}
