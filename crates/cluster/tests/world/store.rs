//! A store that is a map, with faults on request.

use super::{Packet, ingests::Ingests, snapshots::Snapshots};
use cluster::{
    DisownedPart, Hint, IngestRequest, Key, LostRange, NodeIndex, NodeRecord, NodeSet, ReplicaRequest,
    ReplicaResponse, ScanLimit, StoreFault, StoreId, StoreRequest, StoreResponse, TableDamage,
};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;
use stdx::{Cell, CellKind, Hlc, Version};

/// An in-memory store with injected faults.
#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) cells: BTreeMap<Key, Cell>,
    pub(crate) hints: BTreeMap<(NodeIndex, Key), Version>,
    pub(crate) record: NodeRecord,
    pub(crate) bound: Hlc,
    /// Damaged tables that were not abandoned yet.
    pub(crate) damage: Vec<TableDamage>,
    /// The ranges that are not owned as a whole.
    pub(crate) disowned: Vec<DisownedPart>,
    /// Whether purges make no progress.
    pub(crate) holds_up_purges: bool,
    pub(crate) latency: Duration,
    /// Requests that satisfy this predicate fail.
    pub(crate) fails: fn(&StoreRequest) -> bool,
    /// Maximum number of concurrent writes; further ones are refused.
    pub(crate) writes_max: usize,
    pub(crate) writes_under_way: usize,
    /// The snapshots kept for scans.
    pub(crate) snapshots: Snapshots,
    /// The ingests of copies.
    pub(crate) ingests: Ingests,
    /// Whether only a read tells if a write was superseded, as in a store whose tables hold greater
    /// versions.
    pub(crate) is_unsure: bool,
    /// State of the disk for the cells of keys.
    pub(crate) disk: DiskState,
    /// Whether requests wait until the disk is back.
    pub(crate) is_hung: bool,
    /// The requests that wait.
    pub(crate) held: Vec<(StoreId, Packet)>,
}

/// Ability of a disk to read and write the cells of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DiskState {
    #[default]
    Healthy,
    /// Values are refused, deletes are accepted. No versions can be reserved.
    Full,
    /// Writes are refused for the number of writes that wait.
    Overloaded,
    /// Reads are refused for the number of reads that wait.
    ReadsOverloaded,
    /// Reads are refused for want of memory.
    NoMemory,
    /// Reads fail.
    Unreadable,
    /// Reads of values fail, and reads of versions do not.
    ValuesUnreadable,
    /// Writes fail. No versions can be reserved.
    Unwritable,
}

impl DiskState {
    /// The fault of a request.
    fn fault(self, request: &StoreRequest) -> Option<StoreFault> {
        let (is_read, is_raise_of_bound) = match request {
            StoreRequest::Replica(ReplicaRequest::EndSnapshot { .. }) => return None,
            StoreRequest::Replica(request) => (request.is_read(), false),
            StoreRequest::ReadPage(_) => (true, false),
            StoreRequest::RaiseClockBound { .. } => (false, true),
            StoreRequest::Ingest(_) => (false, false),
            _ => return None,
        };
        let is_write = !is_read && !is_raise_of_bound;
        let retry_after = Duration::from_secs(2);
        match self {
            Self::Full if is_raise_of_bound || is_write_of_value(request) || is_append(request) => {
                Some(StoreFault::Full)
            }
            Self::Overloaded if is_write => Some(StoreFault::Overloaded { retry_after }),
            Self::ReadsOverloaded if is_read => Some(StoreFault::Overloaded { retry_after }),
            Self::NoMemory if is_read => Some(StoreFault::NoMemory { retry_after }),
            Self::Unreadable if is_read => Some(StoreFault::Corrupt { detail: "as ordered".into() }),
            Self::ValuesUnreadable if is_read_of_value(request) => {
                Some(StoreFault::Corrupt { detail: "as ordered".into() })
            }
            Self::Unwritable if !is_read => Some(StoreFault::Io { detail: "as ordered".into() }),
            _ => None,
        }
    }
}

fn is_write_of_value(request: &StoreRequest) -> bool {
    let StoreRequest::Replica(ReplicaRequest::Write { cell, .. }) = request else { return false };
    cell.meta.kind == CellKind::Value
}

fn is_append(request: &StoreRequest) -> bool {
    matches!(request, StoreRequest::Ingest(IngestRequest::Append { .. }))
}

fn is_read_of_value(request: &StoreRequest) -> bool {
    matches!(request, StoreRequest::Replica(ReplicaRequest::Read { .. }))
}

impl Default for Store {
    fn default() -> Self {
        Self {
            cells: BTreeMap::new(),
            hints: BTreeMap::new(),
            record: NodeRecord::default(),
            bound: Hlc::ZERO,
            damage: Vec::new(),
            disowned: Vec::new(),
            holds_up_purges: false,
            latency: Duration::from_micros(200),
            fails: |_| false,
            writes_max: usize::MAX,
            writes_under_way: 0,
            snapshots: Snapshots::default(),
            ingests: Ingests::default(),
            is_unsure: false,
            disk: DiskState::default(),
            is_hung: false,
            held: Vec::new(),
        }
    }
}

impl Store {
    pub(crate) fn put(&mut self, key: &Key, cell: &Cell) -> bool {
        let superseded = self.cells.get(key).is_some_and(|old| old.as_ref().supersedes(&cell.as_ref()));
        if !superseded {
            self.cells.insert(key.clone(), cell.clone());
        }
        superseded
    }

    pub(crate) fn keep_hints(&mut self, key: &Key, version: Version, targets: NodeSet) {
        for target in targets.iter() {
            let newest = self.hints.entry((target, key.clone())).or_insert(version);
            *newest = version.max(*newest);
        }
    }

    /// Whether a hint is kept for `target` that it lacks a version of a key.
    pub(crate) fn has_hint(&self, key: &Key, target: NodeIndex) -> bool {
        self.hints.contains_key(&(target, key.clone()))
    }

    pub(crate) fn hints_for(&self, target: usize) -> usize {
        self.hints.keys().filter(|(of, _)| of.as_usize() == target).count()
    }

    /// Adds a damaged table with this range. Cells of the range that satisfy `is_lost` are lost.
    pub(crate) fn damage(&mut self, table: u64, range: LostRange, is_lost: impl Fn(&Key) -> bool) {
        self.cells.retain(|key, _| !is_in(&range, key) || !is_lost(key));
        self.damage.push(TableDamage { table, ranges: vec![range], own_cells: true, dead_from: None });
    }

    pub(crate) fn is_unreadable(&self, key: &Key) -> bool {
        self.damage.iter().flat_map(|damage| &damage.ranges).any(|range| is_in(range, key))
    }

    pub(crate) fn carry_out(&mut self, request: StoreRequest) -> StoreResponse {
        let is_write = matches!(request, StoreRequest::Replica(ReplicaRequest::Write { .. }));
        let is_too_much = is_write && self.writes_under_way > self.writes_max;
        self.writes_under_way -= usize::from(is_write);
        if let Some(fault) = self.disk.fault(&request) {
            self.ingests.fail(&request);
            return StoreResponse::Failed(fault);
        }
        if is_too_much || (self.fails)(&request) {
            return StoreResponse::Failed(StoreFault::Io { detail: "as ordered".into() });
        }
        match request {
            StoreRequest::Replica(ReplicaRequest::Read { key }) if self.is_unreadable(&key) => corrupt(),
            StoreRequest::Replica(ReplicaRequest::Read { key }) => {
                StoreResponse::Replica(ReplicaResponse::Cell(self.cells.get(&key).cloned()))
            }
            StoreRequest::Replica(ReplicaRequest::ReadMeta { key }) if self.is_unreadable(&key) => corrupt(),
            StoreRequest::Replica(ReplicaRequest::ReadMeta { key }) => {
                StoreResponse::Replica(ReplicaResponse::Meta(self.cells.get(&key).map(|cell| cell.meta)))
            }
            StoreRequest::Replica(ReplicaRequest::Write { key, cell, hints }) => {
                let version = cell.meta.version;
                self.put(&key, &cell);
                let superseded = self.cells[&key].meta.version > version;
                self.keep_hints(&key, version, hints);
                match self.is_unsure {
                    true => StoreResponse::WrittenUnchecked { key, version },
                    false => StoreResponse::Replica(ReplicaResponse::Written { superseded }),
                }
            }
            StoreRequest::Replica(ReplicaRequest::KeepHints { key, version, targets }) => {
                assert!(
                    self.cells.get(&key).is_some_and(|cell| cell.meta.version >= version),
                    "the keeper of a hint holds the cell"
                );
                self.keep_hints(&key, version, targets);
                StoreResponse::Replica(ReplicaResponse::HintsKept)
            }
            StoreRequest::ForgetHints { target, hints } => {
                for (key, version) in hints {
                    let at = (target, key);
                    if self.hints.get(&at).is_some_and(|kept| *kept <= version) {
                        self.hints.remove(&at);
                    }
                }
                StoreResponse::HintsForgotten
            }
            StoreRequest::ReadHints { target, after, limit, cells } => {
                self.read_hints(target, after.as_ref(), limit, cells)
            }
            StoreRequest::Scan { after, until, limit, values } => self.scan(after, until, limit, values),
            StoreRequest::Ingest(request) => self.ingest(request),
            StoreRequest::AbandonTable(damage) => {
                self.damage.retain(|known| *known != damage);
                StoreResponse::TableAbandoned
            }
            StoreRequest::Disown(parts) => {
                for owned in parts {
                    self.disowned.retain(|known| known.owned.first_hash != owned.first_hash);
                    self.disowned.push(DisownedPart { owned, bytes_left: 1, is_purged: false });
                }
                self.disowned()
            }
            StoreRequest::OwnAgain(parts) => {
                for owned in parts {
                    let of = |known: &DisownedPart| known.owned.first_hash == owned.first_hash;
                    assert!(self.disowned.iter().any(|known| of(known) && known.is_purged), "{owned:?}");
                    self.disowned.retain(|known| !of(known));
                    if owned.stays_from > 1 {
                        self.disowned.push(DisownedPart { owned, bytes_left: 0, is_purged: true });
                    }
                }
                self.disowned()
            }
            StoreRequest::ReadDisowned => self.disowned(),
            StoreRequest::ReadPage(request) => self.snapshots.read(&self.cells, &request),
            StoreRequest::Replica(ReplicaRequest::EndSnapshot { id }) => {
                self.snapshots.end(id);
                StoreResponse::Replica(ReplicaResponse::SnapshotEnded)
            }
            StoreRequest::PersistRecord { record } => {
                let revision = record.revision;
                self.record = record;
                StoreResponse::RecordPersisted { revision }
            }
            StoreRequest::RaiseClockBound { bound } => {
                self.bound = self.bound.max(bound);
                StoreResponse::ClockBoundRaised { bound: self.bound }
            }
        }
    }

    fn ingest(&mut self, request: IngestRequest) -> StoreResponse {
        match self.ingests.carry_out(request) {
            Ok((cells, response)) => {
                for (key, cell) in &cells {
                    self.put(key, cell);
                }
                StoreResponse::Ingest(response)
            }
            Err(fault) => StoreResponse::Failed(fault),
        }
    }

    /// The disowned parts. Unless purges are held up, a purge takes until the next request.
    fn disowned(&mut self) -> StoreResponse {
        let parts = self.disowned.clone();
        if !self.holds_up_purges {
            self.disowned.iter_mut().for_each(|part| (part.bytes_left, part.is_purged) = (0, true));
        }
        StoreResponse::Disowned(parts)
    }

    fn read_hints(
        &self,
        target: NodeIndex,
        after: Option<&Key>,
        limit: ScanLimit,
        cells: bool,
    ) -> StoreResponse {
        let of_target = self.hints.iter().filter(|((of, _), _)| *of == target);
        let mut rest = of_target.filter(|((_, key), _)| after.is_none_or(|after| key > after)).peekable();
        let mut hints: Vec<Hint> = Vec::new();
        while hints.len() < limit.entries
            && let Some(((_, key), version)) = rest.next()
        {
            let cell = self.cells.get(key).filter(|_| cells).cloned();
            hints.push(Hint { key: key.clone(), version: *version, cell });
        }
        let until = rest.peek().map(|_| hints.last().expect("at least one").key.clone());
        StoreResponse::Hints { hints, until }
    }

    /// Whether a damaged range overlaps the keys behind `after` up to `until`.
    fn meets_damage(&self, after: Option<&Key>, until: Option<&Key>) -> bool {
        let is_before = |a: Option<&Key>, b: Option<&Key>| match (a, b) {
            (Some(a), Some(b)) => a < b,
            (None, _) | (_, None) => true,
        };
        let mut ranges = self.damage.iter().flat_map(|damage| &damage.ranges);
        ranges.any(|range| is_before(range.after.as_ref(), until) && is_before(after, range.until.as_ref()))
    }

    fn scan(
        &self,
        after: Option<Key>,
        mut until: Option<Key>,
        limit: ScanLimit,
        values: bool,
    ) -> StoreResponse {
        let begin = after.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let end = until.clone().map_or(Bound::Unbounded, Bound::Included);
        let is_empty = match (&begin, &end) {
            (Bound::Excluded(begin), Bound::Included(end)) => begin >= end,
            _ => false,
        };
        let mut entries: Vec<(Key, Cell)> = Vec::new();
        let mut bytes = 0;
        let mut passed = after;
        let last = until.take();
        if !is_empty {
            for (key, cell) in self.cells.range((begin, end)) {
                if entries.len() == limit.entries || bytes >= limit.bytes {
                    until = entries.last().map(|(key, _)| key.clone());
                    break;
                }
                if self.meets_damage(passed.as_ref(), Some(key)) {
                    return corrupt();
                }
                passed = Some(key.clone());
                let value = if values { cell.value.clone() } else { Default::default() };
                bytes += key.as_bytes().len() + value.len();
                entries.push((key.clone(), Cell { meta: cell.meta, value }));
            }
            if until.is_none() && self.meets_damage(passed.as_ref(), last.as_ref()) {
                return corrupt();
            }
        }
        StoreResponse::Scanned { entries, until }
    }
}

fn is_in(range: &LostRange, key: &Key) -> bool {
    range.after.as_ref().is_none_or(|after| key > after)
        && range.until.as_ref().is_none_or(|until| key <= until)
}

fn corrupt() -> StoreResponse {
    StoreResponse::Failed(StoreFault::Corrupt { detail: "as ordered".into() })
}
