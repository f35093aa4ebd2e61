//! Scans of clients: what they asked for, page by page, and what they saw.

use crate::Nanos;
use bytes::Bytes;
use cluster::{Key, NodeIndex, Page, Reply, RequestId, Scan, ScanId};
use std::collections::BTreeSet;
use stdx::{Version, WallTime};

/// An entry that a client saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenEntry {
    /// Its key.
    pub key: Key,
    /// Its version.
    pub version: Version,
    /// Its value.
    pub value: Bytes,
}

/// How a scan ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScanEnd {
    /// With its last page: at the end of its range or with as many entries as were wanted.
    Complete,
    /// It failed.
    Failed {
        /// How.
        reason: String,
    },
    /// The client did not want more.
    ClosedByClient,
    /// The process ended.
    ProcessEnded,
}

/// A scan of a client.
#[derive(Clone, Debug)]
pub struct ScanRecord {
    /// Which.
    pub id: ScanId,
    /// Of whom it was asked.
    pub node: NodeIndex,
    /// What was asked for.
    pub scan: Scan,
    /// When its first page was asked for.
    pub began: Nanos,
    /// The least that the wall clock of the node has shown while it went on.
    pub least_wall: WallTime,
    /// The greatest.
    pub greatest_wall: WallTime,
    /// The entries that came, in their order.
    pub seen: Vec<SeenEntry>,
    /// When the first page came, and the last so far.
    pub page_times: Option<(Nanos, Nanos)>,
    /// Whether the node dropped a snapshot for its memory while the scan went on. The scan may show two moments.
    pub lost_snapshot: bool,
    /// When it ended, and how.
    pub ended: Option<(Nanos, ScanEnd)>,
}

impl ScanRecord {
    /// Whether it is to have all that `key` may have: the part of the range that it went through.
    pub fn has_passed(&self, key: &Key) -> bool {
        let is_complete = matches!(self.ended, Some((_, ScanEnd::Complete)));
        let is_full = self.scan.limit.is_some_and(|limit| self.seen.len() as u64 >= limit);
        let is_within = self.scan.range.contains(key.as_bytes());
        let is_before_last = || self.seen.last().is_some_and(|last| *key <= last.key);
        is_within && (is_complete && !is_full || is_before_last())
    }
}

/// A command that asked for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCall {
    /// Of which scan.
    pub scan: ScanId,
    /// When.
    pub began: Nanos,
    /// When it was answered.
    pub answered: Option<Nanos>,
}

/// All scans of a run, and the commands that asked for their pages.
#[derive(Debug, Default)]
pub struct Scans {
    scans: Vec<ScanRecord>,
    calls: Vec<PageCall>,
    open: BTreeSet<ScanId>,
}

/// Set in the numbers of commands that ask for pages, and in no others.
const PAGE_BIT: u64 = 1 << 63;

impl Scans {
    /// The number of the next scan.
    pub fn next_id(&self) -> ScanId {
        ScanId(self.scans.len() as u64)
    }

    /// Takes note of a scan that begins.
    ///
    /// # Panics
    /// When its number is not [`Scans::next_id`].
    pub fn begin(&mut self, record: ScanRecord) {
        assert_eq!(record.id, self.next_id(), "scans are numbered as they begin");
        self.open.insert(record.id);
        self.scans.push(record);
    }

    /// Takes note of a command that asks for a page.
    pub fn call(&mut self, scan: ScanId, began: Nanos) -> RequestId {
        let id = RequestId(PAGE_BIT | self.calls.len() as u64);
        self.calls.push(PageCall { scan, began, answered: None });
        id
    }

    /// Whether the command of this number asked for a page.
    pub const fn is_page_id(id: RequestId) -> bool {
        id.0 & PAGE_BIT != 0
    }

    /// The command of this number.
    pub fn get_call(&self, id: RequestId) -> Option<&PageCall> {
        self.calls.get((id.0 & !PAGE_BIT) as usize)
    }

    /// Takes note that a command was answered. `None` when there is none of this number without an answer.
    pub fn answer(&mut self, id: RequestId, at: Nanos) -> Option<PageCall> {
        let call = self.calls.get_mut((id.0 & !PAGE_BIT) as usize)?;
        call.answered.is_none().then(|| {
            call.answered = Some(at);
            *call
        })
    }

    /// Takes note of what the reply to a command for a page brought, unless the client has left: how the scan ended,
    /// if it did.
    pub fn note_page(&mut self, id: ScanId, at: Nanos, reply: &Reply) -> Option<ScanEnd> {
        let record = self.open.contains(&id).then(|| &mut self.scans[id.0 as usize])?;
        match reply {
            Reply::Page { page, is_last } => {
                record.seen.extend(entries(page));
                record.page_times = Some((record.page_times.map_or(at, |(first, _)| first), at));
                is_last.then_some(ScanEnd::Complete)
            }
            other => Some(ScanEnd::Failed { reason: format!("{other:?}") }),
        }
    }

    /// Takes note that a scan ended; `false` when it had ended before.
    pub fn end(&mut self, id: ScanId, at: Nanos, end: ScanEnd) -> bool {
        let was_open = self.open.remove(&id);
        if was_open {
            self.scans[id.0 as usize].ended = Some((at, end));
        }
        was_open
    }

    /// Whether a scan goes on.
    pub fn is_open(&self, id: ScanId) -> bool {
        self.open.contains(&id)
    }

    /// The scan of this number.
    ///
    /// # Panics
    /// When there is none.
    pub fn get(&self, id: ScanId) -> &ScanRecord {
        &self.scans[id.0 as usize]
    }

    /// Scans that a node has not ended.
    pub fn open_at(&self, node: NodeIndex) -> Vec<ScanId> {
        self.open.iter().copied().filter(|id| self.get(*id).node == node).collect()
    }

    /// Takes note that a node dropped a snapshot for its memory, which one of its open scans may have used.
    pub fn note_lost_snapshot(&mut self, node: NodeIndex) {
        for id in self.open_at(node) {
            self.scans[id.0 as usize].lost_snapshot = true;
        }
    }

    /// Takes note of what the wall clock of a node shows.
    pub fn observe_wall(&mut self, node: NodeIndex, wall: WallTime) {
        for id in &self.open {
            let record = &mut self.scans[id.0 as usize];
            if record.node == node {
                record.least_wall = record.least_wall.min(wall);
                record.greatest_wall = record.greatest_wall.max(wall);
            }
        }
    }

    /// All scans, in the order in which they began.
    pub fn iter(&self) -> impl Iterator<Item = &ScanRecord> {
        self.scans.iter()
    }
}

fn entries(page: &Page) -> impl Iterator<Item = SeenEntry> {
    (0..page.len()).map(|at| {
        let cell = page.cell(at);
        SeenEntry { key: page.key(at), version: cell.meta.version, value: cell.value }
    })
}
