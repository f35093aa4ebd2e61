//! Requests to the local store, and its responses.

mod ingest;

pub use ingest::{CopyCursor, IngestRequest, IngestResponse};

use crate::{
    DisownedPart, Key, NodeIndex, NodeRecord, OwnedPart, PageRequest, ReplicaFault, ReplicaOutcome,
    ReplicaRequest, ReplicaResponse, StoreFault, TableDamage,
};
use stdx::{Cell, Hlc, Version};

/// A request to the local store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreRequest {
    /// A request as peers send it too.
    Replica(ReplicaRequest),
    /// Removes hints: each that is not newer than the version named here.
    ForgetHints {
        /// The node that they were kept for.
        target: NodeIndex,
        /// Keys and versions of the hints.
        hints: Vec<(Key, Version)>,
    },
    /// Reads hints kept for a node, in the order of their keys.
    ReadHints {
        /// The node that they are kept for.
        target: NodeIndex,
        /// Begin behind this key; `None`: at the first key.
        after: Option<Key>,
        /// Limit of one answer.
        limit: ScanLimit,
        /// Whether the newest durable cell of each key is read too.
        cells: bool,
    },
    /// Reads the newest durable cells of a range of keys, in key order, tombstones and expired
    /// values included.
    Scan {
        /// Begin behind this key; `None`: at the first key.
        after: Option<Key>,
        /// End with this key; `None`: with the last key.
        until: Option<Key>,
        /// Limit of one answer.
        limit: ScanLimit,
        /// Whether values are returned; if not, the values returned are empty, and oversized ones
        /// are not read.
        values: bool,
    },
    /// Reads the next entries of a range from a snapshot that is kept for further pages.
    ReadPage(PageRequest),
    /// Replaces a damaged table, in time, by its readable entries. Requested when all cells that
    /// may be lost with it were fetched from peers and are durable. Not done if by now the table
    /// has lost more than is named here.
    AbandonTable(TableDamage),
    /// Treats all keys outside of these parts of their ranges as absent, durably and at once, and
    /// begins to purge them. A part is not greater than the owned one.
    Disown(Vec<OwnedPart>),
    /// Owns these greater parts of ranges whose purge has ended. If that of one has not, nothing
    /// changes.
    OwnAgain(Vec<OwnedPart>),
    /// Reads the ranges that are not owned as a whole.
    ReadDisowned,
    /// Makes the node's record durable.
    PersistRecord {
        /// The whole record.
        record: NodeRecord,
    },
    /// Makes durable that clock values up to `bound` may be issued.
    RaiseClockBound {
        /// The greatest value that may be issued then.
        bound: Hlc,
    },
    /// Stores cells without the log. Blocks on the disk, so the host carries it out on a thread
    /// that may wait.
    Ingest(IngestRequest),
}

impl StoreRequest {
    /// Whether the request writes nothing to the log that its requester waits for.
    pub const fn is_read(&self) -> bool {
        match self {
            Self::Replica(request) => request.is_read(),
            Self::ReadHints { .. } | Self::Scan { .. } | Self::ReadPage(_) | Self::AbandonTable(_) => true,
            // They wait for the manifest, and not for the log.
            Self::Disown(_) | Self::OwnAgain(_) | Self::ReadDisowned | Self::Ingest(_) => true,
            Self::ForgetHints { .. } | Self::PersistRecord { .. } | Self::RaiseClockBound { .. } => false,
        }
    }
}

/// Limit of the work of one request. The request ends at the first limit reached, and passes at
/// least one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanLimit {
    /// Maximum number of entries.
    pub entries: usize,
    /// Maximum size of keys and values, in bytes.
    pub bytes: usize,
}

/// A hint: a marker that a node lacks a version of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Key that the node lacks a version of.
    pub key: Key,
    /// Version that the node lacks.
    pub version: Version,
    /// The newest cell of the key, if it was requested and there is one.
    pub cell: Option<Cell>,
}

/// The answer to a [`StoreRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreResponse {
    /// Answers `Replica` and `ReadPage`.
    Replica(ReplicaResponse),
    /// Answers `Write`: the cell is durable, but only a read of the key tells whether a greater
    /// version was already stored. This is so for a version that is not greater than all versions
    /// in the store's tables.
    WrittenUnchecked {
        /// The key.
        key: Key,
        /// The version that was written.
        version: Version,
    },
    /// Answers `ForgetHints`: the hints are removed.
    HintsForgotten,
    /// Answers `ReadHints`.
    Hints {
        /// The hints.
        hints: Vec<Hint>,
        /// Last key of the part that was read; `None`: there are no more hints.
        until: Option<Key>,
    },
    /// Answers `Scan`.
    Scanned {
        /// Keys with their cells.
        entries: Vec<(Key, Cell)>,
        /// Last key of the part of the range that was read; `None`: all of it was read.
        until: Option<Key>,
    },
    /// Answers `AbandonTable`: the table will be replaced.
    TableAbandoned,
    /// Answers `Disown`, `OwnAgain` and `ReadDisowned`: all ranges that are not owned as a whole,
    /// after the request.
    Disowned(Vec<DisownedPart>),
    /// Answers `PersistRecord`: the record is durable.
    RecordPersisted {
        /// The record's revision.
        revision: u64,
    },
    /// Answers `RaiseClockBound`: the bound is durable.
    ClockBoundRaised {
        /// The durable bound; at least the requested one.
        bound: Hlc,
    },
    /// Answers `Ingest`.
    Ingest(IngestResponse),
    /// The request was not carried out. A write may nevertheless be found after a restart, unless
    /// the fault says otherwise.
    Failed(StoreFault),
}

impl StoreResponse {
    /// The outcome of a request as peers send it too.
    ///
    /// # Panics
    /// If the request was not one of those.
    pub(crate) fn into_outcome(self) -> ReplicaOutcome {
        match self {
            Self::Replica(response) => Ok(response),
            Self::Failed(fault) => Err(ReplicaFault::Store(fault)),
            response => unreachable!("the store answered a request to a replica with {response:?}"),
        }
    }
}

impl From<ReplicaRequest> for StoreRequest {
    fn from(request: ReplicaRequest) -> Self {
        Self::Replica(request)
    }
}

impl From<ReplicaResponse> for StoreResponse {
    fn from(response: ReplicaResponse) -> Self {
        Self::Replica(response)
    }
}
