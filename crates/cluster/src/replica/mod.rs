//! The replica: carries out requests of other nodes on the local store.
//!
//! **Promise.** Each request over a link that is still open gets one answer, and no answer says
//! that something is stored before the store reported it durable. A node that is not read-eligible
//! says so instead of answering reads. A version too far ahead of this node's clock is refused.
//! Hints that exceed the bound of the ledger are left out, and counted there as dropped.
//!
//! **Mechanism.** A request becomes one [`StoreRequest`]; a slab maps its id to the link and
//! message to answer. The ids of these store requests have their highest bit set, which
//! distinguishes them from all others of the same state machine.
//!
//! A request for a part of a scan becomes a request for a page (`scan_partitions`).
//!
//! If a coordinator requests a key that this node has [refused](crate::RefusedKeys), or a page that
//! covers one, the answer is that this node is not read-eligible. A peer's `Node` reads cells in
//! order to move them, and gets the stored cells.
//!
//! Requests whose deadline has passed are dropped: the store is told the deadline. If a coordinator
//! drives the replica, a write that would wait too long is refused as [`PeerFault::Busy`]. Requests
//! between `Node`s are paced by the requesters.
//!
//! **Caveats.** Requests of a link that has ended are still carried out; their answers are dropped.

mod scan_partitions;

use crate::local_writes::LocalWrites;
use crate::refused::PageScope;
use crate::{
    Destination, Effect, Event, Key, LinkId, Member, Message, MessageId, NodeSet, Origin, PeerAnswer,
    PeerFault, PeerRequest, RangeDigest, RefusedKeys, ScanAnswer, ScanTask, StoreId, StoreRequest,
    StoreResponse, hint_bytes,
};
use scan_partitions::ScanPartitions;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use stdx::{Cell, Now, Version};

/// Greatest number of requests in flight per link; one more is refused as [`PeerFault::Busy`].
const LINK_REQUESTS_MAX: u32 = 16_384;
/// Greatest size of keys and values in flight per link, in bytes. Further requests are refused
/// alike, except for one that is alone.
const LINK_BYTES_MAX: usize = 128 << 20;
/// Greatest number of pages in flight per link; each may be larger than all other requests are.
const LINK_PAGES_MAX: u32 = 64;
/// Greatest number of requests in flight for all links, ended ones included.
const REQUESTS_MAX: usize = 1 << 18;
/// Each request in flight has an index in the slab.
const _: () = assert!(REQUESTS_MAX as u64 <= Jobs::INDEX_MASK + 1);
/// Set in the store ids of a replica, and in no others.
const REPLICA_BIT: u64 = 1 << 63;

/// Carries out requests of other nodes. Each state machine that accepts links has one.
#[derive(Debug)]
pub(crate) struct Replica {
    member: Member,
    jobs: Jobs,
    links: BTreeMap<LinkId, LinkLoad>,
    scan_partitions: ScanPartitions,
}

/// Environment of a replica while it handles a request.
pub(crate) struct ReplicaContext<'a> {
    pub(crate) now: Now,
    /// Whether this node is read-eligible.
    pub(crate) read_eligible: bool,
    /// Keys for which this node's reads do not count; `None` if the requesters are nodes that move
    /// cells.
    pub(crate) refused: Option<&'a RefusedKeys>,
    /// Writes in flight at the local store, and the longest wait of a write for it; `None`: not
    /// measured.
    pub(crate) writes: Option<(&'a mut LocalWrites, Duration)>,
    pub(crate) effects: &'a mut VecDeque<Effect>,
}

/// Source, id and time limit of a request.
#[derive(Clone, Copy)]
pub(crate) struct RequestHeader {
    pub(crate) origin: Origin,
    pub(crate) id: MessageId,
    pub(crate) within: Option<Duration>,
}

impl ReplicaContext<'_> {
    /// Whether a write would wait longer than it may, or longer than its requester does.
    fn is_busy(&self, within: Option<Duration>) -> bool {
        self.writes.as_ref().is_some_and(|(writes, wait_max)| {
            !writes.admits(within.map_or(*wait_max, |within| within.min(*wait_max)))
        })
    }

    fn begin_write(&mut self, bytes: usize) {
        if let Some((writes, _)) = &mut self.writes {
            writes.begin(self.now.mono, bytes);
        }
    }
}

/// Requests in flight for a link.
#[derive(Clone, Copy, Debug, Default)]
struct LinkLoad {
    requests: u32,
    bytes: usize,
    pages: u32,
}

/// A request that the store carries out.
#[derive(Debug)]
struct Job {
    link: LinkId,
    id: MessageId,
    answer_kind: AnswerKind,
    bytes: usize,
    is_write: bool,
    /// The keys of a page that was requested while keys were refused.
    scope: Option<Box<PageScope>>,
}

/// The form of the answer to the requester, made from the store's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerKind {
    Unchanged,
    /// Cells of a scan.
    Page,
    /// Whether the page has this digest.
    Check(RangeDigest),
    /// For a durable write of this version: whether the cell has a greater version.
    Superseded(Version),
}

impl AnswerKind {
    const fn is_page(self) -> bool {
        matches!(self, Self::Page | Self::Check(_))
    }
}

impl Replica {
    /// Creates a replica without requests in flight.
    pub(crate) fn new(member: Member) -> Self {
        Self {
            member,
            jobs: Jobs::default(),
            links: BTreeMap::new(),
            scan_partitions: ScanPartitions::default(),
        }
    }

    /// Handles a request from an accepted link. Requests that are not for a store are refused.
    pub(crate) fn handle_request(
        &mut self,
        mut cx: ReplicaContext<'_>,
        header: RequestHeader,
        request: PeerRequest,
    ) {
        let RequestHeader { origin, id, within } = header;
        let Destination::Accepted(link) = origin.link else {
            return;
        };
        let bytes = size(&request);
        let is_page = matches!(request, PeerRequest::Scan(_));
        let waits_too_long = matches!(request, PeerRequest::Write { .. }) && cx.is_busy(within);
        let outcome = if self.can_admit(link, bytes, is_page) && !waits_too_long {
            self.plan_request(&mut cx, origin, request)
        } else {
            Err(PeerAnswer::Failed(PeerFault::Busy))
        };
        match outcome {
            Ok((request, answer_kind)) => {
                let load = self.links.entry(link).or_default();
                load.requests += 1;
                load.bytes += bytes;
                load.pages += u32::from(answer_kind.is_page());
                let is_write = !request.is_read();
                let scope = match (&request, cx.refused) {
                    (StoreRequest::ReadPage(page), Some(refused)) => refused.scope_of(page),
                    _ => None,
                };
                let id = self.jobs.insert(Job { link, id, answer_kind, bytes, is_write, scope });
                if is_write {
                    cx.begin_write(bytes);
                }
                let deadline = within.map(|within| cx.now.mono + within);
                cx.effects.push_back(Effect::Store { id, request, deadline });
            }
            Err(answer) => cx.effects.push_back(send(link, id, answer)),
        }
    }

    /// Whether the store request with this id was made by a replica.
    pub(crate) const fn owns(id: StoreId) -> bool {
        id.0 & REPLICA_BIT != 0
    }

    /// Handles the store's answer to a request that [`Replica::owns`] claims, and returns whether
    /// that was a write. `refused` are the keys for which this node's reads do not count now.
    ///
    /// # Panics
    /// If the answer does not fit the request.
    pub(crate) fn handle_stored(
        &mut self,
        id: StoreId,
        response: StoreResponse,
        refused: &RefusedKeys,
        effects: &mut VecDeque<Effect>,
    ) -> bool {
        if let StoreResponse::WrittenUnchecked { key, version } = response {
            let job = self.jobs.get_mut(id);
            job.answer_kind = AnswerKind::Superseded(version);
            let request = StoreRequest::ReadMeta { key };
            effects.push_back(Effect::Store { id, request, deadline: None });
            return std::mem::take(&mut job.is_write);
        }
        let job = self.jobs.remove(id);
        let Some(load) = self.links.get_mut(&job.link) else {
            return job.is_write;
        };
        load.requests -= 1;
        load.bytes -= job.bytes;
        load.pages -= u32::from(job.answer_kind.is_page());
        let is_unknown = job.scope.is_some_and(|scope| refused.are_in(&scope, &response));
        let answer = match (job.answer_kind, answer(response)) {
            _ if is_unknown => PeerAnswer::Failed(PeerFault::NotReadEligible),
            (AnswerKind::Check(digest), PeerAnswer::Scan(answer)) => {
                PeerAnswer::Scan(scan_partitions::checked(digest, answer))
            }
            (AnswerKind::Superseded(version), answer) => written(version, &answer),
            (_, answer) => answer,
        };
        effects.push_back(send(job.link, job.id, answer));
        job.is_write
    }

    /// Records that an accepted link has ended.
    pub(crate) fn link_closed(&mut self, link: LinkId) {
        self.links.remove(&link);
    }

    fn can_admit(&self, link: LinkId, bytes: usize, is_page: bool) -> bool {
        let load = self.links.get(&link).copied().unwrap_or_default();
        let has_bytes = load.bytes == 0 || load.bytes + bytes <= LINK_BYTES_MAX;
        let has_pages = !is_page || load.pages < LINK_PAGES_MAX;
        let fits_link = load.requests < LINK_REQUESTS_MAX && has_bytes && has_pages;
        fits_link && self.jobs.len() < REQUESTS_MAX
    }

    /// The store request for a peer's request; or the answer, if the store is not needed.
    fn plan_request(
        &mut self,
        cx: &mut ReplicaContext<'_>,
        origin: Origin,
        request: PeerRequest,
    ) -> Result<(StoreRequest, AnswerKind), PeerAnswer> {
        let (now, read_eligible, effects) = (cx.now, cx.read_eligible, &mut *cx.effects);
        let is_refused = |key| cx.refused.is_some_and(|refused| refused.contains(key));
        let request = match request {
            PeerRequest::ReadCell { .. } | PeerRequest::ReadMeta { .. } | PeerRequest::Scan(_)
                if !read_eligible =>
            {
                return Err(PeerAnswer::Failed(PeerFault::NotReadEligible));
            }
            PeerRequest::ReadCell { key } | PeerRequest::ReadMeta { key } if is_refused(&key) => {
                return Err(PeerAnswer::Failed(PeerFault::NotReadEligible));
            }
            PeerRequest::ReadMeta { key } => StoreRequest::ReadMeta { key },
            PeerRequest::ReadCell { key } => StoreRequest::Read { key },
            PeerRequest::Write { cell, .. } if !self.member.clock.accepts(cell.meta.version.hlc, now) => {
                effects.push_back(Effect::Event(Event::ClockAhead { node: origin.node }));
                return Err(PeerAnswer::Failed(PeerFault::ClockAhead { wall: now.wall }));
            }
            PeerRequest::Write { key, cell, hints } => write(&self.member, key, cell, hints, effects),
            PeerRequest::KeepHints { key, version, targets } => {
                let targets = admit_hints(&self.member, &key, targets, effects);
                if targets.is_empty() {
                    return Err(PeerAnswer::HintsKept);
                }
                StoreRequest::KeepHints { key, version, targets }
            }
            PeerRequest::Scan(request) => {
                let answer_kind = match request.task {
                    ScanTask::Cells { .. } => AnswerKind::Page,
                    ScanTask::Check { digest } => AnswerKind::Check(digest),
                };
                return Ok((self.scan_partitions.page(&self.member, request), answer_kind));
            }
            PeerRequest::EndScan { snapshot } => StoreRequest::EndSnapshot { id: snapshot },
            PeerRequest::Heartbeat(_) | PeerRequest::Range(_) => {
                return Err(PeerAnswer::Failed(PeerFault::NotServing));
            }
        };
        Ok((request, AnswerKind::Unchanged))
    }
}

/// The store request that writes `cell` and keeps those hints that fit into the ledger.
pub(crate) fn write(
    member: &Member,
    key: Key,
    cell: Cell,
    hints: NodeSet,
    effects: &mut VecDeque<Effect>,
) -> StoreRequest {
    let hints = admit_hints(member, &key, hints, effects);
    StoreRequest::Write { key, cell, hints }
}

/// Those of `targets` whose hints fit into the ledger, counted there; the others are counted as
/// dropped.
pub(crate) fn admit_hints(
    member: &Member,
    key: &Key,
    targets: NodeSet,
    effects: &mut VecDeque<Effect>,
) -> NodeSet {
    if targets.is_empty() {
        return targets;
    }
    let mut admitted = NodeSet::EMPTY;
    let mut others = NodeSet::first(member.layout.len());
    others.remove(member.me);
    for target in targets.intersection(others).iter() {
        if member.hints.try_keep(target, hint_bytes(key)) {
            admitted.insert(target);
        } else {
            effects.push_back(Effect::Event(Event::HintDropped { target }));
        }
    }
    admitted
}

/// The answer to a durable write of this version, from a read of the key's version after the write.
pub(crate) fn written(version: Version, read: &PeerAnswer) -> PeerAnswer {
    let superseded = matches!(read, PeerAnswer::Meta(Some(meta)) if meta.version > version);
    PeerAnswer::Written { superseded }
}

/// The answer to a peer for a response of the store.
///
/// # Panics
/// If the response is not one to a request that peers can cause.
pub(crate) fn answer(response: StoreResponse) -> PeerAnswer {
    match response {
        StoreResponse::Cell(cell) => PeerAnswer::Cell(cell),
        StoreResponse::Meta(meta) => PeerAnswer::Meta(meta),
        StoreResponse::Written { superseded } => PeerAnswer::Written { superseded },
        StoreResponse::HintsKept => PeerAnswer::HintsKept,
        StoreResponse::Page { page, rest } => PeerAnswer::Scan(ScanAnswer::Page { page, rest }),
        StoreResponse::SnapshotEnded => PeerAnswer::ScanEnded,
        StoreResponse::Failed(fault) => PeerAnswer::Failed(PeerFault::Store(fault)),
        response => unreachable!("the store answered a request of a replica with {response:?}"),
    }
}

fn send(link: LinkId, id: MessageId, answer: PeerAnswer) -> Effect {
    Effect::Send { to: Destination::Accepted(link), message: Message::Answer { id, answer } }
}

/// Approximate size of a request in memory, in bytes.
pub(crate) fn size(request: &PeerRequest) -> usize {
    match request {
        PeerRequest::ReadCell { key } | PeerRequest::ReadMeta { key } => key.as_bytes().len(),
        PeerRequest::Write { key, cell, .. } => key.as_bytes().len() + cell.value.len(),
        PeerRequest::KeepHints { key, .. } => key.as_bytes().len(),
        PeerRequest::Heartbeat(_)
        | PeerRequest::Range(_)
        | PeerRequest::Scan(_)
        | PeerRequest::EndScan { .. } => 0,
    }
}

/// Jobs by their store ids: a slab whose slots count their uses, so that no id is issued twice.
#[derive(Debug, Default)]
struct Jobs {
    slots: Vec<(u64, Option<Job>)>,
    free: Vec<u32>,
}

impl Jobs {
    const INDEX_BITS: u32 = 20;
    const INDEX_MASK: u64 = (1 << Self::INDEX_BITS) - 1;

    fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn insert(&mut self, job: Job) -> StoreId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            (self.slots.len() - 1) as u32
        });
        let (uses, slot) = &mut self.slots[index as usize];
        *slot = Some(job);
        *uses += 1;
        StoreId(REPLICA_BIT | *uses << Self::INDEX_BITS | u64::from(index))
    }

    fn remove(&mut self, id: StoreId) -> Job {
        let (index, slot) = self.slot_of(id);
        let job = slot.take().expect("each store request is answered once");
        self.free.push(index);
        job
    }

    fn get_mut(&mut self, id: StoreId) -> &mut Job {
        self.slot_of(id).1.as_mut().expect("each store request is answered once")
    }

    fn slot_of(&mut self, id: StoreId) -> (u32, &mut Option<Job>) {
        let index = (id.0 & Self::INDEX_MASK) as u32;
        let Some((uses, slot)) = self.slots.get_mut(index as usize) else {
            panic!("the store answered {id:?}, which no replica has made");
        };
        let is_current = id.0 == REPLICA_BIT | *uses << Self::INDEX_BITS | u64::from(index);
        assert!(is_current, "the store answered {id:?} twice");
        (index, slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Incarnation, Requester};

    fn job() -> Job {
        let id = MessageId { incarnation: Incarnation(1), requester: Requester::Node, number: 1 };
        let answer_kind = AnswerKind::Unchanged;
        Job { link: LinkId(1), id, answer_kind, bytes: 0, is_write: false, scope: None }
    }

    #[test]
    fn a_slot_that_is_used_again_has_another_id() {
        let mut jobs = Jobs::default();
        let first = jobs.insert(job());
        jobs.remove(first);
        let second = jobs.insert(job());
        assert_ne!(first, second);
        assert_eq!((first.0 ^ second.0) & Jobs::INDEX_MASK, 0, "the slot is the same");
        assert!(Replica::owns(first) && Replica::owns(second));
    }

    #[test]
    #[should_panic(expected = "answered once")]
    fn a_second_answer_is_refused() {
        let mut jobs = Jobs::default();
        let id = jobs.insert(job());
        jobs.remove(id);
        jobs.remove(id);
    }

    #[test]
    #[should_panic(expected = "twice")]
    fn a_second_answer_is_refused_although_the_slot_is_used_again() {
        let mut jobs = Jobs::default();
        let id = jobs.insert(job());
        jobs.remove(id);
        jobs.insert(job());
        jobs.remove(id);
    }

    #[test]
    #[should_panic(expected = "no replica has made")]
    fn an_answer_to_a_request_that_was_never_made_is_refused() {
        Jobs::default().remove(StoreId(REPLICA_BIT | 1 << Jobs::INDEX_BITS));
    }
}
