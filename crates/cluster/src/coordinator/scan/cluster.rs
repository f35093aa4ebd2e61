//! A scan of what the cluster holds.
//!
//! **Promise.** Each key that lives comes once, with the newest of what the participants of its partition hold: so what was
//! written by a quorum that overlaps with the scan's is not missed. Where the participants are too few, the scan fails:
//! at once if it has not begun, and instead of the next page if it has.
//!
//! **Mechanism.** Of each partition one replica is the source of cells, others check that they hold the same (`roles`).
//! The sources send pages; up to where all of them are known, what they sent is a window (`window`). While it is
//! checked, the sources read on. Where replicas differ much, a window is many pages.
//!
//! A participant that is lost, or late while the others would do without it, is left out: what is not finished is forgotten,
//! and the scan goes on, in new roles, behind the last page. Some seconds later it can take the place of another one, so
//! that a long scan outlives what befalls its nodes one after the other.
//!
//! **Caveats.** A node that comes back has no part again before another one is left out. Nodes take their snapshots when
//! they are first asked, not all at one time.

use super::super::peers::Availability;
use super::desk::{Desk, Lost};
use super::progress::Progress;
use super::reads::Enough;
use super::roles::{Cast, TooFew, participants, usable, usable_soon, would_do};
use super::sizes::PageSizes;
use super::sources::{Known, Source};
use super::window::{Finished, Terms, Window};
use crate::{
    Acks, Event, Failure, KeyRange, Layout, NodeIndex, NodeSet, PeerAnswer, PeerFault, Quorum, Reply,
    ScanAnswer, Shortfall, StoreFault, WaitTarget,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Instant, WallTime};

/// Of the time that a participant has, after so much another one takes its place.
const REPLACED_AFTER: u32 = 4;
/// Who was left out may take part again after this.
const BACK_AFTER: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug)]
pub(super) struct ClusterScan {
    quorum: Quorum,
    /// What is behind the last finished window.
    range: KeyRange,
    entries_left: Option<u64>,
    sizes: PageSizes,
    at: WallTime,
    dead_since: WallTime,
    stage: Stage,
    /// What the reader has not asked for yet, ...
    ready: Option<Reply>,
    /// ... and what comes after it.
    failed: Option<Failure>,
    reads_ahead: bool,
    /// Who has no part until when.
    left_out: BTreeMap<NodeIndex, Instant>,
    /// Why the last participant was lost.
    fault: Option<StoreFault>,
}

#[derive(Debug)]
enum Stage {
    /// Waits for links to nodes that live, until then.
    Early {
        until: Instant,
    },
    Gathering(Box<Gathering>),
    /// All pages are there, or it has failed.
    Over,
}

/// What is being gathered, in these roles.
#[derive(Debug)]
struct Gathering {
    cast: Arc<Cast>,
    sources: Vec<Source>,
    window: Option<Window>,
}

impl ClusterScan {
    /// Of this range, and so many entries at most; why it cannot be, if it cannot.
    pub(super) fn new(
        desk: &mut Desk<'_>,
        range: KeyRange,
        entries_left: Option<u64>,
        quorum: Quorum,
    ) -> Result<Self, Failure> {
        let limits = desk.context.limits;
        let at = desk.now.wall;
        let mut scan = Self {
            quorum,
            range,
            entries_left,
            sizes: PageSizes::new(),
            at,
            dead_since: at.saturating_sub(limits.grace),
            stage: Stage::Early { until: desk.now.mono + limits.request_timeout },
            ready: None,
            failed: None,
            reads_ahead: true,
            left_out: BTreeMap::new(),
            fault: None,
        };
        scan.begin(desk)?;
        Ok(scan)
    }

    /// Tries again what waits for links.
    pub(super) fn resume(&mut self, desk: &mut Desk<'_>) {
        if matches!(self.stage, Stage::Early { .. })
            && let Err(failure) = self.begin(desk)
        {
            self.fail(failure);
        }
    }

    /// When it is to be looked at, if a request has so much time.
    pub(super) fn due(&self, now: Instant, timeout: Duration) -> Option<Instant> {
        let gathering = match &self.stage {
            Stage::Early { until } => return Some(*until),
            Stage::Gathering(gathering) => gathering,
            Stage::Over => return None,
        };
        let of_requests = gathering.asked().filter_map(|(_, progress)| {
            let since = progress.since()?;
            let replaced_at = since + timeout / REPLACED_AFTER;
            let deadline = if now < replaced_at { replaced_at } else { since + timeout };
            Some(progress.paused_until().map_or(deadline, |until| until.min(deadline)))
        });
        let window = gathering.window.as_ref();
        let of_reads = window.and_then(Window::reading_since).map(|since| since + timeout);
        let paused = window.and_then(Window::reads_paused_until);
        of_requests.chain(of_reads).chain(paused).min()
    }

    /// Sees that there will be a page. The reply, if the reader waits and there is one.
    pub(super) fn advance(&mut self, desk: &mut Desk<'_>, reader_waits: bool) -> Option<Reply> {
        self.at = self.at.max(desk.now.wall);
        loop {
            if reader_waits && let Some(reply) = self.ready.take() {
                return Some(reply);
            }
            if reader_waits && let Some(failure) = self.failed.take() {
                return Some(Reply::Failed(failure));
            }
            match self.gather(desk, reader_waits) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(lost) => self.lose(desk, lost),
            }
        }
    }

    /// Takes the answer of a participant.
    pub(super) fn take_answer(&mut self, desk: &mut Desk<'_>, serial: u64, answer: PeerAnswer) {
        if let Stage::Gathering(gathering) = &mut self.stage
            && let Err(lost) = gathering.take_answer(desk, serial, answer)
        {
            self.lose(desk, lost);
        }
    }

    /// Takes the result of a read.
    pub(super) fn take_read(&mut self, now: Instant, serial: u64, reply: Reply) {
        if let Stage::Gathering(gathering) = &mut self.stage
            && let Some(window) = &mut gathering.window
            && let Err(failure) = window.take_read(now, serial, reply)
        {
            self.fail(failure);
        }
    }

    /// Whether this read is wanted still.
    pub(super) fn wants_read(&self, serial: u64) -> bool {
        let Stage::Gathering(gathering) = &self.stage else {
            return false;
        };
        gathering.window.as_ref().is_some_and(|window| window.wants_read(serial))
    }

    /// Goes on without a node.
    pub(super) fn lose(&mut self, desk: &mut Desk<'_>, lost: Lost) {
        let Stage::Gathering(gathering) = &self.stage else {
            return;
        };
        if !gathering.cast.has_part(lost.node) {
            return;
        }
        self.fault = lost.fault.or(self.fault.take());
        self.left_out.insert(lost.node, desk.now.mono + BACK_AFTER);
        let order = self.not_left_out(desk, usable_soon(desk.context));
        match desk.context.casts.find(&desk.context.member.layout, order, self.quorum) {
            Ok(cast) => self.stage = Stage::Gathering(Box::new(Gathering::new(cast, &self.range))),
            Err(too_few) => {
                let failure = self.failure(too_few);
                self.fail(failure);
            }
        }
    }

    /// Replaces a participant that is late if the others would do without it; gives up when its time is over.
    pub(super) fn handle_due(&mut self, desk: &mut Desk<'_>) {
        let (now, timeout) = (desk.now.mono, desk.context.limits.request_timeout);
        let gathering = match &self.stage {
            Stage::Early { until } if *until <= now => {
                return self.run_out_of_time(desk, NodeSet::EMPTY, false);
            }
            Stage::Early { .. } | Stage::Over => return,
            Stage::Gathering(gathering) => gathering,
        };
        let waits = |progress: Progress, time| progress.since().is_some_and(|since| since + time <= now);
        let late: NodeSet = (gathering.asked())
            .filter(|(_, progress)| waits(*progress, timeout / REPLACED_AFTER))
            .map(|(node, _)| node)
            .collect();
        desk.context.came =
            late.iter().next().map_or(WaitTarget::Links, |node| desk.context.wait_target_of(node));
        let order = self.not_left_out(desk, usable(desk.context));
        let others_do = |late: NodeIndex| {
            would_do(&desk.context.member.layout, self.quorum, |node| node != late && order.contains(&node))
        };
        if let Some(node) = late.iter().find(|node| others_do(*node)) {
            return self.lose(desk, Lost { node, fault: None });
        }
        let overdue: Vec<_> = gathering
            .asked()
            .map(|(_, progress)| progress)
            .filter(|progress| waits(*progress, timeout))
            .collect();
        let is_reading = |window: &Window| window.reading_since().is_some_and(|since| since + timeout <= now);
        if !overdue.is_empty() || gathering.window.as_ref().is_some_and(is_reading) {
            let is_busy = overdue.iter().all(|progress| progress.paused_until().is_some());
            self.run_out_of_time(desk, late, is_busy);
        }
    }

    /// Begins, if there are enough to begin with, or waits until there are; why neither can be, if so.
    fn begin(&mut self, desk: &mut Desk<'_>) -> Result<(), Failure> {
        let context = &mut *desk.context;
        let order = usable(context);
        let too_few = match context.casts.find(&context.member.layout, order, self.quorum) {
            Ok(cast) => {
                self.stage = Stage::Gathering(Box::new(Gathering::new(cast, &self.range)));
                return Ok(());
            }
            Err(too_few) => too_few,
        };
        let would_do =
            |is_in: &dyn Fn(NodeIndex) -> bool| would_do(&context.member.layout, self.quorum, is_in);
        let is_had = |node| context.can_read(node) != Availability::Gone;
        if would_do(&is_had) {
            return Err(Failure::Overloaded { retry_after: context.retry_after() });
        }
        if would_do(&|node| is_had(node) || context.is_expected_to_answer(node)) {
            return Ok(());
        }
        Err(self.failure(too_few))
    }

    /// Does what can be done now. Whether there is more to do at once.
    fn gather(&mut self, desk: &mut Desk<'_>, reader_waits: bool) -> Result<bool, Lost> {
        let Stage::Gathering(gathering) = &mut self.stage else {
            return Ok(false);
        };
        let Gathering { cast, sources, window } = &mut **gathering;
        let terms = Terms { cast, at: self.at, dead_since: self.dead_since };
        let is_enough = |window: &Window| {
            window.is_oversized() || self.entries_left.is_some_and(|left| window.len() as u64 >= left)
        };
        let is_wanted = reader_waits || self.reads_ahead;
        let cells = self.sizes.limit_of_cells(self.entries_left);
        let reads_on = is_wanted && !window.as_ref().is_some_and(is_enough);
        for source in &mut *sources {
            // One that had to wait waits for its turn no longer than that.
            if reads_on || source.progress.since().is_some() {
                source.ask(desk, &terms, cells)?;
            }
        }
        let enough = Enough { cells, entries: self.entries_left };
        if let Some(window) = window {
            window.check(desk, &terms, enough)?;
        }
        if self.ready.is_some() {
            return Ok(false);
        }
        if let Some(window) = window {
            if is_wanted {
                window.read(desk, self.quorum, enough);
            }
            let finished = window.take_done(enough);
            return Ok(finished.map(|finished| self.finish(finished)).is_some());
        }
        let is_known = sources.iter().all(|source| *source.known() != Known::Nothing);
        if is_known {
            *window = Some(next_window(&desk.context.member.layout, cast, sources, &self.range));
            self.sizes.grow();
        }
        Ok(is_known)
    }

    /// Makes a page of what is done of the window.
    fn finish(&mut self, finished: Finished) {
        let Stage::Gathering(gathering) = &mut self.stage else {
            unreachable!("there is a window");
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
            self.stage = Stage::Over;
        }
        if is_last || !page.is_empty() {
            self.ready = Some(Reply::Page { page, is_last });
        }
    }

    /// Fails because of nodes that have not answered in time.
    fn run_out_of_time(&mut self, desk: &mut Desk<'_>, late: NodeSet, is_busy: bool) {
        desk.context.tell(Event::DeadlinePassed);
        let mut order = self.not_left_out(desk, usable(desk.context));
        order.retain(|node| !late.contains(*node));
        let participants = participants(&desk.context.member.layout, order, self.quorum);
        self.fail(if is_busy {
            Failure::Overloaded { retry_after: desk.context.retry_after() }
        } else {
            self.failure(TooFew { participants })
        });
    }

    /// Those of these nodes that may have a part.
    fn not_left_out(&self, desk: &Desk<'_>, mut order: Vec<NodeIndex>) -> Vec<NodeIndex> {
        order.retain(|node| self.left_out.get(node).is_none_or(|until| *until <= desk.now.mono));
        order
    }

    fn failure(&self, too_few: TooFew) -> Failure {
        let (ack, from) = (self.quorum.ack(), self.quorum.from());
        match &self.fault {
            Some(fault) if from == 1 => fault.clone().into(),
            _ => {
                let acks = Acks { got: too_few.participants, from };
                let is_begun = !matches!(self.stage, Stage::Early { .. });
                let shortfall = if is_begun { Shortfall::Unanswered } else { Shortfall::Unreachable };
                Failure::NotEnoughReplicas { acks, ack, shortfall }
            }
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.stage = Stage::Over;
        self.failed = Some(failure);
    }
}

impl Gathering {
    fn new(cast: Arc<Cast>, range: &KeyRange) -> Self {
        let sources = cast.parts.iter().filter(|part| !part.sourced.is_empty());
        let sources =
            sources.map(|part| Source::new(part.node, part.sourced.clone(), range.clone())).collect();
        Self { cast, sources, window: None }
    }

    /// Who was asked for what it is the source or the checker of, and how far that is.
    fn asked(&self) -> impl Iterator<Item = (NodeIndex, Progress)> {
        let checks = self.window.iter().flat_map(|window| &window.checks);
        let sources = self.sources.iter().map(|source| (source.node, source.progress));
        sources.chain(checks.map(|check| (check.node, check.progress)))
    }

    fn take_answer(&mut self, desk: &mut Desk<'_>, serial: u64, answer: PeerAnswer) -> Result<(), Lost> {
        if let Some(source) = self.sources.iter_mut().find(|source| source.progress.awaits(serial)) {
            return match answer {
                PeerAnswer::Scan(ScanAnswer::Page { page, rest }) => {
                    if rest.is_none() && !page.is_oversized() && source.node == desk.context.member.me {
                        desk.errands.let_go(source.node);
                    }
                    source.take_page(page, rest)
                }
                answer => refused(desk, source.node, &mut source.progress, answer),
            };
        }
        let Some(Window { checks, pages, .. }) = &mut self.window else {
            return Ok(());
        };
        let Some(check) = checks.iter_mut().find(|check| check.progress.awaits(serial)) else {
            return Ok(());
        };
        let differing = match answer {
            PeerAnswer::Scan(ScanAnswer::Same) => {
                check.take_same();
                return Ok(());
            }
            PeerAnswer::Scan(ScanAnswer::Page { page, rest }) => {
                check.take_page(&desk.context.member.layout, pages, &page, rest)?
            }
            answer => return refused(desk, check.node, &mut check.progress, answer),
        };
        self.window.as_mut().expect("it is being checked").differ(differing);
        Ok(())
    }
}

/// What all sources have sent up to where all of them are known.
fn next_window(layout: &Layout, cast: &Cast, sources: &mut [Source], range: &KeyRange) -> Window {
    let end = match sources.iter().map(Source::known).min() {
        Some(Known::To(cut)) => Some(cut.clone()),
        Some(Known::Nothing | Known::All) | None => None,
    };
    let pages = sources.iter_mut().map(|source| source.take_until(end.as_ref())).collect();
    Window::new(layout, cast, pages, range, end)
}

/// A participant did not do its part: it has too much to do for now, or cannot.
fn refused(
    desk: &Desk<'_>,
    node: NodeIndex,
    progress: &mut Progress,
    answer: PeerAnswer,
) -> Result<(), Lost> {
    match answer {
        PeerAnswer::Failed(
            PeerFault::Busy | PeerFault::Store(StoreFault::Overloaded { .. } | StoreFault::Expired),
        ) => {
            progress.pause(desk.now.mono);
            Ok(())
        }
        PeerAnswer::Failed(PeerFault::Store(fault)) => Err(Lost { node, fault: Some(fault) }),
        PeerAnswer::Failed(PeerFault::NotReadEligible) => Err(Lost { node, fault: None }),
        answer => {
            assert!(node != desk.context.member.me, "the store answered ReadPage with {answer:?}");
            Err(Lost { node, fault: None })
        }
    }
}
