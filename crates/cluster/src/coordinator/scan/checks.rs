//! Checks: whether a replica holds the cells that the sources sent.
//!
//! **Promise.** A finished check has named each key of which the checker holds another version than
//! the sources sent, or which they did not send. It has also named each key that the checker lacks
//! although it should hold it. For every cell that a checker holds, the window thus shows that
//! version or a greater one.
//!
//! **Mechanism.** The checker receives the digest of the cells that it should hold: the sources'
//! cells of which it is a replica, by the cell's own `from`. It compares the digest with all that
//! it holds. Usually the digests are equal, and one digest is all that is transmitted. Otherwise it
//! returns the versions that it holds, up to the size of a page; it is asked for the rest when the
//! window needs it.
//!
//! **Caveats.** A cell written with a smaller `from` than the scan's may be on the checker without
//! belonging on the source: such a key always differs. Or it is on the source without belonging on
//! the checker, which then has no information about it. Both are read individually: correct, but
//! slow if there are many.

use super::request_state::RequestState;
use super::scan_context::{LostParticipant, ScanContext};
use super::sources::{Frontier, is_answer};
use super::window::ScanParameters;
use crate::{
    Cut, Key, KeyRange, Layout, NodeIndex, Page, PageEntry, PartitionId, PartitionSet, RangeDigest, ScanTask,
};
use bytes::Bytes;
use std::collections::BTreeMap;
use stdx::{CellMeta, Version};

/// The check of the cells of one node in a window.
#[derive(Debug)]
pub(super) struct Check {
    pub(super) node: NodeIndex,
    partitions: PartitionSet,
    /// The part of the window that is not checked yet.
    range: KeyRange,
    is_done: bool,
    pub(super) request_state: RequestState,
}

impl Check {
    /// A check of the cells that this node holds in these partitions and this range.
    pub(super) const fn new(node: NodeIndex, partitions: PartitionSet, range: KeyRange) -> Self {
        Self { node, partitions, range, is_done: false, request_state: RequestState::Idle }
    }

    /// The frontier up to which all differences have been named.
    pub(super) fn frontier(&self) -> Frontier {
        match &self.range.from {
            _ if self.is_done => Frontier::All,
            Some(from) => Frontier::To(from.clone()),
            None => Frontier::Nothing,
        }
    }

    /// Asks the checker, if a request is due.
    pub(super) fn ask(
        &mut self,
        cx: &mut ScanContext<'_>,
        parameters: &ScanParameters<'_>,
        pages: &[Page],
    ) -> Result<(), LostParticipant> {
        if self.is_done || !self.request_state.is_due(cx.now.mono) {
            return Ok(());
        }
        let layout = &cx.peers.member.layout;
        let held =
            self.checked(pages, None).filter(|entry| self.is_replica_of(layout, entry.key, &entry.cell.meta));
        let digest = RangeDigest::of(held.map(|entry| (entry.key, entry.cell.meta.version)));
        let request = parameters.request(cx, self.range.clone(), ScanTask::Check { digest });
        cx.ask(&mut self.request_state, self.node, request, parameters.part(&self.partitions))
    }

    /// Handles the answer that the checker holds the same.
    pub(super) const fn take_same(&mut self) {
        self.request_state = RequestState::Idle;
        self.is_done = true;
    }

    /// Handles a page of the versions that the checker holds up to a cut. Returns the keys that
    /// differ.
    pub(super) fn take_page(
        &mut self,
        layout: &Layout,
        pages: &[Page],
        theirs: &Page,
        rest: Option<Cut>,
    ) -> Result<Vec<Key>, LostParticipant> {
        self.request_state = RequestState::Idle;
        if !is_answer(theirs, rest.as_ref(), &self.range, &self.partitions) {
            return Err(LostParticipant { node: self.node, fault: None });
        }
        let differing = self.compare(layout, pages, theirs, rest.as_ref());
        match rest {
            Some(rest) => self.range = self.range.rest(rest),
            None => self.is_done = true,
        }
        self.is_done |= self.range.is_empty();
        Ok(differing)
    }

    fn compare(&self, layout: &Layout, pages: &[Page], theirs: &Page, rest: Option<&Cut>) -> Vec<Key> {
        let versions = |entry: PageEntry<'_>| entry.cell.meta.version;
        let theirs: BTreeMap<&[u8], Version> =
            theirs.entries().map(|entry| (entry.key, versions(entry))).collect();
        let mut unseen = theirs.clone();
        let mut differing = Vec::new();
        for entry in self.checked(pages, rest) {
            unseen.remove(entry.key);
            let is_same = match theirs.get(entry.key) {
                Some(version) => *version == entry.cell.meta.version,
                None => !self.is_replica_of(layout, entry.key, &entry.cell.meta),
            };
            if !is_same {
                differing.push(entry.key);
            }
        }
        differing.extend(unseen.into_keys());
        let key = |key: &[u8]| Key::new(Bytes::copy_from_slice(key)).expect("a page holds keys");
        differing.into_iter().map(key).collect()
    }

    /// The sources' entries that are checked by this answer, up to a cut.
    fn checked<'a>(
        &'a self,
        pages: &'a [Page],
        rest: Option<&'a Cut>,
    ) -> impl Iterator<Item = PageEntry<'a>> {
        let is_checked = move |entry: &PageEntry<'_>| {
            let is_in_part = rest.is_none_or(|rest| !rest.is_passed_by(entry.key));
            is_in_part && self.range.contains(entry.key) && self.partitions.contains_key(entry.key)
        };
        pages.iter().flat_map(Page::entries).filter(is_checked)
    }

    /// Whether the checker is a replica of a cell.
    fn is_replica_of(&self, layout: &Layout, key: &[u8], meta: &CellMeta) -> bool {
        let partition = PartitionId::of(key, layout.partitions());
        layout.is_intended_replica(self.node, partition, meta.from)
    }
}
