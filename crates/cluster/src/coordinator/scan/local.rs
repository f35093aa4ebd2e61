//! A scan of what this node holds.
//!
//! The store is asked for page after page. One is read ahead while its reader still has the one before, but not behind
//! one that is larger than pages are to be: such a page is one large value, and two of them would be too many. Pages
//! without entries, of runs of dead ones, are passed over.

use super::super::context::Context;
use super::errands::Errands;
use super::sizes::{PAGE_BYTES_MAX, PageSizes};
use crate::{
    Cut, Event, Failure, KeyRange, Page, PageContent, PageRequest, PeerAnswer, PeerFault, Reply, ScanAnswer,
    StoreFault,
};
use std::time::Duration;
use stdx::{Instant, Now};

/// A store that has too much to do is asked again after this.
const PAUSE: Duration = Duration::from_millis(20);

/// See the module.
#[derive(Debug)]
pub(super) struct LocalScan {
    /// What is left to be read.
    range: KeyRange,
    entries_left: Option<u64>,
    sizes: PageSizes,
    reading: Reading,
    /// What the reader has not asked for yet.
    ready: Option<Reply>,
    has_begun: bool,
    reads_ahead: bool,
}

/// Whether the store reads.
#[derive(Clone, Copy, Debug)]
enum Reading {
    Nothing,
    /// It was asked for a page.
    Page {
        serial: u64,
        deadline: Instant,
    },
    /// It had too much to do, and is asked again.
    Paused {
        until: Instant,
        deadline: Instant,
    },
}

impl LocalScan {
    /// Of this range, and so many entries at most.
    pub(super) const fn new(range: KeyRange, entries_left: Option<u64>) -> Self {
        let (sizes, reading) = (PageSizes::new(), Reading::Nothing);
        Self { range, entries_left, sizes, reading, ready: None, has_begun: false, reads_ahead: true }
    }

    /// When it is to be looked at.
    pub(super) const fn due(&self) -> Option<Instant> {
        match self.reading {
            Reading::Nothing => None,
            Reading::Page { deadline, .. } => Some(deadline),
            Reading::Paused { until, .. } => Some(until),
        }
    }

    /// Sees that there will be a page. The reply, if the reader waits and there is one.
    pub(super) fn advance(
        &mut self,
        now: Now,
        context: &mut Context,
        errands: &mut Errands,
        reader_waits: bool,
    ) -> Option<Reply> {
        if reader_waits && let Some(reply) = self.ready.take() {
            return Some(reply);
        }
        let wants = self.ready.is_none() && (reader_waits || self.reads_ahead);
        if wants && matches!(self.reading, Reading::Nothing) {
            let deadline = now.mono + context.limits.request_timeout;
            self.ask(now, context, errands, deadline);
        }
        None
    }

    /// Takes the store's answer.
    pub(super) fn take_answer(
        &mut self,
        now: Now,
        context: &mut Context,
        errands: &mut Errands,
        serial: u64,
        answer: PeerAnswer,
    ) {
        let deadline = match self.reading {
            Reading::Page { serial: asked, deadline } if asked == serial => deadline,
            _ => return,
        };
        self.reading = Reading::Nothing;
        match answer {
            PeerAnswer::Scan(ScanAnswer::Page { page, rest }) => {
                if rest.is_none() {
                    errands.let_go(context.member.me, errands.snapshot());
                }
                self.take_page(page, rest);
            }
            PeerAnswer::Failed(PeerFault::Store(StoreFault::Overloaded { .. })) if self.has_begun => {
                self.reading = Reading::Paused { until: (now.mono + PAUSE).min(deadline), deadline };
            }
            PeerAnswer::Failed(PeerFault::Store(fault)) => {
                self.ready = Some(Reply::Failed(fault.into()));
            }
            answer => unreachable!("the store answered ReadPage with {answer:?}"),
        }
        if self.ready.is_none() && matches!(self.reading, Reading::Nothing) {
            // Nothing but dead entries: the scan has moved on, and has its time again.
            self.ask(now, context, errands, now.mono + context.limits.request_timeout);
        }
    }

    /// Asks again, or gives up.
    pub(super) fn handle_due(&mut self, now: Now, context: &mut Context, errands: &mut Errands) {
        match self.reading {
            Reading::Paused { deadline, .. } if now.mono < deadline => {
                self.ask(now, context, errands, deadline);
            }
            Reading::Page { deadline, .. } | Reading::Paused { deadline, .. } if deadline <= now.mono => {
                self.reading = Reading::Nothing;
                context.tell(Event::DeadlinePassed);
                let retry_after = context.limits.request_timeout;
                self.ready = Some(Reply::Failed(Failure::Overloaded { retry_after }));
            }
            _ => {}
        }
    }

    fn take_page(&mut self, page: Page, rest: Option<Cut>) {
        self.has_begun = true;
        self.sizes.grow();
        let left = self.entries_left.map(|left| left.saturating_sub(page.len() as u64));
        let is_last = rest.is_none() || left == Some(0);
        self.entries_left = left;
        self.reads_ahead = page.bytes().len() <= PAGE_BYTES_MAX;
        if let Some(cut) = rest {
            self.range = self.range.rest(cut);
        }
        if is_last || !page.is_empty() {
            self.ready = Some(Reply::Page { page, is_last });
        }
    }

    fn ask(&mut self, now: Now, context: &mut Context, errands: &mut Errands, deadline: Instant) {
        let request = PageRequest {
            snapshot: errands.snapshot(),
            range: self.range.clone(),
            partitions: None,
            limit: self.sizes.limit(self.entries_left),
            content: PageContent::Live { at: now.wall },
        };
        self.reading = Reading::Page { serial: errands.ask_store(context, request), deadline };
    }
}
