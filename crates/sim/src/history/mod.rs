//! History of a run: commands of clients and their outcomes, scans, issued cells, and cells that
//! nodes made durable.

mod agreement;
mod durable_versions;
mod scans;

pub use agreement::{AgreementHistory, DecidedRecord, HostVoter, ToldVotes, votes_needed};
pub use durable_versions::DurableVersions;
pub use scans::{PageCall, ScanEnd, ScanHistory, ScanRecord, SeenEntry};

use crate::Nanos;
use bytes::Bytes;
use cluster::{Key, NodeIndex, Quorum, RequestId};
use std::collections::BTreeMap;
use std::time::Duration;
use stdx::{Cell, CellKind, CellMeta, Version, WallTime};

/// Kind of a client's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandKind {
    /// Read of the newest value.
    Get,
    /// Write of a value.
    Put {
        /// Time to live; `None` if the value never expires.
        ttl: Option<Duration>,
    },
    /// Delete.
    Delete,
}

/// Outcome of a command, as its client knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientOutcome {
    /// A read found a value.
    Found {
        /// Version of the value.
        version: Version,
        /// Bytes of the value.
        value: Bytes,
    },
    /// A read found no live value.
    Missing,
    /// A write or delete is stored.
    Written {
        /// Version under which it is stored.
        version: Version,
    },
    /// The command failed. A failed write may be stored unless `is_not_stored` is set.
    Failed {
        /// Whether the reply promises that nothing is stored.
        is_not_stored: bool,
        /// The failure, for messages.
        reason: String,
    },
    /// The process ended before it replied.
    NoReply,
}

/// A command of a client.
#[derive(Clone, Debug)]
pub struct ClientOperation {
    /// Number of the command.
    pub id: RequestId,
    /// Node that the client asked.
    pub node: NodeIndex,
    /// Kind of the command.
    pub kind: CommandKind,
    /// Key of the command.
    pub key: Key,
    /// Quorum of the command.
    pub quorum: Quorum,
    /// Time at which the client sent it.
    pub began: Nanos,
    /// Time and kind of its outcome; `None` while it is in flight.
    pub outcome: Option<(Nanos, ClientOutcome)>,
}

/// All commands of a run, by number.
#[derive(Debug, Default)]
pub struct History {
    operations: Vec<ClientOperation>,
}

impl History {
    /// Number of the next command.
    pub fn next_id(&self) -> RequestId {
        RequestId(self.operations.len() as u64)
    }

    /// Records a command that begins.
    ///
    /// # Panics
    /// If its number is not [`History::next_id`].
    pub fn begin(&mut self, operation: ClientOperation) {
        assert_eq!(operation.id, self.next_id(), "commands are numbered as they begin");
        self.operations.push(operation);
    }

    /// Records the outcome of command `id`. Returns `None` if there is no such command or it has an
    /// outcome already.
    pub fn end(&mut self, id: RequestId, at: Nanos, outcome: ClientOutcome) -> Option<&ClientOperation> {
        let operation = self.operations.get_mut(usize::try_from(id.0).ok()?)?;
        if operation.outcome.is_some() {
            return None;
        }
        operation.outcome = Some((at, outcome));
        Some(operation)
    }

    /// Command of this number.
    pub fn get(&self, id: RequestId) -> Option<&ClientOperation> {
        self.operations.get(id.0 as usize)
    }

    /// All commands, in the order in which they began.
    pub fn iter(&self) -> impl Iterator<Item = &ClientOperation> {
        self.operations.iter()
    }
}

/// A cell that a coordinator issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedCell {
    /// Value or tombstone.
    pub kind: CellKind,
    /// Time of expiry.
    pub expires_at: Option<WallTime>,
    /// Number of replicas that are to hold the cell.
    pub from: u8,
    /// Bytes of the value.
    pub value: Bytes,
}

impl IssuedCell {
    /// Whether the cell shows no value to a reader once a clock has shown `wall`.
    pub fn is_dead_at(&self, wall: WallTime) -> bool {
        self.kind == CellKind::Tombstone || self.expires_at.is_some_and(|expires_at| expires_at <= wall)
    }
}

/// All cells that were ever issued. They are the values that reads may return, and the deletes that
/// may explain a missing key.
#[derive(Debug, Default)]
pub struct IssuedCells {
    by_key: BTreeMap<Key, BTreeMap<Version, IssuedCell>>,
    by_version: BTreeMap<Version, Key>,
}

impl IssuedCells {
    /// Records a cell that leaves a coordinator that issues versions with this cell's tag. Returns
    /// whether its version is new.
    ///
    /// # Errors
    /// A description of the conflict if the version was issued for another cell.
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

    /// Cell of this key and version.
    pub fn get(&self, key: &Key, version: Version) -> Option<&IssuedCell> {
        self.by_key.get(key)?.get(&version)
    }

    /// Cells of a key whose versions are in `range`, in ascending order.
    pub fn range(
        &self,
        key: &Key,
        range: impl std::ops::RangeBounds<Version> + Clone,
    ) -> impl DoubleEndedIterator<Item = (Version, &IssuedCell)> {
        let cells = self.by_key.get(key).map(|cells| cells.range(range));
        cells.into_iter().flatten().map(|(version, issued)| (*version, issued))
    }

    /// Whether a cell of this or a newer version was dead at `purged`, so that no replica needs to
    /// hold anything. With `None` nothing is purged in the run.
    pub fn may_be_purged(&self, key: &Key, version: Version, purged: Option<WallTime>) -> bool {
        purged.is_some_and(|wall| self.range(key, version..).any(|(_, issued)| issued.is_dead_at(wall)))
    }

    /// Wall time of the greatest version.
    pub fn latest(&self) -> WallTime {
        self.by_version.last_key_value().map_or(WallTime::EPOCH_2020, |(version, _)| version.hlc.wall())
    }

    /// All keys that were written.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.by_key.keys()
    }
}

/// Whether `cell` is `first` with the greater `from` of an older version of its key.
fn is_widened<'a>(
    first: &IssuedCell,
    cell: &IssuedCell,
    mut older: impl Iterator<Item = &'a IssuedCell>,
) -> bool {
    let of_first = IssuedCell { from: first.from, ..cell.clone() };
    *first == of_first && cell.from > first.from && older.any(|older| older.from >= cell.from)
}

/// Whether `meta` is the tombstone by which compaction replaces the expired value `first`.
fn is_buried(first: &IssuedCell, meta: &CellMeta) -> bool {
    meta.kind == CellKind::Tombstone && meta.expires_at.is_some() && meta.expires_at == first.expires_at
}
