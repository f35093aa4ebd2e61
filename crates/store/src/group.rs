//! Write groups: the writes of one event-loop iteration of an I/O thread.

use crate::error::StoreError;
use crate::keyspace::{self, CLOCK_BOUND, NODE_RECORD};
use crate::node_record::{self, RecordVersions};
use cluster::{
    HybridClock, Key, NodeIndex, NodeRecord, NodeSet, ReplicaRequest, ReplicaResponse, StoreFault, StoreId,
    StoreRequest, StoreResponse,
};
use engine::{Batch, CommitOutcome, Covering, Engine, Error, PossiblySuperseded, ReadableCell, UnreadCell};
use std::sync::Arc;
use std::time::Duration;
use stdx::{Cell, CellKind, CellMeta, CellRef, Hlc, NodeTag, Version};

/// Delay before a write for a place that is being purged should be repeated.
const RETRY_UNOWNED_AFTER: Duration = Duration::from_secs(1);
/// The response to such a write.
pub(crate) const UNOWNED: StoreFault = StoreFault::Overloaded { retry_after: RETRY_UNOWNED_AFTER };
/// Delay before a file should be opened again after the process ran out of descriptors.
const RETRY_OPENING_AFTER: Duration = Duration::from_secs(1);

/// Writes of one event-loop iteration, encoded into batches of the engine. They share one hand-over
/// to its commit thread.
///
/// A request is in exactly one of three batches, so a cell and its hints are stored together or not
/// at all. The batch `values` takes values with their hints. The batch `essentials` takes writes
/// that must succeed on a full disk: tombstones with their hints, because they free space; hints
/// for cells that are stored already, whose bytes the hint ledger bounds; and removals of hints.
/// The batch `system` takes the node record and the bound of the version clock, without which no
/// write has a version. It is small and bypasses write stalls.
///
/// A write without hints is in no batch if a memtable holds its version or a newer one. It is
/// answered when that cell is durable, at once if it is already: see [`Engine::find_covering`]. So
/// a copy of a cell that arrives by a second way, as from read repair, costs no space in the log.
///
/// A write for a place that is disowned is refused: the engine would hide the cell, and purge it.
/// The gainer of a swap receives such writes until it owns the place again.
#[derive(Debug)]
pub struct WriteGroup {
    engine: Engine,
    tag: NodeTag,
    record_versions: Arc<RecordVersions>,
    values: GroupBatch,
    essentials: GroupBatch,
    system: GroupBatch,
    covered: Vec<CoveredWrite>,
    /// Writes for places that are disowned.
    unowned: Vec<StoreId>,
}

/// A write that is not logged, because the engine holds its version or a newer one.
#[derive(Debug)]
pub(crate) struct CoveredWrite {
    id: StoreId,
    key: Key,
    version: Version,
    covering: Covering,
}

#[derive(Debug, Default)]
pub(crate) struct GroupBatch {
    cells: Batch,
    /// Requests in the order of their cells in the batch.
    requests: Vec<PendingRequest>,
}

#[derive(Debug)]
struct PendingRequest {
    id: StoreId,
    kind: RequestKind,
}

#[derive(Clone, Copy, Debug)]
enum RequestKind {
    /// `position` is the index of the entity's cell in the batch.
    Write {
        position: u32,
    },
    KeepHints,
    ForgetHints,
    Remember {
        revision: u64,
    },
    RaiseClockBound(Hlc),
}

impl WriteGroup {
    /// Returns an empty group for the node with this tag.
    pub(crate) fn new(engine: Engine, tag: NodeTag, record_versions: Arc<RecordVersions>) -> Self {
        let (values, essentials, mut system) = <(GroupBatch, GroupBatch, GroupBatch)>::default();
        system.cells.bypass_stalls();
        let (covered, unowned) = Default::default();
        Self { engine, tag, record_versions, values, essentials, system, covered, unowned }
    }

    /// Adds the writes of a request.
    ///
    /// # Panics
    /// If `request` is a read: see [`StoreRequest::is_read`].
    #[inline]
    pub fn add(&mut self, id: StoreId, request: &StoreRequest) {
        let (batch, kind) = match request {
            StoreRequest::Replica(ReplicaRequest::Write { key, cell, hints }) => {
                if !self.owns(key, cell.meta.from) {
                    return self.unowned.push(id);
                }
                if hints.is_empty()
                    && let Some(covering) = self.find_covering(key, cell.as_ref())
                {
                    let (key, version) = (key.clone(), cell.meta.version);
                    self.covered.push(CoveredWrite { id, key, version, covering });
                    return;
                }
                let batch = match cell.meta.kind {
                    CellKind::Value => &mut self.values,
                    CellKind::Tombstone => &mut self.essentials,
                };
                let position = batch.cells.len() as u32;
                batch.put_entity(key, cell);
                batch.put_hints(key, cell.meta.version, *hints);
                (batch, RequestKind::Write { position })
            }
            StoreRequest::Replica(ReplicaRequest::KeepHints { key, version, targets }) => {
                self.essentials.put_hints(key, *version, *targets);
                (&mut self.essentials, RequestKind::KeepHints)
            }
            StoreRequest::ForgetHints { target, hints } => {
                for (key, version) in hints {
                    self.essentials.put_hint(*target, key, CellMeta::tombstone(*version, 1));
                }
                (&mut self.essentials, RequestKind::ForgetHints)
            }
            StoreRequest::PersistRecord { record } => {
                self.put_record(record);
                (&mut self.system, RequestKind::Remember { revision: record.revision })
            }
            StoreRequest::RaiseClockBound { bound } => {
                self.put_clock_bound(*bound);
                (&mut self.system, RequestKind::RaiseClockBound(*bound))
            }
            _ => panic!("{request:?} writes nothing"),
        };
        batch.requests.push(PendingRequest { id, kind });
    }

    #[inline]
    fn owns(&self, key: &Key, from: u8) -> bool {
        keyspace::with_entity_key(key.as_bytes(), |key| self.engine.owns(key, from))
    }

    #[inline]
    fn find_covering(&self, key: &Key, cell: CellRef<'_>) -> Option<Covering> {
        keyspace::with_entity_key(key.as_bytes(), |key| self.engine.find_covering(key, cell))
    }

    fn put_record(&mut self, record: &NodeRecord) {
        let version = Version::new(self.record_versions.clock_for(record.revision), self.tag);
        let value = node_record::encode(record);
        let cell = CellRef { meta: CellMeta::value(version, 1), value: &value };
        self.system.cells.put_critical(NODE_RECORD, cell);
    }

    fn put_clock_bound(&mut self, bound: Hlc) {
        let value = bound.to_bits().to_be_bytes();
        let meta = CellMeta::value(clock_bound_version(bound, self.tag), 1);
        self.system.cells.put_critical(CLOCK_BOUND, CellRef { meta, value: &value });
    }

    /// Number of requests in the group.
    pub fn len(&self) -> usize {
        self.unowned.len()
            + self.covered.len()
            + self.batches().map(|batch| batch.requests.len()).sum::<usize>()
    }

    /// Whether the group contains no requests.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Size of the group in the log, in bytes.
    pub fn bytes(&self) -> usize {
        self.batches().map(|batch| batch.cells.bytes()).sum()
    }

    fn batches(&self) -> impl Iterator<Item = &GroupBatch> {
        [&self.values, &self.essentials, &self.system].into_iter()
    }

    /// The responses if the group is not submitted because of `fault`.
    pub fn failed(mut self, fault: &StoreFault) -> Vec<(StoreId, StoreResponse)> {
        let covered = self.take_covered().into_iter().map(|write| write.id).chain(self.take_unowned());
        let logged = self.into_batches().flat_map(|(_, PendingResponses(requests))| requests);
        let ids = covered.chain(logged.map(|request| request.id));
        ids.map(|id| (id, StoreResponse::Failed(fault.clone()))).collect()
    }

    /// Takes the writes that need not be logged.
    pub(crate) fn take_covered(&mut self) -> Vec<CoveredWrite> {
        std::mem::take(&mut self.covered)
    }

    /// Takes the writes that are refused because their places are disowned.
    pub(crate) fn take_unowned(&mut self) -> Vec<StoreId> {
        std::mem::take(&mut self.unowned)
    }

    /// The batches that contain requests, each with its pending responses.
    pub(crate) fn into_batches(self) -> impl Iterator<Item = (Batch, PendingResponses)> {
        [self.values, self.essentials, self.system]
            .into_iter()
            .filter(|batch| !batch.requests.is_empty())
            .map(|batch| (batch.cells, PendingResponses(batch.requests)))
    }
}

impl GroupBatch {
    #[inline]
    fn put_entity(&mut self, key: &Key, cell: &Cell) {
        keyspace::with_entity_key(key.as_bytes(), |key| self.cells.put(key, cell.as_ref()));
    }

    #[inline]
    fn put_hints(&mut self, key: &Key, version: Version, targets: NodeSet) {
        for target in targets.iter() {
            self.put_hint(target, key, CellMeta::value(version, 1));
        }
    }

    /// Adds a hint as a critical write, which the reserve admits on a full disk. In a batch with
    /// values it is refused together with them.
    fn put_hint(&mut self, target: NodeIndex, key: &Key, meta: CellMeta) {
        keyspace::with_hint_key(target, key.as_bytes(), |key| {
            self.cells.put_critical(key, CellRef { meta, value: &[] });
        });
    }
}

impl CoveredWrite {
    /// Calls `done` with the response, at once on this thread or when the engine has committed the
    /// covering cell.
    pub(crate) fn respond(self, done: impl FnOnce((StoreId, StoreResponse)) + Send + 'static) {
        let Self { id, key, version, covering } = self;
        let superseded = covering.version() > version;
        let is_unsure = covering.is_possibly_superseded();
        covering.when_durable(move |result| {
            let response = match result {
                Ok(()) if is_unsure => StoreResponse::WrittenUnchecked { key, version },
                Ok(()) => ReplicaResponse::Written { superseded }.into(),
                Err(error) => StoreResponse::Failed(fault_of(&error)),
            };
            done((id, response));
        });
    }
}

/// The requests of a batch that the engine is committing.
pub(crate) struct PendingResponses(Vec<PendingRequest>);

impl PendingResponses {
    /// The response to each request of the batch.
    pub(crate) fn responses(self, result: &Result<CommitOutcome, Error>) -> Vec<(StoreId, StoreResponse)> {
        match result {
            Ok(committed) => self.responses_to(committed),
            Err(error) => {
                let fault = fault_of(error);
                self.0.into_iter().map(|request| (request.id, StoreResponse::Failed(fault.clone()))).collect()
            }
        }
    }

    fn responses_to(self, committed: &CommitOutcome) -> Vec<(StoreId, StoreResponse)> {
        // Both lists are in batch order.
        let mut superseded = committed.superseded.iter().copied().peekable();
        let mut is_superseded = |position| {
            while superseded.next_if(|&other| other < position).is_some() {}
            superseded.next_if_eq(&position).is_some()
        };
        let mut unsure = committed.possibly_superseded.iter().peekable();
        let mut unsure_at = |position| {
            while unsure.next_if(|other| other.position < position).is_some() {}
            unsure.next_if(|other| other.position == position)
        };
        let mut respond = |kind| match kind {
            RequestKind::Write { position } => match unsure_at(position) {
                Some(unsure) => written_unsure(unsure),
                None => ReplicaResponse::Written { superseded: is_superseded(position) }.into(),
            },
            RequestKind::KeepHints => ReplicaResponse::HintsKept.into(),
            RequestKind::ForgetHints => StoreResponse::HintsForgotten,
            RequestKind::Remember { revision } => StoreResponse::RecordPersisted { revision },
            RequestKind::RaiseClockBound(bound) => StoreResponse::ClockBoundRaised { bound },
        };
        self.0.into_iter().map(|request| (request.id, respond(request.kind))).collect()
    }
}

/// The response to a write that may be superseded by an older table; a read has to decide.
fn written_unsure(unsure: &PossiblySuperseded) -> StoreResponse {
    let key = Key::new(unsure.key.slice(1..)).expect("an entity's key behind the space byte");
    StoreResponse::WrittenUnchecked { key, version: unsure.version }
}

/// Maps an error of the engine to a fault of the protocol.
pub(crate) fn fault_of(error: &Error) -> StoreFault {
    match error {
        Error::Full { .. } => StoreFault::Full,
        Error::Overloaded { retry_after } => StoreFault::Overloaded { retry_after: *retry_after },
        Error::NoRoom { retry_after } => StoreFault::NoMemory { retry_after: *retry_after },
        Error::Exhausted { .. } => StoreFault::Overloaded { retry_after: RETRY_OPENING_AFTER },
        Error::Corrupt { .. } | Error::Lost { .. } => StoreFault::Corrupt { detail: error.to_string() },
        Error::Io { .. } | Error::Poisoned { .. } | Error::Locked { .. } | Error::Invalid(_) => {
            StoreFault::Io { detail: error.to_string() }
        }
    }
}

/// The version of the cell that holds `bound`. It is greater for a greater bound. Unlike the bound
/// it is not ahead of the wall clock, because tables with cells from the future do not let reads
/// stop early. Bounds in the same microsecond have the same version; then the greater bytes win.
fn clock_bound_version(bound: Hlc, tag: NodeTag) -> Version {
    Version::new(Hlc::at(bound.wall().saturating_sub(HybridClock::RESERVATION)), tag)
}

/// Upper bound of the versions that an earlier generation of the node may have issued.
pub(crate) fn durable_clock_bound(engine: &Engine) -> Result<Hlc, StoreError> {
    match engine.get(CLOCK_BOUND)? {
        None => Ok(Hlc::ZERO),
        Some(cell) => clock_bound_of(&cell).ok_or(StoreError::ClockBound { len: cell.value.len() }),
    }
}

/// As [`durable_clock_bound`], at a start. If the cell of the bound is in a table that cannot be
/// read, the result is the greatest bound that the cell can have: its version follows from the
/// bound, and the manifest says how great a version in that table can be.
pub(crate) fn clock_bound_at_start(engine: &Engine) -> Result<Hlc, StoreError> {
    let ReadableCell { cell, unread } = engine.get_readable(CLOCK_BOUND)?;
    let found =
        cell.map(|cell| clock_bound_of(&cell).ok_or(StoreError::ClockBound { len: cell.value.len() }));
    let found = found.transpose()?.unwrap_or(Hlc::ZERO);
    let Some(UnreadCell { version_max, error }) = unread else { return Ok(found) };
    tracing::error!(%error, "the bound of the version clock cannot be read: the greatest possible one is used");
    Ok(found.max(greatest_bound_of(version_max)))
}

/// The greatest bound whose cell has at most the version `version_max`.
fn greatest_bound_of(version_max: Version) -> Hlc {
    // Greater than all bounds in the last microsecond.
    Hlc::at(version_max.hlc.wall().saturating_add(HybridClock::RESERVATION).saturating_add_micros(1))
}

/// The bound in a cell of [`CLOCK_BOUND`]; `None` if the value is malformed.
fn clock_bound_of(cell: &Cell) -> Option<Hlc> {
    let bytes = <[u8; 8]>::try_from(&cell.value[..]).ok()?;
    Some(Hlc::from_bits(u64::from_be_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bound_cell(bound: Hlc) -> Cell {
        let meta = CellMeta::value(clock_bound_version(bound, NodeTag(7)), 1);
        Cell { meta, value: bound.to_bits().to_be_bytes().to_vec().into() }
    }

    proptest! {
        #[test]
        fn the_greater_bound_supersedes(a: u64, b: u64, near in 0u64..8192) {
            for b in [b, a.saturating_add(near)] {
                let (a, b) = (Hlc::from_bits(a), Hlc::from_bits(b));
                let supersedes = bound_cell(a).as_ref().supersedes(&bound_cell(b).as_ref());
                prop_assert_eq!(supersedes, a > b);
                prop_assert_eq!(clock_bound_of(&bound_cell(a)), Some(a));
            }
        }

        #[test]
        fn the_greatest_bound_of_a_version_is_none_that_it_excludes(bound in 0..u64::MAX >> 1, later: u16) {
            let bound = Hlc::from_bits(bound);
            let version = clock_bound_version(bound, NodeTag(7));
            prop_assert!(greatest_bound_of(version) > bound);
            let other = Version::new(Hlc::from_bits(version.hlc.to_bits() + u64::from(later)), NodeTag(0));
            prop_assert!(greatest_bound_of(other) > bound);
            // Not much greater either: a start past it waits for the wall clock.
            let latest = bound.wall().saturating_add(HybridClock::RESERVATION).saturating_add_micros(1);
            prop_assert!(greatest_bound_of(version) <= Hlc::at(latest));
        }
    }
}
