//! Requests to a replica, and its responses: to the local store and to a peer in the same words.
//!
//! **Promise.** A coordinator asks each replica of a key with one [`ReplicaRequest`], and judges
//! its answer as one [`ReplicaOutcome`], whether the replica is its own store or a peer. A request
//! means the same in both places, so neither side translates it.
//!
//! **Mechanism.** [`StoreRequest::Replica`](crate::StoreRequest) carries a request to the local
//! store, and [`PeerRequest::Replica`](crate::PeerRequest) carries it to a peer, where the
//! `replica` module applies its rules and passes it on to the store there. The responses take the
//! same way back. Requests that only a store understands are further variants of
//! [`StoreRequest`](crate::StoreRequest); those between the `Node`s of two processes are
//! [`NodeRequest`](crate::NodeRequest)s.
//!
//! **Caveats.** A part of a scan is requested from a peer by the roles of the nodes, and from a
//! store by partitions: `ScanRequest::into_page` turns one into the other. Its answers are
//! responses of a replica in both cases.

use crate::{Cut, Key, LayoutEpoch, NodeSet, Page, SnapshotId};
use std::time::Duration;
use stdx::{Cell, CellMeta, Version, WallTime};

/// A request to a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaRequest {
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
    /// Keeps hints that nodes lack a version of a key that the replica holds. Answered when they
    /// are durable.
    KeepHints {
        /// Key that the nodes lack a version of.
        key: Key,
        /// Version that the nodes lack.
        version: Version,
        /// The nodes that lack it.
        targets: NodeSet,
    },
    /// Releases the snapshot of a finished scan, if it is held.
    EndSnapshot {
        /// The snapshot.
        id: SnapshotId,
    },
}

/// The response to a [`ReplicaRequest`], or to a part of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaResponse {
    /// Answers `Read`: the newest cell, if there is any.
    Cell(Option<Cell>),
    /// Answers `ReadMeta`: the metadata of the newest cell, if there is any.
    Meta(Option<CellMeta>),
    /// Answers `Write`: the cell is durable, with its hints.
    Written {
        /// Whether a greater version was already stored. With concurrent writes of a key, `false`
        /// may be wrong.
        superseded: bool,
    },
    /// Answers `KeepHints`: the hints are durable.
    HintsKept,
    /// Answers a [`PageRequest`](crate::PageRequest) and a [`ScanRequest`](crate::ScanRequest). To
    /// a check it is sent if a difference was found: without values, with all that the replica
    /// holds there.
    Page {
        /// The entries.
        page: Page,
        /// End of the part of the range that was read; `None`: the end of the range. The snapshot
        /// is then released unless it [continues](crate::PageRequest::continues_at).
        rest: Option<Cut>,
    },
    /// Answers the check of a [`ScanRequest`](crate::ScanRequest): the replica holds exactly the
    /// same. Stores never answer it.
    SamePage,
    /// Answers `EndSnapshot`.
    SnapshotEnded,
}

/// The outcome of a request to a replica.
pub type ReplicaOutcome = Result<ReplicaResponse, ReplicaFault>;

/// The reason why a node did not carry out a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaFault {
    /// Its store failed.
    Store(StoreFault),
    /// It is not read-eligible, as a whole or for this key: [`SyncState`](crate::SyncState),
    /// [`RefusedKeys`](crate::RefusedKeys).
    NotReadEligible,
    /// The version is too far ahead of the receiver's clock.
    ClockAhead {
        /// Time of the receiver's wall clock.
        wall: WallTime,
    },
    /// Too many requests of this requester, or in total, are in flight there, or a write would wait
    /// for too long.
    Busy,
    /// The node has not recovered yet, is shutting down, or does not know the request.
    NotServing,
    /// The partition of the key has changed since the request was planned. The requester plans it
    /// anew once it has learned the layout.
    StaleEpoch {
        /// Epoch of the newest change in the replica's layout.
        epoch: LayoutEpoch,
    },
}

/// The reason why a store did not carry out a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreFault {
    /// The disk is full. The write is not stored.
    Full,
    /// Too many requests are waiting. The write is not stored.
    Overloaded {
        /// Time after which a retry is expected to succeed.
        retry_after: Duration,
    },
    /// The host has no memory for the value that was to be read. A peer is told that the store is
    /// overloaded, because only the node whose clients hold the memory can wait for it.
    NoMemory {
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

impl ReplicaRequest {
    /// Whether the request writes nothing that its requester waits for.
    pub const fn is_read(&self) -> bool {
        match self {
            Self::Read { .. } | Self::ReadMeta { .. } | Self::EndSnapshot { .. } => true,
            Self::Write { .. } | Self::KeepHints { .. } => false,
        }
    }

    /// The key whose cell or version is read: a replica that is not read-eligible for it refuses
    /// the request.
    pub(crate) const fn read_key(&self) -> Option<&Key> {
        match self {
            Self::Read { key } | Self::ReadMeta { key } => Some(key),
            Self::Write { .. } | Self::KeepHints { .. } | Self::EndSnapshot { .. } => None,
        }
    }

    /// The key whose cell is read or written, which the replica does by the layout. A hint may be
    /// kept by any node: the node that delivers it decides whether its target is a replica.
    pub(crate) const fn planned_key(&self) -> Option<&Key> {
        match self {
            Self::Read { key } | Self::ReadMeta { key } | Self::Write { key, .. } => Some(key),
            Self::KeepHints { .. } | Self::EndSnapshot { .. } => None,
        }
    }

    /// The nodes for which the replica keeps hints, and the key that they lack.
    pub(crate) const fn hints_mut(&mut self) -> Option<(&Key, &mut NodeSet)> {
        match self {
            Self::Write { key, hints: targets, .. } | Self::KeepHints { key, targets, .. } => {
                Some((key, targets))
            }
            Self::Read { .. } | Self::ReadMeta { .. } | Self::EndSnapshot { .. } => None,
        }
    }

    /// Approximate size in memory, in bytes.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Read { key } | Self::ReadMeta { key } | Self::KeepHints { key, .. } => key.as_bytes().len(),
            Self::Write { key, cell, .. } => write_size(key, cell),
            Self::EndSnapshot { .. } => 0,
        }
    }
}

/// Approximate size in memory of a request that writes this cell, in bytes.
pub(crate) fn write_size(key: &Key, cell: &Cell) -> usize {
    key.as_bytes().len() + cell.value.len()
}

impl ReplicaResponse {
    /// The response to a durable write of this version, from a read of the key's version after the
    /// write.
    pub(crate) fn written(version: Version, read: &ReplicaOutcome) -> Self {
        let superseded = matches!(read, Ok(Self::Meta(Some(meta))) if meta.version > version);
        Self::Written { superseded }
    }

    /// Whether the response is about as large as the data that it carries.
    pub(crate) const fn carries_data(&self) -> bool {
        matches!(self, Self::Cell(Some(_)) | Self::Page { .. })
    }
}

impl ReplicaFault {
    /// Whether the replica may carry out the request a little later.
    pub(crate) const fn is_busy(&self) -> bool {
        match self {
            Self::Busy => true,
            Self::Store(fault) => fault.is_busy(),
            Self::NotReadEligible | Self::ClockAhead { .. } | Self::NotServing | Self::StaleEpoch { .. } => {
                false
            }
        }
    }
}

impl StoreFault {
    /// Whether the store may carry out the request a little later. The request had no effect.
    pub(crate) const fn is_busy(&self) -> bool {
        matches!(self, Self::Overloaded { .. } | Self::NoMemory { .. } | Self::Expired)
    }
}
