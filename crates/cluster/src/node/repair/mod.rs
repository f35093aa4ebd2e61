//! Anti-entropy: replicas compare what they hold, and exchange what differs.
//!
//! **Promise.** When a pass has ended with a peer, each of the two holds the newest cell of every key that both are
//! to hold, as far as it was written before the pass began, whether anybody reads it or not. No cell goes to a node
//! outside its first `from`, unless that holds an older cell of the key, which it then replaces. Nothing that was
//! deleted comes back: the newest version wins everywhere, and dead cells are exchanged until their grace ends.
//!
//! **Mechanism.** A *pass* goes through the keys in their order, one chunk at a time: this node scans its own
//! chunk and sends to each peer that takes part a digest of what both are to hold in that range. A peer that holds
//! the same says so; one that does not sends its keys with their versions, and what differs is exchanged, a few
//! cells at once (`exchange`). A pass rests after each chunk, so that it is busy for a tenth of the time, and for
//! half of it when it was asked for, is owed after dropped hints, or follows a rebuild.
//!
//! Each peer is *due* from the time that a pass with it is wanted until one has ended that began later, with all
//! exchanged. A *round* makes all peers due: when a third of the grace period has passed since the last,
//! or when asked for. It has ended when nobody is due any more. The time since a round of this process is measured by the
//! monotonic clock. The time of a round of a former process is a wall time; one in the future, which a wrong
//! clock recorded, is reported ([`Event::RoundInFuture`]) and ignored: a round is due then.
//!
//! What cannot be read is passed over: a range that a damaged table of this node has lost, and on a peer that cannot read
//! what it is asked for, a few keys of this node around that, found by halving. The rest of the keys is compared. The
//! pass counts as incomplete with the peers concerned, so they stay due.
//!
//! A link that ends in the middle of a pass may have ended because of what went over it: a value that is too large for
//! a slow link delays the heartbeats until the peer counts as unreachable. So the keys whose exchange was under way are
//! *hindered*: passes go over them, and count as incomplete. When such a pass has come to its end with the peer, the next
//! one tries half of them again, those that have waited longest. So a key that breaks the link keeps no others from
//! being exchanged.
//!
//! **Caveats.** A pass reads all keys of this node. Peers that are not up and believed stay due until they are. Where
//! a key was written for fewer and fewer nodes, one that is not to hold what it holds may keep that, though there
//! is something newer; nobody asks it for the key unless for as many nodes as had held it at first.

mod exchange;
mod exchanged;

use super::purpose::{AskPurpose, StorePurpose};
use super::ranges::{CHUNK, permille};
use super::{Node, RepairKind};
use crate::{
    Event, HybridClock, Key, LostRange, NodeIndex, NodeSet, PeerAnswer, PeerFault, PeerRequest, PeerState,
    RangeAnswer, RangeDigest, RangeRequest, RepairStatus, StoreFault, StoreRequest, StoreResponse,
};
pub(super) use exchange::Transfer;
use exchanged::Exchanged;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use stdx::{Cell, CellMeta, Hlc, Instant, Now, WallTime};

/// A write that began so long ago has reached its replicas or will not without help.
const WRITES_SETTLE: Duration = Duration::from_secs(2);
/// Between the end of a pass and the next, at least.
const PAUSE_MIN: Duration = Duration::from_secs(10);
/// The same, at most; it doubles while passes leave somebody due and nothing is exchanged.
const PAUSE_MAX: Duration = Duration::from_secs(640);
/// No pause is longer than this part of the grace period, within which all must have heard of a delete.
const PAUSE_SHARE_OF_GRACE: u32 = 20;
/// The longest rest between two chunks.
const REST_MAX: Duration = Duration::from_secs(5);
/// How often one thing is tried in a pass.
const TRIES_MAX: u8 = 3;
/// How often a scan of the own store is tried in a pass. Within this time the store knows what is damaged.
const SCANS_MAX: u8 = 10;
/// Between a failed scan of the own store and the next one.
const SCAN_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Keys of one peer that are passed over, since its link ended while they were exchanged.
const HINDERED_MAX: usize = 256;
/// A range that a peer cannot read is halved until it holds at most this many keys of this node; these are passed over.
const PASSED_OVER_MAX: usize = 4;

/// See the module.
#[derive(Debug)]
pub(super) struct Repair {
    /// Peers that a pass is wanted with, and the last pass that began before it was.
    due: BTreeMap<NodeIndex, u64>,
    /// When the round began that is under way.
    round: Option<WallTime>,
    /// When this process last began a round.
    last_round: Option<Now>,
    /// What is due will not wait for long.
    is_urgent: bool,
    next_at: Instant,
    pause: Duration,
    passes: u64,
    pass: Option<Pass>,
    /// The size that is expected of cells that are exchanged, in bytes: near the largest of recent ones.
    cell_bytes: usize,
    exchanged: Exchanged,
    /// Keys whose exchange was under way when the link with a peer ended, oldest first, at most [`HINDERED_MAX`] of each peer.
    hindered: BTreeMap<NodeIndex, VecDeque<Key>>,
}

/// One way through all keys.
#[derive(Debug)]
struct Pass {
    number: u64,
    /// By the horizon: what was deleted by then is exchanged.
    begun_at: WallTime,
    cutoff: Hlc,
    /// Peers that still take part.
    with: NodeSet,
    /// Those of them with whom something could not be exchanged.
    incomplete: NodeSet,
    /// What was compared ends with this key.
    after: Option<Key>,
    stage: Stage,
    /// The chunk is gone through again, since this node had to learn something from it.
    is_second_look: bool,
    /// Scans in a row that the store has failed.
    failed_scans: u8,
    cells: u64,
}

#[derive(Debug)]
enum Stage {
    Resting {
        until: Instant,
    },
    /// `bound`: the start of the damaged range ahead, where the scan ends.
    Scanning {
        begun_at: Instant,
        bound: Option<Key>,
    },
    Comparing(Chunk),
}

/// A part of the keys of this node, as it is compared.
#[derive(Debug)]
struct Chunk {
    begun_at: Instant,
    /// It ends with this key; `None`: with the last of all.
    until: Option<Key>,
    own: BTreeMap<Key, CellMeta>,
    /// Peers that have not answered for all of it, and how far each is.
    open: BTreeMap<NodeIndex, Progress>,
    /// What is to be exchanged; no more is asked for while this is long.
    transfers: VecDeque<Transfer>,
    under_way: usize,
    learned: bool,
}

#[derive(Debug)]
struct Progress {
    after: Option<Key>,
    /// Only what is up to this key is asked for, as the peer could not read all.
    narrowed: Option<Key>,
    tries: u8,
    /// It has answered for a part, and is to be asked for the rest.
    is_to_go_on: bool,
}

impl Progress {
    const fn behind(after: Option<Key>) -> Self {
        Self { after, narrowed: None, tries: 0, is_to_go_on: false }
    }
}

impl Repair {
    /// Nothing is due but what was owed at the end of the former life.
    pub(super) fn new(now: Instant, owed: NodeSet) -> Self {
        Self {
            exchanged: Exchanged::default(),
            hindered: BTreeMap::new(),
            due: owed.iter().map(|node| (node, 0)).collect(),
            round: None,
            last_round: None,
            is_urgent: !owed.is_empty(),
            next_at: now,
            pause: PAUSE_MIN,
            passes: 0,
            pass: None,
            cell_bytes: exchange::CELL_BYTES_FIRST,
        }
    }

    /// Half of the keys that were passed over are tried by the next pass with a peer.
    fn release_hindered(&mut self, node: NodeIndex) {
        if let Some(keys) = self.hindered.get_mut(&node) {
            keys.drain(..keys.len().div_ceil(2));
        }
    }

    fn pass(&mut self, number: u64) -> Option<&mut Pass> {
        self.pass.as_mut().filter(|pass| pass.number == number)
    }

    fn chunk(&mut self, number: u64) -> Option<&mut Chunk> {
        match &mut self.pass(number)?.stage {
            Stage::Comparing(chunk) => Some(chunk),
            Stage::Resting { .. } | Stage::Scanning { .. } => None,
        }
    }
}

impl Chunk {
    /// The end of what a peer was asked for.
    fn asked_until(&self, progress: &Progress) -> Option<Key> {
        progress.narrowed.clone().or_else(|| self.until.clone())
    }

    /// A peer is through with the chunk up to this key; `None`: to the last of all.
    fn pass_peer(&mut self, node: NodeIndex, end: Option<Key>) {
        if end.is_none() || end == self.until {
            self.open.remove(&node);
        } else {
            self.open.insert(node, Progress { is_to_go_on: true, ..Progress::behind(end) });
        }
    }
}

impl Node {
    /// Makes passes with these peers due; durably, since something is owed to them.
    pub(super) fn owe_repair(&mut self, to: NodeSet) {
        if to.is_empty() {
            return;
        }
        let record = self.record.change();
        record.repair_pending = record.repair_pending.union(to);
        self.repair.is_urgent = true;
        self.repair.pause = PAUSE_MIN;
        let passes = self.repair.passes;
        self.repair.due.extend(to.iter().map(|node| (node, passes)));
    }

    /// Begins a round at once.
    pub(super) fn ask_for_round(&mut self, now: Now) {
        self.begin_round(now);
        self.repair.is_urgent = true;
        self.repair.next_at = now.mono;
    }

    /// Goes on with anti-entropy, as far as it can.
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
            Some(&Stage::Resting { until }) if until <= now.mono => self.scan_chunk(now),
            Some(Stage::Comparing(_)) => self.advance_exchange(now),
            _ => {}
        }
    }

    /// When a pass is to go on.
    pub(super) fn repair_due(&self) -> Option<Instant> {
        match self.repair.pass.as_ref()?.stage {
            Stage::Resting { until } => Some(until),
            Stage::Scanning { .. } | Stage::Comparing(_) => None,
        }
    }

    /// The store has scanned a chunk.
    pub(super) fn chunk_scanned(&mut self, now: Now, number: u64, response: StoreResponse) {
        let Some(pass) = self.repair.pass(number) else { return };
        let Stage::Scanning { begun_at, bound } = &mut pass.stage else {
            unreachable!("a pass scans one chunk at a time");
        };
        let (begun_at, bound) = (*begun_at, bound.take());
        let (entries, until) = match response {
            StoreResponse::Scanned { entries, until } => (entries, until.or(bound)),
            StoreResponse::Failed(_) => return self.scan_again(now),
            response => unreachable!("the store answered Scan with {response:?}"),
        };
        pass.failed_scans = 0;
        let with = pass.with;
        let open = with.iter().map(|node| (node, Progress::behind(pass.after.clone())));
        pass.stage = Stage::Comparing(Chunk {
            begun_at,
            until,
            own: entries.into_iter().map(|(key, Cell { meta, .. })| (key, meta)).collect(),
            open: open.collect(),
            transfers: VecDeque::new(),
            under_way: 0,
            learned: false,
        });
        with.iter().for_each(|node| self.ask_range(now, number, node));
    }

    /// A peer has answered for a range; `None`: it has not.
    pub(super) fn range_compared(
        &mut self,
        now: Now,
        number: u64,
        node: NodeIndex,
        answer: Option<PeerAnswer>,
    ) {
        let Some(chunk) = self.repair.chunk(number) else { return };
        let Some(progress) = chunk.open.get_mut(&node) else { return };
        match answer {
            Some(PeerAnswer::Range(RangeAnswer::Same)) => {
                let end = progress.narrowed.take().or_else(|| chunk.until.clone());
                chunk.pass_peer(node, end);
            }
            Some(PeerAnswer::Range(RangeAnswer::Versions { entries, until }))
                if until.is_none() || until > progress.after =>
            {
                let asked_until = progress.narrowed.take().or_else(|| chunk.until.clone());
                let is_short = until.is_some() && (asked_until.is_none() || until < asked_until);
                let end = if is_short { until } else { asked_until };
                let after = progress.after.take();
                chunk.pass_peer(node, end.clone());
                self.compare(now, number, node, after.as_ref(), end.as_ref(), entries);
            }
            Some(PeerAnswer::Failed(PeerFault::Store(StoreFault::Corrupt { .. }))) => {
                self.pass_over(now, number, node);
            }
            _ => {
                progress.tries += 1;
                self.ask_range(now, number, node);
            }
        }
    }

    /// A peer cannot read what it was asked for. It is asked for the first half of that; where that is little, for what
    /// is behind it.
    fn pass_over(&mut self, now: Now, number: u64, node: NodeIndex) {
        let Some(Pass { incomplete, stage: Stage::Comparing(chunk), .. }) = self.repair.pass(number) else {
            return;
        };
        let progress = &chunk.open[&node];
        let (after, until) = (progress.after.clone(), chunk.asked_until(progress));
        let keys: Vec<&Key> =
            chunk.own.keys().filter(|key| is_between(key, after.as_ref(), until.as_ref())).collect();
        if keys.len() > PASSED_OVER_MAX {
            let narrowed = Some(keys[keys.len() / 2 - 1].clone());
            chunk.open.insert(node, Progress { narrowed, ..Progress::behind(after) });
            return self.ask_range(now, number, node);
        }
        incomplete.insert(node);
        chunk.pass_peer(node, until);
        self.outbox.event(Event::RangeSkipped { node });
    }

    /// The store has failed to scan a chunk. Soon it can, or knows what is damaged.
    fn scan_again(&mut self, now: Now) {
        let pass = self.repair.pass.as_mut().expect("a pass is under way");
        pass.failed_scans += 1;
        if pass.failed_scans == SCANS_MAX {
            let number = pass.number;
            return self.end_pass(now, number, false);
        }
        pass.stage = Stage::Resting { until: now.mono + SCAN_AGAIN_AFTER };
    }

    /// For operators.
    pub(super) fn repair_status(&self) -> Option<RepairStatus> {
        let pass = self.repair.pass.as_ref()?;
        let permille = permille(pass.after.as_ref());
        Some(RepairStatus { kind: RepairKind::AntiEntropy, permille, cells: pass.cells })
    }

    fn is_round_due(&self, now: Now) -> bool {
        let interval = self.limits.grace / 3;
        let is_past = |last: WallTime| last.saturating_add(interval) <= now.wall;
        let is_due = match self.repair.last_round {
            // The wall clock goes on while the machine is suspended.
            Some(last) => now.mono - last.mono >= interval || is_past(last.wall),
            None => {
                let repaired_at = self.record.durable().repaired_at;
                repaired_at.is_none_or(|last| is_past(last) || is_in_future(last, now.wall))
            }
        };
        self.peers_count() > 0 && is_due
    }

    /// Reports a recorded time that is ignored because it is in the future; before the first round of this process.
    fn report_round_in_future(&mut self, now: Now) {
        let repaired_at = self.record.durable().repaired_at.filter(|at| is_in_future(*at, now.wall));
        if let (None, Some(at)) = (self.repair.last_round, repaired_at) {
            self.outbox.event(Event::RoundInFuture { at });
        }
    }

    fn begin_round(&mut self, now: Now) {
        self.repair.round = Some(now.wall);
        self.repair.last_round = Some(now);
        let passes = self.repair.passes;
        self.repair.due = self.peer_nodes().map(|node| (node, passes)).collect();
    }

    /// With those who are due and may take part, if there are any.
    fn begin_pass(&mut self, now: Now) {
        let due = self.repair.due.keys().copied();
        let with: NodeSet = due.filter(|&node| self.may_take_part(node)).collect();
        if with.is_empty() {
            return;
        }
        self.repair.passes += 1;
        self.repair.pass = Some(Pass {
            number: self.repair.passes,
            begun_at: self.horizon(now),
            // All that was written so far, once it has had the time to arrive.
            cutoff: Hlc::at(now.wall).max(self.member.clock.issued()),
            with,
            incomplete: NodeSet::EMPTY,
            after: None,
            stage: Stage::Resting { until: now.mono + WRITES_SETTLE },
            is_second_look: false,
            failed_scans: 0,
            cells: 0,
        });
    }

    fn may_take_part(&self, node: NodeIndex) -> bool {
        let peer = self.peer(node);
        let has_room = peer.heartbeat().is_some_and(|heartbeat| !heartbeat.disk_full) && !self.disk_full;
        let is_up = peer.state == PeerState::Up && self.is_usable(node);
        is_up && has_room && peer.sync_state().is_read_eligible()
    }

    /// Scans the next chunk: it begins behind the damaged ranges that the pass has come to, and ends before the next one.
    fn scan_chunk(&mut self, now: Now) {
        let pass = self.repair.pass.as_mut().expect("a pass is under way");
        let number = pass.number;
        let healing = &self.healing;
        let end_of_next = |after: Option<&Key>| {
            let next = healing.damaged_ranges().find(|range| has_come_to(after, range));
            next.map(|range| range.until.clone())
        };
        let mut is_over = false;
        while let Some(until) = end_of_next(pass.after.as_ref()).filter(|_| !is_over) {
            pass.incomplete = pass.incomplete.union(pass.with);
            pass.with.iter().for_each(|node| self.outbox.event(Event::RangeSkipped { node }));
            is_over = until.is_none();
            pass.after = until;
        }
        if is_over {
            return self.end_pass(now, number, true);
        }
        let starts = self.healing.damaged_ranges().filter_map(|range| range.after.clone());
        let bound = starts.filter(|start| is_between(start, pass.after.as_ref(), None)).min();
        pass.stage = Stage::Scanning { begun_at: now.mono, bound: bound.clone() };
        let after = pass.after.clone();
        let request = StoreRequest::Scan { after, until: bound, limit: CHUNK, values: false };
        self.outbox.store(StorePurpose::ScanChunk { pass: number }, request);
    }

    /// Asks a peer whether it holds the same in what is left of the chunk.
    fn ask_range(&mut self, now: Now, number: u64, node: NodeIndex) {
        let is_usable = self.is_usable(node) && self.peer(node).is_reachable();
        let Some(Pass { cutoff, stage: Stage::Comparing(chunk), .. }) = &self.repair.pass else { return };
        let progress = &chunk.open[&node];
        if !is_usable || progress.tries == TRIES_MAX {
            return self.leave_out(node);
        }
        let (after, until) = (progress.after.clone(), chunk.asked_until(progress));
        let is_in_rest = |key: &Key| is_between(key, after.as_ref(), until.as_ref());
        let rest = chunk
            .own
            .iter()
            .filter(|(key, meta)| is_in_rest(key) && self.is_exchanged(now, node, key, meta, *cutoff));
        let digest = Some(RangeDigest::of(rest.map(|(key, meta)| (key.as_bytes(), meta.version))));
        let cutoff = *cutoff;
        let request = PeerRequest::Range(RangeRequest { after, until, cutoff, digest, cells: false });
        self.outbox.ask(now.mono, node, AskPurpose::CompareRange { pass: number }, request);
    }

    /// Goes on without a peer; it stays due.
    fn leave_out(&mut self, node: NodeIndex) {
        if let Some(pass) = &mut self.repair.pass {
            pass.with.remove(node);
            if let Stage::Comparing(chunk) = &mut pass.stage {
                chunk.open.remove(&node);
                chunk.transfers.retain(|transfer| transfer.node != node);
            }
        }
    }

    /// All of the chunk is compared and exchanged.
    fn end_chunk_of_pass(&mut self, now: Now) {
        let is_urgent = self.repair.is_urgent;
        let pass = self.repair.pass.as_mut().expect("a pass is under way");
        let Stage::Comparing(chunk) = &mut pass.stage else { return };
        let busy = now.mono - chunk.begun_at;
        let rest = if is_urgent { busy } else { busy * 9 };
        let until = chunk.until.take();
        let is_over = pass.with.is_empty();
        // What one peer knew others may lack.
        let looks_again = chunk.learned && !pass.is_second_look && pass.with.len() > 1;
        pass.stage = Stage::Resting { until: now.mono + rest.min(REST_MAX) };
        pass.is_second_look = looks_again;
        if looks_again && !is_over {
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
        for node in pass.with.iter().filter(|_| is_complete) {
            self.repair.release_hindered(node);
        }
        for node in pass.with.without(pass.incomplete).iter().filter(|_| is_complete) {
            self.repair.exchanged.note(node, pass.begun_at);
            if self.repair.due.get(&node).is_some_and(|&earlier| earlier < pass.number) {
                self.repair.due.remove(&node);
                self.record.change().repair_pending.remove(node);
            }
        }
        let repair = &mut self.repair;
        repair.next_at = now.mono + repair.pause.min(self.limits.grace / PAUSE_SHARE_OF_GRACE);
        let moved = repair.due.is_empty() || pass.cells > 0;
        repair.pause = if moved { PAUSE_MIN } else { (repair.pause * 2).min(PAUSE_MAX) };
        if repair.due.is_empty() {
            repair.is_urgent = false;
            if let Some(begun_at) = repair.round.take() {
                self.record.change().repaired_at = Some(begun_at);
            }
        }
    }
}

/// Whether a key is behind `after`, and not behind `until`.
fn is_between(key: &Key, after: Option<&Key>, until: Option<&Key>) -> bool {
    after.is_none_or(|after| key > after) && until.is_none_or(|until| key <= until)
}

/// Whether what is right behind `after` lies in a range.
fn has_come_to(after: Option<&Key>, range: &LostRange) -> bool {
    let has_begun = range.after.as_ref().is_none_or(|start| after.is_some_and(|after| start <= after));
    let is_passed = after.is_some_and(|after| range.until.as_ref().is_some_and(|until| until <= after));
    has_begun && !is_passed
}

/// Whether a recorded time is ahead of the wall clock, by more than clocks may differ.
pub(super) fn is_in_future(at: WallTime, wall: WallTime) -> bool {
    at > wall.saturating_add(HybridClock::SKEW_MAX)
}
