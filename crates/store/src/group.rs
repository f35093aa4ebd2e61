//! The writes of one turn of an I/O thread.

use crate::keyspace::{self, CLOCK_BOUND};
use cluster::{HybridClock, Key, StoreFault, StoreId, StoreResponse};
use engine::{Batch, Committed, Error};
use stdx::{Cell, CellKind, CellMeta, CellRef, Hlc, NodeTag, Version};

/// Writes of one turn, copied into batches of the engine: one hand-over to its commit thread for all of them.
///
/// Values go into one batch, and what must go on when the disk is full into another: deletes, which make room,
/// and the bound of the clock, without which there are no deletes.
#[derive(Debug)]
pub struct WriteGroup {
    tag: NodeTag,
    values: Part,
    essentials: Part,
}

#[derive(Debug, Default)]
pub(crate) struct Part {
    batch: Batch,
    /// One for each cell of the batch, in its order.
    asked: Vec<Asked>,
}

#[derive(Debug)]
struct Asked {
    id: StoreId,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Write,
    RaiseClockBound(Hlc),
}

impl WriteGroup {
    /// An empty group for the node of this tag.
    pub fn new(tag: NodeTag) -> Self {
        Self { tag, values: Part::default(), essentials: Part::default() }
    }

    /// Adds a cell of an entity.
    pub fn write(&mut self, id: StoreId, key: &Key, cell: &Cell) {
        let part = match cell.meta.kind {
            CellKind::Value => &mut self.values,
            CellKind::Tombstone => &mut self.essentials,
        };
        keyspace::with_entity_key(key.as_bytes(), |key| part.batch.put(key, cell.as_ref()));
        part.asked.push(Asked { id, what: What::Write });
    }

    /// Adds a bound of the version clock.
    pub fn raise_clock_bound(&mut self, id: StoreId, bound: Hlc) {
        let value = bound.to_bits().to_be_bytes();
        let meta = CellMeta::value(clock_bound_version(bound, self.tag), 1);
        self.essentials.batch.put_within_reserve(CLOCK_BOUND, CellRef { meta, value: &value });
        self.essentials.asked.push(Asked { id, what: What::RaiseClockBound(bound) });
    }

    /// Writes in the group.
    pub fn len(&self) -> usize {
        self.values.asked.len() + self.essentials.asked.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the group will take in the log, in bytes.
    pub fn bytes(&self) -> usize {
        self.values.batch.bytes() + self.essentials.batch.bytes()
    }

    /// The batches that are not empty, each with those who wait for it.
    pub(crate) fn into_parts(self) -> impl Iterator<Item = (Batch, Answers)> {
        [self.values, self.essentials]
            .into_iter()
            .filter(|part| !part.asked.is_empty())
            .map(|part| (part.batch, Answers(part.asked)))
    }
}

/// Who waits for what, while the engine has the batch.
pub(crate) struct Answers(Vec<Asked>);

impl Answers {
    /// The answer to each write of the batch.
    pub(crate) fn of(self, result: &Result<Committed, Error>) -> Vec<(StoreId, StoreResponse)> {
        match result {
            Ok(committed) => self.of_committed(committed),
            Err(error) => {
                let fault = fault_of(error);
                self.0.into_iter().map(|asked| (asked.id, StoreResponse::Failed(fault.clone()))).collect()
            }
        }
    }

    fn of_committed(self, committed: &Committed) -> Vec<(StoreId, StoreResponse)> {
        let mut responses: Vec<_> = (self.0.into_iter())
            .map(|asked| match asked.what {
                What::Write => (asked.id, StoreResponse::Written { superseded: false }),
                What::RaiseClockBound(bound) => (asked.id, StoreResponse::ClockBoundRaised { bound }),
            })
            .collect();
        for &index in &committed.superseded {
            if let (_, StoreResponse::Written { superseded }) = &mut responses[index as usize] {
                *superseded = true;
            }
        }
        responses
    }
}

/// What the protocol is told of an error of the engine.
pub(crate) fn fault_of(error: &Error) -> StoreFault {
    match error {
        Error::Full { .. } => StoreFault::Full,
        Error::Overloaded { retry_after } => StoreFault::Overloaded { retry_after: *retry_after },
        Error::Corrupt { .. } => StoreFault::Corrupt { detail: error.to_string() },
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

/// The inverse of what [`WriteGroup::raise_clock_bound`] stores; `None` when it is something else.
pub(crate) fn clock_bound_of(cell: &Cell) -> Option<Hlc> {
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
