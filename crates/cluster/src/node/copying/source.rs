//! One source of a copy, read chunk by chunk.
//!
//! A chunk is requested, checked, and handed to the store. The next one is requested when the store
//! has taken it. The position moves with each chunk, and the durable position when the store says
//! so. A fault of the store moves the position back to the durable one. A request or an answer that
//! is lost only costs time.

use super::super::Node;
use super::super::dispatch::{RequestPurpose, StorePurpose};
use super::cursor::CopyPosition;
use super::{CopyObstacle, RETRY_AFTER, copies_cell};
use crate::{
    CopyAnswer, CopyRequest, Event, IngestRequest, IngestResponse, Key, NodeIndex, NodeRequest, NodeResponse,
    PeerAnswer, StoreFault, StoreRequest, StoreResponse, SwapAttempt,
};
use bytes::Bytes;
use limits::time_at;
use std::time::Duration;
use stdx::{Cell, Instant, NodeTag, Now};

/// Longest pause between two chunks, but for the rate limit.
const CHUNK_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Time between two looks at a store that could not keep up.
const STALL_PAUSE: Duration = Duration::from_millis(500);

/// A source, and the progress of reading it.
#[derive(Debug)]
pub(super) struct CopySource {
    /// Number of the source among all of this process.
    pub(super) number: u64,
    /// Id of its node.
    pub(super) id: NodeTag,
    /// Name of the ingest.
    pub(super) name: Bytes,
    stage: SourceStage,
    /// Position behind the cells that the store has taken.
    pub(super) position: CopyPosition,
    durable: CopyPosition,
    /// The next cells follow the durable position.
    is_rewound: bool,
    next_at: Instant,
    requested_at: Instant,
    pub(super) obstacle: Option<CopyObstacle>,
}

#[derive(Debug)]
enum SourceStage {
    Idle,
    Requested,
    /// The store takes the cells up to this position.
    Storing(CopyPosition),
    /// The store could not keep up. It is asked whether it can before the next request.
    Stalled,
    /// Everything is read and durable.
    Done,
}

impl CopySource {
    /// A source that is read from its durable position.
    pub(super) fn new(
        number: u64,
        id: NodeTag,
        name: Bytes,
        durable: Option<CopyPosition>,
        now: Instant,
    ) -> Self {
        let durable = durable.unwrap_or_default();
        Self {
            number,
            id,
            name,
            stage: if durable.is_end { SourceStage::Done } else { SourceStage::Idle },
            position: durable.clone(),
            durable,
            is_rewound: true,
            next_at: now,
            requested_at: now,
            obstacle: None,
        }
    }

    pub(super) const fn is_done(&self) -> bool {
        matches!(self.stage, SourceStage::Done)
    }

    pub(super) const fn is_busy(&self) -> bool {
        matches!(self.stage, SourceStage::Requested | SourceStage::Storing(_))
    }

    /// Whether the next step is to ask the store whether it keeps up.
    pub(super) const fn is_probe(&self) -> bool {
        matches!(self.stage, SourceStage::Stalled)
    }

    /// Time of the next step, unless an answer is awaited. `receives_at`: time from which the rate
    /// limit permits to receive.
    pub(super) fn due(&self, receives_at: Instant) -> Option<Instant> {
        match self.stage {
            SourceStage::Idle => Some(self.next_at.max(receives_at)),
            SourceStage::Stalled => Some(self.next_at),
            SourceStage::Requested | SourceStage::Storing(_) | SourceStage::Done => None,
        }
    }

    /// The source has failed, or has refused.
    fn retry(&mut self, now: Instant, node: NodeIndex) {
        self.stage = SourceStage::Idle;
        self.next_at = now + RETRY_AFTER;
        self.obstacle = Some(CopyObstacle::Source { node });
    }

    /// Goes back to the durable position.
    fn rewind(&mut self, now: Instant, obstacle: CopyObstacle) {
        self.position = self.durable.clone();
        self.is_rewound = true;
        self.stage = SourceStage::Idle;
        self.next_at = now + RETRY_AFTER;
        self.obstacle = Some(obstacle);
    }

    /// The store has taken the cells that were handed to it.
    fn record_stored(&mut self, now: Instant, is_durable: bool, is_stalled: bool) {
        let SourceStage::Storing(to) = std::mem::replace(&mut self.stage, SourceStage::Idle) else {
            unreachable!("one request of a source is at the store at a time");
        };
        self.is_rewound = false;
        self.position = to;
        self.obstacle = is_stalled.then_some(CopyObstacle::Stalled);
        if is_durable {
            self.durable = self.position.clone();
        }
        if self.position.is_end {
            assert!(is_durable, "the store makes the last cells durable");
            (self.stage, self.obstacle) = (SourceStage::Done, None);
        } else if is_stalled {
            (self.stage, self.next_at) = (SourceStage::Stalled, now + STALL_PAUSE);
        }
    }
}

impl Node {
    /// Carries out the next step of a source.
    pub(super) fn step_copy(&mut self, now: Now, attempt: SwapAttempt, node: NodeIndex) {
        let Some(copy) = self.copies.copies.get_mut(&attempt) else { return };
        if copy.began_at.is_none() {
            copy.began_at = Some(now.mono);
            self.outbox.emit_event(Event::CopyBegan { loser: copy.loser });
        }
        let Some(source) = copy.sources.get_mut(&node) else { return };
        if source.is_probe() {
            let position = source.position.clone();
            return self.hand_to_store(attempt, node, Vec::new(), position);
        }
        source.stage = SourceStage::Requested;
        source.requested_at = now.mono;
        let purpose = RequestPurpose::ReadCopy { attempt, source: source.number };
        let request = CopyRequest { loser: copy.loser, after: source.position.after.clone() };
        self.outbox.request_peer(now.mono, node, purpose, NodeRequest::Copy(request));
    }

    /// Handles a source's answer. `None`: there was no answer.
    pub(in crate::node) fn handle_copy_answer(
        &mut self,
        now: Now,
        node: NodeIndex,
        (attempt, number): (SwapAttempt, u64),
        answer: Option<PeerAnswer>,
    ) {
        let Some(source) = self.copies.source_mut(number) else { return };
        match answer {
            Some(PeerAnswer::Node(NodeResponse::Copied(answer)))
                if is_in_order(&source.position, &answer) =>
            {
                let took = now.mono - source.requested_at;
                source.next_at = now.mono + took.min(CHUNK_PAUSE_MAX).max(answer.pause);
                self.take_copied(now, attempt, node, answer);
            }
            _ => source.retry(now.mono, node),
        }
    }

    /// Hands the cells of an answer to the store, if all of them can be stored or recorded as
    /// refused.
    fn take_copied(&mut self, now: Now, attempt: SwapAttempt, node: NodeIndex, answer: CopyAnswer) {
        let Some(record) = self.adopted_layout().cloned() else { return };
        let Some(swap) = record.swaps().iter().find(|swap| record.attempt_of(swap) == Some(attempt)) else {
            return;
        };
        let CopyAnswer { entries, until, .. } = answer;
        let received: usize = entries.iter().map(size).sum();
        self.charge_received(now, received as u64);
        let copied =
            entries.into_iter().filter(|(key, cell)| copies_cell(&record, swap, key, cell.meta.from));
        let (cells, refused): (Vec<_>, Vec<_>) =
            copied.partition(|(_, cell)| self.member.clock.accepts(cell.meta.version.hlc, now));
        let mut are_recorded = true;
        for (key, _) in &refused {
            self.outbox.emit_event(Event::CellRefused { node });
            let is_recorded = self.refuse_key(now, key, node) && self.record.durable().refused.contains(key);
            are_recorded &= is_recorded;
        }
        if !are_recorded {
            // The position must not be ahead of the record of refused keys.
            let Some(source) = self.copy_source_mut(attempt, node) else { return };
            return source.retry(now.mono, node);
        }
        let Some(source) = self.copy_source_mut(attempt, node) else { return };
        let position = CopyPosition {
            cells: source.position.cells + cells.len() as u64,
            bytes: source.position.bytes + cells.iter().map(size).sum::<usize>() as u64,
            is_end: until.is_none(),
            after: until.or_else(|| source.position.after.clone()),
        };
        self.hand_to_store(attempt, node, cells, position);
    }

    fn copy_source_mut(&mut self, attempt: SwapAttempt, node: NodeIndex) -> Option<&mut CopySource> {
        self.copies.copies.get_mut(&attempt)?.sources.get_mut(&node)
    }

    fn hand_to_store(
        &mut self,
        attempt: SwapAttempt,
        node: NodeIndex,
        cells: Vec<(Key, Cell)>,
        position: CopyPosition,
    ) {
        let Some(source) = self.copy_source_mut(attempt, node) else { return };
        let request = IngestRequest::Append {
            name: source.name.clone(),
            is_rewound: source.is_rewound,
            cells,
            position: position.encode(),
            is_last: position.is_end,
        };
        source.stage = SourceStage::Storing(position);
        let (name, number) = (source.name.clone(), source.number);
        self.copies.busy.insert(name.clone());
        if let Some(known) = &mut self.copies.known {
            known.entry(name.clone()).or_default();
        }
        let purpose = StorePurpose::StoreCopied { source: number, name };
        self.outbox.request_store(purpose, StoreRequest::Ingest(request));
    }

    /// Handles the store's answer to cells of a copy.
    pub(in crate::node) fn handle_copied_stored(
        &mut self,
        now: Now,
        number: u64,
        name: Bytes,
        response: &StoreResponse,
    ) {
        self.copies.busy.remove(&name);
        // A name that has become stale meanwhile can be forgotten now.
        let Some(source) = self.copies.source_mut(number) else { return };
        match response {
            StoreResponse::Ingest(IngestResponse::Appended { is_durable, is_stalled }) => {
                source.record_stored(now.mono, *is_durable, *is_stalled);
            }
            StoreResponse::Failed(StoreFault::Full) => source.rewind(now.mono, CopyObstacle::DiskFull),
            StoreResponse::Failed(_) => source.rewind(now.mono, CopyObstacle::Store),
            response => unreachable!("the store answered an ingest with {response:?}"),
        }
        let durable = source.durable.clone();
        if let Some(known) = &mut self.copies.known {
            known.insert(name, Some(durable));
        }
    }

    /// Charges bytes that were received to the rate limit.
    fn charge_received(&mut self, now: Now, bytes: u64) {
        let Some(limit) = self.copies.rate_limit else { return };
        let cost = time_at(limit.bytes_per_second() as f64, bytes);
        self.copies.receiving.charge(now.mono, cost, Duration::MAX);
        self.copies.receives_at = now.mono + self.copies.receiving.debt(now.mono);
    }
}

/// Size of a cell with its key, in bytes.
pub(super) fn size((key, cell): &(Key, Cell)) -> usize {
    key.as_bytes().len() + cell.value.len()
}

/// Whether the keys of an answer ascend behind the position, up to its end.
fn is_in_order(position: &CopyPosition, answer: &CopyAnswer) -> bool {
    let keys = || answer.entries.iter().map(|(key, _)| key);
    let bounds = position.after.iter().chain(keys());
    let is_within = answer.until.as_ref().is_none_or(|until| {
        Some(until) > position.after.as_ref() && keys().next_back().is_none_or(|last| last <= until)
    });
    bounds.clone().zip(bounds.skip(1)).all(|(before, behind)| before < behind) && is_within
}
