//! The writes of one turn of an I/O thread.

use crate::error::StoreError;
use crate::keyspace::{self, CLOCK_BOUND, NODE_RECORD};
use crate::node_record::{self, RecordVersions};
use cluster::{
    HybridClock, Key, NodeIndex, NodeRecord, NodeSet, StoreFault, StoreId, StoreRequest, StoreResponse,
};
use engine::{Batch, CommitOutcome, Engine, Error, PossiblySuperseded};
use std::sync::Arc;
use std::time::Duration;
use stdx::{Cell, CellKind, CellMeta, CellRef, Hlc, NodeTag, Version};

/// When a file may be opened again for which no descriptor was left.
const RETRY_OPENING_AFTER: Duration = Duration::from_secs(1);

/// Writes of one turn, copied into batches of the engine: one hand-over to its commit thread for all of them.
///
/// A request goes whole into one of three batches: a cell is never there without its hints, nor they without it.
/// One batch takes values with their hints; one what must go on when the disk is full: deletes with theirs, which make
/// room; hints for what is here already, whose bytes the hint ledger bounds, and forgetting them. The third takes what the
/// node remembers, and the bound of the clock, without which no write has a version: little, and not to wait for a
/// flood to be over.
#[derive(Debug)]
pub struct WriteGroup {
    tag: NodeTag,
    record_versions: Arc<RecordVersions>,
    values: Part,
    essentials: Part,
    own: Part,
}

#[derive(Debug, Default)]
pub(crate) struct Part {
    batch: Batch,
    /// In the order of their cells in the batch.
    asked: Vec<Asked>,
}

#[derive(Debug)]
struct Asked {
    id: StoreId,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// The entity's cell has this position in the batch.
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
    /// An empty group for the node of this tag.
    pub(crate) fn new(tag: NodeTag, record_versions: Arc<RecordVersions>) -> Self {
        let (values, essentials, mut own) = <(Part, Part, Part)>::default();
        own.batch.bypass_stalls();
        Self { tag, record_versions, values, essentials, own }
    }

    /// Adds what a request writes.
    ///
    /// # Panics
    /// When it is none that writes: see [`StoreRequest::is_read`].
    #[inline]
    pub fn add(&mut self, id: StoreId, request: &StoreRequest) {
        let (part, what) = match request {
            StoreRequest::Write { key, cell, hints } => {
                let part = match cell.meta.kind {
                    CellKind::Value => &mut self.values,
                    CellKind::Tombstone => &mut self.essentials,
                };
                let position = part.batch.len() as u32;
                part.put_entity(key, cell);
                part.put_hints(key, cell.meta.version, *hints);
                (part, What::Write { position })
            }
            StoreRequest::KeepHints { key, version, targets } => {
                self.essentials.put_hints(key, *version, *targets);
                (&mut self.essentials, What::KeepHints)
            }
            StoreRequest::ForgetHints { target, hints } => {
                for (key, version) in hints {
                    self.essentials.put_hint(*target, key, CellMeta::tombstone(*version, 1));
                }
                (&mut self.essentials, What::ForgetHints)
            }
            StoreRequest::PersistRecord { record } => {
                self.put_record(record);
                (&mut self.own, What::Remember { revision: record.revision })
            }
            StoreRequest::RaiseClockBound { bound } => {
                self.put_clock_bound(*bound);
                (&mut self.own, What::RaiseClockBound(*bound))
            }
            StoreRequest::Read { .. }
            | StoreRequest::ReadHints { .. }
            | StoreRequest::Scan { .. }
            | StoreRequest::ReadPage(_)
            | StoreRequest::EndSnapshot { .. }
            | StoreRequest::AbandonTable(_) => {
                panic!("{request:?} writes nothing")
            }
        };
        part.asked.push(Asked { id, what });
    }

    fn put_record(&mut self, record: &NodeRecord) {
        let version = Version::new(self.record_versions.of(record.revision), self.tag);
        let value = node_record::encode(record);
        let cell = CellRef { meta: CellMeta::value(version, 1), value: &value };
        self.own.batch.put_critical(NODE_RECORD, cell);
    }

    fn put_clock_bound(&mut self, bound: Hlc) {
        let value = bound.to_bits().to_be_bytes();
        let meta = CellMeta::value(clock_bound_version(bound, self.tag), 1);
        self.own.batch.put_critical(CLOCK_BOUND, CellRef { meta, value: &value });
    }

    /// Requests in the group.
    pub fn len(&self) -> usize {
        self.parts().map(|part| part.asked.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the group will take in the log, in bytes.
    pub fn bytes(&self) -> usize {
        self.parts().map(|part| part.batch.bytes()).sum()
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        [&self.values, &self.essentials, &self.own].into_iter()
    }

    /// The answers when the group is not handed over, because of this.
    pub fn failed(self, fault: &StoreFault) -> Vec<(StoreId, StoreResponse)> {
        let answers = self.into_parts().flat_map(|(_, Answers(asked))| asked);
        answers.map(|asked| (asked.id, StoreResponse::Failed(fault.clone()))).collect()
    }

    /// The batches that somebody waits for, each with those who do.
    pub(crate) fn into_parts(self) -> impl Iterator<Item = (Batch, Answers)> {
        [self.values, self.essentials, self.own]
            .into_iter()
            .filter(|part| !part.asked.is_empty())
            .map(|part| (part.batch, Answers(part.asked)))
    }
}

impl Part {
    #[inline]
    fn put_entity(&mut self, key: &Key, cell: &Cell) {
        keyspace::with_entity_key(key.as_bytes(), |key| self.batch.put(key, cell.as_ref()));
    }

    #[inline]
    fn put_hints(&mut self, key: &Key, version: Version, targets: NodeSet) {
        for target in targets.iter() {
            self.put_hint(target, key, CellMeta::value(version, 1));
        }
    }

    /// Within the reserve; in a batch with values it is refused with them.
    fn put_hint(&mut self, target: NodeIndex, key: &Key, meta: CellMeta) {
        keyspace::with_hint_key(target, key.as_bytes(), |key| {
            self.batch.put_critical(key, CellRef { meta, value: &[] });
        });
    }
}

/// Who waits for what, while the engine has the batch.
pub(crate) struct Answers(Vec<Asked>);

impl Answers {
    /// The answer to each write of the batch.
    pub(crate) fn of(self, result: &Result<CommitOutcome, Error>) -> Vec<(StoreId, StoreResponse)> {
        match result {
            Ok(committed) => self.of_committed(committed),
            Err(error) => {
                let fault = fault_of(error);
                self.0.into_iter().map(|asked| (asked.id, StoreResponse::Failed(fault.clone()))).collect()
            }
        }
    }

    fn of_committed(self, committed: &CommitOutcome) -> Vec<(StoreId, StoreResponse)> {
        // Both are in the order of the batch.
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
        let mut respond = |what| match what {
            What::Write { position } => match unsure_at(position) {
                Some(unsure) => written_unsure(unsure),
                None => StoreResponse::Written { superseded: is_superseded(position) },
            },
            What::KeepHints => StoreResponse::HintsKept,
            What::ForgetHints => StoreResponse::HintsForgotten,
            What::Remember { revision } => StoreResponse::RecordPersisted { revision },
            What::RaiseClockBound(bound) => StoreResponse::ClockBoundRaised { bound },
        };
        self.0.into_iter().map(|asked| (asked.id, respond(asked.what))).collect()
    }
}

/// The answer to a write of an entity of which a read has to tell whether it was superseded.
fn written_unsure(unsure: &PossiblySuperseded) -> StoreResponse {
    let key = Key::new(unsure.key.slice(1..)).expect("the key of an entity behind its space");
    StoreResponse::WrittenUnchecked { key, version: unsure.version }
}

/// What the protocol is told of an error of the engine.
pub(crate) fn fault_of(error: &Error) -> StoreFault {
    match error {
        Error::Full { .. } => StoreFault::Full,
        Error::Overloaded { retry_after } | Error::NoRoom { retry_after } => {
            StoreFault::Overloaded { retry_after: *retry_after }
        }
        Error::Exhausted { .. } => StoreFault::Overloaded { retry_after: RETRY_OPENING_AFTER },
        Error::Corrupt { .. } | Error::Lost { .. } => StoreFault::Corrupt { detail: error.to_string() },
        Error::Io { .. } | Error::Poisoned { .. } | Error::Locked { .. } | Error::Invalid(_) => {
            StoreFault::Io { detail: error.to_string() }
        }
    }
}

/// The version of the cell that holds `bound`: greater for a greater bound, and not ahead of the wall clock as
/// the bound itself is, for tables with cells from the future end no read early. Bounds of one microsecond get
/// one version, and then the greater bytes win.
fn clock_bound_version(bound: Hlc, tag: NodeTag) -> Version {
    Version::new(Hlc::at(bound.wall().saturating_sub(HybridClock::RESERVATION)), tag)
}

/// Where a former life of the node may have issued versions up to.
pub(crate) fn durable_clock_bound(engine: &Engine) -> Result<Hlc, StoreError> {
    match engine.get(CLOCK_BOUND)? {
        None => Ok(Hlc::ZERO),
        Some(cell) => clock_bound_of(&cell).ok_or(StoreError::ClockBound { len: cell.value.len() }),
    }
}

/// The bound in a cell of [`CLOCK_BOUND`]; `None` when it is something else.
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
    }
}
