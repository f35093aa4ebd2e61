//! A scan of what this node holds.
//!
//! The store is asked for page after page. One is read ahead while its reader still has the one before, but not behind
//! one that is larger than pages are to be: such a page is one large value, and two of them would be too many. Nor is one
//! kept that comes ahead: it is read again when its reader wants it. Pages without entries, of runs of dead ones, are
//! passed over. A page that passes over a key which this node has [refused](crate::RefusedKeys) ends the scan with a
//! failure.

use super::page_sizes::PageSizes;
use super::request_state::RequestState;
use super::scan_context::ScanContext;
use crate::{
    Acks, Cut, Event, Failure, KeyRange, Page, PageContent, PageRequest, PeerAnswer, PeerFault, Reply,
    ScanAnswer, Shortfall, StoreFault, WaitTarget,
};
use std::time::Duration;
use stdx::Instant;

/// See the module.
#[derive(Debug)]
pub(super) struct LocalScan {
    /// What is left to be read.
    range: KeyRange,
    entries_left: Option<u64>,
    sizes: PageSizes,
    request_state: RequestState,
    /// What the reader has not asked for yet.
    ready: Option<Reply>,
    has_begun: bool,
    reads_ahead: bool,
}

impl LocalScan {
    /// Of this range, and so many entries at most.
    pub(super) const fn new(range: KeyRange, entries_left: Option<u64>) -> Self {
        let (sizes, request_state) = (PageSizes::new(), RequestState::Idle);
        Self { range, entries_left, sizes, request_state, ready: None, has_begun: false, reads_ahead: true }
    }

    /// When it is to be looked at, if a request has so much time.
    pub(super) fn due(&self, timeout: Duration) -> Option<Instant> {
        let deadline = self.request_state.since()? + timeout;
        Some(self.request_state.paused_until().map_or(deadline, |until| until.min(deadline)))
    }

    /// Sees that there will be a page. The reply, if the reader waits and there is one.
    pub(super) fn advance(&mut self, cx: &mut ScanContext<'_>, reader_waits: bool) -> Option<Reply> {
        if reader_waits && let Some(reply) = self.ready.take() {
            return Some(reply);
        }
        let wants = self.ready.is_none() && (reader_waits || self.reads_ahead);
        if wants && self.request_state.is_due(cx.now.mono) {
            let request = PageRequest {
                snapshot: cx.in_flight.snapshot(),
                range: self.range.clone(),
                partitions: None,
                limit: self.sizes.limit(self.entries_left),
                content: PageContent::Live { at: cx.now.wall },
            };
            cx.ask_store(&mut self.request_state, request);
        }
        None
    }

    /// Takes the store's answer, for which the reader waits or not.
    pub(super) fn handle_answer(
        &mut self,
        cx: &mut ScanContext<'_>,
        serial: u64,
        answer: PeerAnswer,
        reader_waits: bool,
    ) {
        if !self.request_state.awaits(serial) {
            return;
        }
        match answer {
            PeerAnswer::Scan(ScanAnswer::Page { page, rest }) => {
                // The store keeps its snapshot behind such a page, since it may be read again.
                if rest.is_none() && !page.is_oversized() {
                    cx.in_flight.forget_snapshot(cx.context.member.me);
                }
                if reader_waits || !page.is_oversized() {
                    self.take_page(page, rest);
                } else {
                    (self.request_state, self.reads_ahead) = (RequestState::Idle, false);
                }
            }
            PeerAnswer::Failed(PeerFault::Store(StoreFault::Overloaded { .. } | StoreFault::Expired))
                if self.has_begun =>
            {
                self.request_state.pause(cx.now.mono);
            }
            PeerAnswer::Failed(PeerFault::NotReadEligible) => {
                let acks = Acks { got: 0, from: 1 };
                let shortfall = Shortfall::Refused;
                self.end(Reply::Failed(Failure::NotEnoughReplicas { acks, ack: 1, shortfall }));
            }
            PeerAnswer::Failed(PeerFault::Store(fault)) => {
                self.end(Reply::Failed(fault.into()));
            }
            answer => unreachable!("the store answered ReadPage with {answer:?}"),
        }
    }

    /// Gives up when its time is over.
    pub(super) fn handle_due(&mut self, cx: &mut ScanContext<'_>) {
        let retry_after = cx.context.limits.request_timeout;
        if self.request_state.since().is_some_and(|since| since + retry_after <= cx.now.mono) {
            cx.context.event_source = WaitTarget::Store;
            cx.context.emit(Event::DeadlinePassed);
            self.end(Reply::Failed(Failure::Overloaded { retry_after }));
        }
    }

    fn take_page(&mut self, page: Page, rest: Option<Cut>) {
        self.has_begun = true;
        self.request_state = RequestState::Idle;
        self.sizes.grow();
        let left = self.entries_left.map(|left| left.saturating_sub(page.len() as u64));
        let is_last = rest.is_none() || left == Some(0);
        self.entries_left = left;
        self.reads_ahead = !page.is_oversized();
        if let Some(cut) = rest {
            self.range = self.range.rest(cut);
        }
        if is_last || !page.is_empty() {
            self.ready = Some(Reply::Page { page, is_last });
        }
    }

    fn end(&mut self, reply: Reply) {
        self.request_state = RequestState::Idle;
        self.ready = Some(reply);
    }
}
