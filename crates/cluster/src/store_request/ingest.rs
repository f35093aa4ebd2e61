//! Requests for ingests: cells that become tables of the store without passing through the log.
//!
//! An ingest has a name and a durable *position*, both chosen by the requester. The store keeps
//! them together in a cursor. Cells are added in key order. From time to time the store makes all
//! cells since the last time durable, together with the position that was given with the last ones.
//! After a crash or a fault the requester continues at the durable position.

use crate::Key;
use bytes::Bytes;
use stdx::Cell;

/// A request for an ingest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IngestRequest {
    /// Reads the cursors of all ingests.
    ReadCursors,
    /// Adds cells.
    Append {
        /// Name of the ingest.
        name: Bytes,
        /// Whether the cells follow the durable position: cells that are not durable are discarded
        /// first. So it is for the first request of a process, and after a fault.
        is_rewound: bool,
        /// Keys that ascend, also from one request to the next, with their cells.
        cells: Vec<(Key, Cell)>,
        /// Position behind the cells.
        position: Bytes,
        /// Whether everything is made durable at once. Otherwise the store chooses the moment.
        is_last: bool,
    },
    /// Removes a cursor, and discards the cells that are not durable. The others stay.
    Forget {
        /// Name of the ingest.
        name: Bytes,
    },
}

/// The answer to an [`IngestRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IngestResponse {
    /// Answers `ReadCursors`.
    Cursors(Vec<CopyCursor>),
    /// Answers `Append`. After a fault in its place no cell since the durable position is stored.
    Appended {
        /// Whether the position is durable, and so all cells before it.
        is_durable: bool,
        /// Whether the store cannot keep up, or is short of disk space: the requester pauses.
        is_stalled: bool,
    },
    /// Answers `Forget`: the removal is durable.
    Forgotten,
}

/// A durable cursor of an ingest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyCursor {
    /// Name of the ingest.
    pub name: Bytes,
    /// The durable position.
    pub position: Bytes,
}
