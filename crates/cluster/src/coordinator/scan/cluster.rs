//! A scan of the whole cluster.
//!
//! **Promise.** Each live key is returned once, with the newest cell that the participants of its
//! partition hold. A write by a quorum that overlaps with the scan's is therefore not missed. If
//! the participants are too few, the scan fails: at once if it has not begun, and instead of the
//! next page if it has.
//!
//! **Mechanism.** For each partition one replica is the source of cells, and others check that they
//! hold the same (`roles`). The sources send pages; up to the cut where all of their contents are
//! known, these form a window (`window`). While it is checked, the sources read ahead. Where
//! replicas differ much, a window yields several pages.
//!
//! A participant that is lost, or slow while the others suffice without it, is excluded: unfinished
//! work is dropped, and the scan continues behind the last page, in new roles. After some seconds
//! an excluded node can replace another one, so that a long scan survives the loss of its nodes one
//! after the other.
//!
//! The scan is planned by one layout, and its requests tell the epoch of that plan. While a swap
//! runs, the participants are a quorum of each set of replicas (`ScanRoles`). A participant that
//! knows a newer layout refuses its part. The part then waits for that layout, or another node
//! takes it, as for a slow participant. With a new layout unfinished work is dropped, and the scan
//! continues behind the last page, in roles of that layout.
//!
//! **Caveats.** While a swap copies, the gaining node lacks most cells. If it has to participate,
//! because a kept replica is away, the keys of the partition are read one by one.
//!
//! A node that comes back gets no role before another one is excluded. Nodes take
//! their snapshots when they are first asked, not all at the same time.

use super::key_reads::PageTarget;
use super::page_sizes::PageSizes;
use super::request_state::RequestState;
use super::roles::{
    RoleAssignment, TooFewParticipants, can_form_quorum, participant_count, readable_nodes,
    readable_or_busy_nodes,
};
use super::scan_context::{LostParticipant, ScanContext};
use super::sources::{Frontier, Source};
use super::window::{FinishedWindow, ScanParameters, ScanWindow};
use crate::coordinator::peers::Availability;
use crate::{
    Acks, CommandFailure, Event, KeyRange, Layout, NodeIndex, NodeSet, Quorum, ReplicaFault, ReplicaOutcome,
    ReplicaResponse, Reply, Shortfall, StoreFault, WaitTarget,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Instant, WallTime};

/// Fraction of the timeout after which a participant is replaced.
const REPLACEMENT_DIVISOR: u32 = 4;
/// Time for which an excluded node gets no role.
const EXCLUSION_TIME: Duration = Duration::from_secs(2);

/// A scan of the whole cluster.
#[derive(Debug)]
pub(super) struct ClusterScan {
    quorum: Quorum,
    /// The range behind the last finished window.
    range: KeyRange,
    entries_left: Option<u64>,
    sizes: PageSizes,
    at: WallTime,
    dead_since: WallTime,
    stage: Stage,
    /// The page that the reader has not requested yet.
    ready: Option<Reply>,
    /// The failure that follows the ready page.
    failed: Option<CommandFailure>,
    reads_ahead: bool,
    /// Excluded nodes, with the time until which each is.
    excluded: BTreeMap<NodeIndex, Instant>,
    /// The fault of the last participant that was lost.
    fault: Option<StoreFault>,
    /// Whether roles have been assigned, so that requests may have been sent.
    has_begun: bool,
}

#[derive(Debug)]
enum Stage {
    /// Waits for links to live nodes until this deadline.
    WaitingForLinks {
        until: Instant,
    },
    Gathering(Box<GatherState>),
    /// All pages are ready or returned, or the scan has failed.
    Finished,
}

/// Requests and results of the scan with one role assignment.
#[derive(Debug)]
struct GatherState {
    assignment: Arc<RoleAssignment>,
    sources: Vec<Source>,
    window: Option<ScanWindow>,
}

impl ClusterScan {
    /// Begins a scan of this range with at most `entries_left` entries, or returns its failure.
    pub(super) fn new(
        cx: &mut ScanContext<'_>,
        range: KeyRange,
        entries_left: Option<u64>,
        quorum: Quorum,
    ) -> Result<Self, CommandFailure> {
        let limits = cx.peers.limits;
        let at = cx.now.wall;
        let mut scan = Self {
            quorum,
            range,
            entries_left,
            sizes: PageSizes::new(),
            at,
            dead_since: at.saturating_sub(limits.grace),
            stage: Stage::WaitingForLinks { until: cx.now.mono + limits.request_timeout },
            ready: None,
            failed: None,
            reads_ahead: true,
            excluded: BTreeMap::new(),
            fault: None,
            has_begun: false,
        };
        scan.begin(cx)?;
        Ok(scan)
    }

    /// Retries a scan that waits for links.
    pub(super) fn resume(&mut self, cx: &mut ScanContext<'_>) {
        if matches!(self.stage, Stage::WaitingForLinks { .. })
            && let Err(failure) = self.begin(cx)
        {
            self.fail(failure);
        }
    }

    /// Time at which to call [`ClusterScan::handle_due`], with the timeout of a request.
    pub(super) fn due(&self, now: Instant, timeout: Duration) -> Option<Instant> {
        let gathering = match &self.stage {
            Stage::WaitingForLinks { until } => return Some(*until),
            Stage::Gathering(gathering) => gathering,
            Stage::Finished => return None,
        };
        let of_requests = gathering.pending_requests().filter_map(|(_, request_state)| {
            let since = request_state.since()?;
            let replaced_at = since + timeout / REPLACEMENT_DIVISOR;
            let deadline = if now < replaced_at { replaced_at } else { since + timeout };
            Some(request_state.paused_until().map_or(deadline, |until| until.min(deadline)))
        });
        let window = gathering.window.as_ref();
        let of_reads = window.and_then(ScanWindow::reading_since).map(|since| since + timeout);
        let paused = window.and_then(ScanWindow::reads_paused_until);
        of_requests.chain(of_reads).chain(paused).min()
    }

    /// Starts the requests for the next page. Returns the reply if the reader waits and it is
    /// ready.
    pub(super) fn advance(&mut self, cx: &mut ScanContext<'_>, reader_waits: bool) -> Option<Reply> {
        self.at = self.at.max(cx.now.wall);
        loop {
            if reader_waits && let Some(reply) = self.ready.take() {
                return Some(reply);
            }
            if reader_waits && let Some(failure) = self.failed.take() {
                return Some(Reply::Failed(failure));
            }
            match self.gather(cx, reader_waits) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(lost) => self.replace_participant(cx, lost),
            }
        }
    }

    /// Handles the outcome of a request to a participant.
    pub(super) fn handle_outcome(&mut self, cx: &mut ScanContext<'_>, serial: u64, outcome: ReplicaOutcome) {
        if let Stage::Gathering(gathering) = &mut self.stage
            && let Err(lost) = gathering.handle_outcome(cx, serial, outcome)
        {
            self.replace_participant(cx, lost);
        }
    }

    /// Handles the result of a read.
    pub(super) fn handle_read(&mut self, now: Instant, serial: u64, reply: Reply) {
        if let Stage::Gathering(gathering) = &mut self.stage
            && let Some(window) = &mut gathering.window
            && let Err(failure) = window.handle_read(now, serial, reply)
        {
            self.fail(failure);
        }
    }

    /// Whether the result of this read is still needed.
    pub(super) fn wants_read(&self, serial: u64) -> bool {
        let Stage::Gathering(gathering) = &self.stage else {
            return false;
        };
        gathering.window.as_ref().is_some_and(|window| window.wants_read(serial))
    }

    /// Whether roles are assigned, and pages are being read.
    pub(super) const fn is_gathering(&self) -> bool {
        matches!(self.stage, Stage::Gathering(_))
    }

    /// Continues behind the last page by the present layout. If too few nodes can be asked now, the
    /// scan waits for links, as at its begin.
    pub(super) fn plan_anew(&mut self, cx: &mut ScanContext<'_>) {
        let order = self.without_excluded(cx, readable_or_busy_nodes(cx.peers));
        match cx.role_assignments.find(&cx.peers.member.layout, order, self.quorum) {
            Ok(assignment) => {
                self.stage = Stage::Gathering(Box::new(GatherState::new(assignment, &self.range)));
            }
            Err(_) => {
                self.stage = Stage::WaitingForLinks { until: cx.now.mono + cx.peers.limits.request_timeout };
                if let Err(failure) = self.begin(cx) {
                    self.fail(failure);
                }
            }
        }
    }

    /// Continues without a node.
    pub(super) fn replace_participant(&mut self, cx: &mut ScanContext<'_>, lost: LostParticipant) {
        let Stage::Gathering(gathering) = &self.stage else {
            return;
        };
        if !gathering.assignment.has_role(lost.node) {
            return;
        }
        self.fault = lost.fault.or(self.fault.take());
        self.excluded.insert(lost.node, cx.now.mono + EXCLUSION_TIME);
        let order = self.without_excluded(cx, readable_or_busy_nodes(cx.peers));
        match cx.role_assignments.find(&cx.peers.member.layout, order, self.quorum) {
            Ok(assignment) => {
                self.stage = Stage::Gathering(Box::new(GatherState::new(assignment, &self.range)));
            }
            Err(too_few) => {
                let failure = self.failure(too_few);
                self.fail(failure);
            }
        }
    }

    /// Replaces a slow participant if the others suffice without it; fails the scan when its time
    /// is over. The wait is attributed to a slow participant.
    pub(super) fn handle_due(&mut self, cx: &mut ScanContext<'_>) {
        let (now, timeout) = (cx.now.mono, cx.peers.limits.request_timeout);
        let gathering = match &self.stage {
            Stage::WaitingForLinks { until } if *until <= now => {
                return self.run_out_of_time(cx, NodeSet::EMPTY, false);
            }
            Stage::WaitingForLinks { .. } | Stage::Finished => return,
            Stage::Gathering(gathering) => gathering,
        };
        let waits = |request_state: RequestState, time| {
            request_state.since().is_some_and(|since| since + time <= now)
        };
        let slow: NodeSet = (gathering.pending_requests())
            .filter(|(_, request_state)| waits(*request_state, timeout / REPLACEMENT_DIVISOR))
            .map(|(node, _)| node)
            .collect();
        cx.source = slow.iter().next().map_or(WaitTarget::Links, |node| cx.peers.wait_target_of(node));
        let order = self.without_excluded(cx, readable_nodes(cx.peers));
        let others_suffice = |slow: NodeIndex| {
            can_form_quorum(&cx.peers.member.layout, self.quorum, |node| {
                node != slow && order.contains(&node)
            })
        };
        if let Some(node) = slow.iter().find(|node| others_suffice(*node)) {
            return self.replace_participant(cx, LostParticipant { node, fault: None });
        }
        let overdue: Vec<_> = gathering
            .pending_requests()
            .map(|(_, request_state)| request_state)
            .filter(|request_state| waits(*request_state, timeout))
            .collect();
        let is_reading =
            |window: &ScanWindow| window.reading_since().is_some_and(|since| since + timeout <= now);
        if !overdue.is_empty() || gathering.window.as_ref().is_some_and(is_reading) {
            let is_busy = overdue.iter().all(|request_state| request_state.paused_until().is_some());
            self.run_out_of_time(cx, slow, is_busy);
        }
    }

    /// Begins if enough nodes are available, or waits until they are. Returns the failure if
    /// neither is possible.
    fn begin(&mut self, cx: &mut ScanContext<'_>) -> Result<(), CommandFailure> {
        let (peers, role_assignments) = (&*cx.peers, &mut *cx.role_assignments);
        let order = readable_nodes(peers);
        let too_few = match role_assignments.find(&peers.member.layout, order, self.quorum) {
            Ok(assignment) => {
                self.stage = Stage::Gathering(Box::new(GatherState::new(assignment, &self.range)));
                self.has_begun = true;
                return Ok(());
            }
            Err(too_few) => too_few,
        };
        let can_form_quorum =
            |is_in: &dyn Fn(NodeIndex) -> bool| can_form_quorum(&peers.member.layout, self.quorum, is_in);
        let is_available = |node| peers.can_read(node) != Availability::Unavailable;
        if can_form_quorum(&is_available) {
            return Err(CommandFailure::Overloaded { retry_after: peers.retry_after() });
        }
        if can_form_quorum(&|node| is_available(node) || peers.can_read_soon(node)) {
            return Ok(());
        }
        Err(self.failure(too_few))
    }

    /// Does the work that is possible now. Returns whether more is possible at once.
    fn gather(&mut self, cx: &mut ScanContext<'_>, reader_waits: bool) -> Result<bool, LostParticipant> {
        let Stage::Gathering(gathering) = &mut self.stage else {
            return Ok(false);
        };
        let GatherState { assignment, sources, window } = &mut **gathering;
        let parameters = ScanParameters { assignment, at: self.at, dead_since: self.dead_since };
        let is_enough = |window: &ScanWindow| {
            window.is_oversized() || self.entries_left.is_some_and(|left| window.len() as u64 >= left)
        };
        let is_wanted = reader_waits || self.reads_ahead;
        let cells = self.sizes.limit_of_cells(self.entries_left);
        let reads_more = is_wanted && !window.as_ref().is_some_and(is_enough);
        for source in &mut *sources {
            // A paused source is asked again even while the sources do not read ahead.
            if reads_more || source.request_state.since().is_some() {
                source.ask(cx, &parameters, cells)?;
            }
        }
        let target = PageTarget { cells, entries: self.entries_left };
        if let Some(window) = window {
            window.run_checks(cx, &parameters, target)?;
        }
        if self.ready.is_some() {
            return Ok(false);
        }
        if let Some(window) = window {
            if is_wanted {
                window.run_reads(cx, self.quorum, target);
            }
            let finished = window.take_finished(target);
            return Ok(finished.map(|finished| self.finish(finished)).is_some());
        }
        let is_known = sources.iter().all(|source| *source.frontier() != Frontier::Nothing);
        if is_known {
            *window = Some(next_window(&cx.peers.member.layout, assignment, sources, &self.range));
            self.sizes.grow();
        }
        Ok(is_known)
    }

    /// Makes a page of the finished part of the window.
    fn finish(&mut self, finished: FinishedWindow) {
        let Stage::Gathering(gathering) = &mut self.stage else {
            unreachable!("a window is being gathered");
        };
        if finished.is_whole {
            gathering.window = None;
        } else {
            self.sizes.grow();
        }
        self.reads_ahead = !finished.is_oversized();
        let end = finished.end.clone();
        let page = finished.page(self.at, self.entries_left);
        self.entries_left = self.entries_left.map(|left| left - page.len() as u64);
        let is_last = end.is_none() || self.entries_left == Some(0);
        if let Some(end) = end {
            self.range = self.range.rest(end);
        }
        if is_last {
            self.stage = Stage::Finished;
        }
        if is_last || !page.is_empty() {
            self.ready = Some(Reply::Page { page, is_last });
        }
    }

    /// Fails the scan because of nodes that have not answered in time.
    fn run_out_of_time(&mut self, cx: &mut ScanContext<'_>, slow: NodeSet, is_busy: bool) {
        cx.outbox.emit(Event::DeadlinePassed);
        let mut order = self.without_excluded(cx, readable_nodes(cx.peers));
        order.retain(|node| !slow.contains(*node));
        let participants = participant_count(&cx.peers.member.layout, order, self.quorum);
        self.fail(if is_busy {
            CommandFailure::Overloaded { retry_after: cx.peers.retry_after() }
        } else {
            self.failure(TooFewParticipants { participants })
        });
    }

    /// Those of these nodes that may have a role.
    fn without_excluded(&self, cx: &ScanContext<'_>, mut order: Vec<NodeIndex>) -> Vec<NodeIndex> {
        order.retain(|node| self.excluded.get(node).is_none_or(|until| *until <= cx.now.mono));
        order
    }

    fn failure(&self, too_few: TooFewParticipants) -> CommandFailure {
        let (ack, from) = (self.quorum.ack(), self.quorum.from());
        match &self.fault {
            Some(fault) if self.quorum.has_one_replica() => fault.clone().into(),
            _ => {
                let acks = Acks { got: too_few.participants, from };
                let shortfall = if self.has_begun { Shortfall::Unanswered } else { Shortfall::Unreachable };
                CommandFailure::NotEnoughReplicas { acks, ack, shortfall }
            }
        }
    }

    fn fail(&mut self, failure: CommandFailure) {
        self.stage = Stage::Finished;
        self.failed = Some(failure);
    }
}

impl GatherState {
    fn new(assignment: Arc<RoleAssignment>, range: &KeyRange) -> Self {
        let sources = assignment.node_roles.iter().filter(|role| !role.sourced.is_empty());
        let sources =
            sources.map(|role| Source::new(role.node, role.sourced.clone(), range.clone())).collect();
        Self { assignment, sources, window: None }
    }

    /// Participants with the state of their requests, as source or checker.
    fn pending_requests(&self) -> impl Iterator<Item = (NodeIndex, RequestState)> {
        let checks = self.window.iter().flat_map(|window| &window.checks);
        let sources = self.sources.iter().map(|source| (source.node, source.request_state));
        sources.chain(checks.map(|check| (check.node, check.request_state)))
    }

    fn handle_outcome(
        &mut self,
        cx: &mut ScanContext<'_>,
        serial: u64,
        outcome: ReplicaOutcome,
    ) -> Result<(), LostParticipant> {
        if let Some(source) = self.sources.iter_mut().find(|source| source.request_state.awaits(serial)) {
            return match outcome {
                Ok(ReplicaResponse::Page { page, rest }) => {
                    if rest.is_none() && !page.is_oversized() && source.node == cx.peers.member.me {
                        cx.in_flight.forget_snapshot(source.node);
                    }
                    source.take_page(page, rest)
                }
                outcome => refused(cx, source.node, &mut source.request_state, outcome),
            };
        }
        let Some(ScanWindow { checks, pages, .. }) = &mut self.window else {
            return Ok(());
        };
        let Some(check) = checks.iter_mut().find(|check| check.request_state.awaits(serial)) else {
            return Ok(());
        };
        let differing = match outcome {
            Ok(ReplicaResponse::SamePage) => {
                check.take_same();
                return Ok(());
            }
            Ok(ReplicaResponse::Page { page, rest }) => {
                check.take_page(&cx.peers.member.layout, pages, &page, rest)?
            }
            outcome => return refused(cx, check.node, &mut check.request_state, outcome),
        };
        self.window.as_mut().expect("the window is being checked").add_differing(differing);
        Ok(())
    }
}

/// The window of all that the sources have sent up to the least of their frontiers.
fn next_window(
    layout: &Layout,
    assignment: &RoleAssignment,
    sources: &mut [Source],
    range: &KeyRange,
) -> ScanWindow {
    let end = match sources.iter().map(Source::frontier).min() {
        Some(Frontier::To(cut)) => Some(cut.clone()),
        Some(Frontier::Nothing | Frontier::All) | None => None,
    };
    let pages = sources.iter_mut().map(|source| source.take_until(end.as_ref())).collect();
    ScanWindow::new(layout, assignment, pages, range, end)
}

/// Handles a participant's failure: it is busy for now, has refused the plan, or is lost.
fn refused(
    cx: &ScanContext<'_>,
    node: NodeIndex,
    request_state: &mut RequestState,
    outcome: ReplicaOutcome,
) -> Result<(), LostParticipant> {
    match outcome {
        Err(fault) if fault.is_busy() => {
            request_state.pause(cx.now.mono);
            Ok(())
        }
        Err(ReplicaFault::StaleEpoch { .. }) => {
            request_state.await_plan(cx.now.mono);
            Ok(())
        }
        Err(ReplicaFault::Store(fault)) => Err(LostParticipant { node, fault: Some(fault) }),
        Err(ReplicaFault::NotReadEligible) => Err(LostParticipant { node, fault: None }),
        outcome => {
            assert!(node != cx.peers.member.me, "the store answered ReadPage with {outcome:?}");
            Err(LostParticipant { node, fault: None })
        }
    }
}
