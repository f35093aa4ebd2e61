//! What clients kind and were outcome, and which cells were issued and stored to serve them.

mod durable_versions;
mod scans;

pub use durable_versions::DurableVersions;
pub use scans::{PageCall, ScanEnd, ScanRecord, Scans, SeenEntry};

use crate::Nanos;
use bytes::Bytes;
use cluster::{Key, NodeIndex, Quorum, RequestId};
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::{Cell, CellKind, CellMeta, Version, WallTime};

/// What a client kind for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandKind {
    /// The newest value.
    Get,
    /// To store a value, for good or for a time.
    Put {
        /// For how long.
        ttl: Option<Duration>,
    },
    /// To delete.
    Delete,
}

/// What a client was outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientOutcome {
    /// A read found this value.
    Found {
        /// Its version.
        version: Version,
        /// The value.
        value: Bytes,
    },
    /// A read found nothing.
    Missing,
    /// A write is stored under this version.
    Written {
        /// Which.
        version: Version,
    },
    /// It failed; a write may be stored all the same, unless the contrary is certain.
    Failed {
        /// It is certain that nothing is stored.
        is_not_stored: bool,
        /// How.
        reason: String,
    },
    /// Nothing: the connection ended.
    NoReply,
}

/// A command of a client.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Which.
    pub id: RequestId,
    /// To whom.
    pub node: NodeIndex,
    /// What.
    pub kind: CommandKind,
    /// Of which key.
    pub key: Key,
    /// From how many replicas.
    pub quorum: Quorum,
    /// When it was kind.
    pub began: Nanos,
    /// When it was answered, and what.
    pub outcome: Option<(Nanos, ClientOutcome)>,
}

/// All commands of a run, by number.
#[derive(Debug, Default)]
pub struct History {
    operations: Vec<Operation>,
}

impl History {
    /// The number of the next command.
    pub fn next_id(&self) -> RequestId {
        RequestId(self.operations.len() as u64)
    }

    /// Takes note of a command that begins.
    ///
    /// # Panics
    /// When its number is not [`History::next_id`].
    pub fn begin(&mut self, operation: Operation) {
        assert_eq!(operation.id, self.next_id(), "commands are numbered as they begin");
        self.operations.push(operation);
    }

    /// Takes note of how a command ended. `None` when there is none of this number without an end.
    pub fn end(&mut self, id: RequestId, at: Nanos, outcome: ClientOutcome) -> Option<&Operation> {
        let operation = self.operations.get_mut(usize::try_from(id.0).ok()?)?;
        if operation.outcome.is_some() {
            return None;
        }
        operation.outcome = Some((at, outcome));
        Some(operation)
    }

    /// The command of this number.
    pub fn get(&self, id: RequestId) -> Option<&Operation> {
        self.operations.get(id.0 as usize)
    }

    /// All commands, in the order in which they began.
    pub fn iter(&self) -> impl Iterator<Item = &Operation> {
        self.operations.iter()
    }
}

/// A cell that some coordinator issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedCell {
    /// Value or tombstone.
    pub kind: CellKind,
    /// When it expires.
    pub expires_at: Option<WallTime>,
    /// How many nodes are to hold it.
    pub from: u8,
    /// The value.
    pub value: Bytes,
}

impl IssuedCell {
    /// Whether no reader sees a value in it once clocks have shown `wall`.
    pub fn is_dead_at(&self, wall: WallTime) -> bool {
        self.kind == CellKind::Tombstone || self.expires_at.is_some_and(|expires_at| expires_at <= wall)
    }
}

/// All cells that were ever issued: what may be found, and what may explain that nothing is.
#[derive(Debug, Default)]
pub struct IssuedCells {
    by_key: BTreeMap<Key, BTreeMap<Version, IssuedCell>>,
    by_version: BTreeMap<Version, Key>,
}

impl IssuedCells {
    /// Takes note of a cell that leaves a coordinator whose versions it bears. Returns whether it is the first with its
    /// version; `Err` with what is wrong when its version was issued for another cell.
    pub fn note(&mut self, key: &Key, cell: &Cell) -> Result<bool, String> {
        let version = cell.meta.version;
        if let Some(first_key) = self.by_version.get(&version)
            && first_key != key
        {
            return Err(format!("version {version} was issued for {first_key:?} and for {key:?}"));
        }
        let issued = IssuedCell {
            kind: cell.meta.kind,
            expires_at: cell.meta.expires_at,
            from: cell.meta.from,
            value: cell.value.clone(),
        };
        let cells = self.by_key.entry(key.clone()).or_default();
        match cells.get(&version) {
            Some(first) if *first == issued || is_buried(first, &cell.meta) => Ok(false),
            Some(first) if is_widened(first, &issued, cells.range(..version).map(|(_, older)| older)) => {
                Ok(false)
            }
            Some(first) => {
                Err(format!("version {version} of {key:?} was issued for {first:?} and for {issued:?}"))
            }
            None => {
                cells.insert(version, issued);
                self.by_version.insert(version, key.clone());
                Ok(true)
            }
        }
    }

    /// The cell of this version.
    pub fn get(&self, key: &Key, version: Version) -> Option<&IssuedCell> {
        self.by_key.get(key)?.get(&version)
    }

    /// The cells of a key whose versions are in `range`, in ascending order.
    pub fn range(
        &self,
        key: &Key,
        range: impl std::ops::RangeBounds<Version> + Clone,
    ) -> impl DoubleEndedIterator<Item = (Version, &IssuedCell)> {
        let cells = self.by_key.get(key).map(|cells| cells.range(range));
        cells.into_iter().flatten().map(|(version, issued)| (*version, issued))
    }

    /// Whether nothing may be left of a write of this version or of a newer one, when what is dead at `purged` may
    /// be gone; `None`: nothing may be.
    pub fn may_be_purged(&self, key: &Key, version: Version, purged: Option<WallTime>) -> bool {
        purged.is_some_and(|wall| self.range(key, version..).any(|(_, issued)| issued.is_dead_at(wall)))
    }

    /// The wall time of the greatest version.
    pub fn latest(&self) -> WallTime {
        self.by_version.last_key_value().map_or(WallTime::EPOCH_2020, |(version, _)| version.hlc.wall())
    }

    /// All keys that were written.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.by_key.keys()
    }
}

/// Whether a cell has taken over the greater `from` of an older version of its key.
fn is_widened<'a>(
    first: &IssuedCell,
    cell: &IssuedCell,
    mut older: impl Iterator<Item = &'a IssuedCell>,
) -> bool {
    let of_first = IssuedCell { from: first.from, ..cell.clone() };
    *first == of_first && cell.from > first.from && older.any(|older| older.from >= cell.from)
}

/// Whether `meta` is what compaction makes of `first` when it has expired.
fn is_buried(first: &IssuedCell, meta: &CellMeta) -> bool {
    meta.kind == CellKind::Tombstone && meta.expires_at.is_some() && meta.expires_at == first.expires_at
}
