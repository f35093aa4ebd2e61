//! A scan of this node alone.
//!
//! The store is asked for one page after the other. One page is read ahead while the reader still
//! has the previous one, but not behind an oversized page: that is one large value, and two of them
//! would be too much. An oversized page that was read ahead is not kept: it is read again when the
//! reader requests it. Pages without entries, from runs of dead ones, are skipped. A page that
//! covers a key which this node has [refused](crate::RefusedKeys) ends the scan with a failure.

use super::page_sizes::PageSizes;
use super::request_state::RequestState;
use super::scan_context::ScanContext;
use crate::{
    Acks, CommandFailure, Cut, Event, KeyRange, Page, PageContent, PageRequest, ReplicaFault, ReplicaOutcome,
    ReplicaResponse, Reply, Shortfall, WaitTarget,
};
use std::time::Duration;
use stdx::Instant;

/// A scan of this node's store.
#[derive(Debug)]
pub(super) struct LocalScan {
    /// The range that is not read yet.
    range: KeyRange,
    entries_left: Option<u64>,
    sizes: PageSizes,
    request_state: RequestState,
    /// The page that the reader has not requested yet.
    ready: Option<Reply>,
    has_begun: bool,
    reads_ahead: bool,
}

impl LocalScan {
    /// Creates a scan of this range with at most `entries_left` entries.
    pub(super) const fn new(range: KeyRange, entries_left: Option<u64>) -> Self {
        let (sizes, request_state) = (PageSizes::new(), RequestState::Idle);
        Self { range, entries_left, sizes, request_state, ready: None, has_begun: false, reads_ahead: true }
    }

    /// Time at which to call [`LocalScan::handle_due`], with the timeout of a request.
    pub(super) fn due(&self, timeout: Duration) -> Option<Instant> {
        let deadline = self.request_state.since()? + timeout;
        Some(self.request_state.paused_until().map_or(deadline, |until| until.min(deadline)))
    }

    /// Requests the next page if it is wanted. Returns the reply if the reader waits and it is
    /// ready.
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

    /// Handles the outcome of a request for a page; `reader_waits` says whether the reader has
    /// requested the page.
    pub(super) fn handle_outcome(
        &mut self,
        cx: &mut ScanContext<'_>,
        serial: u64,
        outcome: ReplicaOutcome,
        reader_waits: bool,
    ) {
        if !self.request_state.awaits(serial) {
            return;
        }
        match outcome {
            Ok(ReplicaResponse::Page { page, rest }) => {
                // The store keeps its snapshot after an oversized page, because it may be read
                // again.
                if rest.is_none() && !page.is_oversized() {
                    cx.in_flight.forget_snapshot(cx.peers.member.me);
                }
                if reader_waits || !page.is_oversized() {
                    self.take_page(page, rest);
                } else {
                    (self.request_state, self.reads_ahead) = (RequestState::Idle, false);
                }
            }
            Err(fault) if self.has_begun && fault.is_busy() => self.request_state.pause(cx.now.mono),
            Err(ReplicaFault::NotReadEligible) => {
                let acks = Acks { got: 0, from: 1 };
                let shortfall = Shortfall::Refused;
                self.end(Reply::Failed(CommandFailure::NotEnoughReplicas { acks, ack: 1, shortfall }));
            }
            Err(ReplicaFault::Store(fault)) => {
                self.end(Reply::Failed(fault.into()));
            }
            outcome => unreachable!("the store answered ReadPage with {outcome:?}"),
        }
    }

    /// Fails the scan when its time is over.
    pub(super) fn handle_due(&mut self, cx: &mut ScanContext<'_>) {
        let retry_after = cx.peers.limits.request_timeout;
        if self.request_state.since().is_some_and(|since| since + retry_after <= cx.now.mono) {
            cx.source = WaitTarget::Store;
            cx.outbox.emit(Event::DeadlinePassed);
            self.end(Reply::Failed(CommandFailure::Overloaded { retry_after }));
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
