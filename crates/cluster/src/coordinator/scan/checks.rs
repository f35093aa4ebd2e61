//! Checks: does a replica hold what the sources sent?
//!
//! **Promise.** When a check is done, each key of which the checker holds something else than the sources sent, or something
//! that they did not send, has been named, and so has each that it lacks though it is to hold it. So of every cell that
//! a checker holds, the window shows that version or a greater one.
//!
//! **Mechanism.** The checker is told the digest of what it should hold: of the sources' cells those of which it is a
//! replica, by the cell's own `from`. It compares that with all that it holds. Mostly it is the same, and one
//! digest is all that travels. Else it names what it holds, as much as goes into a page; if that is not all, it is asked
//! for the rest when the window wants it.
//!
//! **Caveats.** What was written with a smaller `from` than the scan's may be on the checker and not belong on the
//! source: such a key always differs. Or it is on the source and does not belong on the checker, which then has nothing to
//! say about it. Both are read by themselves: right, but slow for many of them.

use super::request_state::RequestState;
use super::scan_context::{LostParticipant, ScanContext};
use super::sources::{Frontier, is_answer};
use super::window::ScanParameters;
use crate::{
    Cut, Key, KeyRange, Layout, NodeIndex, Page, PageEntry, Partition, PartitionSet, RangeDigest, ScanTask,
};
use bytes::Bytes;
use std::collections::BTreeMap;
use stdx::{CellMeta, Version};

/// See the module.
#[derive(Debug)]
pub(super) struct Check {
    pub(super) node: NodeIndex,
    partitions: PartitionSet,
    /// What of the window is left to be checked.
    range: KeyRange,
    is_done: bool,
    pub(super) request_state: RequestState,
}

impl Check {
    /// Of what this node holds of these partitions in this range.
    pub(super) const fn new(node: NodeIndex, partitions: PartitionSet, range: KeyRange) -> Self {
        Self { node, partitions, range, is_done: false, request_state: RequestState::Idle }
    }

    /// Up to where all differences have been named.
    pub(super) fn frontier(&self) -> Frontier {
        match &self.range.from {
            _ if self.is_done => Frontier::All,
            Some(from) => Frontier::To(from.clone()),
            None => Frontier::Nothing,
        }
    }

    /// Asks the checker, if it is time to.
    pub(super) fn ask(
        &mut self,
        cx: &mut ScanContext<'_>,
        parameters: &ScanParameters<'_>,
        pages: &[Page],
    ) -> Result<(), LostParticipant> {
        if self.is_done || !self.request_state.is_due(cx.now.mono) {
            return Ok(());
        }
        let layout = &cx.context.member.layout;
        let held =
            self.checked(pages, None).filter(|entry| self.is_replica_of(layout, entry.key, &entry.cell.meta));
        let digest = RangeDigest::of(held.map(|entry| (entry.key, entry.cell.meta.version)));
        let request = parameters.request(cx, self.range.clone(), ScanTask::Check { digest });
        cx.ask_peer(&mut self.request_state, self.node, request)
    }

    /// It holds the same.
    pub(super) const fn take_same(&mut self) {
        self.request_state = RequestState::Idle;
        self.is_done = true;
    }

    /// Takes what it holds up to a cut; the keys that differ.
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

    /// What the sources sent that is to be checked now, up to a cut.
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

    /// Whether a cell belongs on the checker.
    fn is_replica_of(&self, layout: &Layout, key: &[u8], meta: &CellMeta) -> bool {
        let list = layout.preference_list(Partition::of(key, layout.partitions()));
        list[..usize::from(meta.from.min(layout.len()))].contains(&self.node)
    }
}
