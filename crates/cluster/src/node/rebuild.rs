//! Rebuilding: a node that lost its disk is filled from the others.
//!
//! **Promise.** It ends, and the node's reads count, only when of each partition whose keys it holds by default
//! enough other replicas have been read from end to end: so many that among them is one of every majority that can
//! have acknowledged a write. What is read is stored durably first.
//!
//! **Mechanism.** Each *source* is read by ranges, one range at a time, a few sources side by side, and at most
//! half of the time. A source that goes away and comes back is read on where it was left; one that comes back with
//! another identity from the start. What is written to this node meanwhile arrives as everywhere.
//!
//! Sources that are rebuilding themselves are read as well, but a node does not wait for them to be complete:
//! they have lost what they held, and would wait for this node in turn.
//!
//! **Caveats.** Progress is not durable: after a restart all begins again. While enough sources are unreachable,
//! the node goes on without being believed. A key written for more or fewer nodes than the default, of which only a
//! source has a copy that could not be reached or read, is complete only after the pass of anti-entropy that follows.

use super::Node;
use super::purpose::{AskPurpose, StorePurpose};
use super::ranges::permille;
use crate::{
    Key, NodeIndex, NodeSet, Partition, PeerAnswer, PeerRequest, RangeAnswer, RangeRequest, RepairStatus,
    Standing, StoreRequest, StoreResponse,
};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;
use stdx::{Cell, Hlc, Instant, NodeTag, Now};

/// Sources that are read side by side; each holds one answer in memory.
const SOURCES_MAX: usize = 4;
/// Cells of one source that the store has at once; more could be too much for it, each time anew.
const STORING_MAX: usize = 16;
/// Between a failure of a source or of the store and the next attempt.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The longest rest between two ranges.
const REST_MAX: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(super) struct Rebuild {
    /// By node; the entry of this node itself is not used.
    sources: Vec<Source>,
    /// The other replicas of each partition; partitions with the same ones once.
    others: BTreeSet<u64>,
    cells: u64,
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
    /// What was read ends with this key.
    after: Option<Key>,
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
    },
    /// Read from end to end.
    Done,
}

impl Source {
    const fn new(now: Instant) -> Self {
        Self {
            stage: Stage::Idle,
            tag: None,
            was_believed: false,
            falters: false,
            after: None,
            next_at: now,
            asked_at: now,
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
    /// Goes on with the rebuilding, if there is one.
    pub(super) fn advance_rebuild(&mut self, now: Now) {
        if self.record.durable().standing != Standing::Rebuilding {
            self.rebuild = None;
            return;
        }
        if self.rebuild.is_none() {
            let sources = self.member.layout.nodes().map(|_| Source::new(now.mono)).collect();
            self.rebuild = Some(Rebuild { sources, others: self.other_replicas(), cells: 0 });
        }
        for node in self.peer_nodes() {
            self.forget_outdated_source(now, node);
            if self.source_due(node).is_some_and(|at| at <= now.mono) {
                self.ask_source(now, node);
            }
            self.store_waiting(now, node);
        }
        if self.record.wanted().standing == Standing::Rebuilding && self.is_rebuilt() {
            let all: NodeSet = self.peer_nodes().collect();
            let record = self.record.change();
            record.standing = Standing::Settled;
            record.repair_owed = record.repair_owed.union(all);
        }
    }

    /// When a source is to be asked for its next range.
    pub(super) fn source_due(&self, node: NodeIndex) -> Option<Instant> {
        let rebuild = self.rebuild.as_ref()?;
        let source = &rebuild.sources[node.as_usize()];
        let under_way = rebuild.sources.iter().filter(|source| source.is_under_way()).count();
        let is_free = matches!(source.stage, Stage::Idle) && under_way < SOURCES_MAX;
        (is_free && self.is_source(node)).then_some(source.next_at)
    }

    /// When cells of a source are to be stored that wait after a failure.
    pub(super) fn storing_due(&self, node: NodeIndex) -> Option<Instant> {
        let source = &self.rebuild.as_ref()?.sources[node.as_usize()];
        match &source.stage {
            Stage::Storing { waiting, under_way, .. } if !waiting.is_empty() && *under_way < STORING_MAX => {
                Some(source.next_at)
            }
            _ => None,
        }
    }

    /// A source has answered; `None`: it has not.
    pub(super) fn range_pulled(&mut self, now: Now, node: NodeIndex, answer: Option<PeerAnswer>) {
        let Some(rebuild) = &mut self.rebuild else { return };
        let source = &mut rebuild.sources[node.as_usize()];
        match answer {
            Some(PeerAnswer::Range(RangeAnswer::Cells { entries, until }))
                if until.is_none() || until > source.after =>
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
        node: NodeIndex,
        cell: (Key, Cell),
        response: &StoreResponse,
    ) {
        let Some(rebuild) = &mut self.rebuild else { return };
        let source = &mut rebuild.sources[node.as_usize()];
        let Stage::Storing { waiting, under_way, .. } = &mut source.stage else {
            unreachable!("cells of a source are stored before it is asked again");
        };
        *under_way -= 1;
        match response {
            StoreResponse::Failed(_) => {
                waiting.push_back(cell);
                source.next_at = now.mono + RETRY_AFTER;
            }
            _ => rebuild.cells += 1,
        }
    }

    /// For operators.
    pub(super) fn rebuild_status(&self) -> Option<RepairStatus> {
        let rebuild = self.rebuild.as_ref()?;
        let reading = self.peer_nodes().map(|node| &rebuild.sources[node.as_usize()]);
        let furthest_behind = reading.filter(|source| !source.is_done()).map(|source| &source.after).min();
        let permille = furthest_behind.map_or(1_000, |after| permille(after.as_ref()));
        Some(RepairStatus { rebuilding: true, permille, cells: rebuild.cells })
    }

    fn is_source(&self, node: NodeIndex) -> bool {
        let peer = self.peer(node);
        self.drain.is_none()
            && peer.is_reachable()
            && self.is_usable(node)
            && peer.standing() != Standing::Unsettled
    }

    /// Reads again what was read from a source that has another identity now, or is complete only now.
    fn forget_outdated_source(&mut self, now: Now, node: NodeIndex) {
        let is_believed = self.is_source(node) && self.peer(node).standing().is_believed();
        let tag = self.peer(node).dialed.as_ref().map(|dialed| dialed.hello.tag);
        let Some(rebuild) = &mut self.rebuild else { return };
        let source = &mut rebuild.sources[node.as_usize()];
        let is_another = tag.is_some() && source.tag.is_some() && tag != source.tag;
        let is_complete_now = source.is_done() && !source.was_believed && is_believed;
        if !source.is_under_way() && (is_another || is_complete_now) {
            *source = Source::new(now.mono);
        }
    }

    fn ask_source(&mut self, now: Now, node: NodeIndex) {
        let is_believed = self.peer(node).standing().is_believed();
        let tag = self.peer(node).dialed.as_ref().map(|dialed| dialed.hello.tag);
        let rebuild = self.rebuild.as_mut().expect("there is a source");
        let source = &mut rebuild.sources[node.as_usize()];
        source.stage = Stage::Asked;
        source.asked_at = now.mono;
        if source.tag.is_none() {
            (source.tag, source.was_believed) = (tag, is_believed);
        }
        let after = source.after.clone();
        let request = RangeRequest { after, until: None, cutoff: Hlc::MAX, digest: None, cells: true };
        self.outbox.ask(now.mono, node, AskPurpose::PullRange, PeerRequest::Range(request));
    }

    fn store_pulled(&mut self, now: Now, node: NodeIndex, entries: Vec<(Key, Cell)>, until: Option<Key>) {
        let (layout, me) = (&self.member.layout, self.member.me);
        let is_own = |(key, cell): &(Key, Cell)| layout.is_replica(me, key, cell.meta.from);
        let waiting = entries.into_iter().filter(is_own).collect();
        let rebuild = self.rebuild.as_mut().expect("there is a source");
        let source = &mut rebuild.sources[node.as_usize()];
        source.falters = false;
        source.stage = Stage::Storing { waiting, under_way: 0, until };
        source.next_at = now.mono;
    }

    /// Has cells of an answer stored, as many as there is room for; ends the range after the last.
    fn store_waiting(&mut self, now: Now, node: NodeIndex) {
        let rebuild = self.rebuild.as_mut().expect("a rebuild is under way");
        let source = &mut rebuild.sources[node.as_usize()];
        let Stage::Storing { waiting, under_way, until } = &mut source.stage else { return };
        while source.next_at <= now.mono
            && *under_way < STORING_MAX
            && let Some((key, cell)) = waiting.pop_front()
        {
            *under_way += 1;
            let purpose = StorePurpose::StorePulled { source: node, key: key.clone(), cell: cell.clone() };
            self.outbox.store(purpose, StoreRequest::Write { key, cell, hints: NodeSet::EMPTY });
        }
        if *under_way == 0 && waiting.is_empty() {
            let until = until.take();
            source.stage = if until.is_none() { Stage::Done } else { Stage::Idle };
            source.after = until;
            source.next_at = now.mono + (now.mono - source.asked_at).min(REST_MAX);
        }
    }

    fn is_rebuilt(&self) -> bool {
        let Some(rebuild) = &self.rebuild else { return false };
        let source = |node: NodeIndex| &rebuild.sources[node.as_usize()];
        let is_rebuilding = |node| self.is_source(node) && self.peer(node).standing() == Standing::Rebuilding;
        let read = |node| source(node).is_done();
        let complete: NodeSet =
            self.peer_nodes().filter(|&node| read(node) && source(node).was_believed).collect();
        let lost: NodeSet = self.peer_nodes().filter(|&node| is_rebuilding(node)).collect();
        let is_waited_for = |node: &NodeIndex| self.is_source(*node) && !source(*node).falters;
        lost.iter().all(read)
            && self.peer_nodes().filter(is_waited_for).all(read)
            && rebuild.others.iter().map(|&others| NodeSet::from_bits(others)).all(|others| {
                let enough = self.sources_needed().min(others.without(lost).len());
                complete.intersection(others).len() >= enough
            })
    }

    /// The other replicas of each partition that this node is a replica of by default.
    fn other_replicas(&self) -> BTreeSet<u64> {
        let from = usize::from(self.default_from());
        (0..self.member.layout.partitions())
            .map(|partition| &self.member.layout.preference_list(Partition(partition))[..from])
            .filter(|replicas| replicas.contains(&self.member.me))
            .map(|replicas| replicas.iter().copied().filter(|&node| node != self.member.me))
            .map(|others| others.collect::<NodeSet>().to_bits())
            .collect()
    }

    /// So many of the replicas of a key hold at least one copy of each write that a majority acknowledged.
    fn sources_needed(&self) -> u8 {
        let from = self.default_from();
        let majority = from / 2 + 1;
        from - majority + 1
    }

    /// At least two: with one there would be nobody to ask, and there may be keys written for more.
    fn default_from(&self) -> u8 {
        self.limits.default_from.max(2).min(self.member.layout.len())
    }
}
