//! Requests to the local store, and its responses.

use crate::{Cut, Key, NodeIndex, NodeRecord, NodeSet, Page, PageRequest, SnapshotId, TableDamage};
use std::time::Duration;
use stdx::{Cell, CellMeta, Hlc, Version};

/// A request to the local store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreRequest {
    /// Reads the newest durable cell of a key, tombstones and expired values included.
    Read {
        /// The key.
        key: Key,
    },
    /// As `Read`, without the value. The store does not read an oversized value for it, so an
    /// answer does not say that the value is readable.
    ReadMeta {
        /// The key.
        key: Key,
    },
    /// Stores a cell; it wins or loses by its version. Answered when it is durable.
    Write {
        /// The key.
        key: Key,
        /// The cell.
        cell: Cell,
        /// Nodes for which hints are kept in the same batch, because they lack the cell.
        hints: NodeSet,
    },
    /// Keeps hints that nodes lack a version of a key. Answered when they are durable.
    KeepHints {
        /// Key that the nodes lack a version of.
        key: Key,
        /// Version that the nodes lack.
        version: Version,
        /// The nodes that lack it.
        targets: NodeSet,
    },
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
    /// Releases a snapshot, if it is held.
    EndSnapshot {
        /// The snapshot.
        id: SnapshotId,
    },
    /// Replaces a damaged table, in time, by its readable entries. Requested when all cells that
    /// may be lost with it were fetched from peers and are durable. Not done if by now the table
    /// has lost more than is named here.
    AbandonTable(TableDamage),
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
}

impl StoreRequest {
    /// Whether the request writes nothing that its requester waits for.
    pub const fn is_read(&self) -> bool {
        match self {
            Self::Read { .. }
            | Self::ReadMeta { .. }
            | Self::ReadHints { .. }
            | Self::Scan { .. }
            | Self::ReadPage(_)
            | Self::EndSnapshot { .. }
            | Self::AbandonTable(_) => true,
            Self::Write { .. }
            | Self::KeepHints { .. }
            | Self::ForgetHints { .. }
            | Self::PersistRecord { .. }
            | Self::RaiseClockBound { .. } => false,
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
    /// Answers `Read`: the newest cell, if there is any.
    Cell(Option<Cell>),
    /// Answers `ReadMeta`: the metadata of the newest cell, if there is any.
    Meta(Option<CellMeta>),
    /// Answers `Write`: the cell is durable.
    Written {
        /// Whether a greater version was already stored. With concurrent writes of a key, `false`
        /// may be wrong.
        superseded: bool,
    },
    /// Answers `Write`: the cell is durable, but only a read of the key tells whether a greater
    /// version was already stored. This is so for a version that is not greater than all versions
    /// in the store's tables.
    WrittenUnchecked {
        /// The key.
        key: Key,
        /// The version that was written.
        version: Version,
    },
    /// Answers `KeepHints`: the hints are durable.
    HintsKept,
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
    /// Answers `ReadPage`.
    Page {
        /// The entries.
        page: Page,
        /// End of the part of the range that was read; `None`: the end of the range. The snapshot
        /// is then released unless it [continues](PageRequest::continues_at).
        rest: Option<Cut>,
    },
    /// Answers `EndSnapshot`.
    SnapshotEnded,
    /// Answers `AbandonTable`: the table will be replaced.
    TableAbandoned,
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
    /// The request was not carried out. A write may nevertheless be found after a restart, unless
    /// the fault says otherwise.
    Failed(StoreFault),
}

/// The reason why the local store did not carry out a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreFault {
    /// The disk is full. The write is not stored.
    Full,
    /// Too many requests are waiting. The write is not stored.
    Overloaded {
        /// Time after which a retry is expected to succeed.
        retry_after: Duration,
    },
    /// The deadline passed before the request was started. The write is not stored.
    Expired,
    /// A checksum did not match.
    Corrupt {
        /// The file and its fault.
        detail: String,
    },
    /// The disk failed.
    Io {
        /// Description of the failure.
        detail: String,
    },
}
