//! Purposes of the node's requests, which decide how their answers are handled.

use super::ranges::PendingRange;
use super::repair::Transfer;
use crate::{HintCount, Key, NodeIndex};
use stdx::{Cell, Version};

/// Purpose of a request to the store.
#[derive(Debug)]
pub(super) enum StorePurpose {
    StoreRecord,
    RaiseClockBound,
    /// Counts the hints for a peer, or reads them for delivery.
    ReadHints {
        target: NodeIndex,
    },
    ForgetHints {
        target: NodeIndex,
        deleted: HintCount,
    },
    /// Scans a range that a peer requested.
    ScanForPeer(PendingRange),
    /// Stores a cell that a pull read from a source.
    StorePulledCell {
        pull: u64,
        source: NodeIndex,
        key: Key,
        cell: Cell,
    },
    AbandonTable,
    /// Reads a refused key that is being retried, to see whether this node holds a later version.
    ReadRefusedKey,
    /// Stores the cell of a refused key that a holder sent.
    StoreRefusedKey {
        holder: NodeIndex,
    },
    /// Scans a chunk for a pass of anti-entropy.
    ScanChunk {
        pass: u64,
    },
    ReadCellToPush {
        pass: u64,
        transfer: Transfer,
    },
    StoreReceivedCell {
        pass: u64,
        transfer: Transfer,
    },
}

/// Purpose of a request to a peer.
#[derive(Debug)]
pub(super) enum RequestPurpose {
    /// Delivers a hint: the newest cell of a key that the peer may lack in this version.
    DeliverHint {
        key: Key,
        version: Version,
    },
    /// Reads the cells of a range for a pull.
    PullRange {
        pull: u64,
    },
    /// Reads the version or the cell that the peer holds of a refused key.
    RetryRefusedKey,
    /// Compares a range with the peer for a pass of anti-entropy. The following purposes belong to
    /// passes as well.
    CompareRange {
        pass: u64,
    },
    CheckCell {
        pass: u64,
        transfer: Transfer,
    },
    PushCell {
        pass: u64,
        transfer: Transfer,
    },
    PullCell {
        pass: u64,
        transfer: Transfer,
    },
}
