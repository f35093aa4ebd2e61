//! What a coordinator asks of the local store, and what it is told.

use crate::{Cut, Damage, Key, NodeIndex, NodeRecord, NodeSet, Page, PageRequest, SnapshotId};
use std::time::Duration;
use stdx::{Cell, Hlc, Version};

/// A request to the local store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreRequest {
    /// The newest durable cell of a key, tombstones and expired values included.
    Read {
        /// Which key.
        key: Key,
    },
    /// Store a cell; it wins or loses by its version. Answered when it is durable.
    Write {
        /// Under which key.
        key: Key,
        /// What to store.
        cell: Cell,
        /// Keep markers, in the same batch, that these nodes lack it.
        hints: NodeSet,
    },
    /// Keep markers that nodes lack a version of a key. Answered when they are durable.
    KeepHints {
        /// Which key.
        key: Key,
        /// Which version.
        version: Version,
        /// Who lacks it.
        targets: NodeSet,
    },
    /// Remove markers: each that is not newer than the version named here.
    ForgetHints {
        /// For whom they were kept.
        target: NodeIndex,
        /// Which.
        hints: Vec<(Key, Version)>,
    },
    /// Markers kept for a node, in the order of their keys.
    ReadHints {
        /// For whom they are kept.
        target: NodeIndex,
        /// Begin behind this key.
        after: Option<Key>,
        /// How much at once.
        limit: ScanLimit,
        /// With the newest durable cell of each key.
        cells: bool,
    },
    /// The newest durable cells of a range of keys, in their order, tombstones and expired values included.
    Scan {
        /// Begin behind this key; `None`: at the first of all.
        after: Option<Key>,
        /// End with this key; `None`: with the last of all.
        until: Option<Key>,
        /// How much at once.
        limit: ScanLimit,
        /// With the values; without, values are empty whatever is stored.
        values: bool,
    },
    /// The next entries of a range, of a snapshot that is kept for more.
    ReadPage(PageRequest),
    /// Let go of a snapshot, if it is kept.
    EndSnapshot {
        /// Which one.
        id: SnapshotId,
    },
    /// All that may be lost with a damaged table was got from others, and is durable: replace the table by what can
    /// be read of it, in time. Not done when by now it has lost more than what is named here.
    AbandonTable(Damage),
    /// Make durable what the node remembers.
    PersistRecord {
        /// All of it.
        record: NodeRecord,
    },
    /// Make durable that clock values up to this one may be issued.
    RaiseClockBound {
        /// The greatest value that may be issued then.
        bound: Hlc,
    },
}

impl StoreRequest {
    /// Whether it writes nothing that somebody waits for.
    pub const fn is_read(&self) -> bool {
        match self {
            Self::Read { .. }
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

/// How much a scan does at once. It ends at the first of these, and passes over at least one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanLimit {
    /// Entries.
    pub entries: usize,
    /// Bytes of keys and values.
    pub bytes: usize,
}

/// A marker that a node lacks a version of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Which key.
    pub key: Key,
    /// Which version.
    pub version: Version,
    /// The newest cell of the key, if it was asked for and there is one.
    pub cell: Option<Cell>,
}

/// The answer to a [`StoreRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreResponse {
    /// To `Read`: the newest cell, if there is any.
    Cell(Option<Cell>),
    /// To `Write`: it is durable.
    Written {
        /// A greater version was already there. Of several writes of a key at one time, `false` may be wrong.
        superseded: bool,
    },
    /// To `Write`: it is durable, and only a read of the key tells whether a greater version was already there. So it is
    /// with a version that is not greater than all that the store's tables hold.
    WrittenUnchecked {
        /// Which key.
        key: Key,
        /// Which version was written.
        version: Version,
    },
    /// To `KeepHints`: they are durable.
    HintsKept,
    /// To `ForgetHints`: they are gone.
    HintsForgotten,
    /// To `ReadHints`.
    Hints {
        /// Markers.
        hints: Vec<Hint>,
        /// The part that was looked at ends with this key; `None`: there are no more.
        until: Option<Key>,
    },
    /// To `Scan`.
    Scanned {
        /// Keys with their cells.
        entries: Vec<(Key, Cell)>,
        /// The part of the range that was looked at ends with this key; `None`: all of it was.
        until: Option<Key>,
    },
    /// To `ReadPage`.
    Page {
        /// Entries.
        page: Page,
        /// Where what was looked at ends; `None`: at the end of the range, and the snapshot is let go
        /// unless it [goes on](PageRequest::continues_at).
        rest: Option<Cut>,
    },
    /// To `EndSnapshot`.
    SnapshotEnded,
    /// To `AbandonTable`: it will be done.
    TableAbandoned,
    /// To `PersistRecord`: it is durable.
    RecordPersisted {
        /// The record's revision.
        revision: u64,
    },
    /// To `RaiseClockBound`: it is durable.
    ClockBoundRaised {
        /// The bound that is durable now; at least the one asked for.
        bound: Hlc,
    },
    /// It was not done. A write may nevertheless be found after a restart, unless the fault says otherwise.
    Failed(StoreFault),
}

/// Why the local store did not do as asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreFault {
    /// No room on the disk. The write is not stored.
    Full,
    /// Too much is waiting. The write is not stored.
    Overloaded {
        /// When there will be room.
        retry_after: Duration,
    },
    /// Its turn came when nobody waited for it any more. The write is not stored.
    Expired,
    /// A checksum did not match.
    Corrupt {
        /// Which file, and what is wrong with it.
        detail: String,
    },
    /// The disk failed.
    Io {
        /// What failed.
        detail: String,
    },
}
