//! Scans of clients: the requested ranges, their pages, and the entries received.

use crate::Nanos;
use bytes::Bytes;
use cluster::{Key, NodeIndex, Page, Reply, RequestId, Scan, ScanId};
use std::collections::BTreeSet;
use stdx::{Version, WallTime};

/// An entry that a client received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenEntry {
    /// Key of the entry.
    pub key: Key,
    /// Version of the entry.
    pub version: Version,
    /// Value of the entry.
    pub value: Bytes,
}

/// How a scan ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScanEnd {
    /// With its last page: at the end of its range or at its limit.
    Complete,
    /// With a failure.
    Failed {
        /// The failure, for messages.
        reason: String,
    },
    /// The client closed the scan.
    ClosedByClient,
    /// The process ended.
    ProcessEnded,
}

/// A scan of a client.
#[derive(Clone, Debug)]
pub struct ScanRecord {
    /// Number of the scan.
    pub id: ScanId,
    /// Node that the client asked.
    pub node: NodeIndex,
    /// Range, limit and scope of the scan.
    pub scan: Scan,
    /// Time at which the first page was requested.
    pub began: Nanos,
    /// Least time that the node's wall clock has shown during the scan.
    pub least_wall: WallTime,
    /// Greatest time that the node's wall clock has shown during the scan.
    pub greatest_wall: WallTime,
    /// Entries received, in order.
    pub seen: Vec<SeenEntry>,
    /// Times of the first and the latest page.
    pub page_times: Option<(Nanos, Nanos)>,
    /// Whether the node dropped a snapshot to free memory during the scan. Such a scan may show two
    /// moments.
    pub lost_snapshot: bool,
    /// Time and kind of the end.
    pub ended: Option<(Nanos, ScanEnd)>,
}

impl ScanRecord {
    /// Whether the scan has passed `key`: the key is in the part of the range that the scan has
    /// completed.
    pub fn has_passed(&self, key: &Key) -> bool {
        let is_complete = matches!(self.ended, Some((_, ScanEnd::Complete)));
        let is_full = self.scan.limit.is_some_and(|limit| self.seen.len() as u64 >= limit);
        let is_within = self.scan.range.contains(key.as_bytes());
        let is_before_last = || self.seen.last().is_some_and(|last| *key <= last.key);
        is_within && (is_complete && !is_full || is_before_last())
    }
}

/// A command that requests a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCall {
    /// Scan of the page.
    pub scan: ScanId,
    /// Time of the request.
    pub began: Nanos,
    /// Time of the reply.
    pub answered: Option<Nanos>,
}

/// All scans of a run, and the commands that requested their pages.
#[derive(Debug, Default)]
pub struct ScanHistory {
    scans: Vec<ScanRecord>,
    calls: Vec<PageCall>,
    open: BTreeSet<ScanId>,
}

/// Bit that is set in the numbers of page commands, and in no other command numbers.
const PAGE_BIT: u64 = 1 << 63;

impl ScanHistory {
    /// Number of the next scan.
    pub fn next_id(&self) -> ScanId {
        ScanId(self.scans.len() as u64)
    }

    /// Records a scan that begins.
    ///
    /// # Panics
    /// If its number is not [`ScanHistory::next_id`].
    pub fn begin(&mut self, record: ScanRecord) {
        assert_eq!(record.id, self.next_id(), "scans are numbered as they begin");
        self.open.insert(record.id);
        self.scans.push(record);
    }

    /// Records a command that requests a page. Returns its number.
    pub fn call(&mut self, scan: ScanId, began: Nanos) -> RequestId {
        let id = RequestId(PAGE_BIT | self.calls.len() as u64);
        self.calls.push(PageCall { scan, began, answered: None });
        id
    }

    /// Whether this is the number of a page command.
    pub const fn is_page_id(id: RequestId) -> bool {
        id.0 & PAGE_BIT != 0
    }

    /// Page command of this number.
    pub fn get_call(&self, id: RequestId) -> Option<&PageCall> {
        self.calls.get((id.0 & !PAGE_BIT) as usize)
    }

    /// Records the reply to page command `id`. Returns `None` if there is no such command or it has
    /// a reply already.
    pub fn answer(&mut self, id: RequestId, at: Nanos) -> Option<PageCall> {
        let call = self.calls.get_mut((id.0 & !PAGE_BIT) as usize)?;
        call.answered.is_none().then(|| {
            call.answered = Some(at);
            *call
        })
    }

    /// Adds the page of a reply to its scan, unless the scan has ended. Returns how the scan ends,
    /// if it does.
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

    /// Records the end of a scan. Returns `false` if it had ended before.
    pub fn end(&mut self, id: ScanId, at: Nanos, end: ScanEnd) -> bool {
        let was_open = self.open.remove(&id);
        if was_open {
            self.scans[id.0 as usize].ended = Some((at, end));
        }
        was_open
    }

    /// Whether a scan has not ended.
    pub fn is_open(&self, id: ScanId) -> bool {
        self.open.contains(&id)
    }

    /// Scan of this number.
    ///
    /// # Panics
    /// If there is none.
    pub fn get(&self, id: ScanId) -> &ScanRecord {
        &self.scans[id.0 as usize]
    }

    /// Open scans at a node.
    pub fn open_at(&self, node: NodeIndex) -> Vec<ScanId> {
        self.open.iter().copied().filter(|id| self.get(*id).node == node).collect()
    }

    /// Records that a node dropped a snapshot to free memory. One of its open scans may have used
    /// it.
    pub fn note_lost_snapshot(&mut self, node: NodeIndex) {
        for id in self.open_at(node) {
            self.scans[id.0 as usize].lost_snapshot = true;
        }
    }

    /// Records a time that the wall clock of `node` shows.
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
