//! Pulls: filling this node, or a range of its keys, from the other replicas.
//!
//! **Promise.** A pull is complete only when enough other replicas of every partition have been
//! read over the whole range. The partitions are those whose keys this node holds by default.
//! Enough means that the replicas include one of every majority that can have acknowledged a write.
//! The cells read are durable on this node first.
//!
//! **Mechanism.** Each *source* is read range by range, one range at a time. A few sources are read
//! in parallel, each for at most half of the time. A source that disconnects and returns is
//! continued where it was left. A source that returns with another identity, or turns out to have
//! lost data, is read from the start. Writes that arrive meanwhile are stored as usual.
//!
//! A cell whose version is further ahead than the [version clock](crate::HybridClock) accepts is
//! not stored: it would hide later writes. The newest state of its key is then unknown here. So the
//! key is recorded as [refused](crate::RefusedKeys) in the node record, reads of it fail on this
//! node, and the pull continues. The record with the key is durable before the pull counts as
//! complete. If the record has no room for another refused key, the range that holds the key stays
//! unread. The source continues with its other ranges and is asked for this one every
//! [`REFUSED_RETRY_AFTER`]; the pull is not complete meanwhile.
//!
//! The number of sources that are needed depends on the `from` with which a key was written. The
//! count must hold for every `from` that is known to be in use: the default of this node, the
//! defaults that peers report, and each `from` that a pulled cell carries. A smaller `from` may
//! need a larger share of the other replicas: both of 2 with `from` 3, three of 4 with `from` 5.
//!
//! The replicas that are counted are those of one layout: the pull begins again if a partition that
//! this node holds changes (`layout_change`).
//!
//! Sources that are rebuilding are read as well. But a node that has lost its data does not wait
//! for them to be complete: they have lost their data too, and would wait for this node in turn.
//!
//! **Caveats.** Progress is not durable. A key may have been written with a `from` that no
//! reachable node has as its default and that no pulled cell carries. If its copies are only on
//! sources that could not be read, the key is complete only after the following pass of
//! anti-entropy. `docs/operations.md` describes how to remove cells with versions in the far
//! future.

use super::Node;
use super::dispatch::{RequestPurpose, StorePurpose};
use super::ranges::permille;
use crate::quorum::{
    ReplicaSets, has_other_replicas, replica_count, replica_count_with_others, sources_needed,
};
use crate::replica_set::ReplicaSet;
use crate::{
    Event, Key, Layout, LostRange, NodeIndex, NodeRequest, NodeResponse, NodeSet, PartitionId, PeerAnswer,
    RangeAnswer, RangeRequest, ReplicaRequest, StoreResponse, SyncState,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU8;
use std::time::Duration;
use stdx::{Cell, Hlc, Instant, NodeTag, Now};

/// Number of sources that are read in parallel; each holds one answer in memory.
const SOURCES_MAX: usize = 4;
/// Number of cells of one source that are being stored at a time. A larger batch could exceed the
/// capacity of the store at every attempt.
const STORING_MAX: usize = 16;
/// Time between a failure of a source or of the store and the next attempt.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Time between the end of a source and the next attempt of its ranges with refused cells.
const REFUSED_RETRY_AFTER: Duration = Duration::from_secs(10);
/// Maximum number of ranges of a source with refused cells. When it is reached, the last range is
/// extended to the end of each further one.
const REFUSED_RANGES_MAX: usize = 64;
/// Longest pause between two ranges.
const RANGE_PAUSE_MAX: Duration = Duration::from_secs(1);

/// State of a pull.
#[derive(Debug)]
pub(super) struct Pull {
    number: u64,
    pub(super) target: PullTarget,
    range: LostRange,
    /// Sources by slot. The entries of this node and of free slots are unused.
    sources: Vec<Source>,
    /// For each `from` in use: the distinct sets of other replicas of the partitions that this node
    /// holds, as bits of a [`NodeSet`].
    replica_groups: BTreeMap<u8, BTreeSet<u64>>,
    /// Every `from` of at least 2 that a pulled cell carries.
    cell_froms: BTreeSet<u8>,
    /// Number of cells stored.
    pub(super) cells: u64,
}

/// Reason for a pull: the data that it restores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PullTarget {
    /// All data of a node that has lost it.
    Node,
    /// A range that a damaged table has lost.
    Range,
}

#[derive(Debug)]
struct Source {
    stage: SourceStage,
    /// Identity of the node that is being read.
    tag: Option<NodeTag>,
    /// The node was read-eligible when its first range was requested.
    was_read_eligible: bool,
    /// The last range request has failed.
    is_failing: bool,
    /// Ranges that are still to be read, in key order. An answer is for the first of them.
    ranges_left: VecDeque<LostRange>,
    /// Ranges that were read and hold cells that were neither stored nor recorded as refused, in
    /// key order. At most [`REFUSED_RANGES_MAX`].
    refused_ranges: VecDeque<LostRange>,
    /// Earliest time of the next request, or of the next store attempt.
    next_at: Instant,
    /// Time at which the current range was requested.
    requested_at: Instant,
}

#[derive(Debug)]
enum SourceStage {
    Idle,
    Requested,
    /// Cells of an answer are being stored, a few at a time.
    Storing {
        waiting: VecDeque<(Key, Cell)>,
        in_flight: usize,
        until: Option<Key>,
        /// The answer holds cells that were neither stored nor recorded as refused.
        has_refused: bool,
    },
    /// The source was read from end to end.
    Done,
}

impl Source {
    fn new(now: Instant, range: LostRange) -> Self {
        Self {
            stage: SourceStage::Idle,
            tag: None,
            was_read_eligible: false,
            is_failing: false,
            ranges_left: VecDeque::from([range]),
            refused_ranges: VecDeque::new(),
            next_at: now,
            requested_at: now,
        }
    }

    /// Last key that was read of the current range.
    fn after(&self) -> Option<&Key> {
        self.ranges_left.front()?.after.as_ref()
    }

    /// Ends an answer whose cells up to `until` were stored, except for refused ones.
    fn end_answer(&mut self, now: Instant, until: Option<Key>, has_refused: bool) {
        let mut range = self.ranges_left.pop_front().expect("the range was requested");
        if has_refused {
            let end = until.clone().or_else(|| range.until.clone());
            self.defer_range(LostRange { after: range.after.take(), until: end });
        }
        if until.is_some() {
            range.after = until;
            self.ranges_left.push_front(range);
        }
        self.stage = SourceStage::Idle;
        self.next_at = now + (now - self.requested_at).min(RANGE_PAUSE_MAX);
        if self.ranges_left.is_empty() {
            std::mem::swap(&mut self.ranges_left, &mut self.refused_ranges);
            match self.ranges_left.is_empty() {
                true => self.stage = SourceStage::Done,
                false => self.next_at = now + REFUSED_RETRY_AFTER,
            }
        }
    }

    fn defer_range(&mut self, range: LostRange) {
        let is_full = self.refused_ranges.len() == REFUSED_RANGES_MAX;
        match self.refused_ranges.back_mut() {
            Some(last) if is_full || last.until == range.after => {
                last.until = range.until;
            }
            _ => self.refused_ranges.push_back(range),
        }
    }

    const fn is_busy(&self) -> bool {
        matches!(self.stage, SourceStage::Requested | SourceStage::Storing { .. })
    }

    const fn is_done(&self) -> bool {
        matches!(self.stage, SourceStage::Done)
    }

    fn retry(&mut self, now: Instant) {
        self.stage = SourceStage::Idle;
        self.is_failing = true;
        self.next_at = now + RETRY_AFTER;
    }
}

impl Node {
    /// Begins a pull of a range from its start, and discards the previous pull.
    pub(super) fn begin_pull(&mut self, now: Now, target: PullTarget, range: LostRange) {
        self.pulls += 1;
        let number = self.pulls;
        let source = |_| Source::new(now.mono, range.clone());
        let sources = (0..self.member.layout.slot_count()).map(source).collect();
        let (replica_groups, cell_froms) = (BTreeMap::new(), BTreeSet::new());
        self.pull = Some(Pull { number, target, range, sources, replica_groups, cell_froms, cells: 0 });
        self.update_replica_groups();
    }

    /// Has the current pull follow a new layout. It begins anew if partitions that it takes into
    /// account have changed, or if nodes are gone from the `former` layout.
    pub(super) fn follow_in_pull(&mut self, now: Now, former: &Layout, departed: NodeSet) {
        let is_kept = departed.is_empty() && !self.is_pull_affected(former);
        let slots = self.member.layout.slot_count();
        let Some(pull) = &mut self.pull else { return };
        if is_kept {
            let range = pull.range.clone();
            let slots = slots.max(pull.sources.len());
            pull.sources.resize_with(slots, || Source::new(now.mono, range.clone()));
            // Replicas of all nodes may be more than before.
            pull.replica_groups.clear();
            return;
        }
        let (target, range) = (pull.target, pull.range.clone());
        self.begin_pull(now, target, range);
    }

    /// Whether a partition has changed since the former layout that this node holds by one of the
    /// two, with a `from` that the current pull takes into account.
    fn is_pull_affected(&self, former: &Layout) -> bool {
        let (layout, me) = (&self.member.layout, self.member.me);
        let is_held = |partition, from| {
            layout.is_intended_replica(me, partition, from) || former.is_intended_replica(me, partition, from)
        };
        let froms: Vec<u8> = self.pull.iter().flat_map(|pull| pull.replica_groups.keys().copied()).collect();
        (0..layout.partitions()).map(PartitionId).any(|partition| {
            layout.changed(partition) > former.changed(partition)
                && froms.iter().any(|from| is_held(partition, *from))
        })
    }

    /// Advances the current pull.
    pub(super) fn advance_pull(&mut self, now: Now) {
        self.update_replica_groups();
        for node in self.peer_nodes() {
            self.reset_outdated_source(now, node);
            if self.source_due(node).is_some_and(|at| at <= now.mono) {
                self.request_range(now, node);
            }
            self.store_waiting_cells(now, node);
        }
    }

    /// Time at which the next range of a source is due to be requested.
    pub(super) fn source_due(&self, node: NodeIndex) -> Option<Instant> {
        let pull = self.pull.as_ref()?;
        let source = &pull.sources[node.as_usize()];
        let in_flight = pull.sources.iter().filter(|source| source.is_busy()).count();
        let is_free = matches!(source.stage, SourceStage::Idle) && in_flight < SOURCES_MAX;
        (is_free && self.is_source(node)).then_some(source.next_at)
    }

    /// Time at which waiting cells of a source are due to be stored.
    pub(super) fn storing_due(&self, node: NodeIndex) -> Option<Instant> {
        let source = &self.pull.as_ref()?.sources[node.as_usize()];
        match &source.stage {
            SourceStage::Storing { waiting, in_flight, .. }
                if !waiting.is_empty() && *in_flight < STORING_MAX =>
            {
                Some(source.next_at)
            }
            _ => None,
        }
    }

    /// Handles a source's answer to a range request. `None`: there was no answer.
    pub(super) fn handle_source_answer(
        &mut self,
        now: Now,
        number: u64,
        node: NodeIndex,
        answer: Option<PeerAnswer>,
    ) {
        let Some(pull) = self.pull.as_mut().filter(|pull| pull.number == number) else { return };
        let source = &mut pull.sources[node.as_usize()];
        match answer {
            Some(PeerAnswer::Node(NodeResponse::Range(RangeAnswer::Cells { entries, until })))
                if until.is_none() || until.as_ref() > source.after() =>
            {
                self.begin_storing(now, node, entries, until);
            }
            _ => source.retry(now.mono),
        }
    }

    /// Handles the store's answer to a write of a pulled cell. A failed write is retried.
    pub(super) fn handle_pulled_cell_stored(
        &mut self,
        now: Now,
        number: u64,
        node: NodeIndex,
        cell: (Key, Cell),
        response: &StoreResponse,
    ) {
        let Some(pull) = self.pull.as_mut().filter(|pull| pull.number == number) else { return };
        let source = &mut pull.sources[node.as_usize()];
        let SourceStage::Storing { waiting, in_flight, .. } = &mut source.stage else {
            unreachable!("cells of a source are stored before it is asked again");
        };
        *in_flight -= 1;
        match response {
            StoreResponse::Failed(_) => {
                waiting.push_back(cell);
                source.next_at = now.mono + RETRY_AFTER;
            }
            _ => pull.cells += 1,
        }
    }

    /// Progress of the current pull in thousandths of all keys, and the number of cells that it has
    /// stored.
    pub(super) fn pull_progress(&self) -> Option<(u16, u64)> {
        let pull = self.pull.as_ref()?;
        let reading = self.peer_nodes().map(|node| &pull.sources[node.as_usize()]);
        let furthest_behind = reading.filter(|source| !source.is_done()).map(Source::after).min();
        Some((furthest_behind.map_or(1_000, permille), pull.cells))
    }

    /// Nodes that were read from end to end and had not lost their own data.
    pub(super) fn complete_sources(&self) -> NodeSet {
        let Some(pull) = &self.pull else { return NodeSet::EMPTY };
        let is_complete = |node: &NodeIndex| {
            let source = &pull.sources[node.as_usize()];
            source.is_done() && source.was_read_eligible
        };
        self.peer_nodes().filter(is_complete).collect()
    }

    /// Whether enough sources have been read completely.
    pub(super) fn is_pull_complete(&self) -> bool {
        let Some(pull) = &self.pull else { return false };
        let source = |node: NodeIndex| &pull.sources[node.as_usize()];
        let is_rebuilding =
            |node| self.is_source(node) && self.peer(node).sync_state() == SyncState::Rebuilding;
        let read = |node| source(node).is_done();
        let lost: NodeSet = self.peer_nodes().filter(|&node| is_rebuilding(node)).collect();
        let is_complete = |node| read(node) && source(node).was_read_eligible && !lost.contains(node);
        let complete: NodeSet = self.peer_nodes().filter(|&node| is_complete(node)).collect();
        let is_awaited = |node: &NodeIndex| self.is_source(*node) && !source(*node).is_failing;
        // A damaged range may become readable again, or the other nodes may be filled. So healing
        // waits for the rebuilding sources.
        let excused = if pull.target == PullTarget::Node { lost } else { NodeSet::EMPTY };
        lost.iter().all(read)
            && self.peer_nodes().filter(is_awaited).all(read)
            && pull.replica_groups.iter().all(|(&from, partitions)| {
                partitions.iter().map(|&others| NodeSet::from_bits(others)).all(|others| {
                    let enough = sources_needed(from).min(others.without(excused).len());
                    complete.intersection(others).len() >= enough
                })
            })
    }

    fn is_source(&self, node: NodeIndex) -> bool {
        let peer = self.peer(node);
        self.drain.is_none()
            && peer.is_reachable()
            && self.is_usable(node)
            && peer.sync_state() != SyncState::Unsettled
    }

    /// Starts a source again whose identity has changed, that has lost data, or that became
    /// read-eligible only after it was read.
    fn reset_outdated_source(&mut self, now: Now, node: NodeIndex) {
        let is_read_eligible = self.is_source(node) && self.peer(node).sync_state().is_read_eligible();
        let is_rebuilding = self.is_source(node) && self.peer(node).sync_state() == SyncState::Rebuilding;
        let tag = self.peer(node).dialed.as_ref().map(|dialed| dialed.hello.tag);
        let Some(pull) = &mut self.pull else { return };
        let source = &mut pull.sources[node.as_usize()];
        let is_another = tag.is_some() && source.tag.is_some() && tag != source.tag;
        let is_complete_now = source.is_done() && !source.was_read_eligible && is_read_eligible;
        // A peer contradicted its data directory, so the ranges read from it may lack writes that
        // it had acknowledged.
        let has_lost_data = source.was_read_eligible && is_rebuilding;
        if !source.is_busy() && (is_another || is_complete_now || has_lost_data) {
            *source = Source::new(now.mono, pull.range.clone());
        }
    }

    fn request_range(&mut self, now: Now, node: NodeIndex) {
        let is_read_eligible = self.peer(node).sync_state().is_read_eligible();
        let tag = self.peer(node).dialed.as_ref().map(|dialed| dialed.hello.tag);
        let pull = self.pull.as_mut().expect("a source belongs to a pull");
        let source = &mut pull.sources[node.as_usize()];
        source.stage = SourceStage::Requested;
        source.requested_at = now.mono;
        if source.tag.is_none() {
            (source.tag, source.was_read_eligible) = (tag, is_read_eligible);
        }
        let LostRange { after, until } =
            source.ranges_left.front().expect("a source that is not done").clone();
        let purpose = RequestPurpose::PullRange { pull: pull.number };
        let request = RangeRequest { after, until, cutoff: Hlc::MAX, digest: None, cells: true };
        self.outbox.request_peer(now.mono, node, purpose, NodeRequest::Range(request));
    }

    fn begin_storing(&mut self, now: Now, node: NodeIndex, entries: Vec<(Key, Cell)>, until: Option<Key>) {
        let (layout, me) = (&self.member.layout, self.member.me);
        let is_own = |(key, cell): &(Key, Cell)| layout.is_intended_holder(me, key, cell.meta.from);
        let own: Vec<_> = entries.into_iter().filter(is_own).collect();
        let nodes = layout.len();
        let froms = own
            .iter()
            .map(|(_, cell)| replica_count(cell.meta.from, nodes))
            .filter(|&from| has_other_replicas(from));
        let froms: BTreeSet<u8> = froms.collect();
        let (waiting, refused): (Vec<_>, Vec<_>) =
            (own.into_iter()).partition(|(_, cell)| self.member.clock.accepts(cell.meta.version.hlc, now));
        let mut has_refused = false;
        for (key, _) in refused {
            self.outbox.emit_event(Event::CellRefused { node });
            has_refused |= !self.refuse_key(now, &key, node);
        }
        let pull = self.pull.as_mut().expect("a source belongs to a pull");
        pull.cell_froms.extend(froms);
        let source = &mut pull.sources[node.as_usize()];
        source.is_failing = false;
        source.stage = SourceStage::Storing { waiting: waiting.into(), in_flight: 0, until, has_refused };
        source.next_at = now.mono;
    }

    /// Sends waiting cells of an answer to the store, within the limit. Ends the answer after the
    /// last one.
    fn store_waiting_cells(&mut self, now: Now, node: NodeIndex) {
        let pull = self.pull.as_mut().expect("a pull is running");
        let source = &mut pull.sources[node.as_usize()];
        let SourceStage::Storing { waiting, in_flight, until, has_refused } = &mut source.stage else {
            return;
        };
        while source.next_at <= now.mono
            && *in_flight < STORING_MAX
            && let Some((key, cell)) = waiting.pop_front()
        {
            *in_flight += 1;
            let (pull, source) = (pull.number, node);
            let purpose =
                StorePurpose::StorePulledCell { pull, source, key: key.clone(), cell: cell.clone() };
            self.outbox.request_store(purpose, ReplicaRequest::Write { key, cell, hints: NodeSet::EMPTY });
        }
        if *in_flight == 0 && waiting.is_empty() {
            let (until, has_refused) = (until.take(), *has_refused);
            source.end_answer(now.mono, until, has_refused);
        }
    }

    /// Adds the replica sets of every `from` that has come into use.
    fn update_replica_groups(&mut self) {
        let Some(pull) = &self.pull else { return };
        let in_use = self.default_froms().chain(pull.cell_froms.iter().copied());
        let new: BTreeSet<u8> = in_use.filter(|from| !pull.replica_groups.contains_key(from)).collect();
        for from in new {
            let groups = self.other_replicas(from);
            self.pull.as_mut().expect("checked above").replica_groups.insert(from, groups);
        }
    }

    /// The sets of other replicas of the partitions that this node holds when keys are written with
    /// this `from`. While a swap runs, they are those of both of its sets that this node is in.
    fn other_replicas(&self, from: u8) -> BTreeSet<u64> {
        let (layout, me) = (&self.member.layout, self.member.me);
        let sets = (0..layout.partitions()).map(PartitionId).flat_map(|partition| {
            let sets = ReplicaSets::of(replica_count(from, layout.len()), layout.swapped_replicas(partition));
            let list = layout.preference_list(partition);
            let nodes = |set: ReplicaSet| {
                let members = (0..).zip(list).filter(move |(index, _)| set.contains(*index));
                members.map(|(_, node)| *node).collect::<NodeSet>()
            };
            [nodes(sets.before()), nodes(sets.after())]
        });
        let sets = sets.filter(|replicas| replicas.contains(me));
        sets.map(|replicas| replicas.without([me].into_iter().collect()).to_bits()).collect()
    }

    /// The default `from` of this node and of each peer that has reported one. It is at least two:
    /// a `from` of one has no other replica as a source, and keys may have been written with a
    /// greater one.
    fn default_froms(&self) -> impl Iterator<Item = u8> {
        let of_peers = self.peer_nodes().filter_map(|node| self.peer(node).default_from).map(NonZeroU8::get);
        let nodes = self.member.layout.len();
        std::iter::once(self.limits.default_from)
            .chain(of_peers)
            .map(move |from| replica_count_with_others(from, nodes))
    }
}
