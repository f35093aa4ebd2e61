//! Sources of a scan: each sends the cells of its partitions, page by page.
//!
//! **Promise.** The entries of a source are of its partitions and of the range that it was asked
//! for, in order. A source whose answer violates this is lost to the scan. At most one page of each
//! source is held.

use super::request_state::RequestState;
use super::scan_context::{LostParticipant, ScanContext};
use super::window::{ScanParameters, take_until};
use crate::{Cut, KeyRange, NodeIndex, Page, PartitionSet, ScanLimit, ScanTask};

/// A source of a scan, with its unused page.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) node: NodeIndex,
    partitions: PartitionSet,
    /// The range that was not received yet.
    range: KeyRange,
    frontier: Frontier,
    /// The entries that were received and not taken.
    page: Page,
    pub(super) request_state: RequestState,
}

/// The position up to which a node's cells are known, behind all that was taken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Frontier {
    Nothing,
    To(Cut),
    All,
}

impl Source {
    /// The source of these partitions in this range.
    pub(super) fn new(node: NodeIndex, partitions: PartitionSet, range: KeyRange) -> Self {
        let (frontier, page, request_state) = (Frontier::Nothing, Page::default(), RequestState::Idle);
        Self { node, partitions, range, frontier, page, request_state }
    }

    pub(super) const fn frontier(&self) -> &Frontier {
        &self.frontier
    }

    /// Asks for the next page, if a request is due.
    pub(super) fn ask(
        &mut self,
        cx: &mut ScanContext<'_>,
        parameters: &ScanParameters<'_>,
        limit: ScanLimit,
    ) -> Result<(), LostParticipant> {
        if self.frontier != Frontier::Nothing || !self.request_state.is_due(cx.now.mono) {
            return Ok(());
        }
        let request = parameters.request(cx, self.range.clone(), ScanTask::Cells { limit });
        cx.ask(&mut self.request_state, self.node, request, parameters.part(&self.partitions))
    }

    /// Handles the requested page.
    pub(super) fn take_page(&mut self, page: Page, rest: Option<Cut>) -> Result<(), LostParticipant> {
        self.request_state = RequestState::Idle;
        if !is_answer(&page, rest.as_ref(), &self.range, &self.partitions) {
            return Err(LostParticipant { node: self.node, fault: None });
        }
        self.page = page;
        match rest {
            None => self.frontier = Frontier::All,
            Some(cut) => {
                self.range = self.range.rest(cut.clone());
                self.frontier = Frontier::To(cut);
            }
        }
        Ok(())
    }

    /// Takes out the entries before the end of a window; `None`: all of them.
    pub(super) fn take_until(&mut self, end: Option<&Cut>) -> Page {
        if let (Frontier::To(frontier), Some(end)) = (&self.frontier, end)
            && frontier <= end
        {
            self.frontier = Frontier::Nothing;
        }
        match end {
            None => std::mem::take(&mut self.page),
            Some(end) => take_until(&mut self.page, end),
        }
    }
}

impl Frontier {
    /// Whether this key is before the frontier.
    pub(super) fn reaches(&self, key: &[u8]) -> bool {
        match self {
            Self::Nothing => false,
            Self::To(cut) => !cut.is_passed_by(key),
            Self::All => true,
        }
    }
}

/// Whether the entries of a page are in these partitions and this range, and the rest lies within
/// the range.
pub(super) fn is_answer(
    page: &Page,
    rest: Option<&Cut>,
    range: &KeyRange,
    partitions: &PartitionSet,
) -> bool {
    let goes_on = rest.is_none_or(|rest| {
        range.from.as_ref().is_none_or(|from| from < rest) && range.to.as_ref().is_none_or(|to| rest <= to)
    });
    let is_in_range = |key: &[u8]| range.contains(key) && rest.is_none_or(|rest| !rest.is_passed_by(key));
    goes_on && page.entries().all(|entry| is_in_range(entry.key) && partitions.contains_key(entry.key))
}
