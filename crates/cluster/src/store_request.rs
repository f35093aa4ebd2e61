//! What a coordinator asks of the local store, and what it is told.

use crate::Key;
use std::time::Duration;
use stdx::{Cell, Hlc};

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
    },
    /// Make durable that clock values up to this one may be issued.
    RaiseClockBound {
        /// The greatest value that may be issued then.
        bound: Hlc,
    },
}

/// The answer to a [`StoreRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreResponse {
    /// To `Read`: the newest cell, if there is any.
    Cell(Option<Cell>),
    /// To `Write`: it is durable.
    Written {
        /// A greater version was already there. Only known when it costs nothing to know: `false` may be wrong.
        superseded: bool,
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
