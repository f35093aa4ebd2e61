//! The replica: does what other nodes ask of this one's store.
//!
//! **Promise.** Each request over a link that is still there gets one answer, and no answer says that something is
//! stored before the store said that it is durable. A node whose reads are not believed says so instead of
//! answering them. A version too far ahead of this node's clock is refused. Hints for which the ledger has no room
//! are left out, and counted there as dropped.
//!
//! **Mechanism.** A request becomes one [`StoreRequest`]; whom its answer goes to stands in a slab. The ids of
//! these store requests have their highest bit set, which keeps them apart from all others of the same machine.
//!
//! A part in a scan becomes a page: see `scan_parts`.
//!
//! A coordinator that asks for a key which this node has [refused](crate::RefusedKeys), or for a page that passes over
//! one, is told that this node is not believed. A peer's `Node` asks for cells to move them, and gets what is stored.
//!
//! What its asker waits for no longer is not done: the store is told until when. A write that would wait for too long
//! is refused as [`PeerFault::Busy`], if a coordinator drives this; what nodes ask of each other is paced by them.
//!
//! **Caveats.** What a link leaves behind when it ends is still carried out; the answer is sent nowhere.

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

/// Requests under way for one link; one more is refused as [`PeerFault::Busy`].
const LINK_REQUESTS_MAX: u32 = 16_384;
/// Bytes of keys and values under way for one link; past this, requests are refused alike, but for one alone.
const LINK_BYTES_MAX: usize = 128 << 20;
/// Pages under way for one link; each may be larger than all other requests are.
const LINK_PAGES_MAX: u32 = 64;
/// Requests under way for all links, ended ones included.
const REQUESTS_MAX: usize = 1 << 18;
/// Set in the store ids of a replica, and in no others.
const REPLICA_BIT: u64 = 1 << 63;

/// See the module. One for each machine that accepts links.
#[derive(Debug)]
pub(crate) struct Replica {
    member: Member,
    jobs: Jobs,
    links: BTreeMap<LinkId, LinkLoad>,
    scan_partitions: ScanPartitions,
}

/// What a replica works with.
pub(crate) struct ReplicaContext<'a> {
    pub(crate) now: Now,
    /// This node's reads count.
    pub(crate) read_eligible: bool,
    /// Keys for which this node's reads do not count; `None`: the askers are nodes that move cells.
    pub(crate) refused: Option<&'a RefusedKeys>,
    /// What the local store has under way, and how long a write may wait for it; `None`: it is not kept.
    pub(crate) writes: Option<(&'a mut LocalWrites, Duration)>,
    pub(crate) effects: &'a mut VecDeque<Effect>,
}

/// Who asks, and for how long.
#[derive(Clone, Copy)]
pub(crate) struct RequestHeader {
    pub(crate) origin: Origin,
    pub(crate) id: MessageId,
    pub(crate) within: Option<Duration>,
}

impl ReplicaContext<'_> {
    /// Whether a write would wait for longer than it may, or than anybody waits for it.
    fn is_busy(&self, within: Option<Duration>) -> bool {
        self.writes.as_ref().is_some_and(|(writes, patience)| {
            !writes.admits(within.map_or(*patience, |within| within.min(*patience)))
        })
    }

    fn begin_write(&mut self, bytes: usize) {
        if let Some((writes, _)) = &mut self.writes {
            writes.begin(self.now.mono, bytes);
        }
    }
}

/// What is under way for a link.
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
    /// Of a page that was asked for while keys were refused.
    scope: Option<Box<PageScope>>,
}

/// What the asker wants of the store's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerKind {
    Everything,
    Meta,
    /// Cells of a scan.
    Page,
    /// Whether the page amounts to this.
    Check(RangeDigest),
    /// Of a write that is durable: whether the cell has a greater version than this, which was written.
    Superseded(Version),
}

impl AnswerKind {
    const fn is_page(self) -> bool {
        matches!(self, Self::Page | Self::Check(_))
    }
}

impl Replica {
    /// A replica with nothing under way.
    pub(crate) fn new(member: Member) -> Self {
        Self {
            member,
            jobs: Jobs::default(),
            links: BTreeMap::new(),
            scan_partitions: ScanPartitions::default(),
        }
    }

    /// Takes a request that came over an accepted link; `believed`: this node's reads count. Requests that are
    /// not for a store are refused.
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

    /// Whether the store request of this id was made by a replica.
    pub(crate) const fn owns(id: StoreId) -> bool {
        id.0 & REPLICA_BIT != 0
    }

    /// Takes the store's answer to a request that [`Replica::made`] claims. Whether that was a write. `refused` are the
    /// keys for which this node's reads do not count now.
    ///
    /// # Panics
    /// When the answer is not one to that request.
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
            let request = StoreRequest::Read { key };
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
            (AnswerKind::Meta, PeerAnswer::Cell(cell)) => PeerAnswer::Meta(cell.map(|cell| cell.meta)),
            (AnswerKind::Check(digest), PeerAnswer::Scan(answer)) => {
                PeerAnswer::Scan(scan_partitions::checked(digest, answer))
            }
            (AnswerKind::Superseded(version), answer) => written(version, &answer),
            (_, answer) => answer,
        };
        effects.push_back(send(job.link, job.id, answer));
        job.is_write
    }

    /// Takes note that an accepted link has ended.
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

    /// What the store is to do; or the answer, where there is nothing for it to do.
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
            PeerRequest::ReadMeta { key } => return Ok((StoreRequest::Read { key }, AnswerKind::Meta)),
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
        Ok((request, AnswerKind::Everything))
    }
}

/// What the store is to do to write `cell` and keep those hints for which there is room.
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

/// Those of `targets` for which the ledger has room, counted there; the others are counted as dropped.
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

/// What a replica says of a durable write of this version, when it reads this of the key afterwards.
pub(crate) fn written(version: Version, read: &PeerAnswer) -> PeerAnswer {
    let superseded = matches!(read, PeerAnswer::Cell(Some(cell)) if cell.meta.version > version);
    PeerAnswer::Written { superseded }
}

/// What a replica says to a peer when its store says this.
///
/// # Panics
/// When the response is not one to a request that peers can cause.
pub(crate) fn answer(response: StoreResponse) -> PeerAnswer {
    match response {
        StoreResponse::Cell(cell) => PeerAnswer::Cell(cell),
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

/// What a request holds in memory, about.
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

/// Jobs by their store ids: a slab whose slots count their uses, so that no id comes twice.
#[derive(Debug, Default)]
struct Jobs {
    slots: Vec<(u64, Option<Job>)>,
    free: Vec<u32>,
}

impl Jobs {
    const INDEX_BITS: u32 = 20;

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
        let index = (id.0 & ((1 << Self::INDEX_BITS) - 1)) as u32;
        let (uses, slot) = &mut self.slots[index as usize];
        let is_current = id.0 == REPLICA_BIT | *uses << Self::INDEX_BITS | u64::from(index);
        assert!(is_current, "the store answered {id:?} twice");
        (index, slot)
    }
}
