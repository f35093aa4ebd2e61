//! Windows: what all sources have sent up to a cut, until it is known to be the newest.
//!
//! **Promise.** A window that is done has, of each key in it, the newest of what the participants of its partition hold; and as
//! many replicas hold that as hold what any read shows.
//!
//! **Mechanism.** Every checker is asked whether it holds the same. What it holds otherwise, the sources may have missed:
//! those keys are read as a user would read them (`reads`), and what was read takes the place of what the source
//! sent. So replicas that differ are repaired on the way, by the same rules as with any read.
//!
//! What was written to fewer replicas than the scan reads may be on the source, and the others that are to hold it have no
//! say here. Then nobody has said that it is where a later read cannot miss it, and such a key is read too.
//!
//! A window ends where the sources' pages do, but checkers may hold any number of keys in it that the sources lack: a
//! source that missed much sends nothing, and all of the range is one window. So a window is done part by part. Checkers
//! are asked on only while the keys that differ are fewer than a page has, and what was read is enough for a page at some
//! time: up to there the window is finished, and what is behind stays.

use super::checks::Check;
use super::desk::{Desk, Lost};
use super::reads::{Done, Enough, Reads};
use super::roles::Cast;
use super::sizes::PAGE_BYTES_MAX;
use super::sources::Known;
use crate::{
    Cut, Failure, Key, KeyRange, Layout, Page, PageBuilder, PageEntry, Quorum, Reply, ScanRequest, ScanTask,
};
use std::collections::BTreeMap;
use stdx::{Cell, CellRef, Instant, WallTime};

/// What all requests of a scan have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms<'a> {
    pub(super) cast: &'a Cast,
    /// What has expired by then is dead.
    pub(super) at: WallTime,
    /// What has been dead since before then is not looked at.
    pub(super) dead_since: WallTime,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Window {
    /// Where the window ends; `None`: with the range.
    end: Option<Cut>,
    /// What the sources sent.
    pub(super) pages: Vec<Page>,
    pub(super) checks: Vec<Check>,
    reads: Reads,
}

/// What is done of a window.
#[derive(Debug)]
pub(super) struct Finished {
    /// Where it ends; `None`: with the range.
    pub(super) end: Option<Cut>,
    /// Whether nothing of the window is left.
    pub(super) is_whole: bool,
    pages: Vec<Page>,
    read: Done,
}

impl Terms<'_> {
    /// Asks a node for a part.
    pub(super) fn request(&self, desk: &Desk<'_>, range: KeyRange, part: ScanTask) -> ScanRequest {
        let (snapshot, roles) = (desk.errands.snapshot(), self.cast.roles.clone());
        ScanRequest { snapshot, range, roles, at: self.at, dead_since: self.dead_since, part }
    }
}

impl Window {
    /// That of these pages in this range, which ends with the window.
    pub(super) fn new(
        layout: &Layout,
        cast: &Cast,
        pages: Vec<Page>,
        range: &KeyRange,
        end: Option<Cut>,
    ) -> Self {
        let checkers = cast.parts.iter().filter(|part| !part.checked.is_empty());
        let to = end.clone().or_else(|| range.to.clone());
        let range = KeyRange { from: range.from.clone(), to };
        let checks =
            checkers.map(|part| Check::new(part.node, part.checked.clone(), range.clone())).collect();
        let pages: Vec<Page> = pages.into_iter().filter(|page| !page.is_empty()).collect();
        let mut reads = Reads::default();
        for page in &pages {
            reads.want(unsure(layout, cast, page));
        }
        Self { end, pages, checks, reads }
    }

    /// How many cells the sources sent.
    pub(super) fn len(&self) -> usize {
        self.pages.iter().map(Page::len).sum()
    }

    /// Whether one of the pages is larger than pages are to be.
    pub(super) fn is_oversized(&self) -> bool {
        has_oversized(&self.pages)
    }

    /// Asks the checkers, if it is time to.
    pub(super) fn check(
        &mut self,
        desk: &mut Desk<'_>,
        terms: &Terms<'_>,
        enough: Enough,
    ) -> Result<(), Lost> {
        let checked = self.checked();
        let has_room = self.reads.len() < enough.cells.entries;
        let holds_up_reads = !self.reads.has_to_do(&checked);
        for check in &mut self.checks {
            let is_last = check.known() == checked;
            if has_room || (is_last && holds_up_reads) || check.progress.since().is_some() {
                check.ask(desk, terms, &self.pages)?;
            }
        }
        Ok(())
    }

    /// Has keys read, if it is time to.
    pub(super) fn read(&mut self, desk: &mut Desk<'_>, quorum: Quorum, enough: Enough) {
        self.reads.advance(desk, quorum, &self.checked(), enough);
    }

    /// What is done of it, if that is enough or all.
    pub(super) fn take_done(&mut self, enough: Enough) -> Option<Finished> {
        let (end, is_whole) = match self.reads.done_to(&self.checked(), enough) {
            Known::Nothing => return None,
            Known::To(cut) => (Some(cut), false),
            Known::All => (self.end.clone(), true),
        };
        let pages = match &end {
            Some(cut) if !is_whole => self.pages.iter_mut().map(|page| take_until(page, cut)).collect(),
            _ => std::mem::take(&mut self.pages),
        };
        Some(Finished { end, is_whole, pages, read: self.reads.take_done() })
    }

    /// Has these keys read.
    pub(super) fn differ(&mut self, keys: Vec<Key>) {
        self.reads.want(keys);
    }

    /// Takes the result of a read; why the scan has failed, if it has.
    pub(super) fn take_read(&mut self, now: Instant, serial: u64, reply: Reply) -> Result<(), Failure> {
        self.reads.take(now, serial, reply)
    }

    /// Whether this read is wanted still.
    pub(super) fn wants_read(&self, serial: u64) -> bool {
        self.reads.awaits(serial)
    }

    /// Since when a result of a read is waited for.
    pub(super) const fn reading_since(&self) -> Option<Instant> {
        self.reads.since()
    }

    /// When reads that had to wait go on.
    pub(super) const fn reads_paused_until(&self) -> Option<Instant> {
        self.reads.paused_until()
    }

    /// Up to where every checker has said what it holds.
    fn checked(&self) -> Known {
        self.checks.iter().map(Check::known).min().unwrap_or(Known::All)
    }
}

impl Finished {
    /// Whether it holds more than pages are to hold.
    pub(super) fn is_oversized(&self) -> bool {
        self.read.bytes > 2 * PAGE_BYTES_MAX || has_oversized(&self.pages)
    }

    /// What lives in it at `at`, so many entries at most.
    pub(super) fn page(mut self, at: WallTime, entries_max: Option<u64>) -> Page {
        let entries_max = entries_max.map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(usize::MAX));
        let is_live = |entry: &PageEntry<'_>| entry.cell.meta.is_live_at(at);
        if self.pages.len() <= 1 && self.read.cells.is_empty() {
            let page = self.pages.pop().unwrap_or_default();
            if page.entries().all(|entry| is_live(&entry)) {
                return if page.len() > entries_max { page.part(0..entries_max) } else { page };
            }
            self.pages.push(page);
        }
        let read = self.read.cells.iter();
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

/// The keys of which the participants cannot say whether what the source holds stays.
fn unsure(layout: &Layout, cast: &Cast, page: &Page) -> impl Iterator<Item = Key> {
    let is_unsure = |entry: &PageEntry<'_>| cast.are_strangers_to(layout, entry.key, entry.cell.meta.from);
    let unsure = page.entries().enumerate().filter(move |(_, entry)| is_unsure(entry));
    unsure.map(|(at, _)| page.key(at))
}

fn has_oversized(pages: &[Page]) -> bool {
    pages.iter().any(|page| page.bytes().len() > PAGE_BYTES_MAX)
}

/// Takes out of a page what is before a cut.
pub(super) fn take_until(page: &mut Page, cut: &Cut) -> Page {
    let taken = page.partition_point(|key| !cut.is_passed_by(key));
    let rest = page.part(taken..page.len());
    let page = std::mem::replace(page, rest);
    if taken == page.len() { page } else { page.part(0..taken) }
}
