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
//! **The fence.** Each request names the epoch of its plan, whatever else its link carries. A cell
//! is not read or written by a plan that is older than the last change of its partition: the answer
//! is [`ReplicaFault::StaleEpoch`]. A part of a scan is not read by a plan that is older than the
//! last change of any partition: the roles of the scan are those of all partitions, and this node
//! computes its part of them by its own layout. A request of a newer plan than this node's layout
//! is held until the node has learned that layout, which is durable by then. An epoch is
//! [fenced](Replica::fenced) once the requests have ended that were admitted before it was learned.
//!
//! Requests whose deadline has passed are dropped: the store is told the deadline. If a coordinator
//! drives the replica, a write that would wait too long is refused as [`ReplicaFault::Busy`].
//! Requests between `Node`s are paced by the requesters.
//!
//! **Caveats.** Requests of a link that has ended are still carried out; their answers are dropped.
//! A change of partitions that this node never holds refuses parts of scans here, too.

mod scan_partitions;

use crate::local_writes::LocalWrites;
use crate::refused::PageScope;
use crate::{
    Destination, Effect, Event, Key, Layout, LayoutEpoch, LinkId, Member, Message, MessageId, NodeSet,
    Origin, PeerAnswer, PeerRequest, RangeDigest, RefusedKeys, ReplicaFault, ReplicaOutcome, ReplicaRequest,
    ReplicaResponse, ScanTask, StoreId, StoreRequest, StoreResponse, hint_bytes,
};
use limits::Deadline;
use scan_partitions::ScanPartitions;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use stdx::{Instant, Now, Version};

/// Greatest number of requests in flight per link; one more is refused as [`ReplicaFault::Busy`].
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
    /// Requests of newer plans than the layout.
    held: VecDeque<HeldRequest>,
    /// Number of layouts that were learned.
    layouts: u32,
    /// Number of requests in flight that were admitted by an earlier layout.
    older: usize,
    fenced: LayoutEpoch,
}

/// A request that waits until this node has learned the layout of its plan.
#[derive(Debug)]
pub(crate) struct HeldRequest {
    header: RequestHeader,
    request: PeerRequest,
    since: Instant,
    bytes: usize,
}

impl HeldRequest {
    /// The request with the time that is left for it.
    pub(crate) fn resumed(self, now: Now) -> (RequestHeader, PeerRequest) {
        let within = self.header.within.map(|within| within.saturating_sub(now.mono - self.since));
        (RequestHeader { within, ..self.header }, self.request)
    }

    fn is_over(&self, now: Now) -> bool {
        self.header.within.is_some_and(|within| self.since + within <= now.mono)
    }

    const fn link(&self) -> Option<LinkId> {
        match self.header.origin.link {
            Destination::Accepted(link) => Some(link),
            Destination::Dialed(_) => None,
        }
    }
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

/// Source, id and time limit of a request, and the epoch of its plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestHeader {
    pub(crate) origin: Origin,
    pub(crate) id: MessageId,
    pub(crate) within: Option<Duration>,
    pub(crate) epoch: LayoutEpoch,
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
    /// Number of layouts that were learned before it was admitted.
    layouts: u32,
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
            fenced: member.layout.newest_change(),
            member,
            jobs: Jobs::default(),
            links: BTreeMap::new(),
            scan_partitions: ScanPartitions::default(),
            held: VecDeque::new(),
            layouts: 0,
            older: 0,
        }
    }

    /// Learns a layout whose record is durable. Returns the held requests that can be handled now.
    pub(crate) fn learn(&mut self, layout: &Arc<Layout>) -> VecDeque<HeldRequest> {
        let newest = layout.newest_change();
        if newest > self.member.layout.newest_change() {
            self.layouts += 1;
            self.older = self.jobs.len();
        }
        self.scan_partitions = ScanPartitions::default();
        self.member.layout = Arc::clone(layout);
        self.note_fenced();
        let (resumed, held) =
            std::mem::take(&mut self.held).into_iter().partition(|it| it.header.epoch <= newest);
        self.held = held;
        let resumed: VecDeque<HeldRequest> = resumed;
        resumed.iter().for_each(|request| self.release_held(request));
        resumed
    }

    /// The newest epoch that is fenced: no request for a partition that changed in it or before is
    /// in flight or will be admitted, if it was planned before that change.
    pub(crate) const fn fenced(&self) -> LayoutEpoch {
        self.fenced
    }

    fn note_fenced(&mut self) {
        if self.older == 0 {
            self.fenced = self.member.layout.newest_change();
        }
    }

    /// Holds a request of a newer plan than the layout, unless that is too much for its link.
    fn hold(&mut self, now: Now, header: RequestHeader, request: PeerRequest) -> Result<(), ReplicaFault> {
        let Destination::Accepted(link) = header.origin.link else { return Ok(()) };
        while let Some(over) = self.held.pop_front_if(|held| held.is_over(now)) {
            self.release_held(&over);
        }
        let bytes = match &request {
            PeerRequest::Replica(request) => request.size(),
            PeerRequest::Scan(_) | PeerRequest::Node(_) => 0,
        };
        if !self.can_admit(link, bytes, false) {
            return Err(ReplicaFault::Busy);
        }
        let load = self.links.entry(link).or_default();
        load.requests += 1;
        load.bytes += bytes;
        self.held.push_back(HeldRequest { header, request, since: now.mono, bytes });
        Ok(())
    }

    fn release_held(&mut self, held: &HeldRequest) {
        if let Some(load) = held.link().and_then(|link| self.links.get_mut(&link)) {
            load.requests -= 1;
            load.bytes -= held.bytes;
        }
    }

    /// Whether the request was planned before the last change of a partition that it is for.
    fn is_stale(&self, epoch: LayoutEpoch, request: &PeerRequest) -> bool {
        let layout = &self.member.layout;
        match request {
            PeerRequest::Replica(request) => {
                let key = request.planned_key();
                key.is_some_and(|key| epoch < layout.changed(layout.partition_of(key)))
            }
            PeerRequest::Scan(_) => epoch < layout.newest_change(),
            PeerRequest::Node(_) => false,
        }
    }

    /// Handles a request from an accepted link. Requests that are not for a store are refused.
    pub(crate) fn handle_request(
        &mut self,
        cx: ReplicaContext<'_>,
        header: RequestHeader,
        request: PeerRequest,
    ) {
        let RequestHeader { origin, id, epoch, .. } = header;
        let Destination::Accepted(link) = origin.link else {
            return;
        };
        let newest = self.member.layout.newest_change();
        if epoch != newest {
            let refused = match epoch > newest {
                true => self.hold(cx.now, header, request),
                false if self.is_stale(epoch, &request) => Err(ReplicaFault::StaleEpoch { epoch: newest }),
                false => return self.admit(cx, header, request),
            };
            if let Err(fault) = refused {
                cx.effects.push_back(send(link, id, Err(fault)));
            }
            return;
        }
        self.admit(cx, header, request);
    }

    /// Handles a request whose plan is not stale.
    fn admit(&mut self, mut cx: ReplicaContext<'_>, header: RequestHeader, request: PeerRequest) {
        let RequestHeader { origin, id, within, epoch: _ } = header;
        let Destination::Accepted(link) = origin.link else {
            return;
        };
        let (bytes, waits_for_log, is_page) = match &request {
            PeerRequest::Replica(request) => {
                (request.size(), matches!(request, ReplicaRequest::Write { .. }), false)
            }
            PeerRequest::Scan(_) => (0, false, true),
            PeerRequest::Node(_) => (0, false, false),
        };
        let planned = if self.can_admit(link, bytes, is_page) && !(waits_for_log && cx.is_busy(within)) {
            self.plan_request(&mut cx, origin, request)
        } else {
            Err(Err(ReplicaFault::Busy))
        };
        match planned {
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
                let layouts = self.layouts;
                let id = self.jobs.insert(Job { link, id, answer_kind, bytes, is_write, layouts, scope });
                if is_write {
                    cx.begin_write(bytes);
                }
                let deadline = Deadline::after(cx.now.mono, within);
                cx.effects.push_back(Effect::Store { id, request, deadline });
            }
            Err(outcome) => cx.effects.push_back(send(link, id, outcome)),
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
            let request = ReplicaRequest::ReadMeta { key }.into();
            effects.push_back(Effect::Store { id, request, deadline: Deadline::NEVER });
            return std::mem::take(&mut job.is_write);
        }
        let job = self.jobs.remove(id);
        if job.layouts < self.layouts {
            self.older -= 1;
            self.note_fenced();
        }
        let Some(load) = self.links.get_mut(&job.link) else {
            return job.is_write;
        };
        load.requests -= 1;
        load.bytes -= job.bytes;
        load.pages -= u32::from(job.answer_kind.is_page());
        let outcome = match (job.answer_kind, refused.judge(job.scope.as_deref(), response.into_outcome())) {
            (AnswerKind::Check(digest), Ok(page)) => Ok(scan_partitions::checked(digest, page)),
            (AnswerKind::Superseded(version), read) => Ok(ReplicaResponse::written(version, &read)),
            (_, outcome) => outcome,
        };
        effects.push_back(send(job.link, job.id, outcome));
        job.is_write
    }

    /// Records that an accepted link has ended.
    pub(crate) fn link_closed(&mut self, link: LinkId) {
        self.links.remove(&link);
        self.held.retain(|held| held.link() != Some(link));
    }

    fn can_admit(&self, link: LinkId, bytes: usize, is_page: bool) -> bool {
        let load = self.links.get(&link).copied().unwrap_or_default();
        let has_bytes = load.bytes == 0 || load.bytes + bytes <= LINK_BYTES_MAX;
        let has_pages = !is_page || load.pages < LINK_PAGES_MAX;
        let fits_link = load.requests < LINK_REQUESTS_MAX && has_bytes && has_pages;
        fits_link && self.jobs.len() < REQUESTS_MAX
    }

    /// The store request for a peer's request; or the outcome, if the store is not needed.
    fn plan_request(
        &mut self,
        cx: &mut ReplicaContext<'_>,
        origin: Origin,
        request: PeerRequest,
    ) -> Result<(StoreRequest, AnswerKind), ReplicaOutcome> {
        match request {
            PeerRequest::Replica(request) => {
                if let Some(key) = request.read_key()
                    && (!cx.read_eligible || cx.refused.is_some_and(|refused| refused.contains(key)))
                {
                    return Err(Err(ReplicaFault::NotReadEligible));
                }
                if let ReplicaRequest::Write { cell, .. } = &request
                    && !self.member.clock.accepts(cell.meta.version.hlc, cx.now)
                {
                    cx.effects.push_back(Effect::Event(Event::ClockAhead { node: origin.node }));
                    return Err(Err(ReplicaFault::ClockAhead { wall: cx.now.wall }));
                }
                match admit_hints(&self.member, request, cx.effects) {
                    Some(request) => Ok((request.into(), AnswerKind::Unchanged)),
                    None => Err(Ok(ReplicaResponse::HintsKept)),
                }
            }
            PeerRequest::Scan(_) if !cx.read_eligible => Err(Err(ReplicaFault::NotReadEligible)),
            PeerRequest::Scan(request) => {
                let answer_kind = match request.task {
                    ScanTask::Cells { .. } => AnswerKind::Page,
                    ScanTask::Check { digest } => AnswerKind::Check(digest),
                };
                let page = self.scan_partitions.page(&self.member, request);
                Ok((StoreRequest::ReadPage(page), answer_kind))
            }
            PeerRequest::Node(_) => Err(Err(ReplicaFault::NotServing)),
        }
    }
}

/// The request with those of its hints that fit into the ledger, counted there; the others are
/// counted as dropped. `None`: no hint of a request to keep hints is left.
pub(crate) fn admit_hints(
    member: &Member,
    mut request: ReplicaRequest,
    effects: &mut VecDeque<Effect>,
) -> Option<ReplicaRequest> {
    if let Some((key, targets)) = request.hints_mut() {
        *targets = admitted_targets(member, key, *targets, effects);
    }
    let is_void = matches!(&request, ReplicaRequest::KeepHints { targets, .. } if targets.is_empty());
    (!is_void).then_some(request)
}

fn admitted_targets(member: &Member, key: &Key, targets: NodeSet, effects: &mut VecDeque<Effect>) -> NodeSet {
    if targets.is_empty() {
        return targets;
    }
    let mut admitted = NodeSet::EMPTY;
    let mut others = member.layout.members();
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

fn send(link: LinkId, id: MessageId, outcome: ReplicaOutcome) -> Effect {
    let message = Message::Answer { id, answer: PeerAnswer::from(outcome) };
    Effect::Send { to: Destination::Accepted(link), message }
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
        Job { link: LinkId(1), id, answer_kind, bytes: 0, is_write: false, layouts: 0, scope: None }
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
