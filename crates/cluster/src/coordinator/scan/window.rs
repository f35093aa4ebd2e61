//! Windows: all that the sources have sent up to a cut, until it is known to be the newest.
//!
//! **Promise.** A finished window contains, for each key, the newest cell that the participants of
//! its partition hold; and as many replicas hold it as hold the result of any read.
//!
//! **Mechanism.** Every checker is asked whether it holds the same. Where it holds something else,
//! the sources may have missed a write: those keys are read like a client's (`key_reads`), and the
//! results replace the sources' cells. Differing replicas are thus repaired on the way, by the
//! rules of any read.
//!
//! A cell that was written to fewer replicas than the scan reads may be on the source, while its
//! other replicas do not participate. Then it is not known whether a later read can miss it, and
//! such a key is read too.
//!
//! A window ends where the sources' pages do, but checkers may hold any number of keys in it that
//! the sources lack: a source that missed much sends nothing, and the whole range is one window. A
//! window is therefore finished in parts. Checkers are asked further only while the keys that
//! differ are fewer than a page has. As soon as the results suffice for a page, the window is
//! finished up to there, and the rest remains.

use super::checks::Check;
use super::key_reads::{CompletedReads, KeyReads, PageTarget};
use super::page_sizes::PAGE_BYTES_MAX;
use super::roles::RoleAssignment;
use super::scan_context::{LostParticipant, PlannedPart, ScanContext};
use super::sources::Frontier;
use crate::{
    CommandFailure, Cut, Key, KeyRange, Layout, Page, PageBuilder, PageEntry, PartitionSet, Quorum, Reply,
    ScanRequest, ScanTask,
};
use std::collections::BTreeMap;
use stdx::{Cell, CellRef, Instant, WallTime};

/// Parameters that all requests of a scan have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScanParameters<'a> {
    pub(super) assignment: &'a RoleAssignment,
    /// Cells that have expired by then are dead.
    pub(super) at: WallTime,
    /// Cells that have been dead since before then are ignored.
    pub(super) dead_since: WallTime,
}

/// Entries of the sources up to a cut, with their checks.
#[derive(Debug)]
pub(super) struct ScanWindow {
    /// End of the window; `None`: the end of the range.
    end: Option<Cut>,
    /// The pages of the sources.
    pub(super) pages: Vec<Page>,
    pub(super) checks: Vec<Check>,
    key_reads: KeyReads,
}

/// The finished part of a window.
#[derive(Debug)]
pub(super) struct FinishedWindow {
    /// End of the part; `None`: the end of the range.
    pub(super) end: Option<Cut>,
    /// Whether nothing of the window remains.
    pub(super) is_whole: bool,
    pages: Vec<Page>,
    completed: CompletedReads,
}

impl ScanParameters<'_> {
    /// The request to a node for this task in this range.
    pub(super) fn request(&self, cx: &ScanContext<'_>, range: KeyRange, task: ScanTask) -> ScanRequest {
        let (snapshot, roles) = (cx.in_flight.snapshot(), self.assignment.roles.clone());
        ScanRequest { snapshot, range, roles, at: self.at, dead_since: self.dead_since, task }
    }

    /// The part of a node that has a role in these partitions.
    pub(super) const fn part<'p>(&self, partitions: &'p PartitionSet) -> PlannedPart<'p> {
        PlannedPart { partitions, epoch: self.assignment.epoch }
    }
}

impl ScanWindow {
    /// The window of these pages in this range, up to `end`.
    pub(super) fn new(
        layout: &Layout,
        assignment: &RoleAssignment,
        pages: Vec<Page>,
        range: &KeyRange,
        end: Option<Cut>,
    ) -> Self {
        let checkers = assignment.node_roles.iter().filter(|role| !role.checked.is_empty());
        let to = end.clone().or_else(|| range.to.clone());
        let range = KeyRange { from: range.from.clone(), to };
        let checks =
            checkers.map(|role| Check::new(role.node, role.checked.clone(), range.clone())).collect();
        let pages: Vec<Page> = pages.into_iter().filter(|page| !page.is_empty()).collect();
        let mut key_reads = KeyReads::default();
        for page in &pages {
            key_reads.enqueue(keys_without_quorum(layout, assignment, page));
        }
        Self { end, pages, checks, key_reads }
    }

    /// Number of cells that the sources sent.
    pub(super) fn len(&self) -> usize {
        self.pages.iter().map(Page::len).sum()
    }

    /// Whether one of the pages is oversized.
    pub(super) fn is_oversized(&self) -> bool {
        has_oversized(&self.pages)
    }

    /// Asks the checkers whose requests are due.
    pub(super) fn run_checks(
        &mut self,
        cx: &mut ScanContext<'_>,
        parameters: &ScanParameters<'_>,
        target: PageTarget,
    ) -> Result<(), LostParticipant> {
        let checked = self.checked();
        let has_capacity = self.key_reads.len() < target.cells.entries;
        let delays_reads = !self.key_reads.has_queued(&checked);
        for check in &mut self.checks {
            let is_last = check.frontier() == checked;
            if has_capacity || (is_last && delays_reads) || check.request_state.since().is_some() {
                check.ask(cx, parameters, &self.pages)?;
            }
        }
        Ok(())
    }

    /// Starts the reads that are due.
    pub(super) fn run_reads(&mut self, cx: &mut ScanContext<'_>, quorum: Quorum, target: PageTarget) {
        self.key_reads.advance(cx, quorum, &self.checked(), target);
    }

    /// Takes the finished part, if it suffices for a page or is all.
    pub(super) fn take_finished(&mut self, target: PageTarget) -> Option<FinishedWindow> {
        let (end, is_whole) = match self.key_reads.completed_to(&self.checked(), target) {
            Frontier::Nothing => return None,
            Frontier::To(cut) => (Some(cut), false),
            Frontier::All => (self.end.clone(), true),
        };
        let pages = match &end {
            Some(cut) if !is_whole => self.pages.iter_mut().map(|page| take_until(page, cut)).collect(),
            _ => std::mem::take(&mut self.pages),
        };
        Some(FinishedWindow { end, is_whole, pages, completed: self.key_reads.take_completed() })
    }

    /// Queues reads of keys that differ.
    pub(super) fn add_differing(&mut self, keys: Vec<Key>) {
        self.key_reads.enqueue(keys);
    }

    /// Handles the result of a read. Returns the failure of the scan, if it has failed.
    pub(super) fn handle_read(
        &mut self,
        now: Instant,
        serial: u64,
        reply: Reply,
    ) -> Result<(), CommandFailure> {
        self.key_reads.take_result(now, serial, reply)
    }

    /// Whether the result of this read is still needed.
    pub(super) fn wants_read(&self, serial: u64) -> bool {
        self.key_reads.awaits(serial)
    }

    /// Start of the wait for a result of a read.
    pub(super) const fn reading_since(&self) -> Option<Instant> {
        self.key_reads.since()
    }

    /// Time at which paused reads continue.
    pub(super) const fn reads_paused_until(&self) -> Option<Instant> {
        self.key_reads.paused_until()
    }

    /// The frontier up to which every checker has reported its versions.
    fn checked(&self) -> Frontier {
        self.checks.iter().map(Check::frontier).min().unwrap_or(Frontier::All)
    }
}

impl FinishedWindow {
    /// Whether it holds more than a page should.
    pub(super) fn is_oversized(&self) -> bool {
        self.completed.bytes > 2 * PAGE_BYTES_MAX || has_oversized(&self.pages)
    }

    /// The page of at most `entries_max` entries that are live at `at`.
    pub(super) fn page(mut self, at: WallTime, entries_max: Option<u64>) -> Page {
        let entries_max = entries_max.map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(usize::MAX));
        let is_live = |entry: &PageEntry<'_>| entry.cell.meta.is_live_at(at);
        if self.pages.len() <= 1 && self.completed.cells.is_empty() {
            let page = self.pages.pop().unwrap_or_default();
            if page.entries().all(|entry| is_live(&entry)) {
                return if page.len() > entries_max { page.slice(0..entries_max) } else { page };
            }
            self.pages.push(page);
        }
        let read = self.completed.cells.iter();
        let read: BTreeMap<&[u8], Option<&Cell>> =
            read.map(|(key, cell)| (key.as_bytes(), cell.as_ref())).collect();
        let unread = self.pages.iter().flat_map(Page::entries);
        let unread = unread.filter(|entry| !read.contains_key(entry.key));
        let read = read.iter().filter_map(|(key, cell)| Some((*key, (*cell)?.as_ref())));
        let mut entries: Vec<(&[u8], CellRef<'_>)> =
            unread.map(|entry| (entry.key, entry.cell)).chain(read).collect();
        entries.retain(|(_, cell)| cell.meta.is_live_at(at));
        entries.sort_unstable_by_key(|(key, _)| *key);
        entries.truncate(entries_max);
        let bytes = entries.iter().map(|(key, cell)| key.len() + 1 + cell.value.len()).sum();
        let mut page = PageBuilder::with_capacity(bytes);
        entries.into_iter().for_each(|(key, cell)| page.push(key, cell));
        page.finish()
    }
}

/// The keys of a page for which the participants cannot tell whether the source's cell stays.
fn keys_without_quorum(
    layout: &Layout,
    assignment: &RoleAssignment,
    page: &Page,
) -> impl Iterator<Item = Key> {
    let is_unsure =
        |entry: &PageEntry<'_>| assignment.lacks_replica_quorum(layout, entry.key, entry.cell.meta.from);
    let keys_without_quorum = page.entries().enumerate().filter(move |(_, entry)| is_unsure(entry));
    keys_without_quorum.map(|(at, _)| page.key(at))
}

fn has_oversized(pages: &[Page]) -> bool {
    pages.iter().any(|page| page.bytes().len() > PAGE_BYTES_MAX)
}

/// Takes the entries before a cut out of a page.
pub(super) fn take_until(page: &mut Page, cut: &Cut) -> Page {
    let taken = page.partition_point(|key| !cut.is_passed_by(key));
    let rest = page.slice(taken..page.len());
    let page = std::mem::replace(page, rest);
    if taken == page.len() { page } else { page.slice(0..taken) }
}
