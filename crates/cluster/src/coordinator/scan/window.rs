//! Windows: what all sources have sent up to a cut, until it is known to be the newest.
//!
//! **Promise.** A window that is done has, of each key in it, the newest of what the participants of its partition hold.
//!
//! **Mechanism.** Every checker is asked whether it holds the same. What it holds otherwise, the sources may have missed:
//! those keys are read as a user would read them, some at a time, and what was read takes the place of what the source
//! sent. So replicas that differ are repaired on the way, by the same rules as with any read.

use super::checks::Check;
use super::desk::{Desk, Lost};
use super::progress::PAUSE;
use super::roles::Cast;
use super::sizes::PAGE_BYTES_MAX;
use crate::{
    Cut, Failure, Key, KeyRange, Page, PageBuilder, PageEntry, Quorum, Reply, ScanPart, ScanRequest,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use stdx::{Cell, CellRef, Instant, WallTime};

/// Keys of one scan that are read at once.
const READS_UNDER_WAY_MAX: usize = 16;

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
    pub(super) end: Option<Cut>,
    /// What the sources sent.
    pub(super) pages: Vec<Page>,
    pub(super) checks: Vec<Check>,
    reads: Reads,
}

/// Keys that replicas hold otherwise.
#[derive(Debug, Default)]
struct Reads {
    known: BTreeSet<Key>,
    to_do: VecDeque<Key>,
    under_way: BTreeMap<u64, Key>,
    /// By the bytes of the key: what lives there, if anything does.
    done: BTreeMap<Vec<u8>, Option<Cell>>,
    /// Since when the next result is waited for.
    since: Option<Instant>,
    paused_until: Option<Instant>,
}

impl Terms<'_> {
    /// Asks a node for a part.
    pub(super) fn request(&self, desk: &Desk<'_>, range: KeyRange, part: ScanPart) -> ScanRequest {
        let (snapshot, roles) = (desk.errands.snapshot(), self.cast.roles.clone());
        ScanRequest { snapshot, range, roles, at: self.at, dead_since: self.dead_since, part }
    }
}

impl Window {
    /// That of these pages in this range, which ends with the window.
    pub(super) fn new(cast: &Cast, pages: Vec<Page>, range: &KeyRange, end: Option<Cut>) -> Self {
        let checkers = cast.parts.iter().filter(|part| !part.checked.is_empty());
        let to = end.clone().or_else(|| range.to.clone());
        let range = KeyRange { from: range.from.clone(), to };
        let checks =
            checkers.map(|part| Check::new(part.node, part.checked.clone(), range.clone())).collect();
        let pages = pages.into_iter().filter(|page| !page.is_empty()).collect();
        Self { end, pages, checks, reads: Reads::default() }
    }

    /// How many cells the sources sent.
    pub(super) fn len(&self) -> usize {
        self.pages.iter().map(Page::len).sum()
    }

    /// Whether one of the pages is larger than pages are to be.
    pub(super) fn is_oversized(&self) -> bool {
        self.pages.iter().any(|page| page.bytes().len() > PAGE_BYTES_MAX)
    }

    /// Sees that it will be done.
    pub(super) fn advance(
        &mut self,
        desk: &mut Desk<'_>,
        terms: &Terms<'_>,
        quorum: Quorum,
    ) -> Result<(), Lost> {
        for check in &mut self.checks {
            check.ask(desk, terms, &self.pages)?;
        }
        self.reads.advance(desk, quorum);
        Ok(())
    }

    /// Whether all is known.
    pub(super) fn is_done(&self) -> bool {
        self.checks.iter().all(Check::is_done) && self.reads.is_done()
    }

    /// Has these keys read.
    pub(super) fn differ(&mut self, keys: Vec<Key>) {
        for key in keys {
            if self.reads.known.insert(key.clone()) {
                self.reads.to_do.push_back(key);
            }
        }
    }

    /// Takes the result of a read; why the scan has failed, if it has.
    pub(super) fn take_read(&mut self, now: Instant, serial: u64, reply: Reply) -> Result<(), Failure> {
        self.reads.take(now, serial, reply)
    }

    /// Whether this read is wanted still.
    pub(super) fn wants_read(&self, serial: u64) -> bool {
        self.reads.under_way.contains_key(&serial)
    }

    /// Since when a result of a read is waited for.
    pub(super) const fn reading_since(&self) -> Option<Instant> {
        self.reads.since
    }

    /// When reads that had to wait go on.
    pub(super) const fn reads_paused_until(&self) -> Option<Instant> {
        self.reads.paused_until
    }

    /// What lives in it at `at`, so many entries at most.
    pub(super) fn finish(mut self, at: WallTime, entries_max: Option<u64>) -> Page {
        let entries_max = entries_max.map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(usize::MAX));
        let is_live = |entry: &PageEntry<'_>| entry.cell.meta.is_live_at(at);
        if self.pages.len() <= 1 && self.reads.done.is_empty() {
            let page = self.pages.pop().unwrap_or_default();
            if page.entries().all(|entry| is_live(&entry)) {
                return if page.len() > entries_max { page.part(0..entries_max) } else { page };
            }
            self.pages.push(page);
        }
        let unread = self.pages.iter().flat_map(Page::entries);
        let unread = unread.filter(|entry| !self.reads.done.contains_key(entry.key));
        let read =
            (self.reads.done.iter()).filter_map(|(key, cell)| Some((&key[..], cell.as_ref()?.as_ref())));
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

impl Reads {
    fn is_done(&self) -> bool {
        self.to_do.is_empty() && self.under_way.is_empty()
    }

    fn advance(&mut self, desk: &mut Desk<'_>, quorum: Quorum) {
        if self.paused_until.is_some_and(|until| desk.now.mono < until) {
            return;
        }
        self.paused_until = None;
        while self.under_way.len() < READS_UNDER_WAY_MAX
            && let Some(key) = self.to_do.pop_front()
        {
            self.since.get_or_insert(desk.now.mono);
            self.under_way.insert(desk.read(key.clone(), quorum), key);
        }
    }

    fn take(&mut self, now: Instant, serial: u64, reply: Reply) -> Result<(), Failure> {
        let Some(key) = self.under_way.remove(&serial) else {
            return Ok(());
        };
        let cell = match reply {
            Reply::Found { cell, .. } => Some(cell),
            Reply::Missing { .. } => None,
            Reply::Failed(Failure::Overloaded { .. }) => {
                self.paused_until = Some(now + PAUSE);
                self.to_do.push_back(key);
                return Ok(());
            }
            Reply::Failed(failure) => return Err(failure),
            reply => unreachable!("a read was answered with {reply:?}"),
        };
        self.done.insert(key.as_bytes().to_vec(), cell);
        self.since = (!self.is_done()).then_some(now);
        Ok(())
    }
}
