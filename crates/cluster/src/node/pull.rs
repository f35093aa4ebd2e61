//! Filling this node, all of it or a range, from the other replicas.
//!
//! **Promise.** A pull is over only when of each partition whose keys this node holds by default enough other replicas
//! have been read from one end of the range to the other: so many that among them is one of every majority that can
//! have acknowledged a write. What is read is stored durably first.
//!
//! **Mechanism.** Each *source* is read by ranges, one range at a time, a few sources side by side, and at most
//! half of the time. A source that goes away and comes back is read on where it was left; one that comes back with
//! another identity, or turns out to have lost data, from the start. What is written to this node meanwhile arrives as everywhere.
//!
//! A cell whose version is further ahead than this node [believes](crate::HybridClock::believes) is not stored: it would
//! hide later writes. Then the newest state of its key is not known here: the key is noted as
//! [refused](crate::RefusedKeys) in the node's record, which makes it a failure here, and the pull goes on. The record
//! with the key is durable before the pull counts as over. While there is no room for one more refused key, the range
//! that holds it is not read: the source goes on with its other ranges, and gives this one again every
//! [`REFUSED_AGAIN_AFTER`]; the pull is not over then.
//!
//! How many sources are enough depends on the `from` that a key was written with. The count holds for each `from` that
//! is known to be in use: the default of this node, the defaults that the peers report, and each one that a pulled
//! cell carries. A smaller one may need more: with 3 both others, with 5 three of four.
//!
//! Sources that are rebuilding themselves are read as well, but a node that has lost its data does not wait for them to
//! be complete: they have lost what they held, and would wait for this node in turn.
//!
//! **Caveats.** Progress is not durable. A key may have been written with a `from` that no reachable node has as its
//! default and no pulled cell carries. If its copies are only on sources that could not be
//! reached or read, the key is complete only after the pass of anti-entropy that follows. The
//! way out of cells of the far future is in `docs/operations.md`.

use super::Node;
use super::purpose::{AskPurpose, StorePurpose};
use super::ranges::permille;
use crate::{
    Event, Key, LostRange, NodeIndex, NodeSet, Partition, PeerAnswer, PeerRequest, RangeAnswer, RangeRequest,
    StoreRequest, StoreResponse, SyncState,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU8;
use std::time::Duration;
use stdx::{Cell, Hlc, Instant, NodeTag, Now};

/// Sources that are read side by side; each holds one answer in memory.
const SOURCES_MAX: usize = 4;
/// Cells of one source that the store has at once; more could be too much for it, each time anew.
const STORING_MAX: usize = 16;
/// Between a failure of a source or of the store and the next attempt.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Between the end of a source and the next look at its ranges with cells that were refused.
const REFUSED_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Ranges of a source with cells that were refused. Past this, all behind the last of them is read again.
const REFUSED_RANGES_MAX: usize = 64;
/// The longest rest between two ranges.
const REST_MAX: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(super) struct Pull {
    number: u64,
    pub(super) what: Pulled,
    range: LostRange,
    /// By node; the entry of this node itself is not used.
    sources: Vec<Source>,
    /// By `from` in use: the other replicas of each partition; partitions with the same ones once.
    others: BTreeMap<u8, BTreeSet<u64>>,
    /// Each `from` that pulled cells carry, where it is at least 2.
    cell_froms: BTreeSet<u8>,
    /// That were stored.
    pub(super) cells: u64,
}

/// What a pull fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pulled {
    /// A node that has lost its data.
    Node,
    /// A range that a damaged table has lost.
    Range,
}

#[derive(Debug)]
struct Source {
    stage: Stage,
    /// Whom it is read from.
    tag: Option<NodeTag>,
    /// It was believed when its first range was asked for.
    was_believed: bool,
    /// It has not given the range that it was last asked for.
    falters: bool,
    /// What is to be read still, in key order; answers come for the first of them.
    ranges: VecDeque<LostRange>,
    /// What was read and holds cells that were neither stored nor noted as refused, in key order; at most [`REFUSED_RANGES_MAX`].
    refused: VecDeque<LostRange>,
    /// Not before this.
    next_at: Instant,
    /// When the range under way was asked for.
    asked_at: Instant,
}

#[derive(Debug)]
enum Stage {
    Idle,
    Asked,
    /// Cells of an answer are being stored, a few at once.
    Storing {
        waiting: VecDeque<(Key, Cell)>,
        under_way: usize,
        until: Option<Key>,
        /// The answer held cells that were neither stored nor noted as refused.
        has_refused: bool,
    },
    /// Read from end to end.
    Done,
}

impl Source {
    fn new(now: Instant, range: LostRange) -> Self {
        Self {
            stage: Stage::Idle,
            tag: None,
            was_believed: false,
            falters: false,
            ranges: VecDeque::from([range]),
            refused: VecDeque::new(),
            next_at: now,
            asked_at: now,
        }
    }

    /// Up to which key the present range was read.
    fn after(&self) -> Option<&Key> {
        self.ranges.front()?.after.as_ref()
    }

    /// The answer up to `until` was stored, but for what was refused.
    fn end_answer(&mut self, now: Instant, until: Option<Key>, has_refused: bool) {
        let mut range = self.ranges.pop_front().expect("it was asked for");
        if has_refused {
            let end = until.clone().or_else(|| range.until.clone());
            self.read_again(LostRange { after: range.after.take(), until: end });
        }
        if until.is_some() {
            range.after = until;
            self.ranges.push_front(range);
        }
        self.stage = Stage::Idle;
        self.next_at = now + (now - self.asked_at).min(REST_MAX);
        if self.ranges.is_empty() {
            std::mem::swap(&mut self.ranges, &mut self.refused);
            match self.ranges.is_empty() {
                true => self.stage = Stage::Done,
                false => self.next_at = now + REFUSED_AGAIN_AFTER,
            }
        }
    }

    fn read_again(&mut self, range: LostRange) {
        let is_full = self.refused.len() == REFUSED_RANGES_MAX;
        match self.refused.back_mut() {
            Some(last) if is_full || last.until == range.after => {
                last.until = range.until;
            }
            _ => self.refused.push_back(range),
        }
    }

    const fn is_under_way(&self) -> bool {
        matches!(self.stage, Stage::Asked | Stage::Storing { .. })
    }

    const fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done)
    }

    fn retry(&mut self, now: Instant) {
        self.stage = Stage::Idle;
        self.falters = true;
        self.next_at = now + RETRY_AFTER;
    }
}

impl Node {
    /// Begins to read a range from its start; what was pulled before is forgotten.
    pub(super) fn begin_pull(&mut self, now: Now, what: Pulled, range: LostRange) {
        self.pulls += 1;
        let number = self.pulls;
        let source = |_| Source::new(now.mono, range.clone());
        let sources = self.member.layout.nodes().map(source).collect();
        let (others, cell_froms) = (BTreeMap::new(), BTreeSet::new());
        self.pull = Some(Pull { number, what, range, sources, others, cell_froms, cells: 0 });
        self.note_froms();
    }

    /// Goes on with the pull that is under way.
    pub(super) fn advance_pull(&mut self, now: Now) {
        self.note_froms();
        for node in self.peer_nodes() {
            self.forget_outdated_source(now, node);
            if self.source_due(node).is_some_and(|at| at <= now.mono) {
                self.ask_source(now, node);
            }
            self.store_waiting(now, node);
        }
    }

    /// When a source is to be asked for its next range.
    pub(super) fn source_due(&self, node: NodeIndex) -> Option<Instant> {
        let pull = self.pull.as_ref()?;
        let source = &pull.sources[node.as_usize()];
        let under_way = pull.sources.iter().filter(|source| source.is_under_way()).count();
        let is_free = matches!(source.stage, Stage::Idle) && under_way < SOURCES_MAX;
        (is_free && self.is_source(node)).then_some(source.next_at)
    }

    /// When cells of a source are to be stored that wait after a failure.
    pub(super) fn storing_due(&self, node: NodeIndex) -> Option<Instant> {
        let source = &self.pull.as_ref()?.sources[node.as_usize()];
        match &source.stage {
            Stage::Storing { waiting, under_way, .. } if !waiting.is_empty() && *under_way < STORING_MAX => {
                Some(source.next_at)
            }
            _ => None,
        }
    }

    /// A source has answered; `None`: it has not.
    pub(super) fn range_pulled(
        &mut self,
        now: Now,
        number: u64,
        node: NodeIndex,
        answer: Option<PeerAnswer>,
    ) {
        let Some(pull) = self.pull.as_mut().filter(|pull| pull.number == number) else { return };
        let source = &mut pull.sources[node.as_usize()];
        match answer {
            Some(PeerAnswer::Range(RangeAnswer::Cells { entries, until }))
                if until.is_none() || until.as_ref() > source.after() =>
            {
                self.store_pulled(now, node, entries, until);
            }
            _ => source.retry(now.mono),
        }
    }

    /// The store has taken a cell of a source; or has not, and will be asked again.
    pub(super) fn pulled_stored(
        &mut self,
        now: Now,
        number: u64,
        node: NodeIndex,
        cell: (Key, Cell),
        response: &StoreResponse,
    ) {
        let Some(pull) = self.pull.as_mut().filter(|pull| pull.number == number) else { return };
        let source = &mut pull.sources[node.as_usize()];
        let Stage::Storing { waiting, under_way, .. } = &mut source.stage else {
            unreachable!("cells of a source are stored before it is asked again");
        };
        *under_way -= 1;
        match response {
            StoreResponse::Failed(_) => {
                waiting.push_back(cell);
                source.next_at = now.mono + RETRY_AFTER;
            }
            _ => pull.cells += 1,
        }
    }

    /// How far the pull under way is, in thousandths of all keys, and how many cells it has stored.
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
            source.is_done() && source.was_believed
        };
        self.peer_nodes().filter(is_complete).collect()
    }

    /// Whether enough was read of enough sources.
    pub(super) fn is_pulled(&self) -> bool {
        let Some(pull) = &self.pull else { return false };
        let source = |node: NodeIndex| &pull.sources[node.as_usize()];
        let is_rebuilding =
            |node| self.is_source(node) && self.peer(node).sync_state() == SyncState::Rebuilding;
        let read = |node| source(node).is_done();
        let lost: NodeSet = self.peer_nodes().filter(|&node| is_rebuilding(node)).collect();
        let is_complete = |node| read(node) && source(node).was_believed && !lost.contains(node);
        let complete: NodeSet = self.peer_nodes().filter(|&node| is_complete(node)).collect();
        let is_waited_for = |node: &NodeIndex| self.is_source(*node) && !source(*node).falters;
        // What is only damaged may be read again some day, or the others be filled: nothing has to be done without them.
        let excused = if pull.what == Pulled::Node { lost } else { NodeSet::EMPTY };
        lost.iter().all(read)
            && self.peer_nodes().filter(is_waited_for).all(read)
            && pull.others.iter().all(|(&from, partitions)| {
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

    /// Reads again what was read from a source that has another identity now, or is complete only now.
    fn forget_outdated_source(&mut self, now: Now, node: NodeIndex) {
        let is_read_eligible = self.is_source(node) && self.peer(node).sync_state().is_read_eligible();
        let is_rebuilding = self.is_source(node) && self.peer(node).sync_state() == SyncState::Rebuilding;
        let tag = self.peer(node).dialed.as_ref().map(|dialed| dialed.hello.tag);
        let Some(pull) = &mut self.pull else { return };
        let source = &mut pull.sources[node.as_usize()];
        let is_another = tag.is_some() && source.tag.is_some() && tag != source.tag;
        let is_complete_now = source.is_done() && !source.was_believed && is_read_eligible;
        // It was contradicted, and what it gave may lack what it had acknowledged.
        let is_lost_now = source.was_believed && is_rebuilding;
        if !source.is_under_way() && (is_another || is_complete_now || is_lost_now) {
            *source = Source::new(now.mono, pull.range.clone());
        }
    }

    fn ask_source(&mut self, now: Now, node: NodeIndex) {
        let is_read_eligible = self.peer(node).sync_state().is_read_eligible();
        let tag = self.peer(node).dialed.as_ref().map(|dialed| dialed.hello.tag);
        let pull = self.pull.as_mut().expect("there is a source");
        let source = &mut pull.sources[node.as_usize()];
        source.stage = Stage::Asked;
        source.asked_at = now.mono;
        if source.tag.is_none() {
            (source.tag, source.was_believed) = (tag, is_read_eligible);
        }
        let LostRange { after, until } = source.ranges.front().expect("a source that is not done").clone();
        let purpose = AskPurpose::PullRange { pull: pull.number };
        let request = RangeRequest { after, until, cutoff: Hlc::MAX, digest: None, cells: true };
        self.outbox.ask(now.mono, node, purpose, PeerRequest::Range(request));
    }

    fn store_pulled(&mut self, now: Now, node: NodeIndex, entries: Vec<(Key, Cell)>, until: Option<Key>) {
        let (layout, me) = (&self.member.layout, self.member.me);
        let is_own = |(key, cell): &(Key, Cell)| layout.is_replica(me, key, cell.meta.from);
        let own: Vec<_> = entries.into_iter().filter(is_own).collect();
        let nodes = layout.len();
        let froms = own.iter().map(|(_, cell)| cell.meta.from.min(nodes)).filter(|&from| from >= 2);
        let froms: BTreeSet<u8> = froms.collect();
        let (waiting, refused): (Vec<_>, Vec<_>) =
            (own.into_iter()).partition(|(_, cell)| self.member.clock.accepts(cell.meta.version.hlc, now));
        let mut has_refused = false;
        for (key, _) in refused {
            self.outbox.event(Event::CellRefused { node });
            has_refused |= !self.refuse_key(now, &key, node);
        }
        let pull = self.pull.as_mut().expect("there is a source");
        pull.cell_froms.extend(froms);
        let source = &mut pull.sources[node.as_usize()];
        source.falters = false;
        source.stage = Stage::Storing { waiting: waiting.into(), under_way: 0, until, has_refused };
        source.next_at = now.mono;
    }

    /// Has cells of an answer stored, as many as there is room for; ends the range after the last.
    fn store_waiting(&mut self, now: Now, node: NodeIndex) {
        let pull = self.pull.as_mut().expect("a pull is under way");
        let source = &mut pull.sources[node.as_usize()];
        let Stage::Storing { waiting, under_way, until, has_refused } = &mut source.stage else { return };
        while source.next_at <= now.mono
            && *under_way < STORING_MAX
            && let Some((key, cell)) = waiting.pop_front()
        {
            *under_way += 1;
            let (pull, source) = (pull.number, node);
            let purpose = StorePurpose::StorePulled { pull, source, key: key.clone(), cell: cell.clone() };
            self.outbox.store(purpose, StoreRequest::Write { key, cell, hints: NodeSet::EMPTY });
        }
        if *under_way == 0 && waiting.is_empty() {
            let (until, has_refused) = (until.take(), *has_refused);
            source.end_answer(now.mono, until, has_refused);
        }
    }

    /// Takes note of the replicas for each `from` that is in use by now.
    fn note_froms(&mut self) {
        let Some(pull) = &self.pull else { return };
        let in_use = self.default_froms().chain(pull.cell_froms.iter().copied());
        let new: BTreeSet<u8> = in_use.filter(|from| !pull.others.contains_key(from)).collect();
        for from in new {
            let others = self.other_replicas(from);
            self.pull.as_mut().expect("it was just seen").others.insert(from, others);
        }
    }

    /// The other replicas of each partition whose keys this node holds when they are written with this `from`.
    fn other_replicas(&self, from: u8) -> BTreeSet<u64> {
        (0..self.member.layout.partitions())
            .map(|partition| &self.member.layout.preference_list(Partition(partition))[..usize::from(from)])
            .filter(|replicas| replicas.contains(&self.member.me))
            .map(|replicas| replicas.iter().copied().filter(|&node| node != self.member.me))
            .map(|others| others.collect::<NodeSet>().to_bits())
            .collect()
    }

    /// The default `from` of this node and of each peer that has reported one. At least two: with one there would be
    /// no source, and there may be keys written for more.
    fn default_froms(&self) -> impl Iterator<Item = u8> {
        let of_peers = self.peer_nodes().filter_map(|node| self.peer(node).default_from).map(NonZeroU8::get);
        let nodes = self.member.layout.len();
        std::iter::once(self.limits.default_from).chain(of_peers).map(move |from| from.max(2).min(nodes))
    }
}

/// So many of the other replicas of a key hold at least one copy of each write that a majority acknowledged.
const fn sources_needed(from: u8) -> u8 {
    let majority = from / 2 + 1;
    from - majority + 1
}
