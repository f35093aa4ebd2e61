//! The sources of a scan: each sends the cells of its partitions, page by page.
//!
//! **Promise.** What a source gives out is of its partitions and of the range that it was asked for, in order: an answer
//! that is not, is as good as none. No more than one page of each is held.

use super::desk::{Desk, Lost};
use super::progress::Progress;
use super::window::{Terms, take_until};
use crate::{Cut, KeyRange, NodeIndex, Page, PageContent, PageRequest, PartitionSet, ScanLimit, ScanTask};

/// See the module.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) node: NodeIndex,
    partitions: PartitionSet,
    /// What has not come yet.
    range: KeyRange,
    known: Known,
    /// What has come and was not taken.
    page: Page,
    pub(super) progress: Progress,
}

/// Up to where it is known what a node holds, behind all that was taken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Known {
    Nothing,
    To(Cut),
    All,
}

impl Source {
    /// That of these partitions in this range.
    pub(super) fn new(node: NodeIndex, partitions: PartitionSet, range: KeyRange) -> Self {
        let (known, page, progress) = (Known::Nothing, Page::default(), Progress::Idle);
        Self { node, partitions, range, known, page, progress }
    }

    pub(super) const fn known(&self) -> &Known {
        &self.known
    }

    /// Asks for the next page, if it is time to.
    pub(super) fn ask(
        &mut self,
        desk: &mut Desk<'_>,
        terms: &Terms<'_>,
        limit: ScanLimit,
    ) -> Result<(), Lost> {
        if self.known != Known::Nothing || !self.progress.is_to_be_asked(desk.now.mono) {
            return Ok(());
        }
        if self.node != desk.context.member.me {
            let request = terms.request(desk, self.range.clone(), ScanTask::Cells { limit });
            return desk.ask_peer(&mut self.progress, self.node, request);
        }
        let request = PageRequest {
            snapshot: desk.errands.snapshot(),
            range: self.range.clone(),
            partitions: Some(self.partitions.clone()),
            limit,
            content: PageContent::Cells { at: terms.at, dead_since: terms.dead_since, versions_only: false },
        };
        desk.ask_store(&mut self.progress, request);
        Ok(())
    }

    /// Takes the page that was asked for.
    pub(super) fn take_page(&mut self, page: Page, rest: Option<Cut>) -> Result<(), Lost> {
        self.progress = Progress::Idle;
        if !is_answer(&page, rest.as_ref(), &self.range, &self.partitions) {
            return Err(Lost { node: self.node, fault: None });
        }
        self.page = page;
        match rest {
            None => self.known = Known::All,
            Some(cut) => {
                self.range = self.range.rest(cut.clone());
                self.known = Known::To(cut);
            }
        }
        Ok(())
    }

    /// Takes out what is before the end of a window; `None`: all of it.
    pub(super) fn take_until(&mut self, end: Option<&Cut>) -> Page {
        if let (Known::To(known), Some(end)) = (&self.known, end)
            && known <= end
        {
            self.known = Known::Nothing;
        }
        match end {
            None => std::mem::take(&mut self.page),
            Some(end) => take_until(&mut self.page, end),
        }
    }
}

impl Known {
    /// Whether it is known of this key.
    pub(super) fn reaches(&self, key: &[u8]) -> bool {
        match self {
            Self::Nothing => false,
            Self::To(cut) => !cut.is_passed_by(key),
            Self::All => true,
        }
    }
}

/// Whether a page is one of these partitions in this range, and the range goes on where it is said to.
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
