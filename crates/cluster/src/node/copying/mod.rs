//! Copies: the gainer of a swap reads the cells of which the loser is a replica, and stores them in
//! bulk.
//!
//! **Promise.** This node states that its copy of a [`SwapAttempt`] is complete only when it
//! durably holds all of these cells that the sources held. The sources are the loser, or
//! enough of the replicas that keep the partitions if the loser is dead: for each number of
//! replicas by which this node gains, they include one of every majority. Each source was read from
//! end to end, after it had fenced the PREPARE of the attempt, and the death of the loser. This
//! node had fenced it as well. Nothing that was read for one attempt, or from one node, counts for
//! another.
//!
//! **Mechanism.** The adopted record names the swaps. For each swap in PREPARE or READ-NEW in which
//! this node is the gainer, the sources are read chunk by chunk ([`source`]). A source refuses
//! until it has fenced, and is asked again after a pause; [`serving`] has its side. Cells of every
//! version are read. Writes that are planned after the fence reach this node by themselves.
//!
//! Chunks are ingested without the log. The durable position of each source is kept in a cursor
//! that is named by the attempt and the id of the source ([`cursor`]). So a copy goes on after a
//! restart. A complete source keeps its cursor, by which the node states its copy again. Cursors of
//! other attempts are removed. If the store reports a fault, the source is read again from its
//! durable position.
//!
//! At most [`SOURCES_MAX`] sources are read side by side, each for at most half of the time. The
//! rate limit of the plan bounds the bytes that this node receives for all copies together. The
//! sources bound the bytes that they send, by the pauses in their answers. A full disk and a store
//! that cannot keep up pause the copies. A paused plan begins no swap, and the swaps of the record
//! go on.
//!
//! **Lost data.** If this node rebuilds, or a table is damaged, cells behind the cursors may be
//! lost with it. Then all copies begin again from the first key. The swaps in READ-NEW need no more
//! for their reads than rebuilding and healing restore, since those read the replicas of both sets.
//!
//! **Tombstones.** A copy begins once no tombstone is collected here: see
//! [`Node::deletes_exchanged_to`].
//!
//! A cell whose version is too far ahead of the clock is handled as in a [pull](super::pull). A
//! node with refused keys lacks their newest state, so it is no source until it has them.
//!
//! **Caveats.** A pull and a copy share no code but the rules of their sources: a pull stores
//! single cells in any order, without a durable position. If the loser is dead, all replicas that
//! keep the partitions are read until they suffice, although fewer might.

mod cursor;
mod serving;
mod source;
mod status;

pub(super) use serving::PendingCopy;
pub use status::{CopyObstacle, CopyStatus};

use super::Node;
use super::agreement::{has_enough_others, is_dead};
use super::dispatch::StorePurpose;
use crate::{
    Event, FEATURE_LEVEL_PLANS, IngestRequest, IngestResponse, Key, LayoutEpoch, LayoutRecord, NodeIndex,
    PairSwap, PartitionId, RateLimit, RecordHash, StoreRequest, StoreResponse, SwapAttempt, SwapPhase,
    SyncState,
};
use bytes::Bytes;
use cursor::{CopyName, CopyPosition};
use limits::RateLimiter;
use source::CopySource;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use stdx::{Instant, Now};

/// Number of sources that are read side by side; each holds one answer in memory.
const SOURCES_MAX: usize = 4;
/// Time between a failure of a source or of the store and the next attempt.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Unused time that the rate limit saves up for a burst.
const BURST_TIME: Duration = Duration::from_secs(1);

/// State of the copies of a node, as a gainer and as a source.
#[derive(Debug)]
pub(super) struct Copies {
    /// The record that the copies follow; `None` if they are to be derived again.
    followed: Option<RecordHash>,
    /// The ingests that the store may have, with their durable positions. `None` until they were
    /// read from the store.
    known: Option<BTreeMap<Bytes, Option<CopyPosition>>>,
    /// Names of ingests that are to be forgotten.
    stale: BTreeSet<Bytes>,
    /// Whether cursors that are read count for nothing, because data was lost.
    has_lost_data: bool,
    /// Names with a request at the store. The empty name stands for the reading of the cursors.
    busy: BTreeSet<Bytes>,
    /// Earliest time at which cursors are read or forgotten.
    upkeep_at: Instant,
    copies: BTreeMap<SwapAttempt, SwapCopy>,
    /// Number of sources that were begun.
    sources: u64,
    rate_limit: Option<RateLimit>,
    /// Limits the bytes that this node receives.
    receiving: RateLimiter,
    /// Time at which the debt of `receiving` is paid.
    receives_at: Instant,
    /// Limits the bytes that this node sends.
    sending: RateLimiter,
    /// Requests of each peer that are being answered.
    serving: BTreeMap<NodeIndex, u8>,
    /// Whether the node was rebuilding, and the damaged tables, when they were last looked at.
    is_rebuilding: bool,
    damaged_tables: BTreeSet<u64>,
}

/// The copy of an attempt.
#[derive(Debug)]
struct SwapCopy {
    loser: NodeIndex,
    phase: SwapPhase,
    /// Epoch that the source and this node fence first.
    fence: LayoutEpoch,
    began_at: Option<Instant>,
    sources: BTreeMap<NodeIndex, CopySource>,
    is_complete: bool,
    /// The obstacle that was reported last.
    reported: Option<CopyObstacle>,
}

impl Copies {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            followed: None,
            known: None,
            stale: BTreeSet::new(),
            has_lost_data: false,
            busy: BTreeSet::new(),
            upkeep_at: now,
            copies: BTreeMap::new(),
            sources: 0,
            rate_limit: None,
            receiving: RateLimiter::new(BURST_TIME),
            receives_at: now,
            sending: RateLimiter::new(BURST_TIME),
            serving: BTreeMap::new(),
            is_rebuilding: false,
            damaged_tables: BTreeSet::new(),
        }
    }

    fn source_mut(&mut self, number: u64) -> Option<&mut CopySource> {
        let mut sources = self.copies.values_mut().flat_map(|copy| copy.sources.values_mut());
        sources.find(|source| source.number == number)
    }

    fn busy_sources(&self) -> usize {
        let sources = self.copies.values().flat_map(|copy| copy.sources.values());
        sources.filter(|source| source.is_busy()).count()
    }

    /// Discards all copies and all positions, because cells behind them may be lost.
    fn begin_again(&mut self) {
        self.has_lost_data = true;
        self.copies.clear();
        self.stale.extend(self.known.iter().flat_map(BTreeMap::keys).cloned());
        self.followed = None;
    }

    /// Whether the durable positions are being read or forgotten, or are to be.
    fn needs_upkeep(&self) -> bool {
        let is_waiting = |name: &Bytes| !self.busy.contains(name);
        match self.known {
            None => is_waiting(&Bytes::new()),
            Some(_) => self.stale.iter().any(is_waiting),
        }
    }
}

impl Node {
    /// Advances the copies of this node as a gainer.
    pub(super) fn advance_copies(&mut self, now: Now) {
        let Some(record) = self.adopted_layout().filter(|record| has_plans(record)).cloned() else { return };
        self.note_lost_data();
        self.look_after_cursors(now);
        self.follow_swaps(now, &record);
        while let Some((attempt, node, at)) = self.next_copy_step()
            && at <= now.mono
        {
            self.step_copy(now, attempt, node);
        }
        self.report_obstacles();
        self.complete_copies(now, &record);
    }

    /// Time at which [`Node::advance_copies`] is due.
    pub(super) fn copies_due(&self) -> Option<Instant> {
        let upkeep =
            (self.takes_part_in_plans() && self.copies.needs_upkeep()).then_some(self.copies.upkeep_at);
        upkeep.into_iter().chain(self.next_copy_step().map(|(_, _, at)| at)).min()
    }

    fn takes_part_in_plans(&self) -> bool {
        self.adopted_layout().is_some_and(has_plans)
    }

    /// Has all copies begin again if data was lost since the last call.
    fn note_lost_data(&mut self) {
        let states = [self.record.durable().sync_state, self.record.wanted().sync_state];
        let is_rebuilding = states.contains(&SyncState::Rebuilding);
        let tables: BTreeSet<u64> = self.healing.damaged_tables().collect();
        let copies = &mut self.copies;
        let begins_to_rebuild = is_rebuilding && !copies.is_rebuilding;
        if begins_to_rebuild || !tables.is_subset(&copies.damaged_tables) {
            copies.begin_again();
            self.retract_copies();
        }
        (self.copies.is_rebuilding, self.copies.damaged_tables) = (is_rebuilding, tables);
    }

    /// Reads the cursors once, and has those forgotten that are not needed.
    fn look_after_cursors(&mut self, now: Now) {
        if self.copies.upkeep_at > now.mono || !self.copies.needs_upkeep() {
            return;
        }
        let requests: Vec<(Bytes, IngestRequest)> = match self.copies.known {
            None => vec![(Bytes::new(), IngestRequest::ReadCursors)],
            Some(_) => {
                let waiting = self.copies.stale.difference(&self.copies.busy).cloned();
                waiting.map(|name| (name.clone(), IngestRequest::Forget { name })).collect()
            }
        };
        for (name, request) in requests {
            self.copies.busy.insert(name.clone());
            self.outbox.request_store(StorePurpose::LookAfterCursors { name }, StoreRequest::Ingest(request));
        }
    }

    /// Handles the store's answer to the reading or the removal of cursors.
    pub(super) fn handle_cursors(&mut self, now: Now, name: &Bytes, response: StoreResponse) {
        let copies = &mut self.copies;
        copies.busy.remove(name);
        copies.followed = None;
        match response {
            StoreResponse::Ingest(IngestResponse::Cursors(cursors)) => {
                let known: BTreeMap<_, _> = (cursors.into_iter())
                    .map(|cursor| (cursor.name, CopyPosition::decode(&cursor.position)))
                    .collect();
                if copies.has_lost_data {
                    copies.stale.extend(known.keys().cloned());
                }
                copies.known = Some(known);
            }
            StoreResponse::Ingest(IngestResponse::Forgotten) => {
                copies.stale.remove(name);
                copies.known.as_mut().and_then(|known| known.remove(name));
            }
            StoreResponse::Failed(_) => copies.upkeep_at = now.mono + RETRY_AFTER,
            response => unreachable!("the store answered an ingest with {response:?}"),
        }
    }

    /// Derives the copies and their sources from the adopted record.
    fn follow_swaps(&mut self, now: Now, record: &Arc<LayoutRecord>) {
        let hash = self.adopted_hash();
        let me = self.member.me;
        let copies = &mut self.copies;
        if copies.known.is_none() || copies.followed == hash {
            return;
        }
        copies.followed = hash;
        let rate_limit = record.plan.as_ref().and_then(|plan| plan.rate_limit);
        if std::mem::replace(&mut copies.rate_limit, rate_limit) != rate_limit {
            copies.receiving.clear();
            copies.sending.clear();
            copies.receives_at = now.mono;
        }
        let is_gained = |swap: &&PairSwap| swap.gainer == me && is_copied(swap.phase);
        let gained = record.swaps().iter().filter(is_gained);
        let gained: BTreeMap<SwapAttempt, &PairSwap> =
            gained.filter_map(|swap| Some((record.attempt_of(swap)?, swap))).collect();
        copies.copies.retain(|attempt, _| gained.contains_key(attempt));
        for (attempt, swap) in gained {
            let copy = copies.copies.entry(attempt).or_insert_with(|| SwapCopy {
                loser: swap.loser,
                phase: swap.phase,
                fence: swap.attempt,
                began_at: None,
                sources: BTreeMap::new(),
                is_complete: false,
                reported: None,
            });
            (copy.phase, copy.fence) = (swap.phase, fence_before_copy(record, swap));
            let sources = sources_of(record, swap);
            copy.sources.retain(|node, source| sources.get(node) == Some(&source.id));
            for (node, id) in sources {
                let name = CopyName { attempt, source: id }.encode();
                if !copy.sources.contains_key(&node) && !copies.stale.contains(&name) {
                    copies.sources += 1;
                    let durable = copies.known.as_ref().and_then(|known| known.get(&name)).cloned().flatten();
                    copy.sources.insert(node, CopySource::new(copies.sources, id, name, durable, now.mono));
                }
            }
        }
        let sources = copies.copies.values().flat_map(|copy| copy.sources.values());
        let wanted: BTreeSet<&Bytes> = sources.map(|source| &source.name).collect();
        let known = copies.known.iter().flat_map(BTreeMap::keys);
        copies.stale.extend(known.filter(|name| !wanted.contains(name)).cloned());
        if copies.stale.is_empty() {
            copies.has_lost_data = false;
        }
    }

    /// The next step of a source that is possible, with the time at which it is due.
    fn next_copy_step(&self) -> Option<(SwapAttempt, NodeIndex, Instant)> {
        if self.copies.copies.is_empty() || self.drain.is_some() {
            return None;
        }
        let has_room = self.copies.busy_sources() < SOURCES_MAX;
        let is_open = |(attempt, copy): &(&SwapAttempt, &SwapCopy)| {
            !copy.is_complete && self.copy_obstacle(**attempt, copy).is_none()
        };
        let steps = self.copies.copies.iter().filter(is_open);
        let steps = steps.flat_map(|(attempt, copy)| {
            let due = |(node, source): (&NodeIndex, &CopySource)| {
                let at = source.due(self.copies.receives_at)?;
                let is_possible = source.is_probe() || (has_room && self.can_ask(*node, source));
                is_possible.then_some((*attempt, *node, at))
            };
            copy.sources.iter().filter_map(due).collect::<Vec<_>>()
        });
        steps.min_by_key(|(_, _, at)| *at)
    }

    /// The reason why no source of a copy is asked.
    fn copy_obstacle(&self, attempt: SwapAttempt, copy: &SwapCopy) -> Option<CopyObstacle> {
        if copy.is_complete {
            None
        } else if self.disk_full {
            Some(CopyObstacle::DiskFull)
        } else if !self.is_read_eligible() {
            Some(CopyObstacle::NotReadEligible)
        } else if self.fenced() < copy.fence || !self.keeps_deletes() {
            Some(CopyObstacle::Fence)
        } else if !self.owns_gained_in(attempt) {
            Some(CopyObstacle::Purge)
        } else {
            None
        }
    }

    /// Whether this node owns the places that it gains in `attempt`, and holds nothing of them from
    /// before.
    fn owns_gained_in(&self, attempt: SwapAttempt) -> bool {
        self.adopted_layout().is_some_and(|record| {
            let is_meant = |swap: &&PairSwap| record.attempt_of(swap) == Some(attempt);
            record.swaps().iter().find(is_meant).is_some_and(|swap| self.owns_gained(swap))
        })
    }

    /// Whether a source can be asked: the link to it is usable, and it is the node of the record.
    fn can_ask(&self, node: NodeIndex, source: &CopySource) -> bool {
        self.is_peer(node)
            && self.peer(node).is_reachable()
            && self.is_usable(node)
            && self.peer(node).dialed.as_ref().is_some_and(|dialed| dialed.hello.tag == source.id)
    }

    /// Reports the obstacles of copies that have changed.
    fn report_obstacles(&mut self) {
        let obstacles: Vec<(SwapAttempt, Option<CopyObstacle>)> = (self.copies.copies.iter())
            .map(|(attempt, copy)| (*attempt, self.reported_obstacle(*attempt, copy)))
            .collect();
        for (attempt, obstacle) in obstacles {
            let Some(copy) = self.copies.copies.get_mut(&attempt) else { continue };
            if std::mem::replace(&mut copy.reported, obstacle) != obstacle
                && let Some(by) = obstacle.filter(|by| by.is_reported())
            {
                self.outbox.emit_event(Event::CopyBlocked { loser: copy.loser, by });
            }
        }
    }

    /// The obstacle of a copy, or of one of its sources.
    fn reported_obstacle(&self, attempt: SwapAttempt, copy: &SwapCopy) -> Option<CopyObstacle> {
        let of_sources = || copy.sources.values().find_map(|source| source.obstacle);
        self.copy_obstacle(attempt, copy).or_else(|| of_sources().filter(|_| !copy.is_complete))
    }

    /// States the copies that have become complete.
    fn complete_copies(&mut self, now: Now, record: &LayoutRecord) {
        // Before, the node may still find out that it has lost data.
        if !self.is_read_eligible() {
            return;
        }
        let is_new = |copy: &SwapCopy| !copy.is_complete && copy.sources.values().any(CopySource::is_done);
        let new: Vec<SwapAttempt> = (self.copies.copies.iter())
            .filter(|(attempt, copy)| is_new(copy) && is_covered(record, **attempt, copy))
            .map(|(attempt, _)| *attempt)
            .collect();
        for attempt in new {
            let Some(copy) = self.copies.copies.get_mut(&attempt) else { continue };
            copy.is_complete = true;
            let (cells, bytes) = copy.amount();
            let (loser, took) = (copy.loser, copy.began_at.map_or(Duration::ZERO, |at| now.mono - at));
            self.outbox.emit_event(Event::CopyEnded { loser, cells, bytes, took });
            self.state_copied(now, attempt);
        }
    }
}

impl SwapCopy {
    /// Number of cells and bytes that were read.
    fn amount(&self) -> (u64, u64) {
        let positions = self.sources.values().map(|source| &source.position);
        positions.fold((0, 0), |(cells, bytes), position| (cells + position.cells, bytes + position.bytes))
    }
}

fn has_plans(record: &Arc<LayoutRecord>) -> bool {
    record.feature_level >= FEATURE_LEVEL_PLANS
}

/// Whether the gainer of a swap in this phase needs its copy.
const fn is_copied(phase: SwapPhase) -> bool {
    matches!(phase, SwapPhase::Prepare | SwapPhase::ReadNew)
}

/// The epoch that a source of a swap, and its gainer, fence before the copy: that of the PREPARE,
/// or the newest change of the partitions if the loser is dead. Its death is such a change.
fn fence_before_copy(record: &LayoutRecord, swap: &PairSwap) -> LayoutEpoch {
    let changes = swap.partitions.iter().map(|partition| record.changed[partition.0 as usize]);
    match is_dead(record, swap.loser) {
        true => changes.max().map_or(swap.attempt, |newest| newest.max(swap.attempt)),
        false => swap.attempt,
    }
}

/// The nodes from which the gainer of a swap copies, with their ids: the loser, or the replicas
/// that keep one of the partitions if it is dead.
fn sources_of(record: &LayoutRecord, swap: &PairSwap) -> BTreeMap<NodeIndex, stdx::NodeTag> {
    let with_id = |slot: NodeIndex| Some((slot, record.member(slot)?.node_id?));
    if !is_dead(record, swap.loser) {
        return with_id(swap.loser).into_iter().collect();
    }
    let kept = swap.partitions.iter().flat_map(|partition| {
        let list = record.preference_list(*partition);
        list.iter().take_while(|slot| **slot != swap.gainer).copied()
    });
    let kept: BTreeSet<NodeIndex> = kept.filter(|slot| !is_dead(record, *slot)).collect();
    kept.into_iter().filter_map(with_id).collect()
}

/// Whether enough sources of a copy were read completely.
fn is_covered(record: &LayoutRecord, attempt: SwapAttempt, copy: &SwapCopy) -> bool {
    let is_done = |slot: NodeIndex| copy.sources.get(&slot).is_some_and(CopySource::is_done);
    let swap = record.swaps().iter().find(|swap| record.attempt_of(swap) == Some(attempt));
    swap.is_some_and(|swap| match is_dead(record, swap.loser) {
        true => swap.partitions.iter().all(|partition| has_enough_others(record, swap, *partition, is_done)),
        false => is_done(swap.loser),
    })
}

/// Whether the gainer of a swap copies a cell of `key` with this `from`: the loser is a replica
/// of it. The gainer may be one too, and lack the cell. A read that has asked the loser asks the
/// gainer after the swap, and returns cells with any `from`.
fn copies_cell(record: &LayoutRecord, swap: &PairSwap, key: &Key, from: u8) -> bool {
    let partition = PartitionId::of(key.as_bytes(), record.partitions());
    if swap.partitions.binary_search(&partition).is_err() {
        return false;
    }
    let list = record.preference_list(partition);
    let index = |slot| list.iter().position(|other| *other == slot).map(|index| index as u8);
    match (index(swap.loser), index(swap.gainer)) {
        (Some(loser), Some(gainer)) => loser < gainer && from > loser,
        _ => false,
    }
}
