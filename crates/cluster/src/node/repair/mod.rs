//! Anti-entropy: replicas compare their cells and exchange the differences.
//!
//! **Promise.** When a pass has ended with a peer, both nodes hold the newest cell of every key
//! that both are replicas of, if it was written before the pass began. This does not depend on
//! reads. A cell is sent only to a node within the cell's `from`, or to one that holds an older
//! cell of the key, which it replaces. Deleted data does not reappear: the newest version wins
//! everywhere, and dead cells are exchanged until their grace period ends.
//!
//! **Mechanism.** A *pass* visits the keys in order, one chunk at a time. This node scans a chunk
//! of its own keys. It sends each participating peer a digest of the cells in that range that both
//! are replicas of. A peer with the same cells says so. Any other peer sends its keys with their
//! versions, and the differences are exchanged a few cells at a time (`exchange`). A pass pauses
//! after each chunk so that it is active for a tenth of the time. It is active for half of the time
//! if it was requested, if hints were dropped, or after a rebuild.
//!
//! A peer is *due* from the time at which a pass with it is requested until a pass that began later
//! has ended with all differences exchanged. A *round* makes all peers due: when a third of the
//! grace period has passed since the last round, or on request. It ends when no peer is due. The
//! time since a round of this process is measured by the monotonic clock. The time of a round of an
//! earlier process is a wall time. If it is in the future, a wrong clock recorded it: it is
//! reported ([`Event::RoundInFuture`]) and ignored, and a round is due.
//!
//! Both nodes compare by one layout. A peer with another one refuses: the chunk is skipped with it,
//! and the pass counts as incomplete with it. A new layout of this node ends the pass
//! (`layout_change`). While a swap runs, the gaining node is compared like a replica. A node that a
//! swap has removed from the replicas is sent nothing.
//!
//! Unreadable ranges are skipped: the lost ranges of this node's damaged tables, and a few keys of
//! this node around a range that a peer cannot read. The latter are found by bisection. All other
//! keys are compared. The pass counts as incomplete with the peers concerned, so they stay due.
//!
//! A link may end in the middle of a pass because of the data that it carried: a value that is too
//! large for a slow link delays the heartbeats until the peer counts as unreachable. So the keys
//! that were being exchanged are *deferred*: passes skip them and count as incomplete. When such a
//! pass has ended with the peer, the next one tries the older half of them again. So a key that
//! breaks the link does not prevent the exchange of the others.
//!
//! **Caveats.** A pass reads all keys of this node. Peers that are not up and read-eligible stay
//! due until they are. If a key was written with a smaller and smaller `from`, a node outside the
//! newest `from` may keep an older cell. Only a request with a `from` as large as the first one
//! reads it there.

mod delete_exchange;
mod exchange;

use super::dispatch::{RequestPurpose, StorePurpose};
use super::ranges::{CHUNK, permille};
use super::{Node, RepairKind};
use crate::{
    Event, HybridClock, Key, LostRange, NodeIndex, NodeRequest, NodeResponse, NodeSet, PeerAnswer, PeerState,
    RangeAnswer, RangeDigest, RangeRequest, RepairStatus, ReplicaFault, StoreFault, StoreRequest,
    StoreResponse,
};
use delete_exchange::DeleteExchange;
pub(super) use exchange::Transfer;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use stdx::{Cell, CellMeta, Hlc, Instant, Now, WallTime};

/// Time after which a write has reached its replicas or needs help to do so.
const WRITE_PROPAGATION_TIME: Duration = Duration::from_secs(2);
/// Shortest pause between two passes.
const PASS_PAUSE_MIN: Duration = Duration::from_secs(10);
/// Longest pause between two passes. The pause doubles while passes leave peers due and exchange
/// nothing.
const PASS_PAUSE_MAX: Duration = Duration::from_secs(640);
/// A pause between passes is at most this fraction (one in this many) of the grace period, within
/// which every replica must learn of a delete.
const PAUSE_SHARE_OF_GRACE: u32 = 20;
/// Longest pause between two chunks.
const CHUNK_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Number of attempts at one request in a pass.
const ATTEMPTS_MAX: u8 = 3;
/// Number of attempts to scan the local store in a pass. Within this time the store finds out which
/// table is damaged.
const SCAN_ATTEMPTS_MAX: u8 = 10;
/// Time between a failed scan of the local store and the next attempt.
const SCAN_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of deferred keys of one peer.
const DEFERRED_KEYS_MAX: usize = 256;
/// A range that a peer cannot read is bisected until it holds at most this many keys of this node,
/// which are then skipped.
const SKIPPED_KEYS_MAX: usize = 4;

/// State of anti-entropy.
#[derive(Debug)]
pub(super) struct Repair {
    /// Peers that are due, each with the number of the last pass that began before its pass was
    /// requested.
    due: BTreeMap<NodeIndex, u64>,
    /// Start of the current round.
    round: Option<WallTime>,
    /// Start of the last round of this process.
    last_round: Option<Now>,
    /// Passes pause for less time until no peer is due.
    is_urgent: bool,
    next_at: Instant,
    pause: Duration,
    passes: u64,
    pass: Option<RepairPass>,
    /// Estimated size of a transferred cell in bytes, near the largest of the recent ones.
    cell_bytes: usize,
    delete_exchange: DeleteExchange,
    /// Keys of each peer whose transfer was in flight when the peer's link ended, oldest first. At
    /// most [`DEFERRED_KEYS_MAX`] for a peer.
    deferred_keys: BTreeMap<NodeIndex, VecDeque<Key>>,
}

/// A pass over all keys.
#[derive(Debug)]
struct RepairPass {
    number: u64,
    /// The horizon at the start of the pass, by which deletes are exchanged.
    started_at: WallTime,
    cutoff: Hlc,
    /// Peers that take part.
    participants: NodeSet,
    /// Participants with which some cell could not be exchanged.
    incomplete: NodeSet,
    /// Last key that was compared.
    after: Option<Key>,
    stage: PassStage,
    /// The chunk is scanned a second time because this node received cells of it.
    is_second_scan: bool,
    /// Number of consecutive failed scans of the store.
    failed_scans: u8,
    cells: u64,
}

#[derive(Debug)]
enum PassStage {
    Paused {
        until: Instant,
    },
    /// `bound` is the start of the next damaged range, where the scan ends.
    Scanning {
        started_at: Instant,
        bound: Option<Key>,
    },
    Comparing(Chunk),
}

/// A range of this node's keys that is being compared.
#[derive(Debug)]
struct Chunk {
    started_at: Instant,
    /// Last key of the chunk. `None`: the chunk ends with the last key of all.
    until: Option<Key>,
    own: BTreeMap<Key, CellMeta>,
    /// Peers that have not answered for the whole chunk, with their progress.
    open_peers: BTreeMap<NodeIndex, Progress>,
    /// Waiting transfers. No further ranges are requested while there are many.
    transfers: VecDeque<Transfer>,
    in_flight: usize,
    has_received_cells: bool,
}

#[derive(Debug)]
struct Progress {
    after: Option<Key>,
    /// Last key of a reduced request, since the peer could not read the whole range.
    narrowed_to: Option<Key>,
    attempts: u8,
    /// The peer has answered for a part, and the next part is to be requested.
    is_continuation_due: bool,
}

impl Progress {
    const fn behind(after: Option<Key>) -> Self {
        Self { after, narrowed_to: None, attempts: 0, is_continuation_due: false }
    }
}

impl Repair {
    /// Creates the state after a start: the peers in `pending` are due, since their repair was
    /// pending when the last process ended.
    pub(super) fn new(now: Instant, pending: NodeSet) -> Self {
        Self {
            delete_exchange: DeleteExchange::default(),
            deferred_keys: BTreeMap::new(),
            due: pending.iter().map(|node| (node, 0)).collect(),
            round: None,
            last_round: None,
            is_urgent: !pending.is_empty(),
            next_at: now,
            pause: PASS_PAUSE_MIN,
            passes: 0,
            pass: None,
            cell_bytes: exchange::CELL_BYTES_INITIAL,
        }
    }

    /// Releases the older half of the deferred keys of a peer for the next pass.
    fn release_deferred_keys(&mut self, node: NodeIndex) {
        if let Some(keys) = self.deferred_keys.get_mut(&node) {
            keys.drain(..keys.len().div_ceil(2));
        }
    }

    fn pass(&mut self, number: u64) -> Option<&mut RepairPass> {
        self.pass.as_mut().filter(|pass| pass.number == number)
    }

    fn chunk(&mut self, number: u64) -> Option<&mut Chunk> {
        match &mut self.pass(number)?.stage {
            PassStage::Comparing(chunk) => Some(chunk),
            PassStage::Paused { .. } | PassStage::Scanning { .. } => None,
        }
    }
}

impl Chunk {
    /// Last key of the current request to a peer.
    fn requested_until(&self, progress: &Progress) -> Option<Key> {
        progress.narrowed_to.clone().or_else(|| self.until.clone())
    }

    /// Records that the chunk is done with a peer up to the key `end`. `None`: up to the last key
    /// of all.
    fn advance_peer(&mut self, node: NodeIndex, end: Option<Key>) {
        if end.is_none() || end == self.until {
            self.open_peers.remove(&node);
        } else {
            self.open_peers.insert(node, Progress { is_continuation_due: true, ..Progress::behind(end) });
        }
    }
}

impl Node {
    /// Makes passes with these peers due, durably.
    pub(super) fn mark_repair_pending(&mut self, to: NodeSet) {
        if to.is_empty() {
            return;
        }
        let record = self.record.wanted_mut();
        record.repair_pending = record.repair_pending.union(to);
        self.repair.is_urgent = true;
        self.repair.pause = PASS_PAUSE_MIN;
        let passes = self.repair.passes;
        self.repair.due.extend(to.iter().map(|node| (node, passes)));
    }

    /// Starts a round at once.
    pub(super) fn request_round(&mut self, now: Now) {
        self.begin_round(now);
        self.repair.is_urgent = true;
        self.repair.next_at = now.mono;
    }

    /// Advances anti-entropy as far as possible.
    pub(super) fn advance_repair(&mut self, now: Now) {
        if !self.is_read_eligible() || self.drain.is_some() {
            self.repair.pass = None;
            return;
        }
        if self.is_round_due(now) {
            self.report_round_in_future(now);
            self.begin_round(now);
        }
        if self.repair.pass.is_none() && self.repair.next_at <= now.mono {
            self.begin_pass(now);
        }
        let repair = &self.repair;
        match repair.pass.as_ref().map(|pass| &pass.stage) {
            Some(&PassStage::Paused { until }) if until <= now.mono => self.scan_chunk(now),
            Some(PassStage::Comparing(_)) => self.advance_exchange(now),
            _ => {}
        }
    }

    /// Time at which the current pass is due to continue.
    pub(super) fn repair_due(&self) -> Option<Instant> {
        match self.repair.pass.as_ref()?.stage {
            PassStage::Paused { until } => Some(until),
            PassStage::Scanning { .. } | PassStage::Comparing(_) => None,
        }
    }

    /// Handles the store's scan of a chunk.
    pub(super) fn handle_chunk_scanned(&mut self, now: Now, number: u64, response: StoreResponse) {
        let Some(pass) = self.repair.pass(number) else { return };
        let PassStage::Scanning { started_at, bound } = &mut pass.stage else {
            unreachable!("a pass scans one chunk at a time");
        };
        let (started_at, bound) = (*started_at, bound.take());
        let (entries, until) = match response {
            StoreResponse::Scanned { entries, until } => (entries, until.or(bound)),
            StoreResponse::Failed(_) => return self.retry_scan(now),
            response => unreachable!("the store answered Scan with {response:?}"),
        };
        pass.failed_scans = 0;
        let participants = pass.participants;
        let open_peers = participants.iter().map(|node| (node, Progress::behind(pass.after.clone())));
        pass.stage = PassStage::Comparing(Chunk {
            started_at,
            until,
            own: entries.into_iter().map(|(key, Cell { meta, .. })| (key, meta)).collect(),
            open_peers: open_peers.collect(),
            transfers: VecDeque::new(),
            in_flight: 0,
            has_received_cells: false,
        });
        participants.iter().for_each(|node| self.request_comparison(now, number, node));
    }

    /// Handles a peer's answer to a comparison. `None`: there was no answer.
    pub(super) fn handle_compare_answer(
        &mut self,
        now: Now,
        number: u64,
        node: NodeIndex,
        answer: Option<PeerAnswer>,
    ) {
        let Some(chunk) = self.repair.chunk(number) else { return };
        let Some(progress) = chunk.open_peers.get_mut(&node) else { return };
        match answer {
            Some(PeerAnswer::Node(NodeResponse::Range(RangeAnswer::Same))) => {
                let end = progress.narrowed_to.take().or_else(|| chunk.until.clone());
                chunk.advance_peer(node, end);
            }
            Some(PeerAnswer::Node(NodeResponse::Range(RangeAnswer::Versions { entries, until })))
                if until.is_none() || until > progress.after =>
            {
                let requested_until = progress.narrowed_to.take().or_else(|| chunk.until.clone());
                let is_short = until.is_some() && (requested_until.is_none() || until < requested_until);
                let end = if is_short { until } else { requested_until };
                let after = progress.after.take();
                chunk.advance_peer(node, end.clone());
                self.compare_range(now, number, node, after.as_ref(), end.as_ref(), entries);
            }
            Some(PeerAnswer::Failed(ReplicaFault::StaleEpoch { .. })) => self.skip_chunk(number, node),
            Some(PeerAnswer::Failed(ReplicaFault::Store(StoreFault::Corrupt { .. }))) => {
                self.skip_unreadable(now, number, node);
            }
            _ => {
                progress.attempts += 1;
                self.request_comparison(now, number, node);
            }
        }
    }

    /// Handles a range that a peer cannot read: requests its first half, or skips it if it holds
    /// few keys.
    fn skip_unreadable(&mut self, now: Now, number: u64, node: NodeIndex) {
        let Some(RepairPass { incomplete, stage: PassStage::Comparing(chunk), .. }) =
            self.repair.pass(number)
        else {
            return;
        };
        let progress = &chunk.open_peers[&node];
        let (after, until) = (progress.after.clone(), chunk.requested_until(progress));
        let keys: Vec<&Key> =
            chunk.own.keys().filter(|key| is_between(key, after.as_ref(), until.as_ref())).collect();
        if keys.len() > SKIPPED_KEYS_MAX {
            let narrowed_to = Some(keys[keys.len() / 2 - 1].clone());
            chunk.open_peers.insert(node, Progress { narrowed_to, ..Progress::behind(after) });
            return self.request_comparison(now, number, node);
        }
        incomplete.insert(node);
        chunk.advance_peer(node, until);
        self.outbox.emit_event(Event::RangeSkipped { node });
    }

    /// Skips the rest of the chunk with a peer that has another layout. The peer stays due.
    fn skip_chunk(&mut self, number: u64, node: NodeIndex) {
        let Some(pass) = self.repair.pass(number) else { return };
        pass.incomplete.insert(node);
        if let PassStage::Comparing(chunk) = &mut pass.stage {
            chunk.open_peers.remove(&node);
        }
    }

    /// Ends the running pass without a result.
    pub(super) fn abandon_pass(&mut self) {
        self.repair.pass = None;
    }

    /// Retries a failed scan. The store soon recovers, or finds out which table is damaged.
    fn retry_scan(&mut self, now: Now) {
        let pass = self.repair.pass.as_mut().expect("a pass is running");
        pass.failed_scans += 1;
        if pass.failed_scans == SCAN_ATTEMPTS_MAX {
            let number = pass.number;
            return self.end_pass(now, number, false);
        }
        pass.stage = PassStage::Paused { until: now.mono + SCAN_RETRY_AFTER };
    }

    /// Status of the pass for operators.
    pub(super) fn repair_status(&self) -> Option<RepairStatus> {
        let pass = self.repair.pass.as_ref()?;
        let permille = permille(pass.after.as_ref());
        Some(RepairStatus { kind: RepairKind::AntiEntropy, permille, cells: pass.cells })
    }

    fn is_round_due(&self, now: Now) -> bool {
        let interval = self.limits.grace / 3;
        let is_past = |last: WallTime| last.saturating_add(interval) <= now.wall;
        let is_due = match self.repair.last_round {
            // Unlike the monotonic clock, the wall clock runs while the machine is suspended.
            Some(last) => now.mono - last.mono >= interval || is_past(last.wall),
            None => {
                let repaired_at = self.record.durable().repaired_at;
                repaired_at.is_none_or(|last| is_past(last) || is_in_future(last, now.wall))
            }
        };
        self.peers_count() > 0 && is_due
    }

    /// Reports a recorded round in the future, which is ignored. Does so before the first round of
    /// this process only.
    fn report_round_in_future(&mut self, now: Now) {
        let repaired_at = self.record.durable().repaired_at.filter(|at| is_in_future(*at, now.wall));
        if let (None, Some(at)) = (self.repair.last_round, repaired_at) {
            self.outbox.emit_event(Event::RoundInFuture { at });
        }
    }

    fn begin_round(&mut self, now: Now) {
        self.repair.round = Some(now.wall);
        self.repair.last_round = Some(now);
        let passes = self.repair.passes;
        self.repair.due = self.peer_nodes().map(|node| (node, passes)).collect();
    }

    /// Begins a pass with the due peers that can take part, if there are any.
    fn begin_pass(&mut self, now: Now) {
        let due = self.repair.due.keys().copied();
        let participants: NodeSet = due.filter(|&node| self.can_participate(node)).collect();
        if participants.is_empty() {
            return;
        }
        self.repair.passes += 1;
        self.repair.pass = Some(RepairPass {
            number: self.repair.passes,
            started_at: self.horizon(now),
            // Covers every write until now. They have time to arrive before the first scan.
            cutoff: Hlc::at(now.wall).max(self.member.clock.issued()),
            participants,
            incomplete: NodeSet::EMPTY,
            after: None,
            stage: PassStage::Paused { until: now.mono + WRITE_PROPAGATION_TIME },
            is_second_scan: false,
            failed_scans: 0,
            cells: 0,
        });
    }

    fn can_participate(&self, node: NodeIndex) -> bool {
        let peer = self.peer(node);
        let has_room = peer.heartbeat().is_some_and(|heartbeat| !heartbeat.disk_full) && !self.disk_full;
        let is_up = peer.state == PeerState::Up && self.is_usable(node);
        is_up && has_room && peer.sync_state().is_read_eligible()
    }

    /// Scans the next chunk: after the damaged ranges at the current position, up to the next
    /// damaged range.
    fn scan_chunk(&mut self, now: Now) {
        let pass = self.repair.pass.as_mut().expect("a pass is running");
        let number = pass.number;
        let healing = &self.healing;
        let end_of_next = |after: Option<&Key>| {
            let next = healing.damaged_ranges().find(|range| is_within(after, range));
            next.map(|range| range.until.clone())
        };
        let mut is_over = false;
        while let Some(until) = end_of_next(pass.after.as_ref()).filter(|_| !is_over) {
            pass.incomplete = pass.incomplete.union(pass.participants);
            pass.participants.iter().for_each(|node| self.outbox.emit_event(Event::RangeSkipped { node }));
            is_over = until.is_none();
            pass.after = until;
        }
        if is_over {
            return self.end_pass(now, number, true);
        }
        let starts = self.healing.damaged_ranges().filter_map(|range| range.after.clone());
        let bound = starts.filter(|start| is_between(start, pass.after.as_ref(), None)).min();
        pass.stage = PassStage::Scanning { started_at: now.mono, bound: bound.clone() };
        let after = pass.after.clone();
        let request = StoreRequest::Scan { after, until: bound, limit: CHUNK, values: false };
        self.outbox.request_store(StorePurpose::ScanChunk { pass: number }, request);
    }

    /// Asks a peer to compare the rest of the chunk.
    fn request_comparison(&mut self, now: Now, number: u64, node: NodeIndex) {
        let is_usable = self.is_usable(node) && self.peer(node).is_reachable();
        let Some(RepairPass { cutoff, stage: PassStage::Comparing(chunk), .. }) = &self.repair.pass else {
            return;
        };
        let progress = &chunk.open_peers[&node];
        if !is_usable || progress.attempts == ATTEMPTS_MAX {
            return self.exclude_peer(node);
        }
        let (after, until) = (progress.after.clone(), chunk.requested_until(progress));
        let is_in_rest = |key: &Key| is_between(key, after.as_ref(), until.as_ref());
        let rest = chunk
            .own
            .iter()
            .filter(|(key, meta)| is_in_rest(key) && self.is_exchanged(now, node, key, meta, *cutoff));
        let digest = Some(RangeDigest::of(rest.map(|(key, meta)| (key.as_bytes(), meta.version))));
        let cutoff = *cutoff;
        let request = NodeRequest::Range(RangeRequest { after, until, cutoff, digest, cells: false });
        self.outbox.request_peer(now.mono, node, RequestPurpose::CompareRange { pass: number }, request);
    }

    /// Removes a peer from the pass. The peer stays due.
    fn exclude_peer(&mut self, node: NodeIndex) {
        if let Some(pass) = &mut self.repair.pass {
            pass.participants.remove(node);
            if let PassStage::Comparing(chunk) = &mut pass.stage {
                chunk.open_peers.remove(&node);
                chunk.transfers.retain(|transfer| transfer.node != node);
            }
        }
    }

    /// Forgets a node that is a member no more: no pass with it is due.
    pub(super) fn forget_in_repair(&mut self, node: NodeIndex) {
        self.exclude_peer(node);
        self.repair.due.remove(&node);
        self.repair.deferred_keys.remove(&node);
        self.repair.delete_exchange.forget(node);
        if self.repair.pass.is_none() {
            self.end_round();
        }
    }

    /// Ends a chunk that is compared and exchanged.
    fn end_compared_chunk(&mut self, now: Now) {
        let is_urgent = self.repair.is_urgent;
        let pass = self.repair.pass.as_mut().expect("a pass is running");
        let PassStage::Comparing(chunk) = &mut pass.stage else { return };
        let busy = now.mono - chunk.started_at;
        let rest = if is_urgent { busy } else { busy * 9 };
        let until = chunk.until.take();
        let is_over = pass.participants.is_empty();
        // Cells of one peer may be missing on the others.
        let needs_second_scan =
            chunk.has_received_cells && !pass.is_second_scan && pass.participants.len() > 1;
        pass.stage = PassStage::Paused { until: now.mono + rest.min(CHUNK_PAUSE_MAX) };
        pass.is_second_scan = needs_second_scan;
        if needs_second_scan && !is_over {
            return;
        }
        if is_over || until.is_none() {
            let number = pass.number;
            return self.end_pass(now, number, !is_over);
        }
        pass.after = until;
    }

    fn end_pass(&mut self, now: Now, number: u64, is_complete: bool) {
        let Some(pass) = self.repair.pass.take_if(|pass| pass.number == number) else { return };
        for node in pass.participants.iter().filter(|_| is_complete) {
            self.repair.release_deferred_keys(node);
        }
        for node in pass.participants.without(pass.incomplete).iter().filter(|_| is_complete) {
            self.repair.delete_exchange.note(node, pass.started_at);
            if self.repair.due.get(&node).is_some_and(|&earlier| earlier < pass.number) {
                self.repair.due.remove(&node);
                self.record.wanted_mut().repair_pending.remove(node);
            }
        }
        let repair = &mut self.repair;
        repair.next_at = now.mono + repair.pause.min(self.limits.grace / PAUSE_SHARE_OF_GRACE);
        let has_progressed = repair.due.is_empty() || pass.cells > 0;
        repair.pause = if has_progressed { PASS_PAUSE_MIN } else { (repair.pause * 2).min(PASS_PAUSE_MAX) };
        self.end_round();
    }

    /// Ends the round once no peer is due.
    fn end_round(&mut self) {
        if self.repair.due.is_empty() {
            self.repair.is_urgent = false;
            let is_held = self.repair.delete_exchange.is_held();
            if let Some(started_at) = self.repair.round.take().filter(|_| !is_held) {
                self.record.wanted_mut().repaired_at = Some(started_at);
            }
        }
    }
}

/// Whether a key is greater than `after` and at most `until`.
fn is_between(key: &Key, after: Option<&Key>, until: Option<&Key>) -> bool {
    after.is_none_or(|after| key > after) && until.is_none_or(|until| key <= until)
}

/// Whether the position right behind `after` lies in a range.
fn is_within(after: Option<&Key>, range: &LostRange) -> bool {
    let has_begun = range.after.as_ref().is_none_or(|start| after.is_some_and(|after| start <= after));
    let is_passed = after.is_some_and(|after| range.until.as_ref().is_some_and(|until| until <= after));
    has_begun && !is_passed
}

/// Whether a recorded time is ahead of the wall clock by more than the tolerated clock skew.
pub(super) fn is_in_future(at: WallTime, wall: WallTime) -> bool {
    at > wall.saturating_add(HybridClock::SKEW_MAX)
}
